"""A decided run that can't resume is kept apart with the reason, so that no worker tries for ever."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.approvals.made import kept, paused
from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.memory.sql_store import execute
from tests.modes import run
from traced_tools import Approve, ChatClient, MemoryAdvisor, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.errors import PendingStoreUnavailable, ResumeError
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@tool(requires_approval=True, name="pay")
def pay_in(amount: int, currency: str = "EUR") -> str:
    """Pay in a currency."""
    return f"paid {amount} {currency}"


def asked(store: PendingStore, **settings: object) -> ChatClient:
    """Return a client whose run waits, with a decision."""
    turns = [ToolCall("pay", {"amount": 5}, id="a"), "Done."]
    client = ChatClient(ScriptedChatModel(turns), name="desk", tools=[pay], pending_store=store, **settings)
    client.prompt(MARKER, principal=MARKER).call()
    store.decide("a", Approve(by=MARKER))
    return client


def resume_ready(store: PendingStore, client: ChatClient, mode: str = "call") -> list[str]:
    """Resume what is ready, as the worker of the docs does, and return how that ended."""
    ends = []
    for state in store.ready(agent="desk"):
        try:
            ends.append(run(mode, client.resume(state)).content)
        except ResumeError as error:
            ends.append(str(error.lasting))
    return ends


def test_a_worker_tries_a_run_whose_tool_has_changed_once(store: PendingStore, mode: str) -> None:
    client = asked(store)
    changed = client.replace(tools=[pay_in])
    assert [resume_ready(store, changed, mode) for _ in range(2)] == [["tool_changed"], []]
    assert store.pending() == []
    (refused,) = store.refused(agent="desk")
    assert (refused.call_id, refused.refusal, type(refused.decision)) == ("a", "tool_changed", Approve)
    assert store.refused(agent="shop") == store.refused(principal="bob") == []


def test_a_refused_run_resumes_after_a_retry(store: PendingStore) -> None:
    client = asked(store)
    run_id = store.find("a").run_id
    assert not store.retry(run_id)
    assert resume_ready(store, client.replace(tools=[])) == ["tool_missing"]
    assert store.retry(run_id)
    assert store.refused() == []
    assert resume_ready(store, client) == ["Done."]
    assert not store.retry(run_id)


def test_a_refused_run_can_be_resumed_by_its_id_and_withdrawn(store: PendingStore) -> None:
    client = asked(store)
    resume_ready(store, client.replace(tools=[]))
    assert client.resume(store.state(store.find("a").run_id)).call().content == "Done."
    assert store.refused() == []


@pytest.mark.parametrize("order", [200, 400], ids=["outside the loop", "inside"])
def test_a_run_whose_conversation_went_on_elsewhere_is_refused(store: PendingStore, order: int) -> None:
    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=order)
    turns = [ToolCall("pay", {"amount": 5}, id="a"), "Hello.", "Done."]
    client = ChatClient(ScriptedChatModel(turns), name="desk", tools=[pay], advisors=[memory])
    with_store = client.replace(pending_store=store)
    with_store.prompt("?", conversation_id="c").call()
    client.prompt("Something else.", conversation_id="c").call()  # which knows no store, so it withdraws nothing
    store.decide("a", Approve())
    assert [resume_ready(store, with_store) for _ in range(2)] == [["conversation_changed"], []]


def test_a_state_that_was_altered_in_the_store_is_refused(store: PendingStore, url: str) -> None:
    client = asked(store)
    execute(url, "UPDATE pending_runs SET state = replace(state, 'desk', 'disk')")
    assert [resume_ready(store, client) for _ in range(2)] == [["state_invalid"], []]
    assert [each.refusal for each in store.refused()] == ["state_invalid"]


def test_an_altered_copy_of_a_state_leaves_the_run_ready(store: PendingStore) -> None:
    client = asked(store)
    (state,) = store.ready()
    for text in (state.replace(MARKER, "Mallory"), "no state", "\0", "\ud800"):
        with pytest.raises(ResumeError):
            client.resume(text)
    assert store.ready() == [state]


def test_a_worker_with_another_key_leaves_the_run_to_a_worker_with_the_key(store: PendingStore) -> None:
    asked(store, approval_key="k" * 16)
    worker = ChatClient(ScriptedChatModel([]), name="desk", tools=[pay], pending_store=store, approval_key="x" * 16)
    assert resume_ready(store, worker) == resume_ready(store, worker) == ["None"]


def test_the_error_of_a_run_that_cannot_resume_stays_if_the_store_is_down(
    store: PendingStore, mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = asked(store)

    def fail(self: PendingStore, state: str, reason: str) -> None:
        raise PendingStoreUnavailable(MARKER)

    monkeypatch.setattr(PendingStore, "refuse", fail)
    assert resume_ready(store, client.replace(tools=[]), mode) == ["tool_missing"]
    assert "a run that can't resume stays ready in the pending store" in caplog.text
    assert MARKER not in caplog.text


def test_an_unknown_reason_is_refused(store: PendingStore) -> None:
    with pytest.raises(ValueError, match="reason must be one of state_invalid, tool_missing"):
        store.refuse("state", "broken")  # type: ignore[arg-type]


# Metrics.


def reported(telemetry: Telemetry) -> dict[str, dict[str, float]]:
    """Return the gauges of runs, by their name and the agent with the reason."""
    metrics = (names.PENDING_STORE_READY, names.PENDING_STORE_OLDEST_READY, names.PENDING_STORE_REFUSED)
    return {
        metric.name.rpartition(".")[2]: {
            " ".join(map(str, each.attributes.values())): each.value for each in telemetry.metric(metric.name)
        }
        for metric in metrics
    }


def test_runs_that_are_ready_and_runs_that_cannot_resume_are_reported(
    store: PendingStore, clock: Callable[[float], None]
) -> None:
    telemetry = Telemetry()
    store.report_metrics(telemetry.options)
    states = [kept(store, paused("a", "b", run_id=f"run-{n}", agent="desk")) for n in range(2)]
    assert reported(telemetry) == {"ready": {"desk": 0}, "oldest_ready": {"desk": 0}, "refused": {}}
    for number, state in enumerate(states):
        for call_id in ("a", "b"):
            clock(10 * number + (5 if call_id == "b" else 0))
            store.decide(call_id, Approve(), run_id=state.run_ids[-1])
    clock(60)
    assert reported(telemetry) == {"ready": {"desk": 2}, "oldest_ready": {"desk": 55}, "refused": {}}
    store.refuse(states[0].to_text(None), "tool_changed")
    one = {"ready": {"desk": 1}, "oldest_ready": {"desk": 45}, "refused": {"desk tool_changed": 1}}
    assert reported(telemetry) == one
    store.retry("run-0")
    store.withdraw("run-1")
    assert reported(telemetry) == {
        "ready": {"desk": 1},
        "oldest_ready": {"desk": 55},
        "refused": {"desk tool_changed": 0},
    }


def test_a_call_that_expires_makes_its_run_ready(path: Path, clock: Callable[[float], None]) -> None:
    telemetry = Telemetry()
    with PendingStore(path, expires=timedelta(seconds=30)) as store:
        store.report_metrics(telemetry.options)
        kept(store, paused("a", agent="desk"))
        clock(40)
        assert reported(telemetry) == {"ready": {"desk": 1}, "oldest_ready": {"desk": 10}, "refused": {}}


def test_metrics_and_logs_have_no_content(store: PendingStore, caplog: pytest.LogCaptureFixture) -> None:
    telemetry = Telemetry()
    client = asked(store)
    store.report_metrics(telemetry.options)
    resume_ready(store, client.replace(tools=[]))
    assert reported(telemetry)["refused"] == {"desk tool_missing": 1}
    assert MARKER not in everything([telemetry.metric(names.PENDING_STORE_REFUSED.name)]) + caplog.text
