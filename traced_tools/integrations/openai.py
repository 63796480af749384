"""Clients of the OpenAI SDK whose model calls belong to runs: chat completions and responses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby
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
    SdkApi,
    body_of,
    trace_client,
    wrong_answer,
)
from traced_tools.integrations.sdk_messages import (
    RequestMessages,
    check_result,
    image_of,
    items_of,
    results_at_end,
    text_of,
    user_message,
)
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.responses import OpenAIResponsesCodec
from traced_tools.models.openai.servers import resolve_server
from traced_tools.models.parsing import to_json
from traced_tools.observe.manual.run import RunSettings

try:
    from openai import AsyncAzureOpenAI, AsyncOpenAI, AsyncStream, AzureOpenAI, OpenAI, Stream
except ImportError as error:
    raise ConfigurationError("the integration needs the OpenAI SDK: pip install 'traced_tools[openai]'") from error

T = TypeVar("T")
C = TypeVar("C", bound="OpenAI | AsyncOpenAI")
_OPENAI, _AZURE = "openai", "azure.ai.openai"
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_INSTRUCTING: Final = ("system", "developer")


class _OpenAIStream(ObservedStream[T], Stream[T]):
    """A stream whose events are observed."""


class _AsyncOpenAIStream(ObservedAsyncStream[T], AsyncStream[T]):
    """A stream on asyncio whose events are observed."""


def traced(client: C, agent: str = "assistant", *, tools: object = (), **settings: Unpack[RunSettings]) -> C:
    """Return a copy of a client of the OpenAI SDK, blocking or async, whose model calls are observed.

    Each call of `chat.completions` and `responses` is a model call of the current run, whole, streamed, parsed or raw.
    It begins the next iteration of the run, unless the application has one open. Outside of a run, and in a tool that
    a run executes, each call is a run of its own. The application's client stays as it is.

    Args:
        client: the client, such as `OpenAI()` or `AsyncAzureOpenAI(...)`.
        agent: the name of runs that consist of one call.
        tools: the tools that requests declare, which only matters for tools with `capture=False`.
        **settings: further settings of runs that consist of one call, as for `observe.run`.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """
    expect("client", client, (OpenAI, AsyncOpenAI), "a client of the OpenAI SDK")
    is_azure = isinstance(client, AzureOpenAI | AsyncAzureOpenAI)
    provider = _AZURE if is_azure else resolve_server(str(client.base_url)).provider
    apis: dict[str, SdkApi] = {"/chat/completions": _ChatCompletions(provider), "/responses": _Responses(provider)}
    observer = RequestObserver(agent, provider, apis, tools, settings)
    tracing = ClientTracing(observer, {Stream: _OpenAIStream, AsyncStream: _AsyncOpenAIStream})
    return trace_client(client, tracing, is_async=isinstance(client, AsyncOpenAI))


def tool_calls(answer: object) -> tuple[ToolCall, ...]:
    """Return the calls that an answer asks for, for `run.execute`.

    Args:
        answer: a `ChatCompletion`, a `Response`, or the raw response of one.

    Raises:
        TypeError: if it is neither.
        ModelError: if the answer is an error.
    """
    body = body_of(answer)
    api = None if body is None else _api_of(body)
    if body is None or api is None:
        raise wrong_answer(answer, "a ChatCompletion or a Response")
    return api.codec.decode(body).with_call_ids().tool_calls


def tool_message(result: ToolResult) -> dict[str, Any]:
    """Return the message of chat completions for the result of a call; raise `TypeError` if it is no result."""
    check_result(result)
    return {"role": "tool", "tool_call_id": result.call_id, "content": result.content}


def tool_output(result: ToolResult) -> dict[str, Any]:
    """Return the input item of the Responses API for the result of a call; raise `TypeError` if it is no result."""
    check_result(result)
    return {"type": "function_call_output", "call_id": result.call_id, "output": result.content}


def _api_of(body: bytes) -> SdkApi | None:
    fields = json.loads(body)
    if not isinstance(fields, Mapping):
        return None
    if "choices" in fields:
        return _ChatCompletions(_OPENAI)
    return _Responses(_OPENAI) if "output" in fields else None


class _ChatCompletions:
    """The API of chat completions."""

    last_event = "[DONE]"

    def __init__(self, provider: str) -> None:
        self.codec = OpenAIChatCodec("", resolve_server("", provider), provider=provider)

    def options(self, request: Json) -> Mapping[str, Any]:
        """Return the options of a request."""
        stop, schema = request.get("stop"), request.get("response_format")
        schema = schema.get("json_schema") if isinstance(schema, Mapping) else None
        limits = [request.get(name) for name in ("max_completion_tokens", "max_tokens")]
        return {
            **{name: request.get(name) for name in ("temperature", "top_p", "seed", "reasoning_effort")},
            "max_tokens": next((limit for limit in limits if isinstance(limit, int)), None),
            "stop": (stop,) if isinstance(stop, str) else stop,
            "output_schema": schema.get("schema") if isinstance(schema, Mapping) else None,
        }

    def tools(self, request: Json) -> Iterator[ToolDefinition]:
        """Yield the functions that a request declares."""
        for tool in items_of(request.get("tools")):
            if isinstance(function := tool.get("function"), Mapping):
                yield _definition(function)

    def results(self, request: Json) -> Iterator[tuple[str, str]]:
        """Yield the results at the end of a request."""
        for message in results_at_end(request.get("messages"), lambda message: message.get("role") == "tool"):
            yield str(message.get("tool_call_id")), text_of(message.get("content"))

    def instructions(self, request: Json) -> str:
        """Return the text of the first message if it is of the system or the developer."""
        return _first_instructions(request.get("messages"))

    def messages(self, request: Json) -> list[Message]:
        """Return the conversation."""
        conversation = RequestMessages()
        for message in items_of(request.get("messages")):
            match message.get("role"):
                case "system" | "developer":
                    conversation.add(SystemMessage(text_of(message.get("content"))))
                case "user":
                    conversation.add(_user_message(message.get("content")))
                case "assistant":
                    body = to_json({"choices": [{"message": message}]}).encode()
                    conversation.add(self.codec.decode(body).message)
                case "tool":
                    conversation.add_result(message.get("tool_call_id"), text_of(message.get("content")))
        return conversation.messages


class _Responses:
    """The Responses API."""

    last_event = ""

    def __init__(self, provider: str) -> None:
        self.codec = OpenAIResponsesCodec("", provider=provider)

    def options(self, request: Json) -> Mapping[str, Any]:
        """Return the options of a request."""
        reasoning, text = request.get("reasoning"), request.get("text")
        form = text.get("format") if isinstance(text, Mapping) else None
        return {
            **{name: request.get(name) for name in ("temperature", "top_p")},
            "max_tokens": request.get("max_output_tokens"),
            "reasoning_effort": reasoning.get("effort") if isinstance(reasoning, Mapping) else None,
            "output_schema": form.get("schema") if isinstance(form, Mapping) else None,
        }

    def tools(self, request: Json) -> Iterator[ToolDefinition]:
        """Yield the functions that a request declares."""
        for tool in items_of(request.get("tools")):
            if tool.get("type") in ("function", "custom"):
                yield _definition(tool)

    def results(self, request: Json) -> Iterator[tuple[str, str]]:
        """Yield the results at the end of a request."""
        for item in results_at_end(request.get("input"), lambda item: item.get("type") in _OUTPUTS):
            yield str(item.get("call_id")), text_of(item.get("output"))

    def instructions(self, request: Json) -> str:
        """Return the instructions, else the text of the first item if it is of the system or the developer."""
        instructions = request.get("instructions")
        return instructions if isinstance(instructions, str) else _first_instructions(request.get("input"))

    def messages(self, request: Json) -> list[Message]:
        """Return the conversation, without what only the server has of it."""
        conversation, items = RequestMessages(), request.get("input")
        if isinstance(request.get("instructions"), str):
            conversation.add(SystemMessage(request["instructions"]))
        if isinstance(items, str):
            conversation.add(UserMessage(items))
        for is_answer, group in groupby(items_of(items), key=_is_answer):
            if is_answer:
                body = to_json({"output": [_whole_item(item) for item in group]}).encode()
                conversation.add(self.codec.decode(body).message)
                continue
            for item in group:
                self._add_input(item, conversation)
        return conversation.messages

    def _add_input(self, item: Json, conversation: RequestMessages) -> None:
        if item.get("type") in _OUTPUTS:
            conversation.add_result(item.get("call_id"), text_of(item.get("output")))
        elif item.get("role") in _INSTRUCTING:
            conversation.add(SystemMessage(text_of(item.get("content"))))
        elif item.get("role") == "user":
            conversation.add(_user_message(item.get("content")))


def _is_answer(item: Json) -> bool:
    """Return whether an item is one that a model has written."""
    if item.get("type", "message") == "message":
        return item.get("role") == "assistant"
    return item["type"] not in (*_OUTPUTS, "item_reference")


def _whole_item(item: Json) -> Json:
    """Return an item of an answer with the fields that requests may omit."""
    if item.get("type", "message") != "message" or not isinstance(item.get("content"), str):
        return item
    return {**item, "type": "message", "content": [{"type": "output_text", "text": item["content"]}]}


def _definition(tool: Json) -> ToolDefinition:
    schema, name, description = tool.get("parameters"), tool.get("name") or "", tool.get("description") or ""
    fields = {"input_schema": schema} if isinstance(schema, dict) else {}
    return ToolDefinition(name=name, description=description, **fields)


def _first_instructions(messages: object) -> str:
    first = items_of(messages[:1]) if isinstance(messages, list | tuple) else []
    return text_of(first[0].get("content")) if first and first[0].get("role") in _INSTRUCTING else ""


def _user_message(content: object) -> UserMessage:
    if isinstance(content, str):
        return UserMessage(content)
    return user_message(map(_user_part, items_of(content)))


def _user_part(part: Json) -> TextPart | ImagePart | None:
    image = part.get("image_url")
    if image is not None:
        return image_of(image.get("url") if isinstance(image, Mapping) else image)
    return TextPart(part["text"]) if isinstance(part.get("text"), str) else None
