"""The transport: time-outs, retries, errors, streams closed early, and headers."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from traced_tools import (
    AuthenticationError,
    ChatClient,
    ChatOptions,
    ConfigurationError,
    ModelError,
    ModelTimeout,
    RateLimited,
    UserMessage,
)
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.models.http.retries import RetryPolicy
from traced_tools.observe import names
from traced_tools.testing import Delay, ReplayServer, Reply, capture_telemetry

SECRET = "sk-the-secret-key"
REQUEST = ChatRequest((UserMessage("hi"),))
FINE = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
FINE_STREAM = [{"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}, "[DONE]"]
MODES = ("call", "acall", "stream", "astream")


def ask(url: str, mode: str, **settings: Any) -> str:
    """Ask the server at `url` once and return the text of its answer."""
    model = OpenAIChatModel("m", base_url=url, api_key=SECRET, **settings)
    if mode == "call":
        with model:
            return model.call(REQUEST).message.text
    if mode == "stream":
        with model:
            return "".join(chunk.text for chunk in model.stream(REQUEST))

    async def on_asyncio() -> str:
        async with model:
            if mode == "acall":
                return (await model.acall(REQUEST)).message.text
            return "".join([chunk.text async for chunk in model.astream(REQUEST)])

    return asyncio.run(on_asyncio())


def fine(mode: str) -> Reply:
    return Reply.sse(FINE_STREAM) if "stream" in mode else Reply.json(FINE)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", lambda low, high: 0.0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, InvalidRequest, False),
        (401, AuthenticationError, False),
        (403, AuthenticationError, False),
        (404, InvalidRequest, False),
        (408, ModelTimeout, True),
        (422, InvalidRequest, False),
        (429, RateLimited, True),
        (500, ModelError, True),
        (503, ModelError, True),
        (529, ModelError, True),
        (501, ModelError, True),
        (302, ModelError, False),
    ],
)
def test_each_status_is_an_error_of_its_class(mode: str, status: int, kind: type[ModelError], retryable: bool) -> None:
    body = {"error": {"message": f"{SECRET} was wrong", "code": "the_code"}}
    with ReplayServer([Reply.json(body, status, {"x-request-id": "req-1"})]) as server:
        with pytest.raises(ModelError) as caught:
            ask(server.url, mode, retries=0)
    error = caught.value
    assert type(error) is kind
    assert (error.status_code, error.retryable, error.code, error.request_id) == (
        status,
        retryable,
        "the_code",
        "req-1",
    )
    assert SECRET not in str(error) + repr(error)
    assert f"status {status}" in str(error) and "req-1" in str(error)


@pytest.mark.parametrize("mode", MODES)
def test_retryable_errors_are_retried(mode: str) -> None:
    with ReplayServer([Reply.json({}, 429, {"Retry-After": "0"}), Reply.json({}, 503), fine(mode)]) as server:
        assert ask(server.url, mode, retries=2) == "fine"
        assert len(server.requests) == 3
        assert len({request.body for request in server.requests}) == 1


@pytest.mark.parametrize("mode", MODES)
def test_other_errors_are_not_retried(mode: str) -> None:
    with ReplayServer([Reply.json({}, 400), fine(mode)]) as server:
        with pytest.raises(InvalidRequest):
            ask(server.url, mode, retries=2)
        assert len(server.requests) == 1


@pytest.mark.parametrize("mode", MODES)
def test_after_the_last_attempt_the_error_is_raised(mode: str) -> None:
    with ReplayServer([Reply.json({}, 503)] * 3) as server:
        with pytest.raises(ModelError):
            ask(server.url, mode, retries=1)
        assert len(server.requests) == 2


def test_the_delay_doubles_and_honours_retry_after(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", lambda low, high: 1.0)
    policy = RetryPolicy(retries=3, first_delay=0.5)
    failure = ModelError("busy", retryable=True)
    assert [policy.delay(attempt, failure) for attempt in range(4)] == [0.5, 1.0, 2.0, None]
    assert policy.delay(0, RateLimited("busy", retryable=True, retry_after=7.0)) == 7.0
    assert policy.delay(0, RateLimited("busy", retryable=True, retry_after=3600.0)) is None
    assert policy.delay(0, ModelError("wrong", retryable=False)) is None


def test_the_delay_has_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", lambda low, high: 1.0)
    assert RetryPolicy(retries=5_000).delay(4_999, ModelError("busy", retryable=True)) == 8.0


@pytest.mark.parametrize("value", ["1", "Wed, 21 Oct 2015 07:28:00 GMT", "soon", "-5"])
def test_retry_after_may_be_seconds_a_date_or_nonsense(value: str) -> None:
    with ReplayServer([Reply.json({}, 429, {"Retry-After": value})]) as server:
        with pytest.raises(RateLimited) as caught:
            ask(server.url, "call", retries=0)
    assert caught.value.retry_after == {"1": 1.0, "soon": None}.get(value, 0.0)


@pytest.mark.parametrize("mode", MODES)
def test_a_server_that_does_not_answer_is_a_timeout_and_not_retried(mode: str) -> None:
    released = threading.Event()

    def silent() -> Iterator[bytes]:
        released.wait(10)
        yield b""

    content_type = "text/event-stream" if "stream" in mode else "application/json"
    with ReplayServer([Reply(silent(), content_type=content_type), fine(mode)]) as server:
        with pytest.raises(ModelTimeout) as caught:
            ask(server.url, mode, timeout=0.2, retries=2)
        released.set()
        assert len(server.requests) == 1
    assert caught.value.status_code is None


@pytest.mark.parametrize("mode", MODES)
def test_an_unreachable_server_is_a_retryable_model_error(mode: str) -> None:
    with ReplayServer([]) as gone:
        url = gone.url
    with pytest.raises(ModelError, match=r"connection to .* failed") as caught:
        ask(url, mode, retries=1)
    assert caught.value.retryable


@pytest.mark.parametrize("mode", MODES)
def test_a_truncated_answer_is_an_invalid_response(mode: str) -> None:
    cut = Reply([b'data: {"choices": [{"delta": {"content": "fi'], content_type="text/event-stream", cut=True)
    with ReplayServer([cut]) as server:
        with pytest.raises(InvalidResponse, match="cut short"):
            ask(server.url, mode, retries=0)


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_whole_answer_to_a_stream_request_is_an_invalid_response(mode: str) -> None:
    with ReplayServer([Reply.json(FINE)]) as server:
        with pytest.raises(InvalidResponse, match="the answer is not a stream") as caught:
            ask(server.url, mode, retries=0)
    assert json.loads(caught.value.body or "") == FINE


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_page_in_answer_to_a_stream_request_is_not_read_to_its_end(mode: str) -> None:
    page = Reply([b"<html>", Delay(60.0)], content_type="text/html")
    with ReplayServer([page]) as server:
        with pytest.raises(InvalidResponse, match="the answer is not a stream") as caught:
            ask(server.url, mode, retries=0)
    assert caught.value.body is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("status", [200, 400])
def test_an_error_keeps_the_beginning_of_a_long_body(mode: str, status: int) -> None:
    long = Reply("ö".encode() * 2**20, status, content_type="application/json")
    with ReplayServer([long]) as server, pytest.raises(ModelError) as caught:
        ask(server.url, mode, retries=0)
    assert caught.value.body == "ö" * 16_384


@pytest.mark.parametrize("mode", MODES)
def test_an_error_keeps_the_received_part_of_a_truncated_body(mode: str) -> None:
    with ReplayServer([Reply(b"sorry", 400, {"Content-Length": "50"}, cut=True)]) as server:
        with pytest.raises(InvalidRequest) as caught:
            ask(server.url, mode, retries=0)
    assert caught.value.body == "sorry"


def _gated(gate: threading.Event) -> Iterator[object]:
    yield {"choices": [{"delta": {"content": "first "}}]}
    assert gate.wait(10)
    yield {"choices": [{"delta": {"content": "second"}, "finish_reason": "stop"}]}
    yield "[DONE]"


def test_the_first_chunk_arrives_before_the_second_is_sent() -> None:
    gate = threading.Event()
    with ReplayServer([Reply.sse(_gated(gate))]) as server, OpenAIChatModel("m", base_url=server.url) as model:
        stream = model.stream(REQUEST)
        assert next(stream).text == "first "
        gate.set()
        assert next(stream).text == "second"


def test_the_first_chunk_arrives_before_the_second_is_sent_on_asyncio() -> None:
    gate = threading.Event()

    async def read(url: str) -> None:
        async with OpenAIChatModel("m", base_url=url) as model:
            stream = model.astream(REQUEST)
            assert (await anext(stream)).text == "first "
            gate.set()
            assert (await anext(stream)).text == "second"
            await stream.aclose()

    with ReplayServer([Reply.sse(_gated(gate))]) as server:
        asyncio.run(read(server.url))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_leaving_a_stream_early_closes_the_connection(mode: str) -> None:
    closed = threading.Event()

    def endless() -> Iterator[object]:
        try:
            while True:
                yield {"choices": [{"delta": {"content": "word " * 4000}}]}
        finally:
            closed.set()

    def leave(url: str) -> None:
        with OpenAIChatModel("m", base_url=url) as model, ChatClient(model).prompt("hi").stream() as stream:
            next(stream)

    async def aleave(url: str) -> None:
        async with OpenAIChatModel("m", base_url=url) as model:
            async with ChatClient(model).prompt("hi").astream() as stream:
                await anext(stream)

    with ReplayServer([Reply.sse(endless())]) as server:
        leave(server.url) if mode == "stream" else asyncio.run(aleave(server.url))
        assert closed.wait(10)


@pytest.mark.parametrize("mode", MODES)
def test_the_chat_span_is_the_parent_of_the_request(mode: str) -> None:
    def run(url: str) -> Callable[[], Any]:
        model = OpenAIChatModel("m", base_url=url, api_key=SECRET)
        spec = ChatClient(model, telemetry=captured.options).prompt("hi")

        async def on_asyncio() -> None:
            async with model:
                if mode == "acall":
                    await spec.acall()
                else:
                    async with spec.astream() as stream:
                        async for _ in stream:
                            pass

        def blocking() -> None:
            with model:
                list(spec.stream()) if mode == "stream" else spec.call()

        return blocking if mode in ("call", "stream") else lambda: asyncio.run(on_asyncio())

    with capture_telemetry() as captured, ReplayServer([fine(mode)]) as server:
        run(server.url)()
        headers = {name.lower(): value for name, value in server.requests[0].headers.items()}
        (chat,) = [span for span in captured.spans if span.name == "chat m"]
    context = chat.get_span_context()
    assert context is not None and chat.attributes is not None
    assert headers["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert "baggage" not in headers
    assert chat.attributes[names.SERVER_ADDRESS] == "127.0.0.1"
    assert chat.attributes.get(names.REQUEST_STREAM) is (True if "stream" in mode else None)
    assert SECRET not in str(chat.attributes)


def test_connections_are_kept_and_closed() -> None:
    with ReplayServer([fine("call"), fine("call"), fine("call")]) as server:
        model = OpenAIChatModel("m", base_url=server.url)
        with model:
            model.call(REQUEST)
            model.call(REQUEST)
        assert model.call(REQUEST).message.text == "fine"  # a closed model opens again when it is used
        model.close()


def test_each_event_loop_has_its_own_connections() -> None:
    with ReplayServer([fine("acall")] * 2) as server:
        model = OpenAIChatModel("m", base_url=server.url)

        async def ask_once() -> str:
            async with model:
                return (await model.acall(REQUEST)).message.text

        assert [asyncio.run(ask_once()), asyncio.run(ask_once())] == ["fine", "fine"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", object()])
def test_options_that_json_cannot_express_raise_an_error_that_quotes_nothing(value: Any) -> None:
    request = ChatRequest((UserMessage("secret words"),), options=ChatOptions(extra={"custom": value}))
    with OpenAIChatModel("m", base_url="http://127.0.0.1:1") as model:
        with pytest.raises(ConfigurationError, match="cannot be encoded as JSON") as caught:
            model.call(request)
    assert caught.value.__context__ is None


def test_text_that_utf_8_cannot_encode_is_sent_with_question_marks() -> None:
    with ReplayServer([Reply.json(FINE)]) as server, OpenAIChatModel("m", base_url=server.url) as model:
        model.call(ChatRequest((UserMessage("hi"),), options=ChatOptions(stop=("\ud83c.",))))
        (request,) = server.requests
    assert request.json()["stop"] == ["?."]
    assert request.headers["content-type"] == "application/json"
