"""Encodes a conversation as messages of chat completions, with the deviations of individual servers.

Reasoning and opaque parts are sent back only to servers whose documentation asks for them, because many servers refuse
a request with an unknown field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby, pairwise
from typing import Any

from traced_tools.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    ProviderPart,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from traced_tools.errors import ConfigurationError
from traced_tools.models.encoding import may_send_signed_parts, signature_fields
from traced_tools.models.openai.common import arguments_to_input, encode_arguments, is_custom_call, to_image_url
from traced_tools.models.openai.servers import Server


class MessageEncoder:
    """Encodes conversations in the format of most servers.

    Format: https://platform.openai.com/docs/api-reference/chat/create#chat-create-messages.

    Args:
        provider: the provider that gets the messages; parts signed by other providers are omitted.
        reasoning_field: the field of an answer in which its reasoning is sent back; None to omit reasoning.

    Raises:
        ConfigurationError: if `reasoning_field` is set for a server to which reasoning is always sent.
    """

    always_sends_reasoning = False
    """Whether reasoning is sent back to the server without a `reasoning_field`."""

    def __init__(self, provider: str, reasoning_field: str | None = None) -> None:
        if self.always_sends_reasoning and reasoning_field is not None:
            raise ConfigurationError(f"{provider} always gets reasoning back, in its own field: omit reasoning_field")
        self._provider = provider
        self._reasoning_field = reasoning_field

    def encode(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send. A result can't contain images, so they follow the results as user content."""
        wire_messages: list[dict[str, Any]] = []
        for _, group in groupby(conversation, key=type):
            alike = list(group)
            wire_messages += [wire_message for message in alike for wire_message in self._encode_message(message)]
            batches = [message for message in alike if isinstance(message, ToolMessage)]
            if images := [part for batch in batches for part in self._encode_images(batch)]:
                wire_messages.append({"role": "user", "content": images})
        return wire_messages

    def encode_answer(self, message: AssistantMessage) -> dict[str, Any]:
        """Return an earlier answer: its text, its calls, and its reasoning if there is a `reasoning_field`."""
        is_own = may_send_signed_parts(message, self._provider)
        calls = [self._encode_call(call, is_own) for call in message.tool_calls]
        wire_message: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else "")}
        if self._reasoning_field is not None and is_own and message.reasoning:
            wire_message[self._reasoning_field] = message.reasoning
        return {**wire_message, "tool_calls": calls} if calls else wire_message

    def call_id(self, call_id: str) -> str:
        """Return the id to send for a call with the id `call_id`."""
        return call_id

    def _encode_message(self, message: Message) -> Iterator[dict[str, Any]]:
        match message:
            case SystemMessage():
                yield {"role": "system", "content": message.text}
            case UserMessage():
                yield {"role": "user", "content": _encode_user_content(message)}
            case AssistantMessage():
                yield self.encode_answer(message)
            case ToolMessage():
                for result in message.results:
                    yield {"role": "tool", "tool_call_id": self.call_id(result.call_id), "content": result.content}

    def _encode_call(self, call: ToolCall, is_own: bool) -> dict[str, Any]:
        """Return a call, including the fields in its signature if this server set that."""
        signed = signature_fields(call.signature) if call.signature and is_own else {}
        wire_call: dict[str, Any] = {"id": self.call_id(call.id or "")}
        if is_custom_call(signed):
            wire_call |= {"type": "custom", "custom": {"name": call.name, "input": arguments_to_input(call)}}
        else:
            wire_call |= {"type": "function", "function": {"name": call.name, "arguments": encode_arguments(call)}}
        if "extra_content" in signed:
            wire_call["extra_content"] = signed["extra_content"]
        return wire_call

    def _encode_images(self, message: ToolMessage) -> Iterator[dict[str, Any]]:
        for result in message.results:
            if result.images:
                yield _encode_text(f"Images returned by the tool call {self.call_id(result.call_id)}:")
                yield from map(_encode_image, result.images)


class DeepSeekMessageEncoder(MessageEncoder):
    """For DeepSeek: after a tool call, its thinking mode refuses earlier answers that lack their reasoning.

    For answers of another model, it accepts empty reasoning. https://api-docs.deepseek.com/guides/thinking_mode
    """

    always_sends_reasoning = True

    def encode_answer(self, message: AssistantMessage) -> dict[str, Any]:
        """Return an earlier answer with its reasoning."""
        reasoning = message.reasoning if may_send_signed_parts(message, self._provider) else ""
        return {**super().encode_answer(message), "reasoning_content": reasoning}


class OpenRouterMessageEncoder(MessageEncoder):
    """For OpenRouter, whose `reasoning_details` contain what the provider behind it requires to be sent back.

    https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#preserving-reasoning
    """

    def encode_answer(self, message: AssistantMessage) -> dict[str, Any]:
        """Return an earlier answer with the details of its reasoning."""
        wire_message = super().encode_answer(message)
        records = [json.loads(part.data) for part in message.parts if isinstance(part, ProviderPart)]
        # opaque parts of OpenRouter's Responses API have other types and don't belong here
        details = [detail for detail in records if str(detail.get("type")).startswith("reasoning.")]
        if not details or not may_send_signed_parts(message, self._provider):
            return wire_message
        return {**wire_message, "reasoning_details": details}


class MistralMessageEncoder(MessageEncoder):
    """For Mistral: reasoning and references are items of the content, ids are short, and the order is restricted.

    Instructions must come first, an answer must not be empty, and a user message must not follow a tool result.

    https://docs.mistral.ai/capabilities/reasoning and https://docs.mistral.ai/capabilities/function_calling
    """

    always_sends_reasoning = True

    def encode(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send, with a short answer between a result and a user message that follows it."""
        wire_messages = list(filter(_is_accepted, super().encode(_instructions_first(conversation))))
        bridged = wire_messages[:1]
        for before, after in pairwise(wire_messages):
            if (before["role"], after["role"]) == ("tool", "user"):
                bridged.append({"role": "assistant", "content": "OK"})
            bridged.append(after)
        return bridged

    def encode_answer(self, message: AssistantMessage) -> dict[str, Any]:
        """Return an earlier answer with its reasoning and references in their positions."""
        wire_message = super().encode_answer(message)
        has_more = any(isinstance(part, ReasoningPart | ProviderPart) for part in message.parts)
        if not has_more or not may_send_signed_parts(message, self._provider):
            return wire_message
        return {**wire_message, "content": list(_encode_mistral_content(message))}

    def call_id(self, call_id: str) -> str:
        """Return `call_id` if it is a valid Mistral id (nine letters and digits), else a hash of it that is valid."""
        return call_id if _MISTRAL_ID.fullmatch(call_id) else sha256(call_id.encode()).hexdigest()[:9]


class PerplexityMessageEncoder(MessageEncoder):
    """For Perplexity: instructions must come first, and then user and assistant messages must alternate.

    https://docs.perplexity.ai/api-reference/chat-completions-post
    """

    def encode(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send; consecutive messages of one role are joined."""
        merged_messages: list[dict[str, Any]] = []
        for message in super().encode(_instructions_first(conversation)):
            if merged_messages and _is_continuation(merged_messages[-1], message):
                merged_messages[-1] = {
                    **message,
                    "content": _join_contents(merged_messages[-1]["content"], message["content"]),
                }
            else:
                merged_messages.append(message)
        return merged_messages


_ENCODERS = {
    "deepseek": DeepSeekMessageEncoder,
    "mistral_ai": MistralMessageEncoder,
    "openrouter": OpenRouterMessageEncoder,
    "perplexity": PerplexityMessageEncoder,
}


def create_message_encoder(server: Server, provider: str, reasoning_field: str | None = None) -> MessageEncoder:
    """Return the encoder for `server`; see `MessageEncoder` for the other arguments."""
    return _ENCODERS.get(server.provider, MessageEncoder)(provider, reasoning_field)


_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def _instructions_first(conversation: Iterable[Message]) -> list[Message]:
    return sorted(conversation, key=lambda message: not isinstance(message, SystemMessage))


def _is_continuation(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether both messages have the same role, other than system, and only text or images as content."""
    return before.keys() == after.keys() == {"role", "content"} and before["role"] == after["role"] != "system"


def _join_contents(before: Any, after: Any) -> str | list[dict[str, Any]]:
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    return [*_as_list(before), *_as_list(after)]


def _as_list(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_encode_text(content)] if isinstance(content, str) else content


def _is_accepted(message: dict[str, Any]) -> bool:
    """Return whether Mistral accepts a message: it refuses empty answers."""
    return message["role"] != "assistant" or bool(message["content"] or "tool_calls" in message)


def _encode_mistral_content(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        match part:
            case TextPart():
                yield _encode_text(part.text)
            case ReasoningPart(text=str(text)) if text:
                yield {"type": "thinking", "thinking": [_encode_text(text)]}
            case ProviderPart():
                yield json.loads(part.data)


def _encode_user_content(message: UserMessage) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    return [_encode_image(part) if isinstance(part, ImagePart) else _encode_text(part.text) for part in message.parts]


def _encode_text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _encode_image(part: ImagePart) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": to_image_url(part)}}
