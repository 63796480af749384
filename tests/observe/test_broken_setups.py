"""A run goes on whatever the application's tracing and metrics raise, and no run stays active."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry._logs import Logger, LoggerProvider, NoOpLogger
from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, NoOpMeter
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider

from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import ChatClient, TelemetryOptions, ToolCall
from traced_tools.observe.instruments import Instruments
from traced_tools.observe.providers import instruments_of
from traced_tools.testing import ScriptedChatModel


class Broken:
    """An instrument whose methods raise."""

    def record(self, *_: Any) -> None:
        """Fail."""
        raise RuntimeError("broken instrument")

    add = record


class BrokenMeter(NoOpMeter):
    """Makes broken instruments."""

    def create_histogram(self, *_: Any, **__: Any) -> Any:
        """Return a broken one."""
        return Broken()

    create_counter = create_up_down_counter = create_histogram


class BrokenInstruments(MeterProvider):
    """Returns a meter whose instruments raise."""

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        """Return it."""
        return BrokenMeter("broken")


class BrokenProvider(MeterProvider):
    """Raises instead of returning a meter."""

    def get_meter(self, *_: Any, **__: Any) -> Meter:
        """Fail."""
        raise RuntimeError("broken provider")


class BrokenEnd(SpanProcessor):
    """Fails when a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Fail."""
        raise RuntimeError("broken processor")


class BrokenLogger(NoOpLogger):
    """Fails when an event is emitted."""

    def enabled(self, **_: Any) -> bool:
        """Want everything."""
        return True

    def emit(self, *_: Any, **__: Any) -> None:
        """Fail."""
        raise RuntimeError("broken logger")


class BrokenQuestion(BrokenLogger):
    """Fails when it is asked whether it wants an event."""

    def enabled(self, **_: Any) -> bool:
        """Fail."""
        raise RuntimeError("broken question")


class BrokenLoggers(LoggerProvider):
    """Returns loggers that raise.

    Args:
        kind: their class; None fails before there is one.
    """

    def __init__(self, kind: type[NoOpLogger] | None) -> None:
        self._kind = kind

    def get_logger(self, name: str, *_: Any, **__: Any) -> Logger:
        """Return one."""
        if self._kind is None:
            raise RuntimeError("broken provider")
        return self._kind(name)


def tracing() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BrokenEnd())
    return provider


def answer(mode: str, options: TelemetryOptions) -> str:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "It is three."])
    return run(mode, ChatClient(model, tools=[add], telemetry=options).prompt("1 + 2?")).content


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "options",
    [
        lambda: TelemetryOptions(meter_provider=BrokenInstruments()),
        lambda: TelemetryOptions(meter_provider=BrokenProvider()),
        lambda: TelemetryOptions(tracer_provider=tracing()),
        lambda: TelemetryOptions(tracer_provider=tracing(), meter_provider=BrokenInstruments()),
        lambda: TelemetryOptions(logger_provider=BrokenLoggers(None)),
        lambda: TelemetryOptions(logger_provider=BrokenLoggers(BrokenLogger)),
        lambda: TelemetryOptions(logger_provider=BrokenLoggers(BrokenQuestion)),
    ],
)
def test_exceptions_of_a_broken_sdk_do_not_reach_the_caller(mode: str, options: Callable[[], TelemetryOptions]) -> None:
    assert answer(mode, options()) == "It is three."


@pytest.mark.parametrize("mode", MODES)
def test_no_run_stays_active_when_records_and_spans_fail(mode: str) -> None:
    meters = BrokenInstruments()
    answer(mode, TelemetryOptions(tracer_provider=tracing(), meter_provider=meters))
    instruments = instruments_of(meters)
    assert isinstance(instruments, Instruments)
    assert [point.value for point in instruments.active_runs.observe(CallbackOptions())] == [0]
