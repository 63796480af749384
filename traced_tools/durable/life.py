"""One life of a durable run: what a process records while it drives the run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from traced_tools.core.approval import Approve, CallDecision, Denied
from traced_tools.core.messages import UsageSum
from traced_tools.durable.records import (
    Answered,
    CallBegan,
    CallEnded,
    CallWaits,
    Claimed,
    Finished,
    KeptDecision,
    LifeBegan,
    LifeFailed,
    Paused,
    Record,
    SpentRecord,
    StoredRecord,
    stored_record,
)
from traced_tools.durable.recovery import Recovery, exchange
from traced_tools.errors import RunTaken
from traced_tools.flow.steps import Call
from traced_tools.loop.state import KeptByAdvisor, KeptResult, RunState, WaitingCall
from traced_tools.observe.failures import error_type
from traced_tools.observe.scopes.durable_run import LifeMetrics

if TYPE_CHECKING:
    from traced_tools.core.approval import PendingCall
    from traced_tools.core.enums import ResumeRefusal, RunStatus
    from traced_tools.core.messages import AssistantMessage, Message
    from traced_tools.core.state_key import StateKey
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.run.context import RunContext

T = TypeVar("T")

KEY_ATTRIBUTE: Final = "run.key"
"""The attribute with the key of the run, on the spans, events and audit records of each life."""
LIFE_ATTRIBUTE: Final = "run.life"
"""The attribute with the number of the life."""


class AppendsRecords(Protocol):
    """A store of logs. Its methods block, and each is one transaction.

    Each raises `RunTaken`, and changes nothing, if the log's last record is not the one before.
    """

    def append(
        self, key: str, record: StoredRecord, status: RunStatus | None = None, refusal: ResumeRefusal | None = None
    ) -> None:
        """Append a record, and set the status of the run; None keeps it."""

    def check_last(self, key: str, number: int) -> None:
        """Raise `RunTaken` unless the last record has this number."""

    def pause(self, key: str, record: StoredRecord, state: RunState, text: str) -> None:
        """Append a record, and keep the state of a run that waits."""

    def claim(
        self,
        key: str,
        state: RunState,
        decisions: Mapping[str, CallDecision],
        record_of: Callable[[Mapping[str, CallDecision | Denied]], StoredRecord],
    ) -> Mapping[str, CallDecision | Denied]:
        """Spend a state, append the record about the decisions, and return the decisions."""


class Life:
    """One life of a durable run; the journal of the run that a process begins to drive it.

    Args:
        log: where the records are.
        key: the key of the run.
        agent: the client that drives it.
        recovery: what the records so far add up to.
        last: the last record.
        state_key: signs the records; None for none.
        idle_since: the status in which the run was left, and when, in seconds of Unix time.
        is_last: whether no other life begins by itself if an error ends this one.

    Attributes:
        question: what the run is asked.
        state: where it goes on; None if it begins.
        number: the number of this life, from 1.
    """

    def __init__(
        self,
        log: AppendsRecords,
        key: str,
        agent: str,
        recovery: Recovery,
        last: StoredRecord,
        state_key: StateKey | None,
        *,
        idle_since: tuple[RunStatus, float],
        is_last: bool,
    ) -> None:
        question = recovery.submitted.question()
        self.number: Final = len(recovery.run_ids) + 1
        attributes = {**question.attributes, KEY_ATTRIBUTE: key, LIFE_ATTRIBUTE: self.number}
        self.question: Final = replace(question, attributes=attributes)
        self.state: Final = recovery.state(agent, attributes)
        self._idle_since, self._is_last = idle_since, is_last
        self._metrics: LifeMetrics | None = None
        self._is_taken = False
        self._decisions, self._waits = recovery.decisions, recovery.waits
        self._log = log
        self._key = key
        self._state_key = state_key
        self._number, self._digest = last.number, last.digest
        self._messages: Sequence[Message] = recovery.messages
        self._answer, self._results = recovery.answer, dict(recovery.results)
        self._advisor_states: Callable[[], Sequence[KeptByAdvisor]] = tuple
        # Calls of an answer end in several threads. A number is taken only when the record before is committed:
        # otherwise, a process that was overtaken could still commit a number that nobody has taken.
        self._writing = threading.Lock()

    async def began(
        self, run: RunContext, traceparent: str | None, advisor_states: Callable[[], Sequence[KeptByAdvisor]]
    ) -> None:
        """Take the run over, as a flow, before anything happens in it.

        Args:
            run: the run.
            traceparent: its W3C trace context; None if it is not traced.
            advisor_states: returns what advisors keep of the run.
        """
        self._advisor_states = advisor_states
        self._metrics = LifeMetrics(run.telemetry)
        await self._append(LifeBegan(run_id=run.id, traceparent=traceparent), "running")
        status, time_left = self._idle_since
        self._metrics.began(status, max(0.0, time.time() - time_left))  # clocks of two machines may differ

    async def check_taken(self) -> None:
        """Raise `RunTaken` if another process has taken the run over, as a flow."""
        await Call[None](self._check_last)

    def _check_last(self) -> None:
        with self._writing:
            self._log.check_last(self._key, self._number)

    async def answered(
        self, run: RunContext, answer: AssistantMessage, messages: Sequence[Message], iteration: int
    ) -> None:
        """Record an answer that calls tools; see `Journal.answered`."""
        logged = (*self._messages, *(() if self._answer is None else exchange(self._answer, self._results)))
        size = 0
        for message, before in zip(messages, logged, strict=False):
            if message is not before and message != before:
                break
            size += 1
        self._messages, self._answer, self._results = messages, answer, {}
        await self._append(
            Answered(
                iteration=iteration,
                answer=answer,
                prefix=size,
                messages=tuple(messages[size:]),
                advisors=tuple(self._advisor_states()),
                spent=_spent(run),
            )
        )

    async def call_begins(self, call_id: str, *, repeatable: bool) -> None:
        """Record that the tool of a call begins; see `Journal.call_begins`."""
        await self._append(CallBegan(call_id=call_id, repeatable=repeatable))

    async def call_ended(self, run: RunContext, result: ToolResult) -> None:
        """Record the result of a call; see `Journal.call_ended`."""
        kept_result = self._results[result.call_id] = KeptResult.of(result)
        await self._append(CallEnded(result=kept_result, spent=_spent(run)))
        is_cut = self.state is not None and result.call_id in self.state.cut
        if is_cut and result.outcome == "unknown" and self._metrics is not None:
            self._metrics.cut_call_answered()

    async def call_waits(self, run: RunContext, pending: PendingCall) -> None:
        """Record that a call whose tool has begun waits; see `Journal.call_waits`."""
        await self._append(CallWaits(call=WaitingCall.of(pending), spent=_spent(run)))

    async def pause(self, state: RunState, text: str) -> None:
        """Record that the run waits, and keep its state, as a flow."""
        spent = SpentRecord(
            usage=state.usage, nested=state.nested, seconds=state.seconds, discovered_tools=state.discovered_tools
        )
        record = Paused(state_id=state.id, waiting=state.waiting, advisors=state.advisors, spent=spent)
        await Call[None](self._write, record, lambda row: self._log.pause(self._key, row, state, text))

    async def claim(
        self, state: RunState, decisions: Mapping[str, CallDecision]
    ) -> Mapping[str, CallDecision | Denied]:
        """Return the decisions about the calls of a state that wait, as a flow; spend the state if no life has."""
        if self._waits:
            self._decisions = await Call[Mapping[str, CallDecision | Denied]](self._claim, state, decisions)
        return {
            call_id: decision
            for call_id, decision in (self._decisions or {}).items()
            if state.waits_for(call_id) or (call_id in state.cut and isinstance(decision, Approve))
        }

    async def finished(self, content: str, stop_reason: str) -> None:
        """Record the end of the run, as a flow."""
        await self._append(Finished(content=content, stop_reason=stop_reason), "finished")
        if self._metrics is not None:
            self._metrics.ended("finished", self.number)

    async def failed(self, error: BaseException, *, lasting: bool, refusal: ResumeRefusal | None = None) -> None:
        """Record that an error has ended this life, as a flow.

        Args:
            error: the error.
            lasting: whether another life would fail as well, so that none is begun unless somebody asks for it.
            refusal: why the calls that wait can't go on; None if nothing waits, or if they can.
        """
        record = LifeFailed(error_type=error_type(error), lasting=lasting)
        has_failed = lasting or self._is_last
        await self._append(record, "failed" if has_failed else "interrupted", refusal)
        if has_failed and self._metrics is not None:
            self._metrics.ended("failed", self.number)

    async def _append(
        self, record: Record, status: RunStatus | None = None, refusal: ResumeRefusal | None = None
    ) -> None:
        await Call[None](self._write, record, lambda row: self._log.append(self._key, row, status, refusal))

    def _write(self, record: Record, write: Callable[[StoredRecord], Any]) -> None:
        with self._writing:
            row = self._row(record)
            self._measured(lambda: write(row))
            self._number, self._digest = row.number, row.digest

    def _measured(self, write: Callable[[], T]) -> T:
        """Call a function that writes to the log. The caller holds the lock."""
        metrics, began = self._metrics, time.perf_counter()
        try:
            result = write()
        except RunTaken:
            if metrics is not None and not self._is_taken:  # the other calls of an answer meet it as well
                metrics.taken()
            self._is_taken = True
            raise
        if metrics is not None:
            metrics.recorded(time.perf_counter() - began)
        return result

    def _row(self, record: Record) -> StoredRecord:
        return stored_record(record, self._key, self._number + 1, self._digest, self._state_key)

    def _claim(self, state: RunState, decisions: Mapping[str, CallDecision]) -> Mapping[str, CallDecision | Denied]:
        rows: list[StoredRecord] = []

        def record_of(claimed: Mapping[str, CallDecision | Denied]) -> StoredRecord:
            decisions_by_id = {call_id: KeptDecision.of(decision) for call_id, decision in claimed.items()}
            rows.append(self._row(Claimed(decisions=decisions_by_id)))
            return rows[-1]

        with self._writing:
            claimed = self._measured(lambda: self._log.claim(self._key, state, decisions, record_of))
            self._number, self._digest = rows[-1].number, rows[-1].digest
        return claimed


def _spent(run: RunContext) -> SpentRecord:
    """Return what a run has used, with the runs that it resumes."""
    usage = UsageSum()
    usage.add(None if run.resumption is None else run.resumption.paused.usage)
    usage.add(run.totals.usage.total)
    return SpentRecord(
        usage=usage.total,
        nested=run.totals.nested_usage(),
        seconds=run.tally.seconds(),
        discovered_tools=run.discovered_tools,
    )
