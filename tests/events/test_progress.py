"""The progress that a tool reports, as events."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.events.watching import Watching, check_sequence, raising
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.waiting import in_time, until
from traced_tools import ChatClient, ContentCapture, TelemetryOptions, ToolCall, ToolContext, tool
from traced_tools.observe import Event, ToolProgressed
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback


@tool
def load(context: ToolContext) -> str:
    """Load, and report each step."""
    for step in (1, 2.5):
        context.report_progress(step, 2.5, f"step {step} of {MARKER}")
    context.report_progress(3)
    return "loaded"


@tool
async def aload(context: ToolContext) -> str:
    """Load on the event loop."""
    context.report_progress(1, None, MARKER)
    return "loaded"


@tool(capture=False)
def keep(context: ToolContext) -> str:
    """Keep a secret."""
    context.report_progress(1, None, MARKER)
    return "kept"


def progress_of(mode: str, *tools: Any, watching: Watching | None = None, **options: Any) -> list[ToolProgressed]:
    """The progress events of a run that calls each tool once."""
    seen = watching or Watching()
    calls = [ToolCall(each.__name__) for each in tools]
    client = ChatClient(ScriptedChatModel([calls, "done"]), tools=list(tools), advisors=[seen], **options)
    assert run(mode, client.prompt("?")).content == "done"
    check_sequence(seen.events)
    return [event for event in seen.events if isinstance(event, ToolProgressed)]


@pytest.mark.parametrize("mode", MODES)
def test_a_report_of_a_tool_is_an_event_between_its_start_and_its_end(mode: str) -> None:
    watching, telemetry = Watching(), Telemetry()
    found = progress_of(mode, load, watching=watching, telemetry=telemetry.options)
    assert [(event.progress, event.total) for event in found] == [(1, 2.5), (2.5, 2.5), (3, None)]
    kinds = [event.type for event in watching.of_call(found[0].call_id)]
    assert kinds == ["tool_intended", "tool_decided", "tool_started", *["tool_progressed"] * 3, "tool_finished"]
    span = telemetry.one("execute_tool load").get_span_context()
    assert span is not None and {event.span_id for event in found} == {f"{span.span_id:016x}"}


@pytest.mark.parametrize("mode", MODES)
def test_the_message_is_content(mode: str) -> None:
    (silent, *_) = progress_of(mode, aload)
    assert silent.message is None
    capture = TelemetryOptions(capture=ContentCapture("EVENT_ONLY"))
    found = progress_of(mode, aload, keep, telemetry=capture)
    assert {event.tool: event.message for event in found} == {"aload": f'"{MARKER}"', "keep": None}
    assert MARKER not in repr(found)


def test_nobody_is_told_of_progress_without_a_listener_or_a_run() -> None:
    heard: list[bool] = []

    @tool
    def work(context: ToolContext) -> str:
        """Work."""
        heard.append(context.on_progress is not None)
        context.report_progress(1)
        return "done"

    ChatClient(ScriptedChatModel([ToolCall("work"), "done"]), tools=[work]).prompt("?").call()
    assert FunctionToolCallback(work).call("{}") == "done"
    progress_of("call", work)
    assert heard == [False, False, True]


@pytest.mark.parametrize("mode", MODES)
def test_a_listener_that_fails_does_not_disturb_the_tool(mode: str) -> None:
    found = progress_of(mode, load, watching=Watching(then=raising("tool_progressed")))
    assert len(found) == 3


def test_reports_after_the_time_out_are_no_events() -> None:
    released, ended = threading.Event(), threading.Event()

    @tool(timeout=0.05)
    def slow(context: ToolContext) -> str:
        """Report too late."""
        until(released.is_set)
        context.report_progress(1)
        ended.set()
        return "late"

    def end(event: Event) -> None:
        if event.type == "tool_finished":
            released.set()
            in_time(ended.wait)

    assert progress_of("call", slow, watching=Watching(then=end)) == []


@pytest.mark.parametrize("wrong", [{"progress": "1"}, {"progress": 1, "total": "2"}, {"progress": 1, "message": 3}])
def test_a_report_of_wrong_types_is_an_error_of_the_tool(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="must be"):
        ToolContext().report_progress(**wrong)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 10**400])
def test_a_number_that_is_none_is_counted_as_lost_and_the_tool_goes_on(number: float) -> None:
    @tool
    def odd(context: ToolContext) -> str:
        """Report something odd."""
        context.report_progress(number)
        return "done"

    assert progress_of("call", odd) == []
