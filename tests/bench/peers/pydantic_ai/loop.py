"""Runs passes of Pydantic AI: `run_sync` with the blocking tool, `run` with the async one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart, UsageLimits, __version__
from pydantic_ai.models import Model
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.usage import RequestUsage

from tests.bench.peers.worker import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, QUESTION, Setup, add, async_add, serve

NO_LIMITS = UsageLimits(request_limit=None)


class ScriptedModel(Model):
    """Requests the tool in each of so many passes, then answers."""

    model_name = "bench-1"
    system = "bench"

    def __init__(self, passes: int) -> None:
        super().__init__()
        self._passes = passes

    async def request(self, messages: list[Any], *_: Any, **__: Any) -> ModelResponse:
        """Return the response of this pass: each pass before it has added two messages."""
        index = len(messages) // 2
        part: Any = TextPart(ANSWER)
        if index < self._passes:
            part = ToolCallPart("add", {"a": index, "b": 1}, f"call_{index}")
        return ModelResponse(
            [part],
            usage=RequestUsage(input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS),
            model_name=self.model_name,
            provider_response_id=f"resp_{index}",
            finish_reason="tool_call" if index < self._passes else "stop",
        )


def blocking(passes: int) -> Callable[[], Any]:
    """Return a function that performs one run."""
    agent = Agent(ScriptedModel(passes), tools=[add])

    def run() -> None:
        assert agent.run_sync(QUESTION, usage_limits=NO_LIMITS).output == ANSWER

    return run


def on_asyncio(passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    agent = Agent(ScriptedModel(passes), tools=[async_add])

    async def run() -> None:
        assert (await agent.run(QUESTION, usage_limits=NO_LIMITS)).output == ANSWER

    return run


def turn_telemetry_on() -> None:
    """Emit spans and metrics without prompts, arguments and results."""
    Agent.instrument_all(InstrumentationSettings(include_content=False))


if __name__ == "__main__":
    serve(Setup(__version__, {"blocking": blocking, "async": on_asyncio}, turn_telemetry_on))
