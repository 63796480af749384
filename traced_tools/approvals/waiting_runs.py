"""How a run begins to wait in a store, and how it stops: each in the transaction of its caller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Self

from sqlalchemy import ColumnElement, Connection, update

from traced_tools.approvals.pending_queries import (
    CALLS_OF_STATE,
    DECIDE_OPEN,
    KEEP_CALL,
    KEEP_RUN,
    KEPT_OR_DELETED,
    KEY_OF_STATE,
    SPEND,
    WITHDRAWN_AT,
)
from traced_tools.approvals.pending_rows import call_rows, decision_columns, merge_decisions, run_row
from traced_tools.approvals.pending_schema import DURABLE_RUNS, RUNS
from traced_tools.core.approval import CallDecision, Denied
from traced_tools.core.frozen import frozen
from traced_tools.errors import ResumeError
from traced_tools.loop.state import RunState
from traced_tools.stores.columns import unix_microseconds
from traced_tools.stores.statement import Statement


@frozen(repr=False)
class WaitingRows:
    """The rows of a run that waits, and of the calls that it waits for."""

    run: Mapping[str, Any]
    calls: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, state: RunState, text: str, expires: timedelta | None) -> Self:
        """Return the rows of a state with its text; `expires` says how long its calls can be decided."""
        return cls(run_row(state, text, unix_microseconds()), call_rows(state, expires))

    def insert(self, connection: Connection) -> None:
        """Insert the rows, unless the store has or had the state."""
        # A deleted state leaves its id in DELETED: a late `put` must not bring back a state that was spent.
        if not KEPT_OR_DELETED.rows(connection, {"of_state": self.run["state_id"]}):
            KEEP_RUN.execute(connection, self.run)
            for call in self.calls:
                KEEP_CALL.execute(connection, call)


def spend(
    connection: Connection, state: RunState, decisions: Mapping[str, CallDecision], *, statement: Statement = SPEND
) -> Mapping[str, CallDecision | Denied]:
    """Spend a state, and return the decisions about its calls; see `PendingStore.claim`.

    `statement` is `SPEND`, or `SPEND_DURABLE` for the state of a run with a key.
    """
    time = unix_microseconds()
    columns = {call_id: decision_columns(decision, time) for call_id, decision in decisions.items()}
    # This update comes first: it locks the run's row, so that `decide` waits for the commit. An error below rolls it
    # back, so that the state is not spent.
    if statement.execute(connection, {"of_state": state.id, "spent_at": time}) != 1:
        raise _spending_error(connection, state.id)
    rows = CALLS_OF_STATE.rows(connection, {"of_state": state.id, "now": time})
    stored_calls = {(row.call_id, row.tool, row.arguments) for row in rows}
    if stored_calls != {(call_id, call.tool, call.arguments) for call_id, _, call in state.leaves() if not call.held}:
        raise ResumeError(
            "the state has other calls than the store: resume with the text that the store returns",
            lasting="state_invalid",  # `refuse` ignores it if the store has another text
        )
    if strange := decisions.keys() - {row.call_id for row in rows}:
        raise ResumeError(f"no call with the id {min(strange)!r} waits in this state")
    for row in rows:
        if row.is_open and row.call_id in columns:
            DECIDE_OPEN.execute(connection, {**columns[row.call_id], "of_state": state.id, "of_call": row.call_id})
    merged = {row.call_id: merge_decisions(row, decisions.get(row.call_id)) for row in rows}
    return {call_id: decision for call_id, decision in merged.items() if decision is not None}


def withdraw_waiting(connection: Connection, condition: ColumnElement[bool]) -> Sequence[str]:
    """Withdraw the runs that wait in the states that meet a condition, and return the ids of the states."""
    now = unix_microseconds()
    withdrawal = update(RUNS).where(condition, RUNS.c.spent_at.is_(None)).values(spent_at=now, withdrawn_at=now)
    state_ids: Sequence[str] = connection.execute(withdrawal.returning(RUNS.c.state_id)).scalars().all()
    end_durable(connection, DURABLE_RUNS.c.state_id.in_(state_ids))
    return state_ids


def end_durable(connection: Connection, condition: ColumnElement[bool]) -> Sequence[str | None]:
    """Withdraw the durable runs that meet a condition, and return the ids of the states in which they waited last.

    A process that drives such a run ends with `RunTaken`, because a run that is withdrawn takes no record.
    """
    values = {"status": "withdrawn", "changed_at": unix_microseconds()}
    withdrawal = update(DURABLE_RUNS).where(condition).values(values)
    return connection.execute(withdrawal.returning(DURABLE_RUNS.c.state_id)).scalars().all()


def _spending_error(connection: Connection, state_id: str) -> ResumeError:
    """Return why a state was not spent. The update decides between runs that resume at once."""
    run = connection.execute(WITHDRAWN_AT, {"of_state": state_id}).first()
    if run is not None and run.withdrawn_at is not None:
        return ResumeError("the run was withdrawn: the conversation went on without it, or somebody withdrew it")
    if run is None:
        return ResumeError("the store does not know the state: resume with the store that its run was paused with")
    if KEY_OF_STATE.rows(connection, {"of_state": state_id}):
        return ResumeError("the run has a key: go on with `drive` and the key, so that its log has what happens")
    return ResumeError("the state is spent: a run has resumed from it, and a state is spent once")
