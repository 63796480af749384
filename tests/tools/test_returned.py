"""The schema of what a tool returns, and its value in the text that a model reads."""

from __future__ import annotations

import enum
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from traced_tools import ImagePart, TextPart, tool
from traced_tools.core.result_conversion import ToolContent, content_of
from traced_tools.tools import FunctionToolCallback
from traced_tools.tools.schema.returned import returned_schema

if TYPE_CHECKING:
    from decimal import Decimal as OnlyForTypes


class Node(BaseModel):
    name: str
    below: list[Node] = Field(default_factory=list)


@dataclass
class Point:
    x: int


class Row(TypedDict):
    a: int


class Kind(enum.StrEnum):
    A = "a"


def returning(annotation: Any) -> Any:
    def function() -> Any: ...

    function.__annotations__["return"] = annotation
    return function


DATA = (
    *(int, float, bool, dict, list, dict[str, int], list[Node], Node, Point, Row, Kind, int | None, tuple[int, str]),
    *(Literal["a", 1], Annotated[int, Field(ge=0)], list[str], set[int]),
)
NO_DATA = (
    *(None, type(None), str, bytes, Any, object, Annotated[str, "text"], str | int, dict | str, ImagePart),
    *(
        list[ImagePart | str],
        ToolContent,
        TextPart,
        Iterator[int],
        Iterable[int],
        AsyncIterator[int],
        "Missing",
    ),
)


@pytest.mark.parametrize("kind", DATA, ids=str)
def test_data_has_a_schema_that_is_one_of_an_object(kind: Any) -> None:
    found = returned_schema(returning(kind))
    assert found is not None and found.schema["type"] == "object"
    assert found.is_wrapped is ("result" in found.schema.get("properties", {}))


@pytest.mark.parametrize("kind", NO_DATA, ids=str)
def test_text_images_iterators_and_what_is_unknown_have_none(kind: Any) -> None:
    assert returned_schema(returning(kind)) is None


def test_a_type_that_is_imported_for_type_checkers_only_has_none() -> None:
    def function() -> OnlyForTypes: ...  # type: ignore[empty-body]

    assert returned_schema(function) is None


def test_a_function_without_an_annotation_and_one_with_a_converter_have_none() -> None:
    def function(): ...  # type: ignore[no-untyped-def]

    @tool(result_converter=str)
    def converted() -> int:
        return 1

    assert returned_schema(function) is None
    assert FunctionToolCallback(converted).returned is None


def test_async_functions_and_methods_have_the_schema_of_what_they_return() -> None:
    class Tools:
        async def number(self) -> int:
            return 1

    found = FunctionToolCallback(Tools().number).returned
    assert found is not None and found.schema["properties"]["result"] == {"type": "integer"}


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 1, {"result": 1}),
        (Node, Node(name="a"), {"name": "a", "below": []}),
        (Literal["a", "b"], "a", {"result": "a"}),
        (Literal["5"], "5", {"result": "5"}),
        (Kind, Kind.A, {"result": "a"}),
        (int | None, None, {"result": None}),
        (dict, {"a": [1]}, {"a": [1]}),
        (int, "one", None),
        (dict, [1], None),
        (Node, "no JSON", None),
    ],
    ids=str,
)
def test_the_value_is_read_from_the_text_if_it_matches(kind: Any, value: Any, wanted: Any) -> None:
    found = returned_schema(returning(kind))
    assert found is not None
    assert found.value_of(content_of(value).text) == wanted


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda each: st.lists(each) | st.dictionaries(st.text(), each),
)


@given(JSON)
def test_any_json_in_a_list_comes_back(value: Any) -> None:
    found = returned_schema(returning(list[Any]))
    assert found is not None
    assert found.value_of(content_of([value]).text) == {"result": [value]}
