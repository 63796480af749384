"""Input schemas for servers that require one object at the root, not a union."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.schema.schemas import TEXT, fields, objects, schemas, valid, values
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.schema.dialects import to_object_schema


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}])
def test_a_tool_without_parameters_says_that_it_has_none(schema: dict[str, Any]) -> None:
    assert to_object_schema(schema) == {"type": "object", "properties": {}}


def test_a_schema_with_one_object_at_its_root_stays_as_it_is() -> None:
    schema = {**fields(a={"anyOf": [TEXT, {"type": "null"}]}, b={"$ref": "#/$defs/B"}), "$defs": {"B": TEXT}}
    assert to_object_schema(schema) == schema


def test_a_root_that_is_a_reference_is_inlined() -> None:
    assert to_object_schema({"$ref": "#/$defs/A", "$defs": {"A": fields(a=TEXT)}}) == fields(a=TEXT)


def test_the_description_says_which_fields_belong_together() -> None:
    schema = {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert to_object_schema({**schema, "description": "Ask."}) == {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "description": 'Ask. (anyOf: [{"required": ["a"]}, {"required": ["b"]}])',
    }


def test_a_union_of_objects_becomes_an_object_with_all_fields_optional() -> None:
    dog, cat = fields(kind={"const": "dog"}, barks=TEXT), fields(kind={"const": "cat"}, purrs=TEXT)
    schema = {"oneOf": [{"$ref": "#/$defs/Dog"}, cat, True], "$defs": {"Dog": dog}}
    made = to_object_schema(schema)
    assert made.pop("description").startswith('oneOf: [{"type": "object", ')
    kinds = {"anyOf": [{"const": "dog"}, {"const": "cat"}]}
    assert made == {"type": "object", "properties": {"kind": kinds, "barks": TEXT, "purrs": TEXT}}


def test_a_root_that_is_an_invalid_reference_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="points to no schema"):
        to_object_schema({"$ref": "#/$defs/none"})


@given(st.data())
def test_a_value_of_one_branch_is_valid_under_the_schema_that_is_sent(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(objects(schemas(st.nothing())), min_size=1, max_size=3))
    branches = [{**each, "additionalProperties": False} for each in drawn]
    schema = {"anyOf": branches}
    value = data.draw(st.one_of([values(each, schema) for each in branches]))
    assert not valid(schema, value) or valid(to_object_schema(schema), value)
