"""The small agent on chat completions and on the Responses API, with our models and with OpenAI's SDK."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from openai import AsyncOpenAI, OpenAI

from tests.integrations.sdk_agent import COUNTS, DEFINITIONS, NAME, Asked, Json, calls_of, text_of
from tests.integrations.small_agent import INSTRUCTIONS, QUESTION
from traced_tools import ToolCall, ToolResult
from traced_tools.integrations.openai import tool_message, tool_output, traced
from traced_tools.models import OpenAIChatModel, OpenAIResponsesModel

SETTINGS: Final[Any] = {"api_key": "k", "max_retries": 0}


def blocking_client(url: str) -> OpenAI:
    return traced(OpenAI(base_url=url, **SETTINGS))


def asyncio_client(url: str) -> AsyncOpenAI:
    return traced(AsyncOpenAI(base_url=url, **SETTINGS))


# Chat completions.


def completion_call(call: ToolCall) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


CHAT_USAGE: Final = {"prompt_tokens": COUNTS["input"], "completion_tokens": COUNTS["output"], "total_tokens": 15}


def completion(number: int, turn: Any) -> Json:
    calls = [completion_call(call) for call in calls_of(turn)]
    message = {"role": "assistant", "content": text_of(turn) or None, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}
    return {
        "id": f"r{number}",
        "object": "chat.completion",
        "created": 1,
        "model": NAME,
        "choices": [choice],
        "usage": CHAT_USAGE,
    }


def completion_events(number: int, turn: Any) -> Iterable[Any]:
    head = {"id": f"r{number}", "object": "chat.completion.chunk", "created": 1, "model": NAME}
    calls = calls_of(turn)

    def chunk(delta: Json, reason: str | None = None) -> Json:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}

    yield chunk({"role": "assistant", "content": ""})
    for piece in text_of(turn).partition("n"):
        yield chunk({"content": piece})
    for index, call in enumerate(calls):
        opening = {**completion_call(call), "index": index}
        opening["function"] = {"name": call.name, "arguments": ""}
        yield chunk({"tool_calls": [opening]})
        yield chunk({"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]})
    yield chunk({}, "tool_calls" if calls else "stop")
    yield {**head, "choices": [], "usage": CHAT_USAGE}
    yield "[DONE]"


def create_completion(client: Any, messages: Sequence[Any], tools: Sequence[Json], streamed: bool) -> Any:
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if streamed else {}
    if tools:
        options["tools"] = tools
    return client.chat.completions.create(model=NAME, messages=messages, **options)


def after_completion(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Any]:
    answer = {"role": "assistant", "content": None, "tool_calls": [completion_call(call) for call in calls]}
    return [answer, *map(tool_message, results)]


CHAT: Final = Asked(
    provider="openai",
    own=lambda url: OpenAIChatModel(NAME, base_url=url, api_key="k", retries=0),
    blocking=blocking_client,
    asyncio=asyncio_client,
    create=create_completion,
    whole=completion,
    events=completion_events,
    tools=[
        {
            "type": "function",
            "function": {
                "name": definition.name,
                "description": definition.description,
                "parameters": definition.input_schema,
            },
        }
        for definition in DEFINITIONS
    ],
    begin=lambda: [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": QUESTION}],
    go_on=after_completion,
)


# Responses.


def response_items(turn: Any) -> list[Json]:
    if isinstance(turn, str):
        content = [{"type": "output_text", "text": turn, "annotations": []}]
        return [{"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}]
    return [
        {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments} for call in turn
    ]


def response(number: int, turn: Any) -> Json:
    usage = {
        "input_tokens": COUNTS["input"],
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": COUNTS["output"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 15,
    }
    return {
        "id": f"r{number}",
        "object": "response",
        "created_at": 1,
        "model": NAME,
        "status": "completed",
        "output": response_items(turn),
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": usage,
    }


def response_events(number: int, turn: Any) -> Iterable[Any]:
    sequence = iter(range(1_000))

    def event(kind: str, **fields: Any) -> Json:
        return {"type": kind, "sequence_number": next(sequence), **fields}

    yield event("response.created", response={**response(number, turn), "status": "in_progress", "output": []})
    for index, item in enumerate(response_items(turn)):
        is_call = item["type"] == "function_call"
        opening = {**item, "arguments": ""} if is_call else {**item, "content": []}
        yield event("response.output_item.added", output_index=index, item=opening)
        if is_call:
            yield event(
                "response.function_call_arguments.delta", output_index=index, item_id="i", delta=item["arguments"]
            )
        else:
            delta = {"output_index": index, "content_index": 0, "item_id": "i", "logprobs": []}
            yield event("response.output_text.delta", delta=text_of(turn), **delta)
        yield event("response.output_item.done", output_index=index, item=item)
    yield event("response.completed", response=response(number, turn))


def create_response(client: Any, items: Sequence[Any], tools: Sequence[Json], streamed: bool) -> Any:
    options: dict[str, Any] = {"stream": True} if streamed else {}
    if tools:
        options["tools"] = tools
    return client.responses.create(model=NAME, instructions=INSTRUCTIONS, input=items, **options)


def after_response(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> list[Any]:
    return [*response_items(calls), *map(tool_output, results)]


RESPONSES: Final = Asked(
    provider="openai",
    own=lambda url: OpenAIResponsesModel(NAME, base_url=url, api_key="k", retries=0),
    blocking=blocking_client,
    asyncio=asyncio_client,
    create=create_response,
    whole=response,
    events=response_events,
    tools=[
        {
            "type": "function",
            "name": definition.name,
            "description": definition.description,
            "parameters": definition.input_schema,
            "strict": False,
        }
        for definition in DEFINITIONS
    ],
    begin=lambda: [{"role": "user", "content": QUESTION}],
    go_on=after_response,
)
APIS: Final[Mapping[str, Asked]] = {"chat": CHAT, "responses": RESPONSES}
