"""Hostile servers: bodies that expand in memory, error answers that break off, redirects that ask for the key."""

from __future__ import annotations

import gzip
import logging
import zlib
from typing import Any

import httpx
import pytest

from tests import modes
from tests.modes import MODES
from traced_tools import AuthenticationError, ChatClient, ConfigurationError, ModelError, ModelTimeout, RateLimited
from traced_tools.errors import InvalidResponse
from traced_tools.models import AnthropicChatModel, GeminiChatModel, OpenAIChatModel
from traced_tools.models.http import framing
from traced_tools.models.http.options import Timeouts
from traced_tools.testing import Delay, Fault, ReplayServer, Reply

FINE = b'{"choices": [{"message": {"content": "fine"}, "finish_reason": "stop"}]}'
FINE_STREAM = b'data: {"choices": [{"delta": {"content": "fine"}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
SECRET = "sk-the-secret-key"
each_mode = pytest.mark.parametrize("mode", MODES)


def body(mode: str) -> bytes:
    return FINE_STREAM if "stream" in mode else FINE


def reply(mode: str, pieces: Any, **headers: str) -> Reply:
    """Return a reply of the kind that `mode` asks for; in the names of headers stands `_` for `-`."""
    kind = "text/event-stream" if "stream" in mode else "application/json"
    return Reply(pieces, headers={name.replace("_", "-"): value for name, value in headers.items()}, content_type=kind)


def ask(mode: str, url: str, kind: Any = OpenAIChatModel, **options: Any) -> str:
    model = kind("m", base_url=url, api_key=SECRET, **{"retries": 0, **options})
    return modes.run(mode, ChatClient(model).prompt("hi"), model).content


# Compression.


@each_mode
@pytest.mark.parametrize(("way", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_compressed_answer_is_decoded(mode: str, way: str, compress: Any) -> None:
    with ReplayServer([reply(mode, compress(body(mode)), content_encoding=way)]) as server:
        assert ask(mode, server.url) == "fine"
    assert server.requests[0].headers["accept-encoding"] == "gzip, deflate"


@each_mode
@pytest.mark.parametrize("ways", ["gzip, gzip", "br", "zstd", "gzip, ZSTD"])
def test_a_compression_with_unlimited_expansion_is_refused(mode: str, ways: str) -> None:
    twice = gzip.compress(gzip.compress(body(mode)))
    with ReplayServer([reply(mode, twice, content_encoding=ways)]) as server:
        with pytest.raises(InvalidResponse, match="compressed"):
            ask(mode, server.url)


@each_mode
def test_compressed_bytes_that_expand_to_nothing_count_toward_the_limit(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(framing.ResponseBody.__init__, "__defaults__", (100_000,))
    ended = [gzip.compress(body(mode).removesuffix(b"data: [DONE]\n\n")), *[b"x" * 10_000] * 20]
    with ReplayServer([reply(mode, ended, content_encoding="gzip")]) as server:
        with pytest.raises(InvalidResponse, match="larger than 100000 bytes"):
            ask(mode, server.url)


@each_mode
def test_an_answer_that_expands_too_much_is_refused(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framing, "MOST_EXPANDED", 100_000)
    small, large = body(mode) + b"\n" * 50_000, body(mode) + b"\n" * 1_000_000
    with ReplayServer([reply(mode, gzip.compress(each), content_encoding="gzip") for each in (small, large)]) as server:
        assert ask(mode, server.url) == "fine"
        with pytest.raises(InvalidResponse, match="more than 100 times as large"):
            ask(mode, server.url)


@each_mode
def test_the_deadline_applies_to_compressed_bytes_that_expand_to_nothing(mode: str) -> None:
    gzipped = zlib.compressobj(wbits=31)
    begun = gzipped.compress(b" ") + gzipped.flush(zlib.Z_SYNC_FLUSH)
    trickle = [begun, *[Delay(0.02), b"\0\0\0\xff\xff"] * 500]
    with ReplayServer([reply(mode, trickle, content_encoding="gzip")]) as server:
        with pytest.raises(ModelTimeout, match="not complete in time"):
            ask(mode, server.url, timeout=Timeouts(total=0.2))


# Refusals whose body breaks off.


@each_mode
@pytest.mark.parametrize(
    "broken",
    [
        pytest.param({"body": [b"{", Fault.RESET]}, id="reset"),
        pytest.param({"body": b"{", "headers": {"Content-Length": "50"}, "cut": True}, id="cut"),
        pytest.param({"body": b"junk", "headers": {"Content-Encoding": "gzip"}}, id="not gzip"),
        pytest.param({"body": b"junk", "headers": {"Content-Encoding": "br"}}, id="brotli"),
    ],
)
def test_an_error_answer_with_a_broken_body_is_classified_by_its_status(mode: str, broken: dict[str, Any]) -> None:
    headers = {"Retry-After": "7", "x-request-id": "req-1", **broken.get("headers", {})}
    with ReplayServer([Reply(**{**broken, "headers": headers}, status=429)]) as server:
        with pytest.raises(RateLimited) as caught:
            ask(mode, server.url)
    error = caught.value
    assert (error.status_code, error.retryable, error.retry_after, error.request_id) == (429, True, 7.0, "req-1")
    assert error.__context__ is None


@pytest.mark.slow
@each_mode
def test_an_error_answer_with_an_endless_body_is_classified_by_its_status(mode: str) -> None:
    endless = Reply([b" "] * 500, 401, pause=0.1)
    with ReplayServer([endless]) as server, pytest.raises(AuthenticationError):
        ask(mode, server.url, timeout=Timeouts(total=3))  # of which the status takes next to nothing


@each_mode
def test_a_reset_in_the_middle_of_an_answer_means_that_it_was_cut_short(mode: str) -> None:
    with ReplayServer([reply(mode, [body(mode)[:20], Fault.RESET])]) as server:
        with pytest.raises(InvalidResponse, match=r"cut short \(ReadError, ECONNRESET\)"):
            ask(mode, server.url)


@each_mode
def test_an_answer_that_is_not_http_is_reported_as_such(mode: str) -> None:
    with ReplayServer([b"\0\1\2 no status line\r\n\r\n"]) as server, pytest.raises(InvalidResponse, match="valid HTTP"):
        ask(mode, server.url)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
GARBLED = {
    "two lengths": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
    "a length of thousands of digits": HEAD + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n{}",
    "a chunk without a size": HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "an endless head": HEAD + b"A: b\r\n" * 50_000 + b"\r\n",
    "a protocol that was not asked for": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: a\r\n\r\n",
    "a body that is no gzip": HEAD + b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\njunk",
    "NULs": HEAD + b"Content-Length: 9\r\n\r\ndata: \0\n\n",
    "nothing but a retry that is no number": HEAD + b"Content-Length: 6007\r\n\r\nretry: " + b"9" * 6_000,
    "a charset that is no text's": HEAD.replace(b"stream", b"stream; charset=base64") + b"\r\ndata: {}\n\n",
}


@each_mode
@pytest.mark.parametrize("what", GARBLED)
def test_a_garbled_answer_is_an_invalid_response(mode: str, what: str) -> None:
    with ReplayServer([GARBLED[what]]) as server, pytest.raises(InvalidResponse) as caught:
        ask(mode, server.url)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("module", "name"),
    [("h2.exceptions", "ProtocolError"), ("socksio.exceptions", "ProtocolError"), ("ssl", "SSLError")],
)
def test_an_error_that_httpx_does_not_wrap_is_a_model_error(module: str, name: str) -> None:
    raised = getattr(pytest.importorskip(module), name)

    def fail(request: httpx.Request) -> httpx.Response:
        raise raised("what the server said")

    with httpx.Client(transport=httpx.MockTransport(fail)) as client:
        with pytest.raises(ModelError, match=rf"connection to provider\.test failed \({name}\)") as caught:
            ask("call", "http://provider.test", client=client)
    assert caught.value.__context__ is None


# Where the key goes.


@pytest.mark.parametrize("kind", [OpenAIChatModel, AnthropicChatModel, GeminiChatModel])
@pytest.mark.parametrize("status", [302, 307])
def test_a_client_that_follows_redirects_does_not_take_the_key_elsewhere(kind: Any, status: int) -> None:
    with ReplayServer([]) as other, httpx.Client(follow_redirects=True) as client:
        with ReplayServer([Reply(status=status, headers={"Location": other.url})]) as server:
            with pytest.raises(ModelError, match=f"status {status}"):
                ask("call", server.url, kind, client=client)
    assert other.requests == []


@each_mode
@pytest.mark.parametrize("location", ["mailto:a", "http://xn--/", "http://[::1"])
def test_a_redirect_to_an_invalid_address_is_an_invalid_response(mode: str, location: str) -> None:
    with ReplayServer([Reply(status=302, headers={"Location": location})]) as server:
        with pytest.raises(InvalidResponse, match="address of the server's redirect") as caught:
            ask(mode, server.url)
    assert caught.value.__context__ is None


@each_mode
def test_a_password_in_the_address_is_sent_and_not_logged(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with ReplayServer([reply(mode, body(mode))]) as server:
        assert ask(mode, server.url.replace("//", "//me:pass%40word@")) == "fine"
    assert server.requests[0].headers["authorization"] == "Basic bWU6cGFzc0B3b3Jk"
    assert "HTTP Request" in caplog.text
    assert "pass" not in caplog.text


def test_loggers_that_log_keys_and_passwords_are_limited_to_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("hpack.hpack", "hpack.table", "httpcore.socks"):
        assert not logging.getLogger(name).isEnabledFor(logging.DEBUG)


# Settings that would fail at each request.


@pytest.mark.parametrize(
    "address",
    ["http://here:99999", f"http://{'a' * 64}.test", "http://a..test", "http://here/v1?", "http://here/v1#part"],
)
def test_an_unusable_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        OpenAIChatModel("m", base_url=address)


@pytest.mark.parametrize("name", ["", "a b", "a\nb", "\u00e9", 1])
def test_an_invalid_header_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="invalid header name"):
        OpenAIChatModel("m", api_key=SECRET, headers={name: "value"})


@each_mode
@pytest.mark.parametrize(
    ("variable", "value"),
    [("HTTP_PROXY", f"http://{SECRET}:port"), ("NO_PROXY", "fe80::/10"), ("SSL_CERT_FILE", "/nowhere/ca.pem")],
)
def test_an_invalid_environment_variable_is_named(
    mode: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigurationError, match=variable) as caught:
        ask(mode, "http://provider.test/v1")
    assert SECRET not in str(caught.value)
    assert caught.value.__context__ is None


@each_mode
def test_an_error_the_caller_is_handling_is_not_the_cause(mode: str) -> None:
    with ReplayServer([]) as gone:
        url = gone.url
    try:
        raise FileNotFoundError(2, "the caller's own")
    except FileNotFoundError:
        with pytest.raises(ModelError, match=r"\(ConnectError, ECONNREFUSED\)"):
            ask(mode, url)
