"""The Prometheus exposition: every metric under its conventional name, and always valid output."""

from __future__ import annotations

import time
from typing import Any

import pytest
from opentelemetry.metrics import Observation
from opentelemetry.sdk.metrics import Histogram
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.samples import Sample

from tests.markers import MARKER
from tests.otel.scraped import Exposed, only, run
from traced_tools.client import ChatClient
from traced_tools.core.messages import ToolCall
from traced_tools.observe import names
from traced_tools.testing.scripted import ScriptedChatModel


def test_every_metric_of_a_run_is_exposed_under_its_prometheus_name(exposed: Exposed) -> None:
    run(exposed.options)
    families = {family.name: family.type for family in parse_openmetrics(exposed.text())}
    assert families == {
        "target": "info",
        "gen_ai_client_inference_duration_seconds": "histogram",
        "gen_ai_client_inference_operation_input_tokens": "histogram",
        "gen_ai_client_inference_operation_output_tokens": "histogram",
        "gen_ai_client_inference_usage_input_tokens": "counter",
        "gen_ai_client_inference_usage_output_tokens": "counter",
        "gen_ai_execute_tool_duration_seconds": "histogram",
        "gen_ai_invoke_agent_duration_seconds": "histogram",
        "gen_ai_invoke_agent_inference_calls": "histogram",
        "gen_ai_invoke_agent_tool_calls": "histogram",
        "traced_tools_advisor_duration_seconds": "histogram",
        "traced_tools_iteration_duration_seconds": "histogram",
        "traced_tools_run_time_seconds": "histogram",
        "traced_tools_loop_iterations": "histogram",
        "traced_tools_run_active": "gauge",
        "traced_tools_run_oldest_active_seconds": "gauge",
        "traced_tools_tool_oldest_active_seconds": "gauge",
        "traced_tools_tool_active": "gauge",
        "traced_tools_tool_decisions": "counter",
        "traced_tools_tool_result_size_bytes": "histogram",
    }


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


def test_a_histogram_is_cumulative_with_count_and_sum(exposed: Exposed) -> None:
    histogram = exposed.meter.create_histogram("h", "s", explicit_bucket_boundaries_advisory=[1.0, 2.0])
    for value in (0.5, 1.5, 1.5, 3.0):
        histogram.record(value, {"k": "v"})
    assert [sample.value for sample in exposed.samples("h_seconds_bucket")] == [1, 3, 4]
    assert only(exposed.samples("h_seconds_count")) == Sample("h_seconds_count", {"k": "v"}, 4.0)
    assert only(exposed.samples("h_seconds_sum")).value == 6.5


def test_counters_and_histograms_expose_a_constant_creation_time(exposed: Exposed) -> None:
    exposed.meter.create_gauge("g").set(1)
    before = time.time()
    exposed.meter.create_counter("c").add(1, {"k": "v"})
    exposed.meter.create_histogram("h", explicit_bucket_boundaries_advisory=[1.0]).record(0.5)
    first = [only(exposed.samples(name)) for name in ("c_created", "h_created")]
    assert first[0].labels == {"k": "v"}
    assert all(before <= sample.value <= time.time() for sample in first)
    assert [only(exposed.samples(name)) for name in ("c_created", "h_created")] == first
    assert exposed.samples("g_created") == []


def test_the_creation_time_of_an_observed_counter_is_the_previous_scrape(exposed: Exposed) -> None:
    seen: list[Observation] = []
    exposed.meter.create_observable_counter("c", [lambda options: seen])
    exposed.text()
    between = time.time()
    seen.append(Observation(13))
    created = only(exposed.samples("c_created")).value
    assert created <= between
    assert only(exposed.samples("c_created")).value == created


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


def test_a_gauge_with_unit_1_is_a_ratio_as_in_the_collector(exposed: Exposed) -> None:
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


def test_a_duplicate_series_is_skipped_counted_and_logged_once(
    exposed: Exposed, caplog: pytest.LogCaptureFixture
) -> None:
    exposed.meter.create_counter("c").add(1)
    exposed.meter_provider.get_meter("another").create_counter("c").add(2)
    assert only(exposed.samples("c_total")).value == 1
    exposed.text()
    assert exposed.collector.skipped == {"c": 2}
    assert [record.message for record in caplog.records] == [
        "the metric c is not, or only partly, exposed to Prometheus: "
        "two of its series have the same labels in Prometheus"
    ]


@pytest.mark.parametrize("second", ["a_b", "a.b.count", "target.info"])
def test_a_metric_whose_name_is_taken_is_skipped_and_the_rest_stays_valid(exposed: Exposed, second: str) -> None:
    exposed.meter.create_histogram("a.b", explicit_bucket_boundaries_advisory=[1.0]).record(0.5)
    exposed.meter.create_gauge(second).set(7)
    assert {family.name for family in parse_openmetrics(exposed.text())} == {"target", "a_b"}
    assert set(exposed.collector.skipped) == {second}


def test_an_exponential_histogram_is_skipped_and_logged() -> None:
    exposed = Exposed(View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation()))
    try:
        exposed.meter.create_histogram("h").record(1)
        exposed.meter.create_counter("c").add(1)
        assert {family.name for family in parse_openmetrics(exposed.text())} == {"target", "c"}
        assert exposed.collector.skipped == {"h": 1}
    finally:
        exposed.close()


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


def test_an_error_while_reading_metrics_makes_the_scrape_empty(
    exposed: Exposed, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise TimeoutError(MARKER)

    monkeypatch.setattr(exposed.reader, "read", broken)
    assert exposed.text() == "# EOF\n"
    assert [record.message for record in caplog.records] == [
        "a Prometheus scrape returned no metrics: reading them raised TimeoutError"
    ]


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
