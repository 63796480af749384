"""A conversation as the Responses API reads it: a list of items.

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


def input_items(messages: Sequence[Message], provider: str, *, is_stored: bool) -> list[dict[str, Any]]:
    """Return a conversation as items.

    Args:
        messages: the conversation.
        provider: who reads it; what another provider sealed is left out.
        is_stored: whether the server keeps its answers, and so knows an item by its id alone.
    """
    custom = frozenset(_custom_ids(messages, provider))
    return [item for message in messages for item in _items(message, provider, is_stored, custom)]


def _custom_ids(messages: Iterable[Message], provider: str) -> Iterator[str | None]:
    """Give the ids of the calls of custom tools, whose results are items of another type."""
    for message in messages:
        if isinstance(message, AssistantMessage) and may_send_signed_parts(message, provider):
            yield from [call.id for call in message.tool_calls if is_custom_call(signature_fields(call.signature))]


def _items(
    message: Message, provider: str, is_stored: bool, custom: Collection[str | None]
) -> Iterator[dict[str, Any]]:
    match message:
        case SystemMessage():
            yield {"role": "system", "content": message.text}
        case UserMessage():
            yield {"role": "user", "content": _content(message.parts)}
        case AssistantMessage():
            parts = message.parts if may_send_signed_parts(message, provider) else tuple(_unsealed(message))
            yield from _AnswerItems(parts, is_stored=is_stored).items()
        case ToolMessage():
            for result in message.results:
                output = _content((TextPart(result.content), *result.images))
                kind = "custom_tool_call_output" if result.call_id in custom else "function_call_output"
                yield {"type": kind, "call_id": result.call_id, "output": output}


def _content(parts: Sequence[TextPart | ImagePart]) -> str | list[dict[str, Any]]:
    texts = [part.text for part in parts if isinstance(part, TextPart)]
    return "".join(texts) if len(texts) == len(parts) else list(map(_piece, parts))


def _piece(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "input_text", "text": part.text}
    return {"type": "input_image", "image_url": to_image_url(part), "detail": "auto"}


def _unsealed(message: AssistantMessage) -> Iterator[TextPart | ToolCall]:
    """Give what an answer says to everybody."""
    for part in message.parts:
        if isinstance(part, TextPart):
            yield part
        elif isinstance(part, ToolCall):
            yield part.replace(signature=None)


class _AnswerItems:
    """An earlier answer. Images in it are left out, which the API takes from nobody but the user.

    OpenAI ties the items of an answer to its reasoning by their ids: if it has stored them, neither may be sent without
    the other. So ids are sent where reasoning is sent, and nowhere else.

    Args:
        parts: what it says.
        is_stored: whether the server keeps it.
    """

    def __init__(self, parts: Iterable[Any], *, is_stored: bool) -> None:
        places = count()
        by_item = groupby(parts, key=lambda part: part.id if isinstance(part, ReasoningPart) else next(places))
        self._runs = [list(run) for _, run in by_item]
        self._is_stored = is_stored
        self._is_tied = is_stored and any(map(self._is_thought, self._runs))

    def items(self) -> list[dict[str, Any]]:
        """Return its items."""
        items: list[dict[str, Any]] = []
        for run in self._runs:
            match run:
                case [TextPart(text=text)]:
                    items.append({"role": "assistant", "content": text})
                case [ToolCall() as call]:
                    items.append(self._call(call))
                case [ProviderPart(data=data)]:
                    self._add_record(items, json.loads(data))
                case _ if self._is_thought(run):
                    items.append(_reasoning(run))
        while items and _is_thought_alone(items[-1]):
            del items[-1]
        return items

    def _is_thought(self, run: list[Any]) -> bool:
        """Whether the server knows what a run of reasoning parts is about: it can read it, or has kept it."""
        last = run[-1]
        return isinstance(last, ReasoningPart) and bool(last.signature or (last.id and self._is_stored))

    def _call(self, call: ToolCall) -> dict[str, Any]:
        signed = signature_fields(call.signature)
        known = self._sent({name: signed[name] for name in ("id", "namespace") if name in signed})
        said = {"call_id": call.id, "name": call.name}
        if is_custom_call(signed):
            return {"type": "custom_tool_call", **said, "input": arguments_to_input(call), **known}
        return {"type": "function_call", **said, "arguments": encode_arguments(call), **known}

    def _add_record(self, items: list[dict[str, Any]], record: dict[str, Any]) -> None:
        """Add an item only the server understands; the record of a message belongs to the text before it."""
        kind = record.get("type")
        if str(kind).startswith("reasoning."):
            return  # what OpenRouter tells of reasoning in chat completions is no item here
        if kind != "message":
            items.append(record)
        elif items and items[-1].get("role") == "assistant":
            items[-1] = _message(items[-1]["content"], self._sent(record))

    def _sent(self, fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if name != "id" or self._is_tied}


def _reasoning(run: list[ReasoningPart]) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": part.text} for part in run if part.text]
    known = {"id": run[-1].id, "encrypted_content": run[-1].signature}
    return {"type": "reasoning", "summary": summary, **{name: value for name, value in known.items() if value}}


def _is_thought_alone(item: dict[str, Any]) -> bool:
    """Return whether an item is one of `_reasoning`, which OpenAI refuses where nothing follows that it led to."""
    return item.get("type") == "reasoning" and "content" not in item


def _message(text: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the text of an answer; one that goes by its id has to look as it came."""
    if "id" not in record:
        return {"role": "assistant", "content": text, **record}
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"role": "assistant", "status": "completed", "content": content, **record}
