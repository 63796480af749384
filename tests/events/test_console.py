"""The console exporter: one readable line per event, of limited width, without escape sequences."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest
from hypothesis import given

from tests.events.made import HOSTILE, one_of_each, started, texts
from tests.markers import MARKER
from traced_tools.errors import ConfigurationError
from traced_tools.events import ConsoleEventExporter, ExportFailed
from traced_tools.observe import Event, ToolDecided, ToolFinished

CALL = started().model_dump(exclude={"type"})


def finished(**fields: Any) -> Event:
    ended = {"outcome": "ok", "attempts": 1, "duration": 0.00008, "result_size": 15}
    return ToolFinished(**{**CALL, **ended, **fields})


def decided(decision: str, **fields: Any) -> Event:
    return ToolDecided(**{**CALL, "decision": decision, **fields})


def printed(*events: Event) -> list[str]:
    stream = io.StringIO()
    ConsoleEventExporter(stream).export(events)
    assert stream.getvalue().endswith("\n")
    return stream.getvalue().split("\n")[:-1]


def test_the_console_prints_the_steps_of_a_run() -> None:
    events = [event for event in one_of_each("words") if "delta" not in event.type]
    lines = printed(*events)
    assert lines[0] == ("23:59:59.124Z 019316a2-9d5c-7d1e  run started  agent words, model words")
    assert lines[1:3] == [
        "23:59:59.125Z 019316a2-9d5c-7d1e    iteration 1 started",
        "23:59:59.126Z 019316a2-9d5c-7d1e      model responded  "
        "model words, words, 1 tool call, 812 -> 56 tokens, 1.25 s",
    ]
    assert [line[33:] for line in lines[3:]] == [
        "     answer evaluated  words, score 0.25, by words, feedback «words»",
        "       words intended  words, 16 bytes, arguments «words»",
        "       words decided  words, denied, by words, reason «words»",
        "       words started  words",
        "       words progressed  words, 1, of 4, message «words»",
        "       words finished  words, ok, 2 attempts, 500.0 ms, 7 bytes, result «words»",
        "     missing results answered  2 not run, 1 unknown",
        "     tools changed  github, get_issue: description",
        "     tools discovered  keyword, get_weather, get_time",
        "     memory read  3 messages, 4 left out",
        "     memory stored  2 messages",
        "     memory compacted  trigger words, strategy words, 12 covered, 900 tokens before, 300 tokens after",
        "   iteration 1 finished  tool_calls, 1 tool call, 2.00 s",
        " run finished  answered, 2 iterations, 1 tool call, 812 -> 56 tokens, 3.50 s",
    ]


def test_a_delta_has_a_line_too() -> None:
    text, arguments = one_of_each("words")[2:4]
    assert [line[33:] for line in printed(text, arguments)] == [
        "     text delta  5 bytes, text «words»",
        "     tool arguments delta  words, 5 bytes, arguments «words»",
    ]


@pytest.mark.parametrize(
    "event, said",
    [
        (finished(call_id="call_1_1"), "get_weather finished  call_1_1, ok, 1 attempt, 0.08 ms, 15 bytes"),
        (finished(call_id="call_1_2"), "get_weather finished  call_1_2, ok, 1 attempt, 0.08 ms, 15 bytes"),
        (
            finished(outcome="timeout", error_type="timeout"),
            "get_weather finished  call_1, timeout, 1 attempt, 0.08 ms, 15 bytes",
        ),
        (
            finished(outcome="error", error_type="ValueError"),
            "get_weather finished  call_1, error, ValueError, 1 attempt, 0.08 ms, 15 bytes",
        ),
        (
            decided("unknown_tool", tool="_unknown", error_type="unknown_tool"),
            "_unknown decided  call_1, unknown_tool",
        ),
        (
            decided("invalid_arguments", error_type="invalid_arguments"),
            "get_weather decided  call_1, invalid_arguments",
        ),
        (
            decided("denied", advisor="policy", by="ana", reason_code="over_100"),
            "get_weather decided  call_1, denied, by ana, by policy, over_100",
        ),
        (
            decided("denied", advisor="policy", reason_code="over_100"),
            "get_weather decided  call_1, denied, by policy, over_100",
        ),
    ],
)
def test_a_line_has_the_call_id_and_no_duplicate_facts(event: Event, said: str) -> None:
    (line,) = printed(event)
    assert line.endswith(f"  {said}")


@given(texts)
def test_hostile_text_stays_within_its_line(text: str) -> None:
    events = one_of_each(text)
    lines = printed(*events)
    assert len(lines) == len(events)
    for line in lines:
        assert line.isprintable()
        assert len(line) <= 160


def test_escape_sequences_are_printed_as_text() -> None:
    (line,) = printed(started(tool=HOSTILE))
    assert r"\x00\x07\x1b[31m\x1b]0;owned\x07\r\n\u2028\u2029\x85\x9b2J" in line


def test_characters_without_ink_are_printed_as_text() -> None:
    (line,) = printed(started(tool="pay\u3164\ufe0f"))
    assert r"pay\u3164\ufe0f" in line


def test_characters_outside_the_encoding_of_the_stream_are_escaped() -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", write_through=True)
    ConsoleEventExporter(stream).export([started(tool="müll")])
    stream.seek(0)
    assert r"m\xfcll started" in stream.read()


def test_without_a_stream_the_current_stderr_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    ConsoleEventExporter().export([started()])
    assert "get_weather started" in capsys.readouterr().err


class Full(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(f"cannot write {text}")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Full(), closed()])
def test_an_unwritable_stream_fails_with_an_error_without_event_data(stream: io.StringIO) -> None:
    with pytest.raises(ExportFailed) as raised:
        ConsoleEventExporter(stream).export([started(tool=MARKER)])
    assert not raised.value.retryable
    assert MARKER not in f"{raised.value!r} {raised.value.__context__!r} {raised.value.__cause__!r}"


def test_an_export_without_stderr_fails_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    with pytest.raises(ExportFailed, match="the console stream cannot be written"):
        ConsoleEventExporter().export([started()])


def test_an_invalid_stream_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="stream must be a text stream or None, not int"):
        ConsoleEventExporter(3)  # type: ignore[arg-type]
