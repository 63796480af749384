"""`@tool`, the values that `tools=` accepts, and the conversion of a tool's value."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel

from tests.markers import MARKER
from tests.stable_ids import stable_id
from traced_tools import TextPart, ToolContext, tool
from traced_tools.core import ToolAnnotations, ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools import FunctionToolCallback, tool_callbacks


class Place(BaseModel):
    city: str
    founded: date


class Clock:
    """Tools as methods of every kind."""

    zone = "UTC"

    @tool
    def now(self) -> str:
        """Return the time."""
        return f"now in {self.zone}"

    @tool(
        name="later",
        description="Return a later time.",
        return_direct=True,
        annotations=ToolAnnotations(read_only=True, open_world=False),
    )
    async def in_a_while(self, minutes: int) -> str:
        return f"{minutes} minutes later"

    @tool
    @staticmethod
    def epoch() -> int:
        """Return the epoch."""
        return 0

    @staticmethod
    @tool
    def leap(year: int) -> bool:
        """Return whether a year is a leap year."""
        return year % 4 == 0

    @classmethod
    @tool
    def kind(cls) -> str:
        """Return the class."""
        return cls.__name__

    @tool
    def _hidden(self) -> str:
        """Be private and a tool all the same."""
        return "hidden"

    def helper(self) -> str:
        return "no tool"

    @property
    def explosive(self) -> str:
        raise AssertionError("a property was read")


class Alarm(Clock):
    """Inherits tools, and overrides one."""

    @tool
    def now(self) -> str:
        """Return the time loudly."""
        return "NOW"

    @tool
    def ring(self) -> None:
        """Ring."""


def called(callback: ToolCallback, arguments: Any = None) -> str:
    return callback.call(json.dumps(arguments or {}))


def by_name(*tools: Any) -> dict[str, ToolCallback]:
    return {each.definition.name: each for each in tool_callbacks(*tools)}


def test_a_marked_function_stays_callable_as_before() -> None:
    @tool
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    assert (add(1), add(1, b=2), add.__name__, add.__doc__) == (2, 3, "add", "Add.")


def test_marked_methods_of_every_kind_are_found() -> None:
    found = by_name(Clock())
    assert list(found) == ["now", "later", "epoch", "leap", "kind", "_hidden"]
    assert called(found["now"]) == "now in UTC"
    assert called(found["later"], {"minutes": 5}) == "5 minutes later"
    assert called(found["epoch"]) == "0"
    assert called(found["leap"], {"year": 2024}) == "true"
    assert called(found["kind"]) == "Clock"


def test_inherited_tools_are_found_and_overridden_ones_count_once() -> None:
    found = by_name(Alarm())
    assert sorted(found) == ["_hidden", "epoch", "kind", "later", "leap", "now", "ring"]
    assert (called(found["now"]), found["now"].definition.description) == ("NOW", "Return the time loudly.")


def test_two_objects_of_one_class_keep_their_own_state() -> None:
    here, there = Clock(), Clock()
    there.zone = "CET"
    first, second = tool_callbacks(here)[0], tool_callbacks(there)[0]
    assert (called(first), called(second)) == ("now in UTC", "now in CET")


def test_the_options_of_the_decorator_reach_the_model_and_the_loop() -> None:
    later = by_name(Clock())["later"]
    assert (later.definition.name, later.definition.description) == ("later", "Return a later time.")
    hints = ToolAnnotations(read_only=True, open_world=False)
    assert later.metadata == ToolMetadata(return_direct=True, annotations=hints)
    assert by_name(Clock())["now"].metadata == ToolMetadata(return_direct=False, source="local")


def test_the_description_is_the_first_paragraph_of_the_docstring() -> None:
    def find(city: str) -> str:
        """Find the weather
        of a city.

        Args:
            city: Where.
        """
        return city

    @tool
    def get_weather(city: str) -> str:
        return city

    found = [each.definition.description for each in tool_callbacks(find, get_weather)]
    assert found == ["Find the weather of a city.", "get weather"]


def test_a_plain_function_a_callback_and_nested_collections_are_tools() -> None:
    def plain() -> str:
        return "plain"

    own = FunctionToolCallback(plain, name="own")
    assert list(by_name(plain, [own, (Alarm(),)])) == ["plain", "own", *by_name(Alarm())]
    assert tool_callbacks([]) == []


def test_any_object_with_a_definition_metadata_and_call_is_a_tool() -> None:
    class Own:
        definition = ToolDefinition(name="own")
        metadata = ToolMetadata()

        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return tool_input

    own = Own()
    assert isinstance(own, ToolCallback)
    assert tool_callbacks(own) == [own]


def test_a_function_wrapped_by_another_decorator_keeps_its_signature() -> None:
    def loud(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> str:
            return str(function(*args, **kwargs)).upper()

        return wrapper

    @tool
    @loud
    def outer(text: str) -> str:
        """Say."""
        return text

    @loud
    @tool(name="renamed")
    def inner(text: str) -> str:
        """Say."""
        return text

    found = by_name(outer, inner)
    assert {name: called(each, {"text": "hi"}) for name, each in found.items()} == {"outer": "HI", "renamed": "HI"}


@pytest.mark.parametrize("marked", [5, "now", None, property(lambda self: 1)], ids=stable_id)
def test_only_functions_and_methods_can_be_marked(marked: Any) -> None:
    with pytest.raises(TypeError, match="@tool marks functions and methods"):
        tool(name="x")(marked)


@pytest.mark.parametrize("marked", [len, "a".upper], ids=["function", "method"])
def test_a_builtin_cannot_be_marked(marked: Any) -> None:
    with pytest.raises(TypeError, match="@tool cannot mark a builtin_function_or_method: wrap it in a function"):
        tool(name="x")(marked)


def test_a_custom_decorator_that_applies_tool_works_too() -> None:
    def company_tool(**more: Any) -> Callable[[Any], Any]:
        return lambda function: tool(requires_approval=True, **more)(function)

    class Desk:
        @company_tool(name="open")
        def open_desk(self) -> str:
            """Open the desk."""
            return "open"

    (callback,) = tool_callbacks(Desk())
    assert (callback.definition.name, callback.metadata.requires_approval) == ("open", True)


@pytest.mark.parametrize("name", ["", " "], ids=repr)
def test_a_tool_needs_a_name(name: str) -> None:
    def find() -> str:
        return ""

    with pytest.raises(ToolDefinitionError, match="name"):
        FunctionToolCallback(find, name=name)
    with pytest.raises(ToolDefinitionError, match="name"):
        tool_callbacks(tool(name=name)(find))


# What the model reads.


@dataclass
class Point:
    x: int


def nothing() -> None:
    return None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain text", "plain text"),
        ('{"already": "json"}', '{"already": "json"}'),
        ("", ""),
        (5, "5"),
        (True, "true"),
        (None, "null"),
        ([1, "a", None], '[1,"a",null]'),
        ({"a": {"b": "ü"}}, '{"a":{"b":"ü"}}'),
        (Place(city="Bonn", founded=date(2025, 1, 2)), '{"city":"Bonn","founded":"2025-01-02"}'),
        (Point(1), '{"x":1}'),
        ({"at": date(2025, 1, 2)}, '{"at":"2025-01-02"}'),
        (b"text", "text"),
        (b"\xff\xfe", "//4="),
        (b"\x89PNG\r\n\x1a\n", "[image/png, 8 bytes]"),
        (TextPart("part"), "part"),
        ([TextPart("a"), "b"], "a\nb"),
    ],
    ids=str,
)
def test_a_value_is_text_or_json(value: Any, text: str) -> None:
    def give() -> Any:
        return value

    callback = FunctionToolCallback(give)
    assert callback.call("{}") == text
    assert asyncio.run(callback.acall("{}")) == text


def test_a_value_that_json_cannot_represent_raises_an_error_with_only_its_type() -> None:
    class Handle:
        def __repr__(self) -> str:
            return MARKER

    callback = FunctionToolCallback(lambda: [Handle()], name="give")
    with pytest.raises(TypeError, match="returned a list holding a Handle, which cannot be written as JSON") as caught:
        callback.call("{}")
    assert MARKER not in str(caught.value)


def test_a_function_annotated_to_return_none_is_done() -> None:
    assert FunctionToolCallback(nothing).call("{}") == "Done"


def test_a_result_converter_returns_the_text_that_the_model_reads() -> None:
    @tool(result_converter=lambda value: f"<{value}>")
    def give() -> int:
        """Give."""
        return 5

    assert called(by_name(give)["give"]) == "<5>"


def test_a_result_converter_that_returns_no_text_is_named_in_the_error() -> None:
    def give() -> int:
        return 5

    callback = FunctionToolCallback(give, result_converter=lambda value: value)
    with pytest.raises(TypeError, match="the result_converter of give returns must be a str"):
        callback.call("{}")


def test_an_async_function_is_called_from_blocking_code_and_on_asyncio() -> None:
    async def later(text: str) -> str:
        await asyncio.sleep(0)
        return text

    callback = FunctionToolCallback(later)
    assert callback.call('{"text": "x"}') == "x"
    assert asyncio.run(callback.acall('{"text": "y"}')) == "y"


def test_the_repr_of_a_tool_is_its_name() -> None:
    assert repr(FunctionToolCallback(nothing)) == "<FunctionToolCallback nothing>"
