"""Which contents are told: none, until somebody asks, and then no more than was asked for."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.helpers import MARKER, MODES, Telemetry, everything, run
from tests.telemetry.runs import add, fail
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ConfigurationError,
    ContentCapture,
    ImagePart,
    ReasoningPart,
    SystemMessage,
    TelemetryOptions,
    TextPart,
    ToolCall,
    ToolInvocation,
    ToolMessage,
    ToolResult,
    ToolResultPart,
    UserMessage,
    tool,
)
from traced_tools.advisors.base import AdviseNext
from traced_tools.models import ChatResponse
from traced_tools.telemetry import content, names, shapes
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.execution import CallNext

VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
CONTENT = {name for each in (*names.SPANS, *names.EVENTS.values()) for name in each.content} - {names.TOOL_NAME}


@tool(capture=False)
def discreet(secret: str) -> str:
    """Raise, quoting the argument."""
    raise ValueError(f"cannot use {secret}")


@tool(capture=False)
def quiet(secret: str) -> str:
    """Return the argument."""
    return secret


class Reasons(Advisor):
    """Finds the reason for a call."""

    name, order = "reasons", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return await call_next(call.replace(intent=f"because of {call.name}"))


def talk(telemetry: Telemetry, mode: str, *calls: ToolCall, tools: Any = (add, fail, discreet, quiet)) -> None:
    """A run whose first answer is `calls`, the second `done`."""
    model = ScriptedChatModel([["let me see", *calls], "done"])
    client = ChatClient(model, system="Be brief.", tools=list(tools), advisors=[Reasons()], telemetry=telemetry.options)
    run(client.prompt("1+2?"), mode)


def on_spans(telemetry: Telemetry) -> set[str]:
    return CONTENT & {name for span in telemetry.spans for name in span.attributes or {}}


def on_events(telemetry: Telemetry) -> set[str]:
    return CONTENT & {name for event in telemetry.events for name in event.attributes}


def told(telemetry: Telemetry, span: str, name: str) -> Any:
    """The JSON of an attribute of the only span of that name."""
    return json.loads(str((telemetry.one(span).attributes or {})[name]))


def refuse_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let anything that begins to make content fail."""

    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError("content was made")

    for function in ("input_messages", "output_messages", "system_instructions", "tool_definitions", "from_json"):
        monkeypatch.setattr(shapes, function, never)
    monkeypatch.setattr(content, "fitted", never)
    monkeypatch.setattr(content, "shortened", never)
    monkeypatch.setattr(content.Contents, "__init__", never)


# The switch.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("capture", [None, "NO_CONTENT"])
def test_without_capture_no_content_is_told_or_even_made(
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
def test_the_switch_says_where_content_is_told(mode: str, capture: Any, spans: bool, events: bool) -> None:
    telemetry = Telemetry(capture=capture)
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"))
    assert bool(on_spans(telemetry)) is spans
    assert bool(on_events(telemetry)) is events


@pytest.mark.parametrize("mode", MODES)
def test_a_span_that_is_not_recorded_has_no_content_made_for_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

    refuse_to_make(monkeypatch)
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


def test_a_wrong_word_in_the_environment_captures_nothing_and_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(content, "_warned", set())
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
def test_a_wrong_setting_is_refused(capture: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TelemetryOptions(capture=capture() if callable(capture) else capture)


# What is told.


@pytest.mark.parametrize("mode", MODES)
def test_a_tools_span_tells_arguments_result_description_and_reason(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_ONLY")
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}))
    assert told(telemetry, "execute_tool add", names.TOOL_CALL_ARGUMENTS) == {"a": 1, "b": 2}
    assert told(telemetry, "execute_tool add", names.TOOL_CALL_RESULT) == 3
    attributes = telemetry.one("execute_tool add").attributes or {}
    assert attributes[names.TOOL_DESCRIPTION] == "Add two numbers."
    assert attributes[names.INTENT] == "because of add"
    assert names.CONTENT_TRUNCATED not in attributes


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_tool_tells_the_exceptions_text_and_where_it_was_raised(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall("fail", {"reason": "out of paper"}))
    assert telemetry.one("execute_tool fail").status.description == "out of paper"
    (event,) = telemetry.events_named(names.TOOL_EXCEPTION_EVENT.name)
    assert event.attributes[names.EXCEPTION_TYPE] == "RuntimeError"
    assert event.attributes[names.EXCEPTION_MESSAGE] == "out of paper"
    assert "in fail" in str(event.attributes[names.EXCEPTION_STACKTRACE])


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_model_call_tells_the_exceptions_text(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    client = ChatClient(ScriptedChatModel([RuntimeError("no line")]), telemetry=telemetry.options)
    with pytest.raises(RuntimeError):
        run(client.prompt("?"), mode)
    assert telemetry.one("chat scripted").status.description == "no line"
    (event,) = telemetry.events_named(names.OPERATION_EXCEPTION_EVENT.name)
    assert event.attributes[names.EXCEPTION_MESSAGE] == "no line"


@pytest.mark.parametrize("mode", MODES)
def test_a_name_the_model_invented_is_told_but_names_no_span_and_no_series(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall("invented", {"a": 1}))
    span = telemetry.one(f"refuse_tool {names.UNKNOWN_TOOL}")
    assert (span.attributes or {})[names.TOOL_NAME] == "invented"
    (event,) = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    assert event.attributes[names.TOOL_NAME] == "invented"
    assert "invented" not in everything([[point.name, point.labels] for point in telemetry.points()])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["chat scripted", "invoke_agent assistant"])
def test_a_conversation_is_told_in_the_shapes_of_the_conventions(mode: str, where: str) -> None:
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
        {"role": "assistant", "parts": [{"type": "text", "content": "done"}], "finish_reason": "stop"}
    ]
    definition = json.loads(str(attributes[names.TOOL_DEFINITIONS]))[0]
    assert (definition["type"], definition["name"], definition["description"]) == (
        "function",
        "add",
        "Add two numbers.",
    )
    assert definition["parameters"]["required"] == ["a", "b"]


def test_every_kind_of_part_has_a_shape() -> None:
    picture, drawn = ImagePart(url="https://example.invalid/x.png"), ImagePart(data=b"\x89PNG")
    thoughts, sealed = ReasoningPart("hm", signature=MARKER), ToolCall("add", "not json", id="1", signature=MARKER)
    messages = [
        SystemMessage("left out here"),
        UserMessage([TextPart("look"), picture, drawn]),
        AssistantMessage([thoughts, sealed]),
        ToolMessage([ToolResultPart(call_id="1", name="add", content="NaN")]),
    ]
    made = shapes.input_messages(messages, lambda name: True)
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


# What is not told all the same.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["discreet", "quiet"])
def test_a_tool_that_is_not_captured_is_silent_everywhere(mode: str, name: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall(name, {"secret": MARKER}), ToolCall("add", {"a": 1, "b": 2}))
    assert names.TOOL_CALL_ARGUMENTS in (telemetry.one("execute_tool add").attributes or {})
    for span in telemetry.spans:
        assert MARKER not in span.to_json(), span.name
    assert MARKER not in everything([[event.name, event.attributes] for event in telemetry.events])


class Indiscreet(Advisor):
    """Quotes the arguments of a call as it raises."""

    name, order = "indiscreet", 300

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        raise LookupError(call.arguments)


class Wrapping(Advisor):
    """Raises another error from one."""

    name, order = "wrapping", 100

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            return await call_next(request)
        except LookupError as error:
            raise RuntimeError(f"because: {error}") from error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", [[], [Wrapping()]])
def test_what_an_advisor_raises_around_such_a_tool_is_told_by_its_type_alone(mode: str, around: list[Advisor]) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("quiet", {"secret": MARKER}), "x"])
    client = ChatClient(model, tools=[quiet], advisors=[Indiscreet(), *around], telemetry=telemetry.options)
    with pytest.raises(RuntimeError if around else LookupError):
        run(client.prompt("?"), mode)
    (hook,) = telemetry.named("advise_tool indiscreet")
    assert (hook.attributes or {})[names.ERROR_TYPE] == "LookupError"
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


@pytest.mark.parametrize("mode", MODES)
def test_of_a_tool_the_run_does_not_know_the_conversation_tells_only_the_name(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    before = [
        UserMessage("hello"),
        AssistantMessage([ToolCall("quiet", {"secret": MARKER}, id="1")]),
        ToolMessage([ToolResultPart(call_id="1", name="quiet", content=MARKER)]),
    ]
    client = ChatClient(ScriptedChatModel(["hi"]), telemetry=telemetry.options)
    run(client.prompt("and now?", messages=before), mode)
    assert "quiet" in str((telemetry.one("chat scripted").attributes or {})[names.INPUT_MESSAGES])
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


@pytest.mark.parametrize("mode", MODES)
def test_the_tools_context_is_never_told(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "done"])
    client = ChatClient(model, tools=[add], tool_context={"key": MARKER}, telemetry=telemetry.options)
    run(client.prompt("?", tool_context={MARKER: MARKER}), mode)
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


# The redactor.


@pytest.mark.parametrize("mode", MODES)
def test_a_redactor_sees_each_value_before_anybody_and_decides(mode: str) -> None:
    seen: dict[str, Any] = {}

    def redact(name: str, value: Any) -> Any:
        seen[name] = value
        if name == names.TOOL_CALL_RESULT:
            return None
        return {"redacted": True} if name == names.TOOL_CALL_ARGUMENTS else value

    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact))
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"), ToolCall("invented"))
    assert set(seen) == CONTENT - {names.CONTENT_TRUNCATED} | {names.TOOL_NAME}
    attributes = telemetry.one("execute_tool add").attributes or {}
    assert json.loads(str(attributes[names.TOOL_CALL_ARGUMENTS])) == {"redacted": True}
    assert names.TOOL_CALL_RESULT not in attributes
    (intent, *_) = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    assert intent.attributes[names.TOOL_CALL_ARGUMENTS] == {"redacted": True}


def raising(name: str, value: Any) -> Any:
    raise ValueError(f"cannot redact {value}")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("redact", [raising, lambda name, value: object(), lambda name, value: b"x"])
def test_a_redactor_that_fails_drops_the_value_and_is_counted(
    mode: str, redact: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("traced_tools.telemetry.scope._reported", set())
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact))
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail", {"reason": MARKER}))
    assert on_spans(telemetry) == on_events(telemetry) == set()
    assert telemetry.metric(names.TELEMETRY_FAILURES.name)[0].total > 5
    assert MARKER not in caplog.text
    assert telemetry.one("execute_tool add").status.is_unset


# The size limit.


@pytest.mark.parametrize("mode", MODES)
def test_a_value_is_cut_to_the_limit_and_marked(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall("fail", {"reason": "x" * 100_000}))
    attributes = telemetry.one("execute_tool fail").attributes or {}
    cut = str(attributes[names.TOOL_CALL_ARGUMENTS])
    assert 6000 < len(cut) <= 8192
    assert json.loads(cut)["reason"].startswith("xxx")
    assert attributes[names.CONTENT_TRUNCATED] is True
    (intent,) = telemetry.events_named(names.TOOL_INTENT_EVENT.name)
    assert intent.attributes[names.CONTENT_TRUNCATED] is True
    for span in telemetry.spans:
        for name in CONTENT & set(span.attributes or {}):
            assert len(str((span.attributes or {})[name]).encode()) <= 8192, name


def test_the_limit_can_be_set() -> None:
    telemetry = Telemetry(capture=ContentCapture("SPAN_ONLY", max_bytes=300))
    talk(telemetry, "call", ToolCall("fail", {"reason": "x" * 1000}))
    assert len(str((telemetry.one("execute_tool fail").attributes or {})[names.TOOL_CALL_ARGUMENTS])) <= 300


@pytest.mark.parametrize("arguments", [f'{{"n": {10**40}}}', '{"": 1}', '{"a": NaN}', "[" * 5000 + "]" * 5000, ""])
def test_arguments_no_exporter_could_carry_are_told_as_well_as_can_be(
    arguments: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, "call", ToolCall("add", arguments))
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert names.TOOL_CALL_ARGUMENTS in (telemetry.one("refuse_tool add").attributes or {})
    assert caplog.records == []


def test_an_answer_without_a_finish_reason_has_one_in_its_shape() -> None:
    response = ChatResponse(AssistantMessage("x"))
    (message,) = shapes.output_messages(response.message, response.finish_reason, lambda name: True)
    assert message["finish_reason"] == "stop"
