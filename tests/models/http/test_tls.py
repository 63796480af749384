"""Encrypted connections that break, in HTTP/1.1 and HTTP/2: always a model error, the same in each mode."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests import modes
from tests.modes import BLOCKING_MODES, MODES
from tests.waiting import PATIENCE, patiently
from traced_tools import ChatClient, ModelError
from traced_tools.errors import InvalidResponse
from traced_tools.models import OpenAIChatModel

trustme = pytest.importorskip("trustme", reason="needs trustme and h2 (the extra dev)")
h2_connection = pytest.importorskip("h2.connection")
h2_events = pytest.importorskip("h2.events")

FINE = b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'
FINE_STREAM = b'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
BEGUN = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nContent-Type: text/event-stream\r\n\r\n{"
each_mode = pytest.mark.parametrize("mode", MODES)


class Certificates:
    """A certificate for the server, and what a client must trust."""

    def __init__(self, folder: Path) -> None:
        authority = trustme.CA()
        self._certificate = authority.issue_cert("127.0.0.1")
        self.trusted = folder / "ca.pem"
        authority.cert_pem.write_to_path(self.trusted)

    def context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols([protocol])
        self._certificate.configure_cert(context)
        return context


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def trusted(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> Certificates:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.trusted))
    return certificates


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", lambda low, high: 0.0)


@contextmanager
def serving(talk: Callable[[ssl.SSLSocket], None], context: ssl.SSLContext) -> Iterator[str]:
    """Talk on each connection, one after the other, and close it."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):  # there is no more to accept
            while True:
                connection, _ = listening.accept()
                connection.settimeout(PATIENCE)
                with suppress(OSError), context.wrap_socket(connection, server_side=True) as encrypted:
                    talk(encrypted)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(PATIENCE)


def ask(mode: str, url: str, **options: Any) -> str:
    model = OpenAIChatModel("m", base_url=url, api_key="key", timeout=PATIENCE, **{"retries": 0, **options})
    return modes.run(mode, ChatClient(model).prompt("hi"), model).content


def receive(connection: ssl.SSLSocket) -> None:
    """Receive a request, whose body ends with a brace."""
    data = b""
    while not data.endswith(b"}"):
        data += connection.recv(65536)


# HTTP/1.1.


@each_mode
@pytest.mark.parametrize("sent", [b"", BEGUN], ids=["instead", "midway"])
def test_a_decryption_failure_is_a_model_error(mode: str, sent: bytes, trusted: Certificates) -> None:
    def talk(connection: ssl.SSLSocket) -> None:
        receive(connection)
        connection.sendall(sent)
        os.write(connection.fileno(), b"\x17\x03\x03\x00\x20" + b"?" * 32)  # past the encryption
        with suppress(OSError):
            connection.recv(1)

    with serving(talk, trusted.context("http/1.1")) as url:
        with pytest.raises(InvalidResponse if sent else ModelError, match="BAD_RECORD_MAC"):
            ask(mode, url)


@each_mode
def test_an_untrusted_certificate_is_named_as_the_cause(mode: str, certificates: Certificates) -> None:
    with serving(receive, certificates.context("http/1.1")) as url:
        with pytest.raises(ModelError, match=r"\(ConnectError, CERTIFICATE_VERIFY_FAILED\)"):
            ask(mode, url)


# HTTP/2.


Answer = Callable[[Any, int], bool]


def speak(connection: ssl.SSLSocket, answer: Answer) -> None:
    """Have `answer` say something in each stream of HTTP/2 with a request, until it has enough."""
    protocol = h2_connection.H2Connection(h2_connection.H2Configuration(client_side=False))
    protocol.initiate_connection()
    connection.sendall(protocol.data_to_send())
    while data := connection.recv(65536):
        ended = [each.stream_id for each in protocol.receive_data(data) if isinstance(each, h2_events.StreamEnded)]
        enough = any(answer(protocol, stream) for stream in ended)
        connection.sendall(protocol.data_to_send())
        if enough:
            return


def fine(mode: str, protocol: Any, stream: int, *, to: int | None = None) -> None:
    """Answer the request of `stream`, or only `to` that byte."""
    kind, body = ("text/event-stream", FINE_STREAM) if "stream" in mode else ("application/json", FINE)
    protocol.send_headers(stream, [(":status", "200"), ("content-type", kind)])
    protocol.send_data(stream, body[:to], end_stream=to is None)


def refuse_stream(protocol: Any, stream: int) -> bool:
    protocol.reset_stream(stream, 7)
    return False


def go_away(protocol: Any, stream: int) -> bool:
    protocol.close_connection(last_stream_id=2**31 - 1)
    return True


def ask_twice(mode: str, url: str, between: Callable[[], object]) -> list[str]:
    model = OpenAIChatModel("m", base_url=url, api_key="key", timeout=PATIENCE, http2=True)
    spec = ChatClient(model).prompt("hi")

    async def on_asyncio() -> list[str]:
        async with model:
            first = (await modes.arun(mode, spec)).content
            await asyncio.to_thread(between)
            return [first, (await modes.arun(mode, spec)).content]

    if mode not in BLOCKING_MODES:
        return asyncio.run(patiently(on_asyncio()))
    with model:
        first = modes.run(mode, spec).content
        between()
        return [first, modes.run(mode, spec).content]


@each_mode
def test_a_pooled_connection_that_the_server_closed_is_replaced(
    mode: str, trusted: Certificates, no_waiting: None
) -> None:
    answered, closed = threading.Event(), threading.Event()

    def answer_once(protocol: Any, stream: int) -> bool:
        fine(mode, protocol, stream)
        return not closed.is_set()

    def talk(connection: ssl.SSLSocket) -> None:
        speak(connection, answer_once)
        answered.wait(PATIENCE)
        connection.close()
        closed.set()

    def let_it_close() -> None:
        answered.set()
        assert closed.wait(PATIENCE)

    with serving(talk, trusted.context("h2")) as url:
        assert ask_twice(mode, url, let_it_close) == ["fine", "fine"]


@each_mode
@pytest.mark.parametrize("refuse", [refuse_stream, go_away])
def test_a_request_that_the_server_did_not_process_is_retried(
    mode: str, refuse: Answer, trusted: Certificates, no_waiting: None
) -> None:
    seen: list[int] = []

    def refuse_first(protocol: Any, stream: int) -> bool:
        seen.append(stream)
        if len(seen) == 1:
            return refuse(protocol, stream)
        fine(mode, protocol, stream)
        return False

    with serving(lambda connection: speak(connection, refuse_first), trusted.context("h2")) as url:
        assert ask(mode, url, http2=True, retries=1) == "fine"
    assert len(seen) == 2


@each_mode
def test_invalid_frames_are_reported_as_a_truncated_answer(mode: str, trusted: Certificates) -> None:
    def begin(protocol: Any, stream: int) -> bool:
        fine(mode, protocol, stream, to=9)
        return True

    def talk(connection: ssl.SSLSocket) -> None:
        speak(connection, begin)
        connection.sendall(b"\0\0\1" + b"\0" * 6 + b"?")  # data of stream 0, which has none
        with suppress(OSError):
            connection.recv(65536)

    with serving(talk, trusted.context("h2")) as url:
        with pytest.raises(InvalidResponse, match="cut short"):
            ask(mode, url, http2=True)
