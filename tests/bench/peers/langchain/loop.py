"""Runs passes of LangChain's `create_agent`: `invoke` with the blocking tool, `ainvoke` with the async one.

OpenLLMetry's instrumentation emits the spans and metrics.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from opentelemetry.instrumentation.langchain import LangchainInstrumentor

from tests.bench.peers.worker import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, QUESTION, Setup, add, async_add, serve

INPUT = {"messages": [{"role": "user", "content": QUESTION}]}


class ScriptedModel(BaseChatModel):
    """Requests the tool in each of so many passes, then answers."""

    passes: int

    @property
    def _llm_type(self) -> str:
        return "bench-1"

    def bind_tools(self, *_: Any, **__: Any) -> ScriptedModel:
        """Return the model itself, because its script knows the tool."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        index = len(messages) // 2
        calls = [ToolCall(name="add", args={"a": index, "b": 1}, id=f"call_{index}")]
        message = AIMessage(
            ANSWER if index == self.passes else "",
            tool_calls=[] if index == self.passes else calls,
            usage_metadata=UsageMetadata(
                input_tokens=INPUT_TOKENS, output_tokens=OUTPUT_TOKENS, total_tokens=INPUT_TOKENS + OUTPUT_TOKENS
            ),
            response_metadata={"model_name": "bench-1"},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


def blocking(passes: int) -> Callable[[], Any]:
    """Return a function that performs one run."""
    agent = create_agent(ScriptedModel(passes=passes), [add])
    config: Any = {"recursion_limit": 2 * passes + 2}

    def run() -> None:
        assert agent.invoke(INPUT, config)["messages"][-1].content == ANSWER

    return run


def on_asyncio(passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    agent = create_agent(ScriptedModel(passes=passes), [async_add])
    config: Any = {"recursion_limit": 2 * passes + 2}

    async def run() -> None:
        assert (await agent.ainvoke(INPUT, config))["messages"][-1].content == ANSWER

    return run


def turn_telemetry_on() -> None:
    """Emit spans and metrics; the environment turns prompts, arguments and results off."""
    LangchainInstrumentor().instrument()


if __name__ == "__main__":
    serve(Setup(version("langchain"), {"blocking": blocking, "async": on_asyncio}, turn_telemetry_on))
