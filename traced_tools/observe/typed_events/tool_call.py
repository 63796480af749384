"""The events of a requested tool call."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from traced_tools.observe import names
from traced_tools.observe.content import recorded_person
from traced_tools.observe.genai_messages import from_json
from traced_tools.observe.typed_events.dispatch import current_span

if TYPE_CHECKING:
    from traced_tools.core.enums import Decision
    from traced_tools.observe.stages.tool_call import ToolCallObservation
    from traced_tools.observe.typed_events.dispatch import RunEventDispatcher
    from traced_tools.observe.typed_events.types import Event


class ToolCallEventEmitter:
    """Emits the events of a requested call: intended, decided, and if the tool runs, started, progressed, finished."""

    __slots__ = ("_attempts", "_began", "_events", "_identity", "_is_decided", "_observed", "_span")

    def __init__(self, events: RunEventDispatcher, observed: ToolCallObservation) -> None:
        self._events = events
        self._observed = observed
        self._identity = {
            "call_id": observed.call_id,
            "tool": observed.name,
            "source": observed.source,
            "batch_index": observed.batch_index,
            "batch_size": observed.batch_size,
        }
        self._is_decided = False
        self._attempts = 0  # of the execution whose start was emitted
        self._began = 0.0

    def began(self) -> None:
        """Emit the intention. For a skipped call it is the only event, emitted while the run ends."""
        from traced_tools.observe.typed_events.types import ToolIntended

        self._span = current_span()
        observed = self._observed
        arguments = observed.call.arguments
        fields = {
            "arguments_size": len(arguments.encode(errors="replace")),
            "arguments": self._capture(names.TOOL_CALL_ARGUMENTS, arguments),
            **self._identity,
        }
        self._events.dispatch(
            ToolIntended,
            observed.iteration,
            fields,
            failing=observed.skipped,
            span=self._span,
            call=observed,
            ledger=observed.ledger,
        )

    def advised(self, arguments: str) -> None:
        """Emit the decision again if an advisor reruns the tool with other arguments."""
        if arguments != self._observed.arguments:
            self._is_decided = False

    def started(self) -> None:
        """Emit the decision, and the start of the first attempt."""
        from traced_tools.observe.typed_events.types import ToolStarted

        if not self._is_decided:
            self._emit_decision(self._observed.permission)
        self._attempts += 1
        if self._attempts == 1:
            self._began = perf_counter()
            self._emit(ToolStarted, {})

    def progressed(self, progress: float, total: float | None, message: str | None) -> None:
        """Emit how far the tool is, while it runs. What a listener raises is counted and does not disturb the tool."""
        from traced_tools.observe.typed_events.types import ToolProgressed

        if self._attempts:
            captured = self._capture(names.TOOL_CALL_RESULT, message)
            fields = {"progress": progress, "total": total, "message": captured}
            self._emit(ToolProgressed, fields, failing=True, span=self._span)

    def finished(self) -> None:
        """Emit the tool's outcome."""
        result = self._observed.returned
        assert result is not None
        captured = self._capture(names.TOOL_CALL_RESULT, result.content)
        self._emit_finish({"result_size": result.size, "result": captured})

    def decided(self) -> None:
        """Emit the decision, unless it was emitted when the tool started."""
        result = self._observed.result
        if not self._is_decided and result is not None:
            self._emit_decision(
                result.decision,
                advisor=result.advisor,
                error_type=self._observed.error_type,
            )

    def ended(self) -> None:
        """Emit the end of a tool that the run no longer waits for."""
        if self._attempts and self._observed.error_type is not None:
            self._emit_finish({}, failing=True, span=self._span)

    def _emit_decision(self, decision: Decision, **why: str | None) -> None:
        from traced_tools.observe.typed_events.types import ToolDecided

        self._is_decided = True
        intent = self._capture(names.INTENT, self._observed.intent)
        decider = recorded_person(self._observed.by, self._observed.tool, self._events.content)
        fields: dict[str, Any] = {"decision": decision, "intent": intent, "by": decider, **why}
        fields |= {"reason_code": self._observed.reason_code, "rule": self._observed.rule}
        fields["policy_digest"] = self._observed.policy_digest
        fields["evaluated"] = self._observed.evaluations(decision)
        fields["arguments"] = self._capture(names.TOOL_CALL_ARGUMENTS, self._observed.changed_arguments)
        self._emit(ToolDecided, fields)

    def _emit_finish(
        self, fields: dict[str, Any], *, failing: bool = False, span: dict[str, str] | None = None
    ) -> None:
        from traced_tools.observe.typed_events.types import ToolFinished

        attempts, self._attempts = self._attempts, 0
        fields["outcome"] = self._observed.outcome
        fields["error_type"] = self._observed.error_type
        fields["attempts"] = attempts
        fields["duration"] = perf_counter() - self._began
        self._emit(ToolFinished, fields, failing=failing, span=span)

    def _capture(self, name: str, content: str | None) -> str | None:
        if content is None or self._events.content is None or not self._observed.may_capture:
            return None
        value = content if name == names.INTENT else from_json(content)
        return self._events.captured_texts({name: lambda: value}, name)[0]

    def _emit(
        self,
        kind: type[Event],
        fields: dict[str, Any],
        *,
        failing: bool = False,
        span: dict[str, str] | None = None,
    ) -> None:
        fields |= self._identity
        observed = self._observed
        self._events.dispatch(kind, observed.iteration, fields, failing=failing, span=span, ledger=observed.ledger)
