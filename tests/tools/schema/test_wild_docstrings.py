"""Any docstring is parsed without an error or a warning."""

from __future__ import annotations

import warnings
from unittest import TestCase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.schema.docstrings import read
from traced_tools.tools.schema.docstrings import Docstring


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
def test_types_and_mistakes_in_a_docstring_cause_no_warning(text: str) -> None:
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


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join))
def test_any_docstring_is_parsed_without_a_warning(text: str) -> None:
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


@given(
    st.sampled_from(sorted(WRITTEN)),
    st.dictionaries(st.text("abcxyz_", min_size=1, max_size=8), words, min_size=1, max_size=5),
    types,
    st.sampled_from(["\n", "\n\n"]),
)
def test_a_docstring_written_in_a_style_is_parsed_back(
    title: str, described: dict[str, str], type: str, gap: str
) -> None:
    written = "".join(WRITTEN[title](name, type, description) for name, description in described.items())
    assert read_in_silence(f"Find.{gap}{title}{written}") == Docstring("Find.", described)
