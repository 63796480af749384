"""Runs passes of a loop written by hand, which emits with the bare OpenTelemetry SDK what traced_tools emits."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from opentelemetry import trace
from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider

from tests.bench.floor import Floor, capture_of
from tests.bench.peers.providers import HAS_LOGGER
from tests.bench.peers.worker import Setup, add, async_add, serve
from tests.bench.workload import Sdk, prompt


class Loop:
    """A loop without a model to call or messages to keep: a pass is a tool call, and the telemetry if it is on."""

    def __init__(self) -> None:
        self._emit_pass: Callable[[], None] | None = None
        self._tracer = trace.NoOpTracer()

    def turn_telemetry_on(self) -> None:
        """Emit with the global providers what a pass of traced_tools emits."""
        captured = capture_of(lambda options: prompt(3, options), 2, events=HAS_LOGGER)
        providers = Sdk(
            trace.get_tracer_provider(), get_meter_provider(), get_logger_provider() if HAS_LOGGER else None
        )
        self._emit_pass = Floor(captured, providers).replay
        self._tracer = trace.get_tracer("floor")

    def blocking(self, passes: int) -> Callable[[], Any]:
        """Return a function that performs one run."""

        def run() -> None:
            with self._tracer.start_as_current_span("run"):
                for index in range(passes):
                    add(index, 1)
                    if self._emit_pass is not None:
                        self._emit_pass()

        return run

    def on_asyncio(self, passes: int) -> Callable[[], Any]:
        """Return a coroutine function that performs one run."""

        async def run() -> None:
            with self._tracer.start_as_current_span("run"):
                for index in range(passes):
                    await async_add(index, 1)
                    if self._emit_pass is not None:
                        self._emit_pass()

        return run


if __name__ == "__main__":
    loop = Loop()
    serve(
        Setup(
            version("opentelemetry-sdk"), {"blocking": loop.blocking, "async": loop.on_asyncio}, loop.turn_telemetry_on
        )
    )
