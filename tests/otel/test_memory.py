"""Telemetry that is stored in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry import _logs, trace
from opentelemetry._logs import SeverityNumber

from traced_tools.client import ChatClient
from traced_tools.core.messages import ToolCall, Usage
from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.otel.memory import FinishedEvent, InMemoryTelemetry
from traced_tools.testing.scripted import ScriptedChatModel
from traced_tools.testing.telemetry import capture_telemetry


@pytest.fixture
def memory() -> Iterator[InMemoryTelemetry]:
    memory = InMemoryTelemetry()
    yield memory
    memory.shutdown()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def a_run(options: TelemetryOptions) -> None:
    model = ScriptedChatModel(
        [ToolCall(name="add", arguments={"a": 1, "b": 2}), "3"], usage=Usage(input_tokens=5, output_tokens=2)
    )
    ChatClient(model, version="1", tools=[add], telemetry=options).prompt("1 + 2?").call()


def points(found: list[MetricPoint], name: str) -> list[MetricPoint]:
    return [point for point in found if point.name == name]


def test_in_memory_telemetry_stores_spans_and_sets_no_global_provider(memory: InMemoryTelemetry) -> None:
    a_run(TelemetryOptions(memory.tracer_provider, memory.meter_provider))
    assert [span.name for span in memory.spans() if "_" in span.name] == [
        "initialize tool_calling",
        "before tool_calling",
        "after tool_calling",
        "execute_tool add",
        "before tool_calling",
        "after tool_calling",
        "finalize tool_calling",
        "advise tool_calling",
        "invoke_agent assistant",
    ]
    assert trace.get_tracer_provider() is not memory.tracer_provider


def test_in_memory_events_have_the_ids_of_their_span(memory: InMemoryTelemetry) -> None:
    logger = memory.logger_provider.get_logger("test")
    with memory.tracer_provider.get_tracer("test").start_as_current_span("around") as span:
        context = span.get_span_context()
        logger.emit(event_name="inside", attributes={"a": 1}, severity_number=SeverityNumber.WARN, severity_text="WARN")
    logger.emit(event_name="outside")
    trace_id, span_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
    assert memory.events() == [
        FinishedEvent("inside", {"a": 1}, "WARN", trace_id, span_id),
        FinishedEvent("outside", {}, None, None, None),
    ]
    assert _logs.get_logger_provider() is not memory.logger_provider
    memory.clear()
    assert memory.events() == []


def test_a_run_leaves_its_events_in_memory(memory: InMemoryTelemetry) -> None:
    a_run(TelemetryOptions(memory.tracer_provider, memory.meter_provider, logger_provider=memory.logger_provider))
    assert [event.name for event in memory.events()] == [
        names.TOOL_INTENT_EVENT.name,
        names.TOOL_DECISION_EVENT.name,
        names.TOOL_OUTCOME_EVENT.name,
        names.LOOP_STOP_EVENT.name,
    ]
    assert {event.severity for event in memory.events()} == {"INFO"}
    memory.shutdown()
    assert len(memory.events()) == 4


def test_in_memory_metrics_are_summed_up_over_runs_and_readings(memory: InMemoryTelemetry) -> None:
    options = TelemetryOptions(memory.tracer_provider, memory.meter_provider)
    a_run(options)
    memory.metrics()
    a_run(options)
    for found in (memory.metrics(), memory.metrics()):
        attributes = {names.AGENT_NAME: "assistant", names.AGENT_VERSION: "1"}
        attributes |= {names.TOOL_NAME: "add", names.TOOL_DECISION: "allowed"}
        assert points(found, names.TOOL_DECISIONS.name) == [
            MetricPoint(names.TOOL_DECISIONS.name, attributes, "{decision}", value=2)
        ]
        (read,) = points(found, names.INPUT_TOKENS_A_CALL.name)
        (written,) = points(found, names.OUTPUT_TOKENS_A_CALL.name)
        assert (read.count, read.sum, read.unit, written.count, written.sum) == (4, 20, "{token}", 4, 8)
        assert [point.value for point in points(found, names.RUN_ACTIVE.name)] == [0]


def test_clearing_resets_counters_and_keeps_active_counts(memory: InMemoryTelemetry) -> None:
    meter = memory.meter_provider.get_meter("test")
    open_files = meter.create_up_down_counter("open_files")
    open_files.add(2)
    a_run(TelemetryOptions(memory.tracer_provider, memory.meter_provider))
    memory.clear()
    assert memory.spans() == ()
    open_files.add(1)
    found = memory.metrics()
    assert not points(found, names.TOOL_DECISIONS.name)
    assert [point.value for point in points(found, "open_files")] == [3]


def test_stored_telemetry_can_be_read_after_a_shutdown() -> None:
    with capture_telemetry() as captured:
        a_run(captured.options)
    assert points(captured.metrics, names.TOOL_DECISIONS.name)
    assert captured.spans


def test_captured_telemetry_is_a_tree_until_it_is_cleared() -> None:
    with capture_telemetry() as captured:
        a_run(captured.options)
        assert [tree.name for tree in captured.tree()] == ["invoke_agent assistant"]
        assert points(captured.metrics, names.INVOKE_AGENT_DURATION.name)[0].count == 1
        captured.clear()
        assert captured.tree() == [] and captured.spans == ()
        assert not points(captured.metrics, names.INVOKE_AGENT_DURATION.name)
