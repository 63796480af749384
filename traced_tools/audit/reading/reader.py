"""What happened, read from a store: calls put together from their records, runs put together from their calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice, pairwise
from typing import Any, Final, NamedTuple

from traced_tools.audit.reading import queries
from traced_tools.audit.reading.queries import UNFINISHED, CallFilter, Key
from traced_tools.audit.reading.read_connection import ReadConnection, StorePath, open_for_reading, parsed
from traced_tools.audit.records import RAN, AuditRecord
from traced_tools.errors import AuditError, ConfigurationError

DAMAGED: Final = "damaged"
"""The state of a call whose records cannot be read; `verify` names the first of them."""
_AT_ONCE: Final = 200
_KINDS: Final = ("intent", "decision", "outcome")


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """A call a model asked for: the records that belong together.

    A tool that advice runs again has an outcome for each time it ended, and a further decision where its arguments were
    others. The last of them stands.

    Attributes:
        run_id: the run.
        iteration: the pass of the loop, from 1.
        batch_index: its place among the calls of the same answer, from 0.
        intent: what the model wanted, and why; None only where the record is gone.
        decision: who decided what; of those with the word of the first, the last.
        outcome: how it ended, the last time.
        earlier: the decisions and outcomes of the times before, each kind in order.
        conflicting: a further intent that says something else, a decision with another word than the first, and what
            another chain says otherwise. `verify` may tell where they come from.
    """

    run_id: str
    iteration: int
    batch_index: int
    intent: AuditRecord | None = None
    decision: AuditRecord | None = None
    outcome: AuditRecord | None = None
    earlier: tuple[AuditRecord, ...] = ()
    conflicting: tuple[AuditRecord, ...] = ()
    _fields: dict[str, dict[str, Any]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def fields(self, kind: str) -> dict[str, Any]:
        """Return what the record of a kind says; nothing when there is none, or none that can be read.

        Args:
            kind: `intent`, `decision` or `outcome`.
        """
        if kind not in self._fields:
            record: AuditRecord | None = getattr(self, kind)
            self._fields[kind] = (parsed(record.body) if record is not None else None) or {}
        return self._fields[kind]

    @property
    def records(self) -> list[AuditRecord]:
        """The records there are, kind by kind and each kind in order, but for conflicting ones."""
        return [each for kind in _KINDS for each in self.of_kind(kind)]

    def of_kind(self, kind: str) -> list[AuditRecord]:
        """Return the records of a kind in order, the one that stands last, but for conflicting ones.

        Args:
            kind: `intent`, `decision` or `outcome`.
        """
        effective: AuditRecord | None = getattr(self, kind)
        earlier = [each for each in self.earlier if each.kind == kind]
        return earlier if effective is None else [*earlier, effective]

    @property
    def when(self) -> datetime:
        """When the model asked for it, in UTC."""
        return self.records[0].when

    @property
    def state(self) -> str:
        """How it ended: the outcome, or the decision that refused it, or `unfinished`; `damaged` if unreadable."""
        numbers = (self.iteration, self.batch_index, *(each.time for each in self.records))
        if not all(isinstance(each, int) for each in numbers):
            return DAMAGED
        if self.outcome is not None:
            return _word(self.fields("outcome"), "outcome")
        if self.decision is not None:
            decision = _word(self.fields("decision"), "decision")
            return UNFINISHED if decision in RAN else decision
        return UNFINISHED

    @property
    def is_late(self) -> bool:
        """Whether the tool was let run before its intent was on record, as `on_failure="warn"` does in an outage."""
        return any((parsed(each.body) or {}).get("intent_late") is True for each in self.of_kind("decision"))

    def shared_field(self, name: str) -> Any:
        """Return what its records say under a name that all of them have, such as `tool` or `trace_id`."""
        found = (self.fields(kind).get(name) for kind in _KINDS)
        return next((value for value in found if value is not None), None)


def _word(fields: dict[str, Any], name: str) -> str:
    word = fields.get(name)
    return word if isinstance(word, str) else DAMAGED


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run.

    Attributes:
        run_id: its id.
        calls: the calls that its models asked for, in the order of passes and places.
    """

    run_id: str
    calls: tuple[AuditedCall, ...]


class AuditReader:
    """Reads a store, whoever writes to it at the same time; nothing is made and nothing is changed.

    Every method opens the store anew, so a reader may be kept, and used from any thread.

    Args:
        store: a path, or an SQLAlchemy URL such as `postgresql+psycopg://auditor@host/database`.
    """

    def __init__(self, store: StorePath) -> None:
        self.store: Final = store

    def calls(
        self,
        *,
        tool: str | None = None,
        outcome: str | None = None,
        decision: str | None = None,
        agent: str | None = None,
        conversation: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        attributes: Mapping[str, object] | None = None,
        limit: int = 100,
    ) -> list[AuditedCall]:
        """Return the calls of which all that is given is true, each once, newest first.

        Order and times are those of the decision or the outcome where one is asked for, else of the intent.

        Args:
            tool: the tool's name.
            outcome: `ok`, `error`, `timeout`, `cancelled`, `invalid_arguments`, the last of a call's; `unfinished` for
                calls that were allowed, or not even decided about, and have no outcome. Of those the newest runs' come
                first.
            decision: such as `denied`. `repeated` stands for the `limited` calls with the reason code `repeated_call`.
            agent: the client's name.
            conversation: the conversation's id.
            since: not before; needs a time zone.
            until: before; needs a time zone.
            attributes: attributes of the run with their values, as values or as texts (`3`, `true`); of a sequence, one
                of its items. No index leads to them: calls are looked at one by one, newest first.
            limit: the most calls that are returned.

        Raises:
            AuditError: when the store cannot be read.
            ConfigurationError: for a word that no call has, a time without a zone, a limit below 1.
        """
        if limit < 1:
            raise ConfigurationError(f"limit must be at least 1, not {limit}")
        wanted = CallFilter(tool, outcome, decision, agent, conversation, since, until, attributes or {})
        limit = min(limit, queries.MOST)
        with self._opened() as store:
            if outcome == UNFINISHED:
                return [*calls_of(store, _unfinished(store, wanted, limit)).values()]
            return _matching(store, wanted, limit)

    def run(self, run_id: str) -> AuditedRun:
        """Return a run by its id.

        Raises:
            AuditError: when the store cannot be read, or has no such run.
        """
        with self._opened() as store:
            calls = _calls(store.rows(queries.records_of_run(run_id)))
        if not calls:
            raise AuditError(f"the audit store has no run {run_id[:64]!a}")
        return AuditedRun(run_id, tuple(calls[key] for key in sorted(calls, key=_place)))

    def run_ids(self, prefix: str, limit: int = 10) -> list[str]:
        """Return the ids of runs that begin with `prefix`, which must not be empty; at most `limit`.

        Raises:
            AuditError: when the store cannot be read.
        """
        if not prefix:
            raise ConfigurationError("a run's id must not be empty")
        with self._opened() as store:
            found = store.rows(queries.runs_beginning(prefix, min(limit, queries.MOST), by_bytes=store.embedded))
            return sorted(row[0] for row in found)

    def records(
        self,
        *,
        tool: str | None = None,
        outcome: str | None = None,
        decision: str | None = None,
        agent: str | None = None,
        conversation: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        attributes: Mapping[str, object] | None = None,
    ) -> Iterator[AuditRecord]:
        """Give records chain by chain, each in order, a few at a time; without any argument all there are.

        `outcome` and `decision` are any that the call a record belongs to has on record, be it that of an earlier time;
        times are the record's own; everything else is as in `calls`.

        Raises:
            AuditError: when the store cannot be read.
            ConfigurationError: for a word that no call has, or a time without a zone.
        """
        wanted = CallFilter(tool, outcome, decision, agent, conversation, since, until, attributes or {})
        return self._records(wanted)

    def _opened(self) -> AbstractContextManager[ReadConnection]:
        return open_for_reading(self.store)

    def _records(self, wanted: CallFilter) -> Iterator[AuditRecord]:
        with self._opened() as store, closing(store.rows(queries.records_matching(wanted))) as rows:
            for row in rows:
                record = AuditRecord(*row)
                fields = parsed(record.body) if wanted.attributes else None
                if fields is None or wanted.fits(fields.get("attributes")):  # what cannot be read may be asked for
                    yield record

    def __repr__(self) -> str:
        return "AuditReader()"  # a URL may hold a password


def _matching(store: ReadConnection, wanted: CallFilter, limit: int) -> list[AuditedCall]:
    """Return the newest calls that have such records, but for those whose last outcome is another one."""
    found: dict[Key, AuditedCall] = {}
    at_once = min(_AT_ONCE, limit)
    with closing(store.rows(queries.matching_keys(wanted), at_once)) as newest:
        for keys in _batches(newest, at_once):
            found |= {key: call for key, call in calls_of(store, keys).items() if _is_wanted(call, wanted)}
            if len(found) >= limit:
                break
    return [*found.values()][:limit]


def _is_wanted(call: AuditedCall, wanted: CallFilter) -> bool:
    """Whether a call, of which the rest is true, ended so and has such attributes; a damaged one may have."""
    if call.state == DAMAGED:
        return True
    if wanted.outcome not in (None, call.state):
        return False
    return not wanted.attributes or wanted.fits(call.shared_field("attributes"))


def _unfinished(store: ReadConnection, wanted: CallFilter, limit: int) -> list[Key]:
    found: dict[Key, int] = {}
    at_once = min(_AT_ONCE, limit)
    with closing(store.rows(queries.unfinished_keys(embedded=store.embedded), at_once)) as newest:
        for keys in _batches(newest, at_once):
            intents = store.rows(queries.intents_among(keys, wanted))
            times = {(row[0], row[1], row[2]): _number(row[3]) for row in intents}
            if wanted.attributes:
                calls = calls_of(store, [*times])
                times = {key: time for key, time in times.items() if key in calls and _is_wanted(calls[key], wanted)}
            found |= {key: times[key] for key in keys if key in times}
            if len(found) >= limit:
                break
    return sorted(found, key=lambda key: found[key], reverse=True)[:limit]


def _place(key: Key) -> tuple[int, int]:
    return _number(key[1]), _number(key[2])


def _number(value: object) -> int:
    """Return a number of the store: whoever can write its file can put anything there."""
    return value if isinstance(value, int) else 0


def calls_of(store: ReadConnection, keys: list[Key]) -> dict[Key, AuditedCall]:
    """Return the calls of such keys, each once and in their order."""
    calls: dict[Key, AuditedCall] = {}
    for batch in _batches(keys):
        calls |= _calls(store.rows(queries.records_of_calls(batch)))
    return {key: calls[key] for key in keys if key in calls}


def _calls(rows: Iterable[Any]) -> dict[Key, AuditedCall]:
    """Put records together that are of the same call; they come chain by chain, and in order."""
    told: dict[Key, dict[str, list[AuditRecord]]] = {}
    for run_id, iteration, batch_index, *record in rows:
        found = AuditRecord(*record)
        if found.kind in _KINDS:
            told.setdefault((run_id, iteration, batch_index), {}).setdefault(found.kind, []).append(found)
    return {key: _call(key, records) for key, records in told.items()}


def _call(key: Key, records: dict[str, list[AuditRecord]]) -> AuditedCall:
    told = {kind: _resolve_records(found) for kind, found in records.items()}
    intent, decision, outcome = (told[kind].effective if kind in told else None for kind in _KINDS)
    earlier = tuple(each for found in told.values() for each in found.earlier)
    conflicting = tuple(each for found in told.values() for each in found.conflicting)
    return AuditedCall(*key, intent, decision, outcome, earlier, conflicting)


class _ResolvedRecords(NamedTuple):
    """The records of a kind: the effective one, those whose place it took, and those that contradict it."""

    effective: AuditRecord
    earlier: list[AuditRecord]
    conflicting: list[AuditRecord]


def _resolve_records(records: list[AuditRecord]) -> _ResolvedRecords:
    """Sort out what the chains tell of a call: what the first of them says stands."""
    if len(records) == 1:  # as almost always
        return _ResolvedRecords(records[0], [], [])
    first, *others = (_resolve_chain(list(chain)) for _, chain in groupby(records, key=lambda each: each.chain_id))
    doubtful = [each for other in others for each in (other.effective, *other.conflicting)]
    first.conflicting.extend(each for each in doubtful if _said(each) != _said(first.effective))
    return first


def _resolve_chain(chain: list[AuditRecord]) -> _ResolvedRecords:
    first, *later = chain
    told = [first, *(each for each in later if _may_follow(first, each))]
    others = [each for each in later if not _may_follow(first, each)]
    earlier = [each for each, after in pairwise(told) if each.time != after.time or _said(each) != _said(after)]
    return _ResolvedRecords(told[-1], earlier, [each for each in others if _said(each) != _said(first)])


def _may_follow(first: AuditRecord, later: AuditRecord) -> bool:
    """Whether a chain has both records where advice runs a tool again."""
    if first.kind == "decision":
        return _decision_of(first) == _decision_of(later)
    return first.kind == "outcome"


def _decision_of(record: AuditRecord) -> object:
    return (parsed(record.body) or {}).get("decision")


_OF_THE_RECORD: Final = {"chain_id", "sequence", "previous", "time", "duration", "intent_late"}


def _said(record: AuditRecord) -> object:
    """Return what a record says about its call, but for when: two audits of one trail tell the same a little later."""
    fields = parsed(record.body)
    if fields is None:
        return record.body
    return {name: value for name, value in fields.items() if name not in _OF_THE_RECORD}


def _batches(rows: Iterable[Any], at_once: int = _AT_ONCE) -> Iterator[list[Key]]:
    keys = ((row[0], row[1], row[2]) for row in rows)
    while batch := list(islice(keys, at_once)):
        yield batch
