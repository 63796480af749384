"""A client with a store: its runs wait there, and go on once with the decisions that were taken there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from tests.modes import run
from traced_tools import Approve, ChatClient, PendingStore, Reject, ToolCall, tool
from traced_tools.errors import ResumeError
from traced_tools.testing import ScriptedChatModel

PAID: list[int] = []


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(amount)
    return f"paid {amount}"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    PAID.clear()


def client(store: PendingStore, *turns: list[ToolCall] | str) -> ChatClient:
    return ChatClient(ScriptedChatModel([*turns]), name="desk", tools=[pay], pending_store=store)


def pays(*amounts: int) -> list[ToolCall]:
    return [ToolCall("pay", {"amount": each}, id=f"p{each}") for each in amounts]


def test_a_run_waits_in_the_store_and_goes_on_once(store: PendingStore, mode: str) -> None:
    agent = client(store, pays(1, 2, 3), "done")
    response = run(mode, agent.prompt("?", principal="ana"))
    waiting = store.pending(agent="desk", principal="ana")
    assert sorted(each.call_id for each in waiting) == ["p1", "p2", "p3"]  # they began to wait at the same time
    assert store.state(response.run_id) == response.state
    store.decide("p1", Approve(by="ana"))
    store.decide("p2", Approve(by="ana", arguments={"amount": 7}))
    store.decide("p3", Reject("too much", by="bob"))
    [state] = store.ready()
    done = run(mode, agent.resume(state))
    assert [(each.decision, each.by) for each in done.tool_results] == [
        ("approved", "ana"),
        ("approved", "ana"),
        ("rejected", "bob"),
    ]
    assert sorted(PAID) == [1, 7]
    with pytest.raises(ResumeError, match="the state is spent"):
        run(mode, agent.resume(state))
    assert sorted(PAID) == [1, 7]
    assert store.ready() == []


def test_a_call_that_nobody_decided_waits_on_under_its_id(store: PendingStore, mode: str) -> None:
    agent = client(store, pays(1, 2), "done")
    first = run(mode, agent.prompt("?"))
    assert first.state is not None
    second = run(mode, agent.resume(first.state, {"p1": Approve()}))
    [waiting] = store.pending()
    assert (waiting.call_id, waiting.run_id, waiting.is_last) == ("p2", second.run_id, True)
    store.decide("p2", Approve())
    assert run(mode, agent.resume(store.ready()[0])).content == "done"
    assert PAID == [1, 2]


def test_an_expired_call_is_denied_when_its_run_goes_on(tmp_path: Path, mode: str) -> None:
    with PendingStore(f"sqlite:///{tmp_path}/pending.db", expires=timedelta(microseconds=1)) as store:
        agent = client(store, pays(1), "done")
        run(mode, agent.prompt("?"))
        [result] = run(mode, agent.resume(store.ready()[0])).tool_results
    assert (result.decision, result.reason_code) == ("denied", "approval_timeout")
    assert "nobody decided about it before it expired" in result.content
    assert not PAID
