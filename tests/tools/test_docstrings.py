"""What a docstring says of a tool and of its parameters, in each style and however carelessly it is written."""

from __future__ import annotations

import functools
import operator
import subprocess
import sys
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import dedent, indent
from typing import Any
from unittest import TestCase

import griffe
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.helpers import relaxed
from traced_tools.tools.docstrings import Docstring, read_docstring


def read(text: str | None) -> Docstring:
    """Read `text` as the docstring of a function."""

    def function() -> None: ...

    function.__doc__ = text
    return read_docstring(function)


def described(text: str) -> str:
    return read(text).description


def parameters(text: str) -> dict[str, str]:
    return dict(read(text).parameters)


# The description.


@pytest.mark.parametrize(
    "text",
    [
        "Find a city.",
        "Find\n    a city.",
        "\n        \n    Find a city.\n",
        "Find a city.\nArgs:\n    name: Its name.",
        "Find a city.\nKeyword Args:\n    name: Its name.",
        "Find a city.\nReturns:\n    The city.",
        "Find a city.\nRaises:\n    LookupError: If there is none.",
        "Find a city.\nParameters\n----------\nname : str\n    Its name.",
        "Find a city.\nReturns\n-------\nstr\n    The city.",
        "Find a city.\n:param name: Its name.",
        "Find a city.\n:param str name: Its name.",
        "Find a city.\n:returns: The city.",
        "Find a city.\n:meta private:",
        "Find a city.\n@param name: its name",
    ],
)
def test_the_description_is_what_stands_before_the_first_section(text: str) -> None:
    assert described(text) == "Find a city."


@pytest.mark.parametrize(
    "text",
    [
        "\n    Find\n    a city.\n\n    It takes\n    a while.\n",
        "Find a city.\n   \n\nIt takes a while.",
        "Find a city.\r\n\r\nIt takes a while.\r\n\r\nArgs:\n    name: Its name.",
    ],
)
def test_each_paragraph_of_the_description_is_on_one_line(text: str) -> None:
    assert described(text) == "Find a city.\n\nIt takes a while."


@pytest.mark.parametrize(
    "text",
    [
        "Returns: the sum of two numbers.",
        "Find a city like\n:class:`City` does.",
        "Find what stands after\nthe arguments: all of it.",
        "Find one of: a city, a river.",
        "Cities\n======",
    ],
)
def test_what_only_resembles_a_section_belongs_to_the_description(text: str) -> None:
    assert described(text) == " ".join(text.split())


@pytest.mark.parametrize("text", [None, "", "   \n  ", "\n    Args:\n        name: Its name.\n"])
def test_where_nothing_is_said_the_description_is_empty(text: str | None) -> None:
    assert read(text).description == ""


def test_a_docstring_may_be_of_parameters_alone() -> None:
    assert parameters("\n    Args:\n        name: Its name.\n    ") == {"name": "Its name."}


# The parameters, in each style.

GOOGLE = """Find a city.

Some more about it.

Args:
    name (str): Its name.
    days (dict[str, list[int]], optional): How many
        days (at most): ten.

        Or seven.
    unit: One of
      - celsius
      - kelvin
    *tags (str): Any tags.
    **more: Any more.

Keyword Args:
    exact (Literal['a:b']): Whether to be exact.

Other Parameters:
    deep (bool) : How deep.

Returns:
    dict: The city.

Raises:
    LookupError: If there is none.
"""

NUMPY = """Find a city.

Some more about it.

Parameters
----------
name : str
    Its name.
days : dict[str, list[int]], optional
    How many
    days (at most): ten.

    Or seven.
unit: {'celsius', 'kelvin'}, default 'kelvin'
    One of
      - celsius
      - kelvin
*tags
    Any tags.
\\*\\*more
    Any more.

Returns
-------
city : dict
    The city.

Other Parameters
----------------
exact : Literal['a:b']
    Whether to be exact.
deep
    How deep.

Raises
------
LookupError
    If there is none.
"""

SPHINX = """Find a city.

Some more about it.

:param str name: Its name.
:param dict[str, list[int]] days: How many
  days (at most): ten.

  Or seven.
:type name: str
:parameter unit:
    One of
    - celsius
    - kelvin
:param tags: Any tags.
:arg \\*\\*more: Any more.
:keyword Literal['a'] exact: Whether
to be exact.
:raises LookupError: If there is none.
:key deep: How deep.

And some more.

:returns: The city.
:rtype: dict
"""

DESCRIBED = {
    "name": "Its name.",
    "days": "How many days (at most): ten. Or seven.",
    "unit": "One of - celsius - kelvin",
    "tags": "Any tags.",
    "more": "Any more.",
    "exact": "Whether to be exact.",
    "deep": "How deep.",
}


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_each_style_is_understood(text: str) -> None:
    assert read(text) == Docstring("Find a city.\n\nSome more about it.", DESCRIBED)


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_docstring_may_stand_as_far_in_as_code_does(text: str) -> None:
    assert read(indent(text, "    " * 2)) == read(text)


@pytest.mark.parametrize("title", ["Args", "Arguments", "Params", "Parameters", "Keyword Arguments", "args"])
def test_a_google_section_has_one_of_several_titles(title: str) -> None:
    assert parameters(f"Find.\n\n{title}:\n    name: Its name.") == {"name": "Its name."}


@pytest.mark.parametrize(
    "text",
    [
        "Find.\nArgs:\n    name: Its name.",
        "Find.\n\nArgs:\n\n  name: Its name.",
        "Find.\nParameters\n----------\nname : str\n    Its name.",
        "Find.\n\nParameters:\n----------\nname\n  Its name.",
        "Find.\n\nParameters\n---\n    name\n        Its name.",
        "Find.\n:param name: Its name.",
        "Find.\n\n:param name:\n    Its name.\n",
    ],
)
def test_blank_lines_and_margins_do_not_matter(text: str) -> None:
    assert read(text) == Docstring("Find.", {"name": "Its name."})


@pytest.mark.parametrize(
    "text",
    [
        "Find.\n\nArgs:\n    x, y (int): Where.",
        "Find.\n\nArgs:\n    - x: Where.\n    - `y`: Where.",
        "Find.\n\nParameters\n----------\nx, y : int\n    Where.",
    ],
)
def test_names_may_share_a_description_and_be_marked_up(text: str) -> None:
    assert parameters(text) == {"x": "Where.", "y": "Where."}


@pytest.mark.parametrize(
    "text",
    [
        "Find a city.",
        "Find.\n\nReturns:\n    dict: The city.",
        "Find.\n\nReturns\n-------\ncity : dict\n    The city.",
        "Find.\n\n:returns: The city.\n:rtype: dict",
        "Find.\n\n@param name: its name",
        "Find.\n\n## Arguments\n\n- name: its name",
        "Find.\n\nThe arguments:\n    name: its name",
    ],
)
def test_without_a_known_section_there_are_no_parameters(text: str) -> None:
    assert parameters(text) == {}


@pytest.mark.parametrize(
    "text",
    [
        "Find.\n\nArgs:",
        "Find.\n\nArgs:\n\n",
        "Find.\n\nArgs:\nname: not set in",
        "Find.\n\nArgs:\n    its name",
        "Find.\n\nArgs:\n    name:",
        "Find.\n\nArgs:\n    its name: not a name",
        "Find.\n\nParameters\n----------",
        "Find.\n\nParameters\n----------\n\n",
        "Find.\n\nParameters\n----------\nname : str",
        "Find.\n\nParameters\n----------\n???\n    What is it?",
        "Find.\n\n:param",
        "Find.\n\n:param:",
        "Find.\n\n:param : its name",
        "Find.\n\n:param name:",
    ],
)
def test_what_describes_nothing_is_left_out(text: str) -> None:
    assert read(text).description.startswith("Find.")
    assert parameters(text) == {}


def test_a_bad_line_spoils_only_itself() -> None:
    assert parameters("Find.\n\nArgs:\n    x: Where.\n    and so on\n    y: How.") == {"x": "Where.", "y": "How."}


def test_a_docstring_that_griffe_fails_on_describes_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr(griffe.Docstring, "parse", fail)
    assert read(GOOGLE) == Docstring("Find a city.\n\nSome more about it.", {})


# Whose docstring it is.


def find(name: str, days: int = 1) -> str:
    """Find a city.

    Args:
        name: Its name.
        days: How many.
    """
    return name * days


FOUND = Docstring("Find a city.", {"name": "Its name.", "days": "How many."})


@functools.wraps(find)
def wrapped(*args: Any, **kwargs: Any) -> str:
    return find(*args, **kwargs)


class Wrapper:
    """Count the calls of a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any) -> None:
        """Call and count."""


class Finder:
    """Know all cities."""

    def find(self, name: str) -> str:
        """Find a city.

        Args:
            name: Its name.
            days: How many.
        """
        return name

    def __call__(self, name: str) -> str:
        """Find a city.

        :param name: Its name.
        :param days: How many.
        """
        return name

    search = functools.partialmethod(find, "Bonn")


class QuickFinder(Finder):
    """Know some cities."""

    def find(self, name: str) -> str:
        return name

    def __call__(self, name: str) -> str:
        return name


class Undocumented(dict[str, str]):
    def __call__(self) -> None: ...


class DocumentedClass(Undocumented):
    """Find a city.

    Args:
        name: Its name.
        days: How many.
    """


class Abstract(ABC):
    @abstractmethod
    def __call__(self) -> None: ...


class Concrete(Abstract):
    def __call__(self) -> None: ...


class Model(BaseModel):
    def __call__(self) -> None: ...


@dataclass
class Record:
    name: str = ""

    def __call__(self) -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        find,
        wrapped,
        Wrapper(find),
        functools.lru_cache(find),
        functools.partial(find, "Bonn"),
        functools.partial(functools.partial(wrapped, "Bonn"), days=2),
        functools.partial(Finder()),
        functools.update_wrapper(functools.partial(find, "Bonn"), find),
        Finder().find,
        Finder().search,
        Finder(),
        QuickFinder().find,
        QuickFinder(),
        DocumentedClass(),
        DocumentedClass,
    ],
)
def test_a_callable_of_any_kind_has_the_docstring_that_was_written_for_it(function: Callable[..., Any]) -> None:
    assert read_docstring(function) == FOUND


@pytest.mark.parametrize(
    "function",
    [
        lambda: None,
        functools.partial(lambda: None),
        Wrapper(lambda: None),
        Undocumented(),
        Undocumented,
        Concrete(),
        Model(),
        Record(),
        Record,
    ],
)
def test_what_nobody_documented_says_nothing_of_python(function: Callable[..., Any]) -> None:
    assert read_docstring(function) == Docstring("", {})


def test_builtins_have_docstrings_too() -> None:
    assert read_docstring(len).description == "Return the number of items in a container."
    assert read_docstring([].append).description == "Append object to the end of the list."
    assert "Call self" not in read_docstring(operator.itemgetter(0)).description


def test_a_docstring_that_is_no_text_is_none() -> None:
    def function() -> None: ...

    function.__doc__ = 5  # type: ignore[assignment]
    assert read_docstring(function) == Docstring("", {})


# What it costs, and what else it does.


@pytest.mark.parametrize(("text", "imported"), [("Find.\n\nReturns:\n    str: The city.", False), (GOOGLE, True)])
def test_griffe_is_imported_only_for_a_section_of_parameters(text: str, imported: bool) -> None:
    code = f"""
        import sys
        from traced_tools.tools.docstrings import read_docstring
        def function(): ...
        function.__doc__ = {text!r}
        read_docstring(function)
        print("griffe" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(imported)]


def read_in_silence(text: str) -> Docstring:
    with TestCase().assertNoLogs(level="DEBUG"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        said = read(text)
    assert warned == []
    return said


@pytest.mark.parametrize(
    "text",
    [
        "Find.\n\nArgs:\n    x (Literal['\\d']): Where.\nReturns:\n    (Literal['\\d']): foo",
        "Find.\n\nArgs:\n    x (1if): Where.\n       y\n    and so on",
        "Find.\n\nArgs:\n  x ('\\d'): Where.\n and ('\\d'): so on\n",
        "Find.\n\nParameters\n---\nx : Literal['\\d']\n    Where.\n  y\nReturns\n---\nLiteral['\\d']\n    foo",
        "Find.\n\n:param '\\d' x: Where.\n:type x: '\\d'\n:param x: Again.\n:param x",
        "Find.\n\n:param  '\\d'  x : Where.\n:param '\\d' :",
    ],
)
def test_types_and_mistakes_in_a_docstring_are_no_news(text: str) -> None:
    assert set(read_in_silence(text).parameters) == {"x"}


PIECES = (
    "Args:\n",
    "Other Parameters:\n",
    "Returns:\n",
    "Parameters\n",
    "----------\n",
    ":param ",
    ":type ",
    "    ",
    " ",
    "\n",
    ":",
    "x",
    "*",
    "(int)",
    "('\\d')",
    "1if",
    "{",
    "```\n",
    "\t",
    "\0",
)


@relaxed
@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join))
def test_any_text_can_be_read_and_is_read_in_silence(text: str) -> None:
    said = read_in_silence(text)
    for line in (*said.description.split("\n\n"), *said.parameters.values()):
        assert line == " ".join(line.split())
    assert all(name.isidentifier() for name in said.parameters)


def google(name: str, type: str, description: str) -> str:
    return f"    {name} ({type}): {description}\n"


def numpy(name: str, type: str, description: str) -> str:
    return f"{name} : {type}\n    {description}\n"


def sphinx(name: str, type: str, description: str) -> str:
    return f":param {type} {name}: {description}\n"


WRITTEN = {"Args:\n": google, "Parameters\n----------\n": numpy, "": sphinx}
words = st.lists(st.text("abcABC(),.é[]'\\", min_size=1, max_size=5), min_size=1, max_size=5).map(" ".join)
types = st.sampled_from(["int", "list[str]", "dict[str, int]", "str, optional", "Literal['\\d']", "int | None"])


@relaxed
@given(
    st.sampled_from(sorted(WRITTEN)),
    st.dictionaries(st.text("abcxyz_", min_size=1, max_size=8), words, min_size=1, max_size=5),
    types,
    st.sampled_from(["\n", "\n\n"]),
)
def test_what_is_written_in_a_style_is_read_again(title: str, described: dict[str, str], type: str, gap: str) -> None:
    written = "".join(WRITTEN[title](name, type, description) for name, description in described.items())
    assert read_in_silence(f"Find.{gap}{title}{written}") == Docstring("Find.", described)
