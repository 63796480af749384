"""Messages are immutable values that go to JSON and back, and whose `repr` shows sizes and never content."""

from __future__ import annotations

import base64
import copy
import json
import pickle
from collections import ChainMap, OrderedDict
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.markers import MARKER
from traced_tools import (
    AssistantMessage,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ImagePart,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolContext,
    ToolMessage,
    ToolResult,
    Usage,
    UserMessage,
)
from traced_tools.core import (
    ProviderPart,
    ReasoningPart,
    ToolDefinition,
    ToolExecutionResult,
    ToolResultPart,
    dump_messages,
    load_messages,
)
from traced_tools.core.messages import tool_message_of
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse, ToolCallDelta
from traced_tools.run.context import RunContext
from traced_tools.tools import ToolInvocation

PARTS: list[Any] = [
    TextPart("hello"),
    ImagePart(url="https://example.invalid/a.png"),
    ImagePart(data=b"\x00\xff", media_type="image/jpeg"),
    ReasoningPart("because", signature="seal"),
    ToolCall("weather", {"city": "Berlin"}, id="1"),
    ToolResultPart(call_id="1", name="weather", content="sunny", is_error=True),
]
MESSAGES: list[Any] = [
    SystemMessage("be brief"),
    UserMessage("hello"),
    UserMessage([TextPart("look"), ImagePart(data=b"\x89PNG")]),
    AssistantMessage("hi"),
    AssistantMessage("hi", reasoning="hm", tool_calls=[ToolCall("a"), ToolCall("b", {"x": 1}, id="2")]),
    AssistantMessage([ReasoningPart("one", signature="s"), TextPart("two"), ToolCall("three"), TextPart("four")]),
    ToolMessage([ToolResultPart(call_id="1", name="a", content="x")]),
]
VALUES: list[Any] = [
    *PARTS,
    *MESSAGES,
    Usage(input_tokens=1),
    ChatOptions(temperature=0.5, stop=("x",), extra={"a": [1]}),
    ToolDefinition(name="a", description="b"),
    ChatResponse(AssistantMessage("x"), usage=Usage(output_tokens=2), finish_reason="stop", id="i", model="m"),
]

texts = st.text()
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
arguments = st.dictionaries(texts, jsons, max_size=3) | texts
calls = st.tuples(texts, arguments, st.none() | texts).map(lambda each: ToolCall(*each))
images = st.binary().map(lambda data: ImagePart(data=data))
parts = texts.map(TextPart) | images
results = st.tuples(texts, texts, texts, st.booleans()).map(
    lambda each: ToolResultPart(call_id=each[0], name=each[1], content=each[2], is_error=each[3])
)
messages = st.one_of(
    texts.map(SystemMessage),
    (st.lists(parts, max_size=3) | texts).map(UserMessage),
    (st.lists(parts | calls | texts.map(ReasoningPart), max_size=4) | texts).map(AssistantMessage),
    st.lists(results, max_size=3).map(ToolMessage),
)


def name_of(value: object) -> str:
    return type(value).__name__


# Immutable.


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_a_value_cannot_be_changed_in_place(value: Any) -> None:
    for field in type(value).model_fields:
        with pytest.raises(ValidationError, match="frozen"):
            setattr(value, field, getattr(value, field))
    with pytest.raises(ValidationError):
        value.invented = 1


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_a_value_refuses_a_field_it_does_not_have(value: Any) -> None:
    with pytest.raises(ValidationError, match="invented"):
        type(value).model_validate({**value.__dict__, "invented": 1})


def test_parts_given_as_a_list_are_kept_as_a_tuple() -> None:
    given_parts = [TextPart("a")]
    message = UserMessage(given_parts)
    given_parts.append(TextPart("b"))
    assert message.parts == (TextPart("a"),)


def test_arguments_passed_as_a_mapping_are_written_once() -> None:
    arguments = {"city": "Köln"}
    call = ToolCall("weather", arguments)
    arguments["city"] = "Bonn"
    assert call.arguments == '{"city": "Köln"}'


@pytest.mark.parametrize("kind", [MappingProxyType, ChainMap, OrderedDict], ids=lambda kind: kind.__name__)
def test_arguments_may_be_any_mapping(kind: Any) -> None:
    assert ToolCall("weather", kind({"city": "Bonn"})).arguments == '{"city": "Bonn"}'


def test_arguments_given_as_text_are_kept_as_the_model_wrote_them() -> None:
    assert ToolCall("weather", '{ "city":"Berlin"').arguments == '{ "city":"Berlin"'


def test_options_expose_no_collection_that_can_be_changed() -> None:
    given_extra: dict[str, Any] = {"a": 1}
    options: Any = ChatOptions(extra=given_extra, stop=["x"])  # type: ignore[arg-type]
    given_extra["b"] = 2
    assert options.extra == {"a": 1}
    assert options.stop == ("x",)
    with pytest.raises(TypeError):
        options.extra["c"] = 3


# Equal by value, replaced by copy.


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_replace_without_changes_gives_an_equal_value(value: Any) -> None:
    assert value.replace() == value
    assert type(value.replace()) is type(value)


def test_replace_changes_a_copy() -> None:
    call = ToolCall("weather", {"city": "Berlin"})
    assert call.replace(id="7") == ToolCall("weather", {"city": "Berlin"}, id="7")
    assert call.id is None


def test_replace_checks_what_it_is_given() -> None:
    with pytest.raises(ValidationError):
        ChatOptions().replace(max_tokens=0)
    with pytest.raises(ValidationError, match="exactly one of url and data"):
        ImagePart(data=b"x").replace(url="https://example.invalid")


def test_options_changed_with_replace_still_leave_the_rest_to_the_client() -> None:
    asked = ChatOptions(temperature=0.5).replace(seed=1)
    assert ChatOptions(max_tokens=10, top_p=0.9).merged(asked) == ChatOptions(
        max_tokens=10, top_p=0.9, temperature=0.5, seed=1
    )


def test_options_that_went_through_json_still_leave_the_rest_to_the_client() -> None:
    asked = ChatOptions.model_validate_json(ChatOptions(temperature=0.5).model_dump_json())
    assert ChatOptions(max_tokens=10).merged(asked) == ChatOptions(max_tokens=10, temperature=0.5)


def test_options_are_merged_key_by_key_and_the_later_ones_win() -> None:
    first = ChatOptions(temperature=0.1, max_tokens=5, extra={"a": 1, "b": 1})
    merged = first.merged(ChatOptions(temperature=0.9, extra={"b": 2}))
    assert merged == ChatOptions(temperature=0.9, max_tokens=5, extra={"a": 1, "b": 2})
    assert first.merged(None) is first


# To JSON and back.


@pytest.mark.parametrize("value", VALUES, ids=name_of)
def test_a_value_goes_to_json_and_back(value: Any) -> None:
    again = type(value).model_validate_json(value.model_dump_json())
    assert again == value
    assert type(again) is type(value)


@given(st.lists(messages, max_size=4))
def test_any_conversation_goes_to_json_and_back(conversation: list[Message]) -> None:
    text = dump_messages(conversation)
    json.loads(text)
    assert load_messages(text) == tuple(conversation)
    assert load_messages(text.encode()) == tuple(conversation)


@given(messages)
def test_any_message_goes_to_python_and_back(message: Any) -> None:
    assert type(message).model_validate(message.model_dump()) == message


@given(st.binary())
def test_bytes_are_base64_in_json_inside_a_message_and_alone(data: bytes) -> None:
    image = ImagePart(data=data)
    for text in (image.model_dump_json(), dump_messages([UserMessage([image])])):
        found = json.loads(text)
        encoded = found["data"] if isinstance(found, dict) else found[0]["parts"][0]["data"]
        assert base64.urlsafe_b64decode(encoded) == data
    assert UserMessage.model_validate_json(UserMessage([image]).model_dump_json()).parts == (image,)


@given(st.dictionaries(texts, jsons, max_size=4))
def test_arguments_given_as_a_mapping_mean_the_same_as_json(arguments: dict[str, Any]) -> None:
    assert json.loads(ToolCall("t", arguments).arguments) == arguments


# What a message says.


def test_an_assistant_message_keeps_the_order_of_its_parts() -> None:
    message = AssistantMessage([TextPart("a"), ToolCall("x"), TextPart("b"), ReasoningPart("r")])
    assert [part.type for part in message.parts] == ["text", "tool_call", "text", "reasoning"]
    assert (message.text, message.reasoning, message.tool_calls) == ("ab", "r", (ToolCall("x"),))


def test_looking_at_a_message_changes_nothing_about_it() -> None:
    seen, fresh = (AssistantMessage("x", tool_calls=[ToolCall("a", id="1")]) for _ in range(2))
    assert seen.tool_calls == (ToolCall("a", id="1"),)
    assert seen == fresh
    assert hash(seen) == hash(fresh)
    assert repr(seen) == repr(fresh)
    assert seen.model_dump_json() == fresh.model_dump_json()
    assert seen.replace(parts=()).tool_calls == ()
    assert seen.model_copy(update={"parts": ()}).tool_calls == ()


def test_reasoning_stands_before_the_content_and_calls_after_it() -> None:
    message = AssistantMessage("said", reasoning="thought", tool_calls=[ToolCall("x")])
    assert message.parts == (ReasoningPart("thought"), TextPart("said"), ToolCall("x"))


def test_a_message_of_no_content_has_no_parts() -> None:
    assert UserMessage("").parts == ()
    assert AssistantMessage() == AssistantMessage("")
    assert AssistantMessage().text == ""


def test_an_image_has_an_address_or_bytes_and_not_both() -> None:
    with pytest.raises(ValidationError, match="exactly one of url and data"):
        ImagePart()
    with pytest.raises(ValidationError, match="exactly one of url and data"):
        ImagePart(url="https://example.invalid", data=b"x")


# Usage.


@pytest.mark.parametrize(
    ("left", "right", "total"),
    [(None, None, None), (None, 2, 2), (1, None, 1), (1, 2, 3), (0, None, 0)],
)
def test_usage_is_summed_and_unreported_counts_stay_none(
    left: int | None, right: int | None, total: int | None
) -> None:
    for field in Usage.model_fields:
        assert Usage(**{field: left}) + Usage(**{field: right}) == Usage(**{field: total})
    assert Usage(input_tokens=left, output_tokens=right).total_tokens == total


def test_usage_is_added_to_usage_only() -> None:
    with pytest.raises(TypeError):
        Usage() + 1  # type: ignore[operator]


# No content where it could be logged.

SECRETS: list[Any] = [
    TextPart(MARKER),
    ImagePart(url=MARKER),
    ImagePart(data=MARKER.encode()),
    ReasoningPart(MARKER, signature=MARKER),
    ToolCall(MARKER, {MARKER: MARKER}, id="1"),
    ToolResultPart(call_id="1", name=MARKER, content=MARKER),
    SystemMessage(MARKER),
    UserMessage(MARKER),
    AssistantMessage(MARKER, reasoning=MARKER, tool_calls=[ToolCall(MARKER, MARKER)]),
    ToolMessage([ToolResultPart(call_id="1", name=MARKER, content=MARKER)]),
    ChatOptions(stop=(MARKER,), extra={MARKER: MARKER}),
    ChatRequest((UserMessage(MARKER),), (), ChatOptions(extra={MARKER: MARKER})),
    ChatResponse(AssistantMessage(MARKER)),
    ChatChunk(text=MARKER, reasoning=MARKER, parts=(TextPart(MARKER),)),
    ToolCallDelta(name=MARKER, arguments=MARKER),
    ChatClientRequest((UserMessage(MARKER),), context={MARKER: MARKER}, run=RunContext(tool_context={MARKER: MARKER})),
    ChatClientResponse(
        RunContext(conversation_id=MARKER), ChatResponse(AssistantMessage(MARKER)), (UserMessage(MARKER),)
    ),
    ToolResult("1", MARKER, MARKER, value=MARKER, error=ValueError(MARKER)),
    ToolContext({MARKER: MARKER}, conversation_id=MARKER),
    ToolInvocation("t", MARKER, "1", 1, ToolDefinition(name="t", description=MARKER), ToolContext({MARKER: MARKER})),
    ToolExecutionResult((UserMessage(MARKER),), False, [ToolResult("1", MARKER, MARKER)]),
    RunContext(conversation_id=MARKER, tool_context={MARKER: MARKER}),
]


@pytest.mark.parametrize("value", SECRETS, ids=name_of)
def test_a_repr_shows_no_content(value: object) -> None:
    assert MARKER not in repr(value)
    assert MARKER not in str(value)
    assert MARKER not in f"{value}"


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (TextPart, {"text": [MARKER]}),
        (ImagePart, {"url": [MARKER]}),
        (ToolCall, {"name": [MARKER]}),
        (ToolResultPart, {"call_id": "1", "name": "a", "content": [MARKER]}),
        (SystemMessage, {"text": [MARKER]}),
        (UserMessage, {"parts": [{"type": "text", "text": [MARKER]}]}),
        (UserMessage, {"parts": [{"type": MARKER}]}),
        (AssistantMessage, {"parts": [{"type": "tool_call", "name": [MARKER]}]}),
        (ToolMessage, {"results": [MARKER]}),
        (ChatOptions, {"temperature": MARKER}),
        (ChatOptions, {"stop": MARKER}),
        (ToolDefinition, {"name": [MARKER]}),
        (ChatResponse, {"message": MARKER}),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_validation_error_never_quotes_its_input(kind: Any, data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(data)
    assert MARKER not in str(caught.value)
    assert MARKER not in repr(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        MARKER,
        json.dumps([{"role": "user", "parts": [{"type": "text", "text": [MARKER]}]}]),
        json.dumps([{"role": MARKER}]),
        json.dumps([MARKER]),
        json.dumps({"text": MARKER}),
    ],
)
def test_reading_a_broken_conversation_never_quotes_it(text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        load_messages(text)
    assert MARKER not in str(caught.value)


def test_reading_a_broken_message_with_a_type_adapter_never_quotes_it() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(UserMessage).validate_json(json.dumps({"role": "user", "parts": MARKER}))
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize(
    ("begins", "kind"),
    [
        (b"\x89PNG\r\n", "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPVP8 ", "image/webp"),
        (b"", "image/png"),
    ],
)
def test_the_media_type_of_an_image_comes_from_its_signature(begins: bytes, kind: str) -> None:
    assert ImagePart(data=begins).media_type == kind
    assert ImagePart(data=begins, media_type="image/avif").media_type == "image/avif"
    assert ImagePart.model_validate_json(ImagePart(data=begins).model_dump_json()) == ImagePart(data=begins)


@pytest.mark.parametrize("media_type", ["png", "", "image/", "image/png; a=b\n"])
def test_an_invalid_media_type_is_refused(media_type: str) -> None:
    with pytest.raises(ValueError, match="media_type"):
        ImagePart(data=b"x", media_type=media_type)


@pytest.mark.parametrize("parameters", ["", ";charset=utf-8"])
def test_a_data_url_is_decoded(parameters: str) -> None:
    image = ImagePart(url=f"data:image/gif{parameters};base64,R0lGODlh")
    assert (image.url, image.data, image.media_type) == (None, b"GIF89a", "image/gif")


@pytest.mark.parametrize(
    "url", ["data:image/gif,plain", "data:;base64,AA==", "data:image/gif;base64,A", "https://example.org/cat.png"]
)
def test_any_other_url_stays_a_url(url: str) -> None:
    assert ImagePart(url=url).url == url


@pytest.mark.parametrize("outcome", ["ok", "error"])
def test_the_messages_of_the_loop_are_like_those_that_are_validated(outcome: Any) -> None:
    part = ToolResult("c1", "add", "42 \ud800", outcome=outcome).part()
    message = tool_message_of([part])
    validated = ToolMessage([ToolResultPart(call_id="c1", name="add", content="42 ?", is_error=outcome == "error")])

    assert message == validated
    assert repr(message) == repr(validated)
    assert dump_messages([message]) == dump_messages([validated])
    assert pickle.loads(pickle.dumps(message)) == copy.deepcopy(message) == message.model_copy() == validated
    assert part.replace(content="43").content == "43"


CALL, THOUGHT, RECORD = ToolCall("f", id="1"), ReasoningPart("hm", signature="s"), ProviderPart("{}")
WHOLE = AssistantMessage([THOUGHT, TextPart("a"), RECORD, CALL, TextPart("b")], provider="p")


@pytest.mark.parametrize(
    ("message", "changes", "parts"),
    [
        (WHOLE, {"content": "x"}, (THOUGHT, TextPart("x"), CALL)),
        (WHOLE, {"content": ""}, (THOUGHT, CALL)),
        (WHOLE, {"content": [TextPart("x"), TextPart("y")]}, (THOUGHT, TextPart("x"), TextPart("y"), CALL)),
        (WHOLE, {"tool_calls": []}, (THOUGHT, TextPart("a"), RECORD, TextPart("b"))),
        (WHOLE, {"reasoning": ""}, (TextPart("a"), RECORD, CALL, TextPart("b"))),
        (WHOLE, {"reasoning": "r", "content": "x", "tool_calls": ()}, (ReasoningPart("r"), TextPart("x"))),
        (
            AssistantMessage(tool_calls=[CALL]),
            {"content": "x", "reasoning": "r"},
            (ReasoningPart("r"), TextPart("x"), CALL),
        ),
        (AssistantMessage("a"), {"tool_calls": [CALL]}, (TextPart("a"), CALL)),
        (UserMessage("a"), {"content": "x"}, (TextPart("x"),)),
        (UserMessage(), {"content": [TextPart("x")]}, (TextPart("x"),)),
    ],
)
def test_the_content_of_a_message_can_be_replaced(message: Any, changes: dict[str, Any], parts: Any) -> None:
    changed = message.replace(**changes)
    assert changed.parts == message.model_copy(update=changes).parts == parts
    assert type(changed) is type(message)
    assert getattr(changed, "provider", None) == getattr(message, "provider", None)


def test_an_unknown_field_to_replace_is_named() -> None:
    with pytest.raises(TypeError, match="AssistantMessage has no text to replace; it has role, parts, provider"):
        WHOLE.replace(text="x")
    with pytest.raises(TypeError, match="SystemMessage has no content to replace; it has role, text"):
        SystemMessage("a").replace(content="x")
    with pytest.raises(TypeError, match="parts cannot be combined with reasoning or content or tool_calls"):
        WHOLE.replace(parts=(), content="x")


def test_a_result_with_content_that_is_no_text_has_no_part() -> None:
    class Content:
        def isascii(self) -> bool:
            return True

    content: Any = Content()
    with pytest.raises(ValidationError):
        ToolResult("c1", "add", content).part()
