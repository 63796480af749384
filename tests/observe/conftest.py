from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.captured import Telemetry
from tests.observe.closed_list import assert_consistent
from tests.otel.scraped import Exposed


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Spans, metrics and events in memory, which are held to the contract at the end of the test."""
    exported = Telemetry()
    yield exported
    assert_consistent(exported)


@pytest.fixture
def exposed() -> Iterator[Exposed]:
    """Providers whose metrics are exposed to Prometheus."""
    exposed = Exposed()
    yield exposed
    exposed.close()
