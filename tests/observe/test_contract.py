"""The telemetry registry is consistent, and the contract check finds violations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode

from tests.captured import Telemetry
from tests.observe.closed_list import (
    APPLICATION,
    REQUIRED,
    REQUIRED_ON_EVENTS,
    assert_consistent,
    assert_declared_event,
    assert_declared_point,
    assert_declared_span,
    assert_one_set_of_names,
    assert_parents,
)
from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.otel.memory import FinishedEvent


def test_the_registry_is_consistent() -> None:
    for each in (*names.SPANS, *names.EVENTS.values()):
        assert {*each.attributes, *each.content} <= set(names.ATTRIBUTES), each.name
        for carried in (each.attributes, each.content):
            assert len(carried) == len(set(carried)), each.name
    for metric in names.METRICS.values():
        assert set(metric.attributes) <= set(names.ATTRIBUTES), metric.name
        assert (metric.instrument == "histogram") is bool(metric.boundaries), metric.name
        assert list(metric.boundaries) == sorted(metric.boundaries)
        assert not metric.name.endswith((".total", "_total"))
    pattern = re.compile(
        r"(gen_ai|traced_tools|server|error|exception|http|openinference|mcp|jsonrpc|rpc|network|user)(\.[a-z][a-z_]*)+"
    )
    spelled = [*names.ATTRIBUTES, *names.METRICS, *names.EVENTS]
    assert [name for name in spelled if not pattern.fullmatch(name)] == []
    described = [*names.SPANS, *names.ATTRIBUTES.values(), *names.METRICS.values(), *names.EVENTS.values()]
    assert all(each.brief for each in described)


def test_every_attribute_of_the_registry_is_used() -> None:
    rows = [*names.SPANS, *names.EVENTS.values()]
    carried = {name for row in rows for name in (*row.attributes, *row.content)}
    assert carried | {name for metric in names.METRICS.values() for name in metric.attributes} == set(names.ATTRIBUTES)


def test_required_attributes_are_declared() -> None:
    for span in names.SPANS:
        assert REQUIRED[span] <= set(span.attributes)
    for event in names.EVENTS.values():
        assert REQUIRED_ON_EVENTS[event.name] <= set(event.attributes)


CONTENT = {
    names.INPUT_MESSAGES,
    names.OUTPUT_MESSAGES,
    names.SYSTEM_INSTRUCTIONS,
    names.TOOL_DEFINITIONS,
    names.TOOL_DESCRIPTION,
    names.TOOL_CALL_ARGUMENTS,
    names.TOOL_CALL_RESULT,
    names.INTENT,
    names.TOOL_REQUESTED_NAME,
    names.EVALUATION_EXPLANATION,
    names.RETRIEVAL_QUERY,
    names.MEMORY_QUERY,
    names.MEMORY_RECORDS,
    names.RETRIEVAL_DOCUMENTS,
    names.EXCEPTION_MESSAGE,
    names.EXCEPTION_STACKTRACE,
    names.CONTENT_TRUNCATED,
    names.USER_ID,
}


def test_content_is_opt_in_wherever_it_is_declared_and_never_a_label() -> None:
    for row in (*names.SPANS, *names.EVENTS.values()):
        assert not CONTENT & set(row.attributes), row.name
        assert set(row.content) <= CONTENT, row.name
    for metric in names.METRICS.values():
        assert not CONTENT & set(metric.attributes), metric.name


def test_our_own_spans_do_not_declare_an_operation_of_the_conventions() -> None:
    ours = (names.ITERATION_SPAN, names.HOOK_SPAN, names.REFUSE_TOOL_SPAN, names.COMPACT_MEMORY_SPAN)
    ours += (names.AWAIT_APPROVAL_SPAN, names.MCP_CALL_SPAN, names.MCP_REQUEST_SPAN)
    ours += (names.SERVED_CALL_SPAN, names.SERVED_REQUEST_SPAN)
    assert [span.name for span in ours if names.OPERATION_NAME in span.attributes] == []
    assert all(names.OPERATION_NAME in span.attributes for span in names.SPANS if span not in ours)


def test_no_id_and_no_index_is_a_metric_label() -> None:
    forbidden = {
        names.RUN_ID,
        names.TOOL_CALL_ID,
        names.CONVERSATION_ID,
        names.RESPONSE_ID,
        names.USER_ID,
        names.PRINCIPAL_ID,
        names.ACTORS,
        names.ITERATION_INDEX,
        names.TOOL_ATTEMPTS,
        names.TOOL_BATCH_INDEX,
    }
    for metric in names.METRICS.values():
        assert not forbidden & set(metric.attributes), metric.name


# The check itself.

OURS = InstrumentationScope(names.SCOPE)
ITERATION = {names.ITERATION_INDEX: 1, names.ITERATION_TOOL_CALLS: 0}


def span_of(
    name: str = "iteration",
    attributes: dict[str, Any] | None = None,
    *,
    status: Status | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    scope: InstrumentationScope = OURS,
    number: int = 1,
    parent: int | None = None,
) -> ReadableSpan:
    return ReadableSpan(
        name,
        SpanContext(1, number, False),
        None if parent is None else SpanContext(1, parent, False),
        attributes=ITERATION if attributes is None else attributes,
        status=status or Status(),
        kind=kind,
        instrumentation_scope=scope,
    )


FAILED = Status(StatusCode.ERROR, "KeyError")
WRONG_SPANS: dict[str, Callable[[], ReadableSpan]] = {
    "a name that is not in the table": lambda: span_of("invented"),
    "an attribute of another span": lambda: span_of(attributes={**ITERATION, names.RUN_ID: "x"}),
    "a missing attribute": lambda: span_of(attributes={names.ITERATION_INDEX: 1}),
    "an int as text": lambda: span_of(attributes={**ITERATION, names.ITERATION_INDEX: "1"}),
    "a boolean for an int": lambda: span_of(attributes={**ITERATION, names.ITERATION_INDEX: True}),
    "a negative number": lambda: span_of(attributes={**ITERATION, names.ITERATION_INDEX: -1}),
    "OK": lambda: span_of(status=Status(StatusCode.OK)),
    "ERROR without its type": lambda: span_of(status=FAILED),
    "an ERROR that does not say its type": lambda: span_of(
        status=Status(StatusCode.ERROR), attributes={**ITERATION, names.ERROR_TYPE: "x"}
    ),
    "a type of error without ERROR": lambda: span_of(attributes={**ITERATION, names.ERROR_TYPE: "x"}),
    "a description": lambda: span_of(
        status=Status(StatusCode.ERROR, "no such key"), attributes={**ITERATION, names.ERROR_TYPE: "KeyError"}
    ),
    "a client's kind": lambda: span_of(kind=SpanKind.CLIENT),
    "an operation of the conventions": lambda: span_of(attributes={**ITERATION, names.OPERATION_NAME: "chat"}),
    "another scope": lambda: span_of(scope=InstrumentationScope("other")),
    "content": lambda: span_of(attributes={**ITERATION, names.INPUT_MESSAGES: "[]"}),
    "another name than its attributes say": lambda: span_of(
        "before memory",
        {names.ADVISOR_NAME: "other", names.ADVISOR_HOOK: "before", names.ADVISOR_ORDER: 1},
    ),
    "a word that is not in the list": lambda: span_of(
        "before memory",
        {names.ADVISOR_NAME: "memory", names.ADVISOR_HOOK: "invented", names.ADVISOR_ORDER: 1},
    ),
}


def test_a_span_that_keeps_the_contract_passes() -> None:
    assert_declared_span(span_of())
    assert_declared_span(span_of(status=FAILED, attributes={**ITERATION, names.ERROR_TYPE: "KeyError"}))


@pytest.mark.parametrize("what", WRONG_SPANS)
def test_a_span_that_breaks_the_contract_is_found(what: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        assert_declared_span(WRONG_SPANS[what]())


def test_an_invalid_span_of_ours_is_found_and_one_of_the_application_is_ignored() -> None:
    telemetry = Telemetry()
    telemetry.tracer_provider.get_tracer(APPLICATION).start_span("invented").end()
    assert_consistent(telemetry)
    telemetry.tracer_provider.get_tracer(names.SCOPE).start_span("invented").end()
    with pytest.raises(AssertionError, match="invented is not in the table"):
        assert_consistent(telemetry)


def test_a_span_below_one_it_does_not_belong_to_is_found() -> None:
    run = span_of("invoke_agent travel", number=1)
    assert_parents([run, span_of(number=2, parent=1)])
    with pytest.raises(AssertionError, match="iteration stands below chat"):
        assert_parents([span_of("chat m", number=1), span_of(number=2, parent=1)])


POINT = MetricPoint(names.TOOL_LATE_RESULTS.name, {names.TOOL_NAME: "add"}, "1", 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        replace(POINT, name="invented"),
        replace(POINT, attributes={}),
        replace(POINT, attributes={names.TOOL_NAME: 1}),
        replace(POINT, attributes={names.TOOL_NAME: "add", names.RUN_ID: "x"}),
    ],
)
def test_a_series_that_breaks_the_contract_is_found(wrong: MetricPoint) -> None:
    assert_declared_point(POINT)
    with pytest.raises((AssertionError, KeyError)):
        assert_declared_point(wrong)


def test_names_of_both_conventions_at_once_are_found() -> None:
    earlier, released = names.TOKEN_USAGE, names.INPUT_TOKENS_USED
    assert_one_set_of_names([replace(POINT, name=released.name)])
    with pytest.raises(AssertionError, match="both"):
        assert_one_set_of_names([replace(POINT, name=each.name) for each in (earlier, released)])
    with pytest.raises(AssertionError, match="both"):
        assert_one_set_of_names([replace(POINT, name=released.name)], [names.USAGE_CACHE_CREATION_TOKENS])


RAISED = names.TOOL_EXCEPTION_EVENT.name
EVENT = FinishedEvent(RAISED, {names.EXCEPTION_TYPE: "KeyError"}, "WARN", f"{1:032x}", f"{1:016x}")
TEXT = {**EVENT.attributes, names.EXCEPTION_MESSAGE: "x"}


@pytest.mark.parametrize(
    "wrong",
    [
        replace(EVENT, name="invented"),
        replace(EVENT, severity="INFO"),
        replace(EVENT, attributes={}),
        replace(EVENT, attributes={names.EXCEPTION_TYPE: 1}),
        replace(EVENT, attributes={**EVENT.attributes, names.TOOL_NAME: "add"}),
        replace(EVENT, attributes=TEXT),
    ],
)
def test_an_event_that_breaks_the_contract_is_found(wrong: FinishedEvent) -> None:
    assert_declared_event(EVENT, RAISED)
    assert_declared_event(replace(EVENT, attributes=TEXT), RAISED, content=True)
    with pytest.raises((AssertionError, KeyError)):
        assert_declared_event(wrong, RAISED)


def test_an_event_without_its_body_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_declared_event(EVENT, None)
