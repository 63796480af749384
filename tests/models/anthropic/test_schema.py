"""The subset of JSON Schema that Anthropic's structured outputs accept."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, Field

from traced_tools import ConfigurationError
from traced_tools.models.anthropic.schema import to_structured_output_schema


class Line(BaseModel):
    """A line of an order."""

    name: str = Field(min_length=1, description="What it is.")
    price: float = Field(gt=0)


class Order(BaseModel):
    lines: list[Line] = Field(max_length=9)
    note: str | None = None


def test_all_objects_disallow_additional_properties_and_optional_fields_stay_optional() -> None:
    made = to_structured_output_schema(Order.model_json_schema())
    line = made["$defs"]["Line"]
    assert made["additionalProperties"] is line["additionalProperties"] is False
    assert (made["required"], line["required"]) == (["lines"], ["name", "price"])
    assert made["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert line["description"] == "A line of an order."


def test_unsupported_constraints_are_written_into_the_description() -> None:
    made = to_structured_output_schema(Order.model_json_schema())
    name, price = made["$defs"]["Line"]["properties"].values()
    assert name == {"type": "string", "title": "Name", "description": 'What it is. {"minLength": 1}'}
    assert price == {"type": "number", "title": "Price", "description": '{"exclusiveMinimum": 0}'}
    assert made["properties"]["lines"]["description"] == '{"maxItems": 9}'


@pytest.mark.parametrize(
    ("schema", "made"),
    [
        ({"type": "string", "format": "date"}, {"type": "string", "format": "date"}),
        ({"type": "string", "format": "phone"}, {"type": "string", "description": '{"format": "phone"}'}),
        ({"type": "array", "minItems": 1}, {"type": "array", "minItems": 1}),
        ({"type": "array", "minItems": 2}, {"type": "array", "description": '{"minItems": 2}'}),
        ({"oneOf": [{"type": "null"}, True]}, {"anyOf": [{"type": "null"}, True]}),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "const": 1}, {"const": 1}),
    ],
)
def test_supported_keywords_are_kept(schema: dict[str, Any], made: dict[str, Any]) -> None:
    assert to_structured_output_schema(schema) == made


@pytest.mark.parametrize("free", [True, {"type": "integer"}])
def test_additional_properties_are_refused(free: Any) -> None:
    schema = {"type": "object", "properties": {"counts": {"type": "object", "additionalProperties": free}}}
    with pytest.raises(ConfigurationError, match="additional properties"):
        to_structured_output_schema(schema)


def test_a_schema_is_not_changed() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
    to_structured_output_schema(schema)
    assert schema == {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
