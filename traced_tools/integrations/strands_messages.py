"""The messages, tools and models of strands as those that a run observes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

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
from traced_tools.core.tool_definition import ToolDefinition
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.observe.manual.model_call import ManualModel

_PROVIDERS: Final = {
    "BedrockModel": "aws.bedrock",
    "GeminiModel": "gcp.gemini",
    "MistralModel": "mistral_ai",
    "OpenAIResponsesModel": "openai",
}
"""The names of providers in the conventions, by the classes of strands whose name is another."""
_FINISH_REASONS: Final = {
    "content_filtered": "content_filter",
    "end_turn": "stop",
    "guardrail_intervened": "content_filter",
    "max_tokens": "length",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
}


def model_of(model: Any) -> ManualModel:
    """Return the name and the provider of a model."""
    config = model.get_config()
    name = config.get("model_id") if isinstance(config, Mapping) else getattr(config, "model_id", None)
    kind = type(model).__name__
    return ManualModel(
        name if isinstance(name, str) else "", _PROVIDERS.get(kind) or kind.removesuffix("Model").lower()
    )


def conversation_of(system_prompt: Any, messages: Iterable[Any]) -> list[Message]:
    """Return a conversation as a run records it, with its texts, reasoning, calls and results."""
    conversation: list[Message] = []
    instructions = system_prompt if isinstance(system_prompt, str) else text_of(system_prompt or ())
    if instructions:
        conversation.append(SystemMessage(instructions))
    tools: dict[str, str] = {}
    for message in messages:
        blocks = message["content"]
        if message["role"] == "assistant":
            answer = answer_of(message)
            tools.update((str(call.id), call.name) for call in answer.tool_calls)
            conversation.append(answer)
            continue
        if results := [_result_of(block["toolResult"], tools) for block in blocks if "toolResult" in block]:
            conversation.append(ToolMessage(results))
        if (text := text_of(blocks)) or not results:
            conversation.append(UserMessage(text))
    return conversation


def text_of(blocks: Iterable[Any]) -> str:
    """Return the text of content blocks; data is written as JSON."""
    texts = []
    for block in blocks:
        if "text" in block:
            texts.append(str(block["text"]))
        elif "json" in block:
            texts.append(json.dumps(block["json"], ensure_ascii=False, default=str))
    return "\n".join(texts)


def answer_of(message: Any) -> AssistantMessage:
    """Return an answer of the model with its reasoning and its calls."""
    blocks = message["content"]
    uses = [block["toolUse"] for block in blocks if "toolUse" in block]
    thoughts = [block["reasoningContent"].get("reasoningText", {}) for block in blocks if "reasoningContent" in block]
    reasoning = "".join(thought.get("text", "") for thought in thoughts)
    return AssistantMessage(text_of(blocks), reasoning=reasoning, tool_calls=[call_of(use) for use in uses])


def call_of(use: Any) -> ToolCall:
    """Return a call as the model asks for it."""
    arguments = use["input"]
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return ToolCall(use["name"], text, use["toolUseId"])


def _result_of(result: Any, tools: Mapping[str, str]) -> ToolResultPart:
    call_id = result["toolUseId"]
    return ToolResultPart(
        call_id=call_id,
        name=tools.get(call_id, ""),
        content=text_of(result["content"]),
        is_error=result["status"] == "error",
    )


def response_of(stop: Any) -> ChatResponse:
    """Return an answer with its tokens and its finish reason."""
    usage = stop.usage
    cache_reads, cache_writes = usage.get("cacheReadInputTokens"), usage.get("cacheWriteInputTokens")
    reason = _FINISH_REASONS.get(stop.stop_reason, "other")
    return ChatResponse(
        answer_of(stop.message),
        usage=Usage(
            input_tokens=usage["inputTokens"] + (cache_reads or 0) + (cache_writes or 0),
            output_tokens=usage["outputTokens"],
            cache_read_tokens=cache_reads,
            cache_write_tokens=cache_writes,
        ),
        finish_reason=reason,
        provider_reason=str(stop.stop_reason) if reason == "other" else None,
    )


def chunk_of(chunk: Any) -> ChatChunk | None:
    """Return what observers read of a chunk of the provider's stream; None for nothing."""
    if "contentBlockStart" in chunk:
        use = chunk["contentBlockStart"].get("start", {}).get("toolUse")
        return None if use is None else ChatChunk(tool_calls=(ToolCallDelta(None, use["toolUseId"], use["name"]),))
    delta = chunk.get("contentBlockDelta", {}).get("delta", {})
    if "text" in delta:
        return ChatChunk(delta["text"])
    if "toolUse" in delta:
        return ChatChunk(tool_calls=(ToolCallDelta(arguments=delta["toolUse"].get("input") or ""),))
    return None


def definition_of(spec: Any) -> ToolDefinition:
    """Return how a model is offered a tool."""
    schema = spec["inputSchema"]
    return ToolDefinition(name=spec["name"], description=spec["description"], input_schema=schema.get("json") or schema)
