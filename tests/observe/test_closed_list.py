"""Everything that is exported is in the telemetry registry, and everything in the registry is exported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.observe.all_runs import RUNS, Prices, runs_of_everything
from tests.observe.closed_list import assert_consistent, event_type, span_type, word_of
from tests.sweeps import sweep
from traced_tools.core.enums import CAPTURE_MODES, CONVENTIONS, DETAILS, HOOKS
from traced_tools.observe import names
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS, RELEASED

SMALL = ContentCapture("SPAN_AND_EVENT", max_bytes=256)


def emitted(convention: str = RELEASED, **options: Any) -> Telemetry:
    """What the runs of everything emit by one of the two sets of names."""
    telemetry = Telemetry(prices=Prices(), cumulative=True, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(GENAI_CONVENTIONS, convention)
        runs_of_everything(telemetry)
    assert_consistent(telemetry)
    return telemetry


@pytest.fixture(scope="module")
def plain() -> Telemetry:
    """Without content, and with the names of v1.41.0."""
    return emitted(EARLIER, openinference=True)


@pytest.fixture(scope="module")
def captured() -> Telemetry:
    """With all content, truncated to size, and the names of v0.1.0."""
    return emitted(capture=SMALL)


# What is exported is in the table.


@sweep(strength=1, convention=[*CONVENTIONS], capture=CAPTURE_MODES, detail=DETAILS)
def test_everything_exported_is_in_the_registry_with_any_options(convention: str, capture: str, detail: str) -> None:
    exported = emitted(convention, capture=capture, detail=detail)
    assert exported.spans and exported.metrics and exported.events


@pytest.mark.parametrize("alone", RUNS, ids=lambda each: each.__name__)
def test_every_sample_run_alone_keeps_the_contract(alone: Any) -> None:
    telemetry = Telemetry()
    alone(telemetry)
    assert_consistent(telemetry)


# What is in the table is exported.


def test_every_span_of_the_registry_is_emitted(plain: Telemetry) -> None:
    assert {span_type(span).name for span in plain.spans} == {each.name for each in names.SPANS}
    assert {word_of(span) for span in plain.spans} >= set(HOOKS)


def test_every_metric_of_the_registry_is_emitted(plain: Telemetry, captured: Telemetry) -> None:
    assert {point.name for point in (*plain.metrics, *captured.metrics)} == set(names.METRICS)


def test_every_event_of_the_registry_is_emitted(plain: Telemetry, captured: Telemetry) -> None:
    for convention, telemetry, left_out in (
        (EARLIER, plain, {names.INFERENCE_DETAILS_EVENT.name}),
        (RELEASED, captured, set[str]()),
    ):
        wanted = {each.name for each in names.EVENTS.values() if each.only in (None, convention)}
        assert {event.name for event in telemetry.events} == wanted - left_out


def test_every_span_attribute_except_content_is_emitted_without_capture(plain: Telemetry) -> None:
    found = carried_by((span_type(span).name, span.attributes) for span in plain.spans)
    assert missing_of(found, names.SPANS, "attributes", but_for=RELEASED) == {}


def test_every_content_attribute_of_a_span_is_emitted_with_capture(captured: Telemetry) -> None:
    found = carried_by((span_type(span).name, span.attributes) for span in captured.spans)
    assert missing_of(found, names.SPANS, "content") == {}


def test_every_attribute_and_content_of_an_event_is_emitted(plain: Telemetry, captured: Telemetry) -> None:
    found = carried_by((event_type(event).name, event.attributes) for event in (*plain.events, *captured.events))
    assert missing_of(found, names.EVENTS.values(), "attributes", but_for=EARLIER) == {}
    assert missing_of(found, names.EVENTS.values(), "content") == {}


def test_every_label_of_a_metric_is_emitted(plain: Telemetry, captured: Telemetry) -> None:
    found = carried_by((point.name, point.attributes) for point in (*plain.metrics, *captured.metrics))
    assert missing_of(found, names.METRICS.values(), "attributes") == {}


def carried_by(rows: Iterable[tuple[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for name, attributes in rows:
        found.setdefault(name, set()).update(attributes or {})
    return found


def missing_of(found: dict[str, set[str]], rows: Iterable[Any], part: str, but_for: str = "") -> dict[str, set[str]]:
    """The names in `part` of each definition that were not found, without those of the other conventions."""
    missing = {
        row.name: {name for name in getattr(row, part) if names.ATTRIBUTES[name].only != but_for}
        - found.get(row.name, set())
        for row in rows
    }
    return {name: absent for name, absent in missing.items() if absent}


# The two sets of names.


def test_each_convention_emits_exactly_its_metrics_of_the_registry(plain: Telemetry, captured: Telemetry) -> None:
    for convention, telemetry in ((EARLIER, plain), (RELEASED, captured)):
        wanted = {each.name for each in names.METRICS.values() if each.only in (None, convention)}
        assert {point.name for point in telemetry.metrics} == wanted


def test_attributes_of_one_convention_are_not_emitted_with_the_other(plain: Telemetry, captured: Telemetry) -> None:
    for convention, telemetry in ((EARLIER, plain), (RELEASED, captured)):
        found = set().union(*(span.attributes or {} for span in telemetry.spans))
        wanted = {each.name for each in names.ATTRIBUTES.values() if each.only == convention}
        assert {name for name in found if names.ATTRIBUTES[name].only is not None} == wanted != set()


def test_the_names_of_spans_and_of_other_events_are_the_same_by_both_conventions(plain: Telemetry) -> None:
    released = emitted()
    raised = {names.INFERENCE_EXCEPTION_EVENT.name: names.OPERATION_EXCEPTION_EVENT.name}
    assert sorted(span.name for span in released.spans) == sorted(span.name for span in plain.spans)
    renamed = sorted(raised.get(event.name, event.name) for event in released.events)
    assert renamed == sorted(event.name for event in plain.events)


# Metrics.


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_every_metric_has_the_instrument_unit_and_buckets_of_the_registry(
    plain: Telemetry, captured: Telemetry, convention: str
) -> None:
    data = (plain if convention == EARLIER else captured).metrics_data()
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == names.SCOPE
            for metric in scope.metrics:
                declared = names.METRICS[metric.name]
                assert (metric.unit, metric.description) == (declared.unit, declared.brief)
                kind = type(metric.data).__name__
                monotonic = getattr(metric.data, "is_monotonic", None)
                instrument = {
                    ("Histogram", None): "histogram",
                    ("Sum", True): "counter",
                    ("Sum", False): "updowncounter",
                    ("Gauge", None): "gauge",
                }[kind, monotonic]
                assert instrument == declared.instrument
                for point in metric.data.data_points:
                    if declared.boundaries:
                        assert tuple(getattr(point, "explicit_bounds", ())) == declared.boundaries
