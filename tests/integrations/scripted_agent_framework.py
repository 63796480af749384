"""A chat client of Microsoft Agent Framework that answers from a script."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import agent_framework as maf

from tests.integrations.small_agent import MODEL, PROVIDER, USAGE
from traced_tools import ToolCall


class ScriptedClient(maf.FunctionInvocationLayer[Any], maf.ChatMiddlewareLayer[Any], maf.BaseChatClient[Any]):  # type: ignore[misc]
    """Answers with one turn after the other: a text, an exception, or calls."""

    OTEL_PROVIDER_NAME = PROVIDER

    def __init__(self, *turns: Any) -> None:
        super().__init__()
        self.model = MODEL
        self.turns = turns
        self.requests: list[tuple[Sequence[maf.Message], Mapping[str, Any]]] = []

    def _inner_get_response(
        self, *, messages: Sequence[maf.Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        number = len(self.requests)
        self.requests.append((list(messages), dict(options)))
        turn = self.turns[number]
        return self._build_response_stream(self._stream(turn, number)) if stream else self._answer(turn, number)

    async def _answer(self, turn: Any, number: int) -> maf.ChatResponse[Any]:
        if isinstance(turn, BaseException):
            raise turn
        return maf.ChatResponse(
            messages=[maf.Message("assistant", contents_of(turn))],
            response_id=f"scripted_{number + 1}",
            model=MODEL,
            finish_reason="stop" if isinstance(turn, str) else "tool_calls",
            usage_details={"input_token_count": USAGE.input_tokens, "output_token_count": USAGE.output_tokens},
        )

    async def _stream(self, turn: Any, number: int) -> AsyncIterator[maf.ChatResponseUpdate]:
        if isinstance(turn, BaseException):
            raise turn
        head: dict[str, Any] = {"response_id": f"scripted_{number + 1}", "model": MODEL, "role": "assistant"}
        for content in contents_of(turn):
            yield maf.ChatResponseUpdate(contents=[content], **head)
        usage = maf.Content.from_usage(
            {"input_token_count": USAGE.input_tokens, "output_token_count": USAGE.output_tokens}
        )
        reason: Any = "stop" if isinstance(turn, str) else "tool_calls"
        yield maf.ChatResponseUpdate(contents=[usage], finish_reason=reason, **head)


def contents_of(turn: Any) -> list[maf.Content]:
    """Return the contents of an answer."""
    if isinstance(turn, str):
        return [maf.Content.from_text(turn)]
    return [
        maf.Content.from_function_call(call_id=call.id or "", name=call.name, arguments=arguments_of(call))
        for call in turn
    ]


def arguments_of(call: ToolCall) -> str:
    """Return the arguments of a call, as a provider sends them."""
    try:
        return json.dumps(json.loads(call.arguments))
    except ValueError:
        return call.arguments
