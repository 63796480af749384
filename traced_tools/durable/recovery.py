"""Where a run goes on, by what its log says: a pure function of the records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from traced_tools.core.approval import CallDecision, Denied, nested_id
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.messages import AssistantMessage, Message, tool_message_of
from traced_tools.durable.records import (
    Answered,
    CallBegan,
    CallEnded,
    CallWaits,
    Claimed,
    Finished,
    LifeBegan,
    LifeFailed,
    Paused,
    Record,
    SpentRecord,
    Submitted,
)
from traced_tools.loop.state import KeptByAdvisor, KeptResult, RunState, WaitingCall

_NOTHING_SPENT: Final = SpentRecord(seconds=0)


def exchange(answer: AssistantMessage, results: Mapping[str, KeptResult]) -> tuple[Message, ...]:
    """Return an answer and the message with the results of its calls, as a model reads them."""
    kept_results = [results.get(call.id or "") for call in answer.tool_calls]
    parts = [kept_result.result().part() for kept_result in kept_results if kept_result is not None]
    return (answer, tool_message_of(parts)) if parts else (answer,)


@dataclass(slots=True)
class Recovery:
    """What the records of a log add up to.

    Attributes:
        submitted: what the run was asked.
        run_ids: the ids of its lives, the first one first.
        traceparent: the trace context of the last life that was traced.
        messages: what the loop had added to its request before the answer.
        answer: the last answer with calls; None before the first one.
        iteration: the iteration of the answer.
        results: the results of the calls of the answer, by the call's id.
        sent_ids: the ids of the calls whose results the conversation has, because the run has paused since.
        starts: the ids of the calls whose tools have begun, each with whether the tool may run again.
        waiting: the calls that waited at the last pause, or wait since then, and have no result, by id.
        state_id: the id of the state with which the run paused; None if it has not paused at the answer.
        decisions: the decisions with which the run went on, about calls that have not begun to wait again; None while
            it waits.
        advisors: what advisors keep.
        spent: what the run has used.
        ended: the record that ends the run; None if it goes on.
    """

    submitted: Submitted
    run_ids: tuple[str, ...] = ()
    traceparent: str | None = None
    messages: tuple[Message, ...] = ()
    answer: AssistantMessage | None = None
    iteration: int = 0
    results: dict[str, KeptResult] = field(default_factory=dict)
    sent_ids: frozenset[str] = frozenset()
    starts: dict[str, bool] = field(default_factory=dict)
    waiting: dict[str, WaitingCall] = field(default_factory=dict)
    state_id: str | None = None
    decisions: Mapping[str, CallDecision | Denied] | None = None
    advisors: tuple[KeptByAdvisor, ...] = ()
    spent: SpentRecord = _NOTHING_SPENT
    ended: Finished | None = None

    @classmethod
    def of(cls, records: Sequence[Record]) -> Recovery:
        """Return what the records of a log add up to; the first one says what the run was asked."""
        first, *others = records
        assert isinstance(first, Submitted)
        recovery = cls(first)
        for record in others:
            recovery._take(record)
        return recovery

    @property
    def waits(self) -> bool:
        """Whether the run waits for a person."""
        return self.state_id is not None and self.decisions is None

    def state(self, agent: str, attributes: Mapping[str, Any]) -> RunState | None:
        """Return where the next life goes on; None if there was none, so that the run begins.

        Args:
            agent: the name of the client.
            attributes: the attributes of the next life.
        """
        if not self.run_ids:
            return None
        submitted = self.submitted
        return RunState(
            id=self.state_id or time_ordered_id(),
            run_ids=self.run_ids,
            traceparent=self.traceparent,
            agent=agent,
            conversation_id=submitted.conversation_id,
            principal=submitted.principal,
            attributes=dict(attributes),
            request=submitted.request,
            added=self.messages,
            answer=self.answer,
            results=tuple(self.results.values()),
            waiting=tuple(call for call_id, call in self.waiting.items() if not self._is_cut(call_id)),
            cut=tuple(call_id for call_id in self.starts if self._is_cut(call_id)),
            unsent=tuple(call_id for call_id in self.results if call_id not in self.sent_ids),
            iteration=self.iteration,
            usage=self.spent.usage,
            nested=self.spent.nested,
            seconds=self.spent.seconds,
            is_kept=True,
            discovered_tools=self.spent.discovered_tools,
            advisors=self.advisors,
        )

    def conversation(self) -> tuple[Message, ...]:
        """Return what the loop had added to its request, with the last answer and the results of its calls."""
        return self.messages if self.answer is None else (*self.messages, *exchange(self.answer, self.results))

    def _is_cut(self, call_id: str) -> bool:
        """Return whether the tool of a call has begun, has no result, and may not run again."""
        return call_id not in self.results and self.starts.get(call_id) is False

    def _forget_decisions(self, call: WaitingCall) -> None:
        """Forget what was decided about a call, or its nested run, that has gone on and waits again."""
        if self.decisions is not None:
            inner = nested_id(call.call_id, "")
            self.decisions = {
                call_id: decision
                for call_id, decision in self.decisions.items()
                if call_id != call.call_id and not call_id.startswith(inner)
            }

    def _take(self, record: Record) -> None:
        match record:
            case LifeBegan():
                self.run_ids = (*self.run_ids, record.run_id)
                self.traceparent = record.traceparent or self.traceparent
            case Answered():
                self.messages = (*self.conversation()[: record.prefix], *record.messages)
                self.answer, self.iteration = record.answer, record.iteration
                self.results, self.starts, self.waiting, self.sent_ids = {}, {}, {}, frozenset()
                self.state_id = self.decisions = None
                self.advisors, self.spent = record.advisors, record.spent
            case CallBegan():
                self.starts[record.call_id] = record.repeatable
            case CallEnded():
                self.results[record.result.call_id] = record.result
                self.waiting.pop(record.result.call_id, None)
                self.spent = record.spent
            case CallWaits():
                self.waiting[record.call.call_id] = record.call
                self.starts.pop(record.call.call_id, None)
                self.spent = record.spent
                self._forget_decisions(record.call)
            case Paused():
                self.waiting = {call.call_id: call for call in record.waiting}
                self.starts = {}
                self.sent_ids = frozenset(self.results)
                self.state_id, self.decisions = record.state_id, None
                self.advisors, self.spent = record.advisors, record.spent
            case Claimed():
                self.decisions = {call_id: decision.decided() for call_id, decision in record.decisions.items()}
            case Finished():
                self.ended = record
            case LifeFailed() | Submitted():  # the state of the row says what follows from a failure
                pass
