"""The messages, tools and models of LangChain as those that a run observes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from langchain.agents.middleware import ModelRequest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages import SystemMessage as LangChainSystemMessage
from langchain_core.messages import ToolMessage as LangChainToolMessage
from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel

from traced_tools.core.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    ToolResultPart,
    Usage,
    UserMessage,
)
from traced_tools.core.options import ChatOptions
from traced_tools.core.tool_definition import ToolDefinition, remember_reader
from traced_tools.integrations.model_arguments import ModelArguments
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.observe.manual.model_call import ManualModel

_PROVIDERS: Final = {
    "amazon_bedrock": "aws.bedrock",
    "anthropic_bedrock": "aws.bedrock",
    "azure": "azure.ai.openai",
    "google_genai": "gcp.gemini",
    "google_vertexai": "gcp.vertex_ai",
    "ibm": "ibm.watsonx.ai",
    "mistral": "mistral_ai",
    "xai": "x_ai",
}
"""The names of providers in the conventions, by LangChain's if they differ."""
_FINISH_REASONS: Final = {
    "completed": "stop",
    "content_filter": "content_filter",
    "end_turn": "stop",
    "function_call": "tool_call",
    "length": "length",
    "max_tokens": "length",
    "refusal": "content_filter",
    "safety": "content_filter",
    "stop": "stop",
    "stop_sequence": "stop",
    "tool_calls": "tool_call",
    "tool_use": "tool_call",
}
"""The finish reasons of providers in lower case, as LangChain passes them on."""
_OWN_IDS: Final = ("lc_", "run-")
"""What ids begin with that LangChain gives to messages."""


def model_of(model: BaseChatModel) -> ManualModel:
    """Return the name and the provider of a model."""
    facts = _facts_of(model)
    provider = str(facts.get("ls_provider") or "")
    name = facts.get("ls_model_name") or getattr(model, "model_name", None) or getattr(model, "model", None)
    return ManualModel(name if isinstance(name, str) else "", _PROVIDERS.get(provider, provider))


def options_of(request: ModelRequest[Any]) -> ChatOptions:
    """Return the options of a request: those of the model, which the settings of the request override."""
    facts, settings = _facts_of(request.model), request.model_settings
    options: dict[str, Any] = {}
    temperature = settings.get("temperature", facts.get("ls_temperature"))
    if isinstance(temperature, int | float):
        options["temperature"] = temperature
    max_tokens = settings.get("max_tokens", facts.get("ls_max_tokens"))
    if isinstance(max_tokens, int) and max_tokens > 0:
        options["max_tokens"] = max_tokens
    if isinstance(request.tool_choice, str):
        options["tool_choice"] = request.tool_choice
    return ChatOptions(**options)


def _facts_of(model: BaseChatModel) -> Mapping[str, Any]:
    """Return what a model reports of itself to tracers; nothing if it is of a class that can't."""
    try:
        return {**model._get_ls_params()}
    except Exception:
        return {}


def messages_of(messages: Iterable[BaseMessage]) -> list[Message]:
    """Return a conversation as a run records it; contents other than texts and calls are omitted."""
    conversation: list[Message] = []
    results: list[ToolResultPart] = []
    for message in messages:
        if isinstance(message, LangChainToolMessage):
            results.append(_result_of(message))
            continue
        if results:
            conversation.append(ToolMessage(results))
            results = []
        if isinstance(message, AIMessage):
            conversation.append(_answer_of(message))
        elif isinstance(message, LangChainSystemMessage):
            conversation.append(SystemMessage(text_of(message)))
        elif isinstance(message, HumanMessage):
            conversation.append(UserMessage(text_of(message)))
    return [*conversation, ToolMessage(results)] if results else conversation


def text_of(message: BaseMessage) -> str:
    """Return the text of a message."""
    return str(message.text)


def _result_of(message: LangChainToolMessage) -> ToolResultPart:
    return ToolResultPart(
        call_id=message.tool_call_id,
        name=message.name or "",
        content=text_of(message),
        is_error=message.status == "error",
    )


def _answer_of(message: AIMessage) -> AssistantMessage:
    """Return an answer with its reasoning, and its calls, also those whose arguments are no JSON."""
    calls = [ToolCall(call["name"], call["args"], call["id"]) for call in message.tool_calls]
    calls += [
        ToolCall(call["name"] or "", call["args"] or "", call["id"])
        for call in message.invalid_tool_calls
        if isinstance(call["args"], str | None)
    ]
    reasoning = ""
    if isinstance(message.content, list):
        blocks = (block for block in message.content_blocks if block["type"] == "reasoning")
        reasoning = "".join(str(block.get("reasoning") or "") for block in blocks)
    return AssistantMessage(text_of(message), reasoning=reasoning, tool_calls=calls)


def response_of(message: AIMessage) -> ChatResponse:
    """Return an answer with its tokens, its finish reason, the provider's id and the model that answered."""
    metadata = message.response_metadata
    native = str(metadata.get("finish_reason") or metadata.get("stop_reason") or metadata.get("done_reason") or "")
    reason = (_FINISH_REASONS.get(native.lower()) or "other") if native else None
    model = metadata.get("model_name") or metadata.get("model")
    answer_id = metadata.get("id") or message.id
    return ChatResponse(
        _answer_of(message),
        usage=_usage_of(message),
        finish_reason=reason,
        id=None if not isinstance(answer_id, str) or answer_id.startswith(_OWN_IDS) else answer_id,
        model=model if isinstance(model, str) else None,
        provider_reason=native if reason == "other" else None,
    )


def _usage_of(message: AIMessage) -> Usage | None:
    usage = message.usage_metadata
    if usage is None:
        return None
    inputs, outputs = usage.get("input_token_details", {}), usage.get("output_token_details", {})
    return Usage(
        input_tokens=usage["input_tokens"],
        output_tokens=usage["output_tokens"],
        cache_read_tokens=inputs.get("cache_read"),
        cache_write_tokens=inputs.get("cache_creation"),
        reasoning_tokens=outputs.get("reasoning"),
    )


def chunk_of(chunk: object, text: object) -> ChatChunk:
    """Return what observers read of a piece of an answer, whose text may be in several blocks."""
    message = getattr(chunk, "message", None)
    if not isinstance(message, AIMessageChunk):
        return ChatChunk(text if isinstance(text, str) else "")
    calls = [
        ToolCallDelta(piece["index"], piece["id"], piece["name"], piece["args"] or "")
        for piece in message.tool_call_chunks
        if isinstance(piece["index"], int | None)
    ]
    return ChatChunk(text_of(message), tool_calls=tuple(calls))


def definition_of(tool: BaseTool) -> ToolDefinition:
    """Return how a model is offered a tool."""
    function = convert_to_openai_tool(tool)["function"]
    definition = ToolDefinition(
        name=tool.name,
        description=function.get("description") or "",
        input_schema=function.get("parameters") or {"type": "object", "properties": {}},
    )
    model = tool.tool_call_schema
    if tool.args_schema is not None and isinstance(model, type) and issubclass(model, BaseModel):
        remember_reader(definition, ModelArguments(model))
    return definition
