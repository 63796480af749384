"""What the log of a durable run has: a record before the run relies on what it says."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, TypeAdapter, ValidationError

from traced_tools.core.approval import Approve, CallDecision, Denied, Reject
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import AssistantMessage, Usage, Value
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_input import Provide
from traced_tools.core.totals import NestedUsage
from traced_tools.errors import ResumeError
from traced_tools.loop.paused_runs import Question
from traced_tools.loop.state import AnyText, KeptByAdvisor, KeptResult, Messages, WaitingCall, text_digest


class SpentRecord(Value):
    """What a run has used when a record is made, of all of its lives.

    Attributes:
        usage: the tokens, without those of nested runs.
        nested: what nested runs have used.
        seconds: the time at work.
        discovered_tools: the tools that a tool search has found for the model.
    """

    usage: Usage | None = None
    nested: NestedUsage | None = None
    seconds: float = Field(ge=0, allow_inf_nan=False)
    discovered_tools: tuple[str, ...] = Field(default=(), repr=False)


class Submitted(Value):
    """What a run was asked: the first record of each log."""

    kind: Literal["submitted"] = "submitted"
    request: Messages
    conversation_id: AnyText | None = None
    principal: AnyText | None = Field(default=None, repr=False)
    attributes: dict[str, Any] = Field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, question: Question) -> Self:
        """Return the record about what a run is asked."""
        return cls(
            request=question.messages,
            conversation_id=question.conversation_id,
            principal=question.principal,
            attributes=dict(question.attributes),
        )

    def question(self) -> Question:
        """Return what the run is asked."""
        return Question(self.request, self.conversation_id, self.principal, self.attributes)


class LifeBegan(Value):
    """A process began to drive the run, or to go on with it."""

    kind: Literal["life_began"] = "life_began"
    run_id: str
    traceparent: str | None = None


class Answered(Value):
    """The model called tools, and none of them has begun.

    Attributes:
        prefix: how many of the messages that the log has are still there: those that the loop had added at the answer
            before, that answer, and a message with the results of its calls.
        messages: the messages that the loop has added after those, before this answer.
        advisors: what advisors keep of the run.
    """

    kind: Literal["answered"] = "answered"
    iteration: int = Field(ge=1)
    answer: AssistantMessage = Field(repr=False)
    prefix: int = Field(ge=0)
    messages: Messages
    advisors: tuple[KeptByAdvisor, ...] = ()
    spent: SpentRecord


class CallBegan(Value):
    """The tool of a call begins."""

    kind: Literal["call_began"] = "call_began"
    call_id: AnyText
    repeatable: bool


class CallEnded(Value):
    """A call has a result, whether or not its tool ran."""

    kind: Literal["call_ended"] = "call_ended"
    result: KeptResult
    spent: SpentRecord


class CallWaits(Value):
    """The tool of a call has asked for input, or its agent waits, while other calls of the answer may run."""

    kind: Literal["call_waits"] = "call_waits"
    call: WaitingCall
    spent: SpentRecord


class Paused(Value):
    """Calls wait for a person. The state is that of the run in the store."""

    kind: Literal["paused"] = "paused"
    state_id: str
    waiting: tuple[WaitingCall, ...]
    advisors: tuple[KeptByAdvisor, ...] = ()
    spent: SpentRecord


class KeptDecision(Value):
    """A decision about a call that waited. Objects are JSON text, whatever characters they contain."""

    decision: Literal["approve", "reject", "provide", "deny"]
    by: AnyText | None = Field(default=None, repr=False)
    code: AnyText | None = None
    reason: AnyText | None = Field(default=None, repr=False)
    object: AnyText | None = Field(default=None, repr=False)
    decided_at: float | None = None

    @classmethod
    def of(cls, decision: CallDecision | Denied) -> Self:
        """Return a decision as a log keeps it."""
        match decision:
            case Approve():
                values: dict[str, Any] = {"decision": "approve", "by": decision.by, "code": decision.code}
                arguments = None if decision.arguments is None else json.dumps(dict(decision.arguments))
                values["object"] = arguments
            case Reject():
                values = {"decision": "reject", "by": decision.by, "code": decision.code, "reason": decision.reason}
            case Provide():
                answers = json.dumps(dict(decision.answers))
                values = {"decision": "provide", "by": decision.by, "object": answers}
            case Denied():
                values = {"decision": "deny", "code": decision.code, "reason": decision.reason}
        return cls(**values, decided_at=decision.decided_at)

    def decided(self) -> CallDecision | Denied:
        """Return the decision."""
        decoded: Any = None if self.object is None else json.loads(self.object)
        match self.decision:
            case "approve":
                return Approve(by=self.by, arguments=decoded, code=self.code, decided_at=self.decided_at)
            case "reject":
                return Reject(self.reason or "", by=self.by, code=self.code, decided_at=self.decided_at)
            case "provide":
                return Provide(decoded, by=self.by, decided_at=self.decided_at)
        return Denied(self.reason or "", self.code or "", self.decided_at or 0.0)


class Claimed(Value):
    """The run goes on after a pause, with these decisions by the ids of the calls."""

    kind: Literal["claimed"] = "claimed"
    decisions: dict[AnyText, KeptDecision] = Field(repr=False)


class Finished(Value):
    """The run has ended with an answer, or at a limit."""

    kind: Literal["finished"] = "finished"
    content: AnyText = Field(repr=False)
    stop_reason: str


class LifeFailed(Value):
    """An error has ended the life of a run. Without `lasting`, another life may go on."""

    kind: Literal["life_failed"] = "life_failed"
    error_type: AnyText
    lasting: bool


Record = Submitted | LifeBegan | Answered | CallBegan | CallEnded | CallWaits | Paused | Claimed | Finished | LifeFailed
_RECORD: Final[TypeAdapter[Record]] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])


@frozen
class StoredRecord:
    """A record as a store keeps it.

    Attributes:
        number: its place in the log, from 0.
        body: the record as JSON.
        digest: over the record, its number, the key of the run and the digest before; with a key, an HMAC.
    """

    number: int
    body: str = field(repr=False)
    digest: str


def stored_record(record: Record, key: str, number: int, before: str, state_key: StateKey | None) -> StoredRecord:
    """Return a record as a store keeps it.

    Args:
        record: the record.
        key: the key of the run.
        number: the number of the record.
        before: the digest of the record before; empty for the first one.
        state_key: signs the record; None for a digest that detects accidents only.
    """
    body = json.dumps(record.model_dump(mode="json"))
    return StoredRecord(number, body, _digest(body, key, number, before, state_key))


def read_record(body: str) -> Record:
    """Return the record that JSON has, or raise pydantic's `ValidationError`, whose text may quote the record."""
    return _RECORD.validate_json(body)


def read_records(rows: Sequence[StoredRecord], key: str, state_keys: Sequence[StateKey]) -> list[Record]:
    """Return the records of a log.

    Raises:
        ResumeError: if a record was altered, is missing, is not signed with one of `state_keys`, or is of another
            release. The last two are not lasting: a process with the key, or of that release, can go on.
    """
    records, before = [], ""
    for number, row in enumerate(rows):
        signer = next((signer for signer in state_keys if row.digest.startswith(f"{signer.id}:")), None)
        if signer is None and (state_keys or ":" in row.digest):
            raise ResumeError(f"record {number} of the run {key!r} is not signed with a configured key")
        if row.number != number or row.digest != _digest(row.body, key, number, before, signer):
            raise ResumeError(f"record {number} of the run {key!r} was altered or is missing", lasting="state_invalid")
        try:
            records.append(read_record(row.body))
        except ValidationError:  # its text may quote the record
            problem = f"record {number} of the run {key!r} is of another release: drive the run with that release"
            raise ResumeError(problem) from None
        before = row.digest
    return records


def _digest(body: str, key: str, number: int, before: str, state_key: StateKey | None) -> str:
    canonical = json.dumps([key, number, before, body])
    return text_digest(canonical) if state_key is None else f"{state_key.id}:{state_key.digest(canonical.encode())}"
