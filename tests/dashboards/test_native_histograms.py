"""Panels of histograms have data where Prometheus stores them as native histograms, without buckets."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.trace import NoOpTracerProvider

from tests.dashboards.board_queries import BoardQuery, all_queries
from tests.dashboards.durable_lives import drive_runs
from tests.dashboards.remote_write import request
from tests.judges.prometheus import Prometheus, scraping
from traced_tools import TelemetryOptions
from traced_tools.approvals import PendingStore
from traced_tools.demo import Scenario
from traced_tools.otel.prometheus import iter_metrics

pytestmark = pytest.mark.slow

_OF_HISTOGRAMS = [
    each for each in all_queries() if each.panel is not None and each.language == "promql" and "_bucket" in each.text
]


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus with the histograms of one round of the scenario as native ones."""
    reader = InMemoryMetricReader()
    view = View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation(max_scale=8))
    provider = MeterProvider([reader], views=[view], shutdown_on_exit=False)
    telemetry = TelemetryOptions(NoOpTracerProvider(), provider)
    Scenario(seed=1).run(telemetry=telemetry)
    with PendingStore(tmp_path_factory.mktemp("store") / "runs.db") as store:
        drive_runs(store, telemetry)
    metrics = list(iter_metrics(reader.get_metrics_data()))
    provider.shutdown()
    with scraping({}, tmp_path_factory.mktemp("prometheus")) as server:
        now = int(time.time() * 1000)
        server.write(request(metrics, range(now - 120_000, now, 15_000), job="shop", instance="a"))
        yield server


def test_each_panel_of_a_histogram_has_data(prometheus: Prometheus) -> None:
    assert len(_OF_HISTOGRAMS) > 20
    assert [str(query) for query in _OF_HISTOGRAMS if not has_data(prometheus, query)] == []


def has_data(prometheus: Prometheus, query: BoardQuery) -> bool:
    """Return whether a query gives a number, or the histogram of a heatmap."""
    found = prometheus.ask("query", query=query.resolve(__rate_interval="1m", __range="2m"))["result"]
    return any("histogram" in each or not math.isnan(float(each["value"][1])) for each in found)
