"""The log line of a failing tool: once, without the exception's text, with a traceback if that is enabled."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, run
from traced_tools import AssistantMessage, ChatClient, ContentCapture, ToolCall, ToolExecutionError, UserMessage
from traced_tools.core import ToolErrors, ToolMetadata
from traced_tools.errors import InvalidArguments
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, ToolCallingManager, failure_log

LINE = "the tool look failed with NameError; the model gets an error, or the run fails"


def look(text: str) -> str:
    """Look a text up."""
    return raising(text)


def raising(text: str) -> str:
    raise NameError(f"{MARKER} {text}")


def failing(function: Callable[..., Any] = look, **metadata: Any) -> FunctionToolCallback:
    return FunctionToolCallback(function, metadata=ToolMetadata(**metadata))


def ask(tool: FunctionToolCallback, mode: str = "call", **settings: Any) -> None:
    model = ScriptedChatModel([ToolCall(tool.definition.name, {"text": "x"}), "done"])
    run(mode, ChatClient(model, tools=[tool], **settings).prompt("?"))


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged about tools, the first line of each record."""
    assert {record.levelno for record in caplog.records} <= {logging.WARNING}
    assert {record.name for record in caplog.records} <= {"traced_tools.tools"}
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("mode", MODES)
def test_a_bug_in_a_tool_is_logged_without_its_text(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    ask(failing(), mode)
    (line,) = lines(caplog)
    assert line == f"{LINE}; logged once per tool and error type, TRACED_TOOLS_DEBUG=1 logs each with its traceback"
    assert MARKER not in caplog.text


def test_a_tool_that_fails_in_many_runs_is_logged_once_for_each_type_of_error(caplog: pytest.LogCaptureFixture) -> None:
    kinds = [NameError, KeyError]

    def other(text: str) -> str:
        raise kinds[0](text)

    for _ in range(3):
        ask(failing())
        ask(failing(other))
        kinds.reverse()
    assert [line.partition(";")[0] for line in lines(caplog)] == [
        "the tool look failed with NameError",
        "the tool other failed with NameError",
        "the tool other failed with KeyError",
    ]


def test_the_number_of_log_lines_is_limited(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failure_log, "_MOST_LOGGED", 2)
    for number in range(4):
        ask(FunctionToolCallback(look, name=f"look_{number}"))
    assert len(lines(caplog)) == 2


def test_a_call_by_hand_is_logged_too(caplog: pytest.LogCaptureFixture) -> None:
    response = ChatResponse(AssistantMessage("", tool_calls=[ToolCall("look", {"text": "x"}, "c1")]))
    ToolCallingManager().execute_tool_calls([UserMessage("?")], response, tools=[failing()])
    assert len(lines(caplog)) == 1


def correcting(text: str) -> str:
    raise InvalidArguments(f"text: {text} is not in the list")


def test_errors_that_are_meant_for_the_model_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ask(failing(correcting))
    assert lines(caplog) == []


class NoSuchCity(LookupError):
    pass


def searching(text: str) -> str:
    raise NoSuchCity(text)


def test_exceptions_of_retry_on_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def offline(text: str) -> str:
        raise ConnectionRefusedError(text)

    ask(failing(offline))
    ask(failing(searching, retry_on=(NoSuchCity,)))
    assert lines(caplog) == []
    ask(failing(searching))
    assert len(lines(caplog)) == 1


async def hanging(text: str) -> str:
    import asyncio

    await asyncio.Event().wait()
    return text


def test_a_time_out_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ask(failing(hanging, timeout=0.01))
    assert lines(caplog) == []


def test_a_failure_that_the_run_raises_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ToolExecutionError):
        ask(failing(), tool_errors=ToolErrors(raise_on=(NameError,)))
    assert lines(caplog) == []


def test_a_failed_attempt_is_not_logged_if_a_retry_succeeds(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
    attempts = []

    def flaky(text: str) -> str:
        attempts.append(text)
        if len(attempts) == 1:
            raise ConnectionError(text)
        return text

    ask(failing(flaky, retries=1))
    assert len(attempts) == 2
    assert lines(caplog) == []


@pytest.mark.parametrize("mode", MODES)
def test_the_debug_switch_logs_each_failure_with_its_traceback(
    mode: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_TOOLS_DEBUG", "1")
    for _ in range(2):
        ask(failing(), mode)
    assert len(lines(caplog)) == 2
    for line in lines(caplog):
        assert line.startswith(f"{LINE}\nTraceback (most recent call last):\n")
        assert "in look" in line
        assert line.endswith(f"NameError: {MARKER} x")
        assert len(line.splitlines()) < 20


@pytest.mark.parametrize("capture", ["SPAN_ONLY", "EVENT_ONLY"])
def test_the_log_line_has_the_traceback_once_if_content_is_captured(
    capture: str, caplog: pytest.LogCaptureFixture
) -> None:
    telemetry = Telemetry(capture=capture)
    for _ in range(2):
        ask(failing(), telemetry=telemetry.options)
    (line,) = lines(caplog)
    assert line.endswith(f"NameError: {MARKER} x")


@pytest.mark.parametrize("debug", ["", "1"])
def test_a_redactor_decides_what_is_logged(
    debug: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_TOOLS_DEBUG", debug)
    redacted = Telemetry(capture=ContentCapture("SPAN_ONLY", redact=lambda name, value: f"{name} is secret"))
    ask(failing(), telemetry=redacted.options)
    dropped = Telemetry(capture=ContentCapture("SPAN_ONLY", redact=lambda name, value: None))
    ask(FunctionToolCallback(look, name="again"), telemetry=dropped.options)
    first, second = lines(caplog)
    assert first == f"{LINE}\nexception.stacktrace is secret"
    assert ("in look" in second) is bool(debug)
    assert MARKER not in caplog.text


@pytest.mark.parametrize("capture", [None, "SPAN_AND_EVENT"])
@pytest.mark.parametrize("debug", ["", "1"])
def test_the_text_of_an_uncaptured_tool_is_never_logged(
    debug: str, capture: str | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_TOOLS_DEBUG", debug)
    ask(failing(capture=False), telemetry=Telemetry(capture=capture).options)
    (line,) = lines(caplog)
    assert line.startswith(LINE)
    assert ("in look" in line) is bool(debug)
    assert MARKER not in caplog.text
