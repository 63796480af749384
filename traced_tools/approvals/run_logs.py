"""The logs of durable runs, in the database of the pending store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timedelta
from typing import Any, Final, Self

from sqlalchemy import Connection, select, update

from traced_tools.approvals.pending_queries import (
    ADD_DURABLE_RUN,
    ADD_RECORD,
    ADVANCE,
    ADVANCE_TO,
    BEGIN_LIFE,
    COUNT_QUEUED,
    DURABLE_RUN,
    IS_DECIDED,
    PAUSE,
    READY_KEYS,
    RECORDS,
    REFUSE_STATE,
    SPEND_DURABLE,
)
from traced_tools.approvals.pending_schema import DURABLE_RUNS, RUNS
from traced_tools.approvals.waiting_runs import WaitingRows, end_durable, spend, withdraw_waiting
from traced_tools.core.approval import CallDecision, Denied
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import RUN_STATUSES, ResumeRefusal, RunStatus
from traced_tools.core.frozen import frozen
from traced_tools.durable.history import LoggedRecord, logged_records
from traced_tools.durable.records import StoredRecord
from traced_tools.errors import PendingStoreUnavailable, QueueFull, RunTaken
from traced_tools.loop.state import RunState
from traced_tools.stores.advisory_locks import LOCK, lock_number
from traced_tools.stores.columns import time_of, unix_microseconds
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors

MAX_LIVES: Final = 10
"""After so many lives without an end or a pause, a run is not begun again by itself."""
_without_texts: Final = translate_errors(sql_problem, PendingStoreUnavailable)


@frozen
class KeptRun:
    """A durable run as the store knows it, without its log.

    Attributes:
        key: its key.
        agent: the name of the client.
        principal: on whose behalf it acts; None if it is not known.
        status: where it is.
        lives: how many lives have begun since it was submitted, or went on after a pause.
        submitted_at: when it was submitted, in UTC.
        changed_at: when its status changed last, in UTC.
    """

    key: str
    agent: str
    principal: str | None = field(repr=False)
    status: RunStatus
    lives: int
    submitted_at: datetime
    changed_at: datetime

    @classmethod
    def of(cls, row: Any) -> Self:
        """Return the run that a row of the table has."""
        times = (time_of(row.submitted_at), time_of(row.changed_at))
        return cls(row.key, row.agent, row.principal, row.status, row.lives, *times)


@frozen
class LoadedRun:
    """A durable run with its log.

    Attributes:
        agent: the name of the client.
        status: where it is.
        lives: how many lives have begun since it was submitted, or went on after a pause.
        is_decided: whether it waits, and all of its calls are decided or expired.
        last: the number of its last record.
        records: its records.
        recorded_at: when the last one was made, in seconds of Unix time.
    """

    agent: str
    status: RunStatus
    lives: int
    is_decided: bool
    last: int
    records: Sequence[StoredRecord]
    recorded_at: float


class RunLogs:
    """The logs of durable runs. A run's records are numbered, and a number is taken once.

    Args:
        database: where the logs are, beside the runs that wait.
        expires: how long a call can be decided; None for ever.
        most_queued: how many runs of a principal may wait for their first life, for each agent; None for no limit.
    """

    def __init__(self, database: Database, expires: timedelta | None, most_queued: int | None = None) -> None:
        self._database = database
        self._expires = expires
        self._most_queued = most_queued

    @_without_texts
    def submit(self, key: str, agent: str, principal: str | None, record: StoredRecord, priority: int = 0) -> bool:
        """Keep a run with its first record, unless there is one with the key; return whether there was none.

        Args:
            key: the key of the run.
            agent: the name of the client.
            principal: on whose behalf the run is; None if it is not known.
            record: what the run is asked.
            priority: workers begin runs of a higher priority first.

        Raises:
            QueueFull: if too many runs of the principal wait for their first life.
        """
        now = unix_microseconds()
        run = {"key": key, "agent": agent, "principal": principal, "status": "submitted", "last": record.number}
        run |= {"lives": 0, "submitted_at": now, "changed_at": now, "priority": priority}
        with suppress(self._database.integrity_error), self._database.transaction() as connection:
            if self._most_queued is not None and not DURABLE_RUN.rows(connection, {"of_key": key}):
                self._check_queue(connection, agent, principal, self._most_queued)
            ADD_DURABLE_RUN.execute(connection, run)  # it fails if there is a run with this key
            _add(connection, key, record, now)
            return True
        return False

    @_without_texts
    def load(self, key: str) -> LoadedRun | None:
        """Return a run with its log; None if there is none."""
        with self._database.connect() as connection:
            run = next(iter(DURABLE_RUN.rows(connection, {"of_key": key})), None)
            if run is None:
                return None
            rows = RECORDS.rows(connection, {"of_key": key})
            now = unix_microseconds()
            is_decided = bool(IS_DECIDED.rows(connection, {"of_state": run.state_id, "now": now}))
        # A record that was added between the two reads is above the number of the run's row.
        rows = [row for row in rows if row.number <= run.last]
        records = [StoredRecord(row.number, row.body, row.digest) for row in rows]
        recorded_at = max((row.recorded_at for row in rows), default=0) / 1_000_000
        return LoadedRun(run.agent, run.status, run.lives, is_decided, run.last, records, recorded_at)

    @_without_texts
    def append(
        self, key: str, record: StoredRecord, status: RunStatus | None = None, refusal: ResumeRefusal | None = None
    ) -> None:
        """Append a record, and set the status of the run; None keeps it.

        Args:
            key: the key of the run.
            record: the record.
            status: the status.
            refusal: why the calls that wait can't go on; None if nothing waits, or if they can.

        Raises:
            RunTaken: if another process has appended a record with this number.
        """
        with self._database.transaction() as connection:
            self._append(connection, key, record, status)
            if refusal is not None:
                run = DURABLE_RUN.rows(connection, {"of_key": key})[0]
                refused = {"of_state": run.state_id, "refused_at": unix_microseconds(), "refusal": refusal}
                REFUSE_STATE.execute(connection, refused)

    @_without_texts
    def refuse(self, key: str, refusal: ResumeRefusal) -> None:
        """Set a run apart that can't go on because of its log, so that no worker tries again.

        Args:
            key: the key of the run.
            refusal: why it can't go on.
        """
        now = unix_microseconds()
        goes_on = DURABLE_RUNS.c.status.not_in(("finished", "withdrawn"))
        failure = update(DURABLE_RUNS).where(DURABLE_RUNS.c.key == key, goes_on).values(status="failed", changed_at=now)
        with self._database.transaction() as connection:
            for state_id in connection.execute(failure.returning(DURABLE_RUNS.c.state_id)).scalars().all():
                REFUSE_STATE.execute(connection, {"of_state": state_id, "refused_at": now, "refusal": refusal})

    @_without_texts
    def check_last(self, key: str, number: int) -> None:
        """Raise `RunTaken` unless the last record of a run has this number."""
        with self._database.connect() as connection:
            run = next(iter(DURABLE_RUN.rows(connection, {"of_key": key})), None)
        if run is None or run.last != number:
            raise RunTaken(key)

    @_without_texts
    def pause(self, key: str, record: StoredRecord, state: RunState, text: str) -> None:
        """Append a record, and keep the state of a run that waits; raises `RunTaken` as `append` does."""
        rows = WaitingRows.of(state, text, self._expires)
        with self._database.transaction() as connection:
            now = unix_microseconds()
            values = {"status": "waiting", "changed_at": now, "state_id": state.id, "lives": 0}
            _advance(PAUSE, connection, key, record, values)
            _add(connection, key, record, now)
            rows.insert(connection)

    @_without_texts
    def claim(
        self,
        key: str,
        state: RunState,
        decisions: Mapping[str, CallDecision],
        record_of: Callable[[Mapping[str, CallDecision | Denied]], StoredRecord],
    ) -> Mapping[str, CallDecision | Denied]:
        """Spend a state, append the record about the decisions, and return the decisions.

        Raises:
            RunTaken: as `append` does.
            ResumeError: as `PendingStore.claim` does.
        """
        with self._database.transaction() as connection:
            claimed = spend(connection, state, decisions, statement=SPEND_DURABLE)
            self._append(connection, key, record_of(claimed), None)
        return claimed

    @_without_texts
    def withdraw(self, key: str) -> bool:
        """Withdraw a run, so that it never goes on, and its calls can no longer be decided.

        A process that drives the run meanwhile ends with `RunTaken` before its next step. What its tools have done
        stays done.

        Args:
            key: the key of the run.

        Returns:
            whether there was such a run that had neither finished nor been withdrawn.
        """
        expect("key", key, str, "a str")
        of_key = DURABLE_RUNS.c.key == key
        has_not_ended = DURABLE_RUNS.c.status.not_in(("finished", "withdrawn"))
        with self._database.transaction() as connection:
            # The state comes first, as in `claim`: otherwise, each of the two could wait for a lock of the other.
            if withdraw_waiting(connection, RUNS.c.state_id.in_(select(DURABLE_RUNS.c.state_id).where(of_key))):
                return True
            state_ids = end_durable(connection, of_key & has_not_ended)
            withdraw_waiting(connection, RUNS.c.state_id.in_(state_ids))  # it may have paused since
        return bool(state_ids)

    @_without_texts
    def runs(
        self,
        *,
        status: RunStatus | None = None,
        agent: str | None = None,
        principal: str | None = None,
        limit: int | None = None,
    ) -> list[KeptRun]:
        """Return the durable runs, those whose status has not changed for the longest time first.

        Args:
            status: only runs with this status; None for all.
            agent: only runs of this client; None for all.
            principal: only runs on behalf of this principal; None for all.
            limit: the maximum number of runs; None for all.
        """
        if status is not None and status not in RUN_STATUSES:
            raise ValueError(f"status must be one of {', '.join(RUN_STATUSES)}, or None")
        query = select(DURABLE_RUNS).order_by(DURABLE_RUNS.c.changed_at, DURABLE_RUNS.c.key)
        if status is not None:
            query = query.where(DURABLE_RUNS.c.status == status)
        if principal is not None:
            query = query.where(DURABLE_RUNS.c.principal == principal)
        with self._database.connect() as connection:
            return [KeptRun.of(row) for row in connection.execute(_narrowed(query, agent, limit))]

    @_without_texts
    def find(self, key: str) -> KeptRun | None:
        """Return the durable run with a key; None if there is none."""
        expect("key", key, str, "a str")
        with self._database.connect() as connection:
            return next((KeptRun.of(row) for row in DURABLE_RUN.rows(connection, {"of_key": key})), None)

    @_without_texts
    def history(self, key: str) -> list[LoggedRecord]:
        """Return what the records of a run say, without contents and without a check of their digests.

        Args:
            key: the key of the run. The list is empty if there is none, or if its log was deleted.
        """
        with self._database.connect() as connection:
            rows = RECORDS.rows(connection, {"of_key": key})
        return logged_records((row.number, time_of(row.recorded_at), row.body) for row in rows)

    @_without_texts
    def interrupted(self, agent: str | None, limit: int | None) -> list[str]:
        """Return the keys of the runs that began and do not wait; see `PendingStore.interrupted`."""
        goes_on = DURABLE_RUNS.c.status.in_(("submitted", "running", "interrupted"))
        query = select(DURABLE_RUNS.c.key).where(goes_on).order_by(DURABLE_RUNS.c.changed_at, DURABLE_RUNS.c.key)
        with self._database.transaction() as connection:
            # A life whose process died has not recorded that it was the last one.
            connection.execute(
                update(DURABLE_RUNS)
                .where(goes_on, DURABLE_RUNS.c.lives >= MAX_LIVES)
                .values(status="failed", changed_at=unix_microseconds())
            )
            return [*connection.execute(_narrowed(query, agent, limit)).scalars()]

    @_without_texts
    def decided(self, agent: str | None, limit: int | None) -> list[str]:
        """Return the keys of the runs that waited and can go on; see `PendingStore.decided`."""
        with self._database.connect() as connection:
            query = _narrowed(READY_KEYS, agent, limit)
            return [*connection.execute(query, {"now": unix_microseconds()}).scalars()]

    def __repr__(self) -> str:
        return f"RunLogs({str(self._database)!r})"

    def _check_queue(self, connection: Connection, agent: str, principal: str | None, most: int) -> None:
        if not self._database.is_sqlite:  # where a transaction is the only one that writes
            connection.execute(LOCK, {"number": lock_number("queue", agent, principal)})
        if connection.execute(COUNT_QUEUED, {"of_agent": agent, "of_principal": principal}).scalar_one() >= most:
            raise QueueFull(agent, most)

    def _append(self, connection: Connection, key: str, record: StoredRecord, status: RunStatus | None) -> None:
        now = unix_microseconds()
        if status is None:
            _advance(ADVANCE, connection, key, record, {})
        else:
            statement = BEGIN_LIFE if status == "running" else ADVANCE_TO
            _advance(statement, connection, key, record, {"status": status, "changed_at": now})
        _add(connection, key, record, now)


def _advance(statement: Any, connection: Connection, key: str, record: StoredRecord, values: Mapping[str, Any]) -> None:
    """Take the number of a record, or raise `RunTaken`. It is the first statement, so it also locks the run."""
    parameters = {**values, "last": record.number, "of_key": key, "before": record.number - 1}
    if statement.execute(connection, parameters) != 1:
        raise RunTaken(key)


def _add(connection: Connection, key: str, record: StoredRecord, now: int) -> None:
    row = {"key": key, "number": record.number, "body": record.body, "digest": record.digest, "recorded_at": now}
    ADD_RECORD.execute(connection, row)


def _narrowed(query: Any, agent: str | None, limit: int | None) -> Any:
    expect("agent", agent, (str, type(None)), "a str or None")
    if limit is not None:
        expect_whole("limit", limit, 1)
        query = query.limit(limit)
    return query if agent is None else query.where(DURABLE_RUNS.c.agent == agent)
