"""Makes an advisor of a function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable
from typing import overload

from traced_tools.core.checks import expect, expect_whole
from traced_tools.loop.advisor import AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse

AdviseFunction = Callable[[ChatClientRequest, AdviseNext], Awaitable[ChatClientResponse]]


@overload
def advisor(function: AdviseFunction, /, *, order: int, name: str | None = None) -> Advisor: ...


@overload
def advisor(*, order: int, name: str | None = None) -> Callable[[AdviseFunction], Advisor]: ...


def advisor(
    function: AdviseFunction | None = None, /, *, order: int, name: str | None = None
) -> Advisor | Callable[[AdviseFunction], Advisor]:
    """Make an advisor of a function such as `async def timing(request, call_next)`; see `Advisor.advise`.

    It is also a decorator: `@advisor(order=400)`.

    Args:
        function: takes the request and `call_next`, and returns the response.
        order: the position in the chain; see `Advisor`.
        name: the advisor's name in telemetry; by default, the name of the function.

    Raises:
        TypeError: if `function` is not a function, or another argument has the wrong type. The message names it.
    """
    expect_whole("order", order, -sys.maxsize)
    expect("name", name, (str, type(None)), "a str or None")

    def made_of(function: AdviseFunction) -> Advisor:
        if isinstance(function, type) or not callable(function):
            raise TypeError(f"advisor makes an Advisor of a function, not of {type(function).__name__}")
        if not _takes_two(function):
            raise TypeError("advisor needs a function that takes two arguments: request and call_next")
        return FunctionAdvisor(function, name or str(getattr(function, "__name__", type(function).__name__)), order)

    return made_of if function is None else made_of(function)


def _takes_two(function: AdviseFunction) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


class FunctionAdvisor(Advisor):
    """An advisor whose `advise` is a function.

    Args:
        function: takes the request and `call_next`, and returns the response.
        name: the advisor's name.
        order: its position in the chain.
    """

    def __init__(self, function: AdviseFunction, name: str, order: int) -> None:
        self._function = function
        self.name = name
        self.order = order

    def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> Awaitable[ChatClientResponse]:  # type: ignore[override]  # the chain awaits it
        """Call the function."""
        return self._function(request, call_next)
