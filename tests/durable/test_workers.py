"""Workers drive the runs of a store, wherever their processes die."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.approvals.made import set_microseconds
from tests.waiting import until
from traced_tools import Approve, ChatClient, ToolCall, ToolContext, tool
from traced_tools.approvals import PendingStore
from traced_tools.approvals.due_runs import pause_after
from traced_tools.approvals.run_logs import MAX_LIVES, RunLogs
from traced_tools.durable import Workers, presence
from traced_tools.durable.deliveries import Deliveries, RunDelivery
from traced_tools.durable.lookout import Lookout
from traced_tools.errors import ConfigurationError, ModelError, PendingStoreUnavailable, QueueFull
from traced_tools.stores.columns import unix_microseconds
from traced_tools.testing import ScriptedChatModel

PAY = ToolCall("pay", {"amount": 1}, id="pay")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[PendingStore]:
    with PendingStore(tmp_path / "runs.db") as store:
        yield store


def statuses(store: PendingStore) -> Counter[str]:
    return Counter(run.status for run in store.run_logs.runs())


def finish(store: PendingStore, number: int) -> None:
    """Wait until so many runs are finished."""
    until(lambda: statuses(store)["finished"] == number)


class Desk:
    """A client whose tools note what happens, and whose posts wait."""

    def __init__(self, store: PendingStore, *turns: Any, name: str = "desk") -> None:
        self.ran: list[str] = []
        self.contexts: list[Any] = []
        self.at_once: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.lock, self.go = threading.Lock(), threading.Event()

        @tool(requires_approval=True)
        def pay(amount: int) -> str:
            """Pay."""
            self.ran.append("pay")
            return "paid"

        @tool
        def post(user: str) -> str:
            """Post."""
            with self.lock:
                self.ran.append(user)
                self.at_once[user] += 1
                self.most[user] = max(self.most[user], self.at_once[user])
            assert self.go.wait(30)
            with self.lock:
                self.at_once[user] -= 1
            return "posted"

        self.model = ScriptedChatModel([*turns])
        self.client = ChatClient(self.model, name=name, tools=[pay, post], pending_store=store)


def posting(user: str) -> list[ToolCall]:
    return [ToolCall("post", {"user": user}, id=f"post-{user}")]


def posts(request: Any) -> Any:
    """Answer as a model that posts for the user who asks."""
    answers = [message for message in request.messages if getattr(message, "tool_calls", ())]
    return "done" if answers else posting(request.messages[0].text)


def test_a_run_waits_goes_on_when_it_is_decided_and_is_delivered_once_in_each_state(store: PendingStore) -> None:
    desk = Desk(store, [PAY], "done")
    with Workers(store, [desk.client], name="a"):
        desk.client.submit("Go.", key="k", principal="ana")
        until(lambda: statuses(store)["waiting"] == 1)
        store.decide("pay", Approve(by="eva"))
        finish(store, 1)
    assert desk.ran == ["pay"]
    assert [name for name, *_ in rows(store, "workflow_status")] == ["k@0", "k@3"]


def rows(store: PendingStore, table: str) -> list[tuple[Any, ...]]:
    """What DBOS keeps of deliveries on SQLite."""
    with closing(sqlite3.connect(f"{store.due_runs.database.engine.url.database}-dbos")) as connection:
        return connection.execute(f"SELECT * FROM {table} ORDER BY 1").fetchall()


def test_no_content_and_no_principal_are_in_the_tables_or_the_logs_of_the_engine(
    store: PendingStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> Any:
        raise ModelError("a secret text")

    desk = Desk(store, [ToolCall("pay", {"amount": 987654}, id="secret")], "done")
    broken = Desk(store, fails, name="broken")
    desk.client.submit("A secret question.", key="k", principal="secret-ana")
    broken.client.submit("A secret question.", key="other", principal="secret-ana")
    with Workers(store, [desk.client, broken.client], name="a"):
        until(lambda: statuses(store) == {"waiting": 1, "interrupted": 1})
    kept = b"".join(path.read_bytes() for path in folder(store).glob("runs.db-dbos*"))
    assert b"k@0" in kept
    assert b"secret" not in kept and b"987654" not in kept
    assert "ModelError" in caplog.text and "secret" not in caplog.text


@pytest.mark.parametrize(("level", "later"), [(logging.NOTSET, logging.WARNING), (logging.ERROR, logging.ERROR)])
def test_the_engine_logs_from_the_level_that_the_application_has_chosen(
    store: PendingStore, caplog: pytest.LogCaptureFixture, level: int, later: int
) -> None:
    caplog.set_level(level, "dbos")
    with Workers(store, [Desk(store).client], name="a"):
        assert logging.getLogger("dbos").level == later


def folder(store: PendingStore) -> Path:
    return Path(str(store.due_runs.database.engine.url.database)).parent


@pytest.mark.slow
def test_a_process_has_one_engine_at_a_time(store: PendingStore, tmp_path: Path) -> None:
    desk = Desk(store)
    with PendingStore(tmp_path / "other.db") as other, Workers(store, [desk.client], name="a"):
        with pytest.raises(ConfigurationError, match="a process of its own"):
            Workers(other, [Desk(other).client], name="b").__enter__()
        desk.client.submit("Go.", key="k")
        until(lambda: statuses(store)["interrupted"] == 1)  # the script of its model is empty: it works


def test_workers_refuse_clients_of_another_store_and_a_blank_name(store: PendingStore, tmp_path: Path) -> None:
    client = Desk(store, "done").client
    with PendingStore(tmp_path / "other.db") as other:
        for stranger in (client.replace(pending_store=other), client.replace(pending_store=None)):
            with pytest.raises(ValueError, match="the client 'desk' has another pending_store"):
                Workers(store, [stranger], name="a")
    with pytest.raises(ValueError, match="name must not be blank"):
        Workers(store, [client], name=" ")


def test_workers_say_what_to_install(store: PendingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dbos", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'traced_tools\[durable\]'"):
        Workers(store, [Desk(store).client], name="a")


@pytest.mark.parametrize(
    "settings", [{"at_once": 0}, {"per_tenant": 0}, {"grace": -1}, {"clients": []}, {"clients": "twice"}]
)
def test_invalid_settings_are_refused(store: PendingStore, settings: dict[str, Any]) -> None:
    clients = [Desk(store).client, Desk(store).client]
    settings = {"clients": clients[:1], "name": "a", **settings}
    settings["clients"] = clients if settings["clients"] == "twice" else settings["clients"]
    with pytest.raises(ValueError):
        Workers(store, **settings)


@pytest.mark.slow
def test_a_tenant_with_many_runs_leaves_places_to_others(store: PendingStore) -> None:
    desk = Desk(store, *[posts] * 20)
    for number in range(6):
        desk.client.submit("ana", key=f"a-{number}", principal="ana")
    desk.client.submit("eva", key="e", principal="eva")
    with Workers(store, [desk.client], name="a", per_tenant=2):
        until(lambda: desk.at_once == {"ana": 2, "eva": 1})
        desk.go.set()
        finish(store, 7)
    assert desk.most == {"ana": 2, "eva": 1}


@pytest.mark.slow
def test_a_worker_drives_so_many_runs_of_all_its_clients_at_once(store: PendingStore) -> None:
    desks = [Desk(store, *[posts] * 20, name=name) for name in ("one", "two")]
    for number in range(3):
        for desk in desks:
            desk.client.submit(desk.client.name, key=f"{desk.client.name}-{number}")
    with Workers(store, [desk.client for desk in desks], name="a", at_once=3):
        until(lambda: sum(desk.at_once.total() for desk in desks) == 3)
        for desk in desks:
            desk.go.set()
        finish(store, 6)
    assert sum(desk.most.total() for desk in desks) <= 4  # the most of each, which may be at two times


@pytest.mark.slow
def test_runs_of_a_higher_priority_begin_first(store: PendingStore) -> None:
    desk = Desk(store, *[posts] * 8)
    desk.go.set()
    for user, priority in (("ana", -1), ("bob", 0), ("cleo", 1_000_000), ("dan", 7)):
        desk.client.submit(user, key=user, priority=priority)
    with Workers(store, [desk.client], name="a", at_once=1):
        finish(store, 4)
    assert desk.ran == ["cleo", "dan", "bob", "ana"]


def test_runs_that_wait_hold_no_thread_and_no_place(store: PendingStore) -> None:
    desk = Desk(store, *[[PAY]] * 200, "done")
    with Workers(store, [desk.client], name="a", at_once=16):
        desk.client.submit("Go.", key="0")
        until(lambda: statuses(store)["waiting"] == 1)
        threads = threading.active_count()
        for number in range(1, 200):
            desk.client.submit("Go.", key=f"{number}")
        until(lambda: statuses(store)["waiting"] == 200)
        assert threading.active_count() <= threads + 40  # those of sixteen runs at once
        desk.client.submit("Go.", key="last")
        finish(store, 1)


def test_a_queue_that_is_full_refuses_new_runs_of_its_principal(tmp_path: Path) -> None:
    with PendingStore(tmp_path / "runs.db", most_queued=2) as store:
        desk, other = Desk(store, "done"), Desk(store, name="other")
        for principal in ("ana", None):
            for number in range(2):
                desk.client.submit("Go.", key=f"{principal}-{number}", principal=principal)
            with pytest.raises(QueueFull, match=r"2 runs of the agent 'desk' .* most_queued"):
                desk.client.submit("Go.", key="new", principal=principal)
            desk.client.submit("Go.", key=f"{principal}-1", principal=principal)  # it is there already
        desk.client.submit("Go.", key="eva", principal="eva")
        other.client.submit("Go.", key="other", principal="ana")
        desk.client.drive("ana-0")
        desk.client.submit("Go.", key="new", principal="ana")


def test_the_error_of_a_full_queue_crosses_processes() -> None:
    error = pickle.loads(pickle.dumps(QueueFull("desk", 2)))
    assert (error.agent, error.most) == ("desk", 2)


@pytest.mark.slow
def test_a_second_process_on_sqlite_is_refused(store: PendingStore, tmp_path: Path) -> None:
    program = "\n".join(
        [
            "import sys",
            "from tests.durable.test_workers import Desk, PendingStore, Workers, presence",
            "presence.PATIENCE = 0",
            "store = PendingStore(sys.argv[1])",
            "with Workers(store, [Desk(store).client], name='b'): pass",
        ]
    )
    command = [sys.executable, "-c", program, str(tmp_path / "runs.db")]
    with Workers(store, [Desk(store).client], name="a"):
        with pytest.raises(ConfigurationError):  # which leaves the lock of the process as it is
            Workers(store, [Desk(store).client], name="b").__enter__()
        second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "another process works on this SQLite store" in second.stderr
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert second.returncode == 0, second.stderr


class Queue:
    """Stands for the queues of other processes, which are dead."""

    def __init__(self, *deliveries: RunDelivery) -> None:
        self.deliveries = [("dead:1", delivery) for delivery in deliveries]
        self.events: list[tuple[str, Any]] = []

    def pending(self) -> list[tuple[str, RunDelivery]]:
        return self.deliveries

    def ended(self, seconds: float) -> list[str]:
        return []

    def send(self, delivery: RunDelivery, tenant: str | None, priority: int) -> None:
        self.events.append(("send", delivery.id))

    def resume(self, delivery: RunDelivery) -> None:
        self.events.append(("resume", delivery.id))

    def delete(self, ids: list[str]) -> None:
        self.events.append(("delete", ids))


def take_over(store: PendingStore, last: int) -> list[tuple[str, Any]]:
    """Return what happens with a delivery of the run `k` that a dead worker had taken."""
    queue: Any = Queue(RunDelivery("desk", "k", last))
    Lookout(store.due_runs, queue, presence.presence(store.due_runs.database, "a", "a:1")).look()
    return queue.events


def test_runs_of_dead_workers_are_delivered_again_until_their_last_life(store: PendingStore) -> None:
    class Died(BaseException):
        """The process ends."""

    def dies(*_: object) -> Any:
        raise Died

    desk = Desk(store, *[dies] * MAX_LIVES)
    desk.client.submit("Go.", key="k")
    assert take_over(store, 0) == [("resume", "k@0"), ("send", "k@0")]  # no life had begun
    for life in range(1, MAX_LIVES):
        with pytest.raises(Died):
            desk.client.drive("k")
        assert take_over(store, life - 1) == [("send", f"k@{life}"), ("delete", [f"k@{life - 1}"])]
    with pytest.raises(Died):
        desk.client.drive("k")
    assert take_over(store, MAX_LIVES - 1) == [("delete", [f"k@{MAX_LIVES - 1}"])]
    assert statuses(store) == {"failed": 1}


def test_a_run_that_had_paused_before_its_worker_died_is_not_delivered(store: PendingStore) -> None:
    desk = Desk(store, [PAY])
    desk.client.submit("Go.", key="k")
    desk.client.drive("k")
    assert take_over(store, 0) == [("delete", ["k@0"])]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the seconds that the clock of the store is ahead of now."""
    began = unix_microseconds()

    def set_time(ahead: float) -> None:
        set_microseconds(monkeypatch, began + round(ahead * 1_000_000))

    set_time(0)
    return set_time


def test_a_run_that_fails_comes_back_with_growing_pauses_until_it_has_failed(
    store: PendingStore, clock: Callable[[float], None]
) -> None:
    def fails(*_: object) -> Any:
        raise ModelError("down")

    desk, now = Desk(store, *[fails] * MAX_LIVES), 0.0
    desk.client.submit("Go.", key="k")
    for lives in range(1, MAX_LIVES):
        with pytest.raises(ModelError):
            desk.client.drive("k")
        clock(now + pause_after(lives) - 0.001)
        assert store.due_runs.due() == []
        clock(now := now + pause_after(lives))
        assert [run.lives for run in store.due_runs.due()] == [lives]
    with pytest.raises(ModelError):
        desk.client.drive("k")
    clock(now + 1_000_000)
    assert store.due_runs.due() == []
    assert statuses(store) == {"failed": 1}
    assert [pause_after(lives) for lives in range(7)] == [0, 1, 4, 16, 64, 256, 600]


@pytest.mark.slow
def test_workers_drive_a_run_again_after_its_pause(store: PendingStore, clock: Callable[[float], None]) -> None:
    def fails(*_: object) -> Any:
        raise ModelError("down")

    desk = Desk(store, fails, fails, "done")
    desk.client.submit("Go.", key="k")
    with Workers(store, [desk.client], name="a"):
        for lives in (1, 2):
            until(lambda lives=lives: store.run_logs.runs()[0].lives == lives and statuses(store)["interrupted"] == 1)
            clock(2.0 * pause_after(lives))
        finish(store, 1)


@pytest.mark.slow
def test_a_life_whose_end_the_store_could_not_record_is_interrupted_later(
    store: PendingStore, monkeypatch: pytest.MonkeyPatch, clock: Callable[[float], None]
) -> None:
    outage, append = threading.Event(), RunLogs.append

    def unavailable(*arguments: Any, **options: Any) -> Any:
        if outage.is_set():
            raise PendingStoreUnavailable("down", RuntimeError())
        return append(*arguments, **options)

    def fails(*_: object) -> Any:
        outage.set()
        raise ModelError("down")

    monkeypatch.setattr(RunLogs, "append", unavailable)
    desk = Desk(store, fails, "done")
    desk.client.submit("Go.", key="k")
    with Workers(store, [desk.client], name="a"):
        until(lambda: statuses(store)["interrupted"] == 1)
        outage.clear()
        clock(10)
        finish(store, 1)


@pytest.mark.slow
def test_a_run_that_is_cut_at_the_end_of_the_block_goes_on_in_the_next_worker(store: PendingStore) -> None:
    desk = Desk(store, *[posts] * 3)
    desk.client.submit("ana", key="k")
    workers = Workers(store, [desk.client], name="a", grace=0)
    with workers:
        until(lambda: desk.ran == ["ana"])
    desk.go.set()
    assert statuses(store)["finished"] == 0
    with workers:
        finish(store, 1)
    assert desk.ran == ["ana"]
    assert "it may have run" in desk.model.requests[-1].messages[-1].results[0].content


@pytest.mark.slow
def test_a_run_ends_within_its_grace(store: PendingStore) -> None:
    desk = Desk(store, *[posts] * 3)
    desk.client.submit("ana", key="k")
    with Workers(store, [desk.client], name="a"):
        until(lambda: desk.ran == ["ana"])
        threading.Timer(0.1, desk.go.set).start()
    assert statuses(store) == {"finished": 1}


@pytest.mark.slow
def test_a_run_that_another_process_takes_over_ends_its_delivery(store: PendingStore) -> None:
    desk, other = Desk(store, *[posts] * 3), Desk(store, "done")
    desk.client.submit("ana", key="k")
    with Workers(store, [desk.client], name="a"):
        until(lambda: desk.ran == ["ana"])
        other.client.drive("k")
        desk.go.set()
        until(lambda: [output for _, output, *_ in rows(store, "workflow_output")] == ['"taken"'])
    assert statuses(store) == {"finished": 1}


@pytest.mark.slow
def test_a_delivery_for_a_state_that_has_passed_does_nothing(store: PendingStore) -> None:
    async def drive(delivery: RunDelivery) -> str:
        raise AssertionError(delivery.id)

    desk = Desk(store, "done")
    desk.client.submit("Go.", key="k")
    with Workers(store, [desk.client], name="a"):
        finish(store, 1)
        Deliveries(store.due_runs.database, "other", drive).send(RunDelivery("desk", "k", 1), None, 0)
        until(lambda: '"obsolete"' in [output for _, output, *_ in rows(store, "workflow_output")])
    assert len(desk.model.requests) == 1


@pytest.mark.slow
def test_a_tool_that_exits_does_not_end_the_worker(store: PendingStore, clock: Callable[[float], None]) -> None:
    @tool
    async def leave() -> str:
        """Leave."""
        sys.exit(1)

    model = ScriptedChatModel([[ToolCall("leave", {}, id="l")], "done"])
    desk = ChatClient(model, name="desk", tools=[leave], pending_store=store)
    desk.submit("Go.", key="k")
    with Workers(store, [desk], name="a"):
        until(lambda: statuses(store)["interrupted"] == 1)
        clock(10)
        finish(store, 1)


@pytest.mark.slow
def test_tools_get_a_context_of_the_key_and_the_principal(store: PendingStore) -> None:
    contexts: list[Any] = []

    @tool
    def note(context: ToolContext) -> str:
        """Note."""
        contexts.append(dict(context))
        return "noted"

    model = ScriptedChatModel([[ToolCall("note", {}, id="n")], "done"])
    desk = ChatClient(model, name="desk", tools=[note], pending_store=store)
    desk.submit("Go.", key="k", principal="ana")
    with Workers(store, [desk], name="a", tool_context=lambda key, principal: {"key": key, "user": principal}):
        finish(store, 1)
    assert contexts == [{"key": "k", "user": "ana"}]
