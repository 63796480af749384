"""What the chain, the loop and the tools of one run share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from traced_tools._ids import time_ordered_id
from traced_tools.events.stream import NOBODY, RunEvents, Watchers
from traced_tools.messages import Message, UsageSum
from traced_tools.telemetry.run import RunTelemetry, TelemetryOptions
from traced_tools.tools.context import ToolContext
from traced_tools.tools.errors import ANSWER_ERRORS, ToolErrors
from traced_tools.tools.limits import DEFAULT_LIMITS, LimitTally, LoopLimits

if TYPE_CHECKING:
    from traced_tools.advisors.base import Advisor
    from traced_tools.advisors.delivery import Delivery
    from traced_tools.tools.result import ToolResult
    from traced_tools.tools.selection import ToolCallbackResolver


@dataclass(slots=True)
class Totals:
    """What a run has used so far."""

    iterations: int = 0
    inference_calls: int = 0
    tool_calls: int = 0
    usage: UsageSum = field(default_factory=UsageSum)


class RunContext:
    """Identity, settings and tallies of one run.

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

    Attributes:
        complete: the last conversation that was found to have a result for each call.
        results: what became of each call that a loop has run so far.
        reached: each tuple of these that a response of a loop has held.
    """

    __slots__ = (
        "agent",
        "complete",
        "conversation_id",
        "delivery",
        "events",
        "id",
        "limits",
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
    ) -> None:
        self.id = time_ordered_id()
        self.agent = agent
        self.conversation_id = conversation_id
        self.tool_context = {**tool_context} if tool_context else {}  # copied: several runs may share one mapping
        self.limits = limits
        self.tool_errors = tool_errors
        self.tool_advisors = tool_advisors
        self.resolver_fallback = resolver_fallback
        self.telemetry = RunTelemetry(
            telemetry or TelemetryOptions(), agent, self.id, conversation_id, is_watched=any(watchers)
        )
        self.events = RunEvents(self.telemetry, watchers)
        self.tally = LimitTally(limits)
        self.totals = Totals()
        self.complete: tuple[Message, ...] | None = None
        self.results: list[ToolResult] = []
        self.reached: list[tuple[ToolResult, ...]] = []
        self.delivery: Delivery | None = None
        self.trace_id: str | None = None

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

    def __repr__(self) -> str:
        return f"<RunContext {self.id} of {self.agent}>"
