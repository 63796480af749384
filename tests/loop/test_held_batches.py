"""Answers whose calls all wait until each of them is decided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, run
from traced_tools import (
    ApprovalAdvisor,
    ApprovalRequest,
    Approve,
    ChatClient,
    ChatClientResponse,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    tool,
)
from traced_tools.approvals import PendingStore
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

DONE: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    DONE.append(f"pay {amount}")
    return f"paid {amount}"


@tool
def look() -> str:
    """Look."""
    DONE.append("look")
    return "seen"


@tool(sequential=True)
def write() -> str:
    """Write."""
    DONE.append("write")
    return "written"


PAYS, LOOKS, WRITES = (
    ToolCall("pay", {"amount": 5}, id="p"),
    ToolCall("look", {}, id="l"),
    ToolCall("write", {}, id="w"),
)


def client(*turns: Any, **settings: Any) -> ChatClient:
    loop = ToolCallingAdvisor(ToolCallingManager(hold="batch", max_concurrency=settings.pop("max_concurrency", 64)))
    settings = {"tools": [pay, look, write], "tool_calling_advisor": loop, **settings}
    return ChatClient(ScriptedChatModel([*turns]), **settings)


def decisions(response: ChatClientResponse) -> dict[str, str]:
    return {each.call_id: each.decision for each in response.tool_results}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("most", [1, 64])
def test_no_call_of_an_answer_runs_while_one_waits(mode: str, most: int) -> None:
    response = run(mode, client([LOOKS, PAYS, WRITES], max_concurrency=most).prompt("?"))
    assert (response.stop_reason, DONE) == ("awaiting_approval", [])
    assert [(each.call_id, each.held) for each in response.pending] == [("l", True), ("p", False), ("w", True)]
    assert response.state is not None
    resumed = run(mode, client("done", max_concurrency=most).resume(response.state, {"p": Approve(by="ana")}))
    assert resumed.content == "done"
    assert sorted(DONE[:2]) == ["look", "pay 5"]
    assert DONE[2:] == ["write"]
    assert decisions(resumed) == {"l": "allowed", "p": "approved", "w": "allowed"}


@pytest.mark.parametrize("mode", MODES)
def test_the_calls_run_once_somebody_has_decided_about_the_last_one(mode: str) -> None:
    seen: list[list[str]] = []

    def ask(request: ApprovalRequest) -> Approve | Reject:
        seen.append([*DONE])
        return Approve() if request.args["amount"] < 10 else Reject("too much")

    large = ToolCall("pay", {"amount": 50}, id="q")
    spec = client([LOOKS, PAYS, large, WRITES], "done", advisors=[ApprovalAdvisor(ask)]).prompt("?")
    response = run(mode, spec)
    assert seen == [[], []]
    assert sorted(DONE) == ["look", "pay 5", "write"]
    assert decisions(response) == {"l": "allowed", "p": "approved", "q": "rejected", "w": "allowed"}


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_call_does_not_hold_the_others(mode: str) -> None:
    policy = Policy([Rule("no", then="deny", tool="pay")], default="allow")
    response = run(mode, client([LOOKS, PAYS], "done", advisors=[PolicyAdvisor(policy)]).prompt("?"))
    assert DONE == ["look"]
    assert decisions(response) == {"l": "allowed", "p": "denied"}


def test_a_store_lists_only_the_calls_that_need_a_decision(tmp_path: Path) -> None:
    with PendingStore(f"sqlite:///{tmp_path}/pending.db") as store:
        client([LOOKS, PAYS], pending_store=store).prompt("?").call()
        assert [each.call_id for each in store.pending()] == ["p"]
        store.decide("p", Approve())
        [state] = store.ready()
        assert client("done", pending_store=store).resume(state).call().content == "done"
    assert sorted(DONE) == ["look", "pay 5"]


def test_a_single_call_waits_for_nobody() -> None:
    assert client(LOOKS, "done").prompt("?").call().content == "done"


def test_each_held_call_has_one_span() -> None:
    telemetry = Telemetry()
    client([LOOKS, PAYS], telemetry=telemetry.options).prompt("?").call()
    assert len(telemetry.named("refuse_tool")) == 2
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_the_spans_of_held_calls_end_if_the_run_is_cancelled_while_one_waits(mode: str) -> None:
    telemetry = Telemetry()

    def ask(request: ApprovalRequest) -> Approve:
        raise KeyboardInterrupt

    spec = client([LOOKS, PAYS], advisors=[ApprovalAdvisor(ask, timeout=None)], telemetry=telemetry.options).prompt("?")
    with pytest.raises(KeyboardInterrupt):
        run(mode, spec)
    telemetry.check_each_ended_once()
    assert DONE == []


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match="'call' or 'batch'"):
        ToolCallingManager(hold="answer")  # type: ignore[arg-type]
