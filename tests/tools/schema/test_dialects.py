"""Input schemas in OpenAI's strict mode."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, TypeAdapter

from tests.fixtures import bfcl_calls, bfcl_tools, livemcp_tools
from tests.tools.schema.schemas import (
    JSON,
    NODE,
    TEXT,
    bomb,
    closed,
    documents,
    fields,
    keywords,
    valid,
    values,
    without_nulls,
)
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.dialects import inline_references, to_strict_schema


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = dict(TEXT)
    for _ in range(depth):
        schema = fields(a=schema)
    return schema


def test_objects_forbid_extra_fields_and_require_each_field() -> None:
    schema = {"type": "object", "properties": {"a": TEXT, "b": fields(c=TEXT)}, "required": ["b", "a"]}
    assert to_strict_schema(schema) == closed(a=TEXT, b=closed(c=TEXT))


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}, {"description": "", "$schema": "x"}])
def test_a_tool_without_parameters_takes_an_empty_object(schema: dict[str, Any]) -> None:
    assert to_strict_schema(schema) == closed()


@pytest.mark.parametrize(
    ("optional", "made"),
    [
        (TEXT, {"type": ["string", "null"]}),
        ({"type": ["string", "integer"]}, {"type": ["string", "integer", "null"]}),
        ({"type": ["string", "null"]}, {"type": ["string", "null"]}),
        ({"type": "null"}, {"type": "null"}),
        ({"enum": ["a", "b"]}, {"type": ["string", "null"], "enum": ["a", "b", None]}),
        ({"enum": ["a", None]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"type": ["string", "null"], "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"const": "a"}, {"anyOf": [{"type": "string", "const": "a"}, {"type": "null"}]}),
        ({"const": None}, {"type": "null", "const": None}),
        ({"anyOf": [TEXT, {"type": "integer"}]}, {"anyOf": [TEXT, {"type": "integer"}, {"type": "null"}]}),
        ({"anyOf": [TEXT, {"type": "null"}]}, {"anyOf": [TEXT, {"type": "null"}]}),
        ({"type": "array", "items": TEXT}, {"type": ["array", "null"], "items": TEXT}),
        (fields(x=TEXT), {**closed(x=TEXT), "type": ["object", "null"]}),
        ({**fields(x=TEXT), "type": ["object", "null"]}, {**closed(x=TEXT), "type": ["object", "null"]}),
    ],
)
def test_optional_fields_become_nullable(optional: Any, made: Any) -> None:
    assert to_strict_schema({"type": "object", "properties": {"a": optional}}) == closed(a=made)


def test_a_required_field_is_nullable_only_if_its_schema_allows_null() -> None:
    nullable = {**fields(x=TEXT), "type": ["object", "null"]}
    assert to_strict_schema(fields(a=TEXT, b=nullable)) == closed(
        a=TEXT, b={**closed(x=TEXT), "type": ["object", "null"]}
    )


def test_an_optional_reference_may_be_null() -> None:
    schema = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": fields(x=TEXT)}}
    optional = {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}
    assert to_strict_schema(schema) == {**closed(a=optional), "$defs": {"A": closed(x=TEXT)}}


def test_defaults_and_other_annotations_are_removed_and_descriptions_stay() -> None:
    text = {"type": "string", "default": "x", "title": "A", "examples": ["y"], "x-mine": 1, "description": "an a"}
    schema = {**fields(a=text), "$schema": "https://json-schema.org/draft/2020-12/schema", "description": "all"}
    assert to_strict_schema(schema) == {**closed(a={"type": "string", "description": "an a"}), "description": "all"}


def test_a_field_may_have_the_name_of_a_keyword() -> None:
    schema = fields(default=TEXT, title=TEXT, allOf=TEXT, properties=fields(required=TEXT))
    assert to_strict_schema(schema) == closed(default=TEXT, title=TEXT, allOf=TEXT, properties=closed(required=TEXT))


@pytest.mark.parametrize(
    "constraints",
    [
        {"type": "string", "pattern": "^a+$", "minLength": 1, "maxLength": 9, "format": "date"},
        {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
        {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 3},
    ],
)
def test_constraints_that_strict_mode_supports_stay(constraints: dict[str, Any]) -> None:
    assert to_strict_schema(fields(a=constraints)) == closed(a=constraints)


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        (
            {"type": "array", "items": TEXT, "uniqueItems": True},
            {"type": "array", "items": TEXT, "description": "uniqueItems: true"},
        ),
        (
            {"type": "string", "format": "uri", "description": "a page"},
            {"type": "string", "description": 'a page (format: "uri")'},
        ),
        ({"type": "string", "pattern": "^(?!x)"}, {"type": "string", "description": 'pattern: "^(?!x)"'}),
        ({**fields(x=TEXT), "minProperties": 1}, {**closed(x=TEXT), "description": "minProperties: 1"}),
        ({"type": "array", "items": TEXT, "uniqueItems": False}, {"type": "array", "items": TEXT}),
    ],
)
def test_constraints_that_strict_mode_does_not_support_move_to_the_description(schema: Any, made: Any) -> None:
    assert to_strict_schema(fields(a=schema)) == closed(a=made)


@pytest.mark.parametrize(
    ("values", "types"),
    [(["a"], "string"), ([1, 2], "integer"), ([1, 0.5], ["integer", "number"]), ([True, None], ["boolean", "null"])],
)
def test_the_type_of_listed_values_is_added(values: list[Any], types: Any) -> None:
    assert to_strict_schema(fields(a={"enum": values})) == closed(a={"type": types, "enum": values})


def test_one_of_becomes_any_of() -> None:
    schema = fields(a={"oneOf": [fields(x=TEXT), TEXT], "discriminator": {"propertyName": "x"}, "description": "d"})
    assert to_strict_schema(schema) == closed(a={"anyOf": [closed(x=TEXT), TEXT], "description": "d"})


def test_a_type_beside_a_union_moves_into_its_branches() -> None:
    schema = fields(a={"type": "string", "anyOf": [{"format": "ipv4"}, {"type": "string", "format": "ipv6"}]})
    branches = [{"type": "string", "format": "ipv4"}, {"type": "string", "format": "ipv6"}]
    assert to_strict_schema(schema) == closed(a={"anyOf": branches})


def test_an_all_of_with_one_entry_is_merged() -> None:
    schema = {
        **fields(a={"allOf": [{"$ref": "#/$defs/A"}], "description": "d"}, b={"allOf": [TEXT], "maxLength": 2}),
        "$defs": {"A": {"type": "object", "allOf": [{"allOf": [{"properties": {"x": TEXT}, "required": ["x"]}]}]}},
    }
    assert to_strict_schema(schema) == {
        **closed(a={"anyOf": [{"$ref": "#/$defs/A"}], "description": "d"}, b={"type": "string", "maxLength": 2}),
        "$defs": {"A": closed(x=TEXT)},
    }


def test_only_definitions_that_are_referenced_stay() -> None:
    schema = {
        **fields(a={"$ref": "#/definitions/A"}, b={"$ref": "#/definitions/A"}),
        "definitions": {"A": fields(x=TEXT), "Unused": {}},
    }
    reference = {"$ref": "#/$defs/A"}
    assert to_strict_schema(schema) == {**closed(a=reference, b=reference), "$defs": {"A": closed(x=TEXT)}}


def test_a_description_beside_a_reference_stays_and_constraints_are_resolved() -> None:
    schema = {
        **fields(a={"$ref": "#/$defs/A", "description": "d"}, b={"$ref": "#/$defs/A", "maxLength": 2}),
        "$defs": {"A": {"type": "string", "minLength": 1}},
    }
    assert to_strict_schema(schema) == {
        **closed(
            a={"anyOf": [{"$ref": "#/$defs/A"}], "description": "d"},
            b={"type": "string", "minLength": 1, "maxLength": 2},
        ),
        "$defs": {"A": {"type": "string", "minLength": 1}},
    }


def test_recursive_definitions_stay() -> None:
    below = {"type": ["array", "null"], "items": {"$ref": "#/$defs/Node"}}
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}}
    assert to_strict_schema(schema) == {**closed(below=below), "$defs": {"Node": closed(below=below)}}
    whole = {"type": "object", "properties": {"below": {"$ref": "#"}}}
    assert to_strict_schema(whole) == closed(below={"anyOf": [{"$ref": "#"}, {"type": "null"}]})


def test_an_id_inside_a_definition_is_resolved_and_removed() -> None:
    inner = {"$id": "https://example.org/a", **fields(x={"$ref": "#/$defs/X"}), "$defs": {"X": {"type": "null"}}}
    schema = {**fields(a={"$ref": "#/$defs/A"}, x={"$ref": "#/$defs/X"}), "$defs": {"A": inner, "X": TEXT}}
    assert to_strict_schema(schema) == {
        **closed(a={"$ref": "#/$defs/A"}, x={"$ref": "#/$defs/X_"}),
        "$defs": {"X": {"type": "null"}, "A": closed(x={"$ref": "#/$defs/X"}), "X_": TEXT},
    }


def test_definitions_with_many_references_to_each_other_do_not_grow() -> None:
    assert len(to_strict_schema(bomb(64))["$defs"]) == 65


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (fields(a={"type": "object", "additionalProperties": True}), "refuses a: it takes fields of any name"),
        (fields(a={"type": "object", "additionalProperties": TEXT}), "refuses a: .* a list of keys and values"),
        (fields(a={"type": "object"}), "refuses a: it takes fields of any name"),
        (fields(a={"type": ["object", "null"], "properties": {}}), "refuses a: it takes fields of any name"),
        ({**fields(a=TEXT), "additionalProperties": True}, "refuses the input schema: it takes fields of any name"),
        (fields(a={"type": "object", "patternProperties": {"^x": TEXT}}), "refuses a: it uses patternProperties"),
        (fields(a={"type": "array", "items": fields(b={})}), r"refuses a\[\].b: it may be anything; give it a type"),
        (fields(a={"description": "d"}), "refuses a: it may be anything"),
        (fields(a=True), "refuses a: it may be anything or nothing"),
        (fields(a={"type": "array"}), r"refuses a\[\]: it may be anything"),
        (fields(a={"type": "array", "prefixItems": [TEXT]}), "refuses a: it uses prefixItems"),
        (fields(a={"type": "float"}), "refuses a: it has a type that is none of string, integer"),
        (fields(a={"type": [{}]}), "refuses a: it has a type that is none of"),
        (fields(a={"enum": [{}]}), "refuses a: it takes fields of any name"),
        (fields(a={"enum": "x", "type": "string"}), "refuses a: it has a wrong value of enum; it must be a list"),
        (fields(a={"properties": []}), "refuses a: it has a wrong value of properties; it must be an object"),
        (fields(a={"not": TEXT, "type": "integer"}), "refuses a: it uses not; put it in the description"),
        (fields(a={"allOf": [TEXT, {"minLength": 1}]}), "refuses a: it uses allOf"),
        (fields(a={**fields(x=TEXT), "allOf": [fields(y=TEXT)]}), "refuses a: it is made of two schemas by allOf"),
        (fields(a={"oneOf": [TEXT], "anyOf": [TEXT]}), "refuses a: it uses oneOf"),
        (fields(a={**fields(x=TEXT), "anyOf": [{"required": ["x"]}]}), "refuses a: it has properties, required beside"),
        (fields(a={"anyOf": [TEXT, {}]}), "refuses a: it may be anything"),
        ({"type": "object", "required": ["a", "b"], "properties": {"a": TEXT}}, "it requires b, which is not among"),
        ({"anyOf": [fields(a=TEXT), fields(b=TEXT)]}, "refuses the input schema: it must be one object with fields"),
        ({"type": "array", "items": TEXT}, "refuses the input schema: it must be one object with fields"),
        ({**fields(a=TEXT), "type": ["object", "null"]}, "refuses the input schema: it must be one object with fields"),
        ({**fields(a={"$ref": "#/$defs/A"}), "$defs": {"A": fields(b={})}}, "refuses A.b: it may be anything"),
        (
            {**fields(a={"$ref": "#/$defs/Node", "minProperties": 1}), "$defs": {"Node": NODE}},
            r"refuses a: it has minProperties beside \$ref",
        ),
    ],
)
def test_a_schema_that_strict_mode_cannot_express_raises_an_error_with_its_path(
    schema: dict[str, Any], says: str
) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        to_strict_schema(schema)


def test_objects_may_be_nested_ten_deep_and_no_deeper() -> None:
    assert list(keywords(to_strict_schema(nested(10)))).count("properties") == 10
    place = re.escape(".".join("a" * 10))
    with pytest.raises(ToolDefinitionError, match=f"refuses {place}: it is nested deeper than the 10 objects"):
        to_strict_schema(nested(11))


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (fields(**{f"f{number}": TEXT for number in range(5_001)}), "it has 5001 fields, more than 5000"),
        (fields(a={"enum": [*range(600)]}, b={"enum": [*range(600)]}), "it has 1200 values of enums, more than 1000"),
        (fields(a={"enum": ["x" * 200_000]}), "it has 200001 characters in its names and values, more than 120000"),
        (fields(a={"enum": [f"{number:>99}" for number in range(251)]}), "refuses a: it has 251 values that are too"),
    ],
)
def test_a_schema_beyond_openais_limits_is_refused(schema: dict[str, Any], says: str) -> None:
    with pytest.raises(ToolDefinitionError, match=says):
        to_strict_schema(schema)


def check_strict(schema: Any) -> None:
    """Assert that a schema keeps the rules of strict mode."""
    assert len({"type", "anyOf", "$ref"} & schema.keys()) == 1
    assert "$ref" not in schema or len(schema) == 1
    assert schema.keys() <= {
        *("type", "anyOf", "$ref", "$defs", "description", "enum", "const", "properties", "required"),
        *("additionalProperties", "items", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    }
    if "object" in schema.get("type", ()):
        assert schema["additionalProperties"] is False
        assert schema["required"] == list(schema["properties"])
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", ())]
    for each in [*inner, schema["items"]] if "array" in schema.get("type", ()) else inner:
        check_strict(each)


class Unit(Enum):
    CELSIUS = "C"
    FAHRENHEIT = "F"


class Place(BaseModel):
    city: str = Field(min_length=1, description="the city's name")
    inside: Place | None = None
    kind: Literal["town", "village"] = "town"


class Question(BaseModel):
    places: list[Place] = Field(min_length=1)
    unit: Unit = Field(Unit.CELSIUS, description="of the temperature")
    near: Place | str | None = None


def test_schemas_of_pydantic_models_can_be_expressed() -> None:
    schema = TypeAdapter(Question).json_schema()
    made = to_strict_schema(schema)
    check_strict(made)
    unit = {"anyOf": [{"$ref": "#/$defs/Unit"}, {"type": "null"}], "description": "of the temperature"}
    assert made["properties"]["unit"] == unit
    place = {"city": "Oslo", "inside": {"city": "Norway", "inside": None, "kind": None}, "kind": "town"}
    asked = {"places": [place], "unit": None, "near": None}
    assert valid(made, asked)
    assert not valid(made, {"places": [place]})


# Whatever the schema.


@given(documents(st.sampled_from([{}, {"description": "d"}, {"default": None}])), st.data())
def test_a_strict_mode_value_without_its_nulls_is_valid_under_the_original_schema(
    schema: Any, data: st.DataObject
) -> None:
    made = to_strict_schema(schema)
    check_strict(made)
    value = data.draw(values(made, made))
    assume(valid(made, value))
    assert valid(schema, without_nulls(value, schema, schema))


@given(documents(), st.data())
def test_any_schema_is_converted_to_strict_mode_or_refused_with_a_reason(schema: Any, data: st.DataObject) -> None:
    broken = {**schema, **data.draw(st.dictionaries(st.sampled_from(sorted(schema)), JSON, max_size=2))}
    try:
        check_strict(to_strict_schema(inline_references(broken)))
    except ToolDefinitionError as error:
        assert "input schema" in str(error) or "strict mode refuses" in str(error) or "arguments" in str(error)


def test_published_tools_are_converted_or_refused_and_never_changed() -> None:
    published = [*(tool["parameters"] for tool in bfcl_tools()), *(tool["inputSchema"] for tool in livemcp_tools())]
    taken = 0
    for schema in published:
        before = json.dumps(schema)
        assert "$ref" not in keywords(inline_references(schema)) or "$defs" in inline_references(schema)
        try:
            check_strict(to_strict_schema(schema))
            taken += 1
        except ToolDefinitionError as error:
            assert "strict mode refuses" in str(error)
        assert json.dumps(schema) == before
    assert taken > 0.95 * len(published)


def test_published_calls_can_be_made_in_strict_mode() -> None:
    fitting = [call for call in bfcl_calls() if valid(call.schema, call.arguments) and _is_taken(call.schema)]
    assert len(fitting) > 1_000
    for call in fitting:
        assert valid(to_strict_schema(call.schema), _with_nulls(call.arguments, call.schema)), call.query


def _is_taken(schema: Any) -> bool:
    try:
        return bool(to_strict_schema(schema))
    except ToolDefinitionError:
        return False


def _with_nulls(value: Any, schema: Any) -> Any:
    """Return a value with null for each field it lacks, and without unknown fields."""
    if isinstance(value, list):
        return [_with_nulls(each, schema.get("items", {})) for each in value]
    if not isinstance(value, dict):
        return value
    return {name: _with_nulls(value.get(name), each) for name, each in schema["properties"].items()}
