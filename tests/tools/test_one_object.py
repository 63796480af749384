"""Input schemas for servers that take one object at the root, and no choice of several."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.schema.schemas import TEXT, fields, objects, schemas, valid, values
from traced_tools import ToolDefinitionError
from traced_tools.tools.schema.dialects import one_object


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": {}}])
def test_a_tool_without_parameters_says_that_it_has_none(schema: dict[str, Any]) -> None:
    assert one_object(schema) == {"type": "object", "properties": {}}


def test_a_schema_with_one_object_at_its_root_stays_as_it_is() -> None:
    schema = {**fields(a={"anyOf": [TEXT, {"type": "null"}]}, b={"$ref": "#/$defs/B"}), "$defs": {"B": TEXT}}
    assert one_object(schema) == schema


def test_a_root_that_is_a_reference_is_written_out() -> None:
    assert one_object({"$ref": "#/$defs/A", "$defs": {"A": fields(a=TEXT)}}) == fields(a=TEXT)


def test_which_fields_go_together_is_told() -> None:
    schema = {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert one_object({**schema, "description": "Ask."}) == {
        "type": "object",
        "properties": {"a": TEXT, "b": TEXT},
        "description": 'Ask. (anyOf: [{"required": ["a"]}, {"required": ["b"]}])',
    }


def test_of_several_objects_all_fields_are_named_and_may_be_left_out() -> None:
    dog, cat = fields(kind={"const": "dog"}, barks=TEXT), fields(kind={"const": "cat"}, purrs=TEXT)
    schema = {"oneOf": [{"$ref": "#/$defs/Dog"}, cat, True], "$defs": {"Dog": dog}}
    made = one_object(schema)
    assert made.pop("description").startswith('oneOf: [{"type": "object", ')
    kinds = {"anyOf": [{"const": "dog"}, {"const": "cat"}]}
    assert made == {"type": "object", "properties": {"kind": kinds, "barks": TEXT, "purrs": TEXT}}


def test_a_root_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="leads to no schema"):
        one_object({"$ref": "#/$defs/none"})


@given(st.data())
def test_what_fits_one_of_several_objects_fits_what_is_sent(data: st.DataObject) -> None:
    drawn = data.draw(st.lists(objects(schemas(st.nothing())), min_size=1, max_size=3))
    branches = [{**each, "additionalProperties": False} for each in drawn]
    schema = {"anyOf": branches}
    value = data.draw(st.one_of([values(each, schema) for each in branches]))
    assert not valid(schema, value) or valid(one_object(schema), value)
