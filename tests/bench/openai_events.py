"""The events of a streamed answer of OpenAI's API, with the standard library alone."""

from __future__ import annotations

import json
from typing import Any


def event(value: Any) -> bytes:
    """Return a server-sent event."""
    return f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()


def openai_events(delta: dict[str, Any], deltas: int) -> list[bytes]:
    """Return the events of a streamed answer that repeats a delta."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m-1"}
    begun = {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "f", "arguments": ""}}]}
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
    last = {"index": 0, "delta": {}, "finish_reason": "stop"}
    events = [event({**head, "choices": [choice]})] * deltas
    if "tool_calls" in delta:
        events[0] = event({**head, "choices": [{**choice, "delta": begun}]})
    return [*events, event({**head, "choices": [last]}), event("[DONE]")]
