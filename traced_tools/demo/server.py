"""The demo's model: an OpenAI-compatible server on 127.0.0.1 with scripted answers."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

from traced_tools.testing import Received, ReplayServer, Reply

MODEL = "trip-script-1"

_STAY = {"out": "2026-06-12", "back": "2026-06-14"}
_SCENE: list[tuple[str, list[tuple[str, dict[str, Any]]], tuple[int, int]]] = [
    (
        "Let me look at the weather, the flights and the hotels.",
        [
            ("get_weather", {"city": "Lisbon", "day": "2026-06-13"}),
            ("find_flights", {"origin": "Oslo", "destination": "Lisbon", **_STAY}),
            ("find_hotels", {"city": "Lisbon", "nights": 2}),
        ],
        (412, 96),
    ),
    ("The hotel search failed, once more.", [("find_hotels", {"city": "Lisbon", "nights": 2})], (655, 31)),
    ("", [("book_hotel", {"hotel": "Casa do Rio", "nights": 2})], (740, 24)),
    (
        "A sunny weekend is waiting: fly TAP from Oslo to Lisbon, 12 to 14 June, at\n"
        "214 euros each, and stay two nights at Casa do Rio for 236 euros. That is\n"
        "664 euros for two, well within 900. I may not book, so reserve the hotel.",
        [],
        (803, 71),
    ),
]


def trip_server() -> ReplayServer:
    """Return the server. The number of assistant messages in a request selects the scripted answer."""
    return ReplayServer(_reply)


def _reply(request: Received) -> Reply:
    body = request.json()
    spoken = sum(message["role"] == "assistant" for message in body["messages"])
    if not body.get("stream") or spoken >= len(_SCENE):
        return Reply.json({"error": {"code": "not_in_the_scene"}}, status=400)
    return Reply(_stream(spoken), content_type="text/event-stream")


def _stream(turn: int) -> Iterator[bytes]:
    text, calls, (prompt_tokens, completion_tokens) = _SCENE[turn]
    deltas = itertools.chain(_text_deltas(text), *(_call_deltas(*call) for call in enumerate(calls)))
    time.sleep(0.08)
    for delta in deltas:
        time.sleep(0.008)
        yield _event({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    yield _event({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if calls else "stop"}]})
    yield _event({"choices": [], "usage": {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}})
    yield b"data: [DONE]\n\n"


def _text_deltas(text: str) -> Iterator[dict[str, Any]]:
    for word in text.replace(" ", " \0").split("\0"):
        yield {"content": word}


def _call_deltas(index: int, call: tuple[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    name, arguments = call
    text = json.dumps(arguments)
    first = {
        "index": index,
        "id": f"call_{name}_{index}",
        "type": "function",
        "function": {"name": name, "arguments": ""},
    }
    yield {"tool_calls": [first]}
    for start in range(0, len(text), 16):
        yield {"tool_calls": [{"index": index, "function": {"arguments": text[start : start + 16]}}]}


def _event(body: dict[str, Any]) -> bytes:
    event = {"id": "chatcmpl-trip", "model": MODEL, "object": "chat.completion.chunk", **body}
    return f"data: {json.dumps(event)}\n\n".encode()
