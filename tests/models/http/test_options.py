"""Connection options: time-outs, proxies, headers, and custom httpx clients."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import modes
from tests.modes import ALL_MODES, ASYNC_MODES, BLOCKING_MODES
from traced_tools import ChatClient, ConfigurationError, ModelError, ModelTimeout, UserMessage
from traced_tools.models import (
    AnthropicChatModel,
    ChatRequest,
    GeminiChatModel,
    OllamaChatModel,
    OpenAIChatModel,
    OpenAIResponsesModel,
)
from traced_tools.models.http.options import Timeouts
from traced_tools.models.http.retries import RetryPolicy
from traced_tools.testing import Delay, Received, ReplayServer, Reply, capture_telemetry

REQUEST = ChatRequest((UserMessage("hi"),))
FINE = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}
FINE_STREAM = [{"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}, "[DONE]"]
SECRET = "sk-the-secret-key"
CHAT_MODELS = (OpenAIChatModel, OpenAIResponsesModel, AnthropicChatModel, GeminiChatModel, OllamaChatModel)


def ask(mode: str, model: OpenAIChatModel) -> str:
    return modes.run(mode, ChatClient(model).prompt("hi"), model).content


def fine(mode: str) -> Reply:
    return Reply.sse(FINE_STREAM) if "stream" in mode else Reply.json(FINE)


def sent(request: Received, name: str) -> str | None:
    return request.headers.get(name)


# Time-outs.


def test_a_number_as_time_out_applies_to_the_connection_and_to_each_piece() -> None:
    with pytest.raises(ValueError, match="timeout"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", timeout=0)
    with pytest.raises(TypeError, match="seconds, a Timeouts or None"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", timeout="soon")  # type: ignore[arg-type]


@pytest.mark.parametrize("field", ["connect", "read", "total"])
@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_a_time_out_is_a_positive_number_of_seconds(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Timeouts(**{field: value})


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_answer_that_trickles_in_ends_at_the_total_time_out(mode: str) -> None:
    stopped = threading.Event()

    def trickling() -> Iterator[bytes]:
        while not stopped.is_set():
            yield b": still thinking\n\n"

    endless = Reply(trickling(), content_type="text/event-stream")
    with ReplayServer([endless, fine(mode)]) as server:
        model = OpenAIChatModel("m", base_url=server.url, timeout=Timeouts(total=0.2))
        with pytest.raises(ModelTimeout, match="in time"):
            ask(mode, model)
        stopped.set()
        assert len(server.requests) == 1


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_retry_after_the_total_time_out_is_not_waited_for(mode: str) -> None:
    with ReplayServer([Reply.json({}, 503, {"Retry-After": "30"})]) as server:
        model = OpenAIChatModel("m", base_url=server.url, timeout=Timeouts(total=5))
        with pytest.raises(ModelError) as caught:
            ask(mode, model)
    assert caught.value.status_code == 503


@pytest.mark.parametrize("mode", ALL_MODES)
def test_without_a_limit_an_answer_may_take_its_time(mode: str) -> None:
    with ReplayServer([fine(mode)]) as server:
        assert ask(mode, OpenAIChatModel("m", base_url=server.url, timeout=None)) == "fine"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_time_out_error_names_the_limits(mode: str) -> None:
    with ReplayServer([Delay(math.inf)]) as server:
        model = OpenAIChatModel("m", base_url=server.url, timeout=Timeouts(connect=3, read=0.05, total=9))
        with pytest.raises(ModelTimeout, match=r"no answer in time \(connect 3 s, read 0\.05 s, total 9 s\)"):
            ask(mode, model)


# Failed connections.


@pytest.mark.parametrize("mode", BLOCKING_MODES)
def test_a_refused_connection_is_reported_as_such(mode: str) -> None:
    with ReplayServer([]) as gone:
        url = gone.url
    with pytest.raises(ModelError, match=r"127\.0\.0\.1:\d+ failed \(ConnectError, ECONNREFUSED\)"):
        ask(mode, OpenAIChatModel("m", base_url=url, retries=0))


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_invalid_proxy_variable_is_a_configuration_error(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"junk://{SECRET}")
    with pytest.raises(ConfigurationError, match="HTTP_PROXY") as caught:
        ask(mode, OpenAIChatModel("m", base_url="http://provider.test/v1"))
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


# Retries.


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_span_counts_the_retries_of_a_request(mode: str) -> None:
    busy = Reply.json({}, 503, {"Retry-After": "0"})
    with ReplayServer([busy, busy, fine(mode)]) as server, capture_telemetry() as captured:
        model = OpenAIChatModel("m", base_url=server.url)
        modes.run(mode, ChatClient(model, telemetry=captured.options).prompt("hi"), model)
    (chat,) = [span for span in captured.spans if span.name == "chat m"]
    assert dict(chat.attributes or {})["http.request.resend_count"] == 2


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_retry_policy_sets_the_number_of_retries_and_the_first_delay(mode: str) -> None:
    with ReplayServer([Reply.json({}, 503), Reply.json({}, 503), Reply.json({}, 503), fine(mode)]) as server:
        model = OpenAIChatModel("m", base_url=server.url, retries=RetryPolicy(retries=3, first_delay=0.001))
        assert ask(mode, model) == "fine"
        assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("headers", "body", "seconds"),
    [
        ({"retry-after-ms": "1500"}, {}, 1.5),
        ({"Retry-After": "2.5"}, {}, 2.5),
        ({"Retry-After": "inf"}, {}, None),
        ({}, {"error": {"details": [{"retryDelay": "34.07s"}]}}, 34.07),
        ({}, [{"error": {"details": [{"@type": "other"}, {"retryDelay": "1s"}]}}], 1.0),
        ({}, {"error": {"details": [{"retryDelay": "soon"}]}}, None),
        ({}, {"error": {"details": "none"}}, None),
    ],
)
def test_the_retry_delay_is_read_from_the_field_of_each_provider(
    headers: dict[str, str], body: Any, seconds: float | None
) -> None:
    with ReplayServer([Reply.json(body, 429, headers)]) as server:
        with OpenAIChatModel("m", base_url=server.url, retries=0) as model, pytest.raises(ModelError) as caught:
            model.call(REQUEST)
    assert caught.value.retry_after == seconds


# Headers.


def test_custom_headers_override_the_models_headers_regardless_of_case() -> None:
    with ReplayServer([Reply.json(FINE)]) as server:
        own = {"authorization": "Bearer gateway", "X-Team": "blue"}
        with OpenAIChatModel("m", base_url=server.url, api_key=SECRET, headers=own) as model:
            model.call(REQUEST)
        (request,) = server.requests
    assert sent(request, "Authorization") == "Bearer gateway"
    assert sent(request, "X-Team") == "blue"


@pytest.mark.parametrize("value", ["caf\u00e9", "a\nb", 3, None])
def test_a_header_that_cannot_be_sent_is_refused_by_its_name(value: Any) -> None:
    with pytest.raises(ConfigurationError, match="X-Team") as caught:
        OpenAIChatModel("m", base_url="http://127.0.0.1", headers={"X-Team": value})
    assert str(value) not in str(caught.value).replace("none", "")


# Proxies.


@pytest.mark.parametrize("mode", ALL_MODES)
def test_requests_go_through_the_proxy(mode: str) -> None:
    with ReplayServer([fine(mode)]) as proxy:
        model = OpenAIChatModel("m", base_url="http://provider.test/v1", proxy=proxy.url, retries=0)
        assert ask(mode, model) == "fine"
        assert proxy.requests[0].path == "http://provider.test/v1/chat/completions"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_proxy_of_the_environment_is_used(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayServer([fine(mode)]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        assert ask(mode, OpenAIChatModel("m", base_url="http://provider.test/v1", retries=0)) == "fine"


@pytest.mark.parametrize("address", ["", "nowhere", "ftp://127.0.0.1", f"{SECRET}@proxy", f"http://user:{SECRET}@"])
def test_an_invalid_proxy_address_is_refused_and_not_quoted(address: str) -> None:
    with pytest.raises(ConfigurationError, match="proxy must be an address") as caught:
        OpenAIChatModel("m", base_url="http://127.0.0.1", proxy=address)
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


def test_a_socks_proxy_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.models.http.clients.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"httpx\[socks\]"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", proxy="socks5://127.0.0.1:1080")


def test_http2_without_its_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.models.http.clients.importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"traced_tools\[http2\]"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", http2=True)


# Clients of one's own.


@pytest.mark.parametrize("mode", BLOCKING_MODES)
def test_a_custom_client_is_used_and_left_open(mode: str) -> None:
    with ReplayServer([fine(mode)]) as server, httpx.Client(headers={"X-Mine": "yes"}) as client:
        assert ask(mode, OpenAIChatModel("m", base_url=server.url, client=client)) == "fine"
        assert not client.is_closed
        assert sent(server.requests[0], "X-Mine") == "yes"


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_custom_async_client_is_used_and_left_open(mode: str) -> None:
    async def ask_with(url: str) -> None:
        async with httpx.AsyncClient(headers={"X-Mine": "yes"}) as client:
            model = OpenAIChatModel("m", base_url=url, async_client=client)
            async with model:
                if mode == "acall":
                    assert (await model.acall(REQUEST)).message.text == "fine"
                else:
                    assert "".join([chunk.text async for chunk in model.astream(REQUEST)]) == "fine"
            assert not client.is_closed

    with ReplayServer([fine(mode)]) as server:
        asyncio.run(ask_with(server.url))
        assert sent(server.requests[0], "X-Mine") == "yes"


def test_a_missing_client_for_the_other_mode_is_named() -> None:
    """Another client made in its place would go around the proxy or the certificates that one was made for."""
    with httpx.Client() as client:
        model = OpenAIChatModel("m", base_url="http://127.0.0.1", client=client)
        with pytest.raises(ConfigurationError, match="async_client="):
            asyncio.run(model.acall(REQUEST))
    model = OpenAIChatModel("m", base_url="http://127.0.0.1", async_client=httpx.AsyncClient())
    with pytest.raises(ConfigurationError, match="client="):
        model.call(REQUEST)


@pytest.mark.parametrize("other", [{"proxy": "http://127.0.0.1:3128"}, {"http2": True}])
def test_options_that_do_not_apply_to_a_custom_client_are_refused(other: dict[str, Any]) -> None:
    with httpx.Client() as client, pytest.raises(ConfigurationError, match="apply to a custom client"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", client=client, **other)


def test_an_unknown_argument_is_named_with_the_valid_ones() -> None:
    with pytest.raises(TypeError, match=r"unknown argument time_out; the arguments of all models are timeout, retries"):
        OpenAIChatModel("m", base_url="http://127.0.0.1", time_out=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"retries": "two"}, "a whole number or a RetryPolicy"),
        ({"retries": -1}, "retries"),
        ({"headers": ["a"]}, "a mapping"),
        ({"proxy": 3}, "a str"),
        ({"http2": "yes"}, "True or False"),
        ({"client": httpx.AsyncClient}, r"an httpx\.Client"),
        ({"async_client": "x"}, r"an httpx\.AsyncClient"),
    ],
)
def test_an_option_of_the_wrong_type_names_the_accepted_types(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        OpenAIChatModel("m", base_url="http://127.0.0.1", **wrong)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_no_repr_or_error_contains_key_proxy_or_headers(mode: str) -> None:
    with ReplayServer([]) as gone:
        url = gone.url
    proxy = url.replace("http://", f"http://user:{SECRET}@")
    model = OpenAIChatModel(
        "m", base_url="http://provider.test/v1", api_key=SECRET, proxy=proxy, headers={"X-Key": SECRET}, retries=0
    )
    with pytest.raises(ModelError) as caught:
        ask(mode, model)
    assert SECRET not in repr(model) + str(caught.value) + repr(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


@pytest.mark.parametrize("address", ["", "http://127.0.0.1/v1?key=1", "http://127.0.0.1/v1#here"])
@pytest.mark.parametrize("kind", CHAT_MODELS)
def test_a_blank_address_and_several_addresses_are_refused(kind: Any, address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url must be an http"):
        kind("m", base_url=address, api_key="k")


@pytest.mark.parametrize("kind", CHAT_MODELS)
@pytest.mark.parametrize("name", ["", " "])
def test_a_model_without_a_name_is_refused(kind: Any, name: str) -> None:
    with pytest.raises(ConfigurationError, match="name of a model"):
        kind(name, base_url="http://127.0.0.1", api_key="k")


def test_a_request_of_the_wrong_type_is_refused() -> None:
    model = OpenAIChatModel("m", base_url="http://127.0.0.1")
    with pytest.raises(TypeError, match="request must be a ChatRequest, not str"):
        model.call("hello")  # type: ignore[arg-type]


def test_a_provider_behind_a_gateway_gets_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    monkeypatch.setenv("GROQ_API_KEY", "gsk-1")
    with ReplayServer([Reply.json(FINE)] * 2) as server:
        for provider in ("groq", None):
            with OpenAIChatModel("m", base_url=server.url, provider=provider) as model:
                model.call(REQUEST)
        assert [sent(request, "Authorization") for request in server.requests] == ["Bearer gsk-1", f"Bearer {SECRET}"]
