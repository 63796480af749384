"""Input schemas without references."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator  # type: ignore[import-untyped]

from tests.fixtures import json_schema_groups
from tests.sweeps import check_each
from tests.tools.schema.schemas import JSON, NODE, TEXT, bomb, documents, fields, keywords, valid, values
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.dialects import inline_references, to_strict_schema


def test_definitions_are_inlined_where_they_are_referenced() -> None:
    schema = {
        **fields(home={"$ref": "#/$defs/Address"}, work={"$ref": "#/$defs/Address"}),
        "$defs": {
            "Address": fields(city={"$ref": "#/$defs/City"}),
            "City": {"type": "string", "minLength": 1},
            "Unused": {"type": "null"},
        },
    }
    address = fields(city={"type": "string", "minLength": 1})
    assert inline_references(schema) == fields(home=address, work=address)


def test_definitions_of_older_drafts_are_inlined_too() -> None:
    schema = {**fields(a={"$ref": "#/definitions/A"}), "definitions": {"A": TEXT}}
    assert inline_references(schema) == fields(a=TEXT)


def test_a_reference_may_point_anywhere_in_the_schema() -> None:
    schema = fields(a=TEXT, b={"$ref": "#/properties/a"}, c={"$ref": "#/properties/a~1%62/items"})
    schema["properties"]["a/b"] = {"type": "array", "items": {"type": "null"}}
    assert inline_references(schema)["properties"]["b"] == TEXT
    assert inline_references(schema)["properties"]["c"] == {"type": "null"}


def test_the_schema_itself_is_never_changed() -> None:
    schema = {**fields(a={"$ref": "#/$defs/A", "description": "d"}), "$defs": {"A": {**NODE}, "Node": NODE}}
    before = deepcopy(schema)
    inline_references(schema)
    to_strict_schema(schema)
    assert schema == before


def test_a_description_beside_a_reference_is_added_to_its_target() -> None:
    definition = {"type": "string", "description": "any city"}
    schema = {**fields(a={"$ref": "#/$defs/City", "description": "where to"}), "$defs": {"City": definition}}
    assert inline_references(schema) == fields(a={"type": "string", "description": "where to"})


def test_constraints_beside_a_reference_are_added_to_the_definitions() -> None:
    schema = {**fields(a={"$ref": "#/$defs/A", "maxLength": 3}), "$defs": {"A": {"type": "string", "minLength": 1}}}
    assert inline_references(schema) == fields(a={"type": "string", "minLength": 1, "maxLength": 3})


def test_constraints_that_would_change_the_definitions_meaning_are_combined_with_all_of() -> None:
    definition = fields(x=TEXT)
    beside = {"properties": {"y": TEXT}, "additionalProperties": False}
    schema = {**fields(a={"$ref": "#/$defs/A", **beside}), "$defs": {"A": definition}}
    assert inline_references(schema) == fields(a={**beside, "allOf": [definition]})


def test_boolean_schemas_stay() -> None:
    schema = {**fields(a=True, b=False, c={"$ref": "#/$defs/Any"}), "$defs": {"Any": True}}
    assert inline_references(schema) == fields(a=True, b=False, c=True)


def test_only_a_recursive_definition_stays() -> None:
    schema = {
        **fields(tree={"$ref": "#/$defs/Node"}, size={"$ref": "#/$defs/Size"}),
        "$defs": {"Node": NODE, "Size": {"type": "integer"}, "Unused": TEXT},
    }
    assert inline_references(schema) == {
        **fields(tree={"$ref": "#/$defs/Node"}, size={"type": "integer"}),
        "$defs": {"Node": NODE},
    }


def test_one_of_two_mutually_recursive_definitions_stays() -> None:
    schema = {
        **fields(a={"$ref": "#/$defs/A"}, b={"$ref": "#/$defs/B"}),
        "$defs": {"A": fields(b={"$ref": "#/$defs/B"}), "B": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
    }
    inside = {"type": "array", "items": {"$ref": "#/$defs/A"}}
    assert inline_references(schema) == {
        **fields(a={"$ref": "#/$defs/A"}, b=inside),
        "$defs": {"A": fields(b=inside)},
    }


def test_a_schema_that_contains_itself_stays_as_it_is() -> None:
    schema = {"type": "object", "properties": {"below": {"$ref": "#"}}}
    assert inline_references(schema) == schema


def test_the_root_is_an_object_even_if_it_was_a_reference() -> None:
    assert inline_references({"$ref": "#/$defs/A", "$defs": {"A": fields(x=TEXT)}}) == fields(x=TEXT)
    schema = {"$ref": "#/$defs/Node", "description": "a tree", "$defs": {"Node": NODE}}
    assert inline_references(schema) == {**NODE, "description": "a tree", "$defs": {"Node": NODE}}


def test_an_id_inside_a_definition_is_what_references_in_it_are_relative_to() -> None:
    inner = {"$id": "https://example.org/a", **fields(x={"$ref": "#/$defs/X"}), "$defs": {"X": {"type": "null"}}}
    schema = {
        **fields(a={"$ref": "#/$defs/A"}, b={"$ref": "https://example.org/a"}, x={"$ref": "#/$defs/X"}),
        "$defs": {"A": inner, "X": TEXT},
    }
    null = fields(x={"type": "null"})
    assert inline_references(schema) == fields(a=null, b=null, x=TEXT)


def test_an_anchor_refers_to_the_schema_it_is_in() -> None:
    schema = {**fields(a={"$ref": "#city"}), "$defs": {"C": {"$anchor": "city", "type": "string"}}}
    assert inline_references(schema) == fields(a=TEXT)


def test_a_part_that_refers_to_its_own_id_becomes_a_definition() -> None:
    part = {"$id": "T0", "type": "object", "properties": {"below": {"$ref": "T0"}}}
    reference = {"$ref": "#/$defs/T0"}
    made = inline_references(fields(a=part))
    assert made["$defs"] == {"T0": {"type": "object", "properties": {"below": reference}}}
    assert valid(made, {"a": {"below": {"below": {}}}}) and not valid(made, {"a": {"below": {"below": 5}}})


def test_names_and_values_that_look_like_references_are_not_resolved() -> None:
    schema = {
        "type": "object",
        "properties": {"$ref": TEXT, "$defs": {"enum": [{"$ref": "#/nowhere"}]}, "x": {"default": {"$ref": "no"}}},
    }
    assert inline_references(schema) == schema


@pytest.mark.parametrize(
    "reference", ["#/$defs/B", "#/required", "#/properties/a/0", "https://example.org/x.json", "#nowhere", 5, None, [1]]
)
@pytest.mark.parametrize("dialect", [inline_references, to_strict_schema])
def test_a_reference_without_a_target_is_refused(dialect: Any, reference: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=r"the reference .* points to no schema"):
        dialect({**fields(a={"$ref": reference}), "$defs": {"A": TEXT}})


@pytest.mark.parametrize("keyword", ["$dynamicRef", "$recursiveRef"])
def test_a_dynamic_reference_is_refused(keyword: str) -> None:
    with pytest.raises(ToolDefinitionError, match="use \\$ref"):
        inline_references(fields(a={keyword: "#node"}))


def test_a_cycle_of_references_is_resolved() -> None:
    circle = {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}
    assert inline_references({"$ref": "#", "$defs": circle}) == {}
    assert inline_references({**fields(a={"$ref": "#/$defs/A"}), "$defs": circle})["$defs"] == {
        "A": {"$ref": "#/$defs/A"}
    }
    with pytest.raises(ToolDefinitionError, match="it must be one object"):
        to_strict_schema({"$ref": "#/$defs/A", "$defs": circle})


def test_references_that_would_grow_too_large_are_refused() -> None:
    assert len(json.dumps(inline_references(bomb(8)))) > 10_000
    with pytest.raises(ToolDefinitionError, match="more than 10000 parts"):
        inline_references(bomb(64))
    with pytest.raises(ToolDefinitionError, match="more than 10000 parts"):
        to_strict_schema(bomb(64, minProperties=1))


@pytest.mark.parametrize("dialect", [inline_references, to_strict_schema])
def test_a_schema_nested_too_deeply_is_refused(dialect: Any) -> None:
    schema: dict[str, Any] = {}
    for _ in range(5_000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ToolDefinitionError, match="nested too deeply"):
        dialect(fields(a=schema))


@given(documents(), st.data())
def test_a_value_is_valid_under_the_inlined_schema_exactly_if_it_is_under_the_original(
    schema: Any, data: st.DataObject
) -> None:
    made = inline_references(schema)
    value = data.draw(values(schema, schema) | JSON)
    assert "$ref" not in keywords(made)
    assert valid(made, value) is valid(schema, value)


def groups_with_references(draft: str) -> dict[str, dict[str, Any]]:
    """The test suite's groups about references within the schema, as far as they are not about `false`."""
    other = re.compile(r'"\$ref": "https?://json-schema\.org|\$dynamicRef|"bool": false')
    written = {name: json.dumps(group) for name, group in json_schema_groups(draft).items()}
    return {name: json.loads(text) for name, text in written.items() if '"$ref"' in text and not other.search(text)}


def test_the_test_suite_of_json_schema_holds_for_inlined_schemas() -> None:
    def holds(group: dict[str, Any]) -> None:
        made = inline_references(group["schema"])
        for test in group["tests"]:
            assert Draft202012Validator(made).is_valid(test["data"]) is test["valid"], test["description"]

    check_each(groups_with_references("draft2020-12"), holds)


def test_the_test_suite_of_an_older_draft_holds_for_inlined_schemas() -> None:
    def holds(group: dict[str, Any]) -> None:
        made = inline_references({"$schema": "http://json-schema.org/draft-07/schema#", **group["schema"]})
        for test in group["tests"]:
            assert Draft7Validator(made).is_valid(test["data"]) is test["valid"], test["description"]

    check_each(groups_with_references("draft7"), holds)
