"""Reads the requests of SDKs: plain JSON, and the texts, images and results in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from traced_tools.core.checks import expect
from traced_tools.core.messages import (
    AssistantMessage,
    ImagePart,
    Message,
    TextPart,
    ToolMessage,
    ToolResultPart,
    UserMessage,
)
from traced_tools.core.tool_result import ToolResult


def plain(value: Any) -> Any:
    """Return a value as plain JSON: applications send answers back as the objects that the SDK made of them."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return plain(dump(exclude_unset=True)) if callable(dump := getattr(value, "model_dump", None)) else value


def items_of(value: Any) -> list[Mapping[str, Any]]:
    """Return the objects in a list; none for an iterator, which only the SDK may use up."""
    return [item for item in plain(value) if isinstance(item, Mapping)] if isinstance(value, list | tuple) else []


def results_at_end(items: Any, is_result: Callable[[Mapping[str, Any]], bool]) -> list[Mapping[str, Any]]:
    """Return the results with which a conversation ends, in order."""
    results: list[Mapping[str, Any]] = []
    for item in reversed(items) if isinstance(items, list | tuple) else ():
        if not isinstance(fields := plain(item), Mapping) or not is_result(fields):
            break
        results.append(fields)
    return results[::-1]


def text_of(content: Any) -> str:
    """Return the text of a content: itself, or the texts of its parts."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in items_of(content)]
    return "".join([text for text in texts if isinstance(text, str)])


def image_of(url: object) -> ImagePart | None:
    """Return the image at a URL, which may be a `data:` URL; None for no URL."""
    return ImagePart(url=url) if isinstance(url, str) else None


def check_result(result: object) -> None:
    """Raise `TypeError` unless `result` is the result of a call."""
    expect("result", result, ToolResult, "a ToolResult, which run.execute returns")


def user_message(parts: Iterable[TextPart | ImagePart | None]) -> UserMessage:
    """Return a message of the parts that could be read."""
    return UserMessage([part for part in parts if part is not None])


class RequestMessages:
    """Collects the messages of a request. Results in a row form one message, and each has the name of its tool."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._names: dict[str, str] = {}

    def add(self, *messages: Message) -> None:
        """Add messages."""
        for message in messages:
            if isinstance(message, AssistantMessage):
                self._names.update((call.id, call.name) for call in message.tool_calls if call.id is not None)
            self.messages.append(message)

    def add_result(self, call_id: object, content: str, *, is_error: bool = False) -> None:
        """Add the result of a call."""
        result = ToolResultPart(
            call_id=str(call_id), name=self._names.get(str(call_id), ""), content=content, is_error=is_error
        )
        last = self.messages[-1] if self.messages else None
        if isinstance(last, ToolMessage):
            self.messages[-1] = ToolMessage([*last.results, result])
        else:
            self.messages.append(ToolMessage([result]))
