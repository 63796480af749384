"""Messages, answers and tools of pydantic-ai as those of this package."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from pydantic_ai import messages as theirs
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition as AgentTool

from traced_tools.core.enums import LOCAL
from traced_tools.core.messages import (
    AssistantMessage,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.integrations.framework_tool import FrameworkTool, annotations_of, never_run
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.tools.toolset import ToolSet

_NO_HINTS: Final = object()


def definition_of(tool: AgentTool) -> ToolDefinition:
    """Return a tool as the model sees it."""
    return ToolDefinition(
        name=tool.name, description=tool.description or "", input_schema=dict(tool.parameters_json_schema)
    )


def metadata_of(tool: AgentTool) -> ToolMetadata:
    """Return the server that a tool comes from, and its hints; nothing for a tool of another toolset."""
    hints = (tool.metadata or {}).get("annotations", _NO_HINTS)
    if hints is _NO_HINTS:
        return ToolMetadata()
    return ToolMetadata(source=tool.toolset_id or LOCAL, annotations=annotations_of(hints or {}))


def offer_of(tools: Iterable[AgentTool]) -> ToolSet:
    """Return tools as a model is offered them."""
    return ToolSet(FrameworkTool(definition_of(tool), never_run, text_of, metadata_of(tool)) for tool in tools)


def call_of(part: theirs.ToolCallPart) -> ToolCall:
    """Return a call that the model asks for."""
    return ToolCall(part.tool_name, arguments_of(part), id=part.tool_call_id)


def arguments_of(part: theirs.ToolCallPart) -> str:
    """Return the arguments of a call as the model wrote them, if the provider gives the text."""
    return part.args if isinstance(part.args, str) and part.args else part.args_as_json_str()


def options_of(settings: ModelSettings | None) -> ChatOptions:
    """Return how the model is asked, as far as pydantic-ai and this package know the same options."""
    if not settings:
        return ChatOptions()
    same = ("temperature", "top_p", "max_tokens", "seed", "parallel_tool_calls")
    options: dict[str, Any] = {name: settings.get(name) for name in same}
    return ChatOptions(**options, stop=tuple(settings.get("stop_sequences") or ()) or None)


def response_of(response: theirs.ModelResponse, parameters: ModelRequestParameters) -> ChatResponse:
    """Return an answer; the call of an output tool is the text of the answer."""
    usage = response.usage
    return ChatResponse(
        _answer_of(response, _output_names(parameters)),
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.cache_read_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            reasoning_tokens=usage.details.get("reasoning_tokens"),
        )
        if usage.has_values()
        else None,
        finish_reason=response.finish_reason,
        id=response.provider_response_id,
        model=response.model_name,
    )


def messages_of(messages: Sequence[theirs.ModelMessage], parameters: ModelRequestParameters) -> list[Message]:
    """Return a conversation as the model is sent it, without files."""
    outputs = _output_names(parameters)
    conversation: list[Message] = []
    if instructions := _instructions(messages, parameters):
        conversation.append(SystemMessage(instructions))
    for message in messages:
        if isinstance(message, theirs.ModelResponse):
            conversation.append(_answer_of(message, outputs))
        else:
            conversation += _request_messages(message, outputs)
    return conversation


def input_of(
    history: Sequence[theirs.ModelMessage], prompt: str | Sequence[theirs.UserContent] | None
) -> list[Message]:
    """Return what a run is asked."""
    conversation = messages_of(history, ModelRequestParameters())
    return conversation if prompt is None else [*conversation, _user_message(prompt)]


def text_of(value: Any) -> str:
    """Return what the model reads of a tool's value."""
    content = value.return_value if isinstance(value, theirs.ToolReturn) else value
    return theirs.ToolReturnPart(tool_name="", content=content).model_response_str()


class PieceReader:
    """Reads the events of one streamed answer as pieces of it."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[str, str]] = {}

    def __call__(self, event: theirs.ModelResponseStreamEvent) -> ChatChunk | None:
        """Return the piece in an event; None if there is none."""
        match event:
            case theirs.PartStartEvent(part=theirs.TextPart(content=text)):
                return ChatChunk(text)
            case theirs.PartDeltaEvent(delta=theirs.TextPartDelta(content_delta=text)):
                return ChatChunk(text)
            case theirs.PartStartEvent(index=index, part=theirs.ToolCallPart() as part):
                self._calls[index] = part.tool_name, part.tool_call_id
                return self._piece(index, arguments_of(part) if part.args else "")
            case theirs.PartDeltaEvent(index=index, delta=theirs.ToolCallPartDelta(args_delta=str(arguments))):
                return self._piece(index, arguments)
        return None

    def _piece(self, index: int, arguments: str) -> ChatChunk | None:
        if not arguments or index not in self._calls:
            return None
        name, call_id = self._calls[index]
        return ChatChunk(tool_calls=(ToolCallDelta(index, call_id, name, arguments),))


def _output_names(parameters: ModelRequestParameters) -> Collection[str]:
    return {tool.name for tool in parameters.output_tools}


def _instructions(messages: Sequence[theirs.ModelMessage], parameters: ModelRequestParameters) -> str | None:
    if parameters.instruction_parts:
        return theirs.InstructionPart.join(parameters.instruction_parts)
    requests = [message for message in messages if isinstance(message, theirs.ModelRequest)]
    return next((request.instructions for request in reversed(requests) if request.instructions), None)


def _answer_of(response: theirs.ModelResponse, outputs: Collection[str]) -> AssistantMessage:
    parts: list[TextPart | ReasoningPart | ToolCall] = []
    for part in response.parts:
        match part:
            case theirs.ToolCallPart() if part.tool_name in outputs:
                parts.append(TextPart(text=arguments_of(part)))
            case theirs.ToolCallPart():
                parts.append(call_of(part))
            case theirs.TextPart(content=str(text)) if text:
                parts.append(TextPart(text=text))
            case theirs.ThinkingPart(content=str(text)) if text:
                parts.append(ReasoningPart(text=text))
    return AssistantMessage(parts)


def _request_messages(request: theirs.ModelRequest, outputs: Collection[str]) -> list[Message]:
    messages: list[Message] = []
    results: list[ToolResultPart] = []
    for part in request.parts:
        match part:
            case theirs.SystemPromptPart(content=text):
                messages.append(SystemMessage(text))
            case theirs.UserPromptPart(content=content):
                messages.append(_user_message(content))
            case theirs.ToolReturnPart() if part.tool_name not in outputs:
                results.append(_result_of(part))
            case theirs.RetryFeedbackPart():
                messages.append(UserMessage(part.model_response()))
    return [ToolMessage(results), *messages] if results else messages


def _user_message(content: str | Sequence[theirs.UserContent]) -> UserMessage:
    pieces = [content] if isinstance(content, str) else content
    return UserMessage("\n".join(piece for piece in pieces if isinstance(piece, str)))


def _result_of(part: theirs.ToolReturnPart) -> ToolResultPart:
    return ToolResultPart(
        call_id=part.tool_call_id,
        name=part.tool_name,
        content=part.model_response_str(wrap_if_error=False),
        is_error=part.outcome in ("failed", "retried", "denied"),
    )
