"""The parameters of a function in the schema, and the name of the tool."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, create_model

from tests.markers import MARKER
from traced_tools import ToolParam, tool
from traced_tools.core import ToolDefinition
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.tools import FunctionToolCallback


def made(function: Any, **settings: Any) -> FunctionToolCallback:
    return FunctionToolCallback(function, name="it", **settings)


def schema(function: Any) -> dict[str, Any]:
    return made(function).definition.input_schema


def properties(function: Any) -> dict[str, Any]:
    found: dict[str, Any] = schema(function)["properties"]
    return found


def plain(city: str, days: int = 3) -> str:
    return f"{city} {days}"


class Caller:
    def __call__(self) -> str:
        return ""


# Parameters that have no name.


def untyped(*args, **kwargs):  # type: ignore[no-untyped-def]
    return kwargs


def typed(*cities: str, **days: int) -> dict[str, int]:
    return days


def positional(city: str, /) -> str:
    return city


OPEN = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(("function", "named"), [(untyped, "*args"), (typed, "*cities"), (positional, "city")])
def test_a_parameter_that_cannot_be_passed_by_name_is_refused(function: Any, named: str) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        made(function)
    assert f"cannot fill {named};" in str(caught.value)
    assert "input_schema=" in str(caught.value)


@pytest.mark.parametrize("function", [untyped, typed, tool(input_schema=OPEN)(lambda **kwargs: kwargs)])
def test_keyword_arguments_of_any_name_are_checked_by_a_schema(function: Any) -> None:
    callback = made(function, input_schema=OPEN)
    assert callback.definition.input_schema == OPEN
    assert callback.call('{"a": 1, "b": [2]}') == '{"a":1,"b":[2]}'
    with pytest.raises(InvalidArguments) as caught:
        callback.call('{"a": "1"}')
    assert caught.value.problems.startswith("a: ")


def test_positional_parameters_are_refused_with_an_input_schema_too() -> None:
    for function in (positional, lambda *args: args):
        with pytest.raises(ToolDefinitionError, match="cannot fill"):
            made(function, input_schema=OPEN)


# Descriptions and requirements.


def described(
    by_param: Annotated[str, Field(description="field"), ToolParam(description="param")],
    by_field: Annotated[str, Field(description="field")],
    by_docstring: str,
    by_default: Annotated[str, ToolParam(description="param")] = Field(description="field"),
    inside: Annotated[str, ToolParam(description="param")] | None = None,
) -> str:
    """Find.

    Args:
        by_param: docstring
        by_field: docstring
        by_docstring: docstring
        by_default: docstring
    """
    return ""


def test_a_description_comes_from_the_param_else_the_field_else_the_docstring() -> None:
    found = properties(described)
    words = ["param", "field", "docstring", "param", None]
    assert [each.get("description") for each in found.values()] == words
    assert found["inside"]["anyOf"][0]["description"] == "param"


def test_a_parameter_is_required_unless_the_param_the_default_or_the_type_says_otherwise() -> None:
    def find(
        plain: str,
        nullable: str | None,
        with_default: str = "",
        by_field: str = Field("", min_length=0),
        by_factory: str = Field(default_factory=str),
        field_without_default: str = Field(min_length=0),
        in_annotation: Annotated[str, Field(default="")] = "own",
        not_required: Annotated[str, ToolParam(required=False)] = Field(),
        required_with_default: Annotated[str, ToolParam(required=True)] = "",
        required_with_field: Annotated[str, ToolParam(required=True)] = Field(""),
        required_and_nullable: Annotated[str | None, ToolParam(required=True)] = None,
    ) -> str:
        return ""

    required = ["plain", "field_without_default"]
    required += ["required_with_default", "required_with_field", "required_and_nullable"]
    assert schema(find)["required"] == required
    callback = made(find)
    for name in required:
        with pytest.raises(InvalidArguments) as caught:
            callback.bind("{}")
        assert f"{name}: " in caught.value.problems


@pytest.mark.parametrize("wrong", [{"description": 5}, {"required": "no"}], ids=str)
def test_a_param_refuses_an_argument_of_the_wrong_kind_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=next(iter(wrong))):
        ToolParam(**wrong)


# Defaults.


class Odd:
    """Raises when shown or compared, similar to an array of numbers."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


DEFAULTS = [Odd(), object(), float("nan"), [float("inf")], "\ud800", b"\xff", iter([1]), sys.stdin, Ellipsis]
circle: list[Any] = []
circle.append(circle)


@pytest.mark.parametrize("default", [*DEFAULTS, circle], ids=lambda each: type(each).__name__)
def test_a_default_that_json_cannot_represent_is_used_and_not_in_the_schema(default: Any) -> None:
    def give(what: Any = default) -> str:
        return "the default" if what is default else "another"

    assert properties(give) == {"what": {}}
    assert made(give).call("{}") == "the default"


def test_a_default_is_in_the_schema_as_json() -> None:
    def give(a: Any = (1, "x"), b: Any = None, c: Any = {"k": {1}}) -> str:  # noqa: B006
        return ""

    assert [each["default"] for each in properties(give).values()] == [[1, "x"], None, {"k": [1]}]


def test_the_default_of_a_field_is_created_for_each_call() -> None:
    def collect(
        items: list[int] = Field([]),  # noqa: B008
        more: list[int] = Field(default_factory=list),  # noqa: B008
        days: Annotated[int, Field(default=3, ge=1)] = Field(5),
        own: Annotated[int, Field(default=3)] = 4,
    ) -> str:
        items.append(1)
        more.append(2)
        return f"{items} {more} {days} {own}"

    callback = made(collect)
    assert [callback.call("{}") for _ in range(2)] == ["[1] [2] 5 4"] * 2
    assert callback.call('{"items": [7], "days": 1}') == "[7, 1] [2] 1 4"
    assert [each.get("default") for each in callback.definition.input_schema["properties"].values()] == [[], None, 5, 4]


def test_a_factory_that_fails_fails_like_the_tool_itself() -> None:
    def fail() -> str:
        raise LookupError(MARKER)

    def give(text: str = Field(default_factory=fail)) -> str:
        return text

    with pytest.raises(LookupError, match=MARKER):
        made(give).call("{}")


def test_a_field_may_give_the_parameter_another_name() -> None:
    def find(from_: str = Field(alias="from"), days: int = Field(3, validation_alias="for-days")) -> str:
        return f"{from_} {days}"

    assert properties(find) == {"from": {"type": "string"}, "for-days": {"type": "integer", "default": 3}}
    assert made(find).call('{"from": "Bonn"}') == "Bonn 3"
    assert made(find).call('{"from": "Bonn", "for-days": 4}') == "Bonn 4"


# What a tool is called.


def test_a_tool_is_named_after_its_function_and_any_letters_will_do() -> None:
    def найти() -> str:
        return ""

    assert FunctionToolCallback(найти).definition.name == "найти"
    assert FunctionToolCallback(plain, name="天気.now/é (1)").definition.name == "天気.now/é (1)"


@pytest.mark.parametrize("function", [lambda: 1, functools.partial(plain), Caller()], ids=["lambda", "partial", "own"])
def test_a_callable_without_a_name_needs_one(function: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="needs a name: pass FunctionToolCallback"):
        FunctionToolCallback(function)


@pytest.mark.parametrize("name", ["", " ", " a", "a\n", "\ud800", "a\tb"], ids=ascii)
def test_a_name_that_is_not_printable_is_refused(name: str) -> None:
    with pytest.raises(ToolDefinitionError, match="a tool needs a name: printable text"):
        FunctionToolCallback(plain, name=name)


@pytest.mark.parametrize(
    ("name", "description"),
    [("get_current_time", "get current time"), ("getWeather2Day", "get weather2 day"), ("__x__", "x"), ("...", "")],
)
def test_a_tool_without_a_docstring_is_described_by_its_name(name: str, description: str) -> None:
    def bare() -> str:
        return ""

    assert FunctionToolCallback(bare, name=name).definition.description == description
    assert FunctionToolCallback(bare, name=name, description="").definition.description == ""


@pytest.mark.parametrize("more", [{"name": "x"}, {"description": "x"}], ids=str)
def test_a_definition_cannot_be_combined_with_a_name_or_a_description(more: dict[str, str]) -> None:
    with pytest.raises(ToolDefinitionError, match="cannot be combined with name=, description="):
        FunctionToolCallback(plain, definition=ToolDefinition(name="it"), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("function", [None, 5, "plain"], ids=repr)
def test_an_object_that_is_not_callable_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match="function must be callable"):
        FunctionToolCallback(function)


class Opaque:
    """A type unknown to pydantic."""


def test_a_parameter_of_a_type_unknown_to_pydantic_is_named_with_the_reason() -> None:
    def show(city: str, thing: Opaque) -> str:
        return ""

    with pytest.raises(ToolDefinitionError, match=r"show cannot be a tool: its parameter thing .*Opaque"):
        FunctionToolCallback(show)


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "array"}, "must be of type object"),
        ({"type": "object", "properties": {"city": {}, "town": {}}}, "has town, which the function does not take"),
        ({"type": "object", "properties": {"days": {}}}, "lacks city, which the function requires"),
    ],
)
def test_an_input_schema_that_does_not_fit_the_function_is_refused(schema: dict[str, Any], problem: str) -> None:
    def find(city: str, days: int = 3) -> str:
        return ""

    with pytest.raises(ToolDefinitionError, match=problem):
        FunctionToolCallback(find, input_schema=schema)


def test_an_input_schema_may_omit_optional_parameters() -> None:
    def find(city: str, days: int = 3) -> str:
        return f"{city} {days}"

    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    assert FunctionToolCallback(find, input_schema=schema).call('{"city": "Oslo"}') == "Oslo 3"


def test_the_items_of_an_iterable_are_checked_before_the_tool_runs() -> None:
    def add(numbers: Iterable[int]) -> int:
        return sum(numbers)

    assert made(add).call('{"numbers": [1, 2]}') == "3"
    with pytest.raises(InvalidArguments) as caught:
        made(add).bind('{"numbers": ["many"]}')
    assert caught.value.problems == "numbers.0: must be an integer"


def test_a_model_cannot_pass_arguments_that_a_partial_binds() -> None:
    def fetch(url: str, token: str, **more: str) -> str:
        return f"{url} {token} {more}"

    schema = {"type": "object", "properties": {"url": {"type": "string"}}}
    tool = FunctionToolCallback(functools.partial(fetch, token="secret"), name="fetch", input_schema=schema)
    assert tool.call('{"url": "a", "page": "2"}') == "a secret {'page': '2'}"
    with pytest.raises(InvalidArguments) as caught:
        tool.bind('{"url": "a", "token": "mine"}')
    assert caught.value.problems == "token: is not a known field"


def test_an_input_schema_of_the_developers_own_must_be_a_valid_one() -> None:
    with pytest.raises(ToolDefinitionError, match="is not a valid JSON Schema"):
        FunctionToolCallback(
            lambda **more: "", name="it", input_schema={"type": "object", "properties": {"a": {"type": "strng"}}}
        )


def test_a_schema_that_would_grow_keeps_its_definitions() -> None:
    class Leaf(BaseModel):
        text: Annotated[str, Field(description="A long text that says what this is for. " * 10)] = ""

    kinds: list[Any] = [Leaf]
    for number in range(6):
        below = kinds[-1]
        kinds.append(create_model(f"Level{number}", left=(below, ...), right=(below, ...)))

    def plant(tree: kinds[-1], more: int) -> str:  # type: ignore[valid-type]
        return ""

    plant.__annotations__["tree"] = kinds[-1]
    written = schema(plant)
    assert set(written["$defs"]) >= {"Leaf", "Level0"}
    assert len(str(written)) < 6_000
