"""The part of an advisor that tool calls need: advice around each call, and the events of the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, TypeVar

from traced_tools.core.checks import expect
from traced_tools.core.messages import encodable
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import AdvisorChainError
from traced_tools.observe.stages.tool_call import ObservedCall, ToolCallListener
from traced_tools.observe.typed_events.types import Event, ToolIntended
from traced_tools.tools.execution import CallNext, ToolInvocation


class ToolAdvice:
    """The part of an `Advisor` that needs no model: advice around tool calls, and the events of a run.

    Attributes:
        name: set in code and bounded: it is a metric label.
        order: its place in the chain; lower orders are further out.
    """

    name: str
    order: int

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Wrap one tool call; `call.denied(reason)` refuses it."""
        return await call_next(call)

    def on_event(self, event: Event) -> None:
        """Receive the events of the run (`traced_tools.events`), one after the other and in order.

        An advisor inside the tool loop receives every event; an advisor outside it receives only the start and end of
        the run. Without a loop, every advisor receives every event. The events of a streamed answer include its deltas,
        also those of tool calls, which a stream's consumer does not get. `watches_deltas = False` on the advisor leaves
        deltas out.

        The run waits for it, so it must not wait for anything itself. What it raises ends the run, as an error of any
        other hook does. If the run fails already, the error is counted as lost telemetry and the failure goes on.
        """


A = TypeVar("A", bound=ToolAdvice)


def advising_tools(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors that have an `advise_tool` of their own."""
    return tuple(each for each in advisors if overrides(each, ToolAdvice, "advise_tool"))


def listening(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors that have an `on_event` of their own."""
    return tuple(each for each in advisors if overrides(each, ToolAdvice, "on_event"))


def listening_to_calls(advisors: Iterable[ToolAdvice]) -> tuple[Callable[[ObservedCall, ToolIntended], None], ...]:
    """Return the `on_tool_call` of the advisors that are handed calls."""
    return tuple(each.on_tool_call for each in advisors if isinstance(each, ToolCallListener))


def overrides(advisor: ToolAdvice, base: type[ToolAdvice], method: str) -> bool:
    """Whether `advisor` has a `method` of its own and not the one of `base`."""
    return method in vars(advisor) or _overrides(type(advisor), base, method)  # type: ignore[arg-type]  # mypy: a class has no hash


@cache
def _overrides(kind: Any, base: Any, method: str) -> bool:
    return getattr(kind, method) is not getattr(base, method)


def check_advisors(advisors: Iterable[object]) -> None:
    """Raise `TypeError` for what is no advisor, `AdvisorChainError` for an advisor without name or order."""
    for index, advisor in enumerate(advisors):
        expect(f"advisors[{index}]", advisor, ToolAdvice, "an Advisor")
        _check_named(advisor)
        _check_plain(advisor)


def _check_named(advisor: object) -> None:
    name, order = getattr(advisor, "name", None), getattr(advisor, "order", None)
    if not isinstance(name, str) or not name or isinstance(order, bool) or not isinstance(order, int):
        raise AdvisorChainError(f"{type(advisor).__name__} needs a `name` (a str) and an `order` (an int)")
    if name != encodable(name):
        raise AdvisorChainError(
            f"{type(advisor).__name__} has a `name` that UTF-8 cannot hold; telemetry needs one it can"
        )


def _check_plain(advisor: Any) -> None:
    """Refuse an `async` method where nothing is awaited: what it does would silently not be done."""
    for method in ("on_chunk", "on_event"):
        if inspect.iscoroutinefunction(getattr(advisor, method, None)):
            raise AdvisorChainError(f"{method} of {type(advisor).__name__} must be a plain method: drop `async`")
