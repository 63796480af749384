"""The store in which runs wait for approval or input: an inbox of calls, decisions, and states that are spent once.

A run's state is *spent* when a run resumes from it, and a call is *decided* once. Both are conditional updates in the
transaction that relies on them, so they hold for all threads and processes that share the store.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Select, and_, case, delete, or_, select
from sqlalchemy import update as change

from traced_tools.approvals.due_runs import DueRuns
from traced_tools.approvals.pending_queries import (
    ADD_DELETED,
    CALL,
    CALLS_OF_WAITING_RUNS,
    CALLS_TO_DECIDE,
    COUNT_DURABLE,
    COUNT_READY,
    COUNT_REFUSED,
    COUNT_WAITING,
    DECIDE,
    DELETE_CALLS,
    IS_REFUSED,
    READY,
    WAITING_CALL,
    states_of_call,
)
from traced_tools.approvals.pending_rows import (
    WaitingApproval,
    decision_columns,
    questions,
    waiting_approval,
)
from traced_tools.approvals.pending_schema import CALLS, DURABLE_RUNS, PENDING_STORE, RUN_RECORDS, RUNS
from traced_tools.approvals.run_logs import MAX_LIVES, LoadedRun, RunLogs
from traced_tools.approvals.waiting_runs import WaitingRows, spend, withdraw_waiting
from traced_tools.core.approval import CallDecision, Denied
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import RESUME_REFUSALS, ResumeRefusal
from traced_tools.core.messages import Message, SystemMessage
from traced_tools.core.part_check import PartCheck
from traced_tools.core.state_key import StateKey
from traced_tools.durable.life import Life
from traced_tools.durable.records import LifeFailed, Submitted, read_record, read_records, stored_record
from traced_tools.durable.recovery import Recovery
from traced_tools.errors import (
    AlreadyDecided,
    KeyInUse,
    NotWaiting,
    PendingStoreError,
    PendingStoreUnavailable,
    ResumeError,
    UnknownRun,
)
from traced_tools.flow.steps import Call
from traced_tools.loop.paused_runs import OpenedRun, Question
from traced_tools.loop.state import RunState
from traced_tools.observe.instruments import PendingCounts
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions
from traced_tools.stores.columns import microseconds, unix_microseconds
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors
from traced_tools.tools.approval import check_decision

_MOST: Final = 2**31
"""The highest limit of a query, which databases accept."""
_without_texts: Final = translate_errors(sql_problem, PendingStoreUnavailable)


class PendingStore:
    """Keeps runs that wait for approval or input, in SQLite or PostgreSQL.

    Threads, event loops and processes may share it. It connects, and creates missing tables, when it is first used.
    Everything in it is plain text: the conversation of each run, and the arguments and questions of its calls.

    Args:
        url: the path of an SQLite file, or an SQLAlchemy URL such as `postgresql+psycopg://user@host/database`, which
            needs the extra `postgresql`. A missing SQLite file is created for its owner alone.
        expires: how long a call can be decided, from when it began to wait; None for ever. A call that has expired is
            denied with the reason code `approval_timeout` when its run resumes.
        most_queued: how many durable runs of a principal may wait for their first life, for each agent, before `submit`
            raises `QueueFull`; None for no limit. Runs without a principal share a queue.

    Attributes:
        run_logs: the logs of durable runs.
        due_runs: the durable runs that a worker drives next.

    Raises:
        ConfigurationError: for a URL that cannot be used.
        TypeError, ValueError: for an invalid argument.
    """

    def __init__(
        self, url: str | os.PathLike[str], *, expires: timedelta | None = None, most_queued: int | None = None
    ) -> None:
        expect("expires", expires, (timedelta, type(None)), "a timedelta or None")
        if expires is not None and expires <= timedelta():
            raise ValueError("expires must be a positive duration, or None for calls that never expire")
        if most_queued is not None:
            expect_whole("most_queued", most_queued, 1)
        self.expires: Final = expires
        self._database: Final = Database(url, PENDING_STORE)
        self.run_logs: Final = RunLogs(self._database, expires, most_queued)
        self.due_runs: Final = DueRuns(self._database)
        self._is_closed = False

    # What a client awaits.

    async def keep(self, state: RunState, text: str) -> None:
        """Keep a run that waits, and the calls that it waits for. This is a flow.

        Args:
            state: the state of the run.
            text: the text of the state.
        """
        await Call[None](self._keep, state, text)

    async def claim(
        self, state: RunState, decisions: Mapping[str, CallDecision]
    ) -> Mapping[str, CallDecision | Denied]:
        """Spend a state, and return the decisions about its calls, by the call's id. This is a flow.

        The given decisions are recorded beside those that the store has. A call that has expired without a decision is
        denied. A call without a decision that has not expired keeps waiting, and is not returned.

        Args:
            state: the state of the run.
            decisions: decisions that the store does not have yet, by the call's id.

        Raises:
            ResumeError: if the state is spent, if the store does not know it or knows other calls of it, or if a given
                decision comes too late: the call has expired, or was decided otherwise. Nothing is spent then.
        """
        return await Call[Mapping[str, CallDecision | Denied]](self._claim, state, decisions)

    async def submit(
        self, key: str, agent: str, question: Question, state_keys: Sequence[StateKey], priority: int = 0
    ) -> None:
        """Keep a durable run with what it is asked; a run with the key is kept once. This is a flow.

        Args:
            key: identifies the run.
            agent: the name of the client.
            question: what the run is asked.
            state_keys: the keys of which the first one signs the log; none for a log that isn't signed.
            priority: workers begin runs of a higher priority first.

        Raises:
            KeyInUse: if a run with the key is of another agent, principal or conversation, or has another question.
            QueueFull: if `most_queued` runs of the principal wait for their first life.
        """
        signer = state_keys[0] if state_keys else None
        record = stored_record(Submitted.of(question), key, 0, "", signer)
        if not await Call[bool](self.run_logs.submit, key, agent, question.principal, record, priority):
            loaded = await Call[LoadedRun | None](self.run_logs.load, key)
            difference = None if loaded is None else _difference(loaded, agent, question)
            if difference is not None:
                raise KeyInUse(key, difference)

    async def open_run(self, key: str, agent: str, state_keys: Sequence[StateKey]) -> OpenedRun:
        """Return where a durable run is, with its next life if it can go on. This is a flow.

        Args:
            key: identifies the run.
            agent: the name of the client.
            state_keys: the keys of which one must have signed each record; none if logs aren't signed.

        Raises:
            UnknownRun: if no run of this agent has the key.
            ResumeError: if the log was altered.
        """
        loaded = await Call[LoadedRun | None](self.run_logs.load, key)
        if loaded is None or loaded.agent != agent:
            raise UnknownRun(key, agent)
        if loaded.status == "withdrawn" or not loaded.records:  # the log of a run that has ended may be deleted
            return OpenedRun(loaded.status)
        try:
            records = read_records(loaded.records, key, state_keys)
            if loaded.last >= len(records):
                raise ResumeError(f"the last records of the run {key!r} are missing", lasting="state_invalid")
        except ResumeError as error:
            if error.lasting is not None:
                await Call[None](self.run_logs.refuse, key, error.lasting)
            raise
        recovery = Recovery.of(records)
        if recovery.ended is not None:
            return OpenedRun(loaded.status, content=recovery.ended.content, stop_reason=recovery.ended.stop_reason)
        if recovery.waits and not loaded.is_decided:
            return OpenedRun(loaded.status)
        signer = state_keys[0] if state_keys else None
        is_last = loaded.lives + 1 >= MAX_LIVES
        # Somebody else may have noted that the process of a run died: then the run has no record of an error.
        has_died = loaded.status == "interrupted" and not isinstance(records[-1], LifeFailed)
        idle_since = ("running" if has_died else loaded.status, loaded.recorded_at)
        last = loaded.records[-1]
        life = Life(self.run_logs, key, agent, recovery, last, signer, idle_since=idle_since, is_last=is_last)
        return OpenedRun(loaded.status, life=life)

    # What an inbox calls.

    @_without_texts
    def pending(
        self, *, agent: str | None = None, principal: str | None = None, limit: int | None = None
    ) -> list[WaitingApproval]:
        """Return the calls that can be decided now, the oldest first, without those of runs that can't resume.

        Args:
            agent: only calls of this client; None for all.
            principal: only calls of runs on behalf of this principal; None for all.
            limit: the maximum number of calls; None for all.

        Raises:
            PendingStoreError: if the store fails, or has a row that cannot be read.
        """
        return self._select_calls(CALLS_TO_DECIDE, agent, principal, limit)

    async def apending(
        self, *, agent: str | None = None, principal: str | None = None, limit: int | None = None
    ) -> list[WaitingApproval]:
        """Return the calls that can be decided now, on asyncio; see `pending`."""
        return await Call[list[WaitingApproval]](self.pending, agent=agent, principal=principal, limit=limit).arun()

    @_without_texts
    def refused(
        self, *, agent: str | None = None, principal: str | None = None, limit: int | None = None
    ) -> list[WaitingApproval]:
        """Return the calls of runs that can't resume, whether decided or not, with their `refusal`, the oldest first.

        Args:
            agent: only calls of this client; None for all.
            principal: only calls of runs on behalf of this principal; None for all.
            limit: the maximum number of calls.

        Raises:
            PendingStoreError: if the store fails, or has a row that cannot be read.
        """
        return self._select_calls(CALLS_OF_WAITING_RUNS.where(IS_REFUSED), agent, principal, limit)

    async def arefused(
        self, *, agent: str | None = None, principal: str | None = None, limit: int | None = None
    ) -> list[WaitingApproval]:
        """Return the calls of runs that can't resume, on asyncio; see `refused`."""
        return await Call[list[WaitingApproval]](self.refused, agent=agent, principal=principal, limit=limit).arun()

    def _select_calls(
        self, query: Select[Any], agent: str | None, principal: str | None, limit: int | None
    ) -> list[WaitingApproval]:
        query = query.order_by(CALLS.c.requested_at, CALLS.c.state_id, CALLS.c.call_id).limit(_most(limit))
        if agent is not None:
            query = query.where(RUNS.c.agent == agent)
        if principal is not None:
            query = query.where(RUNS.c.principal == principal)
        with self._database.connect() as connection:
            return [waiting_approval(row) for row in connection.execute(query, {"now": unix_microseconds()})]

    @_without_texts
    def find(self, call_id: str, *, run_id: str | None = None) -> WaitingApproval:
        """Return a call of a run that waits, which can be decided now, or was decided.

        Args:
            call_id: the call's id.
            run_id: the id of the run that paused. Some providers repeat the ids of calls, so pass it if you have it.

        Raises:
            NotWaiting: if no such call waits, or if it has expired.
            PendingStoreError: if several runs wait for a call with this id; pass `run_id` then.
        """
        with self._database.connect() as connection:
            state_id = _only_state(connection, states_of_call(call_id, run_id), call_id)
            parameters = {"of_state": state_id, "of_call": call_id, "now": (now := unix_microseconds())}
            row = connection.execute(WAITING_CALL, parameters).one()
            if row.decided_at is None and row.expires_at is not None and row.expires_at <= now:
                raise _expiry_error(call_id)
        return waiting_approval(row)

    async def afind(self, call_id: str, *, run_id: str | None = None) -> WaitingApproval:
        """Return a call of a run that waits, on asyncio; see `find`."""
        return await Call[WaitingApproval](self.find, call_id, run_id=run_id).arun()

    @_without_texts
    def decide(self, call_id: str, decision: CallDecision, *, run_id: str | None = None) -> None:
        """Decide about a call. If several callers decide at once, one of the decisions is recorded.

        Args:
            call_id: the call's id.
            decision: the decision. The `scope` of an approval must be `call`.
            run_id: the id of the run that paused. Some providers repeat the ids of calls, so pass it if you have it.

        Raises:
            AlreadyDecided: if the call was decided before.
            NotWaiting: if no such call waits, or if it has expired.
            PendingStoreError: if several runs wait for a call with this id; pass `run_id` then.
            ResumeError: if the call does not wait for such a decision.
            TypeError, ValueError: for a decision that cannot be recorded.
        """
        values = decision_columns(decision, now := unix_microseconds())
        with self._database.transaction() as connection:
            # The lock keeps a run from resuming between the checks and the decision.
            states = states_of_call(call_id, run_id).with_for_update()
            state_id = _only_state(connection, states, call_id)
            call = {"of_state": state_id, "of_call": call_id}
            row = connection.execute(CALL, call).one()
            check_decision(call_id, questions(row) or None, decision)
            # The update decides between callers that decide at once: only the first one still meets its condition.
            if connection.execute(DECIDE, {**values, **call, "now": now}).rowcount != 1:
                row = connection.execute(CALL, call).one()
                raise _expiry_error(call_id) if row.decided_at is None else AlreadyDecided(call_id)

    async def adecide(self, call_id: str, decision: CallDecision, *, run_id: str | None = None) -> None:
        """Decide about a call, on asyncio; see `decide`."""
        await Call[None](self.decide, call_id, decision, run_id=run_id).arun()

    # What a worker calls.

    def put(self, state: str) -> None:
        """Keep a run that the store could not keep when the run paused: the `state` of a `StateNotKept`.

        If the store has or had the state, nothing changes, even if it is spent or was deleted.

        Args:
            state: the state as text. Its digest is checked when the run resumes.

        Raises:
            ResumeError: if the text is not the state of a run that a store keeps.
        """
        expect("state", state, str, "a str: the `state` of a StateNotKept")
        run_state = RunState.unverified(state)
        if not run_state.is_kept:
            raise ResumeError("the run was paused without a store: resume it without one")
        self._keep(run_state, state)

    async def aput(self, state: str) -> None:
        """Keep a run that the store could not keep, on asyncio; see `put`."""
        await Call[None](self.put, state).arun()

    @_without_texts
    def ready(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the states, as text, whose calls are all decided or expired, the oldest first.

        A run that can't resume is not among them; see `refuse`.

        Args:
            agent: only states of this client; None for all.
            limit: the maximum number of states; None for all.
        """
        query = READY.limit(_most(limit))
        if agent is not None:
            query = query.where(RUNS.c.agent == agent)
        with self._database.connect() as connection:
            return [*connection.execute(query, {"now": unix_microseconds()}).scalars()]

    async def aready(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the states whose calls are all decided or expired, on asyncio; see `ready`."""
        return await Call[list[str]](self.ready, agent=agent, limit=limit).arun()

    def interrupted(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys of the durable runs that have begun, or wait to begin, and have neither ended nor paused.

        The longest interrupted run is the first. Call this when an application starts: the store doesn't know whether
        the process that began a run still lives. Two processes may drive one run: one of them goes on, and the other
        one ends with `RunTaken`. A run that has begun ten times without an end or a pause is not among them.

        Args:
            agent: only runs of this client; None for all.
            limit: the maximum number of runs; None for all.
        """
        return self.run_logs.interrupted(agent, limit)

    async def ainterrupted(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys of the durable runs that have neither ended nor paused, on asyncio; see `interrupted`."""
        return await Call[list[str]](self.interrupted, agent=agent, limit=limit).arun()

    def decided(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys of the durable runs that waited and whose calls are all decided or expired, the oldest first.

        Args:
            agent: only runs of this client; None for all.
            limit: the maximum number of runs; None for all.
        """
        return self.run_logs.decided(agent, limit)

    async def adecided(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the keys of the durable runs whose calls are all decided or expired, on asyncio; see `decided`."""
        return await Call[list[str]](self.decided, agent=agent, limit=limit).arun()

    @_without_texts
    def state(self, id: str) -> str:
        """Return the state of a run that waits, as text.

        Args:
            id: the id of the run that paused, or of its state.

        Raises:
            NotWaiting: if no such run waits.
        """
        query = select(RUNS.c.state).where(or_(RUNS.c.state_id == id, RUNS.c.run_id == id), RUNS.c.spent_at.is_(None))
        with self._database.connect() as connection:
            text: str | None = connection.execute(query).scalars().first()
        if text is None:
            raise NotWaiting(f"no run with the id {id!r} waits: it is unknown, or has resumed")
        return text

    async def astate(self, id: str) -> str:
        """Return the state of a run that waits, on asyncio; see `state`."""
        return await Call[str](self.state, id).arun()

    @_without_texts
    def refuse(self, state: str, reason: ResumeRefusal) -> None:
        """Record why a run can't resume, so that it is no longer ready, and no worker tries again.

        A client does so if resuming fails with a `ResumeError` that has a `lasting` reason. The state is not spent:
        `retry` makes the run ready again.

        Args:
            state: the text of the state, as `ready` returned it. If the store has another text, nothing changes.
            reason: why the run can't resume.
        """
        expect("state", state, str, "a str: a state of the store")
        if reason not in RESUME_REFUSALS:
            raise ValueError(f"reason must be one of {', '.join(RESUME_REFUSALS)}")
        with self._database.transaction() as connection:
            run = and_(RUNS.c.state == state, RUNS.c.spent_at.is_(None))
            connection.execute(change(RUNS).where(run).values(refused_at=unix_microseconds(), refusal=reason))

    async def arefuse(self, state: str, reason: ResumeRefusal) -> None:
        """Record why a run can't resume, on asyncio; see `refuse`."""
        await Call[None](self.refuse, state, reason).arun()

    @_without_texts
    def retry(self, run_id: str) -> bool:
        """Make a run that could not resume ready again, such as after its tool is back.

        Args:
            run_id: the id of the run that paused.

        Returns:
            whether the run was kept apart as one that can't resume.
        """
        expect("run_id", run_id, str, "a str")
        run = and_(RUNS.c.run_id == run_id, RUNS.c.spent_at.is_(None), IS_REFUSED)
        refusal = change(RUNS).where(run).values(refused_at=None, refusal=None).returning(RUNS.c.state_id)
        with self._database.transaction() as connection:
            state_ids = connection.execute(refusal).scalars().all()
            durable = DURABLE_RUNS.c.state_id.in_(state_ids) & (DURABLE_RUNS.c.status == "failed")
            connection.execute(
                change(DURABLE_RUNS).where(durable).values(status="waiting", changed_at=unix_microseconds())
            )
        return bool(state_ids)

    async def aretry(self, run_id: str) -> bool:
        """Make a run that could not resume ready again, on asyncio; see `retry`."""
        return await Call[bool](self.retry, run_id).arun()

    # What ends a wait without a decision.

    @_without_texts
    def withdraw(self, run_id: str) -> bool:
        """Withdraw a run that waits, so that its calls can no longer be decided and it never resumes.

        A client does so if the user says something else in the run's conversation. `run_logs.withdraw` withdraws a
        durable run by its key, whether or not it waits.

        Args:
            run_id: the id of the run that paused.

        Returns:
            whether the run waited. If it did not, `is_withdrawn` returns whether it was withdrawn before, or resumed.
        """
        expect("run_id", run_id, str, "a str")
        with self._database.transaction() as connection:
            return bool(withdraw_waiting(connection, RUNS.c.run_id == run_id))

    async def awithdraw(self, run_id: str) -> bool:
        """Withdraw a run that waits, on asyncio; see `withdraw`."""
        return await Call[bool](self.withdraw, run_id).arun()

    @_without_texts
    def is_withdrawn(self, run_id: str) -> bool:
        """Return whether a run was withdrawn, so that no run has resumed from it, and none ever will.

        Args:
            run_id: the id of the run that paused. False if the store does not know it, or its state was deleted.
        """
        expect("run_id", run_id, str, "a str")
        query = select(RUNS.c.withdrawn_at).where(RUNS.c.run_id == run_id)
        with self._database.connect() as connection:
            times = connection.execute(query).scalars().all()
        return bool(times) and None not in times

    async def ais_withdrawn(self, run_id: str) -> bool:
        """Return whether a run was withdrawn, on asyncio; see `is_withdrawn`."""
        return await Call[bool](self.is_withdrawn, run_id).arun()

    # What an application deletes.

    def delete_spent(self, by: datetime | None = None) -> int:
        """Delete the states that were spent at or before a time, with their calls, and return their number.

        Their random ids stay, so that no `put` brings a state back that was spent. The logs of durable runs that had
        ended by then are deleted, too. Their keys stay, so that no run begins a second time.

        Args:
            by: the time, with a time zone; None for now.
        """
        expect("by", by, (datetime, type(None)), "a datetime or None")
        if by is not None and by.tzinfo is None:
            raise ValueError("by must have a time zone: pass a time such as datetime.now(timezone.utc)")
        until = unix_microseconds() if by is None else microseconds(by)
        has_ended = DURABLE_RUNS.c.status.in_(("finished", "withdrawn")) & (DURABLE_RUNS.c.changed_at <= until)
        return self._delete(RUNS.c.spent_at <= until, has_ended)

    async def adelete_spent(self, by: datetime | None = None) -> int:
        """Delete spent states, on asyncio; see `delete_spent`."""
        return await Call[int](self.delete_spent, by).arun()

    def delete_principal(self, principal: str) -> int:
        """Delete all states of a principal with their calls, spent or not, and return their number.

        The runs that still wait can never resume: the random ids of their states stay, so that no `put` brings a state
        back. The logs of the principal's durable runs are deleted, too, and a process that drives one of them ends with
        `RunTaken`. Their keys stay.
        """
        expect("principal", principal, str, "a str")
        return self._delete(RUNS.c.principal == principal, DURABLE_RUNS.c.principal == principal)

    async def adelete_principal(self, principal: str) -> int:
        """Delete all states of a principal, on asyncio; see `delete_principal`."""
        return await Call[int](self.delete_principal, principal).arun()

    def checks(self) -> Iterable[PartCheck]:
        """Return the check whether the store can be written and has tables of this version; it creates missing ones."""
        yield PartCheck(f"pending_store: {self._database}", lambda: Call[None](self._check))

    @_without_texts
    def _check(self) -> None:
        with self._database.transaction() as connection:
            connection.execute(select(RUNS.c.state_id).limit(1))

    @_without_texts
    def exists(self) -> bool:
        """Return whether the database has the tables of the store. This creates none of them."""
        return self._database.exists()

    # Metrics for operators.

    def report_metrics(self, telemetry: TelemetryOptions | None = None) -> None:
        """Report the calls that wait, and the runs that are ready, that can't resume or that are durable, as metrics.

        They are counted by agent, and by reason or status.

        The store is read at each collection, until it is closed. Call this in one of the processes that share the
        store, such as the worker that resumes runs: each process that does reports the same calls.

        Args:
            telemetry: the providers; None for the global providers.
        """
        expect("telemetry", telemetry, (TelemetryOptions, type(None)), "a TelemetryOptions or None")
        instruments = RunTelemetry(telemetry or TelemetryOptions(), agent="").instruments
        if instruments is not None:
            instruments.pending_stores.watch(self._counts)

    @_without_texts
    def _counts(self) -> list[PendingCounts]:
        if self._is_closed:
            return []
        now = unix_microseconds()
        with self._database.connect() as connection:
            calls = connection.execute(COUNT_WAITING, {"now": now}).all()
            runs = connection.execute(COUNT_READY, {"now": now}).all()
            refused = connection.execute(COUNT_REFUSED).all()
            durable = connection.execute(COUNT_DURABLE).all()
        return [
            *(PendingCounts(agent, calls=count, oldest_call=_age(since, now)) for agent, count, since in calls),
            *(PendingCounts(agent, ready=count, oldest_ready=_age(since, now)) for agent, count, since in runs),
            *(PendingCounts(agent, refused={reason: count}) for agent, reason, count in refused),
            *(
                PendingCounts(agent, runs={status: count}, oldest_runs={status: _age(since, now)})
                for agent, status, count, since in durable
            ),
        ]

    def close(self) -> None:
        """Close the connections."""
        self._is_closed = True
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PendingStore({str(self._database)!r})"

    @_without_texts
    def _keep(self, state: RunState, text: str) -> None:
        # Before the transaction, in which no other process can write an SQLite file.
        rows = WaitingRows.of(state, text, self.expires)
        with self._database.transaction() as connection:
            rows.insert(connection)

    @_without_texts
    def _claim(self, state: RunState, decisions: Mapping[str, CallDecision]) -> Mapping[str, CallDecision | Denied]:
        with self._database.transaction() as connection:
            return spend(connection, state, decisions)

    @_without_texts
    def _delete(self, condition: ColumnElement[bool], of_logs: ColumnElement[bool]) -> int:
        """Delete the states that meet a condition, and the logs of the durable runs that meet `of_logs`."""
        status = case((DURABLE_RUNS.c.status == "finished", "finished"), else_="withdrawn")
        emptied = change(DURABLE_RUNS).where(of_logs).values(status=status, principal=None, last=-2)
        with self._database.transaction() as connection:
            keys = connection.execute(emptied.returning(DURABLE_RUNS.c.key)).scalars().all()
            connection.execute(delete(RUN_RECORDS).where(RUN_RECORDS.c.key.in_(keys)))
            state_ids = connection.execute(delete(RUNS).where(condition).returning(RUNS.c.state_id)).scalars().all()
            for state_id in state_ids:
                connection.execute(DELETE_CALLS, {"of_state": state_id})
                connection.execute(ADD_DELETED, {"state_id": state_id})
        return len(state_ids)


def _difference(loaded: LoadedRun, agent: str, question: Question) -> str | None:
    """Return how a run differs from one that is submitted with its key; None if it is the same.

    The instructions may differ, and the attributes: a request that is repeated may reach another release.
    """
    if loaded.agent != agent:
        return f"of the agent {loaded.agent!r}"
    if not loaded.records:  # they were deleted
        return None
    try:
        first = read_record(loaded.records[0].body)
    except ValidationError:  # whose text may quote the record
        return "that cannot be read"
    first_question = first.question() if isinstance(first, Submitted) else None
    if first_question is None or first_question.principal != question.principal:
        return "on behalf of another principal"
    if first_question.conversation_id != question.conversation_id:
        return "of another conversation"
    return None if _asked(first_question) == _asked(question) else "and another question"


def _asked(question: Question) -> list[Message]:
    return [message for message in question.messages if not isinstance(message, SystemMessage)]


def _age(since: int, now: int) -> float:
    """Return the seconds since a time."""
    return max(0.0, (now - since) / 1_000_000)


def _most(limit: int | None) -> int | None:
    if limit is None:
        return None
    expect_whole("limit", limit, 1)
    return min(limit, _MOST)


def _only_state(connection: Connection, states: Select[Any], call_id: str) -> str:
    state_ids: Sequence[str] = connection.execute(states, {"of_call": call_id}).scalars().all()
    if not state_ids:
        raise NotWaiting(f"no call with the id {call_id!r} waits: it is unknown, or its run has resumed")
    if len(state_ids) > 1:
        raise PendingStoreError(
            f"{len(state_ids)} runs that wait have a call with the id {call_id!r}: pass the run as run_id= or --run"
        )
    return state_ids[0]


def _expiry_error(call_id: str) -> NotWaiting:
    return NotWaiting(f"the call {call_id!r} has expired: it is denied when its run resumes")
