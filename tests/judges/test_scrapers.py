"""Many scrapers and many runs at once, at one endpoint: every scrape is whole, and no count goes back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, cycle, pairwise
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from tests.captured import span_id
from tests.judges.agent import SCRIPTS, USAGE, weather
from tests.modes import ALL_MODES, run
from traced_tools import ChatClient, TelemetryOptions
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer
from traced_tools.testing import ScriptedChatModel

pytestmark = pytest.mark.slow

RECORDERS, SCRAPERS, SCRAPES = 6, 6, 12
PATIENCE = 60.0
FORMATS: dict[str, Any] = {"application/openmetrics-text": parse_openmetrics, "text/plain": parse_text}
GROWING = ("_total", "_bucket", "_count", "_sum")

Series = tuple[str, frozenset[tuple[str, str]]]
Scrape = dict[Series, float]


class Endpoint:
    """Providers whose metrics are served."""

    def __init__(self) -> None:
        reader = PrometheusReader()
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.meter_provider = MeterProvider([reader], shutdown_on_exit=False)
        self.options = TelemetryOptions(self.tracer_provider, self.meter_provider)
        self.server = PrometheusServer(PrometheusCollector(reader), "127.0.0.1", [0])

    def close(self) -> None:
        self.server.stop()
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    def samples(self, http: httpx.Client, accepted: str) -> list[Sample]:
        """Scrape and parse."""
        answer = http.get(f"http://{self.server.address}/metrics", headers={"Accept": accepted})
        assert answer.headers["Content-Type"].startswith(accepted)
        return [sample for family in FORMATS[accepted](answer.text) for sample in family.samples]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


def record(endpoint: Endpoint, enough: threading.Event) -> int:
    """Run an agent that asks for two tools at once, again and again; return how often."""
    for runs, mode in enumerate(cycle(ALL_MODES)):
        if enough.is_set():
            return runs
        model = ScriptedChatModel(SCRIPTS["pair"], usage=USAGE)
        client = ChatClient(model, tools=[weather], telemetry=endpoint.options, name="busy")
        run(mode, client.prompt("go"))
    raise AssertionError("there is always another mode")


def scrape(endpoint: Endpoint, accepted: str, times: int) -> list[Scrape]:
    """Scrape so many times."""
    with httpx.Client(timeout=PATIENCE) as http:
        return [values(endpoint.samples(http, accepted)) for _ in range(times)]


def values(samples: list[Sample]) -> Scrape:
    """Return each value by its name and labels."""
    found = {(sample.name, frozenset(sample.labels.items())): sample.value for sample in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def total(scrape: Scrape, name: str, **labels: str) -> float:
    """Return the sum of a name's series that have `labels`."""
    return sum(value for (each, its), value in scrape.items() if each == name and labels.items() <= dict(its).items())


@dataclass(frozen=True)
class Crowd:
    """What came of many scrapers and many agents.

    Attributes:
        runs: how many there were.
        scrapes: what each scraper has seen, in order; the last of all when the agents had ended.
    """

    runs: int
    scrapes: list[list[Scrape]]


@pytest.fixture(scope="module")
def crowd(endpoint: Endpoint) -> Crowd:
    """Have agents run until all scrapers have scraped often enough, and once more after that."""
    enough = threading.Event()
    formats = [each for each, _ in zip(cycle(FORMATS), range(SCRAPERS), strict=False)]
    with ThreadPoolExecutor(RECORDERS + SCRAPERS) as pool:
        recorders = [pool.submit(record, endpoint, enough) for _ in range(RECORDERS)]
        try:
            scrapers = [pool.submit(scrape, endpoint, each, SCRAPES) for each in formats]
            seen = [each.result(PATIENCE) for each in scrapers]
        finally:
            enough.set()
        runs = sum(each.result(PATIENCE) for each in recorders)
    return Crowd(runs, [each + scrape(endpoint, accepted, 1) for each, accepted in zip(seen, formats, strict=True)])


@pytest.mark.slow
def test_no_count_goes_back_while_many_run_and_many_scrape(crowd: Crowd) -> None:
    for seen in crowd.scrapes:
        assert seen[0] != seen[-1], "nobody ran meanwhile"
        for before, after in pairwise(seen):
            growing = {series for series in before if series[0].endswith(GROWING)}
            assert growing <= after.keys(), "a series is gone"
            assert not [series for series in growing if after[series] < before[series]]


@pytest.mark.slow
def test_each_scrape_agrees_with_itself(crowd: Crowd) -> None:
    for each in chain.from_iterable(crowd.scrapes):
        last = {series: value for series, value in each.items() if ("le", "+Inf") in series[1]}
        for (name, labels), value in last.items():
            assert each[name.replace("_bucket", "_count"), labels - {("le", "+Inf")}] == value


def test_nothing_is_lost_and_nothing_is_counted_twice(crowd: Crowd) -> None:
    for seen in crowd.scrapes:
        check_totals(seen[-1], crowd.runs)


def check_totals(scrape: Scrape, runs: int) -> None:
    """Assert that a scrape reports `runs` runs."""
    assert total(scrape, "gen_ai_invoke_agent_duration_seconds_count", gen_ai_agent_name="busy") == runs
    assert total(scrape, "traced_tools_tool_decisions_total", traced_tools_tool_decision="allowed") == 2 * runs
    assert total(scrape, "gen_ai_execute_tool_duration_seconds_count") == 2 * runs
    tokens = (USAGE.input_tokens or 0) * 2 * runs
    assert total(scrape, "gen_ai_client_inference_usage_input_tokens_total") == tokens
    assert total(scrape, "traced_tools_run_active") == total(scrape, "traced_tools_tool_active") == 0


def test_each_scraper_is_given_the_exemplars_of_real_spans(endpoint: Endpoint, crowd: Crowd) -> None:
    assert crowd.runs > 0
    spans = {f"{span_id(span):016x}" for span in endpoint.exporter.get_finished_spans()}
    with httpx.Client(timeout=PATIENCE) as http:
        first, second = ([each for each in endpoint.samples(http, next(iter(FORMATS))) if each.exemplar] for _ in "12")
    assert {each.name for each in first} > {"traced_tools_tool_decisions_total"}
    assert {each.exemplar.labels["span_id"] for each in first if each.exemplar} <= spans
    assert first == second
