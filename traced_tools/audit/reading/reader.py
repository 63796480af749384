"""Reads calls and runs from a store: a call is built from its records, a run from its calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice, pairwise
from typing import Any, Final, NamedTuple, Unpack

from traced_tools.audit.reading import queries
from traced_tools.audit.reading.principals import PrincipalFilter
from traced_tools.audit.reading.queries import UNFINISHED, CallFilter, CallSelection, Key
from traced_tools.audit.reading.read_connection import ReadConnection, StorePath, open_for_reading, parsed
from traced_tools.audit.records import PRINCIPAL, RAN, REQUESTED_ARGUMENTS, AuditRecord, RecordKind, person_of
from traced_tools.errors import AuditError, ConfigurationError

DAMAGED: Final = "damaged"
"""The state of a call whose records cannot be read; `verify` names the first such record."""
_BATCH: Final = 200
"""Calls that are read with one query."""
_KINDS: Final = ("intent", "decision", "outcome")


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """A call that a model requested, with all its records.

    If an advisor reruns the tool, the call has an outcome for each time the tool finished, and another decision for
    each rerun with other arguments. The last of each kind counts.

    Attributes:
        run_id: the run.
        iteration: the iteration of the loop, from 1.
        batch_index: the position of the call in the model's answer, from 0.
        intent: what the model requested, and why. None only if the store has no such record.
        decision: who decided what. The last decision that agrees with the first one.
        outcome: how the call ended, the last time.
        earlier: decisions and outcomes of the times before, each kind in order.
        conflicting: records that contradict the others: an intent that differs from the first one, a decision with
            another value than the first one, and records of another chain that differ. `verify` may find their origin.
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
        """Return the fields of the record of a kind; no fields if there is no such record or it cannot be read.

        Args:
            kind: `intent`, `decision` or `outcome`.
        """
        if kind not in self._fields:
            record: AuditRecord | None = getattr(self, kind)
            self._fields[kind] = (parsed(record.body) if record is not None else None) or {}
        return self._fields[kind]

    @property
    def records(self) -> list[AuditRecord]:
        """All records except conflicting ones, grouped by kind and in order."""
        return [record for kind in _KINDS for record in self.of_kind(kind)]

    def of_kind(self, kind: str) -> list[AuditRecord]:
        """Return the records of a kind in order, except conflicting ones. The last one counts.

        Args:
            kind: `intent`, `decision` or `outcome`.
        """
        effective: AuditRecord | None = getattr(self, kind)
        earlier = [record for record in self.earlier if record.kind == kind]
        return earlier if effective is None else [*earlier, effective]

    @property
    def when(self) -> datetime:
        """When the model requested the call, in UTC."""
        return self.records[0].when

    @property
    def state(self) -> str:
        """How the call ended: the outcome, else the decision that refused it, else `unfinished`.

        `damaged` if its records cannot be read.
        """
        numbers = (self.iteration, self.batch_index, *(record.time for record in self.records))
        if not all(isinstance(number, int) for number in numbers):
            return DAMAGED
        if self.outcome is not None:
            return _text_or_damaged(self.fields("outcome").get("outcome"))
        if self.decision is not None:
            decision = _text_or_damaged(self.fields("decision").get("decision"))
            return UNFINISHED if decision in RAN else decision
        return UNFINISHED

    @property
    def principal(self) -> str | None:
        """On whose behalf the call is: the name if it is stored, else its pseudonym; None if none is recorded."""
        return person_of(self.fields("intent"), PRINCIPAL)

    @property
    def actors(self) -> tuple[str, ...]:
        """Which agents, tools and MCP clients stand between the principal and the run, the outermost first."""
        actors = self.fields("intent").get("actors")
        return tuple(map(str, actors)) if isinstance(actors, list) else ()

    @property
    def is_late(self) -> bool:
        """Whether the tool started before its intent was recorded, as `on_failure="warn"` allows in an outage."""
        return any((parsed(record.body) or {}).get("intent_late") is True for record in self.of_kind("decision"))

    def shared_field(self, name: str) -> Any:
        """Return a field that all records of the call have, such as `tool` or `trace_id`; None if no record has it.

        Args:
            name: the field. The first of intent, decision and outcome that has it counts.
        """
        values = (self.fields(kind).get(name) for kind in _KINDS)
        return next((value for value in values if value is not None), None)


def _text_or_damaged(value: object) -> str:
    return value if isinstance(value, str) else DAMAGED


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """A run with its calls.

    Attributes:
        run_id: the run's id.
        calls: the calls that models requested, by iteration and position.
        compactions: the records of the compactions of its conversation, by time. They belong to no call.
        tool_changes: the records of MCP servers whose tools differ from the pinned ones, by time.
    """

    run_id: str
    calls: tuple[AuditedCall, ...]
    compactions: tuple[AuditRecord, ...] = ()
    tool_changes: tuple[AuditRecord, ...] = ()

    def shared_field(self, name: str) -> Any:
        """Return a field that all records of the run have, such as `agent`; None if no record has it.

        Args:
            name: the field. The first call that has it counts, else the first other record.
        """
        return next((value for value in self._values(name) if value is not None), None)

    @property
    def principal(self) -> str | None:
        """On whose behalf the run is: the name if it is stored, else its pseudonym; None if none is recorded."""
        return next((call.principal for call in self.calls if call.principal is not None), None)

    @property
    def actors(self) -> tuple[str, ...]:
        """Which agents, tools and MCP clients stand between the principal and the run, the outermost first."""
        return next((call.actors for call in self.calls if call.actors), ())

    def _values(self, name: str) -> Iterator[Any]:
        yield from (call.shared_field(name) for call in self.calls)
        yield from ((parsed(record.body) or {}).get(name) for record in (*self.compactions, *self.tool_changes))


class AuditReader:
    """Reads a store while others write to it. Creates and changes nothing.

    Every method opens its own connection, so a reader can be kept and used from any thread.

    Args:
        store: a path, or an SQLAlchemy URL such as `postgresql+psycopg://auditor@host/database`.
    """

    def __init__(self, store: StorePath) -> None:
        self.store: Final = store

    def calls(self, *, limit: int | None = None, **selection: Unpack[CallSelection]) -> list[AuditedCall]:
        """Return the calls that meet a selection, newest first and without duplicates; all calls without one.

        Order and times are those of the decision or the outcome if you select by one, else of the intent.

        Args:
            limit: the maximum number of calls; None for all.
            **selection: which calls, see `CallSelection`.

        Raises:
            AuditError: if the store cannot be read, or a call was recorded with another key than a principal needs.
            ConfigurationError: for an unknown outcome or decision, an invalid digest, a time without a zone, or a limit
                below 1, or if there is no key for the name of a principal.
        """
        return find_calls(self, CallFilter.of(selection, self.store), limit)

    def run(self, run_id: str) -> AuditedRun:
        """Return a run by its id.

        Raises:
            AuditError: if the store cannot be read, or has no such run.
        """
        with self._open() as store:
            rows = [*store.rows(queries.records_of_run(run_id))]
        calls, compactions, changes = _calls(rows), _of_run(rows, "compaction"), _of_run(rows, "tools_changed")
        if not (calls or compactions or changes):
            raise AuditError(f"the audit store has no run {run_id[:64]!a}")
        return AuditedRun(run_id, tuple(calls[key] for key in sorted(calls, key=_position)), compactions, changes)

    def run_ids(self, prefix: str, limit: int | None = None) -> list[str]:
        """Return the ids of runs, sorted, that begin with `prefix`; of at most `limit` runs if it is given.

        Raises:
            AuditError: if the store cannot be read.
            ConfigurationError: for an empty prefix.
        """
        if not prefix:
            raise ConfigurationError("the run id is empty: pass a run id or the beginning of one")
        with self._open() as store:
            rows = store.rows(queries.runs_beginning(prefix, _most(limit), by_bytes=store.embedded))
            return sorted(row[0] for row in rows)

    def records(self, **selection: Unpack[CallSelection]) -> Iterator[AuditRecord]:
        """Yield the records that meet a selection, chain by chain and in order; all records without one.

        `outcome` and `decision` match if any record of the same call has that value, even one of an earlier time.
        `principal` matches all records of a call whose intent names the principal.
        A compaction belongs to no call, so it matches none of these, nor a tool.
        `since` and `until` apply to the record's own time. The others work as in `calls`.

        Args:
            **selection: which records, see `CallSelection`.

        Raises:
            AuditError, ConfigurationError: as for `calls`.
        """
        return find_records(self, CallFilter.of(selection, self.store))

    def _open(self) -> AbstractContextManager[ReadConnection]:
        return open_for_reading(self.store)

    def __repr__(self) -> str:
        return "AuditReader()"  # a URL may hold a password


def find_calls(reader: AuditReader, call_filter: CallFilter, limit: int | None = None) -> list[AuditedCall]:
    """Do what `AuditReader.calls` does, for a filter that was already built."""
    with reader._open() as store:
        if call_filter.outcome == UNFINISHED:
            return [*calls_of(store, _find_unfinished(store, call_filter, _most(limit))).values()]
        return _find_matching(store, call_filter, _most(limit))


def count_calls(reader: AuditReader, call_filter: CallFilter) -> int | None:
    """Return how many calls match a filter; None if that takes reading each of them."""
    if call_filter.outcome is not None or call_filter.reads_calls:
        return None
    with reader._open() as store:
        ((count,),) = store.rows(queries.count_of_calls(call_filter))
        return _number(count)


def find_waiting(reader: AuditReader, calls: Iterable[AuditedCall]) -> list[AuditedCall]:
    """Return those of `calls` that wait for a decision.

    A call that was `pending` when its run ended stays so, because a run that resumes has an id of its own. It waits
    unless a later run has an intent with the same id, agent, tool, conversation and arguments.
    """
    pending = [call for call in calls if call.state == "pending" and call.intent is not None]
    waiting: list[AuditedCall] = []
    if not pending:
        return waiting
    with reader._open() as store:
        for start in range(0, len(pending), _BATCH):
            batch = pending[start : start + _BATCH]
            first = min(_number(call.records[0].time) for call in batch)
            rows = store.rows(queries.intents_since(first, [call.fields("intent") for call in batch]))
            later = _calls(rows).values()
            waiting += (
                waiting_call for waiting_call in batch if not any(_takes_up(call, waiting_call) for call in later)
            )
    return waiting


def _takes_up(later: AuditedCall, call: AuditedCall) -> bool:
    """Return whether a later run has taken up a pending call: it resumes the call, or records why it never runs."""
    if later.run_id == call.run_id or later.when <= call.when:
        return False
    intent, earlier = later.fields("intent"), call.fields("intent")
    is_same = all(intent.get(name) == earlier.get(name) for name in ("call_id", "agent", "tool", "conversation_id"))
    return is_same and not _digests(intent).isdisjoint(_digests(earlier))


def _digests(intent: Mapping[str, Any]) -> set[str]:
    contents = (intent.get(name) for name in ("arguments", REQUESTED_ARGUMENTS))
    return {str(content.get("digest")) for content in contents if isinstance(content, dict)}


def _most(limit: int | None) -> int:
    if limit is not None and limit < 1:
        raise ConfigurationError(f"limit must be at least 1, not {limit}")
    return queries.MOST if limit is None else min(limit, queries.MOST)


def find_records(reader: AuditReader, call_filter: CallFilter) -> Iterator[AuditRecord]:
    """Do what `AuditReader.records` does, for a filter that was already built."""
    with reader._open() as store:
        calls = None if call_filter.principal is None else _calls_for(store, call_filter.principal, call_filter)
        with closing(store.rows(queries.records_matching(call_filter))) as rows:
            for row in rows:
                record = AuditRecord(*row)
                fields = parsed(record.body) if call_filter.reads_calls else None
                is_wanted = fields is None or (  # an unreadable record may be a match
                    call_filter.matches(fields.get("attributes")) and (calls is None or _get_key(fields) in calls)
                )
                if is_wanted:
                    yield record


def _calls_for(store: ReadConnection, principal: PrincipalFilter, call_filter: CallFilter) -> set[tuple[Any, ...]]:
    """Return which calls are on behalf of a principal: only their intents say so."""
    # Closed here, because a wrong key raises in the middle of the rows.
    with closing(store.rows(queries.intents_matching(call_filter))) as rows:
        intents = (parsed(body) or {} for (body,) in rows)
        return {_get_key(intent) for intent in intents if principal.matches(intent)}


def _get_key(fields: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(str(fields.get(name)) for name in ("run_id", "iteration", "batch_index"))


def _find_matching(store: ReadConnection, call_filter: CallFilter, limit: int) -> list[AuditedCall]:
    """Return the newest matching calls. A call whose last outcome is another one does not match."""
    matches: dict[Key, AuditedCall] = {}
    size = min(_BATCH, limit)
    with closing(store.rows(queries.matching_keys(call_filter), size)) as newest:
        for keys in _batches(newest, size):
            matches |= {key: call for key, call in calls_of(store, keys).items() if _passes(call, call_filter)}
            if len(matches) >= limit:
                break
    return [*matches.values()][:limit]


def _passes(call: AuditedCall, call_filter: CallFilter) -> bool:
    """Whether a call that the other filters select matches by outcome, principal and attributes.

    A damaged call may match.
    """
    if call.state == DAMAGED:
        return True
    if call_filter.outcome not in (None, call.state):
        return False
    if call_filter.principal is not None and not call_filter.principal.matches(call.fields("intent")):
        return False
    return not call_filter.attributes or call_filter.matches(call.shared_field("attributes"))


def _find_unfinished(store: ReadConnection, call_filter: CallFilter, limit: int) -> list[Key]:
    times_of_matches: dict[Key, int] = {}
    size = min(_BATCH, limit)
    with closing(store.rows(queries.unfinished_keys(embedded=store.embedded), size)) as newest:
        for keys in _batches(newest, size):
            intents = store.rows(queries.intents_among(keys, call_filter))
            times = {(row[0], row[1], row[2]): _number(row[3]) for row in intents}
            if call_filter.reads_calls:
                calls = calls_of(store, [*times])
                times = {key: time for key, time in times.items() if key in calls and _passes(calls[key], call_filter)}
            times_of_matches |= {key: times[key] for key in keys if key in times}
            if len(times_of_matches) >= limit:
                break
    return sorted(times_of_matches, key=lambda key: times_of_matches[key], reverse=True)[:limit]


def _position(key: Key) -> tuple[int, int]:
    return _number(key[1]), _number(key[2])


def _number(value: object) -> int:
    """Return an integer column's value, or 0: anyone who can write an SQLite file can store any type there."""
    return value if isinstance(value, int) else 0


def calls_of(store: ReadConnection, keys: list[Key]) -> dict[Key, AuditedCall]:
    """Return the calls with these keys, in the order of the keys and without duplicates."""
    calls: dict[Key, AuditedCall] = {}
    for batch in _batches(keys):
        calls |= _calls(store.rows(queries.records_of_calls(batch)))
    return {key: calls[key] for key in keys if key in calls}


def _calls(rows: Iterable[Any]) -> dict[Key, AuditedCall]:
    """Group rows by call and build the calls. The rows must come chain by chain and in order."""
    by_call: dict[Key, dict[str, list[AuditRecord]]] = {}
    for run_id, iteration, batch_index, *record in rows:
        audit_record = AuditRecord(*record)
        if audit_record.kind in _KINDS:
            by_call.setdefault((run_id, iteration, batch_index), {}).setdefault(audit_record.kind, []).append(
                audit_record
            )
    return {key: _call(key, records) for key, records in by_call.items()}


def _of_run(rows: Iterable[Any], kind: RecordKind) -> tuple[AuditRecord, ...]:
    """Return the records of a kind that belongs to no call, by time. Two audit advisors record the same fact twice."""
    distinct: dict[str, AuditRecord] = {}
    for _, _, _, *values in rows:
        if (record := AuditRecord(*values)).kind == kind:
            distinct.setdefault(repr(_statement(record)), record)
    return tuple(sorted(distinct.values(), key=lambda entry: _number(entry.time)))


def _call(key: Key, records: dict[str, list[AuditRecord]]) -> AuditedCall:
    resolved = {kind: _resolve_records(same_kind) for kind, same_kind in records.items()}
    intent, decision, outcome = (resolved[kind].effective if kind in resolved else None for kind in _KINDS)
    earlier = tuple(record for resolution in resolved.values() for record in resolution.earlier)
    conflicting = tuple(record for resolution in resolved.values() for record in resolution.conflicting)
    return AuditedCall(*key, intent, decision, outcome, earlier, conflicting)


class _ResolvedRecords(NamedTuple):
    """The records of one kind of a call: the one that counts, those it replaced, and those that contradict it."""

    effective: AuditRecord
    earlier: list[AuditRecord]
    conflicting: list[AuditRecord]


def _resolve_records(records: list[AuditRecord]) -> _ResolvedRecords:
    """Find the record of a kind that counts, if several chains have some: the first chain's."""
    if len(records) == 1:  # the usual case
        return _ResolvedRecords(records[0], [], [])
    first, *others = (_resolve_chain(list(chain)) for _, chain in groupby(records, key=lambda record: record.chain_id))
    from_others = [record for resolution in others for record in (resolution.effective, *resolution.conflicting)]
    first.conflicting.extend(record for record in from_others if _statement(record) != _statement(first.effective))
    return first


def _resolve_chain(chain: list[AuditRecord]) -> _ResolvedRecords:
    first, *later = chain
    repeats = [first, *(record for record in later if _may_follow(first, record))]
    others = [record for record in later if not _may_follow(first, record)]
    pairs = pairwise(repeats)
    earlier = [
        record for record, after in pairs if record.time != after.time or _statement(record) != _statement(after)
    ]
    conflicting = [record for record in others if _statement(record) != _statement(first)]
    return _ResolvedRecords(repeats[-1], earlier, conflicting)


def _may_follow(first: AuditRecord, later: AuditRecord) -> bool:
    """Whether a chain has both records if an advisor reruns the tool."""
    if first.kind == "decision":
        return _get_decision(first) == _get_decision(later)
    return first.kind == "outcome"


def _get_decision(record: AuditRecord) -> object:
    return (parsed(record.body) or {}).get("decision")


_NOT_ABOUT_THE_CALL: Final = {"chain_id", "sequence", "previous", "time", "duration", "intent_late"}


def _statement(record: AuditRecord) -> object:
    """Return what a record says about its call or run, without times: two audit advisors record the same call twice."""
    fields = parsed(record.body)
    if fields is None:
        return record.body
    return {name: value for name, value in fields.items() if name not in _NOT_ABOUT_THE_CALL}


def _batches(rows: Iterable[Any], size: int = _BATCH) -> Iterator[list[Key]]:
    keys = ((row[0], row[1], row[2]) for row in rows)
    while batch := list(islice(keys, size)):
        yield batch
