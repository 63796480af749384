"""A forked child starts without active runs and does not wait for a lock that was held during the fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.captured import Telemetry, total
from traced_tools import ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.observe import names, providers
from traced_tools.testing import ScriptedChatModel

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def status_of_child(work: Callable[[], None]) -> int:
    """Fork, have the child work, and return its exit status; a child that hangs is ended by its alarm."""
    import signal

    if pid := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    signal.alarm(5)
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def ask(telemetry: Telemetry) -> None:
    ChatClient(ScriptedChatModel(["x"]), name="child", telemetry=telemetry.options).prompt("?").call()


def test_active_runs_of_a_parent_are_not_active_in_its_child() -> None:
    telemetry = Telemetry()

    def check() -> None:
        ask(telemetry)
        for metric in (names.RUN_ACTIVE, names.TOOL_ACTIVE, names.RUN_OLDEST_ACTIVE):
            assert not any(total(point) for point in telemetry.metric(metric.name))

    def fork() -> str:
        """Fork."""
        return str(status_of_child(check))

    model = ScriptedChatModel([ToolCall("fork"), "x"])
    response = ChatClient(model, tools=[fork], telemetry=telemetry.options).prompt("?").call()
    assert response.tool_results[0].content == "0"


def test_a_child_leaves_what_its_parent_watches_to_the_parent(tmp_path: Path) -> None:
    telemetry = Telemetry()
    calls = [ToolCall("fork", id="c1")]
    watched = (names.PENDING_STORE_CALLS, names.AUDIT_VERIFIED)

    @tool(requires_approval=True)
    def fork() -> None:
        """Fork."""

    def check() -> None:
        assert not any(telemetry.metric(metric.name) for metric in watched)

    with PendingStore(tmp_path / "pending.db") as store:
        ChatClient(ScriptedChatModel([calls]), tools=[fork], pending_store=store).prompt("?").call()
        store.report_metrics(telemetry.options)
        instruments = providers.instruments_of(telemetry.meter_provider)
        assert instruments is not None
        instruments.audit.verified("audit.db", True, 1.0)
        assert status_of_child(check) == 0
        assert all(telemetry.metric(metric.name) for metric in watched)


@pytest.mark.parametrize("lock", ["providers", "runs"])
def test_a_child_that_is_forked_while_a_lock_is_held_can_run(lock: str) -> None:
    telemetry, fresh = Telemetry(), Telemetry()
    ask(telemetry)
    instruments = providers.instruments_of(telemetry.meter_provider)
    assert instruments is not None
    held, forked = threading.Event(), threading.Event()

    def hold() -> None:
        with providers._making if lock == "providers" else instruments.active_runs._lock:
            held.set()
            forked.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(5)
    try:
        assert status_of_child(lambda: ask(fresh if lock == "providers" else telemetry)) == 0
    finally:
        forked.set()
        thread.join()
