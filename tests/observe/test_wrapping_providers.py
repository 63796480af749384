"""Providers of applications and libraries that wrap those of the SDK."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace

from tests.captured import Telemetry
from tests.modes import ALL_MODES, run
from tests.otel.processes import in_a_process
from tests.waiting import in_time
from traced_tools import ChatClient, TelemetryOptions, ToolCall
from traced_tools.observe import names, providers
from traced_tools.testing import ScriptedChatModel


@dataclass
class ProxyTracerProvider(trace.TracerProvider):
    """Has the name of the API's stand-in; as a data class that is compared by value it has no hash."""

    provider: trace.TracerProvider

    def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
        return self.provider.get_tracer(*args, **options)


@dataclass
class _ProxyMeterProvider(metrics.MeterProvider):
    provider: metrics.MeterProvider

    def get_meter(self, *args: Any, **options: Any) -> metrics.Meter:
        return self.provider.get_meter(*args, **options)


@dataclass
class ProxyLoggerProvider(_logs.LoggerProvider):
    provider: _logs.LoggerProvider

    def get_logger(self, *args: Any, **options: Any) -> _logs.Logger:
        return self.provider.get_logger(*args, **options)


class Equal(ProxyTracerProvider):
    """Has a hash, and is equal to every other one."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal)

    def __hash__(self) -> int:
        return 0


def wrapped(telemetry: Telemetry) -> TelemetryOptions:
    return TelemetryOptions(
        ProxyTracerProvider(telemetry.tracer_provider),
        _ProxyMeterProvider(telemetry.meter_provider),
        ProxyLoggerProvider(telemetry.logger_provider),
    )


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def client(options: TelemetryOptions | None) -> ChatClient:
    return ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "3"]), tools=[add], telemetry=options)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_unhashable_provider_receives_the_same_telemetry(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    plain, telemetry = Telemetry(), Telemetry()
    run(mode, client(plain.options).prompt("?"))
    run(mode, client(wrapped(telemetry)).prompt("?"))
    assert telemetry.nested_names() == plain.nested_names()
    assert {point.name for point in telemetry.metrics} == {point.name for point in plain.metrics}
    assert [event.name for event in telemetry.events] == [event.name for event in plain.events]
    assert caplog.records == []


@pytest.mark.parametrize("mode", ALL_MODES)
def test_two_equal_providers_each_get_their_own_spans(mode: str) -> None:
    first, second = Telemetry(), Telemetry()
    for telemetry in (first, second):
        run(mode, client(TelemetryOptions(Equal(telemetry.tracer_provider))).prompt("?"))
    assert [len(telemetry.named("invoke_agent assistant")) for telemetry in (first, second)] == [1, 1]


def test_an_unreferenced_provider_is_garbage_collected() -> None:
    telemetry = Telemetry()
    provider = ProxyTracerProvider(telemetry.tracer_provider)
    client(TelemetryOptions(provider)).prompt("?").call()
    gone = weakref.ref(provider)
    del provider
    gc.collect()
    assert gone() is None


def test_a_provider_may_start_a_run_while_it_returns_its_tracer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(providers, "_making", type(providers._making)())  # no other test waits if this one does
    telemetry = Telemetry()

    class Asking(ProxyTracerProvider):
        def get_tracer(self, *args: Any, **options: Any) -> trace.Tracer:
            client(wrapped(telemetry)).prompt("?").call()
            return super().get_tracer(*args, **options)

    in_time(client(TelemetryOptions(Asking(telemetry.tracer_provider))).prompt("?").call)
    assert len(telemetry.named("invoke_agent assistant")) == 2


def test_wrapping_global_providers_stay_in_use() -> None:
    done = in_a_process(
        """
from opentelemetry import _logs
from tests.captured import Telemetry
from tests.observe.test_wrapping_providers import wrapped

logged()
telemetry = Telemetry()
options = wrapped(telemetry)
trace.set_tracer_provider(options.tracer_provider)
metrics.set_meter_provider(options.meter_provider)
_logs.set_logger_provider(options.logger_provider)
handle = configure(console=True, otlp="http://127.0.0.1:9")
run()
assert trace.get_tracer_provider() is options.tracer_provider
print(telemetry.named("invoke_agent assistant")[0].name, telemetry.events[-1].name)
print([point.name for point in telemetry.metric("gen_ai.invoke_agent.duration")], handle.stopped)
"""
    )
    *said, events, points = done.stdout.splitlines()
    for signal in ("traces", "metrics", "logs"):
        assert (
            f"WARNING the application has set its own OpenTelemetry provider for {signal}; configure() keeps it"
            in done.stdout
        )
    assert len(said) == 3
    assert events == f"invoke_agent assistant {names.LOOP_STOP_EVENT.name}"
    assert points == f"['{names.INVOKE_AGENT_DURATION.name}'] False"
