"""Messages and tools in the shapes of the OpenTelemetry GenAI conventions v0.1.0.

The shapes: https://github.com/open-telemetry/semantic-conventions-genai/tree/v0.1.0/model/gen-ai (input and output
messages, system instructions, tool definitions, memory records). Those of v1.41.0 differ in one field: an output
message must have a `finish_reason`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import takewhile
from typing import TYPE_CHECKING, Any, overload

from traced_tools.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from traced_tools.observe import names
from traced_tools.observe.content import MayCapture, may_capture_after
from traced_tools.observe.truncation import Item, LongList

if TYPE_CHECKING:
    from traced_tools.core.enums import Conventions
    from traced_tools.core.tool_definition import ToolDefinition
    from traced_tools.observe.content import Makers, RunContent
    from traced_tools.observe.stages.subjects import ConversationInput, ModelOutput, ObservedEntry


Shape = dict[str, Any]
_LONGEST_JSON = 1_000_000
"""Characters; a longer text is captured as a text, which takes less time than to parse it."""


def conversation_makers(conversation: ConversationInput, answer: ModelOutput | None, content: RunContent) -> Makers:
    """Return functions that make the contents of an exchange; each runs only if its content is captured."""
    may_capture = content.may_capture_calls_of
    return {
        names.SYSTEM_INSTRUCTIONS: lambda: system_instructions(conversation.messages) or None,
        names.INPUT_MESSAGES: lambda: InputMessages(conversation.messages, content),
        names.OUTPUT_MESSAGES: lambda: (
            None if answer is None else output_messages(answer, may_capture, content.conventions)
        ),
        names.TOOL_DEFINITIONS: lambda: (
            ToolDefinitions(definitions, content) if (definitions := conversation.tools.definitions) else None
        ),
    }


class RepeatedList(LongList):
    """A list most of which each model call of a run captures again, so that each of its items is encoded once.

    Args:
        name: the attribute.
        content: what may be captured, which keeps the items of the last list.
    """

    def __init__(self, name: str, content: RunContent) -> None:
        self._items, self._items_before = content.replace_items(name)

    def _item(self, source: object, make: Callable[..., Shape], most: int, may_capture_text: bool = True) -> Item:
        """Return the item of a part, made by `make(source, may_capture_text)` unless the last list had it."""
        key = (id(source), may_capture_text)
        entry = self._items.get(key) or self._items_before.get(key)
        if entry is None:
            entry = (source, Item(make(source, may_capture_text), most))  # with the source, whose id no other one gets
        self._items[key] = entry
        return entry[1]


class InputMessages(RepeatedList):
    """A conversation without what stands above it.

    Of a batch of results each is a message of its own, since some readers see but the last one of a message. Calls and
    results that may not be captured lack their content, and so does an answer that repeats such a result.

    Args:
        messages: the conversation.
        content: what may be captured.
    """

    def __init__(self, messages: Sequence[Message], content: RunContent) -> None:
        super().__init__(names.INPUT_MESSAGES, content)
        self._messages = messages
        self._may_capture = content.may_capture_calls_of
        self._most = content.capture.max_bytes

    def __iter__(self) -> Iterator[Shape]:
        for position, message in enumerate(self._messages):
            may_capture_text = self._may_capture_text(position)
            for part in _spread(message):
                yield self._shape(part, may_capture_text)

    def newest_first(self, most: int) -> Iterator[Item]:
        """Yield the messages, the last one first."""
        for position in range(len(self._messages) - 1, -1, -1):
            may_capture_text = self._may_capture_text(position)
            for part in reversed(_spread(self._messages[position])):
                yield self._item(part, self._shape, most, may_capture_text)

    def _shape(self, message: UserMessage | AssistantMessage | ToolResultPart, may_capture_text: bool) -> Shape:
        if isinstance(message, ToolResultPart):
            return {"role": "tool", "parts": [_result(message, self._may_capture)]}
        parts = message.parts if may_capture_text else ()
        return {"role": message.role, "parts": [_part(part, self._may_capture, self._most) for part in parts]}

    def _may_capture_text(self, position: int) -> bool:
        message = self._messages[position]
        if not isinstance(message, AssistantMessage):
            return True
        before = (self._messages[earlier] for earlier in range(position - 1, -1, -1))
        results = takewhile(lambda other: isinstance(other, ToolMessage | SystemMessage), before)
        parts = (part for other in results if isinstance(other, ToolMessage) for part in other.results)
        withheld = [part for part in parts if not self._may_capture(part.name)]
        return not withheld or may_capture_after(withheld, message.text, self._may_capture)


class MemoryRecords(Sequence[Shape]):
    """Messages of a memory as its records, each made when it is looked at.

    Args:
        entries: the messages with the ids of their entries.
        may_capture: whether arguments and results of the tool of that name may be captured.
        may_capture_answers: whether texts of the assistant may be captured. The results that such a text repeats may be
            in other entries than these.
        most: the most bytes of an image.
    """

    def __init__(
        self, entries: Iterable[ObservedEntry], may_capture: MayCapture, may_capture_answers: bool, most: int
    ) -> None:
        self._entries = [*entries]
        self._may_capture = may_capture
        self._may_capture_answers = may_capture_answers
        self._most = most

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> Shape: ...
    @overload
    def __getitem__(self, index: slice) -> list[Shape]: ...
    def __getitem__(self, index: int | slice) -> Shape | list[Shape]:
        if isinstance(index, slice):
            return [self[position] for position in range(*index.indices(len(self)))]
        entry = self._entries[index]
        return {"id": entry.id, "content": {"role": entry.message.role, "parts": self._parts(entry.message)}}

    def _parts(self, message: Message) -> list[Shape]:
        if isinstance(message, ToolMessage):
            return [_result(result, self._may_capture) for result in message.results]
        if isinstance(message, SystemMessage):
            return [_text(message.text)]
        parts: Iterable[object] = message.parts
        if isinstance(message, AssistantMessage) and not self._may_capture_answers:
            parts = message.tool_calls
        return [_part(part, self._may_capture, self._most) for part in parts]


def _spread(message: Message) -> Sequence[UserMessage | AssistantMessage | ToolResultPart]:
    if isinstance(message, SystemMessage):
        return ()
    return message.results if isinstance(message, ToolMessage) else (message,)


def output_messages(answer: ModelOutput, may_capture: MayCapture, conventions: Conventions) -> list[Shape]:
    """Return an answer: one message, as there is one choice."""
    message = answer.message
    shape: Shape = {"role": message.role, "parts": [_part(part, may_capture) for part in message.parts]}
    return [shape if conventions == "v0.1.0" else {**shape, "finish_reason": answer.finish_reason or "stop"}]


def system_instructions(messages: Iterable[Message]) -> list[Shape]:
    """Return what stands above a conversation."""
    return [_text(message.text) for message in messages if isinstance(message, SystemMessage)]


class ToolDefinitions(RepeatedList):
    """The tool definitions that a model is sent.

    Args:
        tools: the definitions.
        content: what may be captured.
    """

    def __init__(self, tools: Sequence[ToolDefinition], content: RunContent) -> None:
        super().__init__(names.TOOL_DEFINITIONS, content)
        self._tools = tools

    def __iter__(self) -> Iterator[Shape]:
        return (deepcopy(_definition(tool)) for tool in self._tools)  # a redactor may change what it gets

    def newest_first(self, most: int) -> Iterator[Item]:
        """Yield the definitions, the last one first."""
        return (self._item(tool, _definition, most) for tool in reversed(self._tools))


def _definition(tool: ToolDefinition, _: bool = True) -> Shape:
    return {"type": "function", "name": tool.name, "description": tool.description, "parameters": tool.input_schema}


def from_json(text: str) -> object:
    """Return the value that a JSON text stands for; a text stands for itself if it is no JSON, or very long."""
    if len(text) > _LONGEST_JSON:
        return text
    try:
        value = json.loads(text, parse_constant=_no_number)
        is_exact = isinstance(value, dict | list) or json.dumps(value, ensure_ascii=False) == text
        return value if is_exact else text
    except (ValueError, RecursionError):
        return text


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _part(part: object, may_capture: MayCapture, most: int = 2**31) -> Shape:
    if isinstance(part, TextPart):
        return _text(part.text)
    if isinstance(part, ReasoningPart):
        return {"type": "reasoning", "content": part.text}
    if isinstance(part, ToolCall):
        return _call(part, may_capture)
    if isinstance(part, ImagePart):
        return _image(part, most)
    return {"type": "generic"}  # only its provider understands it


def _text(text: str) -> Shape:
    return {"type": "text", "content": text}


def _call(call: ToolCall, may_capture: MayCapture) -> Shape:
    shape = {"type": "tool_call", "id": call.id, "name": call.name}
    return {**shape, "arguments": from_json(call.arguments)} if may_capture(call.name) else shape


def _result(result: ToolResultPart, may_capture: MayCapture) -> Shape:
    response = from_json(result.content) if may_capture(result.name) else None
    return {"type": "tool_call_response", "id": result.call_id, "response": response}


def _image(image: ImagePart, most: int) -> Shape:
    if image.data is None:
        return {"type": "uri", "modality": "image", "uri": image.url}
    content = base64.b64encode(image.data[:most]).decode()
    return {"type": "blob", "modality": "image", "mime_type": image.media_type, "content": content}
