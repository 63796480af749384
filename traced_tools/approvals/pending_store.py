"""The store in which runs wait for approval or input: an inbox of calls, decisions, and states that are spent once.

A run's state is *spent* when a run resumes from it, and a call is *decided* once. Both are conditional updates in the
transaction that relies on them, so they hold for all threads and processes that share the store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Final, Self

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Row,
    Select,
    and_,
    delete,
    exists,
    func,
    insert,
    or_,
    select,
)
from sqlalchemy import update as change

from traced_tools.approvals.pending_schema import CALLS, DELETED, PENDING_STORE, RUNS
from traced_tools.core.approval import Approve, CallDecision, Denied, Reject
from traced_tools.core.canonical import canonical_text
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.enums import RESUME_REFUSALS, ResumeRefusal
from traced_tools.core.part_check import PartCheck
from traced_tools.core.tool_input import InputRequest, Provide
from traced_tools.errors import AlreadyDecided, NotWaiting, PendingStoreError, PendingStoreUnavailable, ResumeError
from traced_tools.flow.steps import Call
from traced_tools.loop.state import KeptInput, KeptQuestion, RunState
from traced_tools.observe.instruments import PendingCounts
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions
from traced_tools.stores.columns import microseconds, time_of
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors
from traced_tools.tools.approval import check_decision

_MOST: Final = 2**31
"""The highest limit of a query, which databases accept."""
_MICROSECOND: Final = timedelta(microseconds=1)
_without_texts: Final = translate_errors(sql_problem, PendingStoreUnavailable)


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingApproval:
    """A call that waits for a decision, with the run that waits for it.

    Attributes:
        call_id: the call's id.
        run_id: the id of the run that paused.
        state_id: the id of the run's state.
        agent: the name of the client.
        conversation_id: the conversation of the run; None if it has none.
        principal: on whose behalf the run acts; None if it is not known.
        tool: the tool's name.
        arguments: the arguments that the tool would receive, as canonical JSON (RFC 8785).
        rule: the reason code of the advisor that requires approval, such as the id of a policy's rule.
        reason: why the call requires approval, in words; None if only the tool says so.
        intent: the model's reason for the call, if known.
        requested_at: when the call began to wait, in UTC.
        expires_at: when the call can no longer be decided, in UTC; None for never.
        input: the questions of the tool, if the call waits for input; empty for a call that waits for approval.
        is_last: whether all other calls of the run are decided or expired, so that the run can resume after this one.
        decision: the decision, if the call was decided and its run has not resumed yet; else None.
        refusal: why the run can't resume, if an attempt has shown it; else None.
        path: the tools through which agents were asked, the outermost first, if the call waits in a nested run; empty
            for a call of the run itself.
    """

    call_id: str
    run_id: str
    state_id: str
    agent: str
    conversation_id: str | None
    principal: str | None = field(repr=False)
    tool: str
    arguments: str = field(repr=False)
    rule: str | None
    reason: str | None = field(repr=False)
    intent: str | None = field(repr=False)
    requested_at: datetime
    expires_at: datetime | None
    is_last: bool
    input: tuple[InputRequest, ...] = ()
    decision: CallDecision | None = None
    refusal: ResumeRefusal | None = None
    path: tuple[str, ...] = ()

    @property
    def args(self) -> dict[str, Any]:
        """The arguments that the tool would receive, as a JSON object."""
        arguments: dict[str, Any] = json.loads(self.arguments)
        return arguments


class PendingStore:
    """Keeps runs that wait for approval or input, in SQLite or PostgreSQL.

    Threads, event loops and processes may share it. It connects, and creates missing tables, when it is first used.
    Everything in it is plain text: the conversation of each run, and the arguments and questions of its calls.

    Args:
        url: the path of an SQLite file, or an SQLAlchemy URL such as `postgresql+psycopg://user@host/database`, which
            needs the extra `postgresql`. A missing SQLite file is created for its owner alone.
        expires: how long a call can be decided, from when it began to wait; None for ever. A call that has expired is
            denied with the reason code `approval_timeout` when its run resumes.

    Raises:
        ConfigurationError: for a URL that cannot be used.
        TypeError, ValueError: for an invalid argument.
    """

    def __init__(self, url: str | os.PathLike[str], *, expires: timedelta | None = None) -> None:
        expect("expires", expires, (timedelta, type(None)), "a timedelta or None")
        if expires is not None and expires <= timedelta():
            raise ValueError("expires must be a positive duration, or None for calls that never expire")
        self.expires: Final = expires
        self._database: Final = Database(url, PENDING_STORE)
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
        return self._select_calls(_waiting(_now()), agent, principal, limit)

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
        return self._select_calls(_of_waiting_runs(_now()).where(_IS_REFUSED), agent, principal, limit)

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
            return [_waiting_approval(row) for row in connection.execute(query)]

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
            state_id = _only_state(connection, _states_of_call(call_id, run_id), call_id)
            of_call = and_(CALLS.c.state_id == state_id, CALLS.c.call_id == call_id)
            row = connection.execute(_of_waiting_runs(now := _now()).where(of_call)).one()
            if row.decided_at is None and row.expires_at is not None and row.expires_at <= now:
                raise _expiry_error(call_id)
        return _waiting_approval(row)

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
        values = _decision_columns(decision, now := _now())
        with self._database.transaction() as connection:
            # The lock keeps a run from resuming between the checks and the decision.
            states = _states_of_call(call_id, run_id).with_for_update()
            state_id = _only_state(connection, states, call_id)
            of_call = and_(CALLS.c.state_id == state_id, CALLS.c.call_id == call_id)
            row = connection.execute(select(CALLS).where(of_call)).one()
            # The update decides between callers that decide at once: only the first one still meets its condition.
            check_decision(call_id, _questions(row) or None, decision)
            if connection.execute(change(CALLS).where(of_call, _is_open(CALLS, now)).values(values)).rowcount != 1:
                raise _late_error(connection, state_id, call_id)

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
        query = select(RUNS.c.state).where(_is_ready(_now()))
        if agent is not None:
            query = query.where(RUNS.c.agent == agent)
        with self._database.connect() as connection:
            query = query.order_by(RUNS.c.created_at, RUNS.c.state_id).limit(_most(limit))
            return [*connection.execute(query).scalars()]

    async def aready(self, *, agent: str | None = None, limit: int | None = None) -> list[str]:
        """Return the states whose calls are all decided or expired, on asyncio; see `ready`."""
        return await Call[list[str]](self.ready, agent=agent, limit=limit).arun()

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
            connection.execute(change(RUNS).where(run).values(refused_at=_now(), refusal=reason))

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
        run = and_(RUNS.c.run_id == run_id, RUNS.c.spent_at.is_(None), _IS_REFUSED)
        with self._database.transaction() as connection:
            return connection.execute(change(RUNS).where(run).values(refused_at=None, refusal=None)).rowcount > 0

    async def aretry(self, run_id: str) -> bool:
        """Make a run that could not resume ready again, on asyncio; see `retry`."""
        return await Call[bool](self.retry, run_id).arun()

    # What ends a wait without a decision.

    @_without_texts
    def withdraw(self, run_id: str) -> bool:
        """Withdraw a run that waits, so that its calls can no longer be decided and it never resumes.

        A client does so if the user says something else in the run's conversation.

        Args:
            run_id: the id of the run that paused.

        Returns:
            whether the run waited. If it did not, `is_withdrawn` returns whether it was withdrawn before, or resumed.
        """
        expect("run_id", run_id, str, "a str")
        waits, now = and_(RUNS.c.run_id == run_id, RUNS.c.spent_at.is_(None)), _now()
        with self._database.transaction() as connection:
            return connection.execute(change(RUNS).where(waits).values(spent_at=now, withdrawn_at=now)).rowcount > 0

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

        Their random ids stay, so that no `put` brings a state back that was spent.

        Args:
            by: the time, with a time zone; None for now.
        """
        expect("by", by, (datetime, type(None)), "a datetime or None")
        if by is not None and by.tzinfo is None:
            raise ValueError("by must have a time zone: pass a time such as datetime.now(timezone.utc)")
        return self._delete(RUNS.c.spent_at <= (_now() if by is None else microseconds(by)))

    async def adelete_spent(self, by: datetime | None = None) -> int:
        """Delete spent states, on asyncio; see `delete_spent`."""
        return await Call[int](self.delete_spent, by).arun()

    def delete_principal(self, principal: str) -> int:
        """Delete all states of a principal with their calls, spent or not, and return their number.

        The runs that still wait can never resume: the random ids of their states stay, so that no `put` brings a state
        back.
        """
        expect("principal", principal, str, "a str")
        return self._delete(RUNS.c.principal == principal)

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
        """Report the calls that wait, the runs that are ready, and the runs that can't resume, as metrics by agent.

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
        now = _now()
        # A run is ready since its last call was decided or has expired.
        ready_since = func.max(func.coalesce(CALLS.c.decided_at, CALLS.c.expires_at)).label("since")
        of_runs = RUNS.join(CALLS, RUNS.c.state_id == CALLS.c.state_id)
        ready = select(RUNS.c.agent, ready_since).select_from(of_runs).where(_is_ready(now))
        ready_runs = ready.group_by(RUNS.c.state_id, RUNS.c.agent).subquery()
        waiting = select(RUNS.c.agent, func.count(), func.min(CALLS.c.requested_at)).select_from(of_runs)
        with self._database.connect() as connection:
            calls = connection.execute(
                waiting.where(RUNS.c.spent_at.is_(None), ~_IS_REFUSED, _is_open(CALLS, now)).group_by(RUNS.c.agent)
            ).all()
            runs = connection.execute(
                select(ready_runs.c.agent, func.count(), func.min(ready_runs.c.since)).group_by(ready_runs.c.agent)
            ).all()
            refused = connection.execute(
                select(RUNS.c.agent, RUNS.c.refusal, func.count())
                .where(RUNS.c.spent_at.is_(None), _IS_REFUSED)
                .group_by(RUNS.c.agent, RUNS.c.refusal)
            ).all()
        return [
            *(PendingCounts(agent, calls=count, oldest_call=_age(since, now)) for agent, count, since in calls),
            *(PendingCounts(agent, ready=count, oldest_ready=_age(since, now)) for agent, count, since in runs),
            *(PendingCounts(agent, refused={reason: count}) for agent, reason, count in refused),
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
        run = {
            "state_id": state.id,
            "run_id": state.run_ids[-1],
            "agent": state.agent,
            "conversation_id": state.conversation_id,
            "principal": state.principal,
            "state": text,
            "created_at": _now(),
        }
        calls = []
        for call_id, path, call in state.leaves():
            if call.held:
                continue
            requested_at = round(call.requested_at * 1_000_000)
            calls.append(
                {
                    "state_id": state.id,
                    "call_id": call_id,
                    "path": canonical_text(path) if path else None,
                    "tool": call.tool,
                    "arguments": call.arguments,
                    "rule": call.rule,
                    "reason": call.reason,
                    "intent": call.intent,
                    "input": None if call.input is None else _questions_text(call.input),
                    "requested_at": requested_at,
                    "expires_at": None if self.expires is None else requested_at + self.expires // _MICROSECOND,
                }
            )
        with self._database.transaction() as connection:
            # A deleted state leaves its id in DELETED: a late `put` must not bring back a state that was spent.
            existing = select(RUNS.c.state_id).where(RUNS.c.state_id == state.id)
            deleted = select(DELETED.c.state_id).where(DELETED.c.state_id == state.id)
            if connection.execute(existing.union_all(deleted)).first() is None:
                connection.execute(insert(RUNS).values(run))
                connection.execute(insert(CALLS), calls)

    @_without_texts
    def _claim(self, state: RunState, decisions: Mapping[str, CallDecision]) -> Mapping[str, CallDecision | Denied]:
        now = _now()
        columns = {call_id: _decision_columns(decision, now) for call_id, decision in decisions.items()}
        with self._database.transaction() as connection:
            # This update comes first: it locks the run's row, so that `decide` waits for the commit. An error below
            # rolls it back, so that the state is not spent.
            _spend(connection, state.id, now)
            query = select(CALLS, _is_open(CALLS, now).label("is_open")).where(CALLS.c.state_id == state.id)
            rows = connection.execute(query).all()
            stored_calls = {(row.call_id, row.tool, row.arguments) for row in rows}
            if stored_calls != {
                (call_id, call.tool, call.arguments) for call_id, _, call in state.leaves() if not call.held
            }:
                raise ResumeError(
                    "the state has other calls than the store: resume with the text that the store returns",
                    lasting="state_invalid",  # `refuse` ignores it if the store has another text
                )
            if strange := decisions.keys() - {row.call_id for row in rows}:
                raise ResumeError(f"no call with the id {min(strange)!r} waits in this state")
            for row in rows:
                if row.is_open and row.call_id in columns:
                    of_call = and_(CALLS.c.state_id == state.id, CALLS.c.call_id == row.call_id)
                    connection.execute(change(CALLS).where(of_call).values(columns[row.call_id]))
            merged = {row.call_id: _merge_decisions(row, decisions.get(row.call_id)) for row in rows}
        return {call_id: decision for call_id, decision in merged.items() if decision is not None}

    @_without_texts
    def _delete(self, condition: ColumnElement[bool]) -> int:
        with self._database.transaction() as connection:
            state_ids = connection.execute(delete(RUNS).where(condition).returning(RUNS.c.state_id)).scalars().all()
            for state_id in state_ids:
                connection.execute(delete(CALLS).where(CALLS.c.state_id == state_id))
                connection.execute(insert(DELETED).values(state_id=state_id))
        return len(state_ids)


def _now() -> int:
    """Return the time by which calls expire, in microseconds of Unix time."""
    return microseconds(datetime.now(UTC))


def _age(since: int, now: int) -> float:
    """Return the seconds since a time."""
    return max(0.0, (now - since) / 1_000_000)


# Queries.

_IS_REFUSED: Final = RUNS.c.refused_at.is_not(None)


def _is_ready(now: int) -> ColumnElement[bool]:
    """Return the condition that a run can resume: it waits, and all of its calls are decided or expired."""
    calls = CALLS.alias()  # some of the queries also select from CALLS
    has_open = exists().where(calls.c.state_id == RUNS.c.state_id, _is_open(calls, now))
    return and_(RUNS.c.spent_at.is_(None), ~_IS_REFUSED, ~has_open)


def _most(limit: int | None) -> int | None:
    if limit is None:
        return None
    expect_whole("limit", limit, 1)
    return min(limit, _MOST)


def _is_open(calls: FromClause, now: int) -> ColumnElement[bool]:
    """Return the condition that a call can be decided."""
    return and_(calls.c.decided_at.is_(None), or_(calls.c.expires_at.is_(None), calls.c.expires_at > now))


def _waiting(now: int) -> Select[Any]:
    """Return the query for calls that can be decided, of all runs that wait and can resume."""
    return _of_waiting_runs(now).where(~_IS_REFUSED, _is_open(CALLS, now))


def _of_waiting_runs(now: int) -> Select[Any]:
    """Return the query for the calls of all runs that wait."""
    other = CALLS.alias()
    has_others = exists().where(
        other.c.state_id == CALLS.c.state_id, other.c.call_id != CALLS.c.call_id, _is_open(other, now)
    )
    of_run = (RUNS.c.run_id, RUNS.c.agent, RUNS.c.conversation_id, RUNS.c.principal, RUNS.c.refusal)
    query = select(CALLS, *of_run, (~has_others).label("is_last")).join(RUNS, RUNS.c.state_id == CALLS.c.state_id)
    return query.where(RUNS.c.spent_at.is_(None))


def _states_of_call(call_id: str, run_id: str | None) -> Select[Any]:
    """Return the query for the states that wait and have a call with this id."""
    expect("call_id", call_id, str, "a str")
    expect("run_id", run_id, (str, type(None)), "a str or None")
    has_call = exists().where(CALLS.c.state_id == RUNS.c.state_id, CALLS.c.call_id == call_id)
    query = select(RUNS.c.state_id).where(RUNS.c.spent_at.is_(None), has_call)
    return query if run_id is None else query.where(RUNS.c.run_id == run_id)


def _only_state(connection: Connection, states: Select[Any], call_id: str) -> str:
    state_ids: Sequence[str] = connection.execute(states).scalars().all()
    if not state_ids:
        raise NotWaiting(f"no call with the id {call_id!r} waits: it is unknown, or its run has resumed")
    if len(state_ids) > 1:
        raise PendingStoreError(
            f"{len(state_ids)} runs that wait have a call with the id {call_id!r}: pass the run as run_id= or --run"
        )
    return state_ids[0]


def _late_error(connection: Connection, state_id: str, call_id: str) -> PendingStoreError:
    """Return the error for a call that cannot be decided, of a state that waits."""
    of_call = and_(CALLS.c.state_id == state_id, CALLS.c.call_id == call_id)
    if connection.execute(select(CALLS.c.decided_at).where(of_call)).scalar() is not None:
        return AlreadyDecided(call_id)
    return _expiry_error(call_id)


def _expiry_error(call_id: str) -> NotWaiting:
    return NotWaiting(f"the call {call_id!r} has expired: it is denied when its run resumes")


def _spend(connection: Connection, state_id: str, now: int) -> None:
    unspent = and_(RUNS.c.state_id == state_id, RUNS.c.spent_at.is_(None))
    if connection.execute(change(RUNS).where(unspent).values(spent_at=now)).rowcount == 1:
        return
    run = connection.execute(select(RUNS.c.withdrawn_at).where(RUNS.c.state_id == state_id)).first()
    if run is not None and run.withdrawn_at is not None:
        raise ResumeError("the run was withdrawn: the conversation went on without it, or somebody withdrew it")
    if run is None:
        raise ResumeError("the store does not know the state: resume with the store that its run was paused with")
    raise ResumeError("the state is spent: a run has resumed from it, and a state is spent once")


# Rows.


def _merge_decisions(row: Row[Any], decision: CallDecision | None) -> CallDecision | Denied | None:
    """Return the decision about a call of a state that is being spent; None if the call keeps waiting."""
    if row.decided_at is not None:
        earlier = _stored_decision(row)
        if decision is not None and _verdict(decision) != _verdict(earlier):
            raise ResumeError(
                f"the call {row.call_id!r} was decided otherwise before: resume without a decision about it"
            )
        return earlier
    if row.is_open:
        return decision
    if decision is not None:
        raise ResumeError(f"the call {row.call_id!r} has expired: resume without a decision about it")
    return Denied("nobody decided about it before it expired.", "approval_timeout", row.expires_at / 1_000_000)


def _decision_columns(decision: CallDecision, now: int) -> Mapping[str, Any]:
    """Return the columns of a decision.

    Raises:
        TypeError, ValueError: for a decision that cannot be recorded.
    """
    expect("decision", decision, (Approve, Reject, Provide), "an Approve, a Reject or a Provide")
    if isinstance(decision, Approve) and decision.scope != "call":
        raise ValueError("an approval of more than the call needs an ApprovalAdvisor: pass scope='call'")
    return {
        "decision": canonical_text({**_verdict(decision), "code": getattr(decision, "code", None)}),
        "decided_by": decision.by,
        "decided_at": now,
        "decision_reason": decision.reason if isinstance(decision, Reject) else None,
    }


def _verdict(decision: CallDecision) -> dict[str, Any]:
    """Return what a decision decides, as JSON; two decisions with the same verdict don't contradict each other."""
    if isinstance(decision, Reject):
        return {"decision": "reject"}
    if isinstance(decision, Provide):
        return {"decision": "provide", "answers": _as_json(decision.answers)}
    return {"decision": "approve", "arguments": _as_json(decision.arguments)}


def _as_json(arguments: Mapping[str, Any] | None) -> Any:
    return None if arguments is None else json.loads(json.dumps(dict(arguments)))


def _stored_decision(row: Row[Any]) -> CallDecision:
    """Return the decision about a call that was decided."""
    try:
        match json.loads(row.decision):
            case {"decision": "approve", "arguments": arguments, "code": code}:
                return Approve(by=row.decided_by, arguments=arguments, code=code, decided_at=row.decided_at / 1_000_000)
            case {"decision": "reject", "code": code}:
                return Reject(row.decision_reason, by=row.decided_by, code=code, decided_at=row.decided_at / 1_000_000)
            case {"decision": "provide", "answers": answers}:
                return Provide(answers, by=row.decided_by, decided_at=row.decided_at / 1_000_000)
    except (TypeError, ValueError, RecursionError):
        pass  # the texts of these errors may quote the row
    raise _unreadable_row(row, "its decision is none of this version")


def _questions_text(kept_input: KeptInput) -> str:
    """Return the questions of a call as JSON, without what its tool gets back."""
    return json.dumps([question.model_dump(mode="json") for question in kept_input.requests])


def _questions(row: Row[Any]) -> tuple[InputRequest, ...]:
    """Return the questions of a call; none for a call that waits for approval."""
    if row.input is None:
        return ()
    try:
        questions = [KeptQuestion.model_validate_json(json.dumps(value)) for value in json.loads(row.input)]
        return tuple(question.question() for question in questions)
    except (TypeError, ValueError, RecursionError):
        pass  # the texts of these errors may quote the row
    raise _unreadable_row(row, "its questions are none of this version")


def _waiting_approval(row: Row[Any]) -> WaitingApproval:
    try:
        if isinstance(json.loads(row.arguments), dict):
            return WaitingApproval(
                call_id=row.call_id,
                run_id=row.run_id,
                state_id=row.state_id,
                agent=row.agent,
                conversation_id=row.conversation_id,
                principal=row.principal,
                tool=row.tool,
                arguments=row.arguments,
                rule=row.rule,
                reason=row.reason,
                intent=row.intent,
                requested_at=time_of(row.requested_at),
                expires_at=None if row.expires_at is None else time_of(row.expires_at),
                is_last=bool(row.is_last),
                input=_questions(row),
                decision=None if row.decided_at is None else _stored_decision(row),
                refusal=row.refusal,
                path=() if row.path is None else tuple(json.loads(row.path)),
            )
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the texts of these errors may quote the row
    raise _unreadable_row(row, "its arguments or times are invalid")


def _unreadable_row(row: Row[Any], problem: str) -> PendingStoreError:
    return PendingStoreError(
        f"the row of the call {row.call_id!r} in the state {row.state_id!r} cannot be read, {problem}: "
        "restore the row, or delete the state from the store"
    )
