"""Encodes a conversation as items of the Responses API.

Format: https://platform.openai.com/docs/api-reference/responses/create#responses-create-input.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count, groupby
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
from traced_tools.models.encoding import may_send_signed_parts, signature_fields
from traced_tools.models.openai.common import arguments_to_input, encode_arguments, is_custom_call, to_image_url


def encode_input(messages: Sequence[Message], provider: str, *, is_stored: bool) -> list[dict[str, Any]]:
    """Return a conversation as items.

    Args:
        messages: the conversation.
        provider: the provider that gets the items; parts signed by other providers are omitted.
        is_stored: whether the server stores its answers, so that the id alone identifies an item.
    """
    custom = frozenset(_custom_call_ids(messages, provider))
    return [item for message in messages for item in _encode_message(message, provider, is_stored, custom)]


def _custom_call_ids(messages: Iterable[Message], provider: str) -> Iterator[str | None]:
    """Yield the ids of calls of custom tools, whose results are items of another type."""
    for message in messages:
        if isinstance(message, AssistantMessage) and may_send_signed_parts(message, provider):
            yield from [call.id for call in message.tool_calls if is_custom_call(signature_fields(call.signature))]


def _encode_message(
    message: Message, provider: str, is_stored: bool, custom: Collection[str | None]
) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _encode_content(message.parts)}
        case AssistantMessage():
            parts = message.parts if may_send_signed_parts(message, provider) else tuple(_unsigned_parts(message))
            yield from _AnswerEncoder(parts, is_stored=is_stored).encode()
        case ToolMessage():
            for result in message.results:
                output = _encode_content((TextPart(result.content), *result.images))
                kind = "custom_tool_call_output" if result.call_id in custom else "function_call_output"
                yield {"type": kind, "call_id": result.call_id, "output": output}


def _encode_content(parts: Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(parts) else list(map(_encode_part, parts))


def _encode_part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "image_url": to_image_url(part), "detail": "auto"}


def _unsigned_parts(message: AssistantMessage) -> Iterator[TextPart | ToolCall]:
    """Yield the parts of another provider's answer that any provider can read, without signatures."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield part
        elif isinstance(part, ToolCall):
            yield part.replace(signature=None)


class _AnswerEncoder:
    """Encodes an earlier answer. Its images are omitted, because the API accepts images only from the user.

    OpenAI links the items of an answer to its reasoning by their ids. If it has stored them, neither may be sent
    without the other. So ids are sent if and only if reasoning is sent.

    Args:
        parts: the parts of the answer.
        is_stored: whether the server stores its answers.
    """

    def __init__(self, parts: Iterable[Any], *, is_stored: bool) -> None:
        places = count()
        by_item = groupby(parts, key=lambda part: part.id if isinstance(part, ReasoningPart) else next(places))
        self._runs = [list(run) for _, run in by_item]
        self._is_stored = is_stored
        self._sends_ids = is_stored and any(map(self._can_send_reasoning, self._runs))

    def encode(self) -> list[dict[str, Any]]:
        """Return the items of the answer."""
        items: list[dict[str, Any]] = []
        for run in self._runs:
            match run:
                case [TextPart(text=text)]:
                    items.append({"role": "assistant", "content": text})
                case [ToolCall() as call]:
                    items.append(self._encode_call(call))
                case [ProviderPart(data=data)]:
                    self._add_opaque_part(items, json.loads(data))
                case _ if self._can_send_reasoning(run):
                    items.append(_encode_reasoning(run))
        while items and _is_reasoning(items[-1]):
            del items[-1]
        return items

    def _can_send_reasoning(self, run: list[Any]) -> bool:
        """Return whether a run of reasoning parts can be sent: it has encrypted reasoning, or the server stores it."""
        last = run[-1]
        return isinstance(last, ReasoningPart) and bool(last.signature or (last.id and self._is_stored))

    def _encode_call(self, call: ToolCall) -> dict[str, Any]:
        signed = signature_fields(call.signature)
        signed_fields = self._with_allowed_id({name: signed[name] for name in ("id", "namespace") if name in signed})
        common = {"call_id": call.id, "name": call.name}
        if is_custom_call(signed):
            return {"type": "custom_tool_call", **common, "input": arguments_to_input(call), **signed_fields}
        return {"type": "function_call", **common, "arguments": encode_arguments(call), **signed_fields}

    def _add_opaque_part(self, items: list[dict[str, Any]], record: dict[str, Any]) -> None:
        """Add an opaque part as an item; the other fields of a message are merged into the text before them."""
        kind = record.get("type")
        if str(kind).startswith("reasoning."):
            return  # reasoning details of OpenRouter's chat completions are not items of this API
        if kind != "message":
            items.append(record)
        elif items and items[-1].get("role") == "assistant":
            items[-1] = _encode_text(items[-1]["content"], self._with_allowed_id(record))

    def _with_allowed_id(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "id" or self._sends_ids}


def _encode_reasoning(run: list[ReasoningPart]) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": part.text} for part in run if part.text]
    reasoning_fields = {"id": run[-1].id, "encrypted_content": run[-1].signature}
    return {
        "type": "reasoning",
        "summary": summary,
        **{name: value for name, value in reasoning_fields.items() if value},
    }


def _is_reasoning(item: dict[str, Any]) -> bool:
    """Return whether an item is from `_encode_reasoning`; OpenAI refuses such an item at the end of an answer."""
    return item.get("type") == "reasoning" and "content" not in item


def _encode_text(text: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the text of an answer; if it has an id, in the format in which the API returned it."""
    if "id" not in record:
        return {"role": "assistant", "content": text, **record}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"role": "assistant", "status": "completed", "content": content, **record}
