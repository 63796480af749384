"""The webhook exporter: how each response of the server is handled, and the dead-letter file."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.events.made import batch, one_of_each
from tests.events.posting import TAKEN, posting, text_with_causes
from tests.markers import MARKER
from tests.waiting import in_time
from traced_tools.errors import ConfigurationError
from traced_tools.events import ExportFailed, JsonLinesExporter, WebhookExporter
from traced_tools.testing import Fault, ReplayServer, Reply
from traced_tools.testing.reply import Piece

# What comes back.


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_status_accepts_the_batch(status: int) -> None:
    with posting(Reply(status=status)) as (exporter, _):
        exporter.export(batch(1))


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(408, True), (429, True), (500, True), (502, True), (503, True), (504, True), (599, True)]
    + [(status, False) for status in (300, 304, 400, 401, 403, 404, 409, 410, 413, 422)],
)
def test_other_statuses_are_failures_that_are_retryable_or_not(status: int, retryable: bool) -> None:
    with posting(Reply(MARKER.encode(), status, {"Retry-After": "7"})) as (exporter, server):
        with pytest.raises(ExportFailed, match=rf"{server.url} refused events \(status {status}\)") as raised:
            exporter.export(batch(1))
    assert raised.value.retryable is retryable
    assert raised.value.retry_after == (7.0 if retryable else None)
    assert MARKER not in text_with_causes(raised.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_since_it_would_take_events_elsewhere(status: int) -> None:
    with ReplayServer([TAKEN]) as elsewhere:
        reply = Reply(status=status, headers={"Location": f"{elsewhere.url}/{MARKER}"})
        own = httpx.Client(follow_redirects=True)
        with posting(reply, client=own) as (exporter, server), own:
            with pytest.raises(ExportFailed, match="redirects are not followed") as raised:
                exporter.export(batch(1))
    assert (len(server.requests), elsewhere.requests) == (1, [])
    assert not raised.value.retryable
    assert MARKER not in text_with_causes(raised.value)


def in_a_minute() -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("0", 0, 0),
        ("120", 120, 120),
        (in_a_minute, 50, 60),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0, 0),
        ("soon", None, None),
        ("-5", None, None),
        ("1e9", None, None),
        ("Fri, 31 Dec 99999 23:59:59 GMT", None, None),
    ],
)
def test_retry_after_is_a_number_of_seconds_or_a_date(value: Any, least: float | None, most: float | None) -> None:
    said = value() if callable(value) else value
    with posting(Reply(status=503, headers={"Retry-After": said})) as (exporter, _):
        with pytest.raises(ExportFailed) as raised:
            exporter.export(batch(1))
    wait = raised.value.retry_after
    assert (wait is None) if least is None or most is None else (wait is not None and least <= wait <= most)


BREAKS: Mapping[str, Reply | Piece] = {
    "closes": Fault.CUT,
    "resets": Fault.RESET,
    "speaks no HTTP": f"{MARKER}\r\n\r\n".encode(),
    "dies in the headers": b"HTTP/1.1 200 OK\r\nContent-Le",
}


@pytest.mark.parametrize("what", BREAKS)
def test_a_connection_failure_is_retryable(what: str) -> None:
    with posting(BREAKS[what], TAKEN) as (exporter, server):
        with pytest.raises(ExportFailed, match=rf"{server.url} was unreachable \(\w+\)") as raised:
            exporter.export(batch(1))
        assert raised.value.retryable
        assert MARKER not in text_with_causes(raised.value)
        exporter.export(batch(1))
    assert len({request.headers["webhook-id"] for request in server.requests}) == 1


def test_an_unreachable_server_is_a_retryable_failure() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        exporter = WebhookExporter(f"http://127.0.0.1:{held.getsockname()[1]}")
        with pytest.raises(ExportFailed, match=r"was unreachable \(ConnectError\)") as raised:
            exporter.export(batch(1))
    exporter.close()
    assert raised.value.retryable


def test_a_server_that_does_not_answer_is_a_failure_within_the_timeout() -> None:
    with posting(Reply(delay=60.0), timeout=0.05) as (exporter, _):
        with pytest.raises(ExportFailed, match="ReadTimeout") as raised:
            exporter.export(batch(1))
    assert raised.value.retryable


@pytest.mark.parametrize(
    "body",
    [[b"x", Fault.CUT], [b"x", Fault.RESET], repeat(b"x" * 100_000)],
    ids=["cut", "reset", "endless"],
)
def test_after_a_2xx_status_a_broken_response_body_is_ignored(body: Any) -> None:
    with posting(Reply(body), TAKEN) as (exporter, server):
        in_time(lambda: exporter.export(batch(1)))
        exporter.export(batch(1, 2))
    assert len(server.requests) == 2


# What is given up.


def test_undeliverable_events_are_lines_of_the_dead_letter_file(tmp_path: Path) -> None:
    path, other = tmp_path / "dead.jsonl", tmp_path / "other.jsonl"
    exporter = WebhookExporter("http://127.0.0.1:9", dead_letter=path)
    exporter.on_undeliverable(batch(2))
    exporter.on_undeliverable(one_of_each())
    exporter.close()
    lines = JsonLinesExporter(other)
    lines.export([*batch(2), *one_of_each()])
    lines.close()
    assert path.read_text() == other.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_unwritable_dead_letter_file_is_refused_by_the_constructor(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="dead_letter must be a writable file"):
        WebhookExporter("http://127.0.0.1", dead_letter=tmp_path)


def test_a_dead_letter_file_that_fails_later_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "there" / "dead.jsonl"
    path.parent.mkdir()
    exporter = WebhookExporter(f"http://127.0.0.1:9/{MARKER}", dead_letter=path)
    path.unlink()
    path.parent.rmdir()
    exporter.on_undeliverable(batch(3, agent=MARKER))
    exporter.close()
    assert caplog.messages == ["3 events for http://127.0.0.1:9 and its dead-letter file are lost (ENOENT)"]


def test_without_a_dead_letter_file_undeliverable_events_are_dropped() -> None:
    exporter = WebhookExporter("http://127.0.0.1:9")
    exporter.on_undeliverable(batch(1))
    exporter.close()
