"""A conversation as servers of chat completions read it, and what single servers want differently.

Reasoning, and parts that only their provider understands, go back to the servers whose documentation asks for them and
to no other: many refuse a request that holds a field they do not know.
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
from traced_tools.models.openai.common import arguments_text, custom_input, image_url, is_custom
from traced_tools.models.openai.servers import Server


class Messages:
    """Writes conversations as most servers read them.

    Format: https://platform.openai.com/docs/api-reference/chat/create#chat-create-messages.

    Args:
        provider: who reads them; what another provider sealed is left out.
        reasoning_field: the field of an answer in which its reasoning goes back; None to leave reasoning out.

    Raises:
        ConfigurationError: for a `reasoning_field` if the server gets reasoning in a place of its own.
    """

    has_own_place = False
    """Whether reasoning goes back to the server without a `reasoning_field`."""

    def __init__(self, provider: str, reasoning_field: str | None = None) -> None:
        if self.has_own_place and reasoning_field is not None:
            raise ConfigurationError(f"{provider} gets reasoning back in a place of its own: leave out reasoning_field")
        self._provider = provider
        self._reasoning_field = reasoning_field

    def of(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send. A result is text only, so a batch's images follow it as the user's."""
        found: list[dict[str, Any]] = []
        for _, group in groupby(conversation, key=type):
            alike = list(group)
            found += [each for message in alike for each in self._of_one(message)]
            batches = [message for message in alike if isinstance(message, ToolMessage)]
            if images := [part for batch in batches for part in self._images(batch)]:
                found.append({"role": "user", "content": images})
        return found

    def assistant(self, message: AssistantMessage) -> dict[str, Any]:
        """Return what the model said: its text, its calls, and its reasoning if the caller asks for that."""
        is_own = may_send_signed_parts(message, self._provider)
        calls = [self._call(call, is_own) for call in message.tool_calls]
        said: dict[str, Any] = {"role": "assistant", "content": message.text or (None if calls else "")}
        if self._reasoning_field is not None and is_own and message.reasoning:
            said[self._reasoning_field] = message.reasoning
        return {**said, "tool_calls": calls} if calls else said

    def call_id(self, given: str) -> str:
        """Return the id that a call goes by."""
        return given

    def _of_one(self, message: Message) -> Iterator[dict[str, Any]]:
        match message:
            case SystemMessage():
                yield {"role": "system", "content": message.text}
            case UserMessage():
                yield {"role": "user", "content": _user_content(message)}
            case AssistantMessage():
                yield self.assistant(message)
            case ToolMessage():
                for result in message.results:
                    yield {"role": "tool", "tool_call_id": self.call_id(result.call_id), "content": result.content}

    def _call(self, call: ToolCall, is_own: bool) -> dict[str, Any]:
        """Return a call, and what is in its signature if that is the server's own."""
        signed = signature_fields(call.signature) if call.signature and is_own else {}
        sent: dict[str, Any] = {"id": self.call_id(call.id or "")}
        if is_custom(signed):
            sent |= {"type": "custom", "custom": {"name": call.name, "input": custom_input(call)}}
        else:
            sent |= {"type": "function", "function": {"name": call.name, "arguments": arguments_text(call)}}
        if "extra_content" in signed:
            sent["extra_content"] = signed["extra_content"]
        return sent

    def _images(self, message: ToolMessage) -> Iterator[dict[str, Any]]:
        for result in message.results:
            if result.images:
                yield _text(f"Images returned by the tool call {self.call_id(result.call_id)}:")
                yield from map(_image, result.images)


class DeepSeekMessages(Messages):
    """For DeepSeek: once tools were called, thinking mode refuses answers that come back without their reasoning.

    An empty one will do, for messages of another model. https://api-docs.deepseek.com/guides/thinking_mode
    """

    has_own_place = True

    def assistant(self, message: AssistantMessage) -> dict[str, Any]:
        """Return what the model said, with its reasoning."""
        reasoning = message.reasoning if may_send_signed_parts(message, self._provider) else ""
        return {**super().assistant(message), "reasoning_content": reasoning}


class OpenRouterMessages(Messages):
    """For OpenRouter, whose `reasoning_details` hold what the provider behind it wants back.

    https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#preserving-reasoning
    """

    def assistant(self, message: AssistantMessage) -> dict[str, Any]:
        """Return what the model said, with the details of its reasoning."""
        said = super().assistant(message)
        records = [json.loads(part.data) for part in message.parts if isinstance(part, ProviderPart)]
        # its Responses API has records of its own, which are none here
        details = [each for each in records if str(each.get("type")).startswith("reasoning.")]
        if not details or not may_send_signed_parts(message, self._provider):
            return said
        return {**said, "reasoning_details": details}


class MistralMessages(Messages):
    """For Mistral: reasoning and references stand in the content, ids are short, and there is an order to keep.

    Instructions come first, an answer says something, and the user never follows a result.

    https://docs.mistral.ai/capabilities/reasoning and https://docs.mistral.ai/capabilities/function_calling
    """

    has_own_place = True

    def of(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send, with a word of the model's between a result and what the user says next."""
        found = list(filter(_is_taken, super().of(_instructions_first(conversation))))
        bridged = found[:1]
        for before, after in pairwise(found):
            if (before["role"], after["role"]) == ("tool", "user"):
                bridged.append({"role": "assistant", "content": "OK"})
            bridged.append(after)
        return bridged

    def assistant(self, message: AssistantMessage) -> dict[str, Any]:
        """Return what the model said, with its reasoning and references at their places."""
        said = super().assistant(message)
        has_more = any(isinstance(part, ReasoningPart | ProviderPart) for part in message.parts)
        if not has_more or not may_send_signed_parts(message, self._provider):
            return said
        return {**said, "content": list(_chunks(message))}

    def call_id(self, given: str) -> str:
        """Return the id if it is one of Mistral's, nine letters and digits, else one made of it."""
        return given if _MISTRAL_ID.fullmatch(given) else sha256(given.encode()).hexdigest()[:9]


class PerplexityMessages(Messages):
    """For Perplexity: instructions come first, and then user and model take turns.

    https://docs.perplexity.ai/api-reference/chat-completions-post
    """

    def of(self, conversation: Iterable[Message]) -> list[dict[str, Any]]:
        """Return the messages to send, with what one of the two says at a stretch in one message."""
        found: list[dict[str, Any]] = []
        for message in super().of(_instructions_first(conversation)):
            if found and _say_more(found[-1], message):
                found[-1] = {**message, "content": _joined(found[-1]["content"], message["content"])}
            else:
                found.append(message)
        return found


_KINDS = {
    "deepseek": DeepSeekMessages,
    "mistral_ai": MistralMessages,
    "openrouter": OpenRouterMessages,
    "perplexity": PerplexityMessages,
}


def messages_for(server: Server, provider: str, reasoning_field: str | None = None) -> Messages:
    """Return what writes conversations for `server`; see `Messages` for the other arguments."""
    return _KINDS.get(server.provider, Messages)(provider, reasoning_field)


_MISTRAL_ID = re.compile(r"[a-zA-Z0-9]{9}")


def _instructions_first(conversation: Iterable[Message]) -> list[Message]:
    return sorted(conversation, key=lambda message: not isinstance(message, SystemMessage))


def _say_more(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Return whether a message only goes on with what its speaker said before."""
    return before.keys() == after.keys() == {"role", "content"} and before["role"] == after["role"] != "system"


def _joined(before: Any, after: Any) -> str | list[dict[str, Any]]:
    if isinstance(before, str) and isinstance(after, str):
        return f"{before}\n\n{after}"
    return [*_pieces(before), *_pieces(after)]


def _pieces(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_text(content)] if isinstance(content, str) else content


def _is_taken(message: dict[str, Any]) -> bool:
    """Return whether Mistral takes a message: it refuses answers that say nothing."""
    return message["role"] != "assistant" or bool(message["content"] or "tool_calls" in message)


def _chunks(message: AssistantMessage) -> Iterator[dict[str, Any]]:
    for part in message.parts:
        match part:
            case TextPart():
                yield _text(part.text)
            case ReasoningPart(text=str(text)) if text:
                yield {"type": "thinking", "thinking": [_text(text)]}
            case ProviderPart():
                yield json.loads(part.data)


def _user_content(message: UserMessage) -> str | list[dict[str, Any]]:
    if all(isinstance(part, TextPart) for part in message.parts):
        return message.text
    return [_image(part) if isinstance(part, ImagePart) else _text(part.text) for part in message.parts]


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _image(part: ImagePart) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": image_url(part)}}
