"""Recorded traffic goes through a model: single exchanges, streams cut anywhere, and whole loops through the client."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, Unpack

import httpx

from tests.fixtures import Exchange
from tests.modes import run
from traced_tools import ChatClientRequestSpec, ChatClientResponse, ToolCall, ToolContext, UserMessage
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.models import ChatRequest, ChatResponse
from traced_tools.models.base import MADE_UP_ID
from traced_tools.models.folding import ChunkFold
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import HttpOptions
from traced_tools.testing import ReplayServer, Reply


class ModelAt(Protocol):
    """Makes a model of a provider whose API is at an address."""

    def __call__(self, url: str, **http: Unpack[HttpOptions]) -> HttpChatModel: ...


REQUEST = ChatRequest((UserMessage("anything"),))


def ask(model_at: ModelAt, reply: Reply, *, streamed: bool) -> ChatResponse:
    """Ask a server that gives one reply, the way it was asked when it was recorded."""
    with ReplayServer([reply]) as server, model_at(server.url) as model:
        return folded(model) if streamed else without_made_up_ids(model.call(REQUEST))


def check_answer(response: ChatResponse, exchange: Exchange) -> None:
    """Assert what holds of every recorded answer: the calls it is known for, else a text, and its names."""
    assert len(response.tool_calls) == exchange.tool_calls
    assert all(call.name and isinstance(json.loads(call.arguments), dict) for call in response.tool_calls)
    assert response.tool_calls or response.message.text
    assert response.id and response.model


def folded(model: HttpChatModel) -> ChatResponse:
    """Ask for a stream and return what its chunks amount to."""
    fold = ChunkFold()
    for chunk in model.stream(REQUEST):
        fold.add(chunk)
    return without_made_up_ids(fold.response().attributed_to(model.provider))


def without_made_up_ids(response: ChatResponse) -> ChatResponse:
    """Return `response` as its provider gave it, for comparisons: what is made up differs each time."""
    parts = [
        part.replace(id=None) if isinstance(part, ToolCall) and (part.id or "").startswith(MADE_UP_ID) else part
        for part in response.message.parts
    ]
    return response.replace(message=response.message.replace(parts=parts))


def ask_in_pieces(model_at: ModelAt, body: bytes, content_type: str, places: Sequence[int]) -> ChatResponse:
    """Ask for a stream whose `body` arrives cut at `places`, each a number of bytes; it begins anew past the end."""
    bounds = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    pieces = [body[start:end] for start, end in pairwise(bounds)]

    with answering(lambda request: streamed_response(pieces, content_type)) as client:
        return folded(model_at("http://127.0.0.1", client=client))


def answering(answer: Callable[[httpx.Request], httpx.Response]) -> httpx.Client:
    """Return a client whose requests are answered in memory, so that no network joins pieces of a body."""
    return httpx.Client(transport=httpx.MockTransport(answer))


def streamed_response(pieces: Iterable[bytes], content_type: str) -> httpx.Response:
    """Return a response whose body arrives in `pieces`."""
    return httpx.Response(200, headers={"Content-Type": content_type}, stream=_Pieces(pieces))


class _Pieces(httpx.SyncByteStream):
    """A body that arrives in chosen pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces


@dataclass
class RecordedTool:
    """A tool of a recorded request; it answers as the recording does.

    Args:
        definition: its definition in the request.
        answer: returns the recorded answer to a call, by its id and its arguments as JSON text.
    """

    definition: ToolDefinition
    answer: Callable[[str, str], str]
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Return the recorded answer."""
        assert context is not None
        return self.answer(context.call_id, tool_input)


def loops(recorded: Sequence[Exchange], is_first: Callable[[Mapping[str, Any]], bool]) -> Iterator[list[Exchange]]:
    """Split a case into loops: one begins with each request that is a first one and holds no answer yet."""
    loop: list[Exchange] = []
    for exchange in recorded:
        if loop and is_first(exchange.request):
            yield loop
            loop = []
        loop.append(exchange)
    if loop:
        yield loop


def replayed(
    loop: Sequence[Exchange],
    closing: Reply,
    model_at: ModelAt,
    specification: Callable[[HttpChatModel], ChatClientRequestSpec],
    mode: str,
) -> tuple[ChatClientResponse, list[Any]]:
    """Run a recorded loop through the client; return its response and the requests it sent.

    Where the recording ends with calls, `closing` answers their results.
    """
    with ReplayServer([*(exchange.reply() for exchange in loop), closing]) as server:
        model = model_at(server.url)
        response = run(mode, specification(model), model)
        return response, [request.json() for request in server.requests]


def mode_of(loop: Sequence[Exchange], colour: str) -> str:
    """Return the mode that asks as a loop was asked: whole or streamed, `blocking` or on `asyncio`."""
    return {"blocking": ("call", "stream"), "asyncio": ("acall", "astream")}[colour][loop[0].streamed]
