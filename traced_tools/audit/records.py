"""The fields of an audit record, its canonical JSON and its hash.

A record is written once and never changed. Its *body* is JSON with sorted keys and no blanks. `hash` is the SHA-256 of
the body, and the body contains the hash of the record before it. So a copy of a record can be checked anywhere.

A record that stores texts of contents has version 2. Its hash covers the body without the `text`, `salt` and `cut` of
each content. The content's `text_hash`, the SHA-256 of these three as JSON, commits to them. So a text can be erased
and the chain still verifies. The salt prevents guessing a short text from its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal, get_args

from traced_tools.observe.content import pseudonym_by

SCHEMA_VERSION: Final = 1
ERASABLE_VERSION: Final = 2
"""The version of records whose texts can be erased, and of erasure records."""
GENESIS: Final = "0" * 64
"""The previous hash of the first record of a chain."""

RecordKind = Literal["intent", "decision", "outcome", "compaction", "tools_changed", "checkpoint", "gap", "erasure"]
RECORD_KINDS: Final = get_args(RecordKind)

AuditDecision = Literal[
    "allowed", "denied", "approved", "rejected", "pending", "answered", "limited", "unknown_tool", "invalid_arguments"
]
"""The decision about a call. A repeated call is `limited`, with the reason code `repeated_call`.

A `pending` call waits for approval when its run ends. The run that resumes records another decision.
"""
AUDIT_DECISIONS: Final = get_args(AuditDecision)
REPEATED_DECISION: Final = "repeated"
"""The decision of spans and events for a repeated call; a record has `limited` and the code `repeated_call`."""
RAN: Final = ("allowed", "approved")
"""The decisions that let a tool start."""

AuditOutcome = Literal["ok", "error", "timeout", "cancelled", "unknown", "input_required", "invalid_arguments"]
AUDIT_OUTCOMES: Final = get_args(AuditOutcome)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
REQUESTED_ARGUMENTS: Final = "requested_arguments"
"""The arguments that the model wrote. A record has them only if their value differs from its `arguments`."""


@dataclass(frozen=True, slots=True)
class Content:
    """A content of a call, such as its arguments. It is recorded as a digest, and as text if the trail stores texts.

    Args:
        text: the content; arguments are JSON text.
        may_be_stored: whether the text may be stored; False for a tool with capture disabled.
        is_json: whether the digest is that of the JSON value, however it is written.
        pseudonym: what stands for the content in telemetry, if it is a name.
    """

    text: str = field(repr=False)
    may_be_stored: bool
    is_json: bool = False
    pseudonym: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """The call that a record is about, or the run of a record that belongs to no call.

    Args:
        agent: the client's name.
        run_id: the run's id.
        call_id: the call's id, from the model or the loop; None for no call, as for `tool` and `batch_index`.
        tool: the tool's name; `_unknown` for a name that the model made up.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
        batch_index: the position among the calls of the same answer, from 0. Run id, iteration and position identify a
            call.
        conversation_id: the conversation's id, if the caller set one.
        trace_id: the trace in hex, if there is one.
        span_id: the span of the call, or of what else is recorded, in hex, if there is one.
        parent_run_id: the id of the run that this run is nested in, if any.
        attributes: the attributes that the application set for the run, as plain JSON.
    """

    agent: str
    run_id: str
    call_id: str | None
    tool: str | None
    iteration: int
    batch_index: int | None
    conversation_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_run_id: str | None = None
    attributes: Mapping[str, Any] | None = None

    def add_to(self, fields: dict[str, Any]) -> None:
        """Add every attribute that has a value to the fields of a record, under its own name."""
        fields["agent"] = self.agent  # one by one, because a loop over the attributes takes five times as long
        fields["run_id"] = self.run_id
        fields["iteration"] = self.iteration
        if self.call_id is not None:
            fields["call_id"] = self.call_id
        if self.tool is not None:
            fields["tool"] = self.tool
        if self.batch_index is not None:
            fields["batch_index"] = self.batch_index
        if self.conversation_id is not None:
            fields["conversation_id"] = self.conversation_id
        if self.trace_id is not None:
            fields["trace_id"] = self.trace_id
        if self.span_id is not None:
            fields["span_id"] = self.span_id
        if self.parent_run_id is not None:
            fields["parent_run_id"] = self.parent_run_id
        if self.attributes:
            fields["attributes"] = dict(self.attributes)


@dataclass(frozen=True, slots=True)
class Draft:
    """A record that is not yet part of a chain.

    Args:
        kind: the kind of the record.
        time: the time of the event, in nanoseconds of Unix time.
        subject: the call, or the run; None for a record about the chain itself.
        fields: the fields of this kind of record, as plain JSON.
        contents: contents by field name.
    """

    kind: RecordKind
    time: int
    subject: Subject | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A record of a store.

    Attributes:
        chain_id: the chain. Each writer has its own.
        sequence: the record's number in the chain, from 1 without gaps.
        time: the time of the event, in nanoseconds of Unix time.
        kind: `intent`, `decision`, `outcome`, `compaction`, `tools_changed`, `checkpoint`, `gap` or `erasure`.
        hash: the SHA-256 of `body` in hex. If the record stores texts, the SHA-256 of `body` without them.
        body: the whole record, one line of JSON.
    """

    chain_id: str
    sequence: int
    time: int
    kind: RecordKind
    hash: str
    body: str = field(repr=False)

    @property
    def fields(self) -> dict[str, Any]:
        """The body, parsed as JSON."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields

    @property
    def has_time(self) -> bool:
        """Whether `time` is an integer: anyone who can write an SQLite file can store any type there."""
        return isinstance(self.time, int)

    @property
    def when(self) -> datetime:
        """The time in UTC, in microseconds; the start of 1970 if `time` is not an integer."""
        seconds, nanoseconds = divmod(self.time if self.has_time else 0, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)


def body_of(fields: Mapping[str, Any]) -> str:
    """Return the canonical JSON of a record; raise `TypeError` or `ValueError` for other values than JSON's."""
    return _ENCODER.encode(fields)


def hash_of(body: str) -> str:
    """Return the SHA-256 of a body in hex."""
    return hashlib.sha256(body.encode()).hexdigest()


_ERASABLE: Final = ("text", "salt", "cut")


def commits_to_text(value: object) -> bool:
    """Whether a field of a record has a `text_hash`, so that its text can be erased."""
    return isinstance(value, dict) and type(value.get("size")) is int and isinstance(value.get("text_hash"), str)


def is_erasable(kind: object, fields: Mapping[str, Any]) -> bool:
    """Whether a record has version 2 and needs it: it has a `text_hash`, or is an erasure."""
    holds = kind == "erasure" or any(map(commits_to_text, fields.values()))
    return holds and fields.get("schema_version") == ERASABLE_VERSION


def without_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a record without its erasable texts."""
    return {name: without_text(value) if commits_to_text(value) else value for name, value in fields.items()}


def without_text(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field without its erasable text."""
    return {name: value for name, value in content.items() if name not in _ERASABLE}


PRINCIPAL: Final = "principal"
"""The content of an intent that says on whose behalf the run is."""


def person_of(fields: Mapping[str, Any], content: str = "by") -> str | None:
    """Return who decided about a call: the name if the record has it, else the pseudonym that spans and events have.

    A record has it as `pseudonym` unless its digest begins with it. Records of earlier releases have the name alone.

    Args:
        fields: the fields of a record.
        content: the content that names a person: `by`, or `principal` for on whose behalf the run is.
    """
    person = fields.get(content)
    if not isinstance(person, Mapping):
        return person if isinstance(person, str) else None
    representations = (person.get(name) for name in ("text", "pseudonym"))
    return next((text for text in representations if isinstance(text, str)), pseudonym_by(str(person.get("digest"))))


def text_hash(content: Mapping[str, Any]) -> str:
    """Return the hash of a field's text, its salt and whether it was cut."""
    return hash_of(body_of({name: content[name] for name in _ERASABLE if name in content}))


def is_hash_of_erasable(hash: object, fields: Mapping[str, Any], body: str) -> bool:
    """Whether a hash is that of a record of version 2; `fields` is the parsed body."""
    if fields.get("schema_version") != ERASABLE_VERSION:
        return False
    try:
        return body_of(fields) == body and hash_of(body_of(without_texts(fields))) == hash
    except (ValueError, RecursionError):  # a number beyond the range of a float, read as infinite
        return False


def timestamp(time: int) -> str:
    """Return nanoseconds of Unix time as RFC 3339 in UTC; `no day` instead of a date outside the calendar."""
    minutes, within = divmod(time, 60_000_000_000)
    digits = str(100_000_000_000 + within)  # a format with zero padding takes twice as long
    return f"{_minute(minutes)}{digits[1:3]}.{digits[3:]}Z"


def printable_id(value: object) -> str:
    """Return the first 64 characters of an id in printable ASCII, safe to show in a message."""
    return json.dumps(str(value)[:64])[1:-1]


def unix_nanoseconds(time: datetime) -> int:
    """Return a time, which must have a zone, in nanoseconds of Unix time."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


_LINE_FIELDS: Final = ("chain_id", "sequence", "records", "head", "time", "final", "public_key", "signature")


def checkpoint_line(fields: Mapping[str, Any], hash: object, body: str) -> dict[str, Any]:
    """Return the line for a checkpoint that is kept outside the store.

    Args:
        fields: the checkpoint's fields.
        hash: the checkpoint's hash.
        body: the checkpoint's body.
    """
    return {name: fields[name] for name in _LINE_FIELDS if name in fields} | {"hash": hash, "body": body}


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> str:
    """Return the part of a timestamp that is the same for a whole minute."""
    days, minute = divmod(minutes, 1440)
    return f"{_day(days)}{minute // 60:02}:{minute % 60:02}:"


def _day(days: int) -> str:
    try:
        return f"{datetime.fromtimestamp(days * 86_400, UTC):%Y-%m-%dT}"
    except (ValueError, OverflowError, OSError):
        return "no day "
