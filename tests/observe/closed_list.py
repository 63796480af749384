"""Checks of exported telemetry: it is in the registry, has the declared type, and is at the right place."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode

from tests.captured import Telemetry, context_of
from traced_tools.core.enums import HOOKS
from traced_tools.observe import names
from traced_tools.observe.content import as_capture
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.names.registry_types import EventType, SpanType
from traced_tools.otel.memory import FinishedEvent

APPLICATION = "application"
"""The scope of the spans that tests start themselves: nothing is asked of them."""

PLAIN_TYPES: dict[str, type] = {"string": str, "int": int, "double": float, "boolean": bool, "string[]": tuple}
OPERATIONS = ("invoke_agent", "chat", "embeddings", "execute_tool", "retrieval", "search_memory", "upsert_memory")

_TOOL = {
    names.TOOL_NAME,
    names.TOOL_TYPE,
    names.TOOL_CALL_ID,
    names.AGENT_NAME,
    names.TOOL_BATCH_SIZE,
    names.TOOL_BATCH_INDEX,
    names.TOOL_ARGUMENTS_SIZE,
    names.TOOL_SOURCE,
    names.TOOL_QUEUE_TIME,
}
_MODEL = {names.OPERATION_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL}
_MCP = {names.MCP_METHOD, names.JSONRPC_REQUEST_ID, names.NETWORK_TRANSPORT}
_SERVED = {*_MCP, names.MCP_PROTOCOL_VERSION, names.AGENT_NAME}
REQUIRED: Mapping[SpanType, set[str]] = {
    names.AGENT_SPAN: {
        names.OPERATION_NAME,
        names.AGENT_NAME,
        names.REQUEST_MODEL,
        names.RUN_ID,
        names.LOOP_ITERATIONS,
        names.LOOP_TOOL_CALLS,
        names.LOOP_STOP_REASON,
    },
    names.ITERATION_SPAN: {names.ITERATION_INDEX, names.ITERATION_TOOL_CALLS},
    names.HOOK_SPAN: {names.ADVISOR_NAME, names.ADVISOR_HOOK, names.ADVISOR_ORDER},
    names.CHAT_SPAN: {*_MODEL, names.AGENT_NAME},
    names.EMBEDDINGS_SPAN: _MODEL,
    names.EXECUTE_TOOL_SPAN: {
        *_TOOL,
        names.OPERATION_NAME,
        names.TOOL_OUTCOME,
        names.TOOL_ATTEMPTS,
        names.TOOL_DECISION,
    },
    names.REFUSE_TOOL_SPAN: _TOOL,
    names.MCP_CALL_SPAN: {names.TOOL_NAME, names.TOOL_SOURCE, *_MCP},
    names.MCP_REQUEST_SPAN: {names.TOOL_SOURCE, *_MCP},
    names.SERVED_CALL_SPAN: {names.TOOL_NAME, *_SERVED},
    names.SERVED_REQUEST_SPAN: _SERVED,
    names.AWAIT_APPROVAL_SPAN: {names.TOOL_NAME, names.TOOL_CALL_ID, names.AGENT_NAME},
    names.RETRIEVAL_SPAN: {names.OPERATION_NAME, names.AGENT_NAME, names.TOOL_SEARCH_INDEX},
    names.SEARCH_MEMORY_SPAN: {names.OPERATION_NAME, names.AGENT_NAME},
    names.UPSERT_MEMORY_SPAN: {names.OPERATION_NAME, names.AGENT_NAME},
    names.COMPACT_MEMORY_SPAN: {names.AGENT_NAME, names.COMPACTION_TRIGGER, names.COMPACTION_OUTCOME},
}
_RUN_EVENT = {names.RUN_ID, names.AGENT_NAME}
_CALL_EVENT = {*_RUN_EVENT, names.TOOL_NAME, names.TOOL_TYPE, names.TOOL_CALL_ID, names.TOOL_SOURCE}
_RECORD = {names.AUDIT_CHAIN_ID, names.AUDIT_SEQUENCE, names.AUDIT_HASH}
_RECORD_OF_CALL = {
    *_RECORD,
    *_RUN_EVENT,
    names.ITERATION_INDEX,
    names.TOOL_NAME,
    names.TOOL_CALL_ID,
    names.TOOL_BATCH_INDEX,
}
REQUIRED_ON_EVENTS: Mapping[str, set[str]] = {
    names.TOOL_INTENT_EVENT.name: {
        *_CALL_EVENT,
        names.TOOL_BATCH_SIZE,
        names.TOOL_BATCH_INDEX,
        names.TOOL_ARGUMENTS_SIZE,
    },
    names.TOOL_DECISION_EVENT.name: {*_CALL_EVENT, names.TOOL_DECISION},
    names.POLICY_EVALUATION_EVENT.name: {
        *_CALL_EVENT,
        names.POLICY_MODE,
        names.EVALUATED_ADVISOR,
        names.EVALUATED_DECISION,
        names.EVALUATED_CODE,
        names.EVALUATED_DIGEST,
    },
    names.TOOL_OUTCOME_EVENT.name: {*_CALL_EVENT, names.TOOL_OUTCOME, names.TOOL_ATTEMPTS},
    names.LOOP_STOP_EVENT.name: {
        *_RUN_EVENT,
        names.REQUEST_MODEL,
        names.LOOP_STOP_REASON,
        names.LOOP_ITERATIONS,
        names.LOOP_TOOL_CALLS,
    },
    names.TOOL_EXCEPTION_EVENT.name: {names.EXCEPTION_TYPE},
    names.INFERENCE_EXCEPTION_EVENT.name: {names.EXCEPTION_TYPE},
    names.OPERATION_EXCEPTION_EVENT.name: {names.EXCEPTION_TYPE},
    names.INFERENCE_DETAILS_EVENT.name: _MODEL,
    names.MEMORY_COMPACTION_EVENT.name: {*_RUN_EVENT, names.COMPACTION_TRIGGER, names.COMPACTION_OUTCOME},
    names.MISSING_RESULTS_EVENT.name: {*_RUN_EVENT, names.MISSING_RESULTS_NOT_RUN, names.MISSING_RESULTS_UNKNOWN},
    names.EVALUATION_RESULT_EVENT.name: {*_RUN_EVENT, names.ADVISOR_NAME, names.EVALUATION_NAME},
    names.SAFEGUARD_BLOCK_EVENT.name: {*_RUN_EVENT, names.ADVISOR_NAME, names.SAFEGUARD_WHERE},
    names.EXPORTED_EVENT.name: {*_RUN_EVENT, names.EVENT_TYPE, names.EVENT_ID, names.EVENT_SEQUENCE},
    names.AUDIT_INTENT_EVENT.name: {
        *_RECORD_OF_CALL,
        names.TOOL_BATCH_SIZE,
        names.TOOL_SOURCE,
        names.TOOL_ARGUMENTS_SIZE,
    },
    names.AUDIT_DECISION_EVENT.name: {*_RECORD_OF_CALL, names.TOOL_DECISION},
    names.AUDIT_OUTCOME_EVENT.name: {*_RECORD_OF_CALL, names.AUDIT_OUTCOME},
    names.AUDIT_COMPACTION_EVENT.name: {
        *_RECORD,
        *_RUN_EVENT,
        names.COMPACTION_TRIGGER,
        names.COMPACTION_STRATEGY,
        names.COMPACTION_COVERED,
    },
    names.AUDIT_TOOLS_CHANGED_EVENT.name: {*_RECORD, *_RUN_EVENT, names.TOOL_SOURCE},
    names.AUDIT_CHECKPOINT_EVENT.name: _RECORD,
    names.AUDIT_GAP_EVENT.name: _RECORD,
    names.AUDIT_ERASURE_EVENT.name: _RECORD,
}
WITH_A_BODY = {names.EXPORTED_EVENT.name, *(name for name in names.EVENTS if ".audit." in name)}
"""The events whose body is a record; that of the others is their name."""

OPTIONAL_LABELS = {
    names.ERROR_TYPE,
    names.RESPONSE_MODEL,
    names.SERVER_ADDRESS,
    names.SERVER_PORT,
    names.RESPONSE_STATUS,
    names.AGENT_NAME,
    names.AGENT_VERSION,
    names.ADVISOR_NAME,
    names.REASON_CODE,
    names.POLICY_RULE,
    names.EVALUATED_RULE,
    names.EVALUATED_CHANGES,
    names.TOOL_RESULT_CUT,
    names.COMPACTION_STRATEGY,
    names.RPC_STATUS_CODE,
}
"""What only some series of a metric have; of the advisor only those of decisions, of the agent those outside a run."""

_RUN, _PASS, _TOOL_SPANS = {"invoke_agent"}, {"iteration"}, {"execute_tool", "refuse_tool"}
_AROUND = {"advise", *_RUN}
PARENTS: Mapping[str, set[str]] = {
    "iteration": _AROUND,
    "initialize": _AROUND,
    "finalize": _AROUND,
    "advise": {*_AROUND, *_PASS},
    "before": {*_AROUND, *_PASS},
    "after": {*_AROUND, *_PASS},
    "chat": {*_AROUND, *_PASS, "compact_memory", "retrieval"},
    "advise_tool": {*_TOOL_SPANS, "advise_tool"},
    "execute_tool": {*_AROUND, *_PASS, "tools/call"},
    "refuse_tool": {*_AROUND, *_PASS, "tools/call"},
    "await_approval": {*_TOOL_SPANS, "advise_tool"},
    "retrieval": {"execute_tool", "advise_tool"},
    "compact_memory": {*_AROUND, *_PASS, "before", "after", "finalize"},
}
"""By the first word of a span's name, that of the span above it, whatever is switched off; any for those left out."""


def assert_consistent(telemetry: Telemetry) -> None:
    """Hold everything exported so far to the contract."""
    capture = as_capture(telemetry.capture)
    spans = [span for span in telemetry.spans if scope_of(span) != APPLICATION]
    for span in spans:
        assert_declared_span(span, content=capture is not None and capture.on_spans)
    assert_parents(spans)
    ids = [context_of(span).span_id for span in telemetry.spans]
    assert len(ids) == len(set(ids)), "a span was ended twice"
    for point in telemetry.metrics:
        assert_declared_point(point)
    attributes = [*(span.attributes or {} for span in spans), *(event.attributes for event in telemetry.events)]
    assert_one_set_of_names(telemetry.metrics, chain.from_iterable(attributes))
    for event, record in zip(telemetry.events, telemetry.records, strict=True):
        assert_declared_event(event, record.log_record.body, content=capture is not None and capture.on_events)


# Spans.


def span_type(span: ReadableSpan) -> SpanType:
    """The row of the table that a span belongs to."""
    word = "{hook}" if word_of(span) in HOOKS else word_of(span)
    if names.MCP_METHOD in (span.attributes or {}) and names.TOOL_NAME not in (span.attributes or {}):
        word = "{method}"
    is_served = span.kind is SpanKind.SERVER
    found = [each for each in names.SPANS if each.name.split(" ")[0] == word and is_served is (each.kind == "server")]
    assert len(found) == 1, f"{span.name} is not in the table"
    return found[0]


def word_of(span: ReadableSpan) -> str:
    """The first word of a span's name, which identifies its type."""
    return span.name.split(" ")[0]


def scope_of(span: ReadableSpan) -> str:
    """The instrumentation scope of a span."""
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def assert_declared_span(span: ReadableSpan, *, content: bool = False) -> None:
    """Check a span against its definition; `content` is whether it may carry content."""
    declared, attributes = span_type(span), span.attributes or {}
    assert scope_of(span) == names.SCOPE
    allowed = {*declared.attributes, *(declared.content if content else ())}
    assert_attributes(span.name, attributes, allowed, REQUIRED[declared], assert_value_of_span)
    assert (names.ADVISOR_SELF_TIME in attributes) is (word_of(span) == "advise"), span.name
    assert (names.OPERATION_NAME in attributes) is (word_of(span) in OPERATIONS), span.name
    assert span.name == expected_name(declared, attributes)
    assert_status(span)
    assert attributes.get(names.OPENINFERENCE_KIND) in (None, declared.openinference)
    assert list(span.events) == []
    assert list(span.links) == [] or declared.kind == "server" or declared is names.AGENT_SPAN  # of a resumed run
    kinds = {
        "internal": {SpanKind.INTERNAL},
        "client": {SpanKind.INTERNAL, SpanKind.CLIENT},
        "server": {SpanKind.SERVER},
    }
    assert span.kind in kinds[declared.kind], span.name
    assert (span.kind is SpanKind.CLIENT) is (declared.kind == "client" and names.SERVER_ADDRESS in attributes)


def expected_name(declared: SpanType, attributes: Mapping[str, Any]) -> str:
    """A span's name, filled in from its attributes."""
    parts = {
        "{agent}": names.AGENT_NAME,
        "{hook}": names.ADVISOR_HOOK,
        "{advisor}": names.ADVISOR_NAME,
        "{method}": names.MCP_METHOD,
        "{model}": names.REQUEST_MODEL,
        "{tool}": names.TOOL_NAME,
    }
    return " ".join(str(attributes[parts[word]]) if word in parts else word for word in declared.name.split(" "))


def assert_status(span: ReadableSpan) -> None:
    """ERROR and `error.type` come together, never OK, and the description is that type and no text."""
    kind = (span.attributes or {}).get(names.ERROR_TYPE)
    assert span.status.status_code is (StatusCode.UNSET if kind is None else StatusCode.ERROR), span.name
    assert span.status.description == kind


def assert_parents(spans: Collection[ReadableSpan]) -> None:
    """Each span stands below one it may stand below; what an application's span is above of is not known here."""
    words = {context_of(span).span_id: word_of(span) for span in spans}
    for span in spans:
        above = None if span.parent is None else words.get(span.parent.span_id)
        if word_of(span) in PARENTS and above is not None:
            assert above in PARENTS[word_of(span)], f"{span.name} stands below {above}"


# Metrics.


def assert_declared_point(point: MetricPoint) -> None:
    """Hold a series to its metric."""
    metric = names.METRICS[point.name]
    optional = OPTIONAL_LABELS if metric is not names.ADVISOR_DURATION else {names.ERROR_TYPE, names.AGENT_NAME}
    if metric is names.MCP_SERVER_DURATION:  # only a call has a tool
        optional = optional | {names.TOOL_NAME}
    if metric is names.APPROVAL_WAIT:  # a wait that an error ends has no decision
        optional = optional | {names.TOOL_DECISION}
    if metric is names.MCP_CLIENT_DURATION:  # a request may call no tool, precede the agreement, or succeed
        optional = optional | {names.TOOL_NAME, names.MCP_PROTOCOL_VERSION, names.RPC_STATUS_CODE}
    assert_attributes(
        point.name, point.attributes, metric.attributes, set(metric.attributes) - optional, assert_declared_value
    )


def assert_one_set_of_names(points: Iterable[MetricPoint], attributes: Iterable[str] = ()) -> None:
    """The names of one set of conventions are there, or those of the other, never both."""
    sets = {names.METRICS[point.name].only for point in points} | {names.ATTRIBUTES[name].only for name in attributes}
    assert len(sets - {None}) <= 1, "names of both conventions are emitted"


# Events.


def event_type(event: FinishedEvent) -> EventType:
    """The row of the table that an event belongs to."""
    assert event.name in names.EVENTS, f"{event.name} is not in the table"
    return names.EVENTS[event.name]


def assert_declared_event(event: FinishedEvent, body: object, *, content: bool = False) -> None:
    """Check an event against its definition; `content` is whether it may carry content."""
    declared = event_type(event)
    assert event.severity == declared.severity
    if event.name in WITH_A_BODY:
        assert body and body != event.name
    else:
        assert body == event.name
    assert declared is not names.INFERENCE_DETAILS_EVENT or content
    allowed = {*declared.attributes, *(declared.content if content else ())}
    required = REQUIRED_ON_EVENTS[declared.name]
    assert_attributes(event.name, event.attributes, allowed, required, assert_value_of_event)


# Attributes.


def assert_attributes(
    where: str,
    attributes: Mapping[str, Any],
    allowed: Collection[str],
    required: Collection[str],
    check: Callable[[str, Any], None],
) -> None:
    """Those that must be there are, no others than those that may, each with its declared type."""
    assert set(attributes) <= set(allowed), (where, set(attributes) - set(allowed))
    assert set(required) <= set(attributes), (where, set(required) - set(attributes))
    for key, value in attributes.items():
        check(key, value)


def assert_value_of_span(name: str, value: Any) -> None:
    """A structure is JSON text on a span."""
    if names.ATTRIBUTES[name].type == "any":
        assert isinstance(value, str), name
        json.loads(value)
    else:
        assert_declared_value(name, value)


def assert_value_of_event(name: str, value: Any) -> None:
    """A structure is itself on an event: nothing else than what JSON has."""
    if names.ATTRIBUTES[name].type == "any":
        json.dumps(value, default=_plain)
    else:
        assert_declared_value(name, value)


def _plain(value: object) -> object:
    assert isinstance(value, Mapping), f"{type(value).__name__} is nothing that JSON has"
    return dict(value)


def assert_declared_value(name: str, value: Any) -> None:
    """A value has the declared type, is not empty, and is a word of the closed list, if there is one."""
    declared = names.ATTRIBUTES[name]
    assert value not in ("", ()), name
    assert type(value) is PLAIN_TYPES[declared.type], (name, value)
    if declared.values:
        words = set(value) if isinstance(value, tuple) else {value}
        assert words <= set(declared.values), (name, value)
    if isinstance(value, int | float):
        assert value >= 0 or name in (names.ADVISOR_ORDER, names.REQUEST_SEED), (name, value)
