"""Creates the observation of each stage of a run and connects it with its sinks.

Each function returns an observation with its sinks: the scope (spans, metrics, log-based events) and the emitter of
typed events. If nothing listens, it returns `OFF`, which costs nothing.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from traced_tools.observe.off import OFF
from traced_tools.observe.scopes.approval import ApprovalScope, report_decided_wait
from traced_tools.observe.scopes.model_call import ChatScope
from traced_tools.observe.scopes.run import (
    AgentScope,
    HookScope,
    IterationScope,
    report_failed_listener,
    report_idle_hook,
    report_missing_results,
)
from traced_tools.observe.scopes.tool_call import ToolScope, count_tool_retry
from traced_tools.observe.stages.approval import ApprovalObservation
from traced_tools.observe.stages.iteration import IterationObservation
from traced_tools.observe.stages.model_call import ModelCallObservation
from traced_tools.observe.stages.run import RunObservation
from traced_tools.observe.stages.tool_call import ToolCallObservation
from traced_tools.observe.typed_events.dispatch import IterationEventEmitter, ModelEventEmitter, RunEventEmitter
from traced_tools.observe.typed_events.tool_call import ToolCallEventEmitter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traced_tools.core.enums import Decision, Hook, TimeKind
    from traced_tools.core.limits import LoopLimits
    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.core.totals import Totals
    from traced_tools.observe.run_telemetry import RunTelemetry
    from traced_tools.observe.stages.subjects import ConversationInput, ModelInput, ObservedModel
    from traced_tools.observe.time_ledger import TimeLedger
    from traced_tools.observe.typed_events.dispatch import RunEventDispatcher


class ObservedRun(Protocol):
    """A run, as its observations see it."""

    @property
    def telemetry(self) -> RunTelemetry:
        """Where spans, metrics and log-based events go."""

    @property
    def events(self) -> RunEventDispatcher:
        """Where typed events go."""

    @property
    def totals(self) -> Totals:
        """What the run has used so far."""

    @property
    def limits(self) -> LoopLimits:
        """How far the run may go."""


def observe_run(
    run: ObservedRun, model: ObservedModel, conversation: ConversationInput, *, resumes: str | None = None
) -> RunObservation:
    """Return the observation of `run`; `resumes` is the W3C trace context of the run that it resumes."""
    telemetry, events = run.telemetry, run.events
    observed: RunObservation = OFF
    if telemetry.enabled or events.has_listeners:
        observed = RunObservation(telemetry, run.limits, run.totals, model, conversation)
        observed.report_to(
            AgentScope(telemetry, observed, resumes) if telemetry.enabled else OFF,
            RunEventEmitter(events, observed) if events.has_listeners else OFF,
        )
    return observed


def observe_iteration(run: ObservedRun, index: int) -> IterationObservation:
    """Return the observation of the iteration `index` of `run`, from 1; 0 for tool calls that are executed by hand."""
    telemetry, events = run.telemetry, run.events
    observed: IterationObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = IterationObservation(index)
        observed.report_to(
            IterationScope(telemetry, observed) if telemetry.enabled and index else OFF,
            IterationEventEmitter(events, observed) if events.wanted else OFF,
        )
    return observed


def observe_hook(
    run: RunTelemetry,
    hook: Hook,
    name: str,
    order: int,
    iteration: int,
    *,
    ledger: TimeLedger | None = None,
    kind: TimeKind = "hook",
) -> HookScope:
    """Return the observation of one hook, which is its scope: hooks have no typed events.

    Args:
        run: the run's telemetry.
        hook: which hook.
        name: the advisor's name.
        order: the advisor's order.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
        ledger: where the advisor's own time is booked, without downstream code; None for the ledger of the run.
        kind: the kind of that time.
    """
    booked = run.ledger if ledger is None else ledger
    return HookScope(run, hook, name, order, iteration, booked, kind) if run.enabled else OFF


def observe_idle_hook(run: RunTelemetry, hook: Hook, name: str, order: int, iteration: int) -> None:
    """Report a hook that an advisor leaves as it is; the arguments are those of `report_idle_hook`."""
    if run.enabled:
        report_idle_hook(run, hook, name, order, iteration)


def observe_failed_chunk(
    run: RunTelemetry, name: str, order: int, iteration: int, error: Exception, began: int
) -> None:
    """Report that `on_chunk` of an advisor raised an error; the arguments are those of `report_failed_listener`."""
    report_failed_listener(run, "on_chunk", name, order, iteration, error, began)


def observe_model_call(
    run: ObservedRun, model: ObservedModel, model_input: ModelInput, ledger: TimeLedger | None = None
) -> ModelCallObservation:
    """Return the observation of a call of `model` in `run`.

    Args:
        run: the run.
        model: the model that is called.
        model_input: what it is asked.
        ledger: where the time of the call is booked, for calls that may go on side by side; None for the ledger of the
            run.
    """
    telemetry, events = run.telemetry, run.events
    observed: ModelCallObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = ModelCallObservation(model, model_input)
        observed.report_to(
            ChatScope(telemetry, model, model_input, ledger) if telemetry.enabled else OFF,
            ModelEventEmitter(events, observed, ledger) if events.wanted else OFF,
        )
        if events.wants_deltas:
            observed.deltas = partial(events.deltas, model_input.iteration, model_input.tools)
    return observed


def observe_rate_limit_wait(run: ObservedRun, model: ObservedModel, seconds: float) -> None:
    """Report how long a request to `model` has waited for a rate limit of the application."""
    telemetry = run.telemetry
    if telemetry.instruments is not None:
        labels = telemetry.chat_labels(model)
        telemetry.guarded(telemetry.instruments.model_rate_limit_wait.record, seconds, labels, None)


def observe_tool_call(
    run: ObservedRun,
    call: ToolCall,
    tool: ToolCallback | None,
    iteration: int,
    place: tuple[int, int],
    *,
    queued: float,
    may_refuse: bool,
    refused: bool,
    skipped: bool = False,
    ledger: TimeLedger | None,
) -> ToolCallObservation:
    """Return the observation of one requested call; the arguments are those of `ToolCallObservation`."""
    telemetry, events = run.telemetry, run.events
    observed: ToolCallObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = ToolCallObservation(
            call,
            tool,
            iteration,
            place,
            queued=queued,
            may_refuse=may_refuse,
            refused=refused,
            skipped=skipped,
            ledger=ledger,
            principal=telemetry.principal,
        )
        observed.report_to(
            ToolScope(telemetry, observed) if telemetry.enabled else OFF,
            ToolCallEventEmitter(events, observed) if events.wanted else OFF,
        )
    return observed


def observe_approval(
    run: ObservedRun, tool: ToolCallback, call_id: str, iteration: int, ledger: TimeLedger | None
) -> ApprovalObservation:
    """Return the observation of the wait for a decision about a call; the tool call's own has the events of it."""
    observed: ApprovalObservation = OFF
    if run.telemetry.enabled:
        observed = ApprovalObservation(tool, call_id, iteration)
        observed.report_to(ApprovalScope(run.telemetry, observed, ledger), OFF)
    return observed


def observe_decided_wait(
    run: ObservedRun, tool: str, decision: Decision, requested_at: float, decided_at: float
) -> None:
    """Report how long a call waited that was decided after its run had ended.

    Args:
        run: the run that resumes.
        tool: the tool's name.
        decision: the decision.
        requested_at: when the call began to wait, in seconds since 1970.
        decided_at: when it was decided, in seconds since 1970.
    """
    if run.telemetry.enabled:
        report_decided_wait(run.telemetry, tool, decision, requested_at, decided_at)


def observe_tool_retry(run: ObservedRun, tool: str, error_type: str) -> None:
    """Report that a tool failed with an error of that type and that an advisor runs it again."""
    if run.telemetry.enabled:
        count_tool_retry(run.telemetry, tool, error_type)


def observe_changed_tools(run: ObservedRun, server: str, changes: Sequence[str], *, refused: bool) -> None:
    """Report that the tools of a server differ from the pinned ones; the arguments are those of `ToolsChanged`."""
    if run.events.wanted:
        from traced_tools.observe.typed_events.types import ToolsChanged

        fields = {"server": server, "changes": tuple(changes), "refused": refused}
        run.events.dispatch(ToolsChanged, 0, fields, failing=refused)


def observe_missing_results(run: ObservedRun, not_run: int, unknown: int, iteration: int) -> None:
    """Report that tool calls of an earlier, interrupted run were answered in the conversation.

    Args:
        run: the run that answered them.
        not_run: how many were answered as not executed.
        unknown: how many were answered as of unknown outcome.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
    """
    if run.telemetry.enabled:
        report_missing_results(run.telemetry, not_run, unknown, iteration)
    if run.events.wanted:
        from traced_tools.observe.typed_events.types import MissingResultsAnswered

        run.events.dispatch(MissingResultsAnswered, iteration, {"not_run": not_run, "unknown": unknown})
