"""The queries of a pending store: which calls can be decided, and which runs can resume."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import ColumnElement, FromClause, Select, and_, exists, func, or_, select

from traced_tools.approvals.pending_schema import CALLS, RUNS
from traced_tools.core.checks import expect

IS_REFUSED: Final = RUNS.c.refused_at.is_not(None)
"""The condition that an attempt has shown that a run can't resume."""
_OF_RUNS: Final = RUNS.join(CALLS, RUNS.c.state_id == CALLS.c.state_id)


def is_open(calls: FromClause, now: int) -> ColumnElement[bool]:
    """Return the condition that a call can be decided."""
    return and_(calls.c.decided_at.is_(None), or_(calls.c.expires_at.is_(None), calls.c.expires_at > now))


def is_ready(now: int) -> ColumnElement[bool]:
    """Return the condition that a run can resume: it waits, and all of its calls are decided or expired."""
    calls = CALLS.alias()  # some of the queries also select from CALLS
    has_open = exists().where(calls.c.state_id == RUNS.c.state_id, is_open(calls, now))
    return and_(RUNS.c.spent_at.is_(None), ~IS_REFUSED, ~has_open)


def calls_to_decide(now: int) -> Select[Any]:
    """Return the query for calls that can be decided, of all runs that wait and can resume."""
    return calls_of_waiting_runs(now).where(~IS_REFUSED, is_open(CALLS, now))


def calls_of_waiting_runs(now: int) -> Select[Any]:
    """Return the query for the calls of all runs that wait."""
    other = CALLS.alias()
    has_others = exists().where(
        other.c.state_id == CALLS.c.state_id, other.c.call_id != CALLS.c.call_id, is_open(other, now)
    )
    of_run = (RUNS.c.run_id, RUNS.c.agent, RUNS.c.conversation_id, RUNS.c.principal, RUNS.c.refusal)
    query = select(CALLS, *of_run, (~has_others).label("is_last")).join(RUNS, RUNS.c.state_id == CALLS.c.state_id)
    return query.where(RUNS.c.spent_at.is_(None))


def states_of_call(call_id: str, run_id: str | None) -> Select[Any]:
    """Return the query for the states that wait and have a call with this id."""
    expect("call_id", call_id, str, "a str")
    expect("run_id", run_id, (str, type(None)), "a str or None")
    has_call = exists().where(CALLS.c.state_id == RUNS.c.state_id, CALLS.c.call_id == call_id)
    query = select(RUNS.c.state_id).where(RUNS.c.spent_at.is_(None), has_call)
    return query if run_id is None else query.where(RUNS.c.run_id == run_id)


def count_waiting(now: int) -> Select[Any]:
    """Return the query for the number of calls that can be decided, and the time of the oldest, by agent."""
    waiting = select(RUNS.c.agent, func.count(), func.min(CALLS.c.requested_at)).select_from(_OF_RUNS)
    return waiting.where(RUNS.c.spent_at.is_(None), ~IS_REFUSED, is_open(CALLS, now)).group_by(RUNS.c.agent)


def count_ready(now: int) -> Select[Any]:
    """Return the query for the number of runs that can resume, and since when the first one can, by agent."""
    # A run is ready since its last call was decided or has expired.
    ready_since = func.max(func.coalesce(CALLS.c.decided_at, CALLS.c.expires_at)).label("since")
    ready = select(RUNS.c.agent, ready_since).select_from(_OF_RUNS).where(is_ready(now))
    runs = ready.group_by(RUNS.c.state_id, RUNS.c.agent).subquery()
    return select(runs.c.agent, func.count(), func.min(runs.c.since)).group_by(runs.c.agent)


def count_refused() -> Select[Any]:
    """Return the query for the number of runs that can't resume, by agent and reason."""
    refused = select(RUNS.c.agent, RUNS.c.refusal, func.count()).where(RUNS.c.spent_at.is_(None), IS_REFUSED)
    return refused.group_by(RUNS.c.agent, RUNS.c.refusal)
