"""The fast path emits an event as the SDK's logger does: what is exported is the same."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common._log_encoder import encode_logs
from opentelemetry.sdk._logs import (
    Logger,
    LoggerProvider,
    LogRecordDroppedAttributesWarning,
    LogRecordLimits,
    LogRecordProcessor,
    ReadWriteLogRecord,
)
from opentelemetry.sdk._logs.export import (
    BatchLogRecordProcessor,
    InMemoryLogRecordExporter,
    SimpleLogRecordProcessor,
)
from opentelemetry.sdk.environment_variables import OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tests.fast_path.paths import captured_log, path
from tests.fast_path.test_spans import comparable
from traced_tools.fast_path.logger import FastLogger
from traced_tools.observe import names
from traced_tools.observe.logger import ApiLogger
from traced_tools.observe.providers import logger_of

AT = 1_000_000_000
"""A Unix time in nanoseconds."""
SPAN = set_span_in_context(NonRecordingSpan(SpanContext(1, 2, False, TraceFlags(1))), Context())
PROCESSORS: dict[str, Callable[[Any], LogRecordProcessor]] = {
    "simple": SimpleLogRecordProcessor,
    "batch": BatchLogRecordProcessor,
}


class Adding(LogRecordProcessor):
    """Adds an attribute to each record, and renames it."""

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        attributes: Any = log_record.log_record.attributes
        attributes["added"] = [1, 2]
        log_record.log_record.severity_text = "LOUD"

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


class Setup:
    """A logger provider with what it exports.

    Args:
        fast: whether the package's events take the fast path.
        processor: exports the records.
        before: a processor that comes first.
        options: arguments of the provider.
    """

    def __init__(
        self, *, fast: bool, processor: str = "simple", before: LogRecordProcessor | None = None, **options: Any
    ) -> None:
        self.exporter = InMemoryLogRecordExporter()
        self.provider = LoggerProvider(Resource({"service.name": "x"}), shutdown_on_exit=False, **options)
        for each in (before, PROCESSORS[processor](self.exporter)):
            if each is not None:
                self.provider.add_log_record_processor(each)
        with path(fast=fast):
            logger = logger_of(self.provider)
        assert logger is not None
        self.logger = logger

    def exported(self) -> Any:
        """The records as OTLP has them."""
        self.provider.force_flush()
        return comparable(MessageToDict(encode_logs(self.exporter.get_finished_logs())))


VALUES = st.one_of(
    st.text(max_size=3),
    st.integers(-9, 9),
    st.floats(allow_nan=False),
    st.booleans(),
    st.just(["a", {"b": (1, b"x")}]),
    st.none(),
)


@given(
    attributes=st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), VALUES),
    body=st.sampled_from([None, "the body"]),
    context=st.sampled_from([None, Context(), SPAN]),
    processor=st.sampled_from([*PROCESSORS]),
    is_watched=st.booleans(),
    limit=st.sampled_from([LogRecordLimits.UNSET, 0, 1, 3, 128]),
)
def test_an_event_is_exported_as_the_sdk_exports_it(
    attributes: dict[str, Any],
    body: str | None,
    context: Context | None,
    processor: str,
    is_watched: bool,
    limit: int,
) -> None:
    found = []
    for fast in (True, False):
        setup = Setup(
            fast=fast,
            processor=processor,
            before=Adding() if is_watched else None,
            log_record_limits=LogRecordLimits(max_log_record_attributes=limit),
        )
        with captured_log() as log, warnings.catch_warnings():
            warnings.simplefilter("ignore", LogRecordDroppedAttributesWarning)
            setup.logger.emit(
                names.TOOL_INTENT_EVENT, context, attributes.copy, None if body is None else lambda: str(body), AT
            )
            found.append((setup.exported(), log.texts))
        setup.provider.shutdown()
    assert found[0] == found[1]


def test_a_record_and_its_copy_have_attributes_of_their_own_classes() -> None:
    records: list[ReadWriteLogRecord] = []

    class Keeping(Adding):
        def on_emit(self, log_record: ReadWriteLogRecord) -> None:
            records.append(log_record)

    setup = Setup(fast=True, before=Keeping())
    setup.logger.emit(names.TOOL_INTENT_EVENT, SPAN, lambda: {"a": 1})
    (record,) = records
    copied = copy.copy(record.log_record)
    assert vars(copied) == vars(record.log_record) and copied is not record.log_record
    assert record.dropped_attributes == 0
    copied.body = "other"
    assert record.log_record.body == names.TOOL_INTENT_EVENT.name


def test_nothing_is_built_for_a_logger_that_is_disabled() -> None:
    class Refusing(Adding):
        def enabled(self, **arguments: Any) -> bool:
            return False

    provider = LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(Refusing())
    logger = logger_of(provider)
    assert isinstance(logger, FastLogger)
    logger.emit(names.TOOL_INTENT_EVENT, None, lambda: pytest.fail("attributes were built"))


def test_the_metrics_of_the_sdk_about_itself_count_each_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(OTEL_PYTHON_SDK_INTERNAL_METRICS_ENABLED, "true")
    counts = []
    for fast in (True, False):
        reader = InMemoryMetricReader()
        setup = Setup(fast=fast, meter_provider=MeterProvider([reader], shutdown_on_exit=False))
        setup.logger.emit(names.TOOL_INTENT_EVENT, None, dict)
        data: Any = reader.get_metrics_data()
        (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
        counts.append((metric.name, [point.value for point in metric.data.data_points]))
    assert counts[0] == counts[1] == ("otel.sdk.log.created", [1])


def patched(*arguments: Any, **more: Any) -> None:
    """Stands for an instrumentation of the SDK."""


def test_a_logger_of_the_sdk_is_supported_unless_it_is_patched_or_limits_texts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert isinstance(Setup(fast=True).logger, FastLogger)
    assert type(Setup(fast=False).logger) is ApiLogger
    limited = LogRecordLimits(max_log_record_attribute_length=5)
    assert type(Setup(fast=True, log_record_limits=limited).logger) is ApiLogger
    monkeypatch.setattr(Logger, "emit", patched)
    assert type(Setup(fast=True).logger) is ApiLogger


def test_a_patch_of_the_logger_sees_the_records_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = Setup(fast=True)
    setup.logger.emit(names.TOOL_INTENT_EVENT, None, dict)
    seen: list[Any] = []
    monkeypatch.setattr(Logger, "emit", lambda self, **arguments: seen.append(arguments["event_name"]))
    setup.logger.emit(names.TOOL_INTENT_EVENT, None, dict)
    assert seen == [names.TOOL_INTENT_EVENT.name]
