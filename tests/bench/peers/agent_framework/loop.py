"""Runs passes of Microsoft's agent-framework: `Agent.run`, which is a coroutine function."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from agent_framework import (
    Agent,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    Message,
    UsageDetails,
    __version__,
)
from agent_framework.observability import ChatTelemetryLayer, disable_instrumentation, enable_instrumentation

from tests.bench.peers.worker import ANSWER, INPUT_TOKENS, OUTPUT_TOKENS, QUESTION, Setup, add, async_add, serve

USAGE = UsageDetails(
    input_token_count=INPUT_TOKENS, output_token_count=OUTPUT_TOKENS, total_token_count=INPUT_TOKENS + OUTPUT_TOKENS
)


class ScriptedClient(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, BaseChatClient):
    """Requests the tool in each of so many passes, then answers. Its layers are those of the providers' clients."""

    model = "bench-1"

    def __init__(self, passes: int) -> None:
        super().__init__(otel_provider_name="bench", function_invocation_configuration={"max_iterations": passes + 1})
        self._passes = passes

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **_: Any
    ) -> Awaitable[ChatResponse]:
        return self._respond(len(messages) // 2)

    async def _respond(self, index: int) -> ChatResponse:
        if index == self._passes:
            content, reason = Content.from_text(ANSWER), "stop"
        else:
            content = Content.from_function_call(f"call_{index}", "add", arguments={"a": index, "b": 1})
            reason = "tool_calls"
        return ChatResponse(
            messages=[Message("assistant", [content])],
            response_id=f"resp_{index}",
            model=self.model,
            finish_reason=reason,
            usage_details=USAGE,
        )


def run_with(tool: Callable[..., Any], passes: int) -> Callable[[], Any]:
    """Return a coroutine function that performs one run."""
    agent = Agent(ScriptedClient(passes), tools=[tool])

    async def run() -> None:
        response = await agent.run(QUESTION)
        assert response.text == ANSWER

    return run


def turn_telemetry_on() -> None:
    """Emit spans and metrics without prompts, arguments and results."""
    enable_instrumentation(enable_sensitive_data=False)


if __name__ == "__main__":
    serve(
        Setup(
            __version__,
            {"blocking": partial(run_with, add), "async": partial(run_with, async_add)},
            turn_telemetry_on,
            disable_instrumentation,
        )
    )
