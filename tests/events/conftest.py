"""Fixtures for the tests of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.events.exporting import Exporter, HandClock
from tests.waiting import PATIENCE
from traced_tools.events.processor import EventProcessor, close


@pytest.fixture
def made() -> Iterator[Any]:
    """Makes processors, which are closed at the end."""
    processors = []

    def make(exporter: Exporter, **settings: Any) -> EventProcessor:
        found = EventProcessor(exporter, **{"clock": HandClock(), **settings})
        found._worker.start()  # else the first event would start it, and be sent before a test goes on
        processors.append((found, exporter))
        return found

    yield make
    for found, exporter in processors:
        exporter.release()
        close([found], PATIENCE)
