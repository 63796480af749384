"""What the chain, the loop and the tools of one run share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

from traced_tools.core.ids import time_ordered_id
from traced_tools.core.limits import DEFAULT_LIMITS, LimitTally, LoopLimits
from traced_tools.core.messages import Message, Usage, UsageSum
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.observe.dispatch import NOBODY, RunEvents, Watchers
from traced_tools.observe.run_attributes import NO_ATTRIBUTES, RunAttributes, merge_attributes
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions

if TYPE_CHECKING:
    from traced_tools.advisors.base import Advisor
    from traced_tools.advisors.delivery import Delivery
    from traced_tools.core.tool_definition import ToolCallbackResolver
    from traced_tools.core.tool_result import ToolResult


@dataclass(frozen=True, slots=True)
class NestedUsage:
    """What the runs nested in a run used, at any depth.

    Attributes:
        model_calls: calls of models.
        tool_calls: tool calls that models asked for.
        usage: tokens, as far as providers report them.
        cost: US dollars of the calls that a price table knows, where metrics are on; None where there are none.
    """

    model_calls: int
    tool_calls: int
    usage: Usage | None = None
    cost: float | None = None


@dataclass(slots=True)
class Totals:
    """What a run has used so far; `nested` are the totals of the runs that began inside of it, until it `ended`."""

    iterations: int = 0
    inference_calls: int = 0
    tool_calls: int = 0
    usage: UsageSum = field(default_factory=UsageSum)
    cost: float | None = None
    nested: list[Totals] = field(default_factory=list)
    ended: bool = False

    @property
    def spent(self) -> UsageSum:
        """The tokens of the run and of all runs nested in it."""
        if not self.nested:
            return self.usage
        together = UsageSum()
        together.add(self.usage.total)
        for each in self._below():
            together.add(each.usage.peek())
        return together

    @property
    def nested_tool_calls(self) -> int:
        """How many calls the models of nested runs asked for."""
        return sum(each.tool_calls for each in self._below()) if self.nested else 0

    def nested_usage(self) -> NestedUsage | None:
        """Return what all nested runs have used so far; None when there are none."""
        if not self.nested:
            return None
        below, together = [*self._below()], UsageSum()
        for each in below:
            together.add(each.usage.peek())
        costs = [each.cost for each in below if each.cost is not None]
        model_calls, tool_calls = (sum(getattr(each, name) for each in below) for name in _CALLS)
        return NestedUsage(model_calls, tool_calls, together.total, sum(costs) if costs else None)

    def _below(self) -> Iterator[Totals]:
        """Give the totals of the nested runs, at any depth; a run that goes on in another thread may add to them."""
        for each in self.nested:
            yield each
            if each.nested:
                yield from each._below()


_CALLS = ("inference_calls", "tool_calls")


class RunContext:
    """Identity, settings and tallies of one run.

    A copy is the run itself. A pickled one keeps its ids, attributes and totals, and the client's name.

    Args:
        agent: the client's name.
        conversation_id: the caller's conversation, when it gave one.
        tool_context: what tools may know of the caller; never sent to the model.
        limits: how far the run may go.
        tool_errors: what happens when a tool fails.
        telemetry: what to emit, and where to.
        tool_advisors: the advisors around each tool call, outermost first.
        watchers: who is told of the events of the run.
        resolver_fallback: where a tool is looked up that the model names and the request does not carry.
        attributes: what the application says of the run, on top of what it says of the run that this one begins in.

    Attributes:
        parent_id: the id of the run that this one begins in, if it begins in one.
        complete: the last conversation that was found to have a result for each call.
        results: what became of each call that a loop has run so far.
        reached: each tuple of these that a response of a loop has held.
    """

    __slots__ = (
        "_outer",
        "agent",
        "attributes",
        "complete",
        "conversation_id",
        "delivery",
        "events",
        "id",
        "limits",
        "parent_id",
        "reached",
        "resolver_fallback",
        "results",
        "tally",
        "telemetry",
        "tool_advisors",
        "tool_context",
        "tool_errors",
        "totals",
        "trace_id",
    )

    def __init__(
        self,
        *,
        agent: str = "assistant",
        conversation_id: str | None = None,
        tool_context: Mapping[str, Any] | None = None,
        limits: LoopLimits = DEFAULT_LIMITS,
        tool_errors: ToolErrors = ANSWER_ERRORS,
        telemetry: TelemetryOptions | None = None,
        tool_advisors: tuple[Advisor, ...] = (),
        watchers: Watchers = NOBODY,
        resolver_fallback: ToolCallbackResolver | None = None,
        attributes: RunAttributes = NO_ATTRIBUTES,
    ) -> None:
        self.id: str = time_ordered_id()
        self.totals = Totals()
        outer = _CURRENT.get()
        self._outer = None if outer is None else outer.totals
        self.parent_id = None if outer is None else outer.id
        self.attributes: RunAttributes = attributes if outer is None else merge_attributes(outer.attributes, attributes)
        self.agent = agent
        self.conversation_id = conversation_id
        self.tool_context = {**tool_context} if tool_context else {}  # copied: several runs may share one mapping
        self.limits = limits
        self.tool_errors = tool_errors
        self.tool_advisors = tool_advisors
        self.resolver_fallback = resolver_fallback
        self.telemetry = RunTelemetry(
            telemetry or TelemetryOptions(),
            agent,
            self.id,
            conversation_id,
            is_watched=any(watchers),
            attributes=self.attributes,
        )
        self.events = RunEvents(self.telemetry, watchers, self.parent_id)
        self.tally = LimitTally(limits)
        self.complete: tuple[Message, ...] | None = None
        self.results: list[ToolResult] = []
        self.reached: list[tuple[ToolResult, ...]] = []
        self.delivery: Delivery | None = None
        self.trace_id: str | None = None

    def __enter__(self) -> None:
        """Have runs that begin in this context, which must be the run's own, be nested in this one."""
        self.telemetry.make_current()
        _CURRENT.set(self)
        if self._outer is not None and not self._outer.ended:  # else what a tool left behind would add to it for good
            self._outer.nested.append(self.totals)

    def __exit__(self, *_: object) -> None:
        self.totals.ended = True

    def tool_context_for(self, call_id: str, tool: str, iteration: int) -> ToolContext:
        """Return what the tool of one call may know."""
        return ToolContext(
            self.tool_context,
            call_id=call_id,
            tool_name=tool,
            iteration=iteration,
            conversation_id=self.conversation_id,
            run_id=self.id,
            deadline=self.tally.deadline,
        )

    def all_results(self) -> tuple[ToolResult, ...]:
        """Return what became of each call of the run so far."""
        found = tuple(self.results)
        self.reached.append(found)
        return found

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        kept = {name: getattr(self, name) for name in _PICKLED}
        return _unpickled, (self.agent, self.conversation_id, kept)

    def __repr__(self) -> str:
        return f"<RunContext {self.id} of {self.agent}>"


_CURRENT: ContextVar[RunContext | None] = ContextVar("traced_tools_run", default=None)


_PICKLED: Final = ("id", "trace_id", "parent_id", "attributes", "totals")


def _unpickled(agent: str, conversation_id: str | None, kept: Mapping[str, Any]) -> RunContext:
    """Return a run of the past."""
    run = RunContext(agent=agent, conversation_id=conversation_id)
    for name, value in kept.items():
        setattr(run, name, value)
    return run
