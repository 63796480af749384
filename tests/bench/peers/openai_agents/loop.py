"""Runs passes of the OpenAI Agents SDK: `Runner.run_sync` with the blocking tool, `Runner.run` with the async one.

Its own tracing sends spans to OpenAI. OpenInference's instrumentation replaces that exporter with OpenTelemetry's.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, Usage, function_tool, set_tracing_disabled
from agents.models.interface import ModelTracing
from agents.tracing import generation_span
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText
from openinference.instrumentation import TraceConfig
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

from tests.bench.peers.worker import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, QUESTION, Setup, add, async_add, serve

WITHOUT_CONTENT = RunConfig(trace_include_sensitive_data=False)
TRACED_USAGE = {"input_tokens": INPUT_TOKENS, "output_tokens": OUTPUT_TOKENS}


class ScriptedModel(Model):
    """Requests the tool in each of so many passes, then answers, under the span that the SDK's models start."""

    def __init__(self, passes: int) -> None:
        self._passes = passes

    async def get_response(
        self, system_instructions: Any, input: Any, *_: Any, tracing: ModelTracing, **__: Any
    ) -> ModelResponse:
        """Return the response of this pass: each pass before it has added two items."""
        index = 0 if isinstance(input, str) else len(input) // 2
        with generation_span(model="bench-1", disabled=tracing.is_disabled()) as span:
            span.span_data.usage = TRACED_USAGE
            response = ModelResponse([self._item(index)], _usage(), response_id=f"resp_{index}")
            if tracing.include_data():
                span.span_data.input = input
                span.span_data.output = [item.model_dump() for item in response.output]
            return response

    def _item(self, index: int) -> ResponseOutputMessage | ResponseFunctionToolCall:
        if index == self._passes:
            text = ResponseOutputText(text=ANSWER, type="output_text", annotations=[])
            return ResponseOutputMessage(
                id="message", type="message", role="assistant", status="completed", content=[text]
            )
        return ResponseFunctionToolCall(
            id=f"item_{index}",
            call_id=f"call_{index}",
            type="function_call",
            name="add",
            arguments=f'{{"a": {index}, "b": 1}}',
        )

    def stream_response(self, *_: Any, **__: Any) -> Any:
        """Raise, because no run streams."""
        raise NotImplementedError


def _usage() -> Usage:
    total = INPUT_TOKENS + OUTPUT_TOKENS
    return Usage(requests=1, input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, total_tokens=total)


def agent_with(tool: Callable[..., Any], passes: int) -> Agent:
    """Return an agent of the scripted model."""
    return Agent("assistant", model=ScriptedModel(passes), tools=[function_tool(tool)])


def blocking(passes: int) -> Callable[[], Any]:
    """Return a function that performs one run."""
    agent = agent_with(add, passes)

    def run() -> None:
        result = Runner.run_sync(agent, QUESTION, max_turns=passes + 1, run_config=WITHOUT_CONTENT)
        assert result.final_output == ANSWER

    return run


def on_asyncio(passes: int, config: RunConfig = WITHOUT_CONTENT) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    agent = agent_with(async_add, passes)

    async def run() -> None:
        result = await Runner.run(agent, QUESTION, max_turns=passes + 1, run_config=config)
        assert result.final_output == ANSWER

    return run


def turn_telemetry_on() -> None:
    """Emit spans without prompts, arguments and results, to OpenTelemetry alone."""
    OpenAIAgentsInstrumentor().instrument(config=TraceConfig(hide_inputs=True, hide_outputs=True))


def turn_telemetry_off() -> None:
    """Emit nothing, not even to OpenAI."""
    set_tracing_disabled(True)


if __name__ == "__main__":
    serve(
        Setup(
            version("openai-agents"), {"blocking": blocking, "async": on_asyncio}, turn_telemetry_on, turn_telemetry_off
        )
    )
