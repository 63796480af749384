"""Runs passes of strands-agents: `agent(...)` with the blocking tool, `invoke_async` with the async one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from importlib.metadata import version
from typing import Any

from strands import Agent, tool
from strands.agent.conversation_manager import NullConversationManager
from strands.models import Model

from tests.bench.peers.worker import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, QUESTION, Setup, add, async_add, serve

USAGE = {"inputTokens": INPUT_TOKENS, "outputTokens": OUTPUT_TOKENS, "totalTokens": INPUT_TOKENS + OUTPUT_TOKENS}


class ScriptedModel(Model):
    """Requests the tool in each of so many passes, then answers. Strands' models always stream."""

    def __init__(self, passes: int) -> None:
        self._passes = passes

    def get_config(self) -> dict[str, Any]:
        """Return the configuration, of which telemetry takes the name of the model."""
        return {"model_id": "bench-1"}

    def update_config(self, **model_config: Any) -> None:
        """Do nothing."""

    def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Raise, because no run asks for structured output."""
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        """Yield the response of this pass: each pass before it has added two messages."""
        index = len(messages) // 2
        yield {"messageStart": {"role": "assistant"}}
        if index == self._passes:
            yield {"contentBlockDelta": {"delta": {"text": ANSWER}}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "add", "toolUseId": f"call_{index}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": f'{{"a": {index}, "b": 1}}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if index == self._passes else "tool_use"}}
        yield {"metadata": {"usage": USAGE, "metrics": {"latencyMs": 0}}}


def agent_with(function: Any, passes: int) -> Agent:
    """Return an agent for one run: an agent keeps the messages and the metrics of all of its runs."""
    return Agent(
        ScriptedModel(passes),
        tools=[function],
        callback_handler=None,
        conversation_manager=NullConversationManager(),
    )


def blocking(passes: int) -> Callable[[], Any]:
    """Return a function that performs one run."""
    function = tool(add)

    def run() -> None:
        assert str(agent_with(function, passes)(QUESTION)).strip() == ANSWER

    return run


def on_asyncio(passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    function = tool(async_add)

    async def run() -> None:
        assert str(await agent_with(function, passes).invoke_async(QUESTION)).strip() == ANSWER

    return run


if __name__ == "__main__":
    serve(Setup(version("strands-agents"), {"blocking": blocking, "async": on_asyncio}))
