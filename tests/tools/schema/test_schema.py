"""From a function's signature to a JSON Schema, and from JSON text to keyword arguments."""

from __future__ import annotations

import asyncio
import enum
import json
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from tests.markers import MARKER
from traced_tools import ToolContext, ToolParam
from traced_tools.core import ToolDefinition
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.tools import FunctionToolCallback


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Place(BaseModel):
    city: str
    zip: int | None = None


@dataclass
class Point:
    x: float
    y: float = 0.0


class Box(TypedDict):
    width: int


class Node(BaseModel):
    name: str
    children: list[Node] = []


def schema(function: Any) -> dict[str, Any]:
    return FunctionToolCallback(function).definition.input_schema


def bound(function: Any, arguments: str) -> dict[str, Any]:
    return FunctionToolCallback(function).bind(arguments).value  # type: ignore[no-any-return]


def problems(function: Any, arguments: str) -> str:
    with pytest.raises(InvalidArguments) as caught:
        bound(function, arguments)
    assert caught.value.__context__ is None
    assert MARKER not in repr(caught.value)
    return caught.value.problems


def test_a_function_of_no_parameters_takes_an_empty_object() -> None:
    def now() -> str:
        return ""

    assert schema(now) == {"type": "object", "properties": {}, "additionalProperties": False}


def test_the_schema_comes_from_the_annotations() -> None:
    def find(city: str, days: int, exact: bool, near: list[float], unit: Unit, size: Literal["s", "l"]) -> str:
        return ""

    made = schema(find)
    assert made["type"] == "object"
    assert made["additionalProperties"] is False
    assert list(made["properties"]) == ["city", "days", "exact", "near", "unit", "size"]
    assert made["required"] == ["city", "days", "exact", "near", "unit", "size"]
    assert [made["properties"][name]["type"] for name in ("city", "days", "exact", "near")] == [
        "string",
        "integer",
        "boolean",
        "array",
    ]
    assert made["properties"]["size"]["enum"] == ["s", "l"]


def test_the_schema_has_no_generated_titles() -> None:
    def find(city: str, unit: Unit, place: Place, point: Point, box: Box) -> str:
        return ""

    assert "title" not in json.dumps(schema(find))


def test_models_dataclasses_and_typed_dicts_are_nested() -> None:
    def show(place: Place, point: Point, box: Box, node: Node) -> str:
        return ""

    arguments = {"place": {"city": "Bonn"}, "point": {"x": 1}, "box": {"width": 2}}
    values = bound(show, json.dumps({**arguments, "node": {"name": "a", "children": [{"name": "b"}]}}))
    assert (values["place"], values["point"], values["box"]) == (Place(city="Bonn"), Point(1.0), {"width": 2})
    assert values["node"].children[0].name == "b"
    assert "$defs" in schema(show)


def test_a_parameter_with_a_default_or_that_may_be_none_is_not_required() -> None:
    def find(city: str, days: int = 3, unit: str | None = None, tag: Optional[str] = "x") -> str:  # noqa: UP045
        return ""

    def absent(city: str, unit: str | None, *, days: int = 3) -> tuple[str, str | None, int]:
        return city, unit, days

    assert schema(find)["required"] == ["city"]
    assert schema(absent)["required"] == ["city"]
    assert FunctionToolCallback(absent).call('{"city": "Bonn"}') == '["Bonn",null,3]'


def test_tool_param_sets_required_and_description() -> None:
    def find(
        city: Annotated[str, ToolParam(description="Name of the city", required=False)],
        days: Annotated[int, ToolParam(description="How many", required=True)] = 3,
        unit: Annotated[str | None, Field(description="Of what")] = None,
    ) -> str:
        return f"{city} {days}"

    made = schema(find)
    assert made["required"] == ["days"]
    assert [made["properties"][name]["description"] for name in ("city", "days", "unit")] == [
        "Name of the city",
        "How many",
        "Of what",
    ]
    assert FunctionToolCallback(find).call('{"days": 1}') == "None 1"


def test_constraints_are_enforced_and_in_the_schema() -> None:
    def find(days: Annotated[int, Field(ge=1, le=5)]) -> str:
        return ""

    assert schema(find)["properties"]["days"]["maximum"] == 5
    assert problems(find, '{"days": 9}').startswith("days: ")
    assert bound(find, '{"days": 5}') == {"days": 5}


def test_a_parameter_without_annotation_takes_anything() -> None:
    def find(what) -> str:  # type: ignore[no-untyped-def]
        return ""

    assert bound(find, '{"what": [1, {"a": null}]}') == {"what": [1, {"a": None}]}


@pytest.mark.parametrize(
    "parameter", ["json", "model_config", "schema", "copy", "function", "self", "args", "kwargs", "cls"]
)
def test_a_parameter_may_have_any_name(parameter: str) -> None:
    space: dict[str, Any] = {}
    exec(f"def take({parameter}: str) -> str: return {parameter}", space)
    made = FunctionToolCallback(space["take"])
    assert made.call(json.dumps({parameter: "x"})) == "x"
    assert asyncio.run(made.acall(json.dumps({parameter: "x"}))) == "x"


@pytest.mark.parametrize("annotation", [ToolContext, ToolContext | None, Annotated[ToolContext, "the caller"]], ids=str)
def test_the_tool_context_is_injected_and_not_in_the_schema(annotation: Any) -> None:
    def who(greeting: str, context: Any) -> str:
        return f"{greeting} {context['user']}"

    who.__annotations__["context"] = annotation
    callback = FunctionToolCallback(who)
    assert list(callback.definition.input_schema["properties"]) == ["greeting"]
    assert callback.call('{"greeting": "hi"}', ToolContext({"user": "ann"})) == "hi ann"
    assert problems(who, '{"greeting": "hi", "context": {"user": "eve"}}') == "context: is not a known field"


def test_a_tool_context_is_a_read_only_mapping_that_knows_its_call() -> None:
    values = {"user": "ann"}
    context: Any = ToolContext(
        values, call_id="7", tool="who", iteration=2, conversation_id="c", run_id="r", deadline=1.5
    )
    assert (dict(context), len(context), context["user"], "user" in context) == (values, 1, "ann", True)
    assert (context.call_id, context.tool, context.iteration) == ("7", "who", 2)
    assert (context.conversation_id, context.run_id, context.deadline) == ("c", "r", 1.5)
    with pytest.raises(TypeError):
        context["user"] = "eve"
    assert context == values


def test_values_are_validated_in_lax_mode() -> None:
    def find(days: int, at: datetime, unit: Unit) -> str:
        return ""

    values = bound(find, '{"days": "5", "at": "2025-01-02T03:04:05Z", "unit": "celsius"}')
    assert (values["days"], values["unit"], values["at"].year) == (5, Unit.CELSIUS, 2025)


def test_problems_are_named_by_field_without_their_values() -> None:
    def find(place: Place, days: int) -> str:
        return ""

    text = problems(find, json.dumps({"place": {"city": [MARKER]}, "days": MARKER}))
    assert [each.partition(": ")[0] for each in text.split("; ")] == ["place.city", "days"]
    assert MARKER not in text


def test_at_most_ten_problems_are_listed() -> None:
    def find(numbers: list[int]) -> str:
        return ""

    assert problems(find, json.dumps({"numbers": ["x"] * 100})).count("; ") == 9


def args(*numbers: int) -> str:
    return ""


def kwargs(**numbers: int) -> str:
    return ""


def positional(number: int, /) -> str:
    return ""


class Opaque:
    """A type unknown to pydantic."""


def opaque(value: Opaque) -> str:
    return ""


def undefined(value: NotThere) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


@pytest.mark.parametrize("function", [args, kwargs, positional, opaque, undefined, max], ids=lambda each: each.__name__)
def test_a_function_no_model_can_call_is_refused_by_name(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match=f"{function.__name__} cannot be a tool"):
        FunctionToolCallback(function)


def test_a_partial_function_needs_a_name() -> None:
    def find(city: str, days: int) -> str:
        return f"{city} {days}"

    made = FunctionToolCallback(partial(find, days=3), name="find")
    assert made.call('{"city": "Bonn"}') == "Bonn 3"
    with pytest.raises(ToolDefinitionError, match="name"):
        FunctionToolCallback(partial(find, days=3))


def test_an_object_that_can_be_called_is_a_tool_when_it_is_named() -> None:
    @dataclass
    class Finder:
        days: int

        def __call__(self, city: str) -> str:
            return f"{city} {self.days}"

    made = FunctionToolCallback(Finder(3), name="find")
    assert list(made.definition.input_schema["properties"]) == ["city"]
    assert made.call('{"city": "Bonn"}') == "Bonn 3"


def test_a_custom_definition_is_sent_to_the_model() -> None:
    def find(city: str) -> str:
        return city

    definition = ToolDefinition(name="search", description="Search.", input_schema={"type": "object"})
    made = FunctionToolCallback(find, definition=definition)
    assert made.definition is definition
    assert made.call('{"city": "Bonn"}') == "Bonn"


@given(
    st.text()
    | st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)).map(
        json.dumps
    )
)
def test_any_text_is_accepted_or_raises_invalid_arguments(text: str) -> None:
    def find(city: str, days: int = 3) -> str:
        return ""

    try:
        values = bound(find, text)
    except InvalidArguments as problem:
        assert str(problem)
    else:
        assert isinstance(values["city"], str)


@given(st.text(), st.integers(), st.lists(st.booleans()), st.dictionaries(st.text(), st.integers()))
def test_valid_arguments_arrive_unchanged(text: str, number: int, flags: list[bool], table: dict[str, int]) -> None:
    def take(text: str, number: int, flags: list[bool], table: dict[str, int]) -> str:
        return ""

    given_values = {"text": text, "number": number, "flags": flags, "table": table}
    assert bound(take, json.dumps(given_values)) == given_values


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_refused(number: str) -> None:
    def weigh(kilos: float, of: str = "") -> str:
        return f"{kilos} of {of}"

    assert problems(weigh, f'{{"kilos": {number}}}').startswith("arguments: not valid JSON")
    assert FunctionToolCallback(weigh).call(f'{{"kilos": 1.5, "of": "{number}"}}') == f"1.5 of {number}"
