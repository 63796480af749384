"""The description of a tool and of its parameters in a docstring, in each style."""

from __future__ import annotations

import subprocess
import sys
from textwrap import dedent, indent
from typing import Any

import griffe
import pytest

from tests.tools.schema.docstrings import read
from traced_tools.tools.schema.docstrings import Docstring


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
def test_the_description_is_the_text_before_the_first_section(text: str) -> None:
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
def test_text_that_only_resembles_a_section_belongs_to_the_description(text: str) -> None:
    assert described(text) == " ".join(text.split())


@pytest.mark.parametrize("text", [None, "", "   \n  ", "\n    Args:\n        name: Its name.\n"])
def test_the_description_of_an_empty_docstring_is_empty(text: str | None) -> None:
    assert read(text).description == ""


def test_a_docstring_may_describe_only_parameters() -> None:
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
def test_each_docstring_style_is_parsed(text: str) -> None:
    assert read(text) == Docstring("Find a city.\n\nSome more about it.", DESCRIBED)


@pytest.mark.parametrize("text", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_the_docstring_may_be_indented_like_code(text: str) -> None:
    assert read(indent(text, "    " * 2)) == read(text)


@pytest.mark.parametrize("title", ["Args", "Arguments", "Params", "Parameters", "Keyword Arguments", "args"])
def test_a_google_section_may_have_any_of_its_titles(title: str) -> None:
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
def test_a_docstring_without_a_known_section_describes_no_parameters(text: str) -> None:
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
def test_a_parameter_without_a_description_is_omitted(text: str) -> None:
    assert read(text).description.startswith("Find.")
    assert parameters(text) == {}


def test_a_malformed_line_affects_no_other_line() -> None:
    assert parameters("Find.\n\nArgs:\n    x: Where.\n    and so on\n    y: How.") == {"x": "Where.", "y": "How."}


def test_a_docstring_that_griffe_fails_on_describes_no_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise IndexError("list index out of range")

    monkeypatch.setattr(griffe.Docstring, "parse", fail)
    assert read(GOOGLE) == Docstring("Find a city.\n\nSome more about it.", {})


# What it costs.


@pytest.mark.parametrize(("text", "imported"), [("Find.\n\nReturns:\n    str: The city.", False), (GOOGLE, True)])
def test_griffe_is_imported_only_for_a_section_of_parameters(text: str, imported: bool) -> None:
    code = f"""
        import sys
        from traced_tools.tools.schema.docstrings import read_docstring
        def function(): ...
        function.__doc__ = {text!r}
        read_docstring(function)
        print("griffe" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(code)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == [str(imported)]
