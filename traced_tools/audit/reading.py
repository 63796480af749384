"""What happened, read from a store: calls put together from their records, runs put together from their calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Final

from traced_tools.audit import queries
from traced_tools.audit.opening import OpenStore, StorePath, opened, parsed
from traced_tools.audit.queries import UNFINISHED, CallFilter, Key
from traced_tools.audit.records import RAN, AuditRecord
from traced_tools.errors import AuditError, ConfigurationError

DAMAGED: Final = "damaged"
"""The state of a call whose records cannot be read; `verify` names the first of them."""
_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class AuditedCall:
    """A call a model asked for: up to three records that belong together.

    Attributes:
        run_id: the run.
        iteration: the pass of the loop, from 1.
        batch_index: its place among the calls of the same answer, from 0.
        intent: what the model wanted, and why; None only where the record is gone.
        decision: who decided what.
        outcome: how it ended.
        conflicting: later records of a kind that say something else than the first of it, which stands above. No trail
            writes any; `verify` may tell where they come from.
    """

    run_id: str
    iteration: int
    batch_index: int
    intent: AuditRecord | None = None
    decision: AuditRecord | None = None
    outcome: AuditRecord | None = None
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
        """The records there are, but for conflicting ones."""
        return [each for each in (self.intent, self.decision, self.outcome) if each is not None]

    @property
    def when(self) -> datetime:
        """When the model asked for it, in UTC."""
        return self.records[0].when

    @property
    def state(self) -> str:
        """How it ended: the outcome, or the decision that refused it, or `unfinished`; `damaged` if unreadable."""
        if not all(each.has_time for each in self.records):
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
        return self.fields("decision").get("intent_late") is True

    def told(self, name: str) -> Any:
        """Return what its records say under a name that all of them have, such as `tool` or `trace_id`."""
        found = (self.fields(kind).get(name) for kind in ("intent", "decision", "outcome"))
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
        limit: int = 100,
    ) -> list[AuditedCall]:
        """Return the calls of which all that is given is true, newest first.

        Order and times are those of the decision or the outcome where one is asked for, else of the intent.

        Args:
            tool: the tool's name.
            outcome: `ok`, `error`, `timeout`, `cancelled`, `invalid_arguments`; `unfinished` for calls that were
                allowed, or not even decided about, and have no outcome. Of those the newest runs' come first.
            decision: such as `denied`.
            agent: the client's name.
            conversation: the conversation's id.
            since: not before; needs a time zone.
            until: before; needs a time zone.
            limit: the most calls that are returned.

        Raises:
            AuditError: when the store cannot be read.
            ConfigurationError: for a word that no call has, a time without a zone, a limit below 1.
        """
        if limit < 1:
            raise ConfigurationError(f"limit must be at least 1, not {limit}")
        wanted = CallFilter(tool, outcome, decision, agent, conversation, since, until)
        limit = min(limit, queries.MOST)
        with opened(self.store) as store:
            if outcome == UNFINISHED:
                return _put_together(store, _unfinished(store, wanted, limit))
            found = store.rows(queries.matching_keys(wanted).limit(limit))
            return _put_together(store, [(row[0], row[1], row[2]) for row in found])

    def run(self, run_id: str) -> AuditedRun:
        """Return a run by its id.

        Raises:
            AuditError: when the store cannot be read, or has no such run.
        """
        with opened(self.store) as store:
            calls = _calls(store.rows(queries.records_of_run(run_id)))
        if not calls:
            raise AuditError(f"the audit store has no run {run_id[:64]!a}")
        return AuditedRun(run_id, tuple(calls[key] for key in sorted(calls, key=lambda key: key[1:])))

    def run_ids(self, prefix: str, limit: int = 10) -> list[str]:
        """Return the ids of runs that begin with `prefix`, which must not be empty; at most `limit`.

        Raises:
            AuditError: when the store cannot be read.
        """
        if not prefix:
            raise ConfigurationError("a run's id must not be empty")
        with opened(self.store) as store:
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
    ) -> Iterator[AuditRecord]:
        """Give records chain by chain, each in order, a few at a time; without any argument all there are.

        `outcome` and `decision` are those of the call a record belongs to, times are the record's own; everything else
        is as in `calls`.

        Raises:
            AuditError: when the store cannot be read.
            ConfigurationError: for a word that no call has, or a time without a zone.
        """
        return self._records(CallFilter(tool, outcome, decision, agent, conversation, since, until))

    def _records(self, wanted: CallFilter) -> Iterator[AuditRecord]:
        with opened(self.store) as store, closing(store.rows(queries.records_matching(wanted))) as rows:
            for row in rows:
                yield AuditRecord(*row)

    def __repr__(self) -> str:
        return "AuditReader()"  # a URL may hold a password


def _unfinished(store: OpenStore, wanted: CallFilter, limit: int) -> list[Key]:
    found: list[tuple[int, Key]] = []
    at_once = min(_AT_ONCE, limit)
    with closing(store.rows(queries.unfinished_keys(embedded=store.embedded), at_once)) as newest:
        for keys in _batches(newest, at_once):
            intents = store.rows(queries.intents_among(keys, wanted))
            newly = ((_number(row[3]), (row[0], row[1], row[2])) for row in intents)
            found += [each for each in newly if each[1] in keys]
            if len(found) >= limit:
                break
    return [key for _, key in sorted(found, reverse=True)[:limit]]


def _number(time: object) -> int:
    return time if isinstance(time, int) else 0


def _put_together(store: OpenStore, keys: list[Key]) -> list[AuditedCall]:
    """Return the calls of such keys, in their order."""
    calls: dict[Key, AuditedCall] = {}
    for batch in _batches(keys):
        calls |= _calls(store.rows(queries.records_of_calls(batch)))
    return [calls[key] for key in keys if key in calls]


def _calls(rows: Iterable[Any]) -> dict[Key, AuditedCall]:
    """Put records together that are of the same call; they come chain by chain, and in order."""
    told: dict[Key, dict[str, list[AuditRecord]]] = {}
    for run_id, iteration, batch_index, *record in rows:
        found = AuditRecord(*record)
        if found.kind in ("intent", "decision", "outcome"):
            told.setdefault((run_id, iteration, batch_index), {}).setdefault(found.kind, []).append(found)
    return {key: _call(key, records) for key, records in told.items()}


def _call(key: Key, records: dict[str, list[AuditRecord]]) -> AuditedCall:
    """Return a call: of each kind the first record, and those after it that say something else."""
    first = {kind: found[0] for kind, found in records.items()}
    others = (each for kind, found in records.items() for each in found[1:] if _said(each) != _said(first[kind]))
    return AuditedCall(*key, first.get("intent"), first.get("decision"), first.get("outcome"), tuple(others))


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
