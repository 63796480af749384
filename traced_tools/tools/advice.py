"""The methods of advisors that need no model: wrapping tool calls and receiving the events of runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from traced_tools.core.approval import ApprovalAnswer, Undecided
from traced_tools.core.checks import expect
from traced_tools.core.messages import encodable
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import AdvisorChainError
from traced_tools.observe.stages.tool_call import ToolCallListener
from traced_tools.observe.typed_events.dispatch import EventListener
from traced_tools.tools.approval import ApprovalRequest
from traced_tools.tools.invocation import CallNext, ToolInvocation

if TYPE_CHECKING:
    from traced_tools.observe.typed_events.types import Event
    from traced_tools.run.context import RunContext
    from traced_tools.tools.toolset import SourceNames


class ToolAdvice:
    """The base class of `Advisor`: it wraps tool calls and receives the events of runs.

    Attributes:
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: its position in the chain. An advisor with a lower order wraps those with higher orders.
        event_errors_end_run: whether an exception of `on_event` ends the run. By default, it is counted and logged, and
            the run goes on.
        policy_digest: the digest of the policy that the advisor enforces; None if it enforces none.
    """

    name: str
    order: int
    event_errors_end_run: bool = False
    policy_digest: str | None = None

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Wrap one tool call; `call.denied(reason)` refuses it.

        If an inner advisor changes the arguments, an advisor that has `checks_changes = True` wraps the call once more,
        with the new arguments, before the call goes on.
        """
        return await call_next(call)

    def review_tools(self, run: RunContext, tools: Mapping[str, SourceNames]) -> None:
        """Receive the names of a run's tools, by their source, before the run begins.

        It must not block. An exception ends the run.
        """

    async def decide_approval(self, request: ApprovalRequest) -> ApprovalAnswer:
        """Decide about a call that requires approval, after all advisors have let it pass.

        The approvers are asked one after the other, the outermost first, until one returns another answer than
        `Undecided`. If none does, the run ends, and the call waits in `response.pending`.
        """
        return Undecided()

    def on_event(self, event: Event) -> None:
        """Receive the events of the run (`traced_tools.events`), one at a time and in order.

        An advisor inside the tool loop receives every event; an advisor outside it receives only the start and end of
        the run. Without a loop, every advisor receives every event. The events of a streamed answer include its deltas,
        even those of tool calls, which a stream's consumer does not get. To receive no deltas, set
        `watches_deltas = False` on the advisor.

        The run waits until this method returns, so the method must not block. An exception is counted as lost
        telemetry, and the run goes on. If the advisor has `event_errors_end_run = True`, the exception ends the run,
        unless the run is failing already.
        """


A = TypeVar("A", bound=ToolAdvice)


def advising_tools(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors that override `advise_tool`."""
    return tuple(advisor for advisor in advisors if overrides(advisor, ToolAdvice, "advise_tool"))


def approving(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors that override `decide_approval`."""
    return tuple(advisor for advisor in advisors if overrides(advisor, ToolAdvice, "decide_approval"))


def reviewing(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors that override `review_tools`."""
    return tuple(advisor for advisor in advisors if overrides(advisor, ToolAdvice, "review_tools"))


def event_listeners(advisors: Iterable[ToolAdvice], *, deltas: bool = False) -> tuple[EventListener, ...]:
    """Return the `on_event` methods of the advisors that override it; with `deltas`, of those that receive deltas."""
    return tuple(
        EventListener(advisor.name, advisor.order, advisor.on_event, advisor.event_errors_end_run)
        for advisor in advisors
        if overrides(advisor, ToolAdvice, "on_event") and (not deltas or getattr(advisor, "watches_deltas", True))
    )


def call_listeners(advisors: Iterable[ToolAdvice]) -> tuple[EventListener, ...]:
    """Return the `on_tool_call` methods of the advisors that are `ToolCallListener`s."""
    return tuple(
        EventListener(advisor.name, advisor.order, advisor.on_tool_call, advisor.event_errors_end_run)
        for advisor in advisors
        if isinstance(advisor, ToolCallListener)
    )


def overrides(advisor: ToolAdvice, base: type[ToolAdvice], method: str) -> bool:
    """Return whether `advisor` overrides the `method` of `base`."""
    return method in vars(advisor) or _overrides(type(advisor), base, method)  # type: ignore[arg-type]  # mypy: a class has no hash


@cache
def _overrides(kind: Any, base: Any, method: str) -> bool:
    return getattr(kind, method) is not getattr(base, method)


def check_advisors(advisors: Iterable[object]) -> None:
    """Raise `TypeError` if an item is not an advisor, `AdvisorChainError` if an advisor has no name or no order."""
    for index, advisor in enumerate(advisors):
        if inspect.isroutine(advisor):
            raise TypeError(f"advisors[{index}] is a function: make an Advisor of it with `@advisor(order=...)`")
        expect(f"advisors[{index}]", advisor, ToolAdvice, "an Advisor")
        _check_name(advisor)
        _check_plain(advisor)


def sort_advisors(advisors: Iterable[A]) -> tuple[A, ...]:
    """Return the advisors by `order`, the outermost first; equal orders keep the order in which they were given."""
    return tuple(sorted(advisors, key=lambda advisor: advisor.order))


def _check_name(advisor: object) -> None:
    name, order = getattr(advisor, "name", None), getattr(advisor, "order", None)
    if not isinstance(name, str) or not name or isinstance(order, bool) or not isinstance(order, int):
        raise AdvisorChainError(f"{type(advisor).__name__} needs a `name` (a str) and an `order` (an int)")
    if name != encodable(name):
        raise AdvisorChainError(f"{type(advisor).__name__} has a `name` that UTF-8 cannot encode: change the name")


def _check_plain(advisor: Any) -> None:
    """Raise `AdvisorChainError` for an `async` method that would never be awaited."""
    for method in ("on_chunk", "on_event", "review_tools"):
        if inspect.iscoroutinefunction(getattr(advisor, method, None)):
            raise AdvisorChainError(f"{method} of {type(advisor).__name__} must be a plain method: drop `async`")
