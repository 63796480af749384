"""Runs that wait for approval, as a client leaves them."""

from __future__ import annotations

import pytest

from traced_tools import AssistantMessage, ToolCall, UserMessage
from traced_tools.approvals import PendingStore, due_runs, pending_store, run_logs, waiting_runs
from traced_tools.core import PendingInput
from traced_tools.core.approval import CallDecision, Denied
from traced_tools.flow.flow import call
from traced_tools.loop.state import KeptInput, RunState, WaitingCall, text_digest

NOW = 1_800_000_000.0
"""When the calls of these runs began to wait, in seconds since 1970."""
ARGUMENTS = '{"amount":5}'


def paused(
    *call_ids: str,
    run_id: str = "run-1",
    agent: str = "desk",
    principal: str | None = None,
    arguments: str = ARGUMENTS,
    requested_at: float = NOW,
    reason: str | None = None,
    input: PendingInput | None = None,
) -> RunState:
    """Return the state of a run that waits for calls, each of which began to wait a second after the one before."""
    waiting = [
        WaitingCall(
            call_id=each,
            tool="pay",
            arguments=arguments,
            arguments_digest=text_digest(arguments),
            definition_digest="0" * 64,
            reason=reason,
            rule="large",
            intent=reason,
            requested_at=requested_at + index,
            input=None if input is None else KeptInput.of(input),
        )
        for index, each in enumerate(call_ids)
    ]
    answer = AssistantMessage([ToolCall(each.tool, each.arguments, id=each.call_id) for each in waiting])
    return RunState(
        run_ids=("run-0", run_id),
        agent=agent,
        conversation_id="c-1",
        principal=principal,
        request=(UserMessage("Pay."),),
        added=(),
        answer=answer,
        waiting=tuple(waiting),
        iteration=1,
        seconds=0.5,
    )


def around(nested: RunState, run_id: str = "run-2") -> RunState:
    """Return the state of a run that waits for an agent whose run waits."""
    state = paused("o", run_id=run_id)
    [waiting] = state.waiting
    return state.replace(waiting=(waiting.replace(tool="ask_bank", nested=nested),), answer=_asking("ask_bank"))


def _asking(name: str) -> AssistantMessage:
    return AssistantMessage([ToolCall(name, ARGUMENTS, id="o")])


def kept(store: PendingStore, state: RunState) -> RunState:
    """Keep a run in a store, as a client does, and return its state."""
    call(store.keep(state, state.to_text(None)))
    return state


def claimed(
    store: PendingStore, state: RunState, decisions: dict[str, CallDecision] | None = None
) -> dict[str, CallDecision | Denied]:
    """Claim a state, as a client does, and return the decisions."""
    return dict(call(store.claim(state, decisions or {})))


def set_microseconds(monkeypatch: pytest.MonkeyPatch, time: int) -> None:
    """Let stores read a time, in microseconds of Unix time."""
    for module in (due_runs, pending_store, run_logs, waiting_runs):
        monkeypatch.setattr(module, "unix_microseconds", lambda: time)
