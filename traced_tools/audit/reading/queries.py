"""What is asked of a store, as statements that the indexes of `schema.INDEXES` answer, in SQLite and in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from sqlalchemy import Column, ColumnElement, FromClause, Select, and_, bindparam, exists, literal, or_, select
from sqlalchemy.sql.selectable import CompoundSelect

from traced_tools.audit.records import AUDIT_DECISIONS, AUDIT_OUTCOMES, RAN, REPEATED_DECISION, unix_nanoseconds
from traced_tools.audit.schema import RECORD_COLUMNS, RECORDS, searchable
from traced_tools.errors import ConfigurationError

Key = tuple[str, int, int]
"""What tells calls apart: run, pass of the loop, place in the batch."""

UNFINISHED: Final = "unfinished"
"""Stands for the outcome of a call that started, as far as the store knows, and never ended."""
STATES: Final = (*AUDIT_OUTCOMES, UNFINISHED)
DECISIONS: Final = (*AUDIT_DECISIONS, REPEATED_DECISION)
MOST: Final = (1 << 63) - 1
"""The largest number a store has."""
_KEY: Final = (RECORDS.c.run_id, RECORDS.c.iteration, RECORDS.c.batch_index)
_PLACE: Final = (RECORDS.c.chain_id, RECORDS.c.sequence)


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Which calls are asked for; None does not care.

    Raises:
        ConfigurationError: for a word that no call has, or a time without a zone.
    """

    tool: str | None = None
    outcome: str | None = None
    decision: str | None = None
    agent: str | None = None
    conversation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of("outcome", self.outcome, STATES)
        _one_of("decision", self.decision, DECISIONS)
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigurationError(f"{name} has no time zone; datetime.now(UTC) has")

    def on_record(self) -> Iterator[ColumnElement[bool]]:
        """Give the conditions on a record of such a call that every one of its records fulfils or not."""
        columns = {"tool": self.tool, "agent": self.agent, "conversation_id": self.conversation}
        yield from (RECORDS.c[name] == searchable(value) for name, value in columns.items() if value is not None)
        if self.since is not None:
            yield RECORDS.c.time >= storable_nanoseconds(self.since)
        if self.until is not None:
            yield RECORDS.c.time < storable_nanoseconds(self.until)

    def fits(self, attributes: object) -> bool:
        """Whether a record with such attributes is asked for; of a sequence, each item is one of its values."""
        found = attributes if isinstance(attributes, dict) else {}
        return all(_text(value) in _texts(found.get(key)) for key, value in self.attributes.items())


def _texts(value: object) -> list[str]:
    return [] if value is None else [_text(each) for each in (value if isinstance(value, list) else [value])]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def matching_keys(wanted: CallFilter) -> Select[Any]:
    """Return the statement that finds the keys of calls, newest first.

    Order and times are those of the decision or the outcome where one is asked for, else of the intent. Where both are,
    the walk is over what is rarer: decisions, unless these are what almost all are.
    """
    conditions = [*wanted.on_record()]
    if wanted.outcome is None and wanted.decision is None:
        conditions += [_kind("intent")]
    elif wanted.outcome is None or wanted.decision not in (None, "allowed"):
        conditions += [_kind("decision"), _has_decision(RECORDS, wanted.decision), *_ended(wanted.outcome)]
    else:
        conditions += [_kind("outcome"), RECORDS.c.outcome == wanted.outcome, *_decided(wanted.decision)]
    return select(*_KEY).where(*conditions).order_by(RECORDS.c.time.desc())


def unfinished_keys(*, embedded: bool) -> Select[Any] | CompoundSelect[Any]:
    """Return the statement that finds the keys of all unfinished calls, those of the newest runs first.

    Both sides of a difference come out of the index in the order of their keys, so that one walk over it answers where
    the store is a file, and goes no further than it is asked to. A server would sort them, and does without in two
    anti-joins.
    """
    begun = select(*_KEY).where(RECORDS.c.run_id.is_not(None), _kind("intent"))
    if not embedded:
        ends = (~exists().where(_same_call(other), each) for other, each in _ends())
        return begun.where(*ends).order_by(*(column.desc() for column in _KEY))
    ended = or_(_kind("outcome"), and_(_kind("decision"), RECORDS.c.decision.not_in(_literals(RAN))))
    both = begun.except_(select(*_KEY).where(RECORDS.c.run_id.is_not(None), ended))
    return both.order_by(*(column.desc() for column in both.selected_columns))


def _ends() -> Iterator[tuple[FromClause, ColumnElement[bool]]]:
    """Give the two ways a call is no longer unfinished, as other records of it."""
    outcomes, decisions = RECORDS.alias("outcomes"), RECORDS.alias("decisions")
    yield outcomes, _kind("outcome", outcomes)
    yield decisions, and_(_kind("decision", decisions), decisions.c.decision.not_in(_literals(RAN)))


def intents_among(keys: Sequence[Key], wanted: CallFilter) -> Select[Any]:
    """Return the statement that finds the intents among `keys`, and some others, that are asked for."""
    conditions = [_among(keys), _kind("intent"), *wanted.on_record(), *_decided(wanted.decision)]
    return select(*_KEY, RECORDS.c.time).where(*conditions)


def records_of_calls(keys: Sequence[Key]) -> Select[Any]:
    """Return the statement that finds the records of calls, and of some others, chain by chain and in order."""
    return select(*_KEY, *RECORD_COLUMNS).where(_among(keys)).order_by(*_PLACE)


def records_of_run(run_id: str) -> Select[Any]:
    """Return the statement that finds the records of a run, chain by chain and in order."""
    return select(*_KEY, *RECORD_COLUMNS).where(RECORDS.c.run_id == searchable(run_id)).order_by(*_PLACE)


def runs_beginning(prefix: str, most: int, *, by_bytes: bool) -> Select[Any]:
    """Return the statement that finds the ids of runs that begin so.

    Args:
        prefix: how they begin.
        most: how many are found at most.
        by_bytes: whether the store orders texts by their bytes, so that its index leads there.
    """
    run_id, first = RECORDS.c.run_id, searchable(prefix)
    begins = run_id.between(first, first + "\U0010ffff") if by_bytes else run_id.startswith(first, autoescape=True)
    return select(run_id).where(begins).distinct().limit(most)


def intents_called(call_id: str, run_id: str | None) -> Select[Any]:
    """Return the statement that finds the intents of a call id."""
    conditions = [_kind("intent"), RECORDS.c.call_id == searchable(call_id)]
    if run_id is not None:
        conditions.append(RECORDS.c.run_id == searchable(run_id))
    return select(*_KEY).where(*conditions).order_by(*_KEY)


def records_matching(wanted: CallFilter) -> Select[Any]:
    """Return the statement that finds records, chain by chain and in order: all of them when nothing is asked for."""
    conditions = [*wanted.on_record(), *_decided(wanted.decision)]
    if wanted.outcome == UNFINISHED:
        ended = or_(_OTHER.c.kind == "outcome", _OTHER.c.decision.not_in(RAN))
        conditions += [RECORDS.c.run_id.is_not(None), ~exists().where(_same_call(), ended)]
    else:
        conditions += _ended(wanted.outcome)
    return select(*RECORD_COLUMNS).where(*conditions).order_by(*_PLACE)


_OTHER: Final = RECORDS.alias("other")


def _same_call(other: FromClause = _OTHER) -> ColumnElement[bool]:
    names = ("run_id", "iteration", "batch_index")
    return and_(*(other.c[name] == RECORDS.c[name] for name in names))


def _decided(decision: str | None) -> list[ColumnElement[bool]]:
    return [] if decision is None else [_has_another("decision", _has_decision(_OTHER, decision))]


def _has_decision(of: FromClause, decision: str | None) -> ColumnElement[bool]:
    """Return the condition of a decision that has such a word; that of a repeated call is `limited` with a code."""
    if decision != REPEATED_DECISION:
        return of.c.decision == decision
    # a body is JSON without blanks, in which quotes within a text are escaped
    return and_(of.c.decision == "limited", of.c.body.contains('"reason_code":"repeated_call"', autoescape=True))


def _ended(outcome: str | None) -> list[ColumnElement[bool]]:
    return [] if outcome is None else [_has_another("outcome", _OTHER.c.outcome == outcome)]


def _has_another(kind: str, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that the call has such a record."""
    return exists().where(_same_call(), _OTHER.c.kind == literal(kind, literal_execute=True), condition)


def _kind(kind: str, of: FromClause = RECORDS) -> ColumnElement[bool]:
    """Return the condition in the words of the partial indexes, which must not be a parameter."""
    return of.c.kind == literal(kind, literal_execute=True)


def _literals(words: Sequence[str]) -> list[Any]:
    return [literal(word, literal_execute=True) for word in words]


def _among(keys: Sequence[Key]) -> ColumnElement[bool]:
    """Return the condition of being about one of so many calls, or one that has the run of one and the pass of another.

    A comparison of whole keys with many would not find the index in SQLite.
    """
    runs, iterations = {key[0] for key in keys}, {key[1] for key in keys}
    return and_(_one_of_these(RECORDS.c.run_id, runs), _one_of_these(RECORDS.c.iteration, iterations))


def _one_of_these(column: Column[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition of having one of the values; of other types than the column's, too, as a file may hold."""
    return column.in_(bindparam(None, [*values], column.type, unique=True, expanding=True))


def storable_nanoseconds(time: datetime) -> int:
    """Return a time in nanoseconds of Unix time, or the nearest that a store has."""
    return max(-MOST, min(unix_nanoseconds(time), MOST))


def _one_of(name: str, given: str | None, words: Sequence[str]) -> None:
    if given is not None and given not in words:
        raise ConfigurationError(f"{name} must be one of {', '.join(words)}")
