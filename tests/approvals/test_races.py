"""Threads and processes that decide and claim at once: each call is decided once, each state is claimed once."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable

import psycopg
import pytest
from sqlalchemy import make_url

from tests.approvals.made import claimed, kept, paused
from tests.memory.sql_store import execute
from tests.waiting import in_time, until
from traced_tools import Approve, Reject
from traced_tools.approvals import PendingStore
from traced_tools.errors import AlreadyDecided, NotWaiting, ResumeError

RACERS = 20
PROCESSES = 4


def raced(action: Callable[[int], object]) -> list[object]:
    """Return what each of some threads returned that called `action` at once with its number, or the error."""
    outcomes: list[object] = []
    start = threading.Barrier(RACERS)

    def race(number: int) -> None:
        start.wait()
        try:
            outcomes.append(action(number))
        except Exception as error:
            outcomes.append(error)

    def run() -> None:
        threads = [threading.Thread(target=race, args=(number,)) for number in range(RACERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    in_time(run)
    return outcomes


def test_of_many_threads_that_decide_one_wins(store: PendingStore) -> None:
    state = kept(store, paused("a"))

    def decide(number: int) -> int:
        store.decide("a", Reject("no", by=str(number)))
        return number

    outcomes = raced(decide)
    [winner] = [each for each in outcomes if isinstance(each, int)]
    assert sum(isinstance(each, AlreadyDecided) for each in outcomes) == RACERS - 1
    assert claimed(store, state) == {"a": Reject("no", by=str(winner))}


def test_of_many_threads_that_claim_one_wins(url: str, store: PendingStore) -> None:
    state = kept(store, paused("a"))
    outcomes = raced(lambda number: claimed(store, state, {"a": Reject("no", by=str(number))}))
    [won] = [each for each in outcomes if isinstance(each, dict)]
    assert sum(isinstance(each, ResumeError) for each in outcomes) == RACERS - 1
    assert execute(url, "SELECT decided_by FROM pending_calls") == [(won["a"].by,)]


def test_a_decision_is_taken_by_the_claim_or_refused(url: str, store: PendingStore) -> None:
    state = kept(store, paused(*map(str, range(RACERS - 1))))

    def act(number: int) -> dict[str, Approve | Reject] | str:
        if number == RACERS - 1:
            return claimed(store, state)  # type: ignore[return-value]
        store.decide(str(number), Approve())
        return str(number)

    outcomes = raced(act)
    [taken] = [each for each in outcomes if isinstance(each, dict)]
    assert {each for each in outcomes if isinstance(each, str)} == taken.keys()
    assert sum(isinstance(each, NotWaiting) for each in outcomes) == RACERS - 1 - len(taken)
    decided = execute(url, "SELECT call_id FROM pending_calls WHERE decided_at IS NOT NULL")
    assert {call_id for (call_id,) in decided} == taken.keys()


@pytest.mark.slow
def test_a_decision_waits_for_a_claim_of_another_process_and_is_then_refused(postgresql_url: str) -> None:
    outcomes: list[object] = []
    waiting_for_a_lock = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    plain = make_url(postgresql_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with PendingStore(postgresql_url) as store:
        kept(store, paused("a"))

        def decide() -> None:
            try:
                outcomes.append(store.decide("a", Approve()))
            except NotWaiting as error:
                outcomes.append(error)

        with psycopg.connect(plain) as claiming:
            claiming.execute("UPDATE pending_runs SET spent_at = 1")
            thread = threading.Thread(target=decide)
            thread.start()
            until(lambda: bool(outcomes or execute(postgresql_url, waiting_for_a_lock)))
            claiming.commit()
            in_time(thread.join)
    assert [type(each) for each in outcomes] == [NotWaiting]


@pytest.mark.slow
def test_of_several_processes_one_claims_and_one_decides(url: str) -> None:
    with PendingStore(url) as store:
        kept(store, paused("a"))
        kept(store, paused("b", run_id="run-2"))
        command = [sys.executable, "-m", "tests.approvals.claiming", url]
        processes = [
            subprocess.Popen([*command, str(number)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for number in range(PROCESSES)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        printed = [process.communicate(timeout=60)[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES
    for column in zip(*printed, strict=True):
        assert sorted(column) == ["False"] * (PROCESSES - 1) + ["True"]
