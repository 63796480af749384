"""A Prometheus over the scenario, for all tests that ask the queries of boards and rules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest

from tests.dashboards.asked import RULES, Asked
from tests.dashboards.playing import playing
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE, scraping
from tests.otel.collector import Behaviour, Collector, accept, collecting, reject
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS

PLAYED, EARLIER_NAMES = "played", "earlier"
"""The services that play the scenario: with the names of v0.1.0, and with those of v1.41.0."""


@dataclass(frozen=True)
class Played:
    """The scenario, played and scraped.

    Attributes:
        asked: the boards' view of the service `PLAYED`.
        traces: the ids of its traces.
    """

    asked: Asked
    traces: set[str]


@pytest.fixture(scope="session")
def played(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Played]:
    """A Prometheus that has scraped two services that play the scenario, and evaluates the rules."""
    program("prometheus", PACKAGE)
    released = {
        "OTEL_METRIC_EXPORT_INTERVAL": "1000",
        "OTEL_BSP_SCHEDULE_DELAY": "500",
        "OTEL_BLRP_SCHEDULE_DELAY": "500",
        "OTEL_RESOURCE_ATTRIBUTES": "service.version=1.2.3",
    }
    earlier = released | {GENAI_CONVENTIONS: EARLIER}
    with ExitStack() as stack:
        collector = stack.enter_context(collecting(accept_most()))
        services = {
            PLAYED: stack.enter_context(playing("configure", released, otlp=collector.url)),
            EARLIER_NAMES: stack.enter_context(playing("configure", earlier, otlp=collector.url)),
        }
        addresses = {job: service.address for job, service in services.items()}
        folder, started = tmp_path_factory.mktemp("played"), time.time()
        prometheus = stack.enter_context(scraping(addresses, folder, rules=RULES, every="2s"))
        for service in services.values():
            service.begin()
        traces = {job: service.traces() for job, service in services.items()}
        end = prometheus.evaluated_after(time.time())
        yield Played(Asked(prometheus, started, end, 2, "10s", PLAYED), traces[PLAYED])


def accept_most() -> Behaviour:
    """Accept each batch, but reject an item of every third."""
    batches = count()

    def behave(collector: Collector, request: Any) -> None:
        (reject(1) if next(batches) % 3 == 2 else accept)(collector, request)

    return behave
