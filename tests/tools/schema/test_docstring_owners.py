"""Which docstring describes a tool: for any kind of callable, the one that its author wrote."""

from __future__ import annotations

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from traced_tools.tools.schema.docstrings import Docstring, read_docstring


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
def test_any_kind_of_callable_has_the_docstring_that_its_author_wrote(function: Callable[..., Any]) -> None:
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
def test_an_undocumented_callable_has_no_docstring_from_python(function: Callable[..., Any]) -> None:
    assert read_docstring(function) == Docstring("", {})


def test_builtins_have_docstrings_too() -> None:
    assert read_docstring(len).description == "Return the number of items in a container."
    assert read_docstring([].append).description == "Append object to the end of the list."
    assert "Call self" not in read_docstring(operator.itemgetter(0)).description


def test_a_docstring_that_is_not_text_is_ignored() -> None:
    def function() -> None: ...

    function.__doc__ = 5  # type: ignore[assignment]
    assert read_docstring(function) == Docstring("", {})
