"""Clients of the Anthropic SDK whose model calls belong to runs: the Messages API, also its beta."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, Unpack

from traced_tools.core.checks import expect
from traced_tools.core.messages import ImagePart, Message, SystemMessage, TextPart, ToolCall, UserMessage
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ConfigurationError
from traced_tools.integrations.sdk_client import (
    ClientTracing,
    Json,
    ObservedAsyncStream,
    ObservedStream,
    RequestObserver,
    body_of,
    trace_client,
    wrong_answer,
)
from traced_tools.integrations.sdk_messages import (
    RequestMessages,
    check_result,
    image_of,
    items_of,
    plain,
    text_of,
    user_message,
)
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.models.parsing import to_json
from traced_tools.observe.manual.run import RunSettings

try:
    from anthropic import Anthropic, AsyncAnthropic, AsyncStream, Stream
except ImportError as error:
    raise ConfigurationError(
        "the integration needs the Anthropic SDK: pip install 'traced_tools[anthropic]'"
    ) from error

T = TypeVar("T")
C = TypeVar("C", bound="Anthropic | AsyncAnthropic")
_PATH: Final = "/v1/messages"


class _AnthropicStream(ObservedStream[T], Stream[T]):
    """A stream whose events are observed."""


class _AsyncAnthropicStream(ObservedAsyncStream[T], AsyncStream[T]):
    """A stream on asyncio whose events are observed."""


def traced(client: C, agent: str = "assistant", *, tools: object = (), **settings: Unpack[RunSettings]) -> C:
    """Return a copy of a client of the Anthropic SDK, blocking or async, whose model calls are observed.

    Each call of `messages` is a model call of the current run, whole, streamed, parsed or raw. It begins the next
    iteration of the run, unless the application has one open. Outside of a run, and in a tool that a run executes, each
    call is a run of its own. The application's client stays as it is.

    Args:
        client: the client, such as `Anthropic()`.
        agent: the name of runs that consist of one call.
        tools: the tools that requests declare, which only matters for tools with `capture=False`.
        **settings: further settings of runs that consist of one call, as for `observe.run`.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """
    expect("client", client, (Anthropic, AsyncAnthropic), "a client of the Anthropic SDK")
    observer = RequestObserver(agent, "anthropic", {_PATH: _Messages()}, tools, settings)
    tracing = ClientTracing(observer, {Stream: _AnthropicStream, AsyncStream: _AsyncAnthropicStream})
    return trace_client(client, tracing, is_async=isinstance(client, AsyncAnthropic))


def tool_calls(answer: object) -> tuple[ToolCall, ...]:
    """Return the calls that an answer asks for, for `run.execute`.

    Args:
        answer: a `Message`, or the raw response of one.

    Raises:
        TypeError: if it is neither.
        ModelError: if the answer is an error.
    """
    body = body_of(answer)
    fields = None if body is None else json.loads(body)
    is_answer = isinstance(fields, Mapping) and ("error" in fields or isinstance(fields.get("content"), list))
    if body is None or not is_answer:
        raise wrong_answer(answer, "a Message")
    return _Messages().codec.decode(body).with_call_ids().tool_calls


def tool_result(result: ToolResult) -> dict[str, Any]:
    """Return the block for the result of a call, for the content of the next message of the user.

    Args:
        result: what `run.execute` has returned.

    Raises:
        TypeError: if it is not a `ToolResult`.
    """
    check_result(result)
    block = {"type": "tool_result", "tool_use_id": result.call_id, "content": result.content}
    return {**block, "is_error": True} if result.part().is_error else block


class _Messages:
    """The Messages API."""

    last_event = ""

    def __init__(self) -> None:
        self.codec = AnthropicChatCodec("", max_tokens=1)

    def options(self, request: Json) -> Mapping[str, Any]:
        """Return the options of a request."""
        output = request.get("output_config")
        output = output if isinstance(output, Mapping) else {}
        form = output.get("format")
        return {
            **{name: request.get(name) for name in ("temperature", "top_p", "max_tokens")},
            "stop": request.get("stop_sequences"),
            "reasoning_effort": output.get("effort"),
            "output_schema": form.get("schema") if isinstance(form, Mapping) else None,
        }

    def tools(self, request: Json) -> Iterator[ToolDefinition]:
        """Yield the tools that a request declares, without those of the provider."""
        for tool in items_of(request.get("tools")):
            if isinstance(schema := tool.get("input_schema"), Mapping):
                name, description = tool.get("name") or "", tool.get("description") or ""
                yield ToolDefinition(name=name, description=description, input_schema=dict(schema))

    def results(self, request: Json) -> Iterator[tuple[str, str]]:
        """Yield the results in the last message."""
        messages = request.get("messages")
        last = plain(messages[-1]) if isinstance(messages, list | tuple) and messages else {}
        for block in items_of(last.get("content")):
            if block.get("type") == "tool_result":
                yield str(block.get("tool_use_id")), text_of(block.get("content"))

    def instructions(self, request: Json) -> str:
        """Return the system text."""
        return text_of(request.get("system"))

    def messages(self, request: Json) -> list[Message]:
        """Return the conversation."""
        conversation = RequestMessages()
        if instructions := self.instructions(request):
            conversation.add(SystemMessage(instructions))
        for message in items_of(request.get("messages")):
            content = message.get("content")
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else items_of(content)
            if message.get("role") == "assistant":
                conversation.add(self.codec.decode(to_json({"content": blocks}).encode()).message)
                continue
            for block in blocks:
                if block.get("type") == "tool_result":
                    text, is_error = text_of(block.get("content")), block.get("is_error") is True
                    conversation.add_result(block.get("tool_use_id"), text, is_error=is_error)
            if others := [block for block in blocks if block.get("type") != "tool_result"]:
                conversation.add(_user_message(others))
        return conversation.messages


def _user_message(blocks: list[Json]) -> UserMessage:
    if len(blocks) == 1 and isinstance(text := blocks[0].get("text"), str):
        return UserMessage(text)
    return user_message(map(_user_part, blocks))


def _user_part(block: Json) -> TextPart | ImagePart | None:
    source = block.get("source")
    if block.get("type") == "image" and isinstance(source, Mapping):
        if source.get("type") == "base64":
            return image_of(f"data:{source.get('media_type')};base64,{source.get('data')}")
        return image_of(source.get("url"))
    return TextPart(block["text"]) if isinstance(block.get("text"), str) else None
