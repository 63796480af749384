"""`FallbackModel` asks the next model after failures that another model may not have."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.models.samples import CLOSING, NAME, SAMPLES, TEXT, Sample
from tests.modes import BLOCKING_MODES, STREAMING_MODES, arun, run, run_chunks
from tests.sample_tools import add
from tests.waiting import patiently
from traced_tools import (
    AssistantMessage,
    AuthenticationError,
    ChatClient,
    ChatClientRequestSpec,
    ChatClientResponse,
    ConfigurationError,
    EvaluationAdvisor,
    ModelError,
    ModelTimeout,
    RateLimited,
    ToolCall,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.advisors import ModelJudge
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse, FallbackModel
from traced_tools.models.http.model import HttpChatModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

DOWN = ModelError("the request failed", provider="scripted", status_code=503, retryable=True)


def named(name: str, *turns: Any, **settings: Any) -> ScriptedChatModel:
    return ScriptedChatModel(turns, model=name, **settings)


class Breaking(ScriptedChatModel):
    """Streams some chunks and then fails."""

    def __init__(self, *chunks: ChatChunk) -> None:
        super().__init__([], model="breaking")
        self.chunks = chunks

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        yield from self.chunks
        raise InvalidResponse("the answer was cut short", provider="scripted")

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        for chunk in self.stream(request):
            yield chunk


def test_the_next_model_answers_if_one_fails_and_each_attempt_has_a_span(mode: str, telemetry: Telemetry) -> None:
    call = ToolCall("add", {"a": 1, "b": 2})
    usage = Usage(input_tokens=3, output_tokens=4)
    model = FallbackModel([named("first", call, DOWN), named("second", DOWN), named("third", "three", usage=usage)])
    response = run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("1 + 2?"))
    assert (response.content, response.stop_reason, response.usage) == ("three", "answered", usage)
    spans = [(span.name, (span.attributes or {}).get("error.type")) for span in telemetry.named("chat")]
    failed = "traced_tools.errors.ModelError"
    assert spans == [("chat first", None), ("chat first", failed), ("chat second", failed), ("chat third", None)]
    assert response.run.totals.inference_calls == 4
    measured = {
        (point.attributes["gen_ai.request.model"], point.attributes.get("error.type")): point.count
        for point in telemetry.metric("gen_ai.client.inference.duration")
    }
    assert measured == {("first", None): 1, ("first", failed): 1, ("second", failed): 1, ("third", None): 1}
    assert (telemetry.one("invoke_agent").attributes or {}).get("error.type") is None
    telemetry.check_each_ended_once()


def test_the_error_of_the_last_model_is_raised_with_the_others_as_notes(mode: str, telemetry: Telemetry) -> None:
    last = RateLimited("the request failed", provider="scripted", status_code=429)
    model = FallbackModel(
        [named("first", DOWN), named("second", ModelTimeout("no answer in time")), named("third", last)]
    )
    with pytest.raises(RateLimited) as raised:
        run(mode, ChatClient(model, telemetry=telemetry.options).prompt("?"))
    assert raised.value is last
    assert last.__notes__ == [
        "first failed first: ModelError: scripted: the request failed (status 503)",
        "second failed first: ModelTimeout: the model: no answer in time",
    ]
    assert (last.__cause__, last.__context__) == (None, None)
    telemetry.check_run("error", "traced_tools.errors.RateLimited")
    telemetry.check_each_ended_once()


def test_an_error_that_is_raised_again_has_each_note_once() -> None:
    last = ModelError("down")
    model = FallbackModel([named("first", DOWN, DOWN), named("second", last, last)])
    for _ in range(2):
        with pytest.raises(ModelError) as raised:
            ChatClient(model).prompt("?").call()
        assert raised.value is last
    assert len(last.__notes__) == 1


@pytest.mark.parametrize(
    ("error", "is_next_asked"),
    [
        (ModelError("down"), True),
        (ModelTimeout("slow"), True),
        (RateLimited("busy", status_code=429), True),
        (AuthenticationError("no", status_code=401), True),
        (InvalidResponse("odd"), True),
        (InvalidRequest("no credit", status_code=402), True),
        (InvalidRequest("no such model", status_code=404), True),
        (InvalidRequest("wrong", status_code=400), False),
        (InvalidRequest("too long", status_code=413), False),
        (ConfigurationError("an option"), False),
        (TypeError("a bug"), False),
        (ConnectionError("not of a model"), False),
    ],
    ids=repr,
)
def test_only_failures_that_another_model_may_not_have_ask_the_next_one(error: Exception, is_next_asked: bool) -> None:
    second = named("second", "answer")
    client = ChatClient(FallbackModel([named("first", error), second]))
    if is_next_asked:
        assert client.prompt("?").call().content == "answer"
    else:
        with pytest.raises(type(error)) as raised:
            client.prompt("?").call()
        assert raised.value is error
    assert len(second.requests) == is_next_asked


def test_an_answer_that_promises_calls_without_any_asks_the_next_model() -> None:
    odd = ChatResponse(AssistantMessage("text"), finish_reason="tool_call")
    assert ChatClient(FallbackModel([named("first", odd), named("second", "answer")])).prompt("?").call().content == (
        "answer"
    )


def test_a_judge_asks_the_next_model_as_well(mode: str, telemetry: Telemetry) -> None:
    judge = ModelJudge(FallbackModel([named("first", DOWN), named("second", '{"feedback": "", "score": 1}')]), "polite")
    client = ChatClient(named("asked", "Hello."), advisors=[EvaluationAdvisor(judge)], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert [each.score for each in response.evaluations] == [1.0]
    assert [span.name for span in telemetry.named("chat")] == ["chat asked", "chat first", "chat second"]


# Streams.


@pytest.mark.parametrize("stream_mode", STREAMING_MODES)
@pytest.mark.parametrize(
    "chunk",
    [
        ChatChunk(text="one "),
        ChatChunk(reasoning="hm"),
        ChatChunk.whole(ChatResponse(AssistantMessage([ToolCall("add", "{}")]))),
    ],
    ids=["text", "reasoning", "call"],
)
def test_no_other_model_is_asked_after_a_part_of_the_answer_was_streamed(
    stream_mode: str, chunk: ChatChunk, telemetry: Telemetry
) -> None:
    second = named("second")
    client = ChatClient(FallbackModel([Breaking(chunk), second]), telemetry=telemetry.options)
    with pytest.raises(InvalidResponse) as raised:
        run(stream_mode, client.prompt("?"))
    assert raised.value.streamed
    assert second.requests == []
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("stream_mode", STREAMING_MODES)
def test_an_odd_end_of_a_streamed_answer_asks_no_other_model(stream_mode: str) -> None:
    odd = ChatResponse(AssistantMessage("text"), finish_reason="tool_call")
    with pytest.raises(InvalidResponse) as raised:
        run(stream_mode, ChatClient(FallbackModel([named("first", odd), named("second")])).prompt("?"))
    assert raised.value.streamed


@pytest.mark.parametrize("stream_mode", STREAMING_MODES)
def test_the_next_model_is_asked_if_only_chunks_without_content_have_arrived(stream_mode: str) -> None:
    model = FallbackModel([Breaking(ChatChunk(id="a", model="m")), named("second", "one two")])
    response, chunks = run_chunks(stream_mode, ChatClient(model).prompt("?"))
    assert response.content == "one two"
    assert "".join(chunk.text for chunk in chunks) == "one two"


def test_a_stream_without_a_client_asks_the_next_model_too() -> None:
    model = FallbackModel([Breaking(), named("second", "one two")])
    chunks = model.stream(ChatRequest((UserMessage("?"),)))
    assert "".join(chunk.visible_text for chunk in chunks) == "one two"


# Models of different providers.


@tool(name=NAME)
def weather(city: str) -> str:
    """Look up the weather."""
    return f"rain in {city}"


def run_and_close(mode: str, spec: ChatClientRequestSpec, models: Sequence[HttpChatModel]) -> ChatClientResponse:
    if mode in BLOCKING_MODES:
        with models[0], models[1]:
            return run(mode, spec)

    async def on_asyncio() -> ChatClientResponse:
        async with models[0], models[1]:
            return await arun(mode, spec)

    return asyncio.run(patiently(on_asyncio()))


@pytest.mark.parametrize("first", SAMPLES, ids=repr)
def test_a_model_of_another_provider_goes_on_in_the_middle_of_a_run(mode: str, first: Sample) -> None:
    second = SAMPLES[SAMPLES.index(first) - 1]
    streamed = "stream" in mode

    def reply(sample: Sample, answer: Any) -> Reply:
        kind = sample.content_type if streamed else "application/json"
        return Reply(sample.body(answer, streamed=streamed), content_type=kind)

    with (
        ReplayServer([reply(first, first.asking), Reply.json({}, 503)]) as one,
        ReplayServer([reply(second, second.closing)]) as other,
    ):
        models = first.model_at(one.url), second.model_at(other.url)
        client = ChatClient(FallbackModel(models), tools=[weather])
        response = run_and_close(mode, client.prompt("What is the weather in Oslo and Bergen?"), models)
    assert response.content == CLOSING
    (sent,) = other.requests
    for text in (TEXT, "rain in Oslo", "rain in Bergen"):
        assert text in sent.body.decode()
    assert "sealed" not in json.dumps(sent.json())


@pytest.mark.parametrize(
    ("models", "error"),
    [([], ValueError), ([named("only")], ValueError), (named("no list"), TypeError), ([named("a"), None], TypeError)],
    ids=["none", "one", "no list", "no model"],
)
def test_wrong_models_are_refused(models: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        FallbackModel(models)
