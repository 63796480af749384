from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.captured import Telemetry
from tests.modes import ASYNC_MODES, BLOCKING_MODES, MODES
from traced_tools.flow import workers as _workers
from traced_tools.observe import sanitize as bounds
from traced_tools.tools import failure_log

# a busy machine is no failure, and what was found before is in a test of its own
settings.register_profile("traced_tools", deadline=None, database=None)
settings.load_profile("traced_tools")


@pytest.fixture(autouse=True)
def words_of_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees how many kinds of errors the tests before it have shown."""
    monkeypatch.setattr(bounds, "_SEEN", defaultdict(set))


@pytest.fixture(autouse=True)
def logged_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test depends on which failures of tools the tests before it have logged."""
    monkeypatch.setattr(failure_log, "_logged", set())


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Each of the four ways to run a request; use it with `modes.run`."""
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
def telemetry() -> Iterator[Telemetry]:
    """Captured telemetry, and what OpenTelemetry logs."""
    with Telemetry() as telemetry:
        yield telemetry
