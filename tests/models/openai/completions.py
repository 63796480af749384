"""Handwritten answers of chat completions, run through a codec."""

from __future__ import annotations

import json
from typing import Any

from traced_tools import ChatOptions
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse
from traced_tools.models.folding import ChunkFold
from traced_tools.models.openai.chat import OpenAIChatCodec
from traced_tools.models.openai.servers import resolve_server

STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
DONE = "[DONE]"


def codec_of(provider: str | None = None, **settings: Any) -> OpenAIChatCodec:
    """Return the codec for the server of `provider`, by default one that is not known."""
    return OpenAIChatCodec("m", resolve_server("http://127.0.0.1", provider), **settings)


CODEC = codec_of()


def encoded(
    *messages: Any, codec: OpenAIChatCodec = CODEC, tools: Any = (), stream: bool = False, **options: Any
) -> Any:
    """Return the body that asks for an answer to `messages`."""
    return codec.encode(ChatRequest(messages, tuple(tools), ChatOptions(**options)), stream=stream)


def decoded(codec: OpenAIChatCodec = CODEC, *, reason: str | None = "stop", **message: Any) -> ChatResponse:
    """Return the answer whose body holds a `message` with these fields."""
    return codec.decode(json.dumps({"choices": [{"message": message, "finish_reason": reason}]}).encode())


def delta(**fields: Any) -> dict[str, Any]:
    """Return an event whose delta has these fields."""
    return {"choices": [{"index": 0, "delta": fields}]}


def chunks_of(*events: Any, codec: OpenAIChatCodec = CODEC) -> list[ChatChunk]:
    """Return the chunks of a stream that ends after `events`: objects, or data as it is."""
    decoder, found = codec.decoder(), []
    for event in events:
        found += decoder.chunks(event if isinstance(event, str) else json.dumps(event))
    decoder.end()
    return found


def folded(*events: Any, codec: OpenAIChatCodec = CODEC) -> ChatResponse:
    """Return what a stream of these events amounts to."""
    fold = ChunkFold()
    for chunk in chunks_of(*events, codec=codec):
        fold.add(chunk)
    return fold.response()
