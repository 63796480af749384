"""Messages, answers and tools of the OpenAI Agents SDK as those of this package."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from agents import Handoff, ModelResponse, ModelSettings, Tool, TResponseInputItem
from agents.items import TResponseStreamEvent
from agents.tool import FunctionTool
from openai.types.responses import (
    Response,
    ResponseFunctionCallArgumentsDeltaEvent,
    ResponseFunctionToolCall,
    ResponseOutputItemAddedEvent,
    ResponseOutputMessage,
    ResponseOutputText,
    ResponseReasoningItem,
    ResponseTextDeltaEvent,
)

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

AnswerPart = TextPart | ReasoningPart | ToolCall


def definition_of(tool: FunctionTool | Handoff[Any, Any]) -> ToolDefinition:
    """Return a tool, or a handoff, as the model sees it."""
    if isinstance(tool, Handoff):
        return ToolDefinition(
            name=tool.tool_name, description=tool.tool_description, input_schema=dict(tool.input_json_schema)
        )
    return ToolDefinition(name=tool.name, description=tool.description, input_schema=dict(tool.params_json_schema))


def metadata_of(tool: FunctionTool | Handoff[Any, Any]) -> ToolMetadata:
    """Return the server that a tool comes from, its name there, and its hints; nothing for another tool."""
    if isinstance(tool, Handoff) or tool._mcp_tool_binding is None:
        return ToolMetadata()
    server, name, *_ = tool._mcp_tool_binding
    hints = None if tool.mcp_annotations is None else tool.mcp_annotations.model_dump(by_alias=True)
    return ToolMetadata(source=server or LOCAL, own_name=name, annotations=annotations_of(hints or {}))


def offer_of(tools: Iterable[Tool], handoffs: Iterable[Handoff[Any, Any]]) -> ToolSet:
    """Return the tools and handoffs that run in this process as a model is offered them."""
    return ToolSet(
        FrameworkTool(definition_of(tool), never_run, text_of, metadata_of(tool))
        for tool in (*tools, *handoffs)
        if isinstance(tool, FunctionTool | Handoff)
    )


def options_of(settings: ModelSettings) -> ChatOptions:
    """Return how the model is asked, as far as the SDK and this package know the same options."""
    return ChatOptions(
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        parallel_tool_calls=settings.parallel_tool_calls,
        reasoning_effort=None if settings.reasoning is None else settings.reasoning.effort,
    )


def response_of(response: ModelResponse | Response, requested_model: str) -> ChatResponse:
    """Return an answer of a model. Only a streamed one names the model; others have the name of the requested one."""
    parts: list[AnswerPart] = []
    for item in response.output:
        match item:
            case ResponseOutputMessage():
                parts += [TextPart(text=part.text) for part in item.content if isinstance(part, ResponseOutputText)]
            case ResponseFunctionToolCall():
                parts.append(ToolCall(item.name, item.arguments, id=item.call_id))
            case ResponseReasoningItem():
                parts += [ReasoningPart(text=summary.text) for summary in item.summary]
    message, usage = AssistantMessage(parts), response.usage
    return ChatResponse(
        message,
        usage=Usage(
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cache_read_tokens=usage.input_tokens_details.cached_tokens or None,
            reasoning_tokens=usage.output_tokens_details.reasoning_tokens or None,
        )
        if usage is not None and usage.total_tokens
        else None,
        finish_reason="tool_call" if message.tool_calls else "stop",
        id=response.response_id if isinstance(response, ModelResponse) else response.id,
        model=(response.model if isinstance(response, Response) else requested_model) or None,
    )


def messages_of(instructions: str | None, items: str | Sequence[TResponseInputItem]) -> list[Message]:
    """Return a conversation as the model is sent it, without files."""
    conversation: list[Message] = [] if instructions is None else [SystemMessage(instructions)]
    if isinstance(items, str):
        return [*conversation, UserMessage(items)]
    answer: list[AnswerPart] = []
    results: list[ToolResultPart] = []
    tool_names: dict[str, str] = {}

    def close() -> None:
        if answer:
            conversation.append(AssistantMessage(tuple(answer)))
        if results:
            conversation.append(ToolMessage(tuple(results)))
        answer.clear()
        results.clear()

    for item in items:
        fields: Mapping[str, Any] = item
        kind, role = fields.get("type"), fields.get("role")
        if results and kind != "function_call_output":
            close()
        if kind == "function_call":
            tool_names[fields["call_id"]] = fields["name"]
            answer.append(ToolCall(fields["name"], fields["arguments"], id=fields["call_id"]))
        elif kind == "function_call_output":
            call_id, output = fields["call_id"], fields["output"]
            results.append(ToolResultPart(call_id=call_id, name=tool_names.get(call_id, ""), content=_text_in(output)))
        elif role == "assistant":
            answer.append(TextPart(text=_text_in(fields.get("content"))))
        elif role is not None:
            close()
            text = _text_in(fields.get("content"))
            conversation.append(UserMessage(text) if role == "user" else SystemMessage(text))
    close()
    return conversation


def input_of(start: object) -> list[Message]:
    """Return what a run is asked; nothing for the state of a run that goes on."""
    return messages_of(None, start) if isinstance(start, str | list) else []


def instructions_in(items: str | Sequence[TResponseInputItem]) -> list[TResponseInputItem]:
    """Return the items that are instructions, of which a digest is recorded."""
    return [] if isinstance(items, str) else [item for item in items if item.get("role") in ("system", "developer")]


def text_of(value: Any) -> str:
    """Return what the model reads of a tool's value."""
    text = getattr(value, "text", None)
    return text if isinstance(text, str) else str(value)


class EventReader:
    """Reads the events of one streamed answer as pieces of it."""

    def __init__(self) -> None:
        self._calls: dict[str, ResponseFunctionToolCall] = {}

    def __call__(self, event: TResponseStreamEvent) -> ChatChunk | None:
        """Return the piece in an event; None if there is none."""
        match event:
            case ResponseTextDeltaEvent():
                return ChatChunk(event.delta)
            case ResponseOutputItemAddedEvent(item=ResponseFunctionToolCall() as item):
                self._calls[item.id or ""] = item
            case ResponseFunctionCallArgumentsDeltaEvent() if event.item_id in self._calls:
                item = self._calls[event.item_id]
                return ChatChunk(tool_calls=(ToolCallDelta(event.output_index, item.call_id, item.name, event.delta),))
        return None


def _text_in(content: Any) -> str:
    """Return the text in the content of an item: a text, or a list of parts."""
    if isinstance(content, str) or content is None:
        return content or ""
    return "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
