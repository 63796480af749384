"""Content in events: none, unless the run captures content on events."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.events.watching import Watching, types
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    ChatClient,
    ContentCapture,
    TelemetryOptions,
    ToolCall,
    ToolExecutionError,
    ToolResult,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.observe import Delta, ToolFinished, ToolIntended, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

CONTENTS = ("input_messages", "output_messages", "arguments", "result", "intent")


class Reasoned(Advisor):
    name, order = "reasoned", 410

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(intent=f"because {MARKER}"))


def say(text: str) -> str:
    """Say something."""
    return f"said {text}"


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(text)


@tool(capture=False)
def keep(secret: str) -> str:
    """Keep a secret."""
    return f"kept {secret}"


CALLS = [ToolCall(name, {"text": MARKER}) for name in ("say", "fail", "add", MARKER)]


def watched(capture: Any, mode: str, turns: Any = None, **settings: Any) -> Watching:
    """Run an agent with markers everywhere, and return its event listener."""
    watching, telemetry = Watching(deltas=True), Telemetry(capture=capture)
    model = ScriptedChatModel(turns or [[MARKER, *CALLS], MARKER])
    client = ChatClient(model, tools=[say, fail, add, keep], advisors=[watching, Reasoned()], system=MARKER, **settings)
    run(mode, client.replace(telemetry=telemetry.options).prompt(MARKER))
    return watching


def contents_of(watching: Watching) -> dict[str, list[str]]:
    """Which contents the events of each type have."""
    found: dict[str, list[str]] = {}
    for event in watching.events:
        if not isinstance(event, Delta):
            found.setdefault(event.type, []).extend(name for name in CONTENTS if getattr(event, name, None) is not None)
    return {kind: sorted(set(had)) for kind, had in found.items() if had}


ALL = {
    "run_started": ["input_messages"],
    "model_responded": ["output_messages"],
    "tool_intended": ["arguments"],
    "tool_decided": ["intent"],
    "tool_finished": ["result"],
    "run_finished": ["output_messages"],
}


@pytest.mark.parametrize(
    "capture, expected", [(None, {}), ("SPAN_ONLY", {}), ("EVENT_ONLY", ALL), ("SPAN_AND_EVENT", ALL)]
)
@pytest.mark.parametrize("mode", MODES)
def test_events_have_content_only_if_it_is_captured_on_events(
    mode: str, capture: Any, expected: dict[str, list[str]]
) -> None:
    watching = watched(capture, mode)
    assert contents_of(watching) == expected
    said = [event.for_export().model_dump_json() for event in watching.events]
    assert any(MARKER in each for each in said) == bool(expected)
    assert not [event for event in watching.events if MARKER in repr(event)]


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_name_that_the_model_made_up_is_in_no_event_of_its_call(mode: str) -> None:
    for capture in (None, "SPAN_AND_EVENT"):
        call = watched(capture, mode).of_call("call_1_4")
        assert {event.tool for event in call} == {"_unknown"}
        assert not [event for event in call if MARKER in event.model_dump_json()]


@pytest.mark.parametrize("mode", MODES)
def test_event_contents_are_json_in_the_format_of_the_conventions(mode: str) -> None:
    watching = watched("EVENT_ONLY", mode, [["Hm.", ToolCall("say", {"text": "x"})], "done"])
    started, finished = watching.one("run_started"), watching.one("run_finished")
    assert json.loads(started.input_messages or "") == [  # type: ignore[attr-defined]
        {"role": "user", "parts": [{"type": "text", "content": MARKER}]}
    ]
    assert json.loads(finished.output_messages or "") == [  # type: ignore[attr-defined]
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}]}
    ]
    call = watching.of_call("call_1_1")
    intended, ended = call[0], call[-1]
    assert isinstance(intended, ToolIntended) and isinstance(ended, ToolFinished)
    assert json.loads(intended.arguments or "") == {"text": "x"}
    assert ended.result == '"said x"'


@pytest.mark.parametrize("mode", MODES)
def test_the_content_of_a_tool_with_capture_disabled_is_in_no_event(mode: str) -> None:
    call = ToolCall("keep", {"secret": MARKER})
    watching = Watching(deltas=True)
    options = TelemetryOptions(capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel([call, "done"]), tools=[keep], advisors=[watching, Reasoned()])
    run(mode, client.replace(telemetry=options).prompt("?"))
    assert "tool_finished" in watching.types
    assert not [event for event in watching.events if MARKER in event.for_export().model_dump_json()]


@pytest.mark.parametrize("mode", MODES)
def test_a_direct_result_of_a_tool_with_capture_disabled_is_not_in_the_answer_event(mode: str) -> None:
    @tool(capture=False, return_direct=True)
    def answer() -> str:
        """Answer."""
        return MARKER

    watching = Watching(deltas=True)
    options = TelemetryOptions(capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel([ToolCall("answer")]), tools=[answer], advisors=[watching], telemetry=options)
    assert run(mode, client.prompt("?")).content == MARKER
    assert not [event for event in watching.events if MARKER in event.for_export().model_dump_json()]


@pytest.mark.parametrize("mode", MODES)
def test_the_redactor_sees_every_content_of_events(mode: str) -> None:
    seen = []

    def redact(name: str, value: Any) -> Any:
        seen.append(name)
        return None if name == names.TOOL_CALL_RESULT else "redacted"

    watching = watched(ContentCapture("EVENT_ONLY", redact=redact), mode)
    assert contents_of(watching) == {kind: had for kind, had in ALL.items() if kind != "tool_finished"}
    assert not [event for event in watching.events if MARKER in event.for_export().model_dump_json()]
    assert {names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_CALL_ARGUMENTS, names.INTENT} <= {*seen}


def test_a_redactor_that_raises_drops_the_value() -> None:
    def redact(name: str, value: Any) -> Any:
        raise ValueError(MARKER)

    watching = watched(ContentCapture("EVENT_ONLY", redact=redact), "call")
    assert contents_of(watching) == {}
    assert watching.types[-1] == "run_finished"


def test_long_contents_are_cut() -> None:
    turns = [ToolCall("say", {"text": "x" * 5000}), "y" * 5000]
    watching = watched(ContentCapture("EVENT_ONLY", max_bytes=256), "call", turns)
    call = watching.of_call("call_1_1")
    intended, ended = call[0], call[-1]
    assert isinstance(intended, ToolIntended) and isinstance(ended, ToolFinished)
    assert len(intended.arguments or "") <= 256 < intended.arguments_size
    assert ended.result_size is not None
    assert len(ended.result or "") <= 256 < ended.result_size


@pytest.mark.parametrize("mode", MODES)
def test_events_have_content_also_without_an_sdk(mode: str) -> None:
    watching = Watching()
    options = TelemetryOptions(capture="EVENT_ONLY")
    client = ChatClient(ScriptedChatModel(["done"]), advisors=[watching], telemetry=options)
    run(mode, client.prompt("?"))
    assert "done" in watching.one("run_finished").model_dump_json()


@pytest.mark.parametrize("mode", MODES)
def test_the_text_of_an_error_that_fails_a_run_is_in_no_event(mode: str) -> None:
    watching, telemetry = Watching(), Telemetry()
    model = ScriptedChatModel([ToolCall("fail", {"text": MARKER})])
    client = ChatClient(model, tools=[fail], advisors=[watching], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError):
        run(mode, client.replace(telemetry=telemetry.options).prompt("?"))
    assert types(watching.events)[-1] == "run_finished"
    assert not [event for event in watching.events if MARKER in event.model_dump_json()]
