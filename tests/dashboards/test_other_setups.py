"""The boards show applications whose OpenTelemetry is set up by logfire or by `opentelemetry-instrument`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.dashboards.asked import IN_PANELS, RULES, Asked, check_all
from tests.dashboards.playing import playing
from tests.judges.instrumented import python
from tests.judges.programs import free_port, program
from tests.judges.prometheus import PACKAGE, scraping

pytestmark = pytest.mark.slow

SETUPS = ("logfire", "instrumentation")
BOARDS_OF_RUNS = {"tt-home", "tt-loops", "tt-versions", "tt-tools", "tt-models", "tt-cost"}


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A Prometheus that has scraped both while they played the scenario."""
    program("prometheus", PACKAGE)
    served = {
        "OTEL_METRICS_EXPORTER": "prometheus",
        "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
        "OTEL_EXPORTER_PROMETHEUS_PORT": str(free_port()),
        "OTEL_TRACES_EXPORTER": "none",
        "OTEL_LOGS_EXPORTER": "none",
    }
    with ExitStack() as stack:
        services = {
            "logfire": stack.enter_context(playing("logfire", {}, python=python())),
            "instrumentation": stack.enter_context(
                playing("instrumentation", served, python=python(instrumented=True))
            ),
        }
        addresses = {job: service.address for job, service in services.items()}
        folder, started = tmp_path_factory.mktemp("others"), time.time()
        prometheus = stack.enter_context(scraping(addresses, folder, rules=RULES, every="2s"))
        for service in services.values():
            service.begin()
        for service in services.values():
            service.traces()
        yield Asked(prometheus, started, prometheus.evaluated_after(time.time()), 2, "10s", "")


@pytest.mark.parametrize("setup", SETUPS)
def test_each_query_about_runs_has_data(others: Asked, setup: str) -> None:
    check_all([query for query in IN_PANELS if query.board in BOARDS_OF_RUNS], others.of(setup).has_data)
