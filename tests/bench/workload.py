"""What is measured: the smallest model, the smallest tool, and clients that run them with telemetry off and on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from tests.bench.null_exporters import NullExporter, NullLogExporter
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
    Usage,
    tool,
)
from traced_tools.models import ChatModel, ChatRequest, ChatResponse

NO_LIMITS = LoopLimits(None, None, None, None, None, None)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add", inline=True)
def inline_add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add")
async def async_add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(name="add")
async def yielding_add(a: int, b: int) -> int:
    """Add two numbers, letting the other tasks go first."""
    await asyncio.sleep(0)
    return a + b


class CountingModel(ChatModel):
    """Asks for `add` in all passes but the last, then answers. Its responses are made beforehand.

    It derives the pass from the length of the conversation, so it holds no state and may be shared.

    Args:
        passes: how many.
        beforehand: called in each call.
    """

    provider = "bench"
    model = "bench-1"

    def __init__(self, passes: int, beforehand: Callable[[], None] | None = None) -> None:
        self._beforehand = beforehand
        usage = Usage(input_tokens=812, output_tokens=93)
        asking = [_asking(index, usage) for index in range(passes - 1)]
        answer = ChatResponse(AssistantMessage("42"), usage=usage, finish_reason="stop", id="resp", model="bench-1")
        self._responses = (*asking, answer)

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass: each pass before it has added two messages."""
        if self._beforehand is not None:
            self._beforehand()
        return self._responses[len(request.messages) // 2]

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass, on asyncio."""
        if self._beforehand is not None:
            self._beforehand()
        return self._responses[len(request.messages) // 2]


def _asking(index: int, usage: Usage) -> ChatResponse:
    call = ToolCall("add", {"a": index, "b": 1}, f"call_{index}")
    message = AssistantMessage([call])
    return ChatResponse(message, usage=usage, finish_reason="tool_call", id=f"resp_{index}", model="bench-1")


def prompt(
    passes: int,
    telemetry: TelemetryOptions | None,
    *,
    function: Any = add,
    beforehand: Callable[[], None] | None = None,
) -> ChatClientRequestSpec:
    """Return a request whose run takes `passes` passes, checked by running it once."""
    client = ChatClient(CountingModel(passes, beforehand), tools=[function], limits=NO_LIMITS, telemetry=telemetry)
    spec = client.prompt("What is 41 + 1?")
    response = asyncio.run(spec.acall()) if inspect.iscoroutinefunction(function) else spec.call()
    assert (response.stop_reason, len(response.tool_results)) == ("answered", passes - 1), response
    assert all(result.ok for result in response.tool_results)
    return spec


@dataclass(frozen=True)
class Sdk:
    """A tracer and a meter provider of the SDK with everything on, and a logger provider where events are wanted."""

    tracer_provider: TracerProvider
    meter_provider: MeterProvider
    logger_provider: LoggerProvider | None = None

    @property
    def options(self) -> TelemetryOptions:
        """What makes a client use them."""
        return TelemetryOptions(self.tracer_provider, self.meter_provider, self.logger_provider)

    def flush(self) -> None:
        """Empty the queues, untimed: no case fills a batch, so no export falls into one case and not into another."""
        self.tracer_provider.force_flush()
        if self.logger_provider is not None:
            self.logger_provider.force_flush()

    def shutdown(self) -> None:
        """End the threads of the providers."""
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()
        if self.logger_provider is not None:
            self.logger_provider.shutdown()


def sdk(*, events: bool = False) -> Sdk:
    """Return fresh providers; no run here fills the queue, so what is measured is putting spans in it."""
    tracer_provider = TracerProvider(shutdown_on_exit=False)
    tracer_provider.add_span_processor(BatchSpanProcessor(NullExporter(), max_queue_size=1 << 20))
    meter_provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    if not events:
        return Sdk(tracer_provider, meter_provider)
    logger_provider = LoggerProvider(shutdown_on_exit=False)
    logger_provider.add_log_record_processor(BatchLogRecordProcessor(NullLogExporter(), max_queue_size=1 << 20))
    return Sdk(tracer_provider, meter_provider, logger_provider)


def repeated(function: Callable[[], object], number: int) -> Callable[[], None]:
    """Return a function that calls `function` so many times."""

    def loop() -> None:
        for _ in range(number):
            function()

    return loop
