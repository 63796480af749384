from __future__ import annotations

import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry.sdk.metrics import Histogram, MeterProvider
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.samples import Sample

from traced_tools.client import ChatClient
from traced_tools.errors import ConfigurationError
from traced_tools.messages import ToolCall, Usage
from traced_tools.telemetry import names
from traced_tools.telemetry.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer, parse_address
from traced_tools.telemetry.run import TelemetryOptions
from traced_tools.testing.scripted import ScriptedChatModel

MARKER = "the-secret-marker"
OPENMETRICS = "application/openmetrics-text"


class Exposed:
    """Providers whose metrics are exposed; nobody listens before `serve`."""

    def __init__(self, *views: View) -> None:
        resource = Resource({"service.name": "checkout", "cloud.region": "here"})
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = PrometheusReader()
        self.collector = PrometheusCollector(self.reader)
        self.meter_provider = MeterProvider([self.reader], resource, shutdown_on_exit=False, views=views)
        self.meter = self.meter_provider.get_meter("a scope", "1.0")
        self.registry = CollectorRegistry(support_collectors_without_names=True)
        self.registry.register(self.collector)
        self.options = TelemetryOptions(self.tracer_provider, self.meter_provider)

    def close(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    def text(self, accept: str = OPENMETRICS) -> str:
        """Return what a scraper would be given."""
        encode, _ = choose_encoder(accept)
        return encode(self.registry).decode()

    @contextmanager
    def serve(self) -> Iterator[PrometheusServer]:
        """Listen on a loopback port."""
        server = PrometheusServer(self.collector, "127.0.0.1", 0)
        try:
            yield server
        finally:
            server.stop()

    def samples(self, name: str) -> list[Sample]:
        """Return the samples of one name."""
        families = parse_openmetrics(self.text())
        return [sample for family in families for sample in family.samples if sample.name == name]

    def spans(self) -> dict[int, ReadableSpan]:
        return {span.get_span_context().span_id: span for span in self.exporter.get_finished_spans()}


def get(server: PrometheusServer, accept: str = OPENMETRICS, query: str = "") -> tuple[str, str]:
    """Scrape over HTTP; return the content type and the text."""
    request = urllib.request.Request(f"http://{server.address}/metrics{query}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


@pytest.fixture
def exposed() -> Iterator[Exposed]:
    exposed = Exposed()
    yield exposed
    exposed.close()


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"{MARKER} {text}")


def run(options: TelemetryOptions) -> None:
    """A run with a tool that fails and one that nobody registered, secrets everywhere."""
    asked = [ToolCall(name="fail", arguments={"text": MARKER}), ToolCall(name=MARKER, arguments={"x": MARKER})]
    model = ScriptedChatModel([asked, MARKER], usage=Usage(input_tokens=812, output_tokens=93))
    client = ChatClient(model, tools=[fail], telemetry=options)
    client.prompt(MARKER, conversation_id=MARKER).call()


def only(samples: list[Sample]) -> Sample:
    (sample,) = samples
    return sample


def test_every_metric_of_a_run_is_exposed_under_its_prometheus_name(exposed: Exposed) -> None:
    run(exposed.options)
    families = {family.name: family.type for family in parse_openmetrics(exposed.text())}
    assert families == {
        "target": "info",
        "gen_ai_client_operation_duration_seconds": "histogram",
        "gen_ai_client_token_usage": "histogram",
        "gen_ai_execute_tool_duration_seconds": "histogram",
        "gen_ai_invoke_agent_duration_seconds": "histogram",
        "gen_ai_invoke_agent_inference_calls": "histogram",
        "gen_ai_invoke_agent_tool_calls": "histogram",
        "traced_tools_advisor_duration_seconds": "histogram",
        "traced_tools_iteration_duration_seconds": "histogram",
        "traced_tools_loop_iterations": "histogram",
        "traced_tools_run_active": "gauge",
        "traced_tools_run_oldest_active_seconds": "gauge",
        "traced_tools_tool_oldest_active_seconds": "gauge",
        "traced_tools_tool_active": "gauge",
        "traced_tools_tool_decisions": "counter",
    }


def test_a_scrape_over_http_has_exemplars_of_real_traces(exposed: Exposed) -> None:
    run(exposed.options)
    with exposed.serve() as server:
        _, text = get(server)
    samples = [sample for family in parse_openmetrics(text) for sample in family.samples]
    traces = {sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar}
    assert traces == {f"{span.get_span_context().trace_id:032x}" for span in exposed.spans().values()}


def test_an_exemplar_of_a_bucket_names_the_span_that_took_that_long(exposed: Exposed) -> None:
    run(exposed.options)
    buckets = exposed.samples("gen_ai_execute_tool_duration_seconds_bucket")
    exemplar = only([sample for sample in buckets if sample.exemplar]).exemplar
    assert exemplar is not None
    span = exposed.spans()[int(exemplar.labels["span_id"], 16)]
    assert span.name == "execute_tool fail"
    assert exemplar.labels == {
        "trace_id": f"{span.get_span_context().trace_id:032x}",
        "span_id": f"{span.get_span_context().span_id:016x}",
    }
    assert exemplar.value == pytest.approx((span.end_time - span.start_time) / 1e9, abs=1e-6)


def test_an_exemplar_of_a_counter_names_its_span(exposed: Exposed) -> None:
    run(exposed.options)
    found = {
        exposed.spans()[int(sample.exemplar.labels["span_id"], 16)].name
        for sample in exposed.samples("traced_tools_tool_decisions_total")
        if sample.exemplar
    }
    assert found == {"execute_tool fail", "refuse_tool _unknown"}


def test_a_second_scrape_sees_the_exemplars_of_the_first(exposed: Exposed) -> None:
    run(exposed.options)
    first, second = (exposed.samples("gen_ai_invoke_agent_duration_seconds_bucket") for _ in range(2))
    assert any(sample.exemplar for sample in first)
    assert first == second


def test_a_later_run_replaces_the_exemplar_of_its_bucket(exposed: Exposed) -> None:
    histogram = exposed.meter.create_histogram("h", "s", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    tracer = exposed.tracer_provider.get_tracer("test")
    values = []
    for value in (1.5, 0.5, 1.75):
        with tracer.start_as_current_span("work"):
            histogram.record(value)
        found = [sample.exemplar for sample in exposed.samples("h_seconds_bucket")]
        values.append([exemplar and exemplar.value for exemplar in found])
    assert values == [[None, 1.5, None], [0.5, 1.5, None], [0.5, 1.75, None]]


def test_a_flush_does_not_use_the_exemplars_up(exposed: Exposed) -> None:
    run(exposed.options)
    exposed.meter_provider.force_flush()
    assert any(sample.exemplar for sample in exposed.samples("gen_ai_invoke_agent_duration_seconds_bucket"))


def test_a_value_on_a_boundary_and_one_past_the_last_have_their_exemplars_in_their_buckets(exposed: Exposed) -> None:
    histogram = exposed.meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    tracer = exposed.tracer_provider.get_tracer("test")
    for value in (1.0, 99.0):
        with tracer.start_as_current_span("work"):
            histogram.record(value)
    assert [
        (sample.labels["le"], sample.value, sample.exemplar and sample.exemplar.value)
        for sample in exposed.samples("h_bucket")
    ] == [("1.0", 1, 1.0), ("2.0", 1, None), ("+Inf", 2, 99.0)]


def test_a_measurement_outside_a_trace_has_no_exemplar(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1)
    assert only(exposed.samples("c_total")).exemplar is None


def test_a_filter_that_lets_everything_through_makes_no_exemplar_without_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_METRICS_EXEMPLAR_FILTER", "always_on")
    exposed = Exposed()
    try:
        exposed.meter.create_counter("c").add(1)
        assert only(exposed.samples("c_total")).exemplar is None
    finally:
        exposed.close()


def test_scrapes_take_turns_so_that_old_exemplars_never_replace_new_ones(
    exposed: Exposed, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone: list[bool] = []
    monkeypatch.setattr(exposed.reader, "read", lambda: alone.append(exposed.collector._lock.locked()))
    exposed.text()
    assert alone == [True]


def test_a_scraper_that_does_not_ask_for_openmetrics_gets_the_text_format(exposed: Exposed) -> None:
    run(exposed.options)
    with exposed.serve() as server:
        kind, text = get(server, "text/plain")
        other, _ = get(server)
    assert kind.startswith("text/plain") and other.startswith(OPENMETRICS)
    families = {family.name: family for family in parse_text(text)}
    assert families["gen_ai_invoke_agent_duration_seconds"].type == "histogram"
    assert "trace_id" not in text


def test_a_scraper_can_ask_for_single_series(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1)
    exposed.meter.create_counter("d").add(1)
    with exposed.serve() as server:
        _, text = get(server, "text/plain", "?name[]=c_total")
    assert "c_total 1.0" in text and "d_total" not in text


def test_the_resource_is_target_info_and_no_series_has_scope_labels(exposed: Exposed) -> None:
    run(exposed.options)
    text = exposed.text()
    assert 'target_info{cloud_region="here",service_name="checkout"} 1.0' in text
    assert "otel_scope" not in text
    assert text.count("checkout") == 1


def test_no_content_and_no_unbounded_id_becomes_a_label(exposed: Exposed) -> None:
    run(exposed.options)
    text = exposed.text() + exposed.text("text/plain")
    assert 'gen_ai_tool_name="_unknown"' in text and 'error_type="ValueError"' in text
    assert MARKER not in text
    assert "run_id" not in text and "call_id" not in text


def test_a_histogram_is_cumulative_and_tells_count_and_sum(exposed: Exposed) -> None:
    histogram = exposed.meter.create_histogram("h", "s", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.record(value, {"k": "v"})
    assert [sample.value for sample in exposed.samples("h_seconds_bucket")] == [1, 3, 4]
    assert only(exposed.samples("h_seconds_count")) == Sample("h_seconds_count", {"k": "v"}, 4.0)
    assert only(exposed.samples("h_seconds_sum")).value == 6.5


def test_up_down_counters_are_gauges(exposed: Exposed) -> None:
    counter = exposed.meter.create_up_down_counter("now")
    counter.add(3)
    counter.add(-1)
    assert only(exposed.samples("now")).value == 2


@pytest.mark.parametrize(
    ("name", "unit", "exposed_as"),
    [
        ("a.b-c", "", "a_b_c_total"),
        ("a.total", "", "a_total"),
        ("a.total", "s", "a_seconds_total"),
        ("a.seconds", "s", "a_seconds_total"),
        ("a", "By", "a_bytes_total"),
        ("a", "{token}", "a_total"),
        ("a", "1", "a_total"),
        ("a", "m/s", "a_meters_per_second_total"),
        ("a", "{packet}/s", "a_per_second_total"),
        ("a", "foo bar", "a_foo_bar_total"),
    ],
)
def test_counters_are_named_by_the_conventions(exposed: Exposed, name: str, unit: str, exposed_as: str) -> None:
    exposed.meter.create_counter(name, unit).add(1)
    assert only(exposed.samples(exposed_as)).value == 1


def test_a_gauge_of_unit_one_is_a_ratio_as_the_collector_has_it(exposed: Exposed) -> None:
    exposed.meter.create_gauge("a", "1").set(0.5)
    assert only(exposed.samples("a_ratio")).value == 0.5


def test_label_names_are_cleaned_and_values_are_text(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1, {"a.b": True, "1st": 2, "list": ["x", "y"], "a--c": 'quote " \\ \n'})
    assert only(exposed.samples("c_total")).labels == {
        "a_b": "true",
        "key_1st": "2",
        "list": '["x", "y"]',
        "a_c": 'quote " \\ \n',
    }


def test_attributes_whose_labels_are_the_same_are_joined(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1, {"a_b": "second", "a.b": "first"})
    assert only(exposed.samples("c_total")).labels == {"a_b": "first;second"}


def test_an_attribute_does_not_take_the_label_of_the_buckets(exposed: Exposed) -> None:
    exposed.meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1.0]).record(0.5, {"le": "mine"})
    assert [sample.labels for sample in exposed.samples("h_bucket")] == [
        {"exported_le": "mine", "le": "1.0"},
        {"exported_le": "mine", "le": "+Inf"},
    ]


def test_one_metric_of_two_scopes_is_one_family(exposed: Exposed) -> None:
    exposed.meter.create_counter("c").add(1, {"from": "one"})
    exposed.meter_provider.get_meter("another").create_counter("c").add(2, {"from": "two"})
    assert [(sample.labels, sample.value) for sample in exposed.samples("c_total")] == [
        ({"from": "one"}, 1),
        ({"from": "two"}, 2),
    ]
    assert not exposed.collector.skipped


def test_a_series_that_is_there_already_is_skipped_counted_and_logged_once(
    exposed: Exposed, caplog: pytest.LogCaptureFixture
) -> None:
    exposed.meter.create_counter("c").add(1)
    exposed.meter_provider.get_meter("another").create_counter("c").add(2)
    assert only(exposed.samples("c_total")).value == 1
    exposed.text()
    assert exposed.collector.skipped == {"c": 2}
    assert [record.message for record in caplog.records] == [
        "the metric c is left out of the Prometheus exposition, or a part of it: "
        "two of its series have the same labels in Prometheus"
    ]


@pytest.mark.parametrize("second", ["a_b", "a.b.count", "target.info"])
def test_a_metric_whose_name_is_taken_is_skipped_and_the_rest_stays_valid(exposed: Exposed, second: str) -> None:
    exposed.meter.create_histogram("a.b", explicit_bucket_boundaries_advisory=[1.0]).record(0.5)
    exposed.meter.create_gauge(second).set(7)
    assert {family.name for family in parse_openmetrics(exposed.text())} == {"target", "a_b"}
    assert set(exposed.collector.skipped) == {second}


def test_an_exponential_histogram_is_skipped_and_said_to_be() -> None:
    exposed = Exposed(View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation()))
    try:
        exposed.meter.create_histogram("h").record(1)
        exposed.meter.create_counter("c").add(1)
        assert {family.name for family in parse_openmetrics(exposed.text())} == {"target", "c"}
        assert exposed.collector.skipped == {"h": 1}
    finally:
        exposed.close()


def test_scrapes_at_once_while_runs_go_on_are_each_valid_and_never_go_back(exposed: Exposed) -> None:
    name = "gen_ai_invoke_agent_duration_seconds_count"
    stop = threading.Event()

    def scrape_on(server: PrometheusServer) -> list[float]:
        seen: list[float] = []
        while not stop.is_set():
            families = parse_openmetrics(get(server)[1])
            seen.extend(sample.value for family in families for sample in family.samples if sample.name == name)
        return seen

    with exposed.serve() as server, ThreadPoolExecutor(4) as pool:
        scrapers = [pool.submit(scrape_on, server) for _ in range(3)]
        for _ in range(20):
            run(exposed.options)
        stop.set()
    for scraper in scrapers:
        assert scraper.result() == sorted(scraper.result())
    assert only(exposed.samples(name)).value == 20
    assert not exposed.collector.skipped


def test_tool_names_the_model_made_up_and_fresh_ids_add_no_series(exposed: Exposed) -> None:
    def lines() -> int:
        return sum(1 for line in exposed.text("text/plain").splitlines() if not line.startswith("#"))

    def made_up(number: int) -> list[Any]:
        return [ToolCall(name=f"tool_{number}_{each}", arguments={}) for each in range(10)]

    run(exposed.options)
    before = lines()
    model = ScriptedChatModel([turn for number in range(5) for turn in (made_up(number), "done")])
    client = ChatClient(model, telemetry=exposed.options)
    for number in range(5):
        client.prompt("go", conversation_id=f"conversation {number}").call()
    after_five = lines()
    model = ScriptedChatModel([turn for number in range(5, 50) for turn in (made_up(number), "done")])
    client = ChatClient(model, telemetry=exposed.options)
    for number in range(5, 50):
        client.prompt("go", conversation_id=f"conversation {number}").call()
    assert before <= after_five == lines()


def test_a_scrape_before_the_first_run_is_empty_and_valid(exposed: Exposed) -> None:
    assert exposed.text() == "# EOF\n"


def test_a_scrape_after_the_reader_was_shut_down_is_empty_and_no_error(exposed: Exposed) -> None:
    run(exposed.options)
    exposed.reader.shutdown()
    assert exposed.text() == "# EOF\n"


def test_metrics_that_cannot_be_read_cost_the_scrape_and_nothing_else(
    exposed: Exposed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise TimeoutError(MARKER)

    monkeypatch.setattr(exposed.reader, "read", broken)
    assert exposed.text() == "# EOF\n"
    assert [record.message for record in caplog.records] == [
        "a scrape found no metrics: reading them raised TimeoutError"
    ]


def test_serving_writes_nothing_to_stderr(exposed: Exposed, capfd: pytest.CaptureFixture[str]) -> None:
    with exposed.serve() as server:
        get(server)
        delete = urllib.request.Request(f"http://{server.address}/", method="DELETE")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(delete, timeout=5)
        refused.value.close()
    assert capfd.readouterr() == ("", "")


def test_a_stopped_server_has_no_thread_and_no_port(exposed: Exposed) -> None:
    before = set(threading.enumerate())
    with exposed.serve() as server:
        assert set(threading.enumerate()) - before
    server.stop()
    assert not set(threading.enumerate()) - before
    host, port = server.address.split(":")
    again = PrometheusServer(exposed.collector, host, int(port))
    again.stop()
    assert again.address == server.address


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"prometheus: cannot listen on 127\.0\.0\.1:{port} \(Address"):
            PrometheusServer(PrometheusCollector(PrometheusReader()), "127.0.0.1", port)


@pytest.mark.parametrize("host", ["a..b", "192.0.2.1"])
def test_a_host_that_is_not_here_is_an_error(host: str) -> None:
    with pytest.raises(ConfigurationError, match="prometheus: cannot listen on"):
        PrometheusServer(PrometheusCollector(PrometheusReader()), host, 0)


@pytest.mark.parametrize(
    ("value", "address"),
    [
        (9464, ("127.0.0.1", 9464)),
        (0, ("127.0.0.1", 0)),
        ("0.0.0.0:9464", ("0.0.0.0", 9464)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:9464", ("::1", 9464)),
    ],
)
def test_an_address_is_a_port_of_this_machine_or_host_and_port(value: int | str, address: tuple[str, int]) -> None:
    assert parse_address(value) == address


@pytest.mark.parametrize(
    "value",
    [
        -1,
        65536,
        "",
        "9464",
        ":9464",
        "host",
        "host:",
        "host:x",
        "host:99999",
        "http://host:1",
        "u:p@host:1",
        "h:1/x",
        "[::1",
        " h:1",
    ],
)
def test_anything_else_is_an_error_that_says_what_is_accepted(value: int | str) -> None:
    with pytest.raises(ConfigurationError, match=r'a port from 0 to 65535 .* or "host:port"'):
        parse_address(value)


def test_names_of_the_table_never_clash_in_prometheus(exposed: Exposed) -> None:
    for metric in names.METRICS.values():
        if metric.instrument == "histogram":
            exposed.meter.create_histogram(metric.name, metric.unit).record(1)
        elif metric.instrument == "counter":
            exposed.meter.create_counter(metric.name, metric.unit).add(1)
        else:
            exposed.meter.create_up_down_counter(metric.name, metric.unit).add(1)
    assert len(list(parse_openmetrics(exposed.text()))) == len(names.METRICS) + 1
    assert not exposed.collector.skipped
