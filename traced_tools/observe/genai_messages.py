"""Messages and tools in the shapes of the OpenTelemetry GenAI conventions v0.1.0.

The shapes: https://github.com/open-telemetry/semantic-conventions-genai/tree/v0.1.0/model/gen-ai (input and output
messages, system instructions, tool definitions, memory records). Those of v1.41.0 differ in one field: an output
message must have a `finish_reason`.
"""

from __future__ import annotations

import base64
import json
import marshal
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from itertools import takewhile
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, overload

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
from traced_tools.observe.truncation import Item, LongList, packed

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
        names.SYSTEM_INSTRUCTIONS: lambda: (
            SystemInstructions(above, content) if (above := system_messages(conversation.messages)) else None
        ),
        names.INPUT_MESSAGES: lambda: InputMessages(conversation.messages, content),
        names.OUTPUT_MESSAGES: lambda: (
            None if answer is None else output_messages(answer, may_capture, content.conventions)
        ),
        names.TOOL_DEFINITIONS: lambda: (
            ToolDefinitions(definitions, content) if (definitions := conversation.tools.definitions) else None
        ),
    }


class _Entry(NamedTuple):
    """What a list has of one of its sources: of a message, a result or a definition.

    Args:
        source: the source; the entry keeps it alive, so that no other one gets its id.
        may_capture_text: whether its texts may be captured.
        items: its items, encoded; none if a redactor gets the whole list.
        copy: its shapes, packed, if a redactor gets the whole list.
    """

    source: object
    may_capture_text: bool
    items: Sequence[Item] = ()
    copy: bytes | None = None


class RepeatedList(LongList):
    """A list most of which each model call of a run captures again, so that each of its items is encoded once.

    The list of a model call begins with the sources of the list before it, so it begins with their entries, too. If it
    does not, because messages were removed or replaced, it finds the entries of the others by their sources' identity.
    Entries are made from the last one on, because truncation may leave no others.

    Args:
        name: the attribute.
        sources: what the list is made of.
        content: what may be captured, which keeps the last list.
    """

    def __init__(self, name: str, sources: Sequence[Any], content: RunContent) -> None:
        self._sources = tuple(sources)
        self._entries: list[_Entry | None] = [None] * len(self._sources)
        self._entries_before: dict[int, _Entry] = {}
        self._name = name
        self._content = content
        before = content.replace_list(name, self)
        if not isinstance(before, RepeatedList):
            return
        if all(map(is_, before._sources, self._sources)):
            common = min(len(before._sources), len(self._sources))
            self._entries[:common] = before._entries[:common]
        else:
            self._entries_before = {id(entry.source): entry for entry in before._entries if entry is not None}

    def __iter__(self) -> Iterator[Shape]:
        for position, entry in enumerate(self._entries):
            source, may_capture_text, _, copy = entry or self._add(position)
            yield from self._shapes(source, may_capture_text) if copy is None else marshal.loads(copy)

    def newest_first(self, most: int) -> Iterator[Item]:
        """Yield the items, the last one first."""
        for position in range(len(self._entries) - 1, -1, -1):
            entry = self._entries[position] or self._add(position)
            yield from reversed(entry.items)

    def _add(self, position: int) -> _Entry:
        source, may_capture_text = self._sources[position], self._may_capture_text(position)
        entry = self._entries_before.get(id(source))
        if entry is None or entry.may_capture_text != may_capture_text:
            entry = self._make(source, may_capture_text)
        self._entries[position] = entry
        return entry

    def _make(self, source: Any, may_capture_text: bool) -> _Entry:
        capture, shapes = self._content.capture, self._shapes(source, may_capture_text)
        if capture.redact is not None and not capture.per_message:
            return _Entry(source, may_capture_text, copy=packed(shapes))
        items: Iterable[object] = shapes
        if capture.per_message:
            items = [item for shape in shapes for item in self._content.redacted_items(self._name, shape)]
        return _Entry(source, may_capture_text, [Item(item, capture.max_bytes) for item in items])

    @abstractmethod
    def _shapes(self, source: Any, may_capture_text: bool) -> list[Shape]:
        """Return the shapes of a source, which a redactor may change."""

    def _may_capture_text(self, position: int) -> bool:
        """Whether texts of the source at `position` may be captured."""
        return True


class InputMessages(RepeatedList):
    """A conversation without what stands above it.

    Of a batch of results each is a message of its own, since some readers see but the last one of a message. Calls and
    results that may not be captured lack their content, and so does an answer that repeats such a result.

    Args:
        messages: the conversation.
        content: what may be captured.
    """

    def __init__(self, messages: Sequence[Message], content: RunContent) -> None:
        super().__init__(names.INPUT_MESSAGES, messages, content)
        self._may_capture = content.may_capture_calls_of
        self._most = content.capture.max_bytes

    def _shapes(self, source: Message, may_capture_text: bool) -> list[Shape]:
        return [self._shape(part, may_capture_text) for part in _spread(source)]

    def _shape(self, message: UserMessage | AssistantMessage | ToolResultPart, may_capture_text: bool) -> Shape:
        if isinstance(message, ToolResultPart):
            return {"role": "tool", "parts": [_result(message, self._may_capture)]}
        parts = message.parts if may_capture_text else ()
        return {"role": message.role, "parts": [_part(part, self._may_capture, self._most) for part in parts]}

    def _may_capture_text(self, position: int) -> bool:
        message = self._sources[position]
        if not isinstance(message, AssistantMessage):
            return True
        before = (self._sources[earlier] for earlier in range(position - 1, -1, -1))
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


class SystemInstructions(RepeatedList):
    """What stands above a conversation.

    Args:
        messages: the system messages.
        content: what may be captured.
    """

    def __init__(self, messages: Sequence[SystemMessage], content: RunContent) -> None:
        super().__init__(names.SYSTEM_INSTRUCTIONS, messages, content)

    def _shapes(self, source: SystemMessage, may_capture_text: bool) -> list[Shape]:
        return [_text(source.text)]


def system_messages(messages: Iterable[Message]) -> list[SystemMessage]:
    """Return the messages that stand above a conversation."""
    return [message for message in messages if message.role == "system"]


class ToolDefinitions(RepeatedList):
    """The tool definitions that a model is sent.

    Args:
        tools: the definitions.
        content: what may be captured.
    """

    def __init__(self, tools: Sequence[ToolDefinition], content: RunContent) -> None:
        super().__init__(names.TOOL_DEFINITIONS, tools, content)
        self._redacts = content.capture.redact is not None

    def _shapes(self, source: ToolDefinition, may_capture_text: bool) -> list[Shape]:
        parameters = deepcopy(source.input_schema) if self._redacts else source.input_schema
        return [{"type": "function", "name": source.name, "description": source.description, "parameters": parameters}]


def from_json(text: str) -> object:
    """Return the value that a JSON text stands for; a text stands for itself if it is no JSON, or very long."""
    if len(text) > _LONGEST_JSON:
        return text
    try:
        value = _decode(text)
        is_exact = isinstance(value, dict | list) or _encode(value) == text
        return value if is_exact else text
    except (ValueError, RecursionError):
        return text


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


_decode = json.JSONDecoder(parse_constant=_no_number).decode
_encode = json.JSONEncoder(ensure_ascii=False).encode


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
