from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.captured import Telemetry
from tests.observe.closed_list import assert_consistent


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    """Spans, metrics and events in memory, which are held to the contract at the end of the test."""
    exported = Telemetry()
    yield exported
    assert_consistent(exported)
