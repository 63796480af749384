"""What a record of the trail says, and its one form: a line of JSON, which its hash covers.

A record is written once and never changed. Its *body* is JSON with sorted keys and no blanks; `hash` is the SHA-256 of
that text, and the body holds the hash of the record before it. So a record can be checked wherever its line went.

A record that holds texts of contents has the version 2. Its hash covers the body without the `text`, `salt` and `cut`
of each content, written the same way. The content's `text_hash` commits to these three: it is the SHA-256 of them as
JSON. So a text can be erased, and the chain still verifies. Without the salt nobody can find a short text by trying.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, Literal, get_args

SCHEMA_VERSION: Final = 1
ERASABLE_VERSION: Final = 2
"""The version of records with texts that can be erased, and of the records of erasures."""
GENESIS: Final = "0" * 64
"""Stands for the hash of the record before the first one of a chain."""

RecordKind = Literal["intent", "decision", "outcome", "checkpoint", "gap", "erasure"]
RECORD_KINDS: Final = get_args(RecordKind)

AuditDecision = Literal[
    "allowed", "denied", "approved", "rejected", "answered", "limited", "unknown_tool", "invalid_arguments"
]
"""What was decided about a call. A repeated call counts as `limited`, with the reason code `repeated_call`.

`rejected` is reserved: no record has it yet.
"""
AUDIT_DECISIONS: Final = get_args(AuditDecision)
REPEATED_DECISION: Final = "repeated"
"""The word of spans and events for a repeated call; a record has `limited` and the reason code `repeated_call`."""
RAN: Final = ("allowed", "approved")
"""The decisions after which a tool starts."""

AuditOutcome = Literal["ok", "error", "timeout", "cancelled", "invalid_arguments"]
AUDIT_OUTCOMES: Final = get_args(AuditOutcome)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)
REQUESTED_ARGUMENTS: Final = "requested_arguments"
"""The arguments that the model wrote. A record has them only if they stand for another value than its `arguments`."""


@dataclass(frozen=True, slots=True)
class Content:
    """A content that a record is about: told as its digest, and in words only where the trail stores them.

    Args:
        text: the content; arguments are JSON text.
        may_be_told: whether it may be stored at all, as other than a digest; a silent tool's may not.
        is_json: whether the digest is that of the value the JSON stands for, in whatever way it is written.
    """

    text: str = field(repr=False)
    may_be_told: bool
    is_json: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom and what a record is about.

    Args:
        agent: the client's name.
        run_id: the run's id.
        call_id: the call's id, as the model or the loop gave it.
        tool: the tool's name; `_unknown` for a name that the model made up.
        iteration: the pass of the loop, from 1.
        batch_index: place among the calls of the same answer, from 0. With run and pass it tells calls apart.
        conversation_id: the caller's conversation, when it gave one.
        trace_id: the trace in hex, when there is one.
        span_id: the span of the call in hex, when there is one.
        parent_run_id: the run that the run began in, when it began in one.
        attributes: what the application said of the run, as plain JSON, when it said anything.
    """

    agent: str
    run_id: str
    call_id: str
    tool: str
    iteration: int
    batch_index: int
    conversation_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    parent_run_id: str | None = None
    attributes: Mapping[str, Any] | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of the record: every attribute that has a value, under its own name."""
        fields = {
            name: value for name, value in zip(_SUBJECT_NAMES, _subject_values(self), strict=True) if value is not None
        }
        if self.attributes:
            fields["attributes"] = dict(self.attributes)
        return fields


_SUBJECT_NAMES: Final = tuple(name for name in Subject.__dataclass_fields__ if name != "attributes")
_subject_values: Final = attrgetter(*_SUBJECT_NAMES)


@dataclass(frozen=True, slots=True)
class Draft:
    """A record before it has its place in a chain.

    Args:
        kind: which record.
        time: when it happened, in nanoseconds of Unix time.
        subject: the call; None for what is about the chain itself.
        fields: what is particular about it, as plain JSON.
        contents: contents by the name of the field that tells of them.
    """

    kind: RecordKind
    time: int
    subject: Subject | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    contents: Mapping[str, Content] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """A record as it stands in a store.

    Attributes:
        chain_id: the chain: one for each writer.
        sequence: its number in the chain, from 1 and without gaps.
        time: when it happened, in nanoseconds of Unix time.
        kind: `intent`, `decision`, `outcome`, `checkpoint`, `gap` or `erasure`.
        hash: SHA-256 of `body`, in hex; of one that holds texts, SHA-256 of `body` without them.
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
        """What the record says, as plain JSON."""
        fields: dict[str, Any] = json.loads(self.body)
        return fields

    @property
    def has_time(self) -> bool:
        """Whether `time` is one: whoever can write the file of a store can put anything there."""
        return isinstance(self.time, int)

    @property
    def when(self) -> datetime:
        """When it happened, in UTC, to the microsecond; the beginning of 1970 where `time` is none."""
        seconds, nanoseconds = divmod(self.time if self.has_time else 0, 1_000_000_000)
        return datetime.fromtimestamp(seconds, UTC).replace(microsecond=nanoseconds // 1000)


def body_of(fields: Mapping[str, Any]) -> str:
    """Return the one way a record is written; raises `TypeError` or `ValueError` for what is no plain JSON."""
    return _ENCODER.encode(fields)


def hash_of(body: str) -> str:
    """Return the hash of a record."""
    return hashlib.sha256(body.encode()).hexdigest()


_ERASABLE: Final = ("text", "salt", "cut")


def commits_to_text(value: object) -> bool:
    """Whether a field of a record is a content that commits to a text."""
    return isinstance(value, dict) and type(value.get("size")) is int and isinstance(value.get("text_hash"), str)


def is_erasable(kind: object, fields: Mapping[str, Any]) -> bool:
    """Whether a record has version 2 and holds what needs it: texts that it commits to, or an erasure."""
    holds = kind == "erasure" or any(map(commits_to_text, fields.values()))
    return holds and fields.get("schema_version") == ERASABLE_VERSION


def without_texts(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a record says without the texts that it commits to."""
    return {name: without_text(value) if commits_to_text(value) else value for name, value in fields.items()}


def without_text(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is left of a content when its text is erased."""
    return {name: value for name, value in content.items() if name not in _ERASABLE}


def text_hash(content: Mapping[str, Any]) -> str:
    """Return what commits to the text of a content, to its salt and to whether it was cut."""
    return hash_of(body_of({name: content[name] for name in _ERASABLE if name in content}))


def is_hash_of_erasable(hash: object, fields: Mapping[str, Any], body: str) -> bool:
    """Whether a hash is that of a record with texts; `fields` are what `body` says."""
    if fields.get("schema_version") != ERASABLE_VERSION:
        return False
    try:
        return body_of(fields) == body and hash_of(body_of(without_texts(fields))) == hash
    except (ValueError, RecursionError):  # it holds a number that is read as infinite
        return False


def timestamp(time: int) -> str:
    """Return nanoseconds of Unix time as RFC 3339 writes them, in UTC; `no day` for what no calendar holds."""
    minutes, within = divmod(time, 60_000_000_000)
    digits = str(100_000_000_000 + within)  # a format that pads with zeros takes twice as long
    return f"{_minute(minutes)}{digits[1:3]}.{digits[3:]}Z"


def printable_id(value: object) -> str:
    """Return the first 64 characters of an id in printable ASCII, safe to show in a message."""
    return json.dumps(str(value)[:64])[1:-1]


def unix_nanoseconds(time: datetime) -> int:
    """Return a time, which must have a zone, in nanoseconds of Unix time."""
    return (time - _EPOCH) // timedelta(microseconds=1) * 1000


_KEPT: Final = ("chain_id", "sequence", "records", "head", "time", "final", "public_key", "signature")


def checkpoint_line(fields: Mapping[str, Any], hash: object, body: str) -> dict[str, Any]:
    """Return what is kept of a checkpoint outside the store.

    Args:
        fields: what the checkpoint says.
        hash: its hash.
        body: the checkpoint itself, as a record is written.
    """
    return {name: fields[name] for name in _KEPT if name in fields} | {"hash": hash, "body": body}


@lru_cache(maxsize=1024)
def _minute(minutes: int) -> str:
    """Return the beginning of a time that all times of a minute share."""
    days, minute = divmod(minutes, 1440)
    return f"{_day(days)}{minute // 60:02}:{minute % 60:02}:"


def _day(days: int) -> str:
    try:
        return f"{datetime.fromtimestamp(days * 86_400, UTC):%Y-%m-%dT}"
    except (ValueError, OverflowError, OSError):
        return "no day "
