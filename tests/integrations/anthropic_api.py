"""The small agent on the Messages API, with our model and with Anthropic's SDK."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from anthropic import Anthropic, AsyncAnthropic

from tests.integrations.sdk_agent import COUNTS, DEFINITIONS, NAME, Asked, Json, calls_of, named_events, text_of
from tests.integrations.small_agent import INSTRUCTIONS, QUESTION
from traced_tools import ToolCall, ToolResult
from traced_tools.integrations.anthropic import tool_result, traced
from traced_tools.models import AnthropicChatModel

SETTINGS: Final[Any] = {"api_key": "k", "max_retries": 0}
USAGE: Final = {"input_tokens": COUNTS["input"], "output_tokens": COUNTS["output"]}


def blocking_client(url: str) -> Anthropic:
    return traced(Anthropic(base_url=url, **SETTINGS))


def asyncio_client(url: str) -> AsyncAnthropic:
    return traced(AsyncAnthropic(base_url=url, **SETTINGS))


def blocks_of(turn: Any) -> list[Json]:
    if isinstance(turn, str):
        return [{"type": "text", "text": turn}]
    return [
        {"type": "tool_use", "id": call.id, "name": call.name, "input": json.loads(call.arguments)} for call in turn
    ]


def message(number: int, turn: Any) -> Json:
    reason = "tool_use" if calls_of(turn) else "end_turn"
    head = {"id": f"r{number}", "type": "message", "role": "assistant", "model": NAME}
    return {**head, "content": blocks_of(turn), "stop_reason": reason, "stop_sequence": None, "usage": USAGE}


def message_events(number: int, turn: Any) -> Iterable[Any]:
    return named_events(_events(number, turn))


def _events(number: int, turn: Any) -> Iterable[Json]:
    whole = message(number, turn)
    opening = {**whole, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": opening}
    yield {"type": "ping"}
    for index, block in enumerate(whole["content"]):
        place = {"index": index}
        if block["type"] == "text":
            yield {"type": "content_block_start", **place, "content_block": {"type": "text", "text": ""}}
            deltas = [{"type": "text_delta", "text": piece} for piece in text_of(turn).partition("n")]
        else:
            yield {"type": "content_block_start", **place, "content_block": {**block, "input": {}}}
            pieces = json.dumps(block["input"]).partition(":")
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
        for delta in deltas:
            yield {"type": "content_block_delta", **place, "delta": delta}
        yield {"type": "content_block_stop", **place}
    stop = {"stop_reason": whole["stop_reason"], "stop_sequence": None}
    yield {"type": "message_delta", "delta": stop, "usage": {"output_tokens": COUNTS["output"]}}
    yield {"type": "message_stop"}


def create_message(client: Any, messages: Sequence[Any], tools: Sequence[Json], streamed: bool) -> Any:
    options: dict[str, Any] = {"tools": tools} if tools else {}
    return client.messages.create(
        model=NAME, system=INSTRUCTIONS, messages=messages, max_tokens=100, stream=streamed, **options
    )


def after_message(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Any]:
    return [
        {"role": "assistant", "content": blocks_of(calls)},
        {"role": "user", "content": [tool_result(result) for result in results]},
    ]


MESSAGES_API: Final = Asked(
    provider="anthropic",
    own=lambda url: AnthropicChatModel(NAME, base_url=url, api_key="k", retries=0),
    blocking=blocking_client,
    asyncio=asyncio_client,
    create=create_message,
    whole=message,
    events=message_events,
    tools=[
        {"name": definition.name, "description": definition.description, "input_schema": definition.input_schema}
        for definition in DEFINITIONS
    ],
    begin=lambda: [{"role": "user", "content": QUESTION}],
    go_on=after_message,
    options={"max_tokens": 100},
)
APIS: Final[Mapping[str, Asked]] = {"messages": MESSAGES_API}
