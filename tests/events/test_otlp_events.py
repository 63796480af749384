"""The OTLP event exporter: the log records a collector receives, and the error without a logger provider."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from opentelemetry import _logs
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.util._once import Once

from tests.captured import Telemetry
from tests.events.made import HOSTILE, SPAN_ID, START, TRACE_ID, batch, common, one_of_each, started
from tests.markers import MARKER
from tests.observe.closed_list import assert_consistent
from tests.otel.collector import Collector, collecting
from traced_tools.events import ExportFailed, OtlpEventExporter
from traced_tools.observe import Event, ToolArgumentsDelta, names


def collected(*events: Event) -> list[Any]:
    """The log records that a collector gets."""
    with collecting() as collector, sending_to(collector) as provider:
        exporter = OtlpEventExporter(provider)
        exporter.export(events)
        exporter.flush()
        return [
            record
            for request in collector.requests("/v1/logs")
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
            if scope.scope.name == names.SCOPE
        ]


@contextmanager
def sending_to(collector: Collector) -> Iterator[LoggerProvider]:
    provider = LoggerProvider(shutdown_on_exit=False)
    exporter = OTLPLogExporter(f"{collector.url}/v1/logs")
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter, schedule_delay_millis=3_600_000))
    yield provider
    provider.shutdown()


def plain(value: Any) -> Any:
    """A value of OTLP as a plain one."""
    kind = value.WhichOneof("value")
    if kind == "kvlist_value":
        return {each.key: plain(each.value) for each in value.kvlist_value.values}
    if kind == "array_value":
        return [plain(each) for each in value.array_value.values]
    return getattr(value, kind)


def attributes_of(record: Any) -> dict[str, Any]:
    return {each.key: plain(each.value) for each in record.attributes}


def test_a_collector_receives_each_event_with_its_time_span_attributes_and_json() -> None:
    (record,) = collected(started(7))
    assert record.event_name == "traced_tools.event"
    assert (record.severity_text, record.severity_number) == ("INFO", 9)
    assert datetime.fromtimestamp(record.time_unix_nano // 1_000_000_000, UTC) == START.replace(microsecond=0)
    assert record.time_unix_nano % 1_000_000_000 == 130_456_000
    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert attributes_of(record) == {
        "traced_tools.event.type": "tool_started",
        "traced_tools.event.id": started(7).id,
        "traced_tools.event.sequence": 7,
        "traced_tools.run.id": started().run_id,
        "gen_ai.agent.name": "travel",
        "gen_ai.conversation.id": "c-1",
        "traced_tools.iteration.index": 1,
        "gen_ai.tool.name": "get_weather",
        "gen_ai.tool.call.id": "call_1",
    }
    assert plain(record.body) == started(7).model_dump(mode="json", exclude_none=True)


def test_each_type_of_event_arrives_as_its_json() -> None:
    events = one_of_each()
    assert [plain(record.body) for record in collected(*events)] == [
        event.model_dump(mode="json", exclude_none=True) for event in events
    ]


def test_hostile_text_breaks_no_log_record() -> None:
    records = collected(*one_of_each(HOSTILE))
    assert len(records) == len(one_of_each())
    assert plain(records[-1].body)["output_messages"] == HOSTILE.encode(errors="replace").decode()


def test_captured_content_is_in_no_attribute_of_the_log_record() -> None:
    telemetry = Telemetry()
    delta = ToolArgumentsDelta(**common(), delta_index=0, call_id=f"1 {MARKER}", tool_name=MARKER, arguments=MARKER)
    OtlpEventExporter(telemetry.logger_provider).export([delta])
    (event,) = telemetry.events
    assert MARKER not in str(event.attributes)
    assert event.attributes[names.TOOL_CALL_ID] == names.OTHER  # which is no id


def test_an_event_outside_of_a_trace_does_not_join_the_exporters_own() -> None:
    telemetry = Telemetry()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("application")
    with tracer.start_as_current_span("exporting"):
        OtlpEventExporter(telemetry.logger_provider).export([started(trace_id=None, span_id=None)])
    (event,) = telemetry.events
    assert (event.trace_id, event.span_id) == (None, None)
    assert_consistent(telemetry)


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No application has set a global logger provider."""
    monkeypatch.setattr(_logs._internal, "_LOGGER_PROVIDER", None)
    monkeypatch.setattr(_logs._internal, "_LOGGER_PROVIDER_SET_ONCE", Once())
    return


def test_the_global_provider_is_looked_up_at_each_export(no_provider: None) -> None:
    telemetry, exporter = Telemetry(), OtlpEventExporter()
    with pytest.raises(ExportFailed):
        exporter.export(batch(1))
    _logs.set_logger_provider(telemetry.logger_provider)
    exporter.export(batch(2))
    assert [event.attributes[names.EVENT_SEQUENCE] for event in telemetry.events] == [1, 2]


@pytest.mark.parametrize("provider", [None, LoggerProvider(shutdown_on_exit=False), _logs.NoOpLoggerProvider()])
def test_without_a_logger_provider_the_error_says_what_to_do(
    no_provider: None, provider: _logs.LoggerProvider | None
) -> None:
    exporter = OtlpEventExporter(provider)
    with pytest.raises(ExportFailed, match=r"call traced_tools\.configure\(\) first") as raised:
        exporter.export(batch(1))
    assert not raised.value.retryable
    exporter.flush()
    exporter.close()


def test_a_failed_flush_of_the_logger_provider_is_an_error() -> None:
    class Stuck(LoggerProvider):
        def force_flush(self, timeout_millis: int = 30_000) -> bool:
            return False

    with pytest.raises(ExportFailed, match="the logger provider could not flush all its records"):
        OtlpEventExporter(Stuck(shutdown_on_exit=False)).flush()


def test_an_invalid_logger_provider_is_refused() -> None:
    with pytest.raises(TypeError, match="logger_provider must be a LoggerProvider or None"):
        OtlpEventExporter(TracerProvider(shutdown_on_exit=False))  # type: ignore[arg-type]
