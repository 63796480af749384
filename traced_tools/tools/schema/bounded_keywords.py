"""Keywords of JSON Schema that a hostile schema can't use to stop the process.

Schemas and values may come from untrusted servers. The library `jsonschema` matches patterns with `re`, which some
patterns keep busy for ever while it holds the GIL, and follows references without limit. Here, pydantic's engine
matches patterns in linear time, and one validation follows a limited number of references.

A validator in native code is no alternative for such schemas. Its work can't be counted from outside, so references
that double keep it busy while it holds the GIL, and it overflows the stack of the process where Python raises
`RecursionError`. jsonschema-rs 0.61 does both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from traced_tools.core.patterns import compile_pattern

_MOST_REFERENCES = 10_000
_COUNTED = ("$ref", "$dynamicRef", "$recursiveRef", "unevaluatedProperties", "unevaluatedItems")
"""Keywords that validate a schema again: a reference its target, and `unevaluated…` all schemas beside it."""
_FOLLOWED: ContextVar[int] = ContextVar("traced_tools_schema_references", default=0)

Keyword = Callable[..., Iterator[Any]]


class TooManyReferences(Exception):
    """A validation follows more references than any schema of a tool needs."""


def begin_validation() -> None:
    """Count the references that the current context follows from now on."""
    _FOLLOWED.set(0)


def bounded_keywords(keywords: Mapping[str, Keyword]) -> dict[str, Keyword]:
    """Return keywords of the library `jsonschema` with these limits, to extend a validator with.

    A pattern that has no linear form, such as one that looks ahead, is not checked.
    """
    from jsonschema import _keywords, _legacy_keywords, _utils  # type: ignore[import-untyped]

    modules: list[ModuleType] = [_utils, _keywords, _legacy_keywords]
    linear: dict[int, Any] = {}
    replaced: dict[str, Any] = {"re": SimpleNamespace(search=matches)}
    for module in modules:
        namespace = {**vars(module), **replaced}
        for name, function in vars(module).items():
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                linear[id(function)] = namespace[name] = _copy_with_globals(function, namespace)
        replaced |= {name: namespace[name] for name in vars(module) if isinstance(namespace[name], FunctionType)}
    bounded = {name: linear.get(id(keyword), keyword) for name, keyword in keywords.items()}
    return bounded | {name: _count_references(bounded[name]) for name in _COUNTED if name in bounded}


def _copy_with_globals(function: FunctionType, namespace: dict[str, Any]) -> FunctionType:
    copy = FunctionType(function.__code__, namespace, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return copy


def _count_references(keyword: Keyword) -> Keyword:
    def follow(*arguments: Any) -> Iterator[Any]:
        _FOLLOWED.set(_FOLLOWED.get() + 1)
        if _FOLLOWED.get() > _MOST_REFERENCES:
            raise TooManyReferences
        yield from keyword(*arguments) or ()

    return follow


def matches(pattern: str, text: str) -> bool:
    """Return whether a pattern is found in a text, or has no linear form."""
    matcher = _matcher(pattern)
    return matcher is None or matcher(text)


@lru_cache(maxsize=1024)
def _matcher(pattern: str) -> Callable[[str], bool] | None:
    try:
        return compile_pattern(pattern)
    except ValueError:
        re.compile(pattern)  # raises for an invalid pattern
        return None
