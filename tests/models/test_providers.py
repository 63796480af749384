"""What holds for every provider: the same loop, the same messages, the same errors, in all four modes."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from threading import Event
from typing import Any

import pytest

from tests import modes
from tests.models import recorded
from tests.models.samples import CITIES, CLOSING, REASONING, SAMPLES, TEXT, USAGE, Answer, Sample, calls
from tests.modes import MODES
from traced_tools import Advisor, ChatClient, ChatClientRequestSpec, ChatClientResponse, ModelError, ToolMessage
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import ChatResponse
from traced_tools.models.http.model import HttpChatModel
from traced_tools.observe import ToolArgumentsDelta
from traced_tools.testing import CapturedTelemetry, Delay, Fault, ReplayServer, Reply, capture_telemetry

pytestmark = pytest.mark.parametrize("sample", SAMPLES, ids=repr)


def weather(city: str) -> str:
    """Get the weather in a city."""
    return f"rain in {city}"


def reply(sample: Sample, answer: Answer, mode: str, **settings: Any) -> Reply:
    """Return an answer as `mode` is sent it."""
    streamed = "stream" in mode
    content_type = sample.content_type if streamed else "application/json"
    return Reply(sample.body(answer, streamed=streamed), content_type=content_type, **settings)


def specification(
    model: HttpChatModel, telemetry: CapturedTelemetry | None = None, **settings: Any
) -> ChatClientRequestSpec:
    options = None if telemetry is None else telemetry.options
    return ChatClient(model, tools=[weather], telemetry=options, **settings).prompt("Where does it rain?")


def answered(sample: Sample, answer: Answer, *, streamed: bool) -> ChatResponse:
    body = sample.body(answer, streamed=streamed)
    content_type = sample.content_type if streamed else "application/json"
    return recorded.ask(sample.model_at, Reply(body, content_type=content_type), streamed=streamed)


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_runs_to_its_end(sample: Sample, mode: str) -> None:
    with ReplayServer([reply(sample, sample.asking, mode), reply(sample, sample.closing, mode)]) as server:
        model = sample.model_at(server.url)
        with capture_telemetry() as captured:
            response = modes.run(mode, specification(model, captured), model)
    assert response.content == CLOSING
    assert response.stop_reason == "answered"
    assert response.finish_reason == "stop"
    assert [result.content for result in response.tool_results] == [f"rain in {city}" for city in CITIES]
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (40, 12)
    chats = [span for span in captured.spans if span.name == "chat m"]
    assert [dict(span.attributes or {})["gen_ai.provider.name"] for span in chats] == [model.provider] * 2
    assert {span.kind.name for span in chats} == {"CLIENT"}


@pytest.mark.parametrize("mode", MODES)
def test_the_answer_is_the_same_message_in_every_mode(sample: Sample, mode: str) -> None:
    with ReplayServer([reply(sample, sample.asking, mode), reply(sample, sample.closing, mode)]) as server:
        model = sample.model_at(server.url)
        response = modes.run(mode, specification(model), model)
    _, asked, results, closing = response.messages
    assert asked.role == "assistant"
    assert closing.role == "assistant"
    assert (asked.reasoning, asked.text, closing.text) == (REASONING, TEXT, CLOSING)
    ids = [call.id for call in asked.tool_calls]
    assert [(call.name, json.loads(call.arguments)) for call in asked.tool_calls] == [
        (call.name, json.loads(call.arguments)) for call in calls()
    ]
    assert (ids == ["c1", "c2"]) is sample.has_ids
    assert len(set(ids)) == 2
    assert isinstance(results, ToolMessage)
    assert [result.call_id for result in results.results] == ids


@pytest.mark.parametrize("answer", ["asking", "closing"])
def test_a_stream_folds_to_the_response_of_a_whole_answer(sample: Sample, answer: str) -> None:
    said = getattr(sample, answer)
    whole, streamed = answered(sample, said, streamed=False), answered(sample, said, streamed=True)
    assert streamed.message == whole.message
    assert (streamed.id, streamed.model) == (whole.id, whole.model)
    assert streamed.usage == whole.usage
    assert whole.usage is not None
    expected = USAGE[answer == "closing"]
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (expected.input_tokens, expected.output_tokens)


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_second_request_is_the_same_after_a_streamed_and_a_whole_answer(sample: Sample, mode: str) -> None:
    bodies = []
    for each in ("call", mode):
        with ReplayServer([reply(sample, sample.asking, each), reply(sample, sample.closing, each)]) as server:
            model = sample.model_at(server.url)
            modes.run(each, specification(model), model)
            bodies.append(server.requests[1].json())
    for body in bodies:
        body.pop("stream", None)
        body.pop("stream_options", None)
    assert bodies[0] == bodies[1]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_pieces_of_each_calls_arguments_join_to_its_arguments(sample: Sample, mode: str) -> None:
    from tests.events.watching import Watching

    watching = Watching(deltas=True)
    with ReplayServer([reply(sample, sample.asking, mode), reply(sample, sample.closing, mode)]) as server:
        model = sample.model_at(server.url)
        response = modes.run(mode, specification(model, advisors=[watching]), model)
    joined: dict[str, str] = {}
    for event in watching.events:
        if isinstance(event, ToolArgumentsDelta):
            assert event.tool_name == "weather"
            joined[event.call_id] = joined.get(event.call_id, "") + event.arguments
    asked = response.messages[1]
    assert asked.role == "assistant"
    assert joined == {call.id: call.arguments for call in asked.tool_calls}


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_that_ends_before_the_answer_does_is_an_invalid_response(sample: Sample, mode: str) -> None:
    events = Answer(None, sample.asking.events[: len(sample.asking.events) // 2])
    with ReplayServer([reply(sample, events, mode)]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(InvalidResponse, match="ended before the answer did"):
            modes.run(mode, specification(model), model)


@pytest.mark.parametrize("mode", ["stream", "astream"])
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
def test_a_connection_that_breaks_after_the_whole_answer_is_ignored(sample: Sample, mode: str, fault: Fault) -> None:
    said = Event()

    def body() -> Iterator[bytes | Delay | Fault]:
        yield sample.body(sample.closing, streamed=True)
        yield Delay(said)  # so that a reset does not take the words with it
        yield fault

    class Hearing(Advisor):
        name, order = "hearing", 400

        def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
            if chunk.finish_reason == "stop":
                said.set()
            return chunk

    with ReplayServer([Reply(body(), content_type=sample.content_type)]) as server:
        model = sample.model_at(server.url)
        response = modes.run(mode, specification(model, advisors=[Hearing()]), model)
    assert response.content == CLOSING


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [Fault.CUT, Fault.RESET])
def test_a_connection_that_breaks_during_an_answer_is_a_model_error(sample: Sample, mode: str, fault: Fault) -> None:
    streamed = "stream" in mode
    body = sample.body(sample.asking, streamed=streamed)
    content_type = sample.content_type if streamed else "application/json"
    with ReplayServer([Reply([body[: len(body) // 2], fault], content_type=content_type)]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(ModelError) as caught:
            modes.run(mode, specification(model), model)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("mode", MODES)
def test_an_error_has_the_body_of_a_refusal_and_does_not_show_it(sample: Sample, mode: str) -> None:
    body = '{"error": {"message": "secret wörds"}}'
    with ReplayServer([Reply(body.encode(), 400, content_type="application/json")]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(InvalidRequest) as caught:
            modes.run(mode, specification(model), model)
    assert (caught.value.status_code, caught.value.provider, caught.value.body) == (400, model.provider, body)
    assert "secret" not in f"{caught.value!s} {caught.value!r} {vars(caught.value)!r}"
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (copied.body, str(copied)) == (body, str(caught.value))


@pytest.mark.parametrize("mode", MODES)
def test_an_error_has_the_invalid_body_or_event_and_does_not_show_it(sample: Sample, mode: str) -> None:
    wrong = {"error": {"message": "secret words"}}
    with ReplayServer([reply(sample, Answer(wrong, [wrong]), mode)]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(InvalidResponse) as caught:
            modes.run(mode, specification(model), model)
    assert json.loads(caught.value.body or "") == wrong
    assert "secret" not in f"{caught.value!s} {caught.value!r} {vars(caught.value)!r}"


@pytest.mark.parametrize("mode", MODES)
def test_a_request_to_a_busy_provider_is_retried(sample: Sample, mode: str) -> None:
    busy = Reply.json({"error": {"message": "busy"}}, 429, {"Retry-After": "0"})
    with ReplayServer([busy, reply(sample, sample.closing, mode)]) as server:
        model = sample.model_at(server.url, retries=1)
        assert modes.run(mode, specification(model), model).content == CLOSING
        first, second = server.requests
    assert first.body == second.body


@pytest.mark.parametrize("mode", MODES)
def test_the_key_is_in_a_header_and_nowhere_else(sample: Sample, mode: str) -> None:
    with ReplayServer([reply(sample, sample.closing, mode)]) as server:
        key = "sk-the-secret-key"
        model = sample.kind("m", base_url=server.url, api_key=key, **sample.arguments)
        modes.run(mode, specification(model), model)
        (request,) = server.requests
    assert any(key in value for value in request.headers.values())
    assert key not in request.path
    assert key.encode() not in request.body
    assert key not in repr(model)


@pytest.mark.parametrize("mode", MODES)
def test_the_request_has_the_trace_context_of_its_chat_span(sample: Sample, mode: str) -> None:
    with ReplayServer([reply(sample, sample.closing, mode)]) as server, capture_telemetry() as captured:
        model = sample.model_at(server.url)
        modes.run(mode, specification(model, captured), model)
        (request,) = server.requests
    (chat,) = [span.context for span in captured.spans if span.name == "chat m" and span.context is not None]
    assert request.headers["traceparent"].startswith(f"00-{chat.trace_id:032x}-{chat.span_id:016x}-")


def test_the_first_chunk_reaches_the_consumer_before_the_second_is_read(sample: Sample) -> None:
    pieces = [sample.body(Answer(None, [event]), streamed=True) for event in sample.closing.events]
    handed: list[int] = []

    def body() -> Any:
        for number, piece in enumerate(pieces):
            handed.append(number)
            yield piece

    def answer(request: Any) -> Any:
        return recorded.streamed_response(body(), sample.content_type)

    with recorded.answering(answer) as client:
        stream = sample.model_at("http://127.0.0.1", client=client).stream(recorded.REQUEST)
        first = next(chunk for chunk in stream if chunk.text)
        assert first.text
        assert handed[-1] < len(pieces) - 1
        before = len(handed)
        next(stream)
        assert len(handed) > before
        stream.close()  # type: ignore[attr-defined]


def test_a_stream_on_asyncio_may_be_left_and_the_model_used_again(sample: Sample) -> None:
    async def leave_and_ask(url: str) -> str:
        async with sample.model_at(url) as model:
            async with specification(model).astream() as stream:
                await anext(stream)
            return (await specification(model).acall()).content

    with ReplayServer([reply(sample, sample.closing, "astream"), reply(sample, sample.closing, "acall")]) as server:
        assert asyncio.run(leave_and_ask(server.url)) == CLOSING
