"""The advisor that writes the audit trail: an intent before each tool, then its decision and its outcome.

It also records each compaction of a conversation, because the model then decides on less than was said, and tools of
MCP servers that differ from the pinned ones, because the model then decides on other descriptions.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic_core import from_json

from traced_tools.audit.records import (
    RAN,
    REPEATED_DECISION,
    REQUESTED_ARGUMENTS,
    Content,
    Draft,
    RecordKind,
    Subject,
    unix_nanoseconds,
)
from traced_tools.audit.schema import searchable
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.part_check import Checkable, PartCheck
from traced_tools.core.policy_verdict import evaluation_fields
from traced_tools.core.tool_definition import definition_digest
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import AdvisorChainError, AuditError, AuditUnavailable
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.observe.content import pseudonym_of
from traced_tools.observe.failures import error_type
from traced_tools.observe.stages.tool_call import ObservedCall, ToolCallListener
from traced_tools.observe.typed_events.types import (
    Event,
    IterationFinished,
    IterationStarted,
    MemoryCompacted,
    ModelResponded,
    RunFinished,
    RunStarted,
    ToolDecided,
    ToolFinished,
    ToolIntended,
    ToolsChanged,
    ToolStarted,
)
from traced_tools.tools.invocation import CallNext, ToolInvocation
from traced_tools.tools.schema.fields import field_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from traced_tools.audit.trail import AuditTrail
    from traced_tools.core.tool_definition import ToolDefinition
    from traced_tools.flow.flow import Step

_LOG = logging.getLogger(__name__)
_INVALID: Final = "invalid_arguments"
_DECISIONS: Final[Mapping[str, str]] = {REPEATED_DECISION: "limited"}
"""The decisions that have another name in the trail."""


class AuditAdvisor(Advisor, ToolCallListener):
    """Records every tool call of the model in an audit trail: its intent, its decision and its outcome.

    Each compaction of the conversation has a record, too: from then on, the model decides on less than was said. So do
    the tools of an MCP server that differ from the pinned ones when a run begins.

    The intent is durable before the tool starts. Place this advisor inside the loop and around all other advisors
    there, so that the intent is recorded before any decision. It has the reason that the model stated for a tool of
    `augmented`, or that an advisor around this one sets with `call.replace(intent=...)`.

    The recorded arguments are those that this advisor receives, validated for the tool. If they differ in value from
    the model's text (through a repair, a coercion, a default, additional arguments or an outer advisor), the intent
    also has the model's text, as `requested_arguments`. If inner advisors change the arguments, each decision with new
    arguments has the arguments that the tool runs with.

    The records of a call after its intent are:

        what happens to the call                              decision                    outcome
        the tool ran                                          allowed, approved           ok, error, timeout, cancelled
        the arguments are invalid                             invalid_arguments           invalid_arguments
        refused by an advisor, a person, the driver           denied, rejected            none
        answered without a run of the tool                    answered                    none
        a limit is reached                                    limited                     none
        the same call was made too often                      limited (repeated_call)     none
        there is no such tool                                 unknown_tool                none
        the run ended before anything was decided             none                        none

    A call that is refused before it reaches the advisors does not wait for its intent, because no tool runs. If an
    advisor reruns a tool, each run has an outcome.

    Args:
        trail: the `AuditTrail` that stores the records; advisors and clients may share it.
        on_failure: what happens to a call whose intent cannot be recorded in time. `deny` refuses it with the reason
            code `audit_unavailable`; `warn` lets the tool run, logs once per outage, and writes the record when the
            store recovers. With `warn`, calls don't wait while `trail.problem` is set.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: the position in the chain; it must be inside the loop.

    Raises:
        TypeError: if `trail` is not an audit trail.
        AdvisorChainError: if `order` is not inside the loop, where no tool call is seen.
        ValueError: if `on_failure` is invalid.
    """

    watches_deltas = False

    event_errors_end_run = True  # a run whose calls are not recorded must not go on

    def __init__(
        self,
        trail: AuditTrail,
        *,
        on_failure: Literal["deny", "warn"] = "deny",
        name: str = "audit",
        order: int = TOOL_LOOP_ORDER + 100,
    ) -> None:
        if not (callable(getattr(trail, "write", None)) and callable(getattr(trail, "submit", None))):
            raise TypeError(f"trail must be an AuditTrail, such as AuditTrail('audit.db'), not {type(trail).__name__}")
        if on_failure not in ("deny", "warn"):
            raise ValueError("on_failure must be 'deny' or 'warn'")
        expect("name", name, str, "a str")
        expect_whole("order", order, -sys.maxsize)
        if order <= TOOL_LOOP_ORDER:
            raise _outside(name, order)
        self.name = name
        self.order = order
        self._trail = trail
        self._on_failure = on_failure
        if callable(offer := getattr(trail, "offer_pseudonyms", None)):
            offer()  # now, because the events of a run begin before its first record
        self._runs: dict[str, _Run] = {}
        self._is_out = False

    def checks(self) -> Iterable[PartCheck]:
        """Return the check of the trail."""
        return self._trail.checks() if isinstance(self._trail, Checkable) else ()

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Record the intent, then pass the call on; with `on_failure="deny"`, refuse the call if recording fails."""
        recorded_call = self._get_call(call)
        if not recorded_call.intended:
            recorded_call.write = self._trail.write(recorded_call.intent(call.arguments, call.intent), self._patience())
        # An outer advisor that retries the call after an outage awaits the same write again.
        if not recorded_call.durable and recorded_call.write is not None:
            recorded_call.durable = await self._is_durable(recorded_call.write)
        if not recorded_call.durable and self._on_failure == "deny":
            return call.denied("the audit trail cannot be written", code="audit_unavailable")
        return await call_next(call)

    def _patience(self) -> float | None:
        """Return how many seconds to wait for an intent: 0 with `warn` in a known outage, None for the default."""
        return 0.0 if self._on_failure == "warn" and self._trail.problem is not None else None

    def _get_call(self, call: ToolInvocation) -> _RecordedCall:
        run = self._runs.get(call.context.run_id or "")
        recorded_call = None if run is None else run.calls.get((call.iteration, call.batch_index))
        if recorded_call is None:  # this advisor did not receive the call, so nothing would be recorded
            raise _outside(self.name, self.order)
        return recorded_call

    async def _is_durable(self, write: Step[None]) -> bool:
        try:
            await write
        except AuditError as error:
            self._log_outage(error)
            return False
        self._is_out = False
        return True

    def _log_outage(self, error: AuditError) -> None:
        if not self._is_out:
            self._is_out = True
            consequence = "calls of tools are denied" if self._on_failure == "deny" else "tools run before their record"
            ours = isinstance(error, AuditUnavailable)  # the text of other errors may quote content
            problem = str(error) if ours else f"the audit trail cannot be written: {error_type(error)}"
            _LOG.warning("%s: %s; %s", self.name, problem, consequence)

    def on_event(self, event: Event) -> None:
        """Queue the decisions and outcomes of calls, and compactions, for the trail, without waiting."""
        run = self._runs.get(event.run_id)
        if run is None and isinstance(event, RunStarted | IterationStarted):
            run = self._runs[event.run_id] = _Run()
            run.by_hand = isinstance(event, IterationStarted)
        if run is not None and event.sequence > run.sequence:  # a chain may contain the same advisor twice
            run.sequence = event.sequence
            self._take(run, event)

    def on_tool_call(self, call: ObservedCall, event: ToolIntended) -> None:
        """Register a tool call of the model."""
        if (run := self._runs.get(event.run_id)) is not None:
            run.calls[event.iteration, event.batch_index] = _RecordedCall(call, event, run)

    def _take(self, run: _Run, event: Event) -> None:
        run.inside = run.inside or not isinstance(event, RunStarted | RunFinished)  # the only events outside the loop
        match event:
            case RunStarted():
                run.model, run.provider = event.model, event.provider
            case ModelResponded():
                run.answered(event)
            case ToolDecided() | ToolStarted() | ToolFinished():
                if (recorded_call := run.calls.get((event.iteration, event.batch_index))) is not None:
                    self._record(recorded_call, event)
                    self._forget(run, event.run_id)
            case MemoryCompacted():
                self._trail.submit(_compaction(event))
            case ToolsChanged():
                self._trail.submit(_changed_tools(event))
            case IterationFinished():
                self._sweep(run, event.iteration)
                if run.by_hand:
                    run.ended = True
                    self._forget(run, event.run_id)
            case RunFinished():
                self._end(run, event)

    def _record(self, recorded_call: _RecordedCall, event: ToolDecided | ToolStarted | ToolFinished) -> None:
        if isinstance(event, ToolStarted):
            recorded_call.running = True
            return
        if not recorded_call.intended:
            self._trail.submit(recorded_call.intent())
        if isinstance(event, ToolFinished):
            recorded_call.running = False
            self._trail.submit(recorded_call.outcome(event))
            return
        self._trail.submit(recorded_call.decision(event))
        if event.decision == _INVALID:
            self._trail.submit(recorded_call.invalid_outcome(event))

    def _sweep(self, run: _Run, iteration: int | None = None) -> None:
        """Record intents without a decision, and forget the calls of an iteration, or all, unless their tools run."""
        for key, recorded_call in [*run.calls.items()]:
            if iteration in (None, key[0]):
                if not recorded_call.intended:
                    self._trail.submit(recorded_call.intent())
                if not recorded_call.running:
                    del run.calls[key]

    def _end(self, run: _Run, event: RunFinished) -> None:
        self._sweep(run)
        run.ended = True
        self._forget(run, event.run_id)
        if event.tool_calls and not run.inside:
            raise _outside(self.name, self.order)

    def _forget(self, run: _Run, run_id: str) -> None:
        """Forget a run that has ended, once its last tool has; an interrupted run may leave tools running."""
        if run.ended and not any(recorded_call.running for recorded_call in run.calls.values()):
            self._runs.pop(run_id, None)

    def __repr__(self) -> str:
        return f"<AuditAdvisor {self.name!r}: order {self.order}, on_failure {self._on_failure!r}>"


class _Run:
    """State of an active run; a call of `execute_tool_calls` counts as a run of one iteration."""

    __slots__ = ("by_hand", "calls", "ended", "inside", "model", "principal", "provider", "response_id", "sequence")

    def __init__(self) -> None:
        self.sequence = 0
        self.model: str | None = None
        self.provider: str | None = None
        self.response_id: str | None = None
        self.principal: Content | None = None
        self.calls: dict[tuple[int, int], _RecordedCall] = {}
        self.inside = False
        self.ended = False
        self.by_hand = False

    def principal_of(self, call: ObservedCall) -> Content | None:
        """Return on whose behalf the run is; a tool with capture disabled does not keep that out of the trail."""
        if self.principal is None and call.principal is not None:
            self.principal = Content(call.principal, may_be_stored=True, pseudonym=pseudonym_of(call.principal))
        return self.principal

    def answered(self, event: ModelResponded) -> None:
        """Register the model whose answer contains the next calls."""
        self.model, self.provider = event.model or self.model, event.provider
        self.response_id = event.response_id


class _RecordedCall:
    """State of a tool call of the model.

    Attributes:
        intended: whether the intent was sent to the trail.
        durable: whether the intent is known to be durable.
        running: whether the tool runs.
        write: the step that waits until the intent is durable; None before the intent is written.
    """

    __slots__ = (
        "_arguments",
        "_fields",
        "_observed",
        "_principal",
        "_subject",
        "_time",
        "durable",
        "intended",
        "running",
        "write",
    )

    def __init__(self, call: ObservedCall, event: ToolIntended, run: _Run) -> None:
        self._observed = call
        self._time = unix_nanoseconds(event.time)
        self._subject = _subject(event)
        self._principal = run.principal_of(call)
        self._fields = {
            "actors": list(event.actors) or None,
            "source": event.source,
            "batch_size": event.batch_size,
            "model": run.model,
            "provider": run.provider,
            "response_id": run.response_id,
        }
        self._arguments = call.call.arguments
        self.intended = self.durable = self.running = False
        self.write: Step[None] | None = None

    def intent(self, arguments: str | None = None, reason: str | None = None) -> Draft:
        """Return the draft of the intent record.

        Args:
            arguments: the arguments for the tool, as canonical JSON; None for a call that is refused before its
                arguments are validated, so that the model's text is recorded.
            reason: the model's reason as this advisor receives it; None for the reason that the model stated, if any.
        """
        self.intended = True
        requested = self._observed.call.arguments
        self._arguments = text = requested if arguments is None else arguments
        fields, contents = dict(self._fields), {"arguments": self._content(text, is_json=True)}
        if text != requested:  # the trail records both only if they stand for different values
            contents[REQUESTED_ARGUMENTS] = self._content(requested, is_json=True)
        definition = self._observed.definition
        if (
            definition is None
        ):  # its name may be stored, but not its arguments: they may be meant for a tool with capture disabled
            contents["requested_name"] = Content(self._observed.call.name, may_be_stored=True)
        else:
            fields |= _tool_fields(definition, text)
        own_name = self._observed.own_name
        if own_name is not None and own_name != self._observed.call.name:
            fields["own_name"] = searchable(own_name)
        if self._observed.pin_changes:
            fields["pin_changes"] = list(self._observed.pin_changes)
        if self._principal is not None:
            contents["principal"] = self._principal
        reason = self._observed.intent if reason is None else reason
        if reason is not None:
            contents["reason"] = self._content(reason)
        return self._draft("intent", self._time, fields, contents)

    def decision(self, event: ToolDecided) -> Draft:
        """Return the draft of the decision record."""
        fields: dict[str, Any] = {"decision": _DECISIONS.get(event.decision, event.decision), "advisor": event.advisor}
        fields |= {"reason_code": event.reason_code, "rule": event.rule, "error_type": event.error_type}
        fields["policy_digest"] = event.policy_digest
        fields["evaluated"] = [*map(evaluation_fields, event.evaluated)] or None
        if event.decision in RAN and not self.durable and not self._observed.is_cut:
            fields["intent_late"] = True
        arguments = self._observed.runs_with
        contents: dict[str, Content] = {}
        if arguments is not None and arguments != self._arguments:
            contents["arguments"] = self._content(arguments, is_json=True)
        if self._observed.by is not None:
            contents["by"] = replace(self._content(self._observed.by), pseudonym=pseudonym_of(self._observed.by))
        return self._draft("decision", unix_nanoseconds(event.time), fields, contents)

    def outcome(self, event: ToolFinished) -> Draft:
        """Return the draft of the outcome record; a tool that was abandoned has no result in it."""
        text = self._observed.returned_text
        contents = {} if text is None else {"result": self._content(text, is_json=True)}
        fields: dict[str, Any] = {"outcome": event.outcome, "error_type": event.error_type}
        fields |= {"attempts": event.attempts, "duration": event.duration}
        return self._draft("outcome", unix_nanoseconds(event.time), fields, contents)

    def invalid_outcome(self, event: ToolDecided) -> Draft:
        """Return the draft of the outcome record of a call with invalid arguments."""
        return self._draft(
            "outcome", unix_nanoseconds(event.time), {"outcome": _INVALID, "error_type": event.error_type}
        )

    def _content(self, text: str, *, is_json: bool = False) -> Content:
        return Content(text, may_be_stored=self._observed.may_capture, is_json=is_json)

    def _draft(
        self, kind: RecordKind, time: int, fields: Mapping[str, Any], contents: Mapping[str, Content] | None = None
    ) -> Draft:
        present = {name: value for name, value in fields.items() if value is not None}
        return Draft(kind, time, self._subject, present, contents or {})


def _compaction(event: MemoryCompacted) -> Draft:
    """Return the draft of the record of a compaction."""
    fields = {
        "entry_id": event.entry_id,
        "trigger": event.trigger,
        "strategy": event.strategy,
        "covered": event.covered,
        "through": event.through,
        "branch": event.branch or None,
        "tokens_before": event.tokens_before,
        "tokens_after": event.tokens_after,
        "tokens_estimated": event.estimated or None,
    }
    present = {name: value for name, value in fields.items() if value is not None}
    return Draft("compaction", unix_nanoseconds(event.time), _subject(event), present)


def _changed_tools(event: ToolsChanged) -> Draft:
    """Return the draft of the record of changed tools."""
    fields = {"source": event.server, "changes": list(event.changes), "refused": event.refused}
    return Draft("tools_changed", unix_nanoseconds(event.time), _subject(event), fields)


def _subject(event: ToolIntended | MemoryCompacted | ToolsChanged) -> Subject:
    call = event if isinstance(event, ToolIntended) else None
    return Subject(
        agent=event.agent,
        run_id=event.run_id,
        call_id=None if call is None else call.call_id,
        tool=None if call is None else call.tool,
        iteration=event.iteration,
        batch_index=None if call is None else call.batch_index,
        conversation_id=event.conversation_id,
        trace_id=event.trace_id,
        span_id=event.span_id,
        parent_run_id=event.parent_run_id,
        attributes=event.attributes,
    )


def _digest_and_names(definition: ToolDefinition) -> tuple[str, frozenset[str]]:
    return definition_digest(definition), field_names(definition.input_schema)


_digest_and_names_cache = IdentityCache(_digest_and_names)


def _tool_fields(definition: ToolDefinition, arguments: str) -> dict[str, Any]:
    """Return the digest of the tool's definition and the names of the arguments in the call.

    Arguments that the definition does not contain are only counted, because the model invented their names.
    """
    digest, names = _digest_and_names_cache(definition)
    fields: dict[str, Any] = {"definition_digest": digest}
    try:
        values = from_json(arguments)
    except ValueError:
        return fields
    if isinstance(values, dict):
        fields["argument_names"] = sorted(names & values.keys())
        fields["unknown_arguments"] = len(values.keys() - names) or None
    return fields


def _outside(name: str, order: int) -> AdvisorChainError:
    return AdvisorChainError(
        f"{name} (order {order}) is outside the tool loop, where no tool call is seen: "
        f"its order must be above the loop's, which is {TOOL_LOOP_ORDER} by default"
    )
