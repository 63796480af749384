"""Malformed bodies and streams: every codec decodes them or raises a `ModelError`."""

from __future__ import annotations

import copy
import json
import math
import tracemalloc
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests import modes
from tests.fixtures import exchanges, wire_cases
from tests.models import recorded
from tests.models.samples import SAMPLES, Answer, Sample
from tests.modes import MODES
from tests.waiting import in_time
from traced_tools import ChatClient, ModelError, RateLimited, ToolMessage
from traced_tools.core import ToolResultPart
from traced_tools.errors import InvalidResponse
from traced_tools.models import (
    ChatRequest,
    ChatResponse,
    GeminiEmbeddingModel,
    OllamaEmbeddingModel,
    OpenAIEmbeddingModel,
)
from traced_tools.models.http import framing
from traced_tools.testing import ReplayServer, Reply

wild = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
"""A slow machine is no fault of a codec's."""

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=repr)


def nested() -> Any:
    """A value in 200 lists."""
    value: Any = "x"
    for _ in range(200):
        value = [value]
    return value


leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\ud800", "", "null", "[DONE]", "stop", "tool_calls", 10**400])
    | st.builds(nested)
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


@st.composite
def damage(draw: st.DrawFn, body: bytes) -> bytes:
    """Draw bytes that differ from `body` in a few places: changed, left out, said twice, put in, cut off."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 60)))
        put = draw(st.binary(max_size=6) | st.sampled_from([b'"', b"}", b"\n\n", b"\r", b"data: ", b"\xff", b"1e999"]))
        kept = draw(st.sampled_from([body[end:], body[start:], b""]))
        body = body[:start] + put + kept
    return body


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the path of everything in a JSON value."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inside:
        yield (*path, key)
        yield from places(item, (*path, key))


@st.composite
def swapped(draw: st.DrawFn, value: Any) -> Any:
    """Draw a JSON value with a few of its parts taken out or replaced by others."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(sorted(places(value), key=str) or [("added",)]))
        holder = value
        for key in path:
            holder = holder[key]
        if isinstance(holder, dict) and draw(st.booleans()):
            holder.pop(last, None)
        else:
            holder[last] = copy.deepcopy(draw(values))
    return value


def ask(sample: Sample, body: bytes, *, streamed: bool) -> ChatResponse | ModelError:
    """Return what a model makes of `body`: an answer, or the error it raises; any other error passes."""
    content_type = sample.content_type if streamed else "application/json"

    def answer() -> ChatResponse:
        with recorded.answering(lambda request: recorded.streamed_response([body], content_type)) as client:
            model = sample.model_at("http://127.0.0.1", client=client)
            found = recorded.folded(model) if streamed else model.call(recorded.REQUEST)
            following = model._codec.encode(ChatRequest((found.message,)), stream=streamed)
            json.dumps(following, allow_nan=False)  # as the transport writes it
            return found

    try:
        return in_time(answer)
    except ModelError as error:
        return error


def check(found: ChatResponse | ModelError) -> None:
    if isinstance(found, ModelError):
        assert isinstance(found, InvalidResponse)
        assert found.__context__ is None
    else:
        assert ChatResponse.model_validate_json(found.model_dump_json()) == found


@every_sample
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@wild
@given(data=st.data())
def test_damaged_bytes_are_an_answer_or_an_invalid_response(
    sample: Sample, streamed: bool, data: st.DataObject
) -> None:
    body = data.draw(damage(sample.body(sample.asking, streamed=streamed)))
    check(ask(sample, body, streamed=streamed))


@every_sample
@wild
@given(data=st.data())
def test_a_body_with_other_values_in_it_is_an_answer_or_an_invalid_response(
    sample: Sample, data: st.DataObject
) -> None:
    body = json.dumps(data.draw(swapped(sample.asking.whole))).encode()
    check(ask(sample, body, streamed=False))


@every_sample
@wild
@given(data=st.data())
def test_a_stream_with_other_values_in_it_is_an_answer_or_an_invalid_response(
    sample: Sample, data: st.DataObject
) -> None:
    events = list(sample.asking.events)
    number = data.draw(st.integers(0, len(events) - 1))
    if not isinstance(events[number], str):
        events[number] = data.draw(swapped(events[number]))
    order = data.draw(st.permutations(range(len(events))) | st.just(range(len(events))))
    body = sample.body(Answer(None, [events[place] for place in order]), streamed=True)
    check(ask(sample, body, streamed=True))


@every_sample
@wild
@given(body=values)
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_any_json_is_an_answer_or_an_invalid_response(sample: Sample, streamed: bool, body: Any) -> None:
    answer = Answer(body, [body, body])
    check(ask(sample, sample.body(answer, streamed=streamed), streamed=streamed))


@every_sample
def test_json_nested_without_end_is_an_invalid_response(sample: Sample) -> None:
    for streamed in (False, True):
        body = b"[" * 100_000
        if streamed:
            body = body + b"\n" if sample.content_type == "application/x-ndjson" else b"data: " + body + b"\n\n"
        assert isinstance(ask(sample, body, streamed=streamed), InvalidResponse)


@every_sample
def test_an_answer_above_the_maximum_size_is_refused(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing.ResponseBody.__init__, "__defaults__", (100_000,))
    event = sample.body(Answer(None, [sample.closing.events[0]]), streamed=True)

    def endless() -> Iterator[bytes]:
        while True:
            yield event

    for streamed in (False, True):
        content_type = sample.content_type if streamed else "application/json"
        with recorded.answering(lambda _, kind=content_type: recorded.streamed_response(endless(), kind)) as client:
            model = sample.model_at("http://127.0.0.1", client=client)
            with pytest.raises(InvalidResponse, match="larger than 100000 bytes"):
                recorded.folded(model) if streamed else model.call(recorded.REQUEST)


@pytest.mark.slow
@every_sample
def test_memory_is_limited_by_the_answer_and_not_by_events_without_content(sample: Sample) -> None:
    first, *rest = sample.closing.events
    nothing = {"type": "ping"} if "type" in first else {**first, **_emptied(first)}
    event = sample.body(Answer(None, [nothing]), streamed=True)
    pieces = [sample.body(Answer(None, [first]), streamed=True), sample.body(Answer(None, rest), streamed=True)]

    def body() -> Iterator[bytes]:
        yield pieces[0]
        for number in range(20_000):
            if number == 1_000:
                tracemalloc.start()
            yield event
        held.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
        yield pieces[1]

    held: list[int] = []
    with recorded.answering(lambda _: recorded.streamed_response(body(), sample.content_type)) as client:
        recorded.folded(sample.model_at("http://127.0.0.1", client=client))
    assert held[0] < 100_000


def _emptied(event: dict[str, Any]) -> dict[str, Any]:
    """Return an event's fields that hold text, with none in them."""
    emptied: dict[str, Any] = json.loads(json.dumps(event).replace('"Rain ', '"').replace('"Rain', '"'))
    return emptied


STREAMS = wire_cases("anthropic--sse", "gemini--sse", "openai-responses--sse", "openai-chat--sse", "ollama-chat--sse")
PROVIDERS = {repr(sample): sample for sample in SAMPLES}
MODELS = {
    "anthropic": "AnthropicChatModel",
    "gemini": "GeminiChatModel",
    "openai-responses": "OpenAIResponsesModel",
    "openai-chat": "OpenAIChatModel",
    "ollama-chat": "OpenAIChatModel",
}


@pytest.mark.parametrize("case", STREAMS)
@wild
@given(data=st.data())
def test_a_recorded_stream_that_is_damaged_is_an_answer_or_an_invalid_response(case: str, data: st.DataObject) -> None:
    sample = PROVIDERS[MODELS[case.split("--")[0]]]
    body = data.draw(damage(exchanges(case)[0].body))
    check(ask(sample, body, streamed=True))


# A sweep: each value in each place of an answer, whole and streamed.

SECRET = "the secret words"
IN_STREAMS = ("7", f'"{SECRET}"', "1e400")
REVEALING = (*IN_STREAMS, "null", '""', "[]", "{}", "NaN", '"image/ b"')
ALL_VALUES = (
    *REVEALING,
    *("true", "-1", "0.5", "1" * 400, "1" * 5_000, "-Infinity", '"\\u0000"', '"\\ud83d"', '"%%%%"', '"AAAA"'),
    *("[" * 190 + "]" * 190, "[1]", "[null]", "[{}]", '[""]', '{"a": NaN}', '{"type": "text"}', '{"index": 1e400}'),
)


def rich(kind: str) -> Any:
    """Return a whole answer with the parts that the samples do not have."""
    return {
        "OpenAIChatModel": {
            "choices": [
                {
                    "message": {
                        "content": [
                            {"type": "text", "text": "a"},
                            {"type": "thinking", "thinking": [{"type": "text", "text": "b"}]},
                            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                            {"type": "other", "score": 0.5},
                        ],
                        "images": [{"image_url": {"url": "http://127.0.0.1/a.png"}}],
                        "reasoning_details": [{"type": "reasoning.text", "text": "c", "index": 0}],
                        "function_call": {"name": "f", "arguments": {"a": 1}},
                        "tool_calls": [
                            {"id": "c", "function": {"name": "f"}, "extra_content": {"google": {"a": 1}}},
                            {"id": "d", "custom": {"name": "f", "input": "a"}, "extra_content": {"google": {"a": 1}}},
                        ],
                    },
                    "finish_reason": "stop",
                }
            ]
        },
        "OpenAIResponsesModel": {
            "status": "completed",
            "output": [
                {"type": "image_generation_call", "id": "i", "result": "AAAA", "output_format": "png"},
                {"type": "web_search_call", "id": "w", "action": {"score": 0.5}},
                {"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "a"}]},
                {"type": "message", "id": "m", "phase": "final", "content": [{"refusal": "b"}]},
                {"type": "function_call", "id": "f", "namespace": "n", "call_id": "c", "name": "f", "arguments": {}},
                {"type": "custom_tool_call", "id": "g", "namespace": "n", "call_id": "d", "name": "f", "input": "a"},
            ],
        },
        "AnthropicChatModel": {
            "content": [
                {"type": "redacted_thinking", "data": "a"},
                {"type": "server_tool_use", "id": "s", "name": "search", "input": {"score": 0.5}},
                {"type": "text", "text": "b", "citations": [{"start": 0}]},
                {"type": "tool_use", "id": "c", "name": "f", "input": {}, "caller": {"type": "t", "tool_id": "s"}},
            ],
            "stop_reason": "end_turn",
        },
        "GeminiChatModel": {
            "candidates": [
                {
                    "content": {
                        "parts": [
                            {"inlineData": {"mimeType": "image/png", "data": "AAAA"}, "thoughtSignature": "s"},
                            {"inlineData": {"mimeType": "audio/wav", "data": "AAAA"}},
                            {"executableCode": {"code": "1", "score": 0.5}},
                            {"text": "", "thought": True, "thoughtSignature": "s"},
                            {"functionCall": {"name": "f", "args": {"a": 1}, "id": "i"}},
                        ]
                    },
                    "finishReason": "STOP",
                }
            ],
            "promptFeedback": {"blockReason": "OTHER"},
        },
        "OllamaChatModel": {
            "message": {"images": ["iVBORw0KGgo="], "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            "done": True,
            "done_reason": "stop",
        },
    }[kind]


def altered(value: Any, json_values: Sequence[str]) -> Iterator[bytes]:
    """Give `value` as JSON with each of `json_values` in each place, and without what is there."""
    for path in places(value):
        *holders, last = path
        changed = copy.deepcopy(value)
        holder = changed
        for key in holders:
            holder = holder[key]
        holder[last] = "@here@"
        text = json.dumps(changed)
        for json_value in json_values:
            yield text.replace('"@here@"', json_value).encode()
        del holder[last]
        yield json.dumps(changed).encode()


class Asking:
    """A model and the answer that it gets next."""

    def __init__(self, sample: Sample) -> None:
        self.body = b""
        self.streamed = False
        self._closing = sample.body(sample.closing, streamed=False)
        self._content_type = sample.content_type
        client = httpx.Client(transport=httpx.MockTransport(self._answer))
        self._model = sample.model_at("http://127.0.0.1", client=client)

    def _answer(self, request: httpx.Request) -> httpx.Response:
        content_type = self._content_type if self.streamed else "application/json"
        return httpx.Response(200, headers={"Content-Type": content_type}, content=self.body)

    def check(self, body: bytes, *, streamed: bool) -> None:
        """Check that an answer is a `ModelError` that quotes nothing, or a message that can be sent back."""
        self.body, self.streamed = body, streamed
        try:
            response = recorded.folded(self._model) if streamed else self._model.call(recorded.REQUEST)
        except ModelError as error:
            assert isinstance(error, InvalidResponse)
            assert error.provider == self._model.provider
            assert SECRET not in str(error)
            assert error.__context__ is None
            return
        results = [ToolResultPart(call_id=call.id or "c", name=call.name, content="1") for call in response.tool_calls]
        self.body, self.streamed = self._closing, False
        self._model.call(ChatRequest((*recorded.REQUEST.messages, response.message, ToolMessage(results))))


def sweep(sample: Sample, json_values: Sequence[str], in_streams: Sequence[str]) -> None:
    asking = Asking(sample)
    for whole in (sample.asking.whole, rich(repr(sample))):
        for body in altered(whole, json_values):
            asking.check(body, streamed=False)
    framed = b"%s\n" if sample.content_type == "application/x-ndjson" else b"data: %s\n\n"
    events = [(event if isinstance(event, str) else json.dumps(event)).encode() for event in sample.asking.events]
    for number, event in enumerate(sample.asking.events):
        asking.check(b"".join(framed % each for each in events[:number]), streamed=True)
        if not isinstance(event, str):
            for changed in altered(event, in_streams):
                stream = [*events[:number], changed, *events[number + 1 :]]
                asking.check(b"".join(framed % each for each in stream), streamed=True)


@every_sample
def test_a_chosen_odd_value_in_any_place_is_a_resendable_answer_or_an_invalid_response(sample: Sample) -> None:
    sweep(sample, REVEALING, IN_STREAMS)


@pytest.mark.slow
@every_sample
def test_any_value_in_any_place_is_a_resendable_answer_or_an_invalid_response(sample: Sample) -> None:
    sweep(sample, ALL_VALUES, ALL_VALUES)


def answering_with(body: bytes, status: int = 200) -> httpx.Client:
    return recorded.answering(lambda _: httpx.Response(status, content=body))


EMBEDDINGS: tuple[tuple[Any, Any], ...] = (
    (
        OpenAIEmbeddingModel,
        {
            "data": [{"index": 0, "embedding": [0.5, 1]}, {"index": 1, "embedding": "AACAPwAAgD8="}],
            "model": "m",
            "usage": {"prompt_tokens": 1},
        },
    ),
    (OllamaEmbeddingModel, {"embeddings": [[0.5, 1], [1, 0.5]], "model": "m", "prompt_eval_count": 1}),
    (
        GeminiEmbeddingModel,
        {"embeddings": [{"values": [0.5, 1]}, {"values": [1, 0.5]}], "usageMetadata": {"promptTokenCount": 1}},
    ),
)


@pytest.mark.parametrize(("kind", "whole"), EMBEDDINGS, ids=["openai", "ollama", "gemini"])
def test_any_value_in_any_place_of_embeddings_is_an_answer_or_an_invalid_response(kind: Any, whole: Any) -> None:
    for body in altered(whole, ALL_VALUES):
        with answering_with(body) as client:
            model = kind("m", base_url="http://127.0.0.1", client=client)
            try:
                vectors = model.embed(["a", "b"]).embeddings
                assert all(math.isfinite(number) for vector in vectors for number in vector)
            except InvalidResponse as error:
                assert SECRET not in str(error)
                assert error.__context__ is None


def test_any_value_in_any_place_of_a_refusal_is_a_model_error_that_quotes_nothing() -> None:
    refusal = {
        "error": {"message": SECRET, "code": "c", "type": "t", "status": "s", "details": [{"retryDelay": "1s"}]},
        "detail": [{"type": "t", "msg": SECRET}],
        "request_id": "r",
    }
    for body in altered(refusal, (*ALL_VALUES, "[" * 990 + "]" * 990)):
        with answering_with(body, 429) as client, pytest.raises(RateLimited) as caught:
            SAMPLES[0].model_at("http://127.0.0.1", client=client).call(recorded.REQUEST)
        assert SECRET not in str(caught.value)
        assert caught.value.__context__ is None


# Values that our own types refuse, or that no request could send back: the answer is refused before a tool runs.

GEMINI_PARTS = {"executableCode": {"score": "@here@"}}, {"functionCall": {"name": "weather", "args": {}}}
GEMINI_ODD = {"candidates": [{"content": {"parts": GEMINI_PARTS}, "finishReason": "STOP"}]}
IMAGE_PARTS = {"inlineData": {"mimeType": "image/ b", "data": "AAAA"}}, GEMINI_PARTS[1]
IMAGE_ODD = {"candidates": [{"content": {"parts": IMAGE_PARTS}, "finishReason": "STOP"}]}
CHAT_ODD = {
    "tool_calls": [
        {"index": 0, "id": "c", "function": {"name": "weather"}, "extra_content": {"google": {"a": "@here@"}}}
    ]
}
CHAT_TEXT_ODD = {"content": {"a": "@here@"}, "tool_calls": [{"index": 0, "id": "c", "function": {"name": "weather"}}]}
ITEM_ODD = {"type": "custom_tool_call", "call_id": "c", "name": "weather", "input": "", "namespace": {"a": "@here@"}}
BLOCK_ODD = {"type": "tool_use", "id": "c", "name": "weather", "input": {}, "caller": {"type": "t", "a": "@here@"}}


def chat_odd(said: dict[str, Any]) -> Answer:
    whole, event = ({"choices": [{field: said, "finish_reason": "tool_calls"}]} for field in ("message", "delta"))
    return Answer(whole, [event, "[DONE]"])


ODD: dict[str, tuple[str, Answer, str]] = {
    "an image type": ("GeminiChatModel", Answer(IMAGE_ODD, [IMAGE_ODD]), "media_type: string_pattern_mismatch"),
    "a number in a part": ("GeminiChatModel", Answer(GEMINI_ODD, [GEMINI_ODD]), "an opaque part contains a number"),
    "a number in extra_content": ("OpenAIChatModel", chat_odd(CHAT_ODD), "an opaque part contains a number"),
    "a number in content": ("OpenAIChatModel", chat_odd(CHAT_TEXT_ODD), "an opaque part contains a number"),
    "a number in namespace": (
        "OpenAIResponsesModel",
        Answer(
            {"status": "completed", "output": [ITEM_ODD]},
            [{"type": "response.output_item.done", "output_index": 0, "item": ITEM_ODD}],
        ),
        "an opaque part contains a number",
    ),
    "a number in caller": (
        "AnthropicChatModel",
        Answer(
            {"content": [BLOCK_ODD], "stop_reason": "tool_use"},
            [
                {"type": "message_start", "message": {"id": "m"}},
                {"type": "content_block_start", "index": 0, "content_block": BLOCK_ODD},
            ],
        ),
        "an opaque part contains a number",
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("what", ODD)
def test_an_answer_that_could_not_be_sent_back_is_refused_before_its_calls_run(mode: str, what: str) -> None:
    kind, answer, cause = ODD[what]
    sample = PROVIDERS[kind]
    body = sample.body(answer, streamed="stream" in mode).replace(b'"@here@"', b"1e400")
    ran: list[str] = []

    def weather() -> str:
        """Return the weather."""
        ran.append("weather")
        return "rain"

    content_type = sample.content_type if "stream" in mode else "application/json"
    with ReplayServer([Reply(body, content_type=content_type)]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(InvalidResponse, match=f"cannot be understood: {cause}"):
            modes.run(mode, ChatClient(model, tools=[weather]).prompt("hi"), model)
    assert ran == []


def test_an_invalid_type_of_a_generated_image_is_an_invalid_response() -> None:
    item = {"type": "image_generation_call", "result": "AAAA", "output_format": ""}
    found = ask(SAMPLES[1], json.dumps({"status": "completed", "output": [item]}).encode(), streamed=False)
    assert "media_type: string_pattern_mismatch" in str(found)
