"""A durable run that is withdrawn by its key never goes on, wherever it was."""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from traced_tools import Approve, ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.errors import ModelError, ResumeError, RunTaken
from traced_tools.testing import ScriptedChatModel

POST, PAY = ToolCall("post", {}, id="post"), ToolCall("pay", {}, id="pay")


def fails(*_: object) -> Any:
    raise ModelError("down")


def client_of(store: PendingStore, *turns: Any, while_posting: Callable[[], object] = bool) -> ChatClient:
    @tool
    def post() -> str:
        """Post something."""
        thread = Thread(target=while_posting)
        thread.start()
        thread.join()
        return "posted"

    @tool(requires_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    client = ChatClient(ScriptedChatModel([*turns]), name="desk", tools=[post, pay], pending_store=store)
    client.submit("Go.", key="k", principal="ana")
    return client


def submitted(store: PendingStore) -> None:
    client_of(store)


def waiting(store: PendingStore) -> None:
    client_of(store, [PAY]).drive("k")


def decided(store: PendingStore) -> None:
    waiting(store)
    store.decide("pay", Approve())


def interrupted(store: PendingStore) -> None:
    with pytest.raises(ModelError):
        client_of(store, fails).drive("k")


def failed(store: PendingStore) -> None:
    decided(store)
    with pytest.raises(ResumeError):
        client_of(store).replace(tools=[]).drive("k")


@pytest.mark.parametrize("begin", [submitted, waiting, decided, interrupted, failed])
def test_a_run_is_withdrawn_wherever_it_is(store: PendingStore, begin: Callable[[PendingStore], None]) -> None:
    begin(store)
    assert store.run_logs.withdraw("k")
    assert (client_of(store, "never").drive("k").status, store.run_logs.withdraw("k")) == ("withdrawn", False)
    assert (store.interrupted(), store.decided(), store.pending(), store.refused()) == ([], [], [], [])


def test_a_run_that_has_finished_and_an_unknown_run_are_not_withdrawn(store: PendingStore) -> None:
    client_of(store, "done").drive("k")
    assert not store.run_logs.withdraw("k")
    assert not store.run_logs.withdraw("z")
    assert client_of(store).drive("k").content == "done"


def test_a_process_that_drives_a_run_ends_when_the_run_is_withdrawn(store: PendingStore) -> None:
    client = client_of(store, [POST], "never", while_posting=lambda: store.run_logs.withdraw("k"))
    with pytest.raises(RunTaken):
        client.drive("k")
    assert client_of(store, "never").drive("k").status == "withdrawn"


@pytest.mark.parametrize("way", ["by its key", "by the id of the run that paused"])
def test_a_run_that_is_withdrawn_while_a_process_goes_on_with_it_stays_withdrawn(store: PendingStore, way: str) -> None:
    decided(store)
    run_id = store.find("pay").run_id
    begin_life = store.run_logs.append

    def withdraw_before(*args: Any, **settings: Any) -> None:
        store.run_logs.append = begin_life  # type: ignore[method-assign]
        begin_life(*args, **settings)
        assert store.run_logs.withdraw("k") if way == "by its key" else store.withdraw(run_id)

    store.run_logs.append = withdraw_before  # type: ignore[method-assign]
    with pytest.raises(ResumeError, match="withdrawn"):
        client_of(store, "never").drive("k")
    assert (client_of(store).drive("k").status, store.interrupted()) == ("withdrawn", [])
