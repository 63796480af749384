"""Background threads run what they are given, in order, and outlive whatever it raises."""

from __future__ import annotations

import threading
import time

import pytest

from tests.waiting import PATIENCE
from traced_tools.flow.background import BackgroundWorker, Task, TaskWorker, deadline_in


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_task_that_raises_fails_and_the_next_one_runs(error: type[BaseException]) -> None:
    def fail() -> bool:
        raise error

    worker, failing, succeeding = TaskWorker("tasks"), Task(fail), Task(lambda: True)
    assert worker.submit(failing)
    assert worker.submit(succeeding)
    assert succeeding.wait(deadline_in(PATIENCE))
    assert not failing.wait(deadline_in(0))


def test_a_task_that_has_expired_is_not_called() -> None:
    called: list[int] = []
    worker, late = TaskWorker("tasks"), Task(lambda: not called.append(1), expires=time.monotonic())
    worker.submit(late)
    assert not late.wait(deadline_in(PATIENCE))
    assert called == []


def test_of_two_threads_that_callers_start_at_once_one_works() -> None:
    working: list[threading.Thread] = []
    go_on = threading.Event()

    def run() -> None:
        working.append(threading.current_thread())
        assert go_on.wait(PATIENCE)

    worker: BackgroundWorker[int] = BackgroundWorker("one", run)
    assert worker.start() and worker.start()  # as from a caller that saw no thread yet
    assert not worker.join(deadline_in(0))
    go_on.set()
    assert worker.join(deadline_in(PATIENCE))
    assert len(working) == 1
