"""The replay server as a client sees it: recorded requests and replayed replies."""

from __future__ import annotations

import http.client
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from tests.markers import MARKER
from tests.testing.raw import LAST_POST, POST, connect, head_and_body, read_until, talk
from tests.waiting import PATIENCE
from traced_tools.testing import Received, ReplayServer, Reply, split

RECORDED = (
    'event: one\r\ndata: {"a": "süß"}\r\n\r\n: alive\n\nid: 7\ndata: two\ndata: lines\n\ndata: [DONE]\n\n'.encode()
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=PATIENCE) as client:
        yield client


def echo(request: Received) -> Reply:
    return Reply(request.body, headers={"X-Method": request.method})


# Requests.


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"])
def test_requests_with_any_method_are_answered(client: httpx.Client, method: str) -> None:
    with ReplayServer(echo) as server:
        response = client.request(method, f"{server.url}/v1/models?page=2", content=b"body")
        assert (response.text, response.headers["x-method"]) == ("body", method)
        (request,) = server.requests
    assert (request.method, request.path, request.body) == (method, "/v1/models?page=2", b"body")


def test_a_head_request_gets_no_body_and_keeps_the_connection() -> None:
    with ReplayServer([Reply(b"body"), Reply(b"next")]) as server:
        connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=PATIENCE)
        connection.request("HEAD", "/")
        assert connection.getresponse().read() == b""
        first = connection.sock
        connection.request("GET", "/")
        assert connection.getresponse().read() == b"next"
        assert connection.sock is first
        connection.close()


@pytest.mark.parametrize("status", [204, 304])
def test_after_a_reply_without_a_body_the_connection_goes_on(status: int) -> None:
    with ReplayServer([Reply(b"ignored", status), Reply(b"next")]) as server, connect(server) as connection:
        connection.sendall(POST)
        assert read_until(connection, b"\r\n\r\n").startswith(b"HTTP/1.1 %d " % status)
        connection.sendall(LAST_POST)
        assert read_until(connection, b"0\r\n\r\n").endswith(b"4\r\nnext\r\n0\r\n\r\n")


def test_a_chunked_request_body_is_decoded(client: httpx.Client) -> None:
    with ReplayServer(echo) as server:
        pieces = [b"one, ", b"two, " * 9, b"three"]
        assert client.post(server.url, content=iter(pieces)).content == b"".join(pieces)
        assert server.requests[0].headers["Transfer-Encoding"] == "chunked"


def test_headers_are_found_in_any_case_and_several_of_one_name_are_joined() -> None:
    with ReplayServer([Reply()]) as server:
        talk(server, LAST_POST.replace(b"Host", b"X-Tag: a\r\nx-tag: b\r\nHost"))
        headers = server.requests[0].headers
    assert headers["content-length"] == headers["Content-Length"] == headers["CONTENT-LENGTH"] == "2"
    assert headers["X-Tag"] == "a, b"
    assert "HOST" in headers and "Authorization" not in headers
    assert headers.get("Authorization") is None
    assert dict(headers) == {"x-tag": "a, b", "host": "here", "connection": "close", "content-length": "2"}


def test_the_repr_of_a_request_hides_query_headers_and_body(client: httpx.Client) -> None:
    with ReplayServer([Reply()]) as server:
        client.post(f"{server.url}/v1?key={MARKER}", headers={"Authorization": MARKER}, json={"text": MARKER})
        (request,) = server.requests
    assert repr(request) == "<Received POST /v1>"
    assert MARKER not in repr(request.headers)
    assert request.json() == {"text": MARKER}


def test_a_request_that_ends_before_its_body_is_not_recorded() -> None:
    with ReplayServer([Reply(b"answer")]) as server:
        for begun in (POST[:-1], b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", b""):
            with connect(server) as connection:
                connection.sendall(begun)
        assert b"answer" in talk(server)
        assert len(server.requests) == 1


def test_an_invalid_request_is_refused() -> None:
    with ReplayServer([]) as server:
        assert b"400" in talk(server, b"\x16\x03\x01 nonsense of some kind\r\n\r\n")
        assert server.requests == []


# Replies.


def test_a_recorded_reply_is_replayed_unchanged(client: httpx.Client) -> None:
    status, headers, body = 418, {"Content-Type": "text/plain", "Content-Length": "4", "X-Request-Id": "r-1"}, b"pot\n"
    with ReplayServer([Reply(body, status, headers)]) as server:
        response = client.get(server.url)
    assert (response.status_code, response.content) == (status, body)
    assert response.headers == httpx.Headers(headers)


def test_the_pieces_of_a_body_are_chunks_on_the_wire() -> None:
    with ReplayServer([Reply(split(b"abcdefg", every=3))]) as server:
        _, fields, body = head_and_body(talk(server))
    assert fields == {"content-type": "application/json", "transfer-encoding": "chunked"}
    assert body == b"3\r\nabc\r\n3\r\ndef\r\n1\r\ng\r\n0\r\n\r\n"


def test_a_recorded_stream_means_the_same_with_any_boundaries(client: httpx.Client) -> None:
    replies: list[Reply] = []
    with ReplayServer(lambda request: replies.pop()) as server:

        @given(st.none() | st.integers(1, 9), st.sampled_from([None, b"\n", b"\r", b":"]), st.sets(st.integers(1, 90)))
        def check(every: int | None, after: bytes | None, at: set[int]) -> None:
            pieces = split(RECORDED, every=every, after=after, at=at)
            replies.append(Reply(pieces, content_type="text/event-stream"))
            with client.stream("POST", server.url) as response:
                events = [(event.event, event.id, event.data) for event in EventSource(response).iter_sse()]
            assert events == [
                ("one", "", '{"a": "süß"}'),
                ("message", "7", "two\nlines"),
                ("message", "7", "[DONE]"),
            ]

        check()


def test_replies_are_sent_in_order_and_then_status_500(client: httpx.Client) -> None:
    busy, fine = Reply.json({}, 429, {"Retry-After": "0"}), Reply.json("fine")
    with ReplayServer([busy, fine]) as server:
        responses = [client.post(server.url) for _ in range(3)]
    assert [response.status_code for response in responses] == [429, 200, 500]
    assert responses[0].headers["retry-after"] == "0"
    assert responses[2].json() == {"error": {"code": "no_reply_left"}}


def test_requests_are_served_concurrently() -> None:
    together = threading.Barrier(8)

    def meet(request: Received) -> Reply:
        together.wait(PATIENCE)
        return Reply(request.body)

    with ReplayServer(meet) as server, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: talk(server), range(8)))
    assert all(answer.endswith(b"2\r\n{}\r\n0\r\n\r\n") for answer in answers)
    assert len(server.requests) == 8


def test_nothing_is_printed_or_logged(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), ReplayServer([Reply(b"x")]) as server:
        talk(server)
        talk(server)
        talk(server, b"no request\r\n\r\n")
        with connect(server) as connection:
            connection.sendall(POST[:20])
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


@pytest.mark.parametrize("replies", [5, {"a": 1}, None])
def test_an_invalid_argument_for_replies_is_refused(replies: Any) -> None:
    with pytest.raises(TypeError, match="replies must be a sequence of replies or a function"):
        ReplayServer(replies)
