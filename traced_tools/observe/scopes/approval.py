"""The scope of the wait for a decision about a tool call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry.trace import SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.content import recorded_person
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import Decision
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.run_telemetry import RunTelemetry
    from traced_tools.observe.stages.approval import ApprovalObservation
    from traced_tools.observe.time_ledger import TimeLedger


class ApprovalScope(Scope):
    """The wait for a decision about a tool call: `await_approval {tool}`."""

    openinference = names.AWAIT_APPROVAL_SPAN.openinference

    kind = "approval"

    def __init__(self, run: RunTelemetry, observed: ApprovalObservation, ledger: TimeLedger | None) -> None:
        self.run = run
        self.ledger = ledger
        self._observed = observed

    def __enter__(self) -> Self:
        super().__enter__()
        if self.run.instruments is not None:
            self.run.instruments.pending_approvals.begin(self, self.run.agent_in_metrics)
        return self

    def close(self, error: BaseException | None, elapsed: int) -> None:
        """End the span; the call no longer waits."""
        if self.run.instruments is not None:
            self.run.instruments.pending_approvals.end(self)
        super().close(error, elapsed)

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        observed, attributes = self._observed, Attributes()
        attributes[names.TOOL_NAME] = observed.name
        put(attributes, names.TOOL_CALL_ID, observed.call_id)
        put(attributes, names.AGENT_NAME, self.run.agent)
        put(attributes, names.CONVERSATION_ID, self.run.conversation_id)
        if observed.iteration:
            attributes[names.ITERATION_INDEX] = observed.iteration
        return self._owner(), SpanKind.INTERNAL, attributes

    def _owner(self) -> str:
        return names.AWAIT_APPROVAL_SPAN.named(self._observed.name)

    def _final_attributes(self) -> Attributes:
        observed, attributes = self._observed, Attributes()
        put(attributes, names.TOOL_DECISION, observed.decision)
        put(attributes, names.REASON_CODE, observed.reason_code)
        content = self.run.content_on_spans()
        put(attributes, names.APPROVAL_BY, recorded_person(observed.by, observed.tool, content))
        return attributes

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        labels: Attributes = {**self.run.agent_label, names.TOOL_NAME: self._observed.name}
        put(labels, names.TOOL_DECISION, self._observed.decision)
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        return [(instruments.approval_wait, self.duration, labels)]


def report_decided_wait(
    run: RunTelemetry, tool: str, decision: Decision, requested_at: float, decided_at: float
) -> None:
    """Record how long a call waited that was decided after its run had ended."""
    if run.instruments is not None:
        labels: Attributes = {**run.agent_label, names.TOOL_NAME: tool, names.TOOL_DECISION: decision}
        wait = max(0.0, decided_at - requested_at)  # another machine's clock may be ahead
        run.guarded(run.instruments.approval_wait.record, wait, labels, None)
