"""Content capture: none by default, and no more than was enabled."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.contents import captured_value, on_events, on_spans, refuse_to_make, talk
from tests.sample_tools import add
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ConfigurationError,
    ContentCapture,
    ImagePart,
    Message,
    SystemMessage,
    TelemetryOptions,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    tool,
)
from traced_tools.core import ProviderPart, ReasoningPart, ToolResultPart
from traced_tools.observe import content, names, settings
from traced_tools.observe import genai_messages as shapes
from traced_tools.observe.truncation import truncate_json
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import tool_callbacks

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

# The switch.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capture", [None, "NO_CONTENT"])
def test_without_capture_no_content_is_emitted_or_built(
    mode: str, capture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_make(monkeypatch)
    telemetry = Telemetry(capture=capture)
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"))
    assert on_spans(telemetry) == on_events(telemetry) == set()
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("capture", "spans", "events"),
    [("SPAN_ONLY", True, False), ("event_only", False, True), ("SPAN_AND_EVENT", True, True)],
)
def test_the_capture_mode_selects_spans_or_events(mode: str, capture: Any, spans: bool, events: bool) -> None:
    telemetry = Telemetry(capture=capture)
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"))
    assert bool(on_spans(telemetry)) is spans
    assert bool(on_events(telemetry)) is events


@pytest.mark.parametrize("mode", MODES)
def test_no_content_is_built_for_a_span_that_is_not_recorded(
    mode: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    refuse_to_make(monkeypatch)
    caplog.set_level(logging.CRITICAL, logger="traced_tools.tools")  # which would have the traceback of the tool made
    telemetry = Telemetry(capture="SPAN_ONLY", sampler=ALWAYS_OFF)
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"))
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []


@pytest.fixture
def of_process() -> Iterator[Callable[[Any], None]]:
    yield content.set_process_capture
    content.set_process_capture(None)


@pytest.mark.parametrize(
    ("own", "process", "environment", "expected"),
    [
        (None, None, "SPAN_ONLY", True),
        (None, None, "span_only ", True),
        (None, None, "", False),
        (None, None, "false", False),
        (None, "NO_CONTENT", "SPAN_ONLY", False),
        (None, "SPAN_ONLY", "", True),
        ("NO_CONTENT", "SPAN_ONLY", "SPAN_ONLY", False),
        ("SPAN_ONLY", "NO_CONTENT", "NO_CONTENT", True),
    ],
)
def test_a_client_decides_before_the_process_and_that_before_the_environment(
    own: Any,
    process: Any,
    environment: str,
    expected: bool,
    of_process: Callable[[Any], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, environment)
    of_process(process)
    telemetry = Telemetry(capture=own)
    talk(telemetry, "call", ToolCall("add", {"a": 1, "b": 2}))
    assert bool(on_spans(telemetry)) is expected


def test_an_unknown_mode_in_the_environment_captures_nothing_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(settings, "_warned", set())
    monkeypatch.setenv(VARIABLE, MARKER)
    telemetry = Telemetry()
    for _ in range(3):
        talk(telemetry, "call", ToolCall("add", {"a": 1, "b": 2}))
    assert on_spans(telemetry) == set()
    (record,) = caplog.records
    assert VARIABLE in record.getMessage()
    assert "SPAN_AND_EVENT" in record.getMessage()
    assert MARKER not in caplog.text


@pytest.mark.parametrize(
    ("capture", "error"),
    [
        ("everything", ConfigurationError),
        (True, TypeError),
        (1, TypeError),
        (lambda: ContentCapture("SPAN_ONLY", redact=3), TypeError),  # type: ignore[arg-type]
        (lambda: ContentCapture("SPAN_ONLY", max_bytes=100), ValueError),
        (lambda: ContentCapture("SPAN_ONLY", max_bytes="8"), TypeError),  # type: ignore[arg-type]
        (lambda: ContentCapture(None), TypeError),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_capture_setting_is_refused(capture: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TelemetryOptions(capture=capture() if callable(capture) else capture)


# What is captured.


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_span_captures_arguments_result_description_and_reason(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}))
    assert captured_value(telemetry, "execute_tool add", names.TOOL_CALL_ARGUMENTS) == {"a": 1, "b": 2}
    assert captured_value(telemetry, "execute_tool add", names.TOOL_CALL_RESULT) == 3
    attributes = telemetry.one("execute_tool add").attributes or {}
    assert attributes[names.TOOL_DESCRIPTION] == "Add two numbers."
    assert attributes[names.INTENT] == "because of add"
    assert names.CONTENT_TRUNCATED not in attributes


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_tool_captures_the_exception_message_and_stack_trace(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall("fail", {"reason": "out of paper"}))
    assert (telemetry.one("execute_tool fail").attributes or {})[names.EXCEPTION_MESSAGE] == "out of paper"
    (event,) = telemetry.events_named(names.TOOL_EXCEPTION_EVENT.name)
    assert event.attributes[names.EXCEPTION_TYPE] == "RuntimeError"
    assert event.attributes[names.EXCEPTION_MESSAGE] == "out of paper"
    assert "in fail" in str(event.attributes[names.EXCEPTION_STACKTRACE])


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_model_call_captures_the_exception_message(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel([RuntimeError("no line")]), telemetry=telemetry.options)
    with pytest.raises(RuntimeError):
        run(mode, client.prompt("?"))
    for where in ("chat scripted", "iteration", "advise tool_calling", "invoke_agent assistant"):
        assert (telemetry.one(where).attributes or {})[names.EXCEPTION_MESSAGE] == "no line"
    (event,) = telemetry.events_named(names.INFERENCE_EXCEPTION_EVENT.name)
    assert event.attributes[names.EXCEPTION_MESSAGE] == "no line"


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_name_that_the_model_made_up_is_captured_only_as_content(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall("invented", {"a": 1}))
    span = telemetry.one(f"refuse_tool {names.UNKNOWN_TOOL}")
    (intent,) = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    (decision,) = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    for attributes in (span.attributes or {}, intent.attributes, decision.attributes):
        assert (attributes[names.TOOL_NAME], attributes[names.TOOL_REQUESTED_NAME]) == (names.UNKNOWN_TOOL, "invented")
    assert "invented" not in everything([[point.name, point.attributes] for point in telemetry.metrics])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["chat scripted", "invoke_agent assistant"])
def test_captured_messages_have_the_format_of_the_conventions(mode: str, where: str) -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}, id="c1"))
    attributes = telemetry.named(where)[-1].attributes or {}
    first = {"role": "user", "parts": [{"type": "text", "content": "1+2?"}]}
    asked = [{"type": "text", "content": "let me see"}]
    asked.append({"type": "tool_call", "id": "c1", "name": "add", "arguments": {"a": 1, "b": 2}})  # type: ignore[dict-item]
    answered = {"type": "tool_call_response", "id": "c1", "response": 3}
    loop = [{"role": "assistant", "parts": asked}, {"role": "tool", "parts": [answered]}]
    sent = [first, *loop] if where.startswith("chat") else [first]
    assert json.loads(str(attributes[names.INPUT_MESSAGES])) == sent
    assert json.loads(str(attributes[names.SYSTEM_INSTRUCTIONS])) == [{"type": "text", "content": "Be brief."}]
    assert json.loads(str(attributes[names.OUTPUT_MESSAGES])) == [
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}]}
    ]
    definition = json.loads(str(attributes[names.TOOL_DEFINITIONS]))[0]
    assert (definition["type"], definition["name"], definition["description"]) == (
        "function",
        "add",
        "Add two numbers.",
    )
    assert definition["parameters"]["required"] == ["a", "b"]


def test_every_message_part_has_a_captured_format() -> None:
    picture, drawn = ImagePart(url="https://example.invalid/x.png"), ImagePart(data=b"\x89PNG")
    thoughts, sealed = ReasoningPart("hm", signature=MARKER), ToolCall("add", "not json", id="1", signature=MARKER)
    messages = [
        SystemMessage("left out here"),
        UserMessage([TextPart("look"), picture, drawn]),
        AssistantMessage([thoughts, sealed, ProviderPart(MARKER)]),
        ToolMessage([ToolResultPart(call_id="1", name="add", content="NaN")]),
    ]
    of_run = content.RunContent(ContentCapture("SPAN_ONLY"), lambda error, what: None, "v0.1.0")
    of_run.register_tools(tool_callbacks(add))
    made = list(shapes.InputMessages(messages, of_run))
    assert made == [
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "look"},
                {"type": "uri", "modality": "image", "uri": "https://example.invalid/x.png"},
                {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "iVBORw=="},
            ],
        },
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "id": "1", "name": "add", "arguments": "not json"},
                {"type": "generic"},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "1", "response": "NaN"}]},
    ]
    assert MARKER not in str(made)


@pytest.mark.parametrize("mode", MODES)
def test_on_an_event_content_is_structured(mode: str) -> None:
    telemetry = Telemetry(capture="EVENT_ONLY")
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}))
    (intent,) = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    assert intent.attributes[names.TOOL_CALL_ARGUMENTS] == {"a": 1, "b": 2}
    (outcome,) = telemetry.events_named(names.TOOL_OUTCOME_EVENT.name)
    assert outcome.attributes[names.TOOL_CALL_RESULT] == 3
    first, _ = telemetry.events_named(names.INFERENCE_DETAILS_EVENT.name)
    (message,) = first.attributes[names.INPUT_MESSAGES]
    assert message["parts"][0]["content"] == "1+2?"


# What model calls of a run have in common is encoded once.


def test_each_message_and_definition_is_encoded_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    class Counted(shapes.Item):
        __slots__ = ()

        def __init__(self, value: object, most: int) -> None:
            encoded.append(value)
            super().__init__(value, most)

    monkeypatch.setattr(shapes, "Item", Counted)
    telemetry, passes = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", max_bytes=100_000)), 20
    answers: list[Any] = [[ToolCall("add", {"a": number, "b": 1})] for number in range(passes)]
    client = ChatClient(ScriptedChatModel([*answers, "done"]), tools=[add], telemetry=telemetry.options)
    client.prompt("What is 1 + 2?").call()
    *_, last = (span for span in telemetry.spans if span.name == "chat scripted")
    messages = json.loads(str((last.attributes or {})[names.INPUT_MESSAGES]))
    definitions = 1
    assert len(messages) == 1 + 2 * passes
    assert len(encoded) == len(messages) + definitions


def test_a_message_is_encoded_once_although_older_ones_are_removed_or_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    class Counted(shapes.Item):
        __slots__ = ()

        def __init__(self, value: object, most: int) -> None:
            encoded.append(value)
            super().__init__(value, most)

    monkeypatch.setattr(shapes, "Item", Counted)
    of_run = content.RunContent(ContentCapture("SPAN_ONLY"), lambda error, what: None, "v0.1.0")
    messages = [UserMessage(f"message {number}") for number in range(10)]

    def captured(values: list[Message]) -> list[str]:
        return [
            message["parts"][0]["content"]
            for message in truncate_json(shapes.InputMessages(values, of_run), 8192).value
        ]

    assert captured(messages[:8]) == [f"message {number}" for number in range(8)]
    assert captured(messages[2:9]) == [f"message {number}" for number in range(2, 9)]
    assert captured([UserMessage("summary"), *messages[5:]])[:2] == ["summary", "message 5"]
    assert captured(messages[5:7]) == ["message 5", "message 6"]
    assert len(encoded) == len(messages) + 1


@given(st.lists(st.integers(0, 600), max_size=40), st.integers(256, 3000))
def test_a_conversation_is_captured_in_the_same_way_whether_or_not_it_grew(sizes: list[int], most: int) -> None:
    messages = [UserMessage("x" * size) for size in sizes]

    def of_run() -> content.RunContent:
        return content.RunContent(ContentCapture("SPAN_ONLY", max_bytes=most), lambda error, what: None, "v0.1.0")

    growing = of_run()
    for length in range(len(messages) + 1):
        part = messages[:length]
        expected = truncate_json([*shapes.InputMessages(part, of_run())], most)
        assert truncate_json(shapes.InputMessages(part, growing), most) == expected


@tool(name="add", capture=False)
def quiet_add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def test_a_message_is_encoded_again_if_it_may_no_longer_be_captured() -> None:
    of_run = content.RunContent(ContentCapture("SPAN_ONLY"), lambda error, what: None, "v0.1.0")
    results = [ToolMessage([ToolResultPart(call_id="1", name="add", content=MARKER)])]

    def captured() -> str:
        return truncate_json(shapes.InputMessages(results, of_run), 8192).text

    of_run.register_tools(tool_callbacks(add))
    assert MARKER in captured()
    of_run.register_tools(tool_callbacks(quiet_add))
    assert MARKER not in captured()
