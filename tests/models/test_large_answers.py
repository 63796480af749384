"""Large answers: the number of items and the memory for decoding are limited."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, repeat
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from tests.models import recorded
from tests.models.samples import SAMPLES, Sample
from tests.modes import BLOCKING_MODES, MODES, run
from tests.waiting import in_time
from traced_tools import ChatClient, ModelError, ModelTimeout, ToolCall
from traced_tools.errors import InvalidResponse
from traced_tools.models import ChatChunk, OllamaEmbeddingModel, OpenAIChatModel, OpenAIEmbeddingModel, folding
from traced_tools.models import parsing as wire
from traced_tools.models.anthropic import chat as anthropic_chat
from traced_tools.models.folding import ChunkFold
from traced_tools.models.http import framing, transport
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.http.options import Timeouts
from traced_tools.models.openai import chat as openai_chat
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

BY_NAME = {repr(sample): sample for sample in SAMPLES}
every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=repr)
MANY = wire.MOST_ITEMS + 1

LISTS = {
    "choices": ("OpenAIChatModel", '{"choices": [%s]}'),
    "content": ("OpenAIChatModel", '{"choices": [{"message": {"content": [%s]}}]}'),
    "calls": ("OpenAIChatModel", '{"choices": [{"message": {"tool_calls": [%s]}}]}'),
    "output": ("OpenAIResponsesModel", '{"status": "completed", "output": [%s]}'),
    "blocks": ("AnthropicChatModel", '{"content": [%s], "stop_reason": "end_turn"}'),
    "parts": ("GeminiChatModel", '{"candidates": [{"content": {"parts": [%s]}, "finishReason": "STOP"}]}'),
    "events": ("GeminiChatModel", "[%s]"),
    "ollama calls": ("OllamaChatModel", '{"done": true, "message": {"tool_calls": [%s]}}'),
    "unread": ("GeminiChatModel", '{"candidates": [{"content": {"parts": [{"x": [%s]}]}}]}'),
    # named like fields that nobody reads, in places that are kept
    "logprobs in content": ("OpenAIChatModel", '{"choices": [{"message": {"content": {"logprobs": [%s]}}}]}'),
    "tools in arguments": (
        "OllamaChatModel",
        '{"done": true, "message": {"tool_calls": [{"function": {"name": "f", "arguments": {"tools": [%s]}}}]}}',
    ),
    "tools in an item": ("OpenAIResponsesModel", '{"status": "completed", "output": [{"type": "x", "tools": [%s]}]}'),
    "logprobs in an item": (
        "OpenAIResponsesModel",
        '{"status": "completed", "output": [{"type": "x", "content": [{"logprobs": [%s]}]}]}',
    ),
    "token_ids in a block": ("AnthropicChatModel", '{"content": [{"type": "x", "token_ids": [%s]}]}'),
}
IMAGES = ("OllamaChatModel", '{"done": true, "message": {"images": [%s]}}')


def answered(sample: Sample, body: bytes, *, streamed: bool = False) -> Any:
    """Return what a model makes of `body`."""
    kind = sample.content_type if streamed else "application/json"
    with recorded.answering(lambda _: recorded.streamed_response([body], kind)) as client:
        model = sample.model_at("http://127.0.0.1", client=client)
        return recorded.folded(model) if streamed else model.call(recorded.REQUEST)


def peak_of(function: Callable[[], Any]) -> int:
    """Return the most memory that Python takes while `function` runs, whether or not it raises a `ModelError`."""
    tracemalloc.start()
    try:
        function()
    except ModelError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


@pytest.mark.parametrize("place", LISTS)
def test_an_answer_of_more_items_than_the_limit_is_an_invalid_response(place: str) -> None:
    kind, form = LISTS[place]
    sample, body = BY_NAME[kind], (form % ",".join(["{}"] * MANY)).encode()
    with pytest.raises(InvalidResponse, match="more than 10000 items"):
        answered(sample, body)
    framed = b"%s\n" if sample.content_type == "application/x-ndjson" else b"data: %s\n\n"
    with pytest.raises(InvalidResponse, match="more than 10000 items"):
        answered(sample, framed % body, streamed=True)


def test_nested_objects_count_as_items() -> None:
    fields = ",".join(f'"{number}": {{}}' for number in range(MANY))
    with pytest.raises(InvalidResponse, match="more than 10000 items"):
        answered(SAMPLES[0], b'{"choices": [{"message": {"content": [{%s}]}}]}' % fields.encode())


def test_an_answer_of_more_images_than_the_limit_is_an_invalid_response() -> None:
    kind, form = IMAGES
    body = (form % ",".join(['"iVBORw0KGgo="'] * MANY)).encode()
    for streamed in (False, True):
        with pytest.raises(InvalidResponse, match="images: too_long"):
            answered(BY_NAME[kind], body + b"\n" * streamed, streamed=streamed)


@pytest.mark.parametrize("sample", [each for each in SAMPLES if not repr(each).startswith("OpenAI")], ids=repr)
def test_numbers_and_texts_do_not_count_as_items(sample: Sample) -> None:
    arguments = {"city": "Oslo", "rows": [0.5] * MANY, "names": ["x"] * MANY}
    form = {
        "AnthropicChatModel": {"content": [{"type": "tool_use", "id": "c", "name": "f", "input": arguments}]},
        "GeminiChatModel": {
            "candidates": [{"content": {"parts": [{"functionCall": {"name": "f", "args": arguments}}]}}]
        },
        "OllamaChatModel": {
            "message": {"tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
            "done": True,
        },
    }[repr(sample)]
    (found,) = answered(sample, json.dumps(form).encode()).message.tool_calls
    assert json.loads(found.arguments) == arguments


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "form"), [*LISTS.values(), IMAGES], ids=[*LISTS, "images"])
def test_memory_is_bounded_by_a_multiple_of_the_body(kind: str, form: str) -> None:
    for item in ("{}", "1"):
        body = (form % ",".join([item] * 50_000)).encode()
        assert peak_of(partial(answered, BY_NAME[kind], body)) < 60 * len(body)


def test_memory_for_embeddings_is_bounded_by_a_multiple_of_the_body() -> None:
    numbers, vectors = ",".join(["1"] * 100_000), ",".join(["[1]"] * 50_000)
    items = ",".join(['{"embedding":[]}'] * 20_000)
    wrong = ",".join(["{}"] * 50_000)
    for kind, text in (
        (OpenAIEmbeddingModel, f'{{"data":[{{"embedding":[{numbers}]}}]}}'),
        (OpenAIEmbeddingModel, f'{{"data":[{items}]}}'),
        (OpenAIEmbeddingModel, f'{{"data":[{wrong}]}}'),
        (OllamaEmbeddingModel, f'{{"embeddings":[{vectors}]}}'),
        (OllamaEmbeddingModel, f'{{"embeddings":[{numbers}]}}'),
    ):
        body = text.encode()

        def embed(kind: Any = kind, body: bytes = body) -> None:
            with recorded.answering(lambda _: httpx.Response(200, content=body)) as client:
                kind("m", base_url="http://127.0.0.1", client=client).call(("text",))

        assert peak_of(embed) < 60 * len(body)


UNREAD = {
    "chat": ("OpenAIChatModel", {"choices": [{"message": {"content": "Hi."}, "logprobs": "@"}], "tools": "@"}),
    "chat, prompt": ("OpenAIChatModel", {"choices": [{"message": {"content": "Hi."}}], "prompt_logprobs": "@"}),
    "responses": (
        "OpenAIResponsesModel",
        {
            "status": "completed",
            "output": [{"type": "message", "content": [{"text": "Hi.", "logprobs": "@"}]}],
            "tools": "@",
        },
    ),
    "gemini": ("GeminiChatModel", {"candidates": [{"content": {"parts": [{"text": "Hi."}]}, "logprobsResult": "@"}]}),
    "ollama": ("OllamaChatModel", {"message": {"content": "Hi."}, "done": True, "logprobs": "@"}),
}


@pytest.mark.parametrize("case", UNREAD)
def test_items_in_fields_that_are_not_read_do_not_count(case: str) -> None:
    kind, form = UNREAD[case]
    body = json.dumps(form).replace('"@"', json.dumps([{"token": "a", "bytes": [97]}] * MANY))
    assert answered(BY_NAME[kind], body.encode()).message.text == "Hi."


def test_brackets_inside_text_do_not_count_as_items() -> None:
    text = "{},[],1," * MANY
    body = json.dumps({"choices": [{"message": {"content": text}}]}).encode()
    assert answered(SAMPLES[0], body).message.text == text


ENDLESS: dict[str, tuple[str, Callable[[int], dict[str, Any]]]] = {
    "calls": ("OpenAIChatModel", lambda n: {"choices": [{"delta": {"tool_calls": [{"index": n, "id": f"c{n}"}]}}]}),
    "parts": ("OpenAIChatModel", lambda n: {"choices": [{"delta": {"content": [{"type": "x"}]}}]}),
    "details": ("OpenAIChatModel", lambda n: {"choices": [{"delta": {"reasoning_details": [{"type": "x"}]}}]}),
    "turns": ("OpenAIChatModel", lambda n: {"choices": [{"delta": {["content", "reasoning"][n % 2]: "x"}}]}),
    "items": ("OpenAIResponsesModel", lambda n: {"type": "response.output_item.done", "output_index": n, "item": {}}),
    "blocks": (
        "AnthropicChatModel",
        lambda n: {"type": "content_block_start", "index": n, "content_block": {"type": "text"}},
    ),
    "gemini parts": ("GeminiChatModel", lambda n: {"candidates": [{"content": {"parts": [{"x": n}]}}]}),
    "ollama calls": ("OllamaChatModel", lambda n: {"message": {"tool_calls": [{"function": {"name": "f"}}]}}),
}


def limit_items(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    for module in (folding, anthropic_chat, openai_chat):
        monkeypatch.setattr(module, "MOST_ITEMS", most)


@pytest.mark.parametrize("place", ENDLESS)
def test_a_stream_with_too_many_parts_is_an_invalid_response(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    limit_items(monkeypatch, 100)
    kind, event = ENDLESS[place]
    framed = "{}\n" if kind == "OllamaChatModel" else "data: {}\n\n"

    def body() -> Iterator[bytes]:
        for number in range(102):
            yield framed.replace("{}", json.dumps(event(number))).encode()
        pytest.fail("the stream is read beyond the limit")

    sample = BY_NAME[kind]
    with recorded.answering(lambda _: recorded.streamed_response(body(), sample.content_type)) as client:
        with pytest.raises(InvalidResponse, match="more than 100 "):
            recorded.folded(sample.model_at("http://127.0.0.1", client=client))


def test_pieces_of_text_and_of_a_call_do_not_count_as_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_items(monkeypatch, 2)
    text = {"choices": [{"delta": {"content": "x"}}]}
    call = {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "c1", "function": {"arguments": "1"}}]}}]}
    events = "".join(f"data: {json.dumps(event)}\n\n" for event in chain(repeat(text, 50), repeat(call, 50)))
    message = answered(SAMPLES[0], f"{events}data: [DONE]\n\n".encode(), streamed=True).message
    assert (message.text, message.tool_calls[0].arguments) == ("x" * 50, "1" * 50)


def test_the_error_of_a_stream_with_too_many_parts_names_the_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    limit_items(monkeypatch, 2)
    chunk = ChatChunk(parts=(ToolCall("f"),) * 3)
    model = ScriptedChatModel([])
    model.stream = lambda request: iter([chunk])  # type: ignore[method-assign]
    with pytest.raises(InvalidResponse, match=f"{model.provider}: the answer has more than 2 parts"):
        run("stream", ChatClient(model).prompt("hi"))
    with pytest.raises(InvalidResponse, match="the model: the answer"):
        ChunkFold().add(chunk)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("block", "delta"),
    [
        ({"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "x" * 5_000}),
        ({"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "x" * 5_000}),
        ({"type": "text", "text": ""}, {"type": "text_delta", "text": "x" * 5_000}),
        ({"type": "tool_use", "name": "f"}, {"type": "input_json_delta", "partial_json": "x" * 5_000}),
        ({"type": "other"}, {"type": "other_delta", "content": "x" * 5_000}),
        ({"type": "other"}, {"type": "input_json_delta", "partial_json": "x" * 5_000}),
    ],
    ids=["signature", "thoughts", "text", "input", "field", "input of another block"],
)
def test_pieces_are_joined_only_once(block: dict[str, Any], delta: dict[str, Any]) -> None:
    begin = {"type": "content_block_start", "index": 0, "content_block": block}
    ends = [{"type": "content_block_stop", "index": 0}, {"type": "message_stop"}]
    grow = {"type": "content_block_delta", "index": 0, "delta": delta}
    body = b"".join(b"data: %s\n\n" % json.dumps(event).encode() for event in [begin, *[grow] * 20_000, *ends])
    in_time(lambda: answered(BY_NAME["AnthropicChatModel"], body, streamed=True))


class Clock:
    """A clock that a test turns."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.parametrize("mode", MODES)
def test_the_total_timeout_counts_decoding(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    for module in (framing, transport):
        monkeypatch.setattr(module, "time", clock)
    sample = BY_NAME["OpenAIChatModel"]
    reply = Reply(sample.body(sample.closing, streamed="stream" in mode), content_type=sample.content_type)
    with ReplayServer([reply]) as server:
        model = sample.model_at(server.url, timeout=Timeouts(total=5))
        _slow_down(model, clock)
        with pytest.raises(ModelTimeout, match="not complete in time"):
            run(mode, ChatClient(model).prompt("hi"))
        if mode in BLOCKING_MODES:
            model.close()


def _slow_down(model: HttpChatModel, clock: Clock) -> None:
    """Have the clock of a model's codec advance when it decodes."""
    codec = model._codec

    def slow(decode: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def decoded(data: Any) -> Any:
            clock.now += 10
            return decode(data)

        return decoded

    decoder = codec.decoder()
    slow_decoder = SimpleNamespace(chunks=slow(decoder.chunks), end=decoder.end, done=False)
    model._codec = SimpleNamespace(
        decode=slow(codec.decode),
        decoder=lambda: slow_decoder,
        encode=codec.encode,
        path=codec.path,
        framing=codec.framing,
    )


def test_an_expanding_stream_is_split_into_events_in_slices() -> None:
    body = gzip.compress(b"\n" * 4_000_000)

    def answer(request: httpx.Request) -> httpx.Response:
        headers = {"Content-Type": "text/event-stream", "Content-Encoding": "gzip"}
        return httpx.Response(200, headers=headers, stream=recorded.streamed_response([body], "").stream)

    def ask() -> None:
        with recorded.answering(answer) as client:
            recorded.folded(OpenAIChatModel("m", base_url="http://127.0.0.1", client=client, retries=0))

    assert peak_of(ask) < 15_000_000


def test_an_error_body_is_read_only_up_to_its_limit() -> None:
    def body() -> Iterator[bytes]:
        yield b'{"error": {"code": "overloaded"}}'
        for _ in range(framing.MOST_REFUSAL_BYTES // 2**16):
            yield b" " * 2**16
        pytest.fail("the refusal is read beyond the limit")

    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(529, stream=recorded.streamed_response(body(), "").stream)

    with recorded.answering(answer) as client, pytest.raises(ModelError, match="status 529"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", client=client, retries=0).call(recorded.REQUEST)
