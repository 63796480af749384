"""The statements of a pending store: which calls can be decided, which runs can resume, and what changes both.

SQLAlchemy compiles each of them once, because they are constants: their values are parameters. `NOW` is the time at
which a statement is executed, in microseconds of Unix time.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    delete,
    exists,
    func,
    insert,
    literal_column,
    or_,
    select,
    update,
)

from traced_tools.approvals.pending_schema import CALLS, DELETED, DURABLE_RUNS, RUN_RECORDS, RUNS
from traced_tools.core.checks import expect
from traced_tools.stores.statement import Statement

NOW: Final = bindparam("now", type_=BigInteger)
IS_REFUSED: Final = RUNS.c.refused_at.is_not(None)
"""The condition that an attempt has shown that a run can't resume."""
_OF_RUNS: Final = RUNS.join(CALLS, RUNS.c.state_id == CALLS.c.state_id)
_IS_UNSPENT: Final = RUNS.c.spent_at.is_(None)
OF_CALL: Final = and_(CALLS.c.state_id == bindparam("of_state"), CALLS.c.call_id == bindparam("of_call"))
"""The condition that a call has the id `of_call`, in the state `of_state`."""


def _is_open(calls: FromClause) -> ColumnElement[bool]:
    """Return the condition that a call can be decided."""
    return and_(calls.c.decided_at.is_(None), or_(calls.c.expires_at.is_(None), calls.c.expires_at > NOW))


def _is_decided() -> ColumnElement[bool]:
    """Return the condition that a run waits, and all of its calls are decided or expired."""
    calls = CALLS.alias()  # some of the queries also select from CALLS
    has_open = exists().where(calls.c.state_id == RUNS.c.state_id, _is_open(calls))
    return and_(_IS_UNSPENT, ~has_open)


def _is_ready() -> ColumnElement[bool]:
    """Return the condition that a run can resume: it waits, its calls are decided or expired, and no attempt failed."""
    return and_(_is_decided(), ~IS_REFUSED)


def _calls_of_waiting_runs() -> Select[Any]:
    other = CALLS.alias()
    has_others = exists().where(
        other.c.state_id == CALLS.c.state_id, other.c.call_id != CALLS.c.call_id, _is_open(other)
    )
    of_run = (RUNS.c.run_id, RUNS.c.agent, RUNS.c.conversation_id, RUNS.c.principal, RUNS.c.refusal)
    columns = (*of_run, DURABLE_RUNS.c.key, (~has_others).label("is_last"))
    query = select(CALLS, *columns).join(RUNS, RUNS.c.state_id == CALLS.c.state_id)
    return query.outerjoin(DURABLE_RUNS, DURABLE_RUNS.c.state_id == RUNS.c.state_id).where(_IS_UNSPENT)


def _count_durable() -> Select[Any]:
    runs, records = DURABLE_RUNS.c, RUN_RECORDS.c
    # A life may take long, so a running run is as old as its last record: a row that its primary key finds.
    is_last = and_(runs.status == "running", records.key == runs.key, records.number == runs.last)
    since = func.min(func.coalesce(records.recorded_at, runs.changed_at))
    query = select(runs.agent, runs.status, func.count(), since).outerjoin_from(DURABLE_RUNS, RUN_RECORDS, is_last)
    # Their number grows for ever: to count the runs that have ended would read the whole table.
    has_not_ended = runs.status.in_(("submitted", "running", "interrupted", "waiting", "failed"))
    return query.where(has_not_ended).group_by(runs.agent, runs.status)


def _count_ready() -> Select[Any]:
    # A run is ready since its last call was decided or has expired.
    ready_since = func.max(func.coalesce(CALLS.c.decided_at, CALLS.c.expires_at)).label("since")
    ready = select(RUNS.c.agent, ready_since).select_from(_OF_RUNS).where(_is_ready())
    runs = ready.group_by(RUNS.c.state_id, RUNS.c.agent).subquery()
    return select(runs.c.agent, func.count(), func.min(runs.c.since)).group_by(runs.c.agent)


IS_READY: Final = _is_ready()
"""The condition that a run can resume."""

# The inbox.

CALLS_OF_WAITING_RUNS: Final = _calls_of_waiting_runs()
"""The calls of all runs that wait."""
CALLS_TO_DECIDE: Final = CALLS_OF_WAITING_RUNS.where(~IS_REFUSED, _is_open(CALLS))
"""The calls that can be decided, of all runs that wait and can resume."""
WAITING_CALL: Final = CALLS_OF_WAITING_RUNS.where(OF_CALL)
CALL: Final = select(CALLS).where(OF_CALL)
DECIDE: Final = update(CALLS).where(OF_CALL, _is_open(CALLS))
_STATES_OF_CALL: Final = select(RUNS.c.state_id).where(
    _IS_UNSPENT, exists().where(CALLS.c.state_id == RUNS.c.state_id, CALLS.c.call_id == bindparam("of_call"))
)


def states_of_call(call_id: str, run_id: str | None) -> Select[Any]:
    """Return the query for the states that wait and have a call with this id, which is its parameter `of_call`."""
    expect("call_id", call_id, str, "a str")
    expect("run_id", run_id, (str, type(None)), "a str or None")
    return _STATES_OF_CALL if run_id is None else _STATES_OF_CALL.where(RUNS.c.run_id == run_id)


# Runs that pause and resume, of which `of_state` is the state's id.

_OF_STATE: Final = RUNS.c.state_id == bindparam("of_state")
KEPT_OR_DELETED: Final = Statement(
    select(RUNS.c.state_id)
    .where(_OF_STATE)
    .union_all(select(DELETED.c.state_id).where(DELETED.c.state_id == bindparam("of_state")))
)
KEEP_RUN: Final = Statement(insert(RUNS))
KEEP_CALL: Final = Statement(insert(CALLS))
SPEND: Final = Statement(
    update(RUNS).where(_OF_STATE, _IS_UNSPENT, ~exists().where(DURABLE_RUNS.c.state_id == RUNS.c.state_id))
)
"""The update that spends the state of a run without a key."""
SPEND_DURABLE: Final = Statement(update(RUNS).where(_OF_STATE, _IS_UNSPENT))
WITHDRAWN_AT: Final = select(RUNS.c.withdrawn_at).where(_OF_STATE)
CALLS_OF_STATE: Final = Statement(
    select(CALLS, _is_open(CALLS).label("is_open")).where(CALLS.c.state_id == bindparam("of_state"))
)
DECIDE_OPEN: Final = Statement(update(CALLS).where(OF_CALL))

# Durable runs, of which `of_key` is the key.

_OF_KEY: Final = DURABLE_RUNS.c.key == bindparam("of_key")
KEY_OF_STATE: Final = Statement(select(DURABLE_RUNS.c.key).where(DURABLE_RUNS.c.state_id == bindparam("of_state")))
DURABLE_RUN: Final = Statement(select(DURABLE_RUNS).where(_OF_KEY))
RECORDS: Final = Statement(select(RUN_RECORDS).where(RUN_RECORDS.c.key == bindparam("of_key")).order_by("number"))
COUNT_QUEUED: Final = select(func.count()).where(
    DURABLE_RUNS.c.status == "submitted",
    DURABLE_RUNS.c.agent == bindparam("of_agent"),
    DURABLE_RUNS.c.principal.is_not_distinct_from(bindparam("of_principal", type_=DURABLE_RUNS.c.principal.type)),
)
"""The number of the runs of a principal that have not begun."""
ADD_DURABLE_RUN: Final = Statement(insert(DURABLE_RUNS))
ADD_RECORD: Final = Statement(insert(RUN_RECORDS))
_ADVANCE: Final = update(DURABLE_RUNS).where(
    _OF_KEY, DURABLE_RUNS.c.last == bindparam("before"), DURABLE_RUNS.c.status != literal_column("'withdrawn'")
)
ADVANCE: Final = Statement(_ADVANCE)
"""The update that takes the number of a record.

It changes no row if another process has taken the number, or if the run is withdrawn.
"""
ADVANCE_TO: Final = Statement(_ADVANCE)
"""The same, which sets the status as well."""
BEGIN_LIFE: Final = Statement(_ADVANCE.values(lives=DURABLE_RUNS.c.lives + literal_column("1")))
PAUSE: Final = Statement(_ADVANCE)
REFUSE_STATE: Final = Statement(update(RUNS).where(_OF_STATE, _IS_UNSPENT))
IS_DECIDED: Final = Statement(select(RUNS.c.state_id).where(_OF_STATE, _is_decided()))
READY_KEYS: Final = (
    select(DURABLE_RUNS.c.key)
    .join(RUNS, RUNS.c.state_id == DURABLE_RUNS.c.state_id)
    .where(DURABLE_RUNS.c.status == "waiting", IS_READY)
    .order_by(DURABLE_RUNS.c.changed_at, DURABLE_RUNS.c.key)
)
"""The keys of the runs whose calls are all decided or expired, the oldest first."""
_NOT_DURABLE: Final = ~exists().where(DURABLE_RUNS.c.state_id == RUNS.c.state_id)
READY: Final = select(RUNS.c.state).where(IS_READY, _NOT_DURABLE).order_by(RUNS.c.created_at, RUNS.c.state_id)
"""The states of the runs without a key that can resume, the oldest first."""

# What an application deletes, and what it counts.

DELETE_CALLS: Final = delete(CALLS).where(CALLS.c.state_id == bindparam("of_state"))
ADD_DELETED: Final = insert(DELETED)
COUNT_WAITING: Final = (
    select(RUNS.c.agent, func.count(), func.min(CALLS.c.requested_at))
    .select_from(_OF_RUNS)
    .where(_IS_UNSPENT, ~IS_REFUSED, _is_open(CALLS))
    .group_by(RUNS.c.agent)
)
"""The number of calls that can be decided, and the time of the oldest, by agent."""
COUNT_READY: Final = _count_ready()
"""The number of runs that can resume, and since when the first one can, by agent."""
COUNT_REFUSED: Final = (
    select(RUNS.c.agent, RUNS.c.refusal, func.count())
    .where(_IS_UNSPENT, IS_REFUSED)
    .group_by(RUNS.c.agent, RUNS.c.refusal)
)
"""The number of runs that can't resume, by agent and reason."""
COUNT_DURABLE: Final = _count_durable()
"""The number of durable runs that have not ended, and since when the oldest has its status, by agent and status."""
