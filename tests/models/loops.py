"""A loop of two requests over a real connection: the model asks for one call, then says its closing words."""

from __future__ import annotations

from typing import Any

from traced_tools.testing import Reply


def replies(mode: str, name: str, arguments: str, closing: str) -> list[Reply]:
    """Return a server's two replies; in a stream, the call comes in two pieces."""
    call: dict[str, Any] = {"index": 0, "id": "c1", "function": {"name": name, "arguments": arguments}}
    said = {"content": closing}
    if "stream" not in mode:
        return [
            Reply.json({"choices": [{"message": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]}),
            Reply.json({"choices": [{"message": said, "finish_reason": "stop"}]}),
        ]
    begun = {**call, "function": {"name": name, "arguments": arguments[:1]}}
    rest = {"index": 0, "function": {"arguments": arguments[1:]}}
    return [
        Reply.sse([*({"choices": [{"delta": {"tool_calls": [each]}}]} for each in (begun, rest)), "[DONE]"]),
        Reply.sse([{"choices": [{"delta": said, "finish_reason": "stop"}]}, "[DONE]"]),
    ]
