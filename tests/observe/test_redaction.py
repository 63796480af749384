"""Redaction and truncation of content before it is attached."""

from __future__ import annotations

import json
import logging
from functools import partial
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.contents import CONTENT, captured_value, on_events, on_spans, talk
from tests.sample_tools import add
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ContentCapture,
    TelemetryOptions,
    ToolCall,
    UserMessage,
)
from traced_tools.errors import ConfigurationError
from traced_tools.models import ChatResponse
from traced_tools.observe import content, names
from traced_tools.observe import genai_messages as shapes
from traced_tools.observe.settings import EARLIER, RELEASED
from traced_tools.testing import ScriptedChatModel

# The redactor.


@pytest.mark.parametrize("mode", MODES)
def test_a_redactor_receives_each_value_first_and_decides(mode: str) -> None:
    seen: dict[str, Any] = {}

    def redact(name: str, value: Any) -> Any:
        seen[name] = value
        if name == names.TOOL_CALL_RESULT:
            return None
        return {"redacted": True} if name == names.TOOL_CALL_ARGUMENTS else value

    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact))
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail"), ToolCall("invented"))
    of_judges = {names.EVALUATION_EXPLANATION}  # tested in `tests/advisors/test_evaluation.py`
    of_searches = {*names.RETRIEVAL_SPAN.content}  # tested in `tests/search/test_observation.py`
    of_principals = {names.USER_ID}  # tested in `tests/observe/test_principals.py`
    of_memory = {*names.SEARCH_MEMORY_SPAN.content}  # tested in `tests/memory/test_observation.py`
    elsewhere = of_judges | of_searches | of_principals | of_memory
    assert set(seen) == CONTENT - {names.CONTENT_TRUNCATED} - elsewhere
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
    monkeypatch.setattr("traced_tools.observe.failures._reported", set())
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact))
    talk(telemetry, mode, ToolCall("add", {"a": 1, "b": 2}), ToolCall("fail", {"reason": MARKER}))
    assert on_spans(telemetry) == on_events(telemetry) == set()
    assert total(telemetry.metric(names.TELEMETRY_FAILURES.name)[0]) > 5
    assert MARKER not in caplog.text
    assert telemetry.one("execute_tool add").status.is_unset


@pytest.mark.parametrize("mode", MODES)
def test_in_place_changes_by_a_redactor_affect_telemetry_only(mode: str) -> None:
    def redact(name: str, value: Any) -> Any:
        if name == names.TOOL_DEFINITIONS:
            value[0]["parameters"].clear()
        return value

    telemetry = Telemetry(capture=ContentCapture("SPAN_AND_EVENT", redact=redact))
    model = ScriptedChatModel([ToolCall("add"), "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options).prompt("?"))
    assert '"parameters": {}' in str((telemetry.spans[0].attributes or {})[names.TOOL_DEFINITIONS])
    assert all(each.tools[0].input_schema for each in model.requests)


# The size limit.


@pytest.mark.parametrize("mode", MODES)
def test_a_value_is_truncated_to_the_limit_and_marked(mode: str) -> None:
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


def test_the_size_limit_can_be_set() -> None:
    telemetry = Telemetry(capture=ContentCapture("SPAN_ONLY", max_bytes=300))
    talk(telemetry, "call", ToolCall("fail", {"reason": "x" * 1000}))
    assert len(str((telemetry.one("execute_tool fail").attributes or {})[names.TOOL_CALL_ARGUMENTS])) <= 300


@pytest.mark.parametrize("arguments", [f'{{"n": {10**40}}}', '{"": 1}', '{"a": NaN}', "[" * 5000 + "]" * 5000, ""])
def test_arguments_that_otlp_cannot_encode_are_captured_as_text(
    arguments: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, "call", ToolCall("add", arguments))
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert names.TOOL_CALL_ARGUMENTS in (telemetry.one("refuse_tool add").attributes or {})
    assert caplog.records == []


@pytest.mark.parametrize("reason", ["length", None])
def test_an_answer_has_its_finish_reason_only_in_the_shape_of_the_earlier_conventions(reason: str | None) -> None:
    response = ChatResponse(AssistantMessage("x"), finish_reason=reason)
    (message,) = shapes.output_messages(response, lambda name: True, RELEASED)
    assert message == {"role": "assistant", "parts": [{"type": "text", "content": "x"}]}
    (earlier,) = shapes.output_messages(response, lambda name: True, EARLIER)
    assert earlier == {**message, "finish_reason": reason or "stop"}


def talk_in_passes(capture: ContentCapture, passes: int) -> Telemetry:
    """A run of so many passes, each with a call of `add`, and an answer."""
    telemetry = Telemetry(capture=capture)
    answers: list[Any] = [[ToolCall("add", {"a": number, "b": 1})] for number in range(passes)]
    client = ChatClient(ScriptedChatModel([*answers, "done"]), system="Add.", tools=[add], telemetry=telemetry.options)
    client.prompt("What is 1 + 2?").call()
    return telemetry


def input_messages(telemetry: Telemetry) -> list[Any]:
    """The input messages of each model call."""
    spans = telemetry.named("chat scripted")
    return [json.loads(str((span.attributes or {})[names.INPUT_MESSAGES])) for span in spans]


def test_a_redactor_gets_the_whole_conversation_at_each_model_call_as_it_was_before_its_own_changes() -> None:
    lengths: list[int] = []

    def redact(name: str, value: Any) -> Any:
        if name == names.INPUT_MESSAGES:
            assert not any(message.get("redacted") for message in value)
            lengths.append(len(value))
            for message in value:
                message["redacted"] = True
                message["parts"].clear()
        return value

    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", redact, max_bytes=100_000), 3)
    assert sorted({*lengths}) == [1, 3, 5, 7]
    for messages in input_messages(telemetry):
        assert all(message["redacted"] and message["parts"] == [] for message in messages)


def test_what_a_redactor_leaves_unchanged_is_encoded_once_in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Any] = []

    class Counted(content.Item):
        __slots__ = ()

        def __init__(self, value: object, most: int) -> None:
            encoded.append(value)
            super().__init__(value, most)

    monkeypatch.setattr(content, "Item", Counted)
    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", lambda name, value: value, max_bytes=100_000), 20)
    definitions, instructions = 1, 1
    assert len(encoded) == len(input_messages(telemetry)[-1]) + definitions + instructions


def test_a_redactor_of_single_messages_gets_each_message_and_definition_once_in_a_run() -> None:
    values: list[tuple[str, Any]] = []

    def redact(name: str, value: Any) -> Any:
        values.append((name, value))
        return value

    capture = ContentCapture("SPAN_AND_EVENT", redact, max_bytes=100_000, per_message=True)
    telemetry = talk_in_passes(capture, 20)
    *_, last = input_messages(telemetry)
    assert len(last) == 1 + 2 * 20
    messages = [value for name, value in values if name == names.INPUT_MESSAGES]
    assert [len(value) for value in messages] == [1] * len(last)
    assert sorted(map(str, messages)) == sorted(str([message]) for message in last)
    for name in (names.SYSTEM_INSTRUCTIONS, names.TOOL_DEFINITIONS):
        assert [len(value) for other, value in values if other == name] == [1]


def test_what_a_redactor_of_single_messages_returns_is_captured_in_the_place_of_the_message() -> None:
    def redact(name: str, value: Any) -> Any:
        if name != names.INPUT_MESSAGES:
            return value
        (message,) = value
        if message["role"] == "tool":
            return None
        return [{"role": "user", "parts": []}] * 2 if message["role"] == "user" else value

    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", redact, per_message=True), 2)
    *_, last = input_messages(telemetry)
    assert [message["role"] for message in last] == ["user", "user", "assistant", "assistant"]


@pytest.mark.parametrize("per_message", [False, True])
def test_a_redactor_that_fails_at_one_message_drops_each_conversation_that_has_it(per_message: bool) -> None:
    def redact(name: str, value: Any) -> Any:
        if name == names.INPUT_MESSAGES and any(message["role"] == "assistant" for message in value):
            raise ValueError(MARKER)
        return value

    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", redact, per_message=per_message), 2)
    spans = [span.attributes or {} for span in telemetry.named("chat scripted")]
    assert [names.INPUT_MESSAGES in attributes for attributes in spans] == [True, False, False]


def test_a_list_of_which_a_redactor_of_single_messages_leaves_nothing_is_not_captured() -> None:
    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", lambda name, value: None, per_message=True), 2)
    assert on_spans(telemetry) == set()


@pytest.mark.parametrize("per_message", [False, True])
def test_what_a_redactor_changes_after_it_has_returned_is_not_captured(per_message: bool) -> None:
    returned: list[Any] = []

    def redact(name: str, value: Any) -> Any:
        for message in returned:
            message["parts"] = [{"type": "text", "content": MARKER}]
        if name != names.INPUT_MESSAGES:
            return value
        redacted = [{"role": message["role"], "parts": [{"type": "text", "content": "x" * 99}]} for message in value]
        returned.extend(redacted)
        return redacted

    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", redact, max_bytes=300, per_message=per_message), 4)
    assert len(input_messages(telemetry)) == 5
    assert MARKER not in str(input_messages(telemetry))


@pytest.mark.parametrize("left", ["x", {"role": "user"}, 1])
def test_a_redactor_of_single_messages_must_return_a_list(left: Any) -> None:
    def redact(name: str, value: Any) -> Any:
        return left if name == names.INPUT_MESSAGES else value

    telemetry = talk_in_passes(ContentCapture("SPAN_ONLY", redact, per_message=True), 1)
    assert all(names.INPUT_MESSAGES not in (span.attributes or {}) for span in telemetry.spans)
    assert total(telemetry.metric(names.TELEMETRY_FAILURES.name)[0]) > 0


def test_per_message_needs_a_redactor() -> None:
    with pytest.raises(ConfigurationError, match="per_message"):
        ContentCapture("SPAN_ONLY", per_message=True)


def test_a_run_inside_a_redactor_captures_no_content() -> None:
    asked: list[str] = []

    def redact(name: str, value: Any) -> Any:
        asked.append(name)
        inner.prompt("Is this fine?").call()
        return value

    telemetry = Telemetry(capture=ContentCapture("SPAN_ONLY", redact))
    inner = ChatClient(ScriptedChatModel(["yes"] * 50), name="inner", telemetry=telemetry.options)
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    assert 0 < len(asked) < 10
    assert on_spans(telemetry)
    assert names.INPUT_MESSAGES not in (telemetry.named("invoke_agent inner")[0].attributes or {})


def test_an_async_redactor_is_refused() -> None:
    async def redact(name: str, value: Any) -> Any:
        return value

    with pytest.raises(TypeError, match="plain function"):
        ContentCapture("SPAN_ONLY", redact)


def test_the_repr_of_a_capture_hides_the_redactor() -> None:
    capture = ContentCapture("SPAN_ONLY", partial(raising, MARKER))
    assert MARKER not in repr(capture) + repr(TelemetryOptions(capture=capture))


def test_only_the_captured_part_of_a_long_conversation_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []

    class Counted(shapes.InputMessages):
        def _shape(self, message: Any, *rest: Any) -> Any:
            made.append(message)
            return super()._shape(message, *rest)

    monkeypatch.setattr(shapes, "InputMessages", Counted)
    telemetry = Telemetry(capture="SPAN_ONLY")
    before = [UserMessage(f"message {number} {'x' * 500}") for number in range(1000)]
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?", messages=before).call()
    assert 0 < len(made) < 200
    last = captured_value(telemetry, "chat scripted", names.INPUT_MESSAGES)[-1]
    assert last["parts"][0]["content"] == "?"
