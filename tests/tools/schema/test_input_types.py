"""Parameters of any type: their schema, their values, and unknown fields."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field, field_validator

from tests.markers import MARKER
from tests.sweeps import check_each
from tests.tools.schema.input_types import (
    CAT_OR_DOG,
    EVEN_NUMBER,
    TYPES,
    Box,
    Branch,
    Described,
    Names,
    Node,
    Pair,
    Place,
    Point,
    Unit,
)
from traced_tools import ChatClient, ToolCall, ToolContext, ToolParam
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback


def of_type(annotation: Any, *, alone: bool = False) -> FunctionToolCallback:
    """Return a tool whose parameter `value` has the annotation; if `alone`, it is the only one."""

    def only(value: Any) -> str:
        return ""

    def take(value: Any, other: int = 0) -> str:
        return ""

    function = only if alone else take
    function.__annotations__["value"] = annotation
    return FunctionToolCallback(function)


def value_of(callback: FunctionToolCallback, arguments: Any) -> Any:
    return callback.bind(json.dumps(arguments)).value["value"]


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield each object with fields in a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict) and "type" in schema:
            yield schema
        for each in schema.values():
            yield from objects(each)
    if isinstance(schema, list):
        for each in schema:
            yield from objects(each)


def test_a_value_of_any_type_is_converted_and_its_schema_is_valid() -> None:
    def check(case: tuple[Any, Any, Any]) -> None:
        annotation, plain, value = case
        callback = of_type(annotation)
        schema = callback.definition.input_schema
        Draft202012Validator.check_schema(schema)
        json.dumps(schema, allow_nan=False)
        assert Draft202012Validator(schema).is_valid({"value": plain})
        found = value_of(callback, {"value": plain})
        assert (type(found), found) == (type(value), value)

    check_each(TYPES, check)


def test_objects_are_closed_and_maps_stay_open() -> None:
    def check(case: tuple[Any, Any, Any]) -> None:
        schema = of_type(case[0]).definition.input_schema
        found = list(objects(schema))
        assert found[0] is schema
        assert all(each["additionalProperties"] is False for each in found)

    check_each(TYPES, check)


def test_a_map_takes_any_key_and_checks_its_values() -> None:
    callback = of_type(dict[str, Place])
    assert callback.definition.input_schema["properties"]["value"]["additionalProperties"]["required"] == ["city"]
    assert value_of(callback, {"value": {"anything": {"city": "a"}}}) == {"anything": Place(city="a")}
    with pytest.raises(InvalidArguments) as caught:
        value_of(callback, {"value": {"anything": {"city": "a", MARKER: 1}}})
    assert caught.value.problems == f"value.anything.{MARKER}: is not a known field"


# One parameter that has fields.

WITH_FIELDS = ["model", "recursive model", "recursive dict", "mutually recursive", "generic model"]
WITH_FIELDS += ["generic of generic", "generic dataclass", "dataclass", "pydantic dataclass"]
WITH_FIELDS += ["typed dict", "typed dict in part", "described"]


@pytest.mark.parametrize("name", WITH_FIELDS)
def test_the_fields_of_an_only_parameter_are_the_arguments(name: str) -> None:
    annotation, plain, value = TYPES[name]
    callback = of_type(annotation, alone=True)
    schema = callback.definition.input_schema
    Draft202012Validator.check_schema(schema)
    assert (schema["type"], schema["additionalProperties"]) == ("object", False)
    assert plain.keys() <= schema["properties"].keys()
    assert value_of(callback, plain) == value
    with pytest.raises(InvalidArguments) as caught:
        callback.bind(json.dumps({**plain, MARKER: 1}))
    assert caught.value.problems == f"{MARKER}: is not a known field"


@pytest.mark.parametrize("name", ["union", "discriminated", "root model", "dict", "Any", "named tuple", "Optional"])
def test_any_other_only_parameter_is_one_argument(name: str) -> None:
    annotation, plain, value = TYPES[name]
    callback = of_type(annotation, alone=True)
    assert list(callback.definition.input_schema["properties"]) == ["value"]
    assert value_of(callback, {"value": plain}) == value


def test_an_optional_parameter_with_fields_is_one_argument() -> None:
    def by_default(place: Place = Place(city="Bonn")) -> str:  # noqa: B008
        return place.city

    def by_field(place: Place = Field(default_factory=lambda: Place(city="Bonn"))) -> str:  # noqa: B008
        return place.city

    def by_param(place: Annotated[Place, ToolParam(required=False)]) -> str:
        return str(place)

    for function in (by_default, by_field, by_param):
        assert list(FunctionToolCallback(function).definition.input_schema["properties"]) == ["place"]
        assert FunctionToolCallback(function).call("{}") in ("Bonn", "None")


def test_a_context_is_allowed_beside_an_only_parameter_with_fields() -> None:
    def find(context: ToolContext, place: Annotated[Place, ToolParam(description="Where")]) -> str:
        return f"{context['user']} {place.city}"

    callback = FunctionToolCallback(find)
    assert list(callback.definition.input_schema["properties"]) == ["city", "zip"]
    assert callback.definition.input_schema["description"] == "Where"
    assert callback.call('{"city": "Bonn"}', ToolContext({"user": "ann"})) == "ann Bonn"


def test_an_input_type_replaces_a_missing_annotation() -> None:
    def find(request):  # type: ignore[no-untyped-def]
        return request

    callback = FunctionToolCallback(find, input_type=Point)
    assert list(callback.definition.input_schema["properties"]) == ["x", "tags"]
    assert value_of(FunctionToolCallback(lambda value: "", name="it", input_type=Box), {"width": 1}) == {"width": 1}
    assert callback.call('{"x": 1}') == '{"x":1.0,"tags":{}}'


def none() -> str:
    return ""


def two(a: int, b: int) -> str:
    return ""


@pytest.mark.parametrize("function", [none, two])
def test_an_input_type_needs_one_parameter(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=f"{function.__name__} with an input_type must take one"):
        FunctionToolCallback(function, input_type=Place)


@pytest.mark.parametrize("input_type", [int, list[Place], CAT_OR_DOG, Names, Pair, "Place", 5], ids=str)
def test_an_input_type_without_fields_is_refused(input_type: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="find cannot be a tool"):

        def find(request: Any) -> str:
            return ""

        FunctionToolCallback(find, input_type=input_type)


# What a schema says beyond types.


def test_the_schema_has_the_descriptions_of_models_and_no_titles() -> None:
    found = of_type(Described).definition.input_schema["properties"]["value"]["properties"]
    assert found["title"] == {"type": "string", "description": "What it is called."}
    assert found["properties"] == {"type": "integer", "default": 1, "description": "How many"}
    assert of_type(Place).definition.input_schema["properties"]["value"]["description"] == "Where something is."


def test_a_schema_without_recursion_has_no_definitions() -> None:
    def check(case: tuple[Any, Any, Any]) -> None:
        text = json.dumps(of_type(case[0]).definition.input_schema)
        assert "$defs" not in text
        assert "$ref" not in text

    check_each({name: case for name, case in TYPES.items() if "recursive" not in name}, check)


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize(("annotation", "kept"), [(Node, "Node"), (Branch, "Branch")])
def test_a_recursive_type_is_defined_once_before_the_properties(annotation: Any, kept: str, alone: bool) -> None:
    schema = of_type(annotation, alone=alone).definition.input_schema
    assert next(iter(schema)) == "$defs"
    assert list(schema["$defs"]) == [kept]
    assert schema["type"] == "object"


def test_recursive_types_with_equal_names_have_separate_definitions_and_a_repeated_type_has_one() -> None:
    def another() -> Any:
        class Node(BaseModel):
            number: int
            next: Any = None

        Node.model_rebuild()
        return Node

    class Other(BaseModel):
        model_config = ConfigDict(title="Node")

        next: Node | None = None
        own: Other | None = None

    Other.__name__ = "Node"
    Other.model_rebuild(force=True, _types_namespace={"Node": Node, "Other": Other})

    def link(first: Node, second: Node, other: Any, third: Any) -> str:
        return ""

    link.__annotations__.update(other=Other, third=another())
    schema = FunctionToolCallback(link).definition.input_schema
    assert len(schema["$defs"]) == 2
    assert schema["properties"]["first"] == schema["properties"]["second"]
    Draft202012Validator.check_schema(schema)
    arguments = {"first": {"name": "a"}, "second": {"name": "b"}, "other": {"own": {}}, "third": {"number": 1}}
    assert Draft202012Validator(schema).is_valid(arguments)
    assert not Draft202012Validator(schema).is_valid({**arguments, "other": {"own": {"name": "x"}}})


def test_definitions_that_would_grow_too_large_are_not_inlined() -> None:
    kind: Any = Place
    for _ in range(16):
        kind = type("Twice", (BaseModel,), {"__annotations__": {"a": kind, "b": kind}})
    schema = of_type(kind).definition.input_schema
    assert "$defs" in schema
    assert all(each["additionalProperties"] is False for each in objects(schema))


def test_a_model_default_that_json_cannot_represent_is_omitted_without_a_warning() -> None:
    class Vague(BaseModel):
        ratio: float = float("nan")
        what: Any = object()

    assert of_type(Vague).definition.input_schema["properties"]["value"]["properties"] == {
        "ratio": {"type": "number"},
        "what": {},
    }


class Strict(BaseModel):
    n: int


class Generous(BaseModel):
    model_config = ConfigDict(extra="allow")

    city: str


def test_a_model_that_allows_extra_fields_keeps_pydantics_schema() -> None:
    callback = of_type(Generous)
    assert callback.definition.input_schema["properties"]["value"]["additionalProperties"] is True
    assert value_of(callback, {"value": {"city": "Bonn", "mood": "good"}}).model_extra == {"mood": "good"}
    with pytest.raises(InvalidArguments):
        callback.bind('{"value": {"city": "Bonn"}, "more": 1}')


def test_other_models_forbid_extra_fields_beside_a_model_that_allows_them() -> None:
    def give(open: Generous, shut: Strict, far: list[Strict]) -> str:
        return f"{open} {shut}"

    tool = FunctionToolCallback(give)
    properties = tool.definition.input_schema["properties"]
    assert (properties["open"]["additionalProperties"], properties["shut"]["additionalProperties"]) == (True, False)
    fine = {"open": {"city": "Bonn", "mood": "good"}, "shut": {"n": "1"}, "far": []}
    assert tool.call(json.dumps(fine)) == "city='Bonn' mood='good' n=1"
    with pytest.raises(InvalidArguments) as caught:
        tool.bind(json.dumps({**fine, "shut": {"n": 1, "evil": 2}, "far": [{"n": 1, "worse": 3}]}))
    assert "far.0.worse: is not a known field" in caught.value.problems
    assert "shut.evil: is not a known field" in caught.value.problems


def test_an_exception_of_a_validator_fails_the_tool() -> None:
    class Careless(BaseModel):
        city: str

        @field_validator("city")
        @classmethod
        def look_up(cls, city: str) -> str:
            return {"Bonn": "Bonn"}[city]

    callback = of_type(Careless)
    assert value_of(callback, {"value": {"city": "Bonn"}}).city == "Bonn"
    asked = ToolCall(callback.definition.name, {"value": {"city": "Rome"}})
    (result,) = ChatClient(ScriptedChatModel([asked, "x"]), tools=[callback]).prompt("?").call().tool_results
    assert (result.decision, result.outcome, result.error_type) == ("allowed", "error", "KeyError")
    assert isinstance(result.error, KeyError)


@pytest.mark.parametrize(
    ("annotation", "wrong", "places"),
    [
        (list[int], ["a"], ["value.0"]),
        (dict[str, date], {"a": "soon"}, ["value.a"]),
        (dict[str, list[int]], {"a": [1, "b"]}, ["value.a.1"]),
        (Unit, MARKER, ["value"]),
        (Place, {"zip": "x"}, ["value.city", "value.zip"]),
        (EVEN_NUMBER, 3, ["value"]),
    ],
    ids=str,
)
def test_the_model_reads_the_path_of_an_invalid_element(annotation: Any, wrong: Any, places: list[str]) -> None:
    with pytest.raises(InvalidArguments) as caught:
        of_type(annotation).bind(json.dumps({"value": wrong}))
    assert [each.partition(": ")[0] for each in caught.value.problems.split("; ")] == places
    assert MARKER not in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"value": }', "[1]", "5", '"a"', "\ud800", '{"value": "\ud800"}'], ids=ascii)
def test_the_model_reads_that_its_text_is_not_a_json_object(text: str) -> None:
    with pytest.raises(InvalidArguments) as caught:
        of_type(int).bind(text)
    assert caught.value.problems.startswith(("arguments: ", "value: "))


def test_an_empty_string_is_a_value_like_any_other() -> None:
    assert value_of(of_type(str), {"value": ""}) == ""
    assert of_type(Annotated[str, ToolParam(required=False)]).bind('""').value == {"value": None}


# Any mixture of them.


@given(st.lists(st.sampled_from(sorted(TYPES)), min_size=2, max_size=6, unique=True), st.data())
def test_any_signature_accepts_valid_arguments_and_extra_fields_only_if_its_schema_allows_them(
    names: list[str], data: st.DataObject
) -> None:
    parameters = {f"p{index}": TYPES[name] for index, name in enumerate(names)}
    callback = function_of({name: annotation for name, (annotation, _, _) in parameters.items()})
    validator = Draft202012Validator(callback.definition.input_schema)
    validator.check_schema(validator.schema)
    arguments = {name: plain for name, (_, plain, _) in parameters.items()}
    assert validator.is_valid(arguments)
    assert callback.bind(json.dumps(arguments)).value == {name: value for name, (_, _, value) in parameters.items()}
    more = json.loads(json.dumps(arguments))
    data.draw(st.sampled_from(list(dicts(more))))[MARKER] = 1
    try:
        callback.bind(json.dumps(more))
    except InvalidArguments:
        assert not validator.is_valid(more)
    else:
        assert validator.is_valid(more)


def function_of(annotations: dict[str, Any]) -> FunctionToolCallback:
    """Return a tool with these parameters."""
    space: dict[str, Any] = {}
    exec(f"def take({', '.join(annotations)}): return ''", space)
    space["take"].__annotations__ = annotations
    return FunctionToolCallback(space["take"])


def dicts(value: Any) -> Iterator[dict[str, Any]]:
    """Yield each object in a JSON value."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from dicts(each)
