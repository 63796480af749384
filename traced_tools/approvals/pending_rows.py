"""The rows of a pending store: how runs, calls and decisions are written, and how a call is read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from sqlalchemy import Row

from traced_tools.core.approval import Approve, CallDecision, Denied, Reject
from traced_tools.core.canonical import canonical_text
from traced_tools.core.checks import expect
from traced_tools.core.enums import ResumeRefusal
from traced_tools.core.tool_input import InputRequest, Provide
from traced_tools.errors import PendingStoreError, ResumeError
from traced_tools.loop.state import KeptInput, KeptQuestion, RunState
from traced_tools.stores.columns import time_of

_MICROSECOND: Final = timedelta(microseconds=1)


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
        key: the key of the run, if it is durable; else None.
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
    key: str | None = None

    @property
    def args(self) -> dict[str, Any]:
        """The arguments that the tool would receive, as a JSON object."""
        arguments: dict[str, Any] = json.loads(self.arguments)
        return arguments


def run_row(state: RunState, text: str, now: int) -> dict[str, Any]:
    """Return the row of a run that waits.

    Args:
        state: the state of the run.
        text: the text of the state.
        now: the time, in microseconds of Unix time.
    """
    return {
        "state_id": state.id,
        "run_id": state.run_ids[-1],
        "agent": state.agent,
        "conversation_id": state.conversation_id,
        "principal": state.principal,
        "state": text,
        "created_at": now,
    }


def call_rows(state: RunState, expires: timedelta | None) -> list[dict[str, Any]]:
    """Return the rows of the calls that a run waits for.

    Args:
        state: the state of the run.
        expires: how long a call can be decided, from when it began to wait; None for ever.
    """
    rows = []
    for call_id, path, call in state.leaves():
        if call.held:  # it needs no decision, so an inbox must not show it
            continue
        requested_at = round(call.requested_at * 1_000_000)
        rows.append(
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
                "expires_at": None if expires is None else requested_at + expires // _MICROSECOND,
            }
        )
    return rows


def _questions_text(kept_input: KeptInput) -> str:
    """Return the questions of a call as JSON, without what its tool gets back."""
    return json.dumps([question.model_dump(mode="json") for question in kept_input.requests])


def decision_columns(decision: CallDecision, now: int) -> Mapping[str, Any]:
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


def merge_decisions(row: Row[Any], decision: CallDecision | None) -> CallDecision | Denied | None:
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


def waiting_approval(row: Row[Any]) -> WaitingApproval:
    """Return the call that a row of `pending_queries.calls_of_waiting_runs` has.

    Raises:
        PendingStoreError: if the row cannot be read.
    """
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
                input=questions(row),
                decision=None if row.decided_at is None else _stored_decision(row),
                refusal=row.refusal,
                path=() if row.path is None else tuple(json.loads(row.path)),
                key=row.key,
            )
    except (TypeError, ValueError, OverflowError, RecursionError):
        pass  # the texts of these errors may quote the row
    raise _unreadable_row(row, "its arguments or times are invalid")


def questions(row: Row[Any]) -> tuple[InputRequest, ...]:
    """Return the questions of a call; none for a call that waits for approval."""
    if row.input is None:
        return ()
    try:
        kept_questions = [KeptQuestion.model_validate_json(json.dumps(value)) for value in json.loads(row.input)]
        return tuple(question.question() for question in kept_questions)
    except (TypeError, ValueError, RecursionError):
        pass  # the texts of these errors may quote the row
    raise _unreadable_row(row, "its questions are none of this version")


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


def _unreadable_row(row: Row[Any], problem: str) -> PendingStoreError:
    return PendingStoreError(
        f"the row of the call {row.call_id!r} in the state {row.state_id!r} cannot be read, {problem}: "
        "restore the row, or delete the state from the store"
    )
