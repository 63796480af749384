"""Changes what functions of the MCP SDK do where it has no setting, for this package alone."""

from __future__ import annotations

from types import FunctionType
from typing import Any


def with_globals(function: Any, **replaced: Any) -> Any:
    """Return a copy of a function of the SDK for which globals of its module have other values.

    Other users of the SDK in the process rely on these globals, so they stay as they are.

    Args:
        function: the function.
        replaced: the values of the globals, by name.
    """
    copy = FunctionType(function.__code__, {**function.__globals__, **replaced}, function.__name__)
    copy.__defaults__, copy.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return copy
