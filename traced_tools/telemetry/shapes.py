"""Messages and tools in the shapes of the OpenTelemetry GenAI conventions.

The shapes: https://github.com/open-telemetry/semantic-conventions-genai/tree/main/docs/gen-ai (input and output
messages, system instructions, tool definitions).
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from traced_tools.messages import (
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
from traced_tools.telemetry import names

if TYPE_CHECKING:
    from traced_tools.telemetry.content import Makers
    from traced_tools.tools.definition import ToolDefinition
    from traced_tools.tools.toolset import ToolSet


class Question(Protocol):
    """What is asked: of a model in one pass, or of an agent."""

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation."""

    @property
    def tools(self) -> ToolSet:
        """The tools that may be called."""


class Answer(Protocol):
    """What is answered."""

    @property
    def message(self) -> AssistantMessage:
        """The words, calls and thoughts."""

    @property
    def finish_reason(self) -> str | None:
        """Why the model stopped."""


Shape = dict[str, Any]
MayTell = Callable[[str], bool]
"""Whether arguments and results of the tool of that name may be told."""


def conversation_makers(asked: Question, answer: Answer | None, may_tell: MayTell) -> Makers:
    """Return what makes the contents of an exchange; what nobody asks for is not made."""
    return {
        names.SYSTEM_INSTRUCTIONS: lambda: system_instructions(asked.messages) or None,
        names.INPUT_MESSAGES: lambda: input_messages(asked.messages, may_tell),
        names.OUTPUT_MESSAGES: lambda: (
            None if answer is None else output_messages(answer.message, answer.finish_reason, may_tell)
        ),
        names.TOOL_DEFINITIONS: lambda: tool_definitions(asked.tools.definitions) or None,
    }


def input_messages(messages: Iterable[Message], may_tell: MayTell) -> list[Shape]:
    """Return a conversation without what stands above it; calls and results that may not be told lack their content."""
    return [shape for each in messages for shape in _shapes(each, may_tell)]


def output_messages(message: AssistantMessage, finish_reason: str | None, may_tell: MayTell) -> list[Shape]:
    """Return an answer: one message, as there is one choice."""
    return [{**_message(message, may_tell), "finish_reason": finish_reason or "stop"}]


def system_instructions(messages: Iterable[Message]) -> list[Shape]:
    """Return what stands above a conversation."""
    return [_text(each.text) for each in messages if isinstance(each, SystemMessage)]


def tool_definitions(tools: Iterable[ToolDefinition]) -> list[Shape]:
    """Return what a model is told of its tools."""
    return [
        {"type": "function", "name": each.name, "description": each.description, "parameters": each.input_schema}
        for each in tools
    ]


def from_json(text: str) -> object:
    """Return the value that a JSON text stands for; a text that is no JSON stands for itself."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is no JSON")


def _shapes(message: Message, may_tell: MayTell) -> list[Shape]:
    """Return a message as one or more; of a batch of results, some readers see but the last one of a message."""
    if isinstance(message, SystemMessage):
        return []
    if isinstance(message, ToolMessage):
        return [{"role": message.role, "parts": [_result(each, may_tell)]} for each in message.results]
    return [_message(message, may_tell)]


def _message(message: UserMessage | AssistantMessage, may_tell: MayTell) -> Shape:
    return {"role": message.role, "parts": [_part(each, may_tell) for each in message.parts]}


def _part(part: object, may_tell: MayTell) -> Shape:
    if isinstance(part, TextPart):
        return _text(part.text)
    if isinstance(part, ReasoningPart):
        return {"type": "reasoning", "content": part.text}
    if isinstance(part, ToolCall):
        return _call(part, may_tell)
    if isinstance(part, ImagePart):
        return _image(part)
    return {"type": "provider"}  # understood by its provider alone


def _text(text: str) -> Shape:
    return {"type": "text", "content": text}


def _call(call: ToolCall, may_tell: MayTell) -> Shape:
    shape = {"type": "tool_call", "id": call.id, "name": call.name}
    return {**shape, "arguments": from_json(call.arguments)} if may_tell(call.name) else shape


def _result(result: ToolResultPart, may_tell: MayTell) -> Shape:
    response = from_json(result.content) if may_tell(result.name) else None
    return {"type": "tool_call_response", "id": result.call_id, "response": response}


def _image(image: ImagePart) -> Shape:
    if image.data is None:
        return {"type": "uri", "modality": "image", "uri": image.url}
    content = base64.b64encode(image.data).decode()
    return {"type": "blob", "modality": "image", "mime_type": image.media_type, "content": content}
