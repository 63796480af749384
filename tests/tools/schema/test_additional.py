"""The arguments that a pydantic model adds to a schema: nested models, definitions, references, collisions."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, create_model

from tests.fixtures import bfcl_tools, livemcp_tools
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools import AugmentedArguments, augmented, tool_callbacks
from traced_tools.tools.schema.additional import AdditionalArguments, members_of, object_of
from traced_tools.tools.schema.arguments import ArgumentValidationError
from traced_tools.tools.schema.dialects import inline_references, to_object_schema, to_strict_schema
from traced_tools.tools.schema.fields import field_names
from traced_tools.tools.schema.json_schema import SchemaCheck


class Thinking(BaseModel):
    thought: str


class Node(BaseModel):
    """A recursive model, whose definition stays in `$defs`."""

    title: str
    children: list[Node] = []


class Planned(BaseModel):
    plan: Node
    note: str = Field(default="none", description="")


def merged(model: type[BaseModel], schema: dict[str, Any]) -> dict[str, Any]:
    return AdditionalArguments(model).merged_into(ToolDefinition(name="t", input_schema=schema))


def accepts(schema: dict[str, Any], value: Any) -> bool:
    check = SchemaCheck(schema)
    assert check.usable
    return not check.problems(value)


# The schema.


@pytest.mark.parametrize("own", [{}, {"type": "object"}, {"type": "object", "properties": {}}, {"title": "T"}])
def test_a_schema_without_properties_or_required_fields_gets_them(own: dict[str, Any]) -> None:
    assert merged(Thinking, own) == {
        **own,
        "type": "object",
        "properties": {"thought": {"type": "string"}},
        "required": ["thought"],
    }


def test_other_members_of_the_schema_survive_and_the_schema_itself_is_not_changed() -> None:
    own = {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "T",
        "description": "D",
        "x-vendor": {"a": 1},
        "type": "object",
        "properties": {"a": {"$ref": "#/definitions/A"}},
        "required": ["a"],
        "additionalProperties": False,
        "definitions": {"A": {"type": "integer"}},
    }
    before = json.dumps(own)
    found = merged(Planned, own)
    assert json.dumps(own) == before
    others = ("properties", "required", "$defs")
    assert {key: found[key] for key in found if key not in others} == {
        key: own[key] for key in own if key not in others
    }
    assert found["required"] == ["a", "plan"]
    assert accepts(found, {"a": 1, "plan": {"title": "x", "children": [{"title": "y"}]}})
    assert not accepts(found, {"a": 1, "plan": {"title": "x", "children": [{"title": 5}]}})
    assert not accepts(found, {"a": "x", "plan": {"title": "x"}})
    assert not accepts(found, {"a": 1, "plan": {"title": "x"}, "b": 1})


def test_optional_fields_are_not_required_and_missing_or_blank_descriptions_are_not_written() -> None:
    class Optional(BaseModel):
        thought: str | None = Field(default=None, description="")
        level: int = 3

    found = merged(Optional, {})
    assert "required" not in found
    assert found["properties"]["level"] == {"type": "integer", "default": 3}
    assert found["properties"]["thought"] == {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}


def test_a_field_has_the_name_of_its_alias_for_the_model() -> None:
    class Aliased(BaseModel):
        thought: str = Field(alias="innerThought")

    received: list[AugmentedArguments[Aliased]] = []

    def ping(thought: int) -> str:
        """Ping."""
        return str(thought)

    (found,) = tool_callbacks(augmented(ping, arguments=Aliased, on_arguments=received.append))
    assert found.call('{"innerThought": "so", "thought": 1}') == "1"
    assert received[0].arguments.thought == "so"


class Tree(BaseModel):
    value: int
    branches: list[Tree] = []


def recursive(name: str) -> Any:
    """Return another recursive model of that name; its field has that name, too."""
    members = {"__annotations__": {name: str, "children": f"list[{name}]"}, "children": []}
    return type(name, (BaseModel,), members)


def grow(tree: Tree, times: int = 1) -> str:
    """Grow a tree."""
    return f"{tree.value} {len(tree.branches)}"


def plant(tree: Tree) -> str:
    """Plant a tree, whose fields are the arguments."""
    return f"{tree.value} {len(tree.branches)}"


def test_definitions_with_equal_names_stay_apart() -> None:
    model: Any = create_model("Model", about=(recursive("Tree"), ...), second=(recursive("Tree_"), ...))
    (found,) = tool_callbacks(augmented(grow, arguments=model))
    schema = found.definition.input_schema
    assert sorted(schema["$defs"]) == ["Tree", "Tree_", "Tree__"]
    given = {
        "tree": {"value": 1, "branches": [{"value": 2}]},
        "about": {"Tree": "x", "children": [{"Tree": "y"}]},
        "second": {"Tree_": "x", "children": [{"Tree_": "y"}]},
    }
    assert accepts(schema, given)
    assert found.call(json.dumps(given)) == "1 1"
    for name, other in permutations(given, 2):
        assert not accepts(schema, {**given, name: given[other]})


def recursive_by(ref: str) -> dict[str, Any]:
    """Return the schema of a part that consists of parts, to which `ref` refers."""
    return {
        "type": "object",
        "properties": {"name": {"type": "string"}, "parts": {"type": "array", "items": {"$ref": ref}}},
        "required": ["name"],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "own",
    [
        recursive_by("#"),
        {"$ref": "#/$defs/A", "$defs": {"A": recursive_by("#/$defs/A")}},
        {
            "$ref": "#/definitions/A",
            "definitions": {"A": {"$ref": "#/definitions/B"}, "B": recursive_by("#/definitions/B")},
        },
        {**recursive_by("#"), "$defs": {"arguments": {"type": "integer"}}},
        {**recursive_by("#"), "$id": "https://example.com/part"},
    ],
    ids=["root", "reference", "references", "a taken name", "with an id"],
)
@pytest.mark.parametrize("model", [Thinking, Planned])
def test_what_refers_to_the_root_of_the_tools_schema_gets_no_additional_arguments(
    own: dict[str, Any], model: type[BaseModel]
) -> None:
    schema = merged(model, own)
    extra: dict[str, Any] = {"thought": "why"} if model is Thinking else {"plan": {"title": "x"}}
    assert accepts(own, {"name": "a", "parts": [{"name": "b"}]})
    assert accepts(schema, {"name": "a", "parts": [{"name": "b", "parts": []}], **extra})
    assert not accepts(schema, {"name": "a", "parts": [{"name": "b"}]})
    assert not accepts(schema, {"name": "a", "parts": [{"name": "b", **extra}], **extra})
    assert not accepts(schema, {"name": "a", "parts": [{}], **extra})


@pytest.mark.parametrize(
    "own",
    [
        {"anyOf": [{"properties": {"a": {}}, "additionalProperties": False}]},
        {"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": {"properties": {"a": {}}, "unevaluatedProperties": False}}},
        {"oneOf": [{"anyOf": [{"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}]}]},
    ],
)
def test_a_schema_with_a_form_that_forbids_other_arguments_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match="the tool 't' cannot be augmented with Thinking"):
        merged(Thinking, own)


def test_a_schema_with_open_forms_is_merged() -> None:
    schema = merged(Thinking, {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})
    assert accepts(schema, {"a": 1, "thought": "why"})
    assert not accepts(schema, {"thought": "why"})


@pytest.mark.parametrize(
    "own", [{"properties": []}, {"properties": None}, {"required": 5}, {"properties": {"a": {"$defs": [1]}}}], ids=str
)
def test_a_schema_whose_arguments_cannot_be_found_is_refused(own: dict[str, Any]) -> None:
    with pytest.raises(ToolDefinitionError, match="the tool 't' cannot be augmented: its input schema is not a valid"):
        merged(Thinking, own)


def test_a_reference_to_nothing_at_the_root_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="the reference #/x in the input schema points to no schema"):
        merged(Thinking, {"$ref": "#/x"})


@pytest.mark.parametrize("a", [{"type": "nothing"}, {"$ref": "#/$defs/A"}, {"enum": 5}, 7, "x"], ids=str)
def test_an_invalid_schema_of_an_argument_stays_as_it_is(a: Any) -> None:
    assert merged(Thinking, {"properties": {"a": a}})["properties"] == {"thought": {"type": "string"}, "a": a}


@pytest.mark.slow
def test_published_tools_can_be_augmented() -> None:
    model = create_model("Model", inner_thought=(str, ...))
    published = [*(tool["parameters"] for tool in bfcl_tools()), *(tool["inputSchema"] for tool in livemcp_tools())]
    for schema in published:
        before = json.dumps(schema)
        found = merged(model, schema)
        assert [*found["properties"]] == ["inner_thought", *schema.get("properties", {})]
        assert SchemaCheck(found).usable == SchemaCheck(schema).usable
        assert json.dumps(schema) == before


@pytest.mark.parametrize("branch", ["anyOf", "allOf", "oneOf"])
def test_a_collision_with_an_argument_of_a_form_is_found(branch: str) -> None:
    own = {branch: [{"properties": {"thought": {"type": "string"}}}]}
    with pytest.raises(ToolDefinitionError, match="the tool 't' and Thinking both have the argument 'thought'"):
        merged(Thinking, own)


@pytest.mark.parametrize(
    ("function", "own"), [(grow, {"tree": {"value": 1, "branches": [{"value": 2}]}}), (plant, {"value": 1})]
)
def test_the_dialects_of_providers_accept_the_merged_schema(function: Any, own: dict[str, Any]) -> None:
    (found,) = tool_callbacks(augmented(function, arguments=Planned))
    schema = found.definition.input_schema
    for dialect in (schema, inline_references(schema), to_object_schema(schema)):
        assert accepts(dialect, {**own, "plan": {"title": "x", "children": [{"title": "y"}]}})
        assert not accepts(dialect, {**own, "plan": {"title": "x", "children": [own]}})
    strict = to_strict_schema(schema)
    assert sorted(strict["required"]) == sorted(schema["properties"])


# Properties.

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "f", "Node", "$ref", "properties", "ü", "x y"])
TYPES: dict[str, tuple[Any, Any]] = {
    "integer": (int, st.integers(-9, 9)),
    "string": (str, st.text(max_size=3)),
    "boolean": (bool, st.booleans()),
    "array": (list[int], st.lists(st.integers(-9, 9), max_size=2)),
    "object": (Node, st.just({"title": "t", "children": [{"title": "u"}]})),
}


def of_json_type(kind: str) -> dict[str, Any]:
    if kind == "object":
        return {"$ref": "#/$defs/Node"}
    return {"type": kind, "items": {"type": "integer"}} if kind == "array" else {"type": kind}


NODE = {
    "type": "object",
    "properties": {"title": {"type": "string"}, "children": {"type": "array", "items": {"$ref": "#/$defs/Node"}}},
    "required": ["title"],
    "additionalProperties": False,
}


KINDS = st.sampled_from(sorted(TYPES))


@given(st.dictionaries(NAMES, KINDS), st.dictionaries(NAMES, KINDS, min_size=1), st.data())
def test_each_side_gets_its_arguments_or_a_collision_is_found(
    own: dict[str, str], added: dict[str, str], data: st.DataObject
) -> None:
    fields: dict[str, Any] = {
        f"field_{index}": (TYPES[kind][0], Field(alias=name)) for index, (name, kind) in enumerate(added.items())
    }
    model: Any = create_model("Added", **fields)
    got: list[str] = []

    class Remote:
        definition = ToolDefinition(
            name="t",
            input_schema={
                "type": "object",
                "properties": {name: of_json_type(kind) for name, kind in own.items()},
                "required": [*own],
                "additionalProperties": False,
                "$defs": {"Node": NODE},
            },
        )
        metadata = ToolMetadata()

        def call(self, tool_input: str, context: object = None) -> str:
            got.append(tool_input)
            return ""

    received: list[Any] = []
    if own.keys() & added.keys():
        with pytest.raises(ToolDefinitionError, match="both have the argument"):
            augmented(Remote(), arguments=model)
        return
    (found,) = tool_callbacks(augmented(Remote(), arguments=model, on_arguments=received.append))
    schema = found.definition.input_schema
    assert field_names(schema) == {*own, *added}
    sides = [{name: data.draw(TYPES[kind][1], label=name) for name, kind in side.items()} for side in (own, added)]
    together = dict(data.draw(st.permutations([*sides[0].items(), *sides[1].items()])))
    assert accepts(schema, together)
    found.call(json.dumps(together))
    assert json.loads(got[0]) == sides[0]
    assert json.loads(received[0].arguments.model_dump_json(by_alias=True, exclude_unset=True)) == sides[1]
    for missing in together:
        assert not accepts(schema, {name: each for name, each in together.items() if name != missing})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), JSON), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_the_members_of_an_object_are_found_however_it_is_written(
    value: dict[str, Any], is_ascii: bool, indent: Any
) -> None:
    text = json.dumps(value, ensure_ascii=is_ascii, indent=indent)
    members = members_of(text)
    assert [member.name for member in members] == [*value]
    assert json.loads(object_of(members)) == value
    for member in members:
        assert member.text in text


@given(st.text())
def test_a_text_is_either_an_object_or_refused(text: str) -> None:
    assume(not text.strip().startswith("{"))
    with pytest.raises(ArgumentValidationError):
        members_of(text)
