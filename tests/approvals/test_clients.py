"""A client with a store: its runs wait there, and go on once with the decisions that were taken there."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from tests.approvals.made import set_microseconds
from tests.captured import Telemetry
from tests.markers import everything
from tests.modes import run
from traced_tools import Advisor, Approve, ChatClient, MemoryAdvisor, Reject, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.core import ToolCallback
from traced_tools.errors import ChatMemoryUnavailable, PendingStoreUnavailable, ResumeError, StateNotKept
from traced_tools.loop.advisor import AdviseNext
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.loop.state import RunState
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.view import MemoryView
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import tool_callbacks

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


class Outage(MessageWindowChatMemory):
    """A memory that can be down."""

    is_down = False

    async def read(self, log: LogReader) -> MemoryView:
        if self.is_down:
            raise ChatMemoryUnavailable("the memory is down")
        return await super().read(log)


class OutageAdvisor(Advisor):
    """An advisor outside the loop that can fail."""

    name, order, is_down = "guard", 100, False

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if self.is_down:
            raise ChatMemoryUnavailable("the guard is down")
        return await call_next(request)


class OutageResolver:
    """A resolver that can be down."""

    is_down = False

    def resolve(self, name: str) -> ToolCallback | None:
        if self.is_down:
            raise ChatMemoryUnavailable("the resolver is down")
        return tool_callbacks(pay)[0]


@pytest.mark.parametrize("what", ["outer memory", "inner memory", "advisor", "resolver"])
def test_a_run_that_could_not_begin_leaves_its_state_unspent(store: PendingStore, mode: str, what: str) -> None:
    memory, guard, resolver = Outage(InMemoryChatMemoryRepository()), OutageAdvisor(), OutageResolver()
    broken = {"advisor": guard, "resolver": resolver}.get(what, memory)
    advisors = [MemoryAdvisor(memory, order=400 if what == "inner memory" else 200), guard]
    agent = client(store, pays(1), "done").replace(advisors=advisors)
    if what == "resolver":
        agent = agent.replace(tools=[], resolver=resolver, resolver_fallback=True)
    run(mode, agent.prompt("?", conversation_id="c"))
    store.decide("p1", Approve())
    [state] = store.ready()
    broken.is_down = True
    with pytest.raises(ChatMemoryUnavailable):
        run(mode, agent.resume(state))
    assert store.ready() == [state]
    broken.is_down = False
    assert run(mode, agent.resume(state)).content == "done"
    assert PAID == [1]


def test_a_tool_that_has_changed_leaves_the_state_unspent(store: PendingStore, mode: str) -> None:
    agent = client(store, pays(1), "done")
    run(mode, agent.prompt("?"))
    store.decide("p1", Approve())
    [state] = store.ready()
    with pytest.raises(ResumeError, match="is gone"):
        run(mode, agent.replace(tools=[]).resume(state))
    assert run(mode, agent.resume(state)).content == "done"


@pytest.mark.parametrize("place", [200, 400])
def test_a_call_that_the_conversation_has_passed_by_leaves_the_inbox(
    store: PendingStore, mode: str, place: int
) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=place)
    agent = client(store, pays(1), pays(2), "fine", "really").replace(advisors=[memory])
    asked = run(mode, agent.prompt("pay", conversation_id="c"))
    other = run(mode, agent.prompt("pay", conversation_id="other"))
    run(mode, agent.prompt("never mind", conversation_id="c"))
    assert [each.run_id for each in store.pending()] == [other.run_id]
    with pytest.raises(ResumeError):
        run(mode, agent.resume(asked.state or "", {"p1": Approve()}))
    with pytest.raises(ResumeError, match="the run was withdrawn"):
        run(mode, agent.replace(advisors=[]).resume(asked.state or "", {"p1": Approve()}))
    assert not PAID


def test_a_store_that_is_down_does_not_fail_what_the_user_says_next(
    store: PendingStore, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(run_id: str) -> bool:
        raise PendingStoreUnavailable("mArKeR")

    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=400)
    agent = client(store, pays(1), "fine").replace(advisors=[memory])
    run(mode, agent.prompt("pay", conversation_id="c"))
    monkeypatch.setattr(store, "withdraw", fails)
    assert run(mode, agent.prompt("never mind", conversation_id="c")).content == "fine"
    assert "stays in the pending store: traced_tools.errors.PendingStoreUnavailable" in caplog.text
    assert "mArKeR" not in caplog.text


def test_the_wait_is_measured_until_the_decision_and_not_until_the_run_resumes(
    store: PendingStore, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry()
    agent = client(store, pays(1), "done").replace(telemetry=telemetry.options)
    response = run(mode, agent.prompt("?"))
    decided_at = response.pending[0].requested_at + 90
    set_microseconds(monkeypatch, round(decided_at * 1_000_000))
    store.decide("p1", Approve())
    set_microseconds(monkeypatch, round((decided_at + 3600) * 1_000_000))
    run(mode, agent.resume(store.ready()[0]))
    [point] = telemetry.metric(names.APPROVAL_WAIT.name)
    assert point.sum == pytest.approx(90, abs=0.001)


class Down(PendingStore):
    """A store that can be down when a run pauses, before or after it has kept the run."""

    has_kept: bool | None = None

    async def keep(self, state: RunState, text: str) -> None:
        if self.has_kept is not False:
            await super().keep(state, text)
        if self.has_kept is not None:
            raise PendingStoreUnavailable(f"the store is down: {text}")


@pytest.mark.parametrize("has_kept", [False, True])
def test_the_state_of_a_run_that_the_store_could_not_keep_is_on_the_error(url: str, mode: str, has_kept: bool) -> None:
    with Down(url) as store:
        store.has_kept = has_kept
        agent = client(store, pays(1), "done")
        with pytest.raises(StateNotKept, match="could not keep a run that waits") as failed:
            run(mode, agent.prompt("What is mArKeR?"))
        shown = everything([failed.value, failed.value.__context__, failed.value.__cause__])
        assert "mArKeR" not in shown
        assert isinstance(failed.value.original, PendingStoreUnavailable)
        for _ in range(2):
            store.put(failed.value.state)
        store.decide("p1", Approve())
        assert run(mode, agent.resume(store.ready()[0])).content == "done"
        asyncio.run(store.aput(failed.value.state))
        assert store.ready() == []
        with pytest.raises(ResumeError, match="not the state of a run"):
            store.put("{}")
        unkept = agent.replace(pending_store=None, model=ScriptedChatModel([pays(2)])).prompt("?").call().state
        assert unkept is not None
        with pytest.raises(ResumeError, match="paused without a store"):
            store.put(unkept)
    assert PAID == [1]
