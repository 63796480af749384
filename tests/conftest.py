from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

import pytest
from hypothesis import settings

from tests.captured import Telemetry
from tests.clock import Clock, replaced_clock
from tests.modes import ASYNC_MODES, BLOCKING_MODES, MODES
from tests.observe.closed_list import assert_consistent
from traced_tools.flow import event_loops
from traced_tools.flow import workers as _workers
from traced_tools.observe import content
from traced_tools.observe import sanitize as bounds
from traced_tools.tools import failure_log

# A busy machine is no failure, and what was found before is in a test of its own. `make test` runs the same examples
# each time, so that the change under test causes its failures. `.ci/run` runs random examples.
settings.register_profile("quick", deadline=None, database=None, max_examples=20, derandomize=True)
settings.register_profile("thorough", settings.get_profile("quick"), max_examples=100, derandomize=False)
settings.load_profile("quick")


TESTS_BETWEEN_FREEZES = 25
tests_run = itertools.count()

# Clients trust nobody, unless a test says whom: to read all certificates takes longer than to ask a server on loopback.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

with suppress(ModuleNotFoundError):  # the environment of the oldest SDK has no command line
    import typer.testing

    # typer makes all commands of the command line anew each time that a test invokes one: four fifths of the time.
    typer.testing._get_command = cache(typer.testing._get_command)  # type: ignore[attr-defined]

gc.disable()  # a worker collects all tests: each collection of garbage meanwhile looks through all of them for nothing


def pytest_collection_finish() -> None:
    """Collect garbage again from the first test on, without looking through the tests."""
    gc.freeze()
    gc.enable()


def pytest_runtest_setup() -> None:
    """Keep tests independent of those before them, and their garbage collections fast.

    No test depends on which errors, failing tools and blocked loops the tests before it have shown. Every 25 tests, the
    objects that exist are excluded from later collections.
    """
    bounds._SEEN.clear()
    content._of_trail = None
    failure_log._logged.clear()
    event_loops._warned.clear()
    if next(tests_run) % TESTS_BETWEEN_FREEZES == 0:
        gc.collect()
        gc.freeze()


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """A blocking way to run a request and one on asyncio; use it with `modes.run`."""
    return str(request.param)


@pytest.fixture(params=BLOCKING_MODES)
def blocking_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=ASYNC_MODES)
def async_mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def own_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and a portal of the test's own: if it locks them up, other tests go on with theirs."""
    monkeypatch.setattr(_workers, "_pool", _workers.WorkerPool())
    monkeypatch.setattr(_workers, "_portal", _workers.Portal())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of all durations, which stands still until something takes time."""
    return replaced_clock(monkeypatch)


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Captured telemetry, held to the contract at the end of the test, and what OpenTelemetry logs."""
    with Telemetry() as telemetry:
        yield telemetry
        assert_consistent(telemetry)
