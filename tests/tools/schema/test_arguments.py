"""From the JSON text a model wrote to what a tool is called with: what is mended on the way, and what is not."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typing_extensions import TypedDict

from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.sweeps import check_each
from tests.tools.schema import kinds
from tests.tools.schema.kinds import KINDS, TYPED_KINDS, Own, acting, noting
from tests.tools.schema.shapes import Part, Round, Square
from traced_tools import ChatClient, ToolCall
from traced_tools.core import ToolCallback, ToolMetadata
from traced_tools.errors import InvalidArguments
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback
from traced_tools.tools.callback import as_invocable
from traced_tools.tools.schema.arguments import BoundArguments

OBJECT = '{"text": "x"}'
FENCED = f"```json\n{OBJECT}\n```"


def bind(tool: ToolCallback, text: str) -> BoundArguments:
    return as_invocable(tool).bind(text)


def problems(tool: ToolCallback, text: str) -> str:
    with pytest.raises(InvalidArguments) as caught:
        bind(tool, text)
    return caught.value.problems


def note(kind: str) -> ToolCallback:
    return noting(kind, acting(kind, lambda given: "noted"))


def nothing() -> None:
    """Take nothing."""


def seen(value: Any) -> dict[str, Any]:
    """What a bound `note` is called with, as a mapping of the fields that were given."""
    value = value["note"] if isinstance(value, dict) and "note" in value else value
    return {name: each for name, each in kinds.given(value).items() if name == "text" or each not in (1, None)}


# What is mended.

MENDED = [
    (OBJECT, ()),
    (f" \n{OBJECT}\t", ()),
    (json.dumps(OBJECT), ("string",)),
    (f"  {json.dumps(OBJECT)}\n", ("string",)),
    (json.dumps(json.dumps(OBJECT)), ("string", "string")),
    (json.dumps(json.dumps(json.dumps(OBJECT))), ("string", "string", "string")),
    (FENCED, ("code_fence",)),
    (f"```\n{OBJECT}\n```", ("code_fence",)),
    (f"```{OBJECT}```", ("code_fence",)),
    (f"``` json\r\n{OBJECT}\r\n```", ("code_fence",)),
    (f"\n```json{OBJECT}```  ", ("code_fence",)),
    (json.dumps(FENCED), ("string", "code_fence")),
    (f"```json\n{json.dumps(OBJECT)}\n```", ("code_fence", "string")),
    (f"{{}}{OBJECT}", ("empty_object",)),
    (f"{{ }} \n{{}}{OBJECT} {{}}", ("empty_object", "empty_object")),
    (f"{OBJECT}{{}}", ("empty_object",)),
    (json.dumps(f"{{}}{OBJECT}"), ("string", "empty_object")),
    ('{"text": "x", "count": null}', ("null_fields",)),
    (json.dumps('{"text": "x", "count": null}'), ("string", "null_fields")),
    ('```json\n{"text": "x", "count": null}\n```', ("code_fence", "null_fields")),
    (json.dumps('```json\n{"text": "x", "count": null}\n```'), ("string", "code_fence", "null_fields")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_wrapped_arguments_are_unwrapped_for_every_kind_of_tool(kind: str) -> None:
    tool = note(kind)

    def check(case: tuple[str, tuple[str, ...]]) -> None:
        text, repairs = case
        bound = bind(tool, text)
        assert (seen(bound.value), bound.repairs) == ({"text": "x"}, repairs)

    check_each(MENDED, check)


@pytest.mark.parametrize(
    ("text", "repairs"),
    [
        ("{}", ()),
        ("", ("blank",)),
        (" \r\n\t", ("blank",)),
        ("null", ("null",)),
        ("{}{}", ("empty_object",)),
        (" null\n", ("null",)),
        ('""', ("string", "blank")),
        ('"null"', ("string", "null")),
        ("```json\n```", ("code_fence", "blank")),
        ("``````", ("code_fence", "blank")),
        ("```\nnull\n```", ("code_fence", "null")),
    ],
    ids=repr,
)
def test_no_arguments_are_an_empty_object(text: str, repairs: tuple[str, ...]) -> None:
    own = Own(lambda given: given, ToolMetadata(), {"type": "object", "properties": {}})
    assert bind(FunctionToolCallback(nothing), text) == BoundArguments({}, repairs)
    assert bind(own, text) == BoundArguments("{}", repairs)


@pytest.mark.parametrize("kind", KINDS)
def test_no_arguments_for_a_tool_that_needs_some_name_what_is_missing(kind: str) -> None:
    tool = note(kind)

    def check(text: str) -> None:
        assert problems(tool, text) == "text: is required"

    check_each(["", "null", '""'], check)


def test_problems_are_those_of_the_unwrapped_arguments() -> None:
    assert (
        problems(note("function"), '```json\n{"count": "many"}\n```') == "text: is required; count: must be an integer"
    )
    assert problems(note("own"), json.dumps('{"text": "x"')).startswith("arguments: not valid JSON: ")


# Null for a field that may be left out.


class Loose(TypedDict, total=False):
    """All may be left out."""

    width: int


def takes(hint: Any) -> FunctionToolCallback:
    def take(x: Any, y: int = 5) -> str:
        return ""

    take.__annotations__["x"] = hint
    return FunctionToolCallback(take)


@pytest.mark.parametrize(
    ("hint", "given", "expected"),
    [
        (Part, {"size": None}, Part()),
        (Part, {"size": None, "unit": None}, Part(unit=None)),
        (list[Part], [{"size": None}, {"size": 4}, {"size": None}], [Part(), Part(size=4), Part()]),
        (dict[str, Part], {"a": {"size": None}}, {"a": Part()}),
        (Part | None, {"size": None}, Part()),
        (Part | int, {"size": None}, Part()),
        (Round | Square, {"side": 1, "name": None}, Square(side=1)),
        (list[Round | Square], [{"radius": 1, "unit": None}], [Round(radius=1)]),
        (Loose, {"width": None}, {}),
    ],
    ids=str,
)
def test_null_for_an_optional_field_is_removed_at_any_depth(hint: Any, given: Any, expected: Any) -> None:
    bound = bind(takes(hint), json.dumps({"x": given, "y": None}))
    assert (bound.value["x"], bound.value.get("y", 5), bound.repairs) == (expected, 5, ("null_fields",))


@pytest.mark.parametrize(
    ("hint", "given", "text"),
    [
        (int, None, "x: must be an integer; y: must be an integer"),
        (list[int], [1, None], "x.1: must be an integer; y: must be an integer"),
        (Round, {"radius": None, "unit": None}, "x.radius: must be an integer; x.unit: must be a string; "),
        (Round | Square, {"side": None, "name": None}, "x.side: must be an integer; x.name: must be a string; "),
        (tuple[int, str], [1, None], "x.1: must be a string; "),
    ],
    ids=str,
)
def test_a_null_for_a_required_field_stays_an_error_with_every_problem(hint: Any, given: Any, text: str) -> None:
    assert problems(takes(hint), json.dumps({"x": given, "y": None})).startswith(text)


def nulls(count: int) -> tuple[dict[str, Any], str]:
    """A schema of so many fields that may be left out, and a null for each."""
    fields = {f"f{index}": {"type": "string"} for index in range(count)}
    return {"type": "object", "properties": fields}, json.dumps(dict.fromkeys(fields))


def test_a_schema_s_null_fields_are_left_out_though_only_some_are_reported_at_a_time() -> None:
    schema, text = nulls(45)
    assert bind(Own(len, ToolMetadata(), schema), text) == BoundArguments("{}", ("null_fields",))


def test_removing_a_null_leaves_the_other_fields_unchanged() -> None:
    text = '{"text": "ü\\u00fc \\"quoted\\" 1e5", "count": null, "tag": null}'
    bound = bind(note("own"), text)
    assert bound.repairs == ("null_fields",)
    assert json.loads(bound.value) == {"text": 'üü "quoted" 1e5', "tag": None}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"prices": {"milk": null, "egg": 2}}', "prices.milk: must be an integer"),
        ('{"prices": {}, "more": null}', "more: is not a known field"),
        ('{"prices": null}', "prices: must be an object"),
    ],
)
def test_a_null_elsewhere_than_in_an_optional_field_is_not_removed(arguments: str, problem: str) -> None:
    def sell(prices: dict[str, int]) -> str:
        return ""

    with pytest.raises(InvalidArguments) as caught:
        FunctionToolCallback(sell).bind(arguments)
    assert caught.value.problems == problem


@pytest.mark.parametrize("kind", KINDS)
def test_a_nullable_field_keeps_its_null(kind: str) -> None:
    tags: list[Any] = []
    tool = noting(kind, acting(kind, lambda given: tags.append(kinds.given(given)["tag"]) or "noted"))
    with_null = bind(tool, '{"text": "x", "tag": null}')
    assert with_null.repairs == ()
    run(
        "call",
        ChatClient(ScriptedChatModel([ToolCall("note", '{"text": "x", "tag": null}'), ""]), tools=[tool]).prompt("?"),
    )
    assert tags == [None]


# What is not mended.


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_that_looks_like_something_to_repair_is_left_alone(kind: str) -> None:
    tool = note(kind)

    def check(text: str) -> None:
        bound = bind(tool, json.dumps({"text": text}))
        assert (seen(bound.value), bound.repairs) == ({"text": text}, ())

    check_each([FENCED, OBJECT, "", "null", '""', json.dumps(FENCED), "```", "5"], check)


NOT_MENDED = [
    f"Here you are: {FENCED}",
    f"{FENCED}\nIs that right?",
    f"{FENCED}\n{FENCED}",
    f"`{OBJECT}`",
    f"~~~\n{OBJECT}\n~~~",
    f"```json\n{OBJECT}",
    "{'text': 'x'}",
    '{"text": "x",}',
    '{"text": "x"',
    '{text: "x"}',
    f"{OBJECT} // a comment",
    f"{OBJECT}{OBJECT}",
    "text=x",
    f"[{OBJECT}]",
    "[]",
    "5",
    "true",
    '"x"',
    "`````",
    json.dumps(json.dumps(json.dumps(json.dumps(OBJECT)))),
    '{"text": "x", "count": "{}"}',
    '{"note": {"text": "x"}}',
    '{"arguments": {"text": "x"}}',
    '{"TEXT": "x"}',
]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_else_is_guessed(kind: str) -> None:
    tool = note(kind)

    def check(text: str) -> None:
        assert problems(tool, text)

    check_each(NOT_MENDED, check)


@pytest.mark.parametrize("kind", KINDS)
def test_a_number_in_quotes_is_read_by_the_types_and_refused_by_a_schema(kind: str) -> None:
    text = '{"text": "x", "count": "5"}'
    if kind in TYPED_KINDS:
        bound = bind(note(kind), text)
        assert (seen(bound.value), bound.repairs) == ({"text": "x", "count": 5}, ())
    else:
        assert problems(note(kind), text) == "count: must be an integer"


# Fields of another form.


def find(
    version: str = "",
    filter: dict[str, int] | None = None,
    tags: list[str] | None = None,
    parts: list[Part] | None = None,
    either: str | list[int] | None = None,
    amount: float = 0,
) -> str:
    """Find something."""
    return ""


FIELDS = [
    ('{"version": 5}', {"version": "5"}, ("number_as_string",)),
    ('{"version": 1.10, "amount": 2.50}', {"version": "1.10", "amount": 2.5}, ("number_as_string",)),
    ('{"version": 1e2}', {"version": "1e2"}, ("number_as_string",)),
    ('{"tags": [1, "a", 2.0]}', {"tags": ["1", "a", "2.0"]}, ("number_as_string",)),
    ('{"filter": "{\\"a\\": 1}"}', {"filter": {"a": 1}}, ("json_string",)),
    ('{"tags": "[\\"a\\"]"}', {"tags": ["a"]}, ("json_string",)),
    ('{"tags": "[1]"}', {"tags": ["1"]}, ("json_string", "number_as_string")),
    ('{"either": "[1]"}', {"either": "[1]"}, ()),
    ('{"tags": "[1]", "amount": null}', {"tags": ["1"]}, ("null_fields", "json_string", "number_as_string")),
]


@pytest.mark.parametrize(("text", "fields", "repairs"), FIELDS, ids=[text for text, _, _ in FIELDS])
def test_a_field_of_another_form_is_repaired(text: str, fields: dict[str, Any], repairs: tuple[str, ...]) -> None:
    typed = FunctionToolCallback(find)
    by_schema = Own(len, ToolMetadata(), typed.definition.input_schema)
    bound, own = bind(typed, text), bind(by_schema, text)
    given = {name: value for name, value in json.loads(text).items() if value is not None}
    assert ({name: bound.value[name] for name in given}, bound.repairs) == (fields, repairs)
    assert (json.loads(own.value), own.repairs) == (fields, repairs)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"version": true}', "version: must be a string"),
        ('{"tags": "a, b"}', "tags: must be an array"),
        ('{"tags": "{}"}', "tags: must be an array"),
        ('{"tags": "5"}', "tags: must be an array"),
        ('{"filter": "[1]"}', "filter: must be an object"),
        ('{"version": 5, "tags": "a"}', "version: must be a string; tags: must be an array"),
    ],
)
def test_a_field_of_another_form_that_cannot_be_repaired_is_refused(text: str, expected: str) -> None:
    assert problems(FunctionToolCallback(find), text) == expected


@pytest.mark.parametrize(
    "text", ['{"dummy": "x"}', '{"input": ""}', '{"_": true}', '{"random_string": "a"}', '{"args": {}}']
)
def test_a_placeholder_for_a_tool_without_parameters_is_left_out(text: str) -> None:
    assert bind(FunctionToolCallback(nothing), text) == BoundArguments({}, ("dummy_argument",))


@pytest.mark.parametrize("text", ['{"only": "old"}', '{"dummy": "x", "only": ""}'])
def test_an_argument_with_a_meaning_is_not_removed(text: str) -> None:
    assert "only: is not a known field" in problems(FunctionToolCallback(nothing), text)


# What a tool of the user's own receives.


@pytest.mark.parametrize("kind", ["own", "own async"])
@pytest.mark.parametrize(
    ("text", "received"),
    [
        ('{ "text":"x" }', '{ "text":"x" }'),
        (FENCED, OBJECT),
        (json.dumps(OBJECT), OBJECT),
        ('{"text":"ü","count":null}', '{"text": "ü"}'),
        ('{"text": "a", "text": "b"}', '{"text": "b"}'),
    ],
)
def test_a_custom_tool_gets_the_text_of_the_model_unless_it_was_repaired(kind: str, text: str, received: str) -> None:
    assert bind(note(kind), text).value == received


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_repairs_are_recorded_on_the_span_of_the_call(mode: str, kind: str, telemetry: Telemetry) -> None:
    received: list[Any] = []
    tool = noting(kind, acting(kind, lambda given: received.append(kinds.given(given)) or "noted"))
    fenced = json.dumps('```json\n{"text": "b", "count": null}\n```')
    calls = [ToolCall("note", text) for text in ('{"text": "a"}', fenced, "```json\n{}\n```")]
    client = ChatClient(ScriptedChatModel([calls, "done"]), tools=[tool], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert [result.decision for result in response.tool_results] == ["allowed", "allowed", "invalid_arguments"]
    assert sorted(each["text"] for each in received) == ["a", "b"]
    spans = [*telemetry.named("execute_tool note"), *telemetry.named("refuse_tool note")]
    by_place = {(span.attributes or {})[names.TOOL_BATCH_INDEX]: span.attributes or {} for span in spans}
    assert [by_place[place].get(names.TOOL_ARGUMENTS_REPAIRS) for place in range(3)] == [
        None,
        ("string", "code_fence", "null_fields"),
        None,
    ]
