"""The queries of a store, which SQLite and PostgreSQL answer with the indexes of `audit/indexes.py`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, TypedDict

from sqlalchemy import Column, ColumnElement, FromClause, Select, and_, bindparam, exists, func, literal, or_, select
from sqlalchemy.sql.selectable import CompoundSelect

from traced_tools.audit.reading.principals import PrincipalFilter
from traced_tools.audit.reading.read_connection import StorePath
from traced_tools.audit.records import AUDIT_DECISIONS, AUDIT_OUTCOMES, RAN, REPEATED_DECISION, unix_nanoseconds
from traced_tools.audit.schema import RECORD_COLUMNS, RECORDS, searchable
from traced_tools.errors import ConfigurationError

Key = tuple[str, int, int]
"""Identifies a call: run id, iteration, position in the model's answer."""

UNFINISHED: Final = "unfinished"
"""The state of a call that was not refused and has no outcome."""
STATES: Final = (*AUDIT_OUTCOMES, UNFINISHED)
DECISIONS: Final = (*AUDIT_DECISIONS, REPEATED_DECISION)
MOST: Final = (1 << 63) - 1
"""The largest integer that a store holds."""
_DIGEST: Final = re.compile("[0-9a-f]{16}")
_KEY: Final = (RECORDS.c.run_id, RECORDS.c.iteration, RECORDS.c.batch_index)
_PLACE: Final = (RECORDS.c.chain_id, RECORDS.c.sequence)


class CallSelection(TypedDict, total=False):
    """The keyword arguments that select calls. A call must meet all of them; None is met by every call.

    Args:
        tool: the tool's name.
        outcome: the last outcome of a call: `ok`, `error`, `timeout`, `cancelled` or `invalid_arguments`.
            `unfinished` selects calls that were not refused and have no outcome; those of the newest runs come first.
        decision: such as `denied`. `repeated` selects `limited` calls with the reason code `repeated_call`.
        agent: the client's name.
        conversation: the conversation's id.
        since: inclusive start time, with a time zone.
        until: exclusive end time, with a time zone.
        attributes: attributes of the run with their values, as values or as text (`3`, `true`). A sequence matches if
            one of its items does. No index covers them: calls are read one by one, newest first.
        call_id: the id of the call, which a paused run shares with the run that resumes it. No index covers it.
        principal: on whose behalf the run is, by name, or by a pseudonym of the form `pseudonym:…`. A name needs the
            key of the trail (`TRACED_TOOLS_AUDIT_KEY`, or the key file beside the store) or the one of the application
            for pseudonyms. Calls are read one by one, as for attributes.
        policy_digest: the `digest` of the policy that decided: 16 hexadecimal digits. No index covers it.
    """

    tool: str | None
    outcome: str | None
    decision: str | None
    agent: str | None
    conversation: str | None
    since: datetime | None
    until: datetime | None
    attributes: Mapping[str, object] | None
    call_id: str | None
    principal: str | None
    policy_digest: str | None


@dataclass(frozen=True, slots=True)
class CallFilter:
    """A selection of calls, checked and ready for the queries; see `CallSelection`.

    Raises:
        ConfigurationError: for an unknown outcome or decision, or a time without a zone.
    """

    tool: str | None = None
    outcome: str | None = None
    decision: str | None = None
    agent: str | None = None
    conversation: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    attributes: Mapping[str, object] = field(default_factory=dict)
    call_id: str | None = None
    principal: PrincipalFilter | None = None
    policy_digest: str | None = None

    @classmethod
    def of(cls, selection: CallSelection, store: StorePath, key: bytes | str | None = None) -> CallFilter:
        """Return the filter for a selection among the calls of a store.

        Args:
            selection: the selection.
            store: a path, or an SQLAlchemy URL.
            key: the key of the trail, for the name of a principal; see `PrincipalFilter`.

        Raises:
            ConfigurationError: for a value that no call can have, or if there is no key for the name of a principal.
        """
        principal = selection.get("principal")
        fields: dict[str, Any] = {**selection, "attributes": selection.get("attributes") or {}}
        return cls(**fields | {"principal": None if principal is None else PrincipalFilter(principal, store, key)})

    def __post_init__(self) -> None:
        if self.policy_digest is not None and not _DIGEST.fullmatch(self.policy_digest):
            raise ConfigurationError("the digest of a policy has 16 hexadecimal digits, as `policy check` prints it")
        _check_value("outcome", self.outcome, STATES)
        _check_value("decision", self.decision, DECISIONS)
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigurationError(
                    f"{name} has no time zone: pass a datetime with one, such as datetime.now(UTC)"
                )

    def conditions(self) -> Iterator[ColumnElement[bool]]:
        """Yield the conditions that either all records of a call meet or none."""
        columns = {
            "tool": self.tool,
            "agent": self.agent,
            "conversation_id": self.conversation,
            "call_id": self.call_id,
        }
        yield from (RECORDS.c[name] == searchable(value) for name, value in columns.items() if value is not None)
        if self.since is not None:
            yield RECORDS.c.time >= storable_nanoseconds(self.since)
        if self.until is not None:
            yield RECORDS.c.time < storable_nanoseconds(self.until)
        if self.policy_digest is not None:  # the fields of a body are sorted, so `previous` follows only its own digest
            pair = f'"policy_digest":"{self.policy_digest}","previous":"'
            yield _has_another("decision", _OTHER.c.body.contains(pair, autoescape=True))

    @property
    def reads_calls(self) -> bool:
        """Whether no index covers the filter, so that calls are read one by one."""
        return bool(self.attributes) or self.principal is not None

    def matches(self, attributes: object) -> bool:
        """Whether a record with these attributes matches. A sequence matches if one of its items does."""
        recorded = attributes if isinstance(attributes, dict) else {}
        return all(_text(value) in _texts(recorded.get(key)) for key, value in self.attributes.items())


def _texts(value: object) -> list[str]:
    return [] if value is None else [_text(item) for item in (value if isinstance(value, list) else [value])]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def matching_keys(call_filter: CallFilter) -> Select[Any]:
    """Return the query for the keys of matching calls, newest first.

    Order and times are those of the decision or the outcome if the filter has one, else of the intent. If it has both,
    the query scans the rarer one: the decisions, except for `allowed`, which most calls have.
    """
    conditions = [*call_filter.conditions()]
    if call_filter.outcome is None and call_filter.decision is None:
        conditions += [_kind("intent")]
    elif call_filter.outcome is None or call_filter.decision not in (None, "allowed"):
        conditions += [
            _kind("decision"),
            _has_decision(RECORDS, call_filter.decision),
            *_with_outcome(call_filter.outcome),
        ]
    else:
        conditions += [
            _kind("outcome"),
            RECORDS.c.outcome == call_filter.outcome,
            *_with_decision(call_filter.decision),
        ]
    return select(*_KEY).where(*conditions).order_by(RECORDS.c.time.desc())


def count_of_calls(call_filter: CallFilter) -> Select[Any]:
    """Return the query for the number of calls whose keys `matching_keys` selects."""
    keys = matching_keys(call_filter).order_by(None).distinct()
    if call_filter == CallFilter():
        keys = keys.where(RECORDS.c.run_id.is_not(None))  # so that SQLite reads an index in the order of the keys
    return select(func.count()).select_from(keys.subquery())


def intents_since(time: int, intents: Sequence[Mapping[str, Any]]) -> Select[Any]:
    """Return the query for the intents after a time that have the call id, tool and agent of some of `intents`."""
    shared_values = (
        RECORDS.c[name].in_({searchable(value) for intent in intents if isinstance(value := intent.get(name), str)})
        for name in ("call_id", "tool", "agent")
    )
    return select(*_KEY, *RECORD_COLUMNS).where(_kind("intent"), RECORDS.c.time > time, *shared_values)


def unfinished_keys(*, embedded: bool) -> Select[Any] | CompoundSelect[Any]:
    """Return the query for the keys of all unfinished calls, newest runs first.

    In SQLite it is an EXCEPT. Both sides come from the index in key order, so SQLite merges them without sorting and
    stops when enough rows are fetched. PostgreSQL would sort both sides, so there the query has two anti-joins.
    """
    with_intent = select(*_KEY).where(RECORDS.c.run_id.is_not(None), _kind("intent"))
    if not embedded:
        ends = (~exists().where(_same_call(other_record), ending) for other_record, ending in _ends())
        return with_intent.where(*ends).order_by(*(column.desc() for column in _KEY))
    is_end = or_(_kind("outcome"), and_(_kind("decision"), RECORDS.c.decision.not_in(_literals(RAN))))
    unfinished = with_intent.except_(select(*_KEY).where(RECORDS.c.run_id.is_not(None), is_end))
    return unfinished.order_by(*(column.desc() for column in unfinished.selected_columns))


def _ends() -> Iterator[tuple[FromClause, ColumnElement[bool]]]:
    """Yield the two kinds of records that finish a call: the table alias and the condition."""
    outcomes, decisions = RECORDS.alias("outcomes"), RECORDS.alias("decisions")
    yield outcomes, _kind("outcome", outcomes)
    yield decisions, and_(_kind("decision", decisions), decisions.c.decision.not_in(_literals(RAN)))


def intents_matching(call_filter: CallFilter) -> Select[Any]:
    """Return the query for the bodies of the intents of calls that may have matching records."""
    conditions = replace(call_filter, since=None).conditions()  # an intent precedes the other records of its call
    return select(RECORDS.c.body).where(_kind("intent"), *conditions)


def intents_among(keys: Sequence[Key], call_filter: CallFilter) -> Select[Any]:
    """Return the query for the matching intents of the calls `keys`, and of some other calls; see `_among`."""
    conditions = [_among(keys), _kind("intent"), *call_filter.conditions(), *_with_decision(call_filter.decision)]
    return select(*_KEY, RECORDS.c.time).where(*conditions)


def records_of_calls(keys: Sequence[Key]) -> Select[Any]:
    """Return the query for the records of the calls `keys`, and of some others, by chain and sequence number."""
    return select(*_KEY, *RECORD_COLUMNS).where(_among(keys)).order_by(*_PLACE)


def records_of_run(run_id: str) -> Select[Any]:
    """Return the query for the records of a run, by chain and sequence number."""
    return select(*_KEY, *RECORD_COLUMNS).where(RECORDS.c.run_id == searchable(run_id)).order_by(*_PLACE)


def runs_beginning(prefix: str, most: int, *, by_bytes: bool) -> Select[Any]:
    """Return the query for the ids of runs that start with a prefix.

    Args:
        prefix: the beginning of the ids.
        most: the maximum number of ids.
        by_bytes: whether the store orders text by its bytes, so that a range of the index finds the prefix.
    """
    run_id, first = RECORDS.c.run_id, searchable(prefix)
    begins = run_id.between(first, first + "\U0010ffff") if by_bytes else run_id.startswith(first, autoescape=True)
    return select(run_id).where(begins).distinct().limit(most)


def intents_called(call_id: str, run_id: str | None) -> Select[Any]:
    """Return the query for the keys of the calls with this id."""
    conditions = [_kind("intent"), RECORDS.c.call_id == searchable(call_id)]
    if run_id is not None:
        conditions.append(RECORDS.c.run_id == searchable(run_id))
    return select(*_KEY).where(*conditions).order_by(*_KEY)


def records_matching(call_filter: CallFilter) -> Select[Any]:
    """Return the query for matching records, by chain and sequence number."""
    conditions = [*call_filter.conditions(), *_with_decision(call_filter.decision)]
    if call_filter.outcome == UNFINISHED:
        is_end = or_(_OTHER.c.kind == "outcome", _OTHER.c.decision.not_in(RAN))
        of_calls = RECORDS.c.run_id.is_not(None), RECORDS.c.batch_index.is_not(None)
        conditions += [*of_calls, ~exists().where(_same_call(), is_end)]
    else:
        conditions += _with_outcome(call_filter.outcome)
    return select(*RECORD_COLUMNS).where(*conditions).order_by(*_PLACE)


_OTHER: Final = RECORDS.alias("other")


def _same_call(table: FromClause = _OTHER) -> ColumnElement[bool]:
    names = ("run_id", "iteration", "batch_index")
    return and_(*(table.c[name] == RECORDS.c[name] for name in names))


def _with_decision(decision: str | None) -> list[ColumnElement[bool]]:
    return [] if decision is None else [_has_another("decision", _has_decision(_OTHER, decision))]


def _has_decision(table: FromClause, decision: str | None) -> ColumnElement[bool]:
    """Return the condition for a decision; `repeated` is recorded as `limited` with the code `repeated_call`."""
    if decision != REPEATED_DECISION:
        return table.c.decision == decision
    # a body is JSON without blanks, and escapes quotes within strings, so only the field itself can match
    return and_(table.c.decision == "limited", table.c.body.contains('"reason_code":"repeated_call"', autoescape=True))


def _with_outcome(outcome: str | None) -> list[ColumnElement[bool]]:
    return [] if outcome is None else [_has_another("outcome", _OTHER.c.outcome == outcome)]


def _has_another(kind: str, condition: ColumnElement[bool]) -> ColumnElement[bool]:
    """Return the condition that the call has a record of this kind that meets the condition."""
    return exists().where(_same_call(), _OTHER.c.kind == literal(kind, literal_execute=True), condition)


def _kind(kind: str, table: FromClause = RECORDS) -> ColumnElement[bool]:
    """Return the condition for a kind as a literal: with a parameter, the partial indexes would not apply."""
    return table.c.kind == literal(kind, literal_execute=True)


def _literals(values: Sequence[str]) -> list[Any]:
    return [literal(value, literal_execute=True) for value in values]


def _among(keys: Sequence[Key]) -> ColumnElement[bool]:
    """Return a condition that the calls `keys` meet, and calls with the run id of one key and the iteration of another.

    SQLite would not use the index for a comparison with whole keys.
    """
    runs, iterations = {key[0] for key in keys}, {key[1] for key in keys}
    return and_(_is_one_of(RECORDS.c.run_id, runs), _is_one_of(RECORDS.c.iteration, iterations))


def _is_one_of(column: Column[Any], values: Iterable[Any]) -> ColumnElement[bool]:
    """Return the condition that a column has one of the values, which an SQLite file may hold in any type."""
    return column.in_(bindparam(None, [*values], column.type, unique=True, expanding=True))


def storable_nanoseconds(time: datetime) -> int:
    """Return a time in nanoseconds of Unix time, limited to the integers that a store holds."""
    return max(-MOST, min(unix_nanoseconds(time), MOST))


def _check_value(name: str, value: str | None, values: Sequence[str]) -> None:
    if value is not None and value not in values:
        raise ConfigurationError(f"{name} must be one of {', '.join(values)}")
