"""Exemplars link a Prometheus sample to its trace."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from tests.otel.scraped import Exposed, get, only, run
from traced_tools import ChatClient, Usage
from traced_tools.testing import ScriptedChatModel


def test_a_scrape_over_http_has_exemplars_of_real_traces(exposed: Exposed) -> None:
    run(exposed.options)
    with exposed.serve() as server:
        _, text = get(server)
    samples = [sample for family in parse_openmetrics(text) for sample in family.samples]
    traces = {sample.exemplar.labels["trace_id"] for sample in samples if sample.exemplar}
    assert traces == {f"{span.get_span_context().trace_id:032x}" for span in exposed.spans().values()}


def test_an_exemplar_of_a_bucket_has_the_ids_of_a_span_of_that_duration(exposed: Exposed) -> None:
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


def test_an_exemplar_of_a_counter_has_the_ids_of_its_span(exposed: Exposed) -> None:
    run(exposed.options)
    found = {
        exposed.spans()[int(sample.exemplar.labels["span_id"], 16)].name
        for sample in exposed.samples("traced_tools_tool_decisions_total")
        if sample.exemplar
    }
    assert found == {"execute_tool fail", "refuse_tool _unknown"}


def test_the_exemplar_of_the_highest_bucket_of_costs_is_the_most_expensive_run(exposed: Exposed) -> None:
    options = replace(exposed.options, prices=ADollarAThousand())
    for tokens in (20, 90_000, 700):
        model = ScriptedChatModel(["x"], usage=Usage(input_tokens=tokens, output_tokens=0))
        ChatClient(model, name=f"agent of {tokens}", telemetry=options).prompt("?").call()
    buckets = [each for each in exposed.samples("traced_tools_loop_cost_bucket") if each.exemplar]
    *_, highest = sorted(buckets, key=lambda bucket: float(bucket.labels["le"]))
    assert (highest.labels["le"], highest.exemplar.value) == ("100.0", 90.0)  # type: ignore[union-attr]
    spans = exposed.spans()
    assert [spans[int(each.exemplar.labels["span_id"], 16)].name for each in (highest,) if each.exemplar] == [
        "invoke_agent agent of 90000"
    ]


class ADollarAThousand:
    """A price table: a thousand tokens of any model cost a dollar."""

    def price(self, provider: str, model: str, usage: Usage) -> float:
        return (usage.input_tokens or 0) / 1000


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
