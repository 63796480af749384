"""Names on the wire: replaces names of tools and fields that a provider would refuse, and restores them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import AssistantMessage, AssistantPart, Message, ToolCall, ToolMessage, ToolResultPart
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.core.tool_naming import wire_name
from traced_tools.core.unwrapping import unwrap_arguments
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
from traced_tools.models.encoding import read_object
from traced_tools.models.folding import ChunkFold
from traced_tools.models.parsing import to_json
from traced_tools.tools.schema.wire_fields import WireFields, wire_fields

N = TypeVar("N", ToolCall, ToolResultPart, ToolDefinition)


class WireNames:
    """Replaces names in one request by names that all providers accept, and restores them in its answer.

    The names are those of tools, and of the fields in their arguments. A name in the answer that belongs to no tool,
    call or field of the request isn't changed.

    Args:
        request: the request, with the tools' own names.

    Attributes:
        request: the request to send; the same object if all names are accepted.
    """

    __slots__ = ("_fields", "_held_arguments", "_own_names", "request")

    def __init__(self, request: ChatRequest) -> None:
        names = list(_tool_names(request))
        wire_tool_names = [wire_name(name) for name in names]
        # tools come last in the list: an offered tool wins over an earlier call whose name maps to the same wire name
        self._own_names = {} if wire_tool_names == names else dict(zip(wire_tool_names, names, strict=True))
        named_fields = [(wire_name(tool.name), _fields_of(tool)) for tool in request.tools]
        self._fields = {name: fields for name, fields in named_fields if fields is not None}
        self._held_arguments = HeldArguments(self._own_arguments, self._fields) if self._fields else None
        self.request = request
        if self._own_names or self._fields:
            self.request = _with_wire_names(request, self._fields)

    def response(self, response: ChatResponse) -> ChatResponse:
        """Return `response` with the tools' own names."""
        if not any(call.name in self._own_names or call.name in self._fields for call in response.tool_calls):
            return response
        return response.replace(message=response.message.replace(parts=self._restore_names(response.message.parts)))

    def chunk(self, chunk: ChatChunk) -> ChatChunk:
        """Return `chunk` with the tools' own names."""
        if self._held_arguments is not None:
            chunk = self._held_arguments.chunk(chunk)
        elif not self._own_names or not (chunk.tool_calls or chunk.parts):
            return chunk
        own_names = self._own_names
        deltas = tuple(replace(delta, name=own_names.get(delta.name or "", delta.name)) for delta in chunk.tool_calls)
        return chunk.with_calls(deltas, self._restore_names(chunk.parts))

    def last_chunks(self) -> Iterator[ChatChunk]:
        """Yield the arguments that were held back until they were complete, because their fields have other names."""
        if self._held_arguments is not None and (deltas := self._held_arguments.whole()):
            yield ChatChunk(tool_calls=deltas)

    def _own_arguments(self, name: str, arguments: str) -> str:
        """Return arguments of the tool `name` with the fields' own names; text that isn't an object stays."""
        fields = self._fields.get(name)
        return arguments if fields is None else _renamed_arguments(arguments, fields.to_own)

    def _restore_names(self, parts: tuple[AssistantPart, ...]) -> tuple[AssistantPart, ...]:
        own_names = self._own_names
        return tuple(
            _replace_name(
                _replace_arguments(part, self._own_arguments(part.name, part.arguments)),
                own_names.get(part.name, part.name),
            )
            if isinstance(part, ToolCall)
            else part
            for part in parts
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


def _with_wire_names(request: ChatRequest, fields: Mapping[str, WireFields]) -> ChatRequest:
    options = request.options
    if options.tool_choice is not None:  # `auto`, `none` and `required` are valid wire names and don't change
        options = options.replace(tool_choice=wire_name(options.tool_choice))
    messages = tuple(_message_with_wire_names(message, fields) for message in request.messages)
    return ChatRequest(messages, tuple(map(_wire_tool, request.tools)), options)


def _message_with_wire_names(message: Message, fields: Mapping[str, WireFields]) -> Message:
    if isinstance(message, AssistantMessage) and message.tool_calls:
        parts = (_call_with_wire_names(part, fields) if isinstance(part, ToolCall) else part for part in message.parts)
        return message.replace(parts=tuple(parts))
    if isinstance(message, ToolMessage):
        return message.replace(results=tuple(_with_wire_name(result) for result in message.results))
    return message


def _call_with_wire_names(call: ToolCall, fields: Mapping[str, WireFields]) -> ToolCall:
    call = _with_wire_name(call)
    fields_of_tool = fields.get(call.name)
    if fields_of_tool is None:
        return call
    return _replace_arguments(call, _renamed_arguments(call.arguments, fields_of_tool.to_wire))


def _replace_arguments(call: ToolCall, arguments: str) -> ToolCall:
    return call if call.arguments == arguments else call.replace(arguments=arguments)


def _renamed_arguments(text: str, rename: Callable[[Mapping[str, Any]], dict[str, Any]]) -> str:
    """Return the object in JSON text with other names; text without an object stays as the model wrote it."""
    arguments = read_object(unwrap_arguments(text)[0])
    if arguments is None:
        return text
    renamed = rename(arguments)
    return text if renamed == arguments else to_json(renamed)


def _with_wire_name(item: N) -> N:
    return _replace_name(item, wire_name(item.name))


def _replace_name(item: N, name: str) -> N:
    return item if item.name == name else item.replace(name=name)


def _build_wire_tool(definition: ToolDefinition) -> ToolDefinition:
    fields = _fields_of(definition)
    wire_tool = _with_wire_name(definition)
    return wire_tool if fields is None else wire_tool.replace(input_schema=fields.schema)


_fields_of = IdentityCache[ToolDefinition, WireFields | None](lambda definition: wire_fields(definition.input_schema))
_wire_tool = IdentityCache[ToolDefinition, ToolDefinition](_build_wire_tool)


class HeldArguments:
    """Holds back the streamed arguments of tools whose fields have other names, until they are complete.

    Args:
        own: returns the arguments of the tool with a name, with the fields' own names.
        tools: the names of these tools.
    """

    def __init__(self, own: Callable[[str, str], str], tools: Container[str]) -> None:
        self._own = own
        self._tools = tools
        self._fold = ChunkFold()
        self._calls: dict[int, tuple[str, list[str]]] = {}

    def chunk(self, chunk: ChatChunk) -> ChatChunk:
        """Return `chunk` without the pieces that are held back; each piece of a call has the call's index and id."""
        if chunk.restarts:
            self._calls.clear()
        calls = ChatChunk(tool_calls=chunk.tool_calls, parts=chunk.parts, restarts=chunk.restarts)
        self._fold.add(calls)
        identified = self._fold.with_call_identity(calls).tool_calls
        deltas = [self._hold_back(piece, delta) for piece, delta in zip(identified, chunk.tool_calls, strict=True)]
        return chunk.with_calls(tuple(deltas), chunk.parts) if deltas else chunk

    def _hold_back(self, piece: ToolCallDelta, delta: ToolCallDelta) -> ToolCallDelta:
        index, name = piece.index or 0, piece.name or ""
        if index in self._calls or not name or name in self._tools:  # a name may follow the arguments
            _, pieces = self._calls.get(index, ("", []))
            pieces.append(piece.arguments)
            self._calls[index] = name, pieces
            piece = replace(piece, arguments="")
        return replace(piece, name=delta.name, signature=delta.signature)

    def whole(self) -> tuple[ToolCallDelta, ...]:
        """Return the arguments that were held back, one delta for each call."""
        calls = [(index, name, "".join(pieces)) for index, (name, pieces) in self._calls.items()]
        return tuple(ToolCallDelta(index, arguments=self._own(name, text)) for index, name, text in calls if text)
