"""What tools are called in one request to a provider, and the way back to their names."""

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
    """The request as it is sent, with names that providers accept, and answers with the tools' own names again.

    A name in an answer that belongs to no tool and no call of the request stays as it is.

    Args:
        request: the request, with the tools' own names.

    Attributes:
        request: the request to send; the same object where all names are accepted.
    """

    __slots__ = ("_own", "request")

    def __init__(self, request: ChatRequest) -> None:
        names = list(_names(request))
        sent = [wire_name(name) for name in names]
        # tools come last in the list, so a tool's name counts before that of a call to one no longer offered
        self._own = {} if sent == names else dict(zip(sent, names, strict=True))
        self.request = _sent(request) if self._own else request

    def response(self, response: ChatResponse) -> ChatResponse:
        """Return the answer with the tools' own names."""
        if not any(call.name in self._own for call in response.tool_calls):
            return response
        return response.replace(message=response.message.replace(parts=self._parts(response.message.parts)))

    def chunk(self, chunk: ChatChunk) -> ChatChunk:
        """Return a piece of the answer with the tools' own names."""
        if not self._own or not (chunk.tool_calls or chunk.parts):
            return chunk
        begun = tuple(replace(delta, name=self._own.get(delta.name or "", delta.name)) for delta in chunk.tool_calls)
        return chunk.with_calls(begun, self._parts(chunk.parts))

    def _parts(self, parts: tuple[AssistantPart, ...]) -> tuple[AssistantPart, ...]:
        return tuple(
            _named(part, self._own.get(part.name, part.name)) if isinstance(part, ToolCall) else part for part in parts
        )


def _names(request: ChatRequest) -> Iterator[str]:
    """Give every tool name in a request."""
    for message in request.messages:
        if isinstance(message, AssistantMessage):
            yield from [call.name for call in message.tool_calls]
        elif isinstance(message, ToolMessage):
            yield from [result.name for result in message.results]
    if request.options.tool_choice is not None:
        yield request.options.tool_choice
    yield from [definition.name for definition in request.tools]


def _sent(request: ChatRequest) -> ChatRequest:
    options = request.options
    if options.tool_choice is not None:  # `auto` and its like are accepted names, which stay as they are
        options = options.replace(tool_choice=wire_name(options.tool_choice))
    return ChatRequest(tuple(map(_sent_message, request.messages)), tuple(map(_sent_tool, request.tools)), options)


def _sent_message(message: Message) -> Message:
    if isinstance(message, AssistantMessage) and message.tool_calls:
        parts = (_renamed(part) if isinstance(part, ToolCall) else part for part in message.parts)
        return message.replace(parts=tuple(parts))
    if isinstance(message, ToolMessage):
        return message.replace(results=tuple(_renamed(result) for result in message.results))
    return message


def _renamed(item: N) -> N:
    return _named(item, wire_name(item.name))


def _named(item: N, name: str) -> N:
    return item if item.name == name else item.replace(name=name)


_sent_tool = IdentityCache[ToolDefinition, ToolDefinition](_renamed)
