"""Development mode: contents in the terminal, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import ALL_MODES, run
from tests.otel.processes import in_a_process
from traced_tools.advisors import LoggingAdvisor
from traced_tools.client import ChatClient
from traced_tools.core.messages import ToolCall
from traced_tools.errors import ConfigurationError
from traced_tools.events import JsonLinesExporter, ObserverAdvisor
from traced_tools.observe.content import ContentCapture
from traced_tools.observe.viewer import current_viewer, set_viewer
from traced_tools.otel import configure as configuring
from traced_tools.otel.configure import configure
from traced_tools.otel.development import DevelopmentTerminal
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import tool

_KINDS = ("asked", "argument", "result", "broken", "answer")
ASKED, ARGUMENT, RESULT, BROKEN, ANSWER = (f"{MARKER}-{kind}" for kind in _KINDS)


@tool
def look(city: str) -> str:
    """Look."""
    return RESULT


@tool
def fail() -> str:
    """Fail."""
    raise ValueError(BROKEN)


@tool(capture=False)
def hide(city: str) -> str:
    """Hide."""
    return "hidden-result"


@pytest.fixture
def terminal() -> Iterator[DevelopmentTerminal]:
    terminal = DevelopmentTerminal()
    try:
        terminal.start()
        yield terminal
    finally:
        set_viewer(None)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(configuring, "_current", None)


def client(telemetry: Telemetry, *advisors: Any, tools: Any = (look, fail)) -> ChatClient:
    calls = [ToolCall(name="look", arguments={"city": ARGUMENT}), ToolCall(name="fail", arguments={})]
    model = ScriptedChatModel([calls, ANSWER])
    return ChatClient(model, tools=tools, telemetry=telemetry.options, advisors=advisors)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_the_terminal_alone_gets_contents(
    mode: str,
    terminal: DevelopmentTerminal,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    caplog.set_level(logging.DEBUG, "traced_tools")
    telemetry, exporter, file = Telemetry("SPAN_AND_EVENT"), InMemorySpanExporter(), tmp_path / "events.jsonl"
    telemetry.tracer_provider.add_span_processor(terminal)
    telemetry.tracer_provider.add_span_processor(SimpleSpanProcessor(exporter))
    with ObserverAdvisor([JsonLinesExporter(file)], deltas=True) as observer:
        run(mode, client(telemetry, observer, LoggingAdvisor()).prompt(ASKED))
    printed = capsys.readouterr().err
    for content in (f"user: {ASKED}", f'arguments: {{"city": "{ARGUMENT}"}}', f"result: {RESULT}", ANSWER):
        assert content in printed
    assert "Traceback (most recent call last):" in printed and f"ValueError: {BROKEN}" in printed
    spans = exporter.get_finished_spans()
    assert spans and not any(MARKER in span.to_json() for span in spans)
    assert telemetry.events and not any(MARKER in repr(vars(event)) for event in telemetry.events)
    assert "run_finished" in file.read_text("utf-8") and MARKER not in file.read_text("utf-8")
    assert MARKER not in caplog.text


@pytest.mark.parametrize("mode", ALL_MODES)
def test_without_development_mode_nothing_is_shown(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert current_viewer() is None
    telemetry = Telemetry()
    telemetry.tracer_provider.add_span_processor(DevelopmentTerminal())
    run(mode, client(telemetry).prompt(ASKED))
    printed = capsys.readouterr()
    assert "invoke_agent" in printed.err and "run started" not in printed.err
    assert MARKER not in printed.err + printed.out


def test_each_event_is_a_line_when_it_happens(
    terminal: DevelopmentTerminal, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry()
    telemetry.tracer_provider.add_span_processor(terminal)
    seen = []

    @tool
    def look(city: str) -> str:
        """Look."""
        seen.append(capsys.readouterr().err)
        return RESULT

    client(telemetry, tools=[look, fail]).prompt(ASKED).call()
    (before,) = seen
    assert "run started" in before and "look started" in before
    assert "look finished" not in before and MARKER not in before
    assert "look finished" in capsys.readouterr().err


def test_lines_are_cut_to_the_width_of_the_terminal_and_escaped(
    terminal: DevelopmentTerminal, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    telemetry = Telemetry()
    telemetry.tracer_provider.add_span_processor(terminal)
    capsys.readouterr()
    client(telemetry).prompt("\x1b[2J" + "long " * 50).call()
    printed = capsys.readouterr().err
    assert max(map(len, printed.splitlines())) <= 60 and "\x1b" not in printed


def test_a_tool_with_capture_disabled_and_the_redactor_are_obeyed(
    terminal: DevelopmentTerminal, capsys: pytest.CaptureFixture[str]
) -> None:
    telemetry = Telemetry(ContentCapture("NO_CONTENT", redact=lambda name, value: None))
    telemetry.tracer_provider.add_span_processor(terminal)
    client(telemetry).prompt(ASKED).call()
    assert MARKER not in capsys.readouterr().err
    telemetry = Telemetry()
    telemetry.tracer_provider.add_span_processor(terminal)
    model = ScriptedChatModel([ToolCall(name="hide", arguments={"city": ARGUMENT}), "done"])
    ChatClient(model, tools=[hide], telemetry=telemetry.options).prompt("?").call()
    printed = capsys.readouterr().err
    assert "execute_tool hide" in printed and ARGUMENT not in printed and "hidden-result" not in printed


@pytest.mark.parametrize(
    ("arguments", "variables", "advice"),
    [
        ({"otlp": True}, {}, "pass otlp=False"),
        ({"otlp": "http://127.0.0.1:1"}, {}, "pass otlp=False"),
        ({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, "pass otlp=False"),
        ({}, {"OTEL_LOGS_EXPORTER": "otlp"}, "pass otlp=False"),
        ({}, {"OTEL_CONFIG_FILE": "otel.yaml"}, "unset it"),
        ({"capture": "SPAN_ONLY"}, {}, "drop it"),
        ({}, {"OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "EVENT_ONLY"}, "unset it"),
    ],
)
def test_it_refuses_what_takes_contents_out_of_the_process(
    arguments: dict[str, Any], variables: dict[str, str], advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigurationError, match=advice) as refused:
        configure(dev=True, **arguments)
    assert "TRACED_TOOLS_DEV" in str(refused.value) and current_viewer() is None
    monkeypatch.setenv("TRACED_TOOLS_DEV", "1")
    with pytest.raises(ConfigurationError, match=advice):
        configure(**arguments)


def test_an_invalid_variable_is_refused_without_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACED_TOOLS_DEV", MARKER)
    with pytest.raises(ConfigurationError, match="TRACED_TOOLS_DEV must be true or false") as refused:
        configure()
    assert MARKER not in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["configure(dev=True)", "configure(prometheus=0)"])
def test_the_argument_or_the_variable_turns_it_on(script: str) -> None:
    script = f"handle = {script}; run(); handle.shutdown(); print('after', file=sys.stderr); run()"
    done = in_a_process(script, **({} if "dev=" in script else {"TRACED_TOOLS_DEV": "1"}))
    inside, after = done.stderr.split("after\n")
    assert inside.startswith("*** DEVELOPMENT MODE") and MARKER in inside
    assert MARKER not in after + done.stdout


@pytest.mark.slow
def test_it_refuses_a_provider_of_the_application_and_metrics_have_no_contents() -> None:
    done = in_a_process("handle = configure(dev=True, prometheus=0); run(); print(scrape(handle))")
    assert "traced_tools" in done.stdout and MARKER not in done.stdout
    in_a_process(
        """
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
try:
    configure(dev=True)
except ConfigurationError as error:
    assert "has set its own OpenTelemetry provider" in str(error)
else:
    raise AssertionError
"""
    )
