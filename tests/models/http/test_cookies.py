"""Cookies set by a provider are ignored; cookies of the caller's client are not affected."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from tests import modes
from tests.modes import BLOCKING_MODES, MODES
from traced_tools import ChatClient
from traced_tools.errors import InvalidRequest
from traced_tools.models import OpenAIChatModel, OpenAIEmbeddingModel
from traced_tools.testing import ReplayServer

FINE = b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'
FINE_STREAM = b'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
VECTORS = b'{"data": [{"embedding": [1.0]}]}'
each_mode = pytest.mark.parametrize("mode", MODES)


def answer(body: bytes, status: bytes = b"200 OK", *headers: bytes) -> bytes:
    """Return a whole HTTP answer that sets a cookie which is not ASCII."""
    kind = b"text/event-stream" if body.startswith(b"data:") else b"application/json"
    lines = [b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join([*lines, b"Set-Cookie: a=\xff\xfe", b"Set-Cookie: b=1", b"Connection: close", b"", body])


def refused() -> bytes:
    return answer(b"{}", b"429 Too Many Requests", b"Retry-After: 0")


def own_client(mode: str) -> tuple[dict[str, Any], httpx.Client | httpx.AsyncClient]:
    if mode in BLOCKING_MODES:
        blocking = httpx.Client(cookies={"mine": "1"})
        return {"client": blocking}, blocking
    on_asyncio = httpx.AsyncClient(cookies={"mine": "1"})
    return {"async_client": on_asyncio}, on_asyncio


@each_mode
def test_a_cookie_of_an_answer_is_not_sent_back(mode: str) -> None:
    body = FINE_STREAM if "stream" in mode else FINE
    with ReplayServer([refused(), answer(body), answer(body)]) as server:
        model = OpenAIChatModel("m", base_url=server.url)
        client = ChatClient(model)
        for _ in range(2):
            assert modes.run(mode, client.prompt("hi"), model).content == "fine"
    assert [request.headers.get("cookie") for request in server.requests] == [None] * 3


@each_mode
def test_the_cookies_of_a_custom_client_are_sent_and_not_changed(mode: str) -> None:
    body = FINE_STREAM if "stream" in mode else FINE
    http, client = own_client(mode)
    with ReplayServer([answer(body), answer(body)]) as server:
        model = OpenAIChatModel("m", base_url=server.url, **http)
        for _ in range(2):
            assert modes.run(mode, ChatClient(model).prompt("hi"), model).content == "fine"
    assert [request.headers["cookie"] for request in server.requests] == ["mine=1"] * 2
    assert dict(client.cookies) == {"mine": "1"}


def test_a_custom_client_accepts_cookies_of_its_other_requests() -> None:
    with ReplayServer([answer(FINE), b"HTTP/1.1 204 No Content\r\nSet-Cookie: b=1\r\n\r\n"]) as server:
        with httpx.Client() as client:
            ChatClient(OpenAIChatModel("m", base_url=server.url, client=client)).prompt("hi").call()
            client.get(server.url)
            assert dict(client.cookies) == {"b": "1"}


@pytest.mark.parametrize("embed", ["embed", "aembed"])
def test_a_cookie_of_embeddings_is_not_sent_back(embed: str) -> None:
    with ReplayServer([refused(), answer(VECTORS)]) as server:
        model = OpenAIEmbeddingModel("m", base_url=server.url)
        found = getattr(model, embed)(["text"])
        assert (asyncio.run(found) if embed == "aembed" else found).embeddings == ((1.0,),)
        model.close()
    assert [request.headers.get("cookie") for request in server.requests] == [None] * 2


def test_a_custom_cookie_that_is_not_ascii_is_a_model_error() -> None:
    with httpx.Client() as client:
        client.cookies.set("mine", "\u00e9")
        model = OpenAIChatModel("m", base_url="http://127.0.0.1:9", client=client)
        with pytest.raises(InvalidRequest, match="a cookie of the httpx client is not ASCII") as caught:
            ChatClient(model).prompt("hi").call()
    assert caught.value.__context__ is None
