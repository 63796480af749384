"""Connections end with the event loop, process or stream they belong to."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

from tests.waiting import PATIENCE
from traced_tools import ModelError, UserMessage
from traced_tools.models import ChatRequest, OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply

REQUEST = ChatRequest((UserMessage("hi"),))
FINE = {"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}


def sockets() -> int:
    """Return how many sockets this process has open."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except OSError:  # the folder's own descriptor is gone by now
            continue
    return found


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the sockets in /proc, which this system lacks")
def test_connections_end_with_the_event_loop_they_belong_to() -> None:
    with ReplayServer(lambda request: Reply.json(FINE)) as server:
        model = OpenAIChatModel("m", base_url=server.url)
        asyncio.run(model.acall(REQUEST))
        before = sockets()
        for _ in range(5):
            assert asyncio.run(model.acall(REQUEST)).message.text == "fine"
        deadline = time.monotonic() + PATIENCE
        while sockets() > before:  # the server closes its end of a connection in its own time
            assert time.monotonic() < deadline


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_opens_its_own_connections() -> None:
    with ReplayServer(lambda request: Reply.json(FINE)) as server:
        model = OpenAIChatModel("m", base_url=server.url, retries=0, timeout=10)
        with model:
            model.call(REQUEST)
            child = os.fork()
            if not child:
                os._exit(0 if model.call(REQUEST).message.text == "fine" else 1)
            answers = [model.call(REQUEST).message.text for _ in range(3)]
            _, status = os.waitpid(child, 0)
        assert answers == ["fine"] * 3
        assert os.waitstatus_to_exitcode(status) == 0, signal.strsignal(status)


@pytest.mark.parametrize("stream", [False, True])
def test_a_redirect_is_an_error_with_a_hint_and_not_followed(stream: bool) -> None:
    with ReplayServer([Reply(status=302, headers={"Location": "http://127.0.0.1:9/"})]) as server:
        with OpenAIChatModel("m", base_url=server.url) as model, pytest.raises(ModelError, match="base_url") as caught:
            list(model.stream(REQUEST)) if stream else model.call(REQUEST)
    assert caught.value.status_code == 302


def test_a_connection_error_contains_neither_request_nor_key() -> None:
    with ReplayServer([]) as gone:
        url = gone.url
    with OpenAIChatModel("m", base_url=url, api_key="sk-secret", retries=0) as model:
        with pytest.raises(ModelError) as caught:
            model.call(REQUEST)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("key", ["sk-\u00e9", "sk-\x00", "sk-a\nb"])
def test_a_key_with_invalid_characters_is_refused_without_quoting_it(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as caught:
        OpenAIChatModel("m", api_key=key)
    assert key not in str(caught.value)


def test_a_key_from_a_file_may_end_in_a_newline() -> None:
    with ReplayServer([Reply.json(FINE)]) as server, OpenAIChatModel("m", base_url=server.url, api_key="k\n") as model:
        model.call(REQUEST)
        assert {name.lower(): value for name, value in server.requests[0].headers.items()}[
            "authorization"
        ] == "Bearer k"
