"""Schemas of older drafts and with common mistakes become valid schemas of draft 2020-12 with the same meaning."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jsonschema import Draft4Validator, Draft7Validator, Draft202012Validator  # type: ignore[import-untyped]

from tests.sweeps import check_each
from traced_tools import ChatClient
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError
from traced_tools.models import ChatRequest
from traced_tools.models.anthropic.chat import AnthropicChatCodec
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.schema.drafts import to_current_draft
from traced_tools.tools.schema.json_schema import SchemaCheck

PAIR = {"type": "array", "items": [{"type": "number"}, {"type": "string"}]}
TUPLE = {"type": "array", "prefixItems": PAIR["items"]}
NUMBER = {"type": "number"}
OLD_REFERENCE, REFERENCE = {"$ref": "#/definitions/A"}, {"$ref": "#/$defs/A"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a tuple": (PAIR, TUPLE),
    "a closed tuple": ({**PAIR, "additionalItems": False}, {**TUPLE, "items": False}),
    "an empty tuple": ({"items": []}, {}),
    "definitions": (
        {"properties": {"a": OLD_REFERENCE, "default": OLD_REFERENCE}, "definitions": {"A": NUMBER}},
        {"properties": {"a": REFERENCE, "default": REFERENCE}, "$defs": {"A": NUMBER}},
    ),
    "dependencies": (
        {"dependencies": {"a": ["b"], "b": {"properties": {"c": PAIR}}}},
        {
            "dependentRequired": {"a": ["b"]},
            "dependentSchemas": {"b": {"properties": {"c": TUPLE}}},
        },
    ),
    "an exclusive bound": ({"minimum": 0, "exclusiveMinimum": True}, {"exclusiveMinimum": 0}),
    "an inclusive bound": ({"maximum": 9, "exclusiveMaximum": False}, {"maximum": 9}),
    "the draft": ({"$schema": "http://json-schema.org/draft-07/schema#", **NUMBER}, NUMBER),
    "required in a field": (
        {"properties": {"x": {"type": "string", "required": True}, "y": {"required": False}}},
        {"properties": {"x": {"type": "string"}, "y": {}}, "required": ["x"]},
    ),
    "required among the fields": (
        {"properties": {"x": NUMBER, "required": ["x"]}},
        {"properties": {"x": NUMBER}, "required": ["x"]},
    ),
    "required twice": ({"required": ["x", "x"]}, {"required": ["x"]}),
    "null": ({"required": None, "items": None, "default": None}, {"default": None}),
    "a type of Python": ({"properties": {"x": {"type": "int"}, "y": {"type": ["str", "None"]}, "z": {"type": "any"}}}, {
        "properties": {"x": {"type": "integer"}, "y": {"type": ["string", "null"]}, "z": {}},
    }),
    "a type in capitals": ({"type": "OBJECT"}, {"type": "object"}),
    "only a type": ({"properties": {"x": "string", "y": None}}, {"properties": {"x": {"type": "string"}, "y": {}}}),
    "a bound as a text": ({"minLength": "1", "maximum": "9.5"}, {"minLength": 1, "maximum": 9.5}),
    "no alternatives": ({"anyOf": [], "allOf": []}, {}),
    "deep": (
        {"anyOf": [{"not": {"additionalProperties": PAIR}}]},
        {"anyOf": [{"not": {"additionalProperties": TUPLE}}]},
    ),
}  # fmt: skip
VALID = [
    {"type": "object", "properties": {"required": {"type": "boolean"}, "x": True}, "required": ["required"]},
    {"type": ["string", "null"], "enum": ["a", None], "const": None, "default": None},
    {"$schema": "https://json-schema.org/draft/2020-12/schema", "prefixItems": [{}], "items": False},
    {"$defs": {"definitions": {}}, "$ref": "#/$defs/definitions"},
    {"definitions": {"A": {}}, "$defs": {"A": {}}, "$ref": "#/definitions/A"},
]


def test_older_forms_and_mistakes_are_translated() -> None:
    def check(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
        given, expected = case
        before = json.dumps(given)
        assert to_current_draft(given) == expected
        assert json.dumps(given) == before
        Draft202012Validator.check_schema(expected)

    check_each(CASES, check)


def test_a_schema_of_the_current_draft_stays_the_same_object() -> None:
    check_each(VALID, lambda schema: to_current_draft(schema) is schema or pytest.fail(f"{to_current_draft(schema)}"))


@pytest.mark.parametrize(
    ("name", "older"),
    [
        ("a closed tuple", Draft7Validator),
        ("a tuple", Draft7Validator),
        ("dependencies", Draft7Validator),
        ("an exclusive bound", Draft4Validator),
    ],
)
def test_a_translated_schema_accepts_what_the_older_one_accepts(name: str, older: Any) -> None:
    given, expected = CASES[name]
    values = [
        0,
        1,
        [],
        [1],
        [1, "a"],
        ["a"],
        [1, "a", 2],
        {},
        {"a": 1},
        {"a": 1, "b": 2},
        {"b": 1, "c": [1]},
        {"b": 1, "c": [""]},
    ]
    for value in values:
        assert older(given).is_valid(value) == Draft202012Validator(expected).is_valid(value), value


def test_arguments_are_validated_by_what_an_invalid_schema_means() -> None:
    check = SchemaCheck({"type": "object", "properties": {"x": {"type": "int", "required": True}}})
    assert check.usable
    assert [problem.text for problem in check.problems({})] == ["is required"]
    assert [problem.text for problem in check.problems({"x": "a"})] == ["must be an integer"]


class Tool:
    """A custom callback with a schema of its own."""

    metadata = ToolMetadata()

    def __init__(self, schema: dict[str, Any]) -> None:
        self.definition = ToolDefinition(name="odd", description="Do.", input_schema=schema)

    def call(self, tool_input: str, context: object = None) -> str:
        return "done"


def test_every_schema_that_a_provider_is_sent_is_valid() -> None:
    def check(case: tuple[dict[str, Any], dict[str, Any]]) -> None:
        tool = Tool({"type": "object", "properties": {"deep": {"type": "array", "items": case[0]}}})
        sent = AnthropicChatCodec("m", max_tokens=9).encode(ChatRequest((), (tool.definition,)), stream=False)
        Draft202012Validator.check_schema(sent["tools"][0]["input_schema"])

    check_each({name: case for name, case in CASES.items() if name != "definitions"}, check)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "object", "properties": {"x": {"type": "sting"}}}, "properties.x.type is invalid"),
        ({"type": "object", "properties": 5}, "properties is invalid"),
        ({"type": "object", "properties": {"x": {"minimum": "much"}}}, "properties.x.minimum is invalid"),
        ({"type": "object", "properties": {"x": {"$ref": "#/$defs/none"}}}, "it has a reference without a target"),
        ({"type": "string"}, "it must be of type object"),
    ],
)
def test_an_invalid_schema_of_a_custom_callback_is_refused_when_the_tool_is_registered(
    schema: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=f"input_schema of the tool odd cannot be used: {problem}") as caught:
        ChatClient(ScriptedChatModel(["Hi."]), tools=[Tool(schema)])
    assert caught.value.__cause__ is None


def test_a_pattern_of_another_language_is_accepted() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "string", "pattern": r"^\p{L}+$"}}}
    assert ChatClient(ScriptedChatModel(["Hi."]), tools=[Tool(schema)]).prompt("?").call().content == "Hi."


def test_a_schema_that_is_nested_too_deeply_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(100_000):
        schema = {"not": schema}
    with pytest.raises(ToolDefinitionError, match="nested too deeply"):
        to_current_draft(schema)
