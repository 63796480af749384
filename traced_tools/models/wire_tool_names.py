"""Tool names on the wire: replaces names that a provider would refuse, and restores them in the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import AssistantMessage, AssistantPart, Message, ToolCall, ToolMessage, ToolResultPart
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_naming import wire_name
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse

N = TypeVar("N", ToolCall, ToolResultPart, ToolDefinition)


class WireNames:
    """Replaces tool names in one request by names that all providers accept, and restores them in its answer.

    A name in the answer that belongs to no tool or call of the request isn't changed.

    Args:
        request: the request, with the tools' own names.

    Attributes:
        request: the request to send; the same object if all names are accepted.
    """

    __slots__ = ("_own_names", "request")

    def __init__(self, request: ChatRequest) -> None:
        names = list(_tool_names(request))
        sent = [wire_name(name) for name in names]
        # tools come last in the list: an offered tool wins over an earlier call whose name maps to the same wire name
        self._own_names = {} if sent == names else dict(zip(sent, names, strict=True))
        self.request = _with_wire_names(request) if self._own_names else request

    def response(self, response: ChatResponse) -> ChatResponse:
        """Return `response` with the tools' own names."""
        if not any(call.name in self._own_names for call in response.tool_calls):
            return response
        return response.replace(message=response.message.replace(parts=self._restore_names(response.message.parts)))

    def chunk(self, chunk: ChatChunk) -> ChatChunk:
        """Return `chunk` with the tools' own names."""
        if not self._own_names or not (chunk.tool_calls or chunk.parts):
            return chunk
        own = self._own_names
        deltas = tuple(replace(delta, name=own.get(delta.name or "", delta.name)) for delta in chunk.tool_calls)
        return chunk.with_calls(deltas, self._restore_names(chunk.parts))

    def _restore_names(self, parts: tuple[AssistantPart, ...]) -> tuple[AssistantPart, ...]:
        own = self._own_names
        return tuple(
            _replace_name(part, own.get(part.name, part.name)) if isinstance(part, ToolCall) else part for part in parts
        )


def _tool_names(request: ChatRequest) -> Iterator[str]:
    """Yield every tool name in a request: of calls, of results, of `tool_choice` and of tools."""
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            yield from [call.name for call in message.tool_calls]
        elif isinstance(message, ToolMessage):
            yield from [result.name for result in message.results]
    if request.options.tool_choice is not None:
        yield request.options.tool_choice
    yield from [definition.name for definition in request.tools]


def _with_wire_names(request: ChatRequest) -> ChatRequest:
    options = request.options
    if options.tool_choice is not None:  # `auto`, `none` and `required` are valid wire names and don't change
        options = options.replace(tool_choice=wire_name(options.tool_choice))
    messages = tuple(map(_message_with_wire_names, request.messages))
    return ChatRequest(messages, tuple(map(_tool_with_wire_name, request.tools)), options)


def _message_with_wire_names(message: Message) -> Message:
    if isinstance(message, AssistantMessage) and message.tool_calls:
        parts = (_with_wire_name(part) if isinstance(part, ToolCall) else part for part in message.parts)
        return message.replace(parts=tuple(parts))
    if isinstance(message, ToolMessage):
        return message.replace(results=tuple(_with_wire_name(result) for result in message.results))
    return message


def _with_wire_name(item: N) -> N:
    return _replace_name(item, wire_name(item.name))


def _replace_name(item: N, name: str) -> N:
    return item if item.name == name else item.replace(name=name)


_tool_with_wire_name = IdentityCache[ToolDefinition, ToolDefinition](_with_wire_name)
