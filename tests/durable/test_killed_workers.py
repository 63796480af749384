"""Workers on PostgreSQL whose processes are killed: other processes finish the runs, and nothing is done twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.audit.postgresql import OWNER, Server
from tests.durable.working import AT_ONCE, client
from tests.waiting import until
from traced_tools import Approve
from traced_tools.approvals import PendingStore
from traced_tools.durable import Workers, presence
from traced_tools.errors import ConfigurationError, QueueFull

pytestmark = pytest.mark.slow


class Runs:
    """A store on PostgreSQL, and what the tools of its runs have noted.

    Args:
        url: the store.
        folder: where the ledger is.
    """

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self.store = PendingStore(url)

    def submit(self, *keys: str) -> None:
        """Submit runs from a process that drives none."""
        desk = client(self.store, self.folder, "nobody")
        for key in keys:
            desk.submit(key, key=key, principal=key[0])

    def ledger(self) -> list[list[str]]:
        """The name of the tool, the key of the run and the name of the worker, for each call that began."""
        path = self.folder / "ledger"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def posts_of(self, worker: str) -> int:
        return sum(tool == "post" and name == worker for tool, _, name in self.ledger())

    def statuses(self) -> Counter[str]:
        return Counter(run.status for run in self.store.run_logs.runs())

    def go(self) -> None:
        """Let the posts end."""
        (self.folder / "go").touch()

    @contextmanager
    def worker(self, engine: str, name: str) -> Iterator[subprocess.Popen[str]]:
        """A process that works until the end of the block, unless it is killed before."""
        command = [sys.executable, "-m", "tests.durable.working", engine, self.url, str(self.folder), name]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None and process.stdout is not None
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
            process.stdin.close()
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()


def check_posts(runs: Runs, keys: list[str]) -> None:
    """Check that no post has run twice; one whose worker died may be missing, and its run goes on without it."""
    posts = Counter(key for tool, key, _ in runs.ledger() if tool == "post")
    assert {*posts} <= {*keys}
    assert {*posts.values()} == {1}
    assert len(keys) - len(posts) < AT_ONCE  # a worker may die between the record that a post begins, and the post


@pytest.fixture
def runs(postgresql_url: str, tmp_path: Path) -> Iterator[Runs]:
    runs = Runs(postgresql_url, tmp_path)
    with runs.store:
        yield runs


@pytest.mark.parametrize("engine", ["dbos", "procrastinate"])
def test_all_runs_finish_although_a_worker_is_killed_in_the_middle_of_tools(runs: Runs, engine: str) -> None:
    keys = [f"{tenant}-{number}" for tenant in "ab" for number in range(6)]
    runs.submit(*keys)
    with runs.worker(engine, "first") as first, runs.worker(engine, "second"):
        until(lambda: runs.posts_of("first") >= 2)
        first.kill()
        runs.go()
        until(lambda: runs.statuses() == {"finished": len(keys)})
    check_posts(runs, keys)


@pytest.mark.parametrize("engine", ["dbos", "procrastinate"])
def test_an_approval_is_given_and_the_run_goes_on_after_all_its_processes_have_died(runs: Runs, engine: str) -> None:
    runs.submit("w-1")
    runs.go()
    with runs.worker(engine, "first") as first:
        until(lambda: runs.statuses() == {"waiting": 1})
        first.kill()
    runs.store.decide("pay-w-1", Approve(by="eva"))
    with runs.worker(engine, "second"):
        until(lambda: runs.statuses() == {"finished": 1})
    calls = {("look", "w-1", "first"), ("post", "w-1", "first"), ("pay", "w-1", "second")}
    assert Counter(map(tuple, runs.ledger())) == dict.fromkeys(calls, 1)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_worker_that_is_killed_again_and_again_comes_back_under_its_name(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    is_sqlite = kind == "sqlite"
    url = f"sqlite:///{tmp_path / 'runs.db'}" if is_sqlite else str(request.getfixturevalue("postgresql_url"))
    runs, keys = Runs(url, tmp_path), [f"a-{number}" for number in range(8)]
    with runs.store:
        runs.submit(*keys)
        for lives in (1, 2):
            with runs.worker("dbos", "first") as first:
                until(lambda lives=lives: runs.posts_of("first") >= 4 * lives)
                first.kill()
        runs.go()
        with runs.worker("dbos", "first"):
            until(lambda: runs.statuses() == {"finished": 8})
    assert Counter(key for tool, key, _ in runs.ledger() if tool == "post") == dict.fromkeys(keys, 1)


def test_a_worker_that_stops_and_is_overtaken_does_nothing_twice_when_it_continues(
    runs: Runs, postgresql: Server
) -> None:
    keys = [f"a-{number}" for number in range(8)]
    runs.submit(*keys)
    with runs.worker("dbos", "first") as first, runs.worker("dbos", "second"):
        until(lambda: runs.posts_of("first") >= 2)
        first.send_signal(signal.SIGSTOP)
        try:
            end_sessions(postgresql)  # as if the network had parted it from the server
            runs.go()
            until(lambda: runs.statuses() == {"finished": 8})
        finally:
            first.send_signal(signal.SIGCONT)
        runs.submit("b-1")
        until(lambda: runs.statuses() == {"finished": 9})
    check_posts(runs, [*keys, "b-1"])


def end_sessions(server: Server) -> None:
    """End the sessions of all stores."""
    with server.connect(OWNER) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'durable_%'")


def test_a_worker_whose_sessions_the_server_has_ended_goes_on(runs: Runs, postgresql: Server) -> None:
    desk = client(runs.store, runs.folder, "here")
    runs.go()
    with Workers(runs.store, [desk], name="here"):
        runs.submit("a-1")
        until(lambda: runs.statuses() == {"finished": 1})
        with postgresql.connect(OWNER) as connection:
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'durable_%'")
        runs.submit("a-2")
        until(lambda: runs.statuses() == {"finished": 2})


def test_no_more_runs_are_queued_than_the_store_allows_although_processes_submit_at_once(runs: Runs) -> None:
    full: list[QueueFull] = []

    def submit(number: int) -> None:
        with PendingStore(runs.url, most_queued=3) as store:
            try:
                client(store, runs.folder, "nobody").submit("Go.", key=f"{number}", principal="ana")
            except QueueFull as error:
                full.append(error)

    runs.submit("other")
    with ThreadPoolExecutor(10) as threads:
        for submission in [threads.submit(submit, number) for number in range(10)]:
            submission.result()
    assert runs.statuses() == {"submitted": 4}
    assert len(full) == 7


def test_a_second_worker_with_a_living_name_is_refused(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "PATIENCE", 0)
    desk = client(runs.store, runs.folder, "here")
    with runs.worker("dbos", "first"):
        with pytest.raises(ConfigurationError, match="'first' lives"):
            Workers(runs.store, [desk], name="first").__enter__()
        with Workers(runs.store, [desk], name="second"):
            pass
    with Workers(runs.store, [desk], name="first"):
        pass
