"""What a streamed answer costs: from the bytes of each event to the chunk in the consumer's hands, everything on.

The bytes come from memory, one event a piece, as a provider sends them, so that neither a server nor the kernel is in
the figure. Beside it stands what reading the same bytes costs with httpx and httpx-sse alone.
"""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import httpx
from httpx_sse import EventSource

from tests.bench.openai_events import event, openai_events
from tests.bench.report import Row, Section
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import Sdk
from traced_tools import ChatClient
from traced_tools.models import (
    AnthropicChatModel,
    ChatModel,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)

DELTAS = 2_000
DELTA_TARGET_US = 30
WORD = "tokens "
MODEL = {"base_url": "http://127.0.0.1", "api_key": "none"}


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body in pieces, from memory."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._pieces)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@dataclass(frozen=True)
class Answer:
    """A provider's streamed answer.

    Args:
        name: what it is called in the table.
        make: makes the provider's model.
        pieces: the body.
        kind: its content type.
        in_loop: whether it is asked for inside a tool loop, which an answer of calls alone would never leave.
    """

    name: str
    make: Callable[..., ChatModel]
    pieces: list[bytes]
    kind: str = "text/event-stream"
    in_loop: bool = True


def models_section(rounds: int, providers: Sdk, runner: asyncio.Runner) -> Section:
    """Return the cost of a delta, for each provider."""
    answers = _answers()
    cases = {each.name: Case(_streamed(each, providers), DELTAS) for each in answers}
    text = answers[0]
    cases["asyncio"] = Case(_streamed_on_asyncio(text, providers, runner), DELTAS)
    cases["floor"] = Case(_read(text), DELTAS)
    series = sample(cases, rounds, providers.tracer_provider.force_flush)
    rows = [_timed(each.name, series[each.name], DELTA_TARGET_US) for each in answers]
    rows.append(_timed(f"{text.name}, asyncio", series["asyncio"], DELTA_TARGET_US))
    rows.append(_timed("reading the same events with httpx and httpx-sse alone", series["floor"]))
    rows.append(Row(f"{text.name} / that", series[text.name].ratio(series["floor"]), "x", digits=2))
    return Section(f"one delta of a streamed answer of {DELTAS:,}, everything on", rows)


def _timed(label: str, series: Series, at_most: float | None = None) -> Row:
    return Row(label, statistics.median(series.cpu), "us", statistics.median(series.wall), series.fastest, at_most)


def _answers() -> list[Answer]:
    call = {"tool_calls": [{"index": 0, "function": {"arguments": WORD}}]}
    return [
        Answer("OpenAI, text", partial(OpenAIChatModel, "m", **MODEL), openai_events({"content": WORD}, DELTAS)),
        Answer(
            "OpenAI, a call's arguments",
            partial(OpenAIChatModel, "m", **MODEL),
            openai_events(call, DELTAS),
            in_loop=False,
        ),
        Answer("OpenAI Responses", partial(OpenAIResponsesModel, "m", **MODEL), _responses()),
        Answer("Anthropic", partial(AnthropicChatModel, "m", **MODEL), _anthropic()),
        Answer("Gemini", partial(GeminiChatModel, "m", **MODEL), _gemini()),
        Answer("Ollama", partial(OllamaChatModel, "m", **MODEL), _ollama(), "application/x-ndjson"),
    ]


def _responses() -> list[bytes]:
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": []}
    delta = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": WORD, "logprobs": []}
    whole = {"id": "resp_1", "model": "m-1", "status": "completed", "error": None, "output": []}
    return [
        event({"type": "response.output_item.added", "output_index": 0, "item": message}),
        *[event({"type": "response.output_text.delta", **delta})] * DELTAS,
        event({"type": "response.completed", "response": whole}),
    ]


def _anthropic() -> list[bytes]:
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m-1", "content": []}
    delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD}}
    return [
        event({"type": "message_start", "message": {**message, "usage": {"input_tokens": 1, "output_tokens": 1}}}),
        event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        *[b"event: content_block_delta\n" + event(delta)] * DELTAS,
        event({"type": "content_block_stop", "index": 0}),
        event({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}),
        event({"type": "message_stop"}),
    ]


def _gemini() -> list[bytes]:
    usage = {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2}
    said = {"content": {"parts": [{"text": WORD}], "role": "model"}, "index": 0}
    head = {"usageMetadata": usage, "modelVersion": "m-1", "responseId": "r1"}
    events = [event({"candidates": [said], **head})] * DELTAS
    return [*events, event({"candidates": [{**said, "finishReason": "STOP"}], **head})]


def _ollama() -> list[bytes]:
    head = {"model": "m-1", "created_at": "2026-01-01T00:00:00Z"}
    said = {**head, "message": {"role": "assistant", "content": WORD}, "done": False}
    lines = [json.dumps(said).encode() + b"\n"] * DELTAS
    return [*lines, json.dumps({**said, "done": True, "done_reason": "stop", "eval_count": 1}).encode() + b"\n"]


def _transport(answer: Answer) -> httpx.MockTransport:
    headers = {"Content-Type": answer.kind}
    return httpx.MockTransport(lambda request: httpx.Response(200, headers=headers, stream=Body(answer.pieces)))


def _streamed(answer: Answer, providers: Sdk) -> Callable[[], None]:
    model = answer.make(client=httpx.Client(transport=_transport(answer)))
    spec = ChatClient(model, telemetry=providers.options).prompt("?", tool_calling=answer.in_loop)

    def consume() -> None:
        with spec.stream() as stream:
            for _ in stream:
                pass

    return consume


def _streamed_on_asyncio(answer: Answer, providers: Sdk, runner: asyncio.Runner) -> Callable[[], None]:
    model = answer.make(async_client=httpx.AsyncClient(transport=_transport(answer)))
    spec = ChatClient(model, telemetry=providers.options).prompt("?")

    async def consume() -> None:
        async with spec.astream() as stream:
            async for _ in stream:
                pass

    return lambda: runner.run(consume())


def _read(answer: Answer) -> Callable[[], None]:
    client = httpx.Client(transport=_transport(answer))

    def consume() -> None:
        with client.stream("POST", "http://127.0.0.1") as response:
            for _ in EventSource(response).iter_sse():
                pass

    return consume
