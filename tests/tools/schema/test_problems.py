"""The problems with arguments of a typed tool that the model reads: the field, and what is expected."""

from __future__ import annotations

import dataclasses
import enum
import json
import re
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    AliasChoices,
    AliasPath,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    FutureDate,
    HttpUrl,
    IPvAnyAddress,
    Json,
    NaiveDatetime,
    Tag,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypedDict

from tests.markers import MARKER
from tests.stable_ids import stable_id
from traced_tools.errors import InvalidArguments
from traced_tools.tools import FunctionToolCallback


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    city: str
    size: int = 1


class Circle(BaseModel):
    kind: Literal["circle"]
    circle: dict[str, int]
    size: int


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Node(BaseModel):
    name: str
    below: list[Node] = []


@dataclasses.dataclass
class Point:
    x: float
    places: list[Place] = dataclasses.field(default_factory=list)


class Box(TypedDict):
    width: int
    tag: NotRequired[str]


class Span(BaseModel):
    start: int
    end: int = 10

    @field_validator("start")
    @classmethod
    def _is_even(cls, start: int) -> int:
        if start % 2:
            raise ValueError("take an even number")
        if start >= 100:
            raise AssertionError("take a number below 100")
        return start

    @model_validator(mode="after")
    def _is_in_order(self) -> Span:
        if self.start > self.end:
            raise ValueError("start comes first")
        return self


class Alias(BaseModel):
    long_name: int = Field(alias="longName")
    other: int = Field(default=1, validation_alias=AliasChoices("first", "second"))
    deep: int = Field(default=1, validation_alias=AliasPath("outer", "inner"))


def _split(value: Any) -> Any:
    return {"city": value, "size": "?"} if isinstance(value, str) else value


def _speak(value: int) -> int:
    raise PydanticCustomError("mine", "choose another number")


def _speak_as_pydantic(value: int) -> int:
    raise PydanticCustomError("literal_error", "choose one of ours")


def _say_nothing(value: int) -> int:
    raise ValueError


def _kind(value: Any) -> str | None:
    return value.get("kind") if isinstance(value, dict) else None


Shape = Annotated[Circle | Square, Field(discriminator="kind")]
Called = Annotated[Annotated[Circle, Tag("circle")] | Annotated[Square, Tag("square")], Discriminator(_kind)]
DATE_TIME = "must be a date and time in ISO 8601, such as 2025-01-31T09:30:00Z"
DATE = "must be a date in ISO 8601, such as 2025-01-31"
NONE = "matches none of the allowed forms"


def problems_of(hint: Any, value: Any) -> str:
    def take(x: Any, z: str = "") -> None:
        """Take one value."""

    take.__annotations__["x"] = hint
    with pytest.raises(InvalidArguments) as caught:
        FunctionToolCallback(take).call(json.dumps({"x": value}))
    return caught.value.problems


@pytest.mark.parametrize(
    ("hint", "value", "text"),
    [
        (int, "many", "must be an integer"),
        (int, 1.5, "must be an integer"),
        (int, [], "must be an integer"),
        (float, "much", "must be a number"),
        (Decimal, {}, "must be a number"),
        (Decimal, "much", "must be a number"),
        (Decimal, "NaN", "must be a finite number"),
        (Annotated[Decimal, Field(max_digits=2)], 123, "must have no more than 2 digits in total"),
        (str, True, "must be a string"),
        (bytes, True, "must be a string"),
        (bool, "perhaps", "must be true or false"),
        (bool, {}, "must be true or false"),
        (type(None), 5, "must be null"),
        (list[int], {}, "must be an array"),
        (list[int], "1, 2", "must be an array"),
        (tuple[int, str], "ab", "must be an array"),
        (set[int], 5, "must be an array"),
        (frozenset[int], 5, "must be an array"),
        (dict[str, int], [], "must be an object"),
        (Place | None, 5, "must be an object"),
        (Point | None, 5, "must be an object"),
        (Box | None, 5, "must be an object"),
        (Literal["a"], "b", 'must be "a"'),
        (
            Literal["a", "it's", 'say "x"', 1, True, None],
            5,
            r'must be one of: "a", "it' + r"'s" + r'", "say \"x\"", 1, true, null',
        ),
        (Literal["a, b or c", "ü"], 5, 'must be one of: "a, b or c", "ü"'),
        (Colour, "green", 'must be one of: "red", "blue"'),
        (Literal[tuple(range(30))], 31, f"must be one of: {', '.join(map(str, range(20)))}, ..."),
        (datetime, [], DATE_TIME),
        (datetime, "soon", f"{DATE_TIME} (input is too short)"),
        (datetime, "2025-13-01", f"{DATE_TIME} (month value is outside expected range of 1-12)"),
        (AwareDatetime, "2025-01-01T10:00:00", "must have a time zone"),
        (NaiveDatetime, "2025-01-01T10:00:00Z", "must have no time zone"),
        (date, [], DATE),
        (date, "soon", f"{DATE} (input is too short)"),
        (date, "2025-01-01T10:00", "must be a date without a time"),
        (FutureDate, "2000-01-01", "Date should be in the future"),
        (time, "noon", "must be a time in ISO 8601, such as 09:30:00 (input is too short)"),
        (timedelta, "a while", "must be a duration in ISO 8601, such as PT1H30M (invalid character in hour)"),
        (UUID, "x", "must be a UUID"),
        (HttpUrl, "x", "must be a URL with a scheme, such as https://example.com"),
        (HttpUrl, "ftp://x", "URL scheme should be 'http' or 'https'"),
        (IPvAnyAddress, "x", "value is not a valid IPv4 or IPv6 address"),
        (Annotated[int, Field(gt=3)], 3, "must be more than 3"),
        (Annotated[int, Field(ge=3)], 2, "must be at least 3"),
        (Annotated[int, Field(lt=3)], 3, "must be less than 3"),
        (Annotated[int, Field(le=3)], 4, "must be at most 3"),
        (Annotated[int, Field(multiple_of=5)], 4, "must be a multiple of 5"),
        (
            Annotated[datetime, Field(ge=datetime(2025, 1, 1))],
            "2024-01-01T00:00",
            "must be at least 2025-01-01T00:00:00",
        ),
        (Annotated[str, Field(min_length=2)], "", "must not be shorter than 2"),
        (Annotated[str, Field(max_length=2)], "abc", "must not be longer than 2"),
        (Annotated[str, Field(pattern="^a+$")], "b", "must match the pattern ^a+$"),
        (Annotated[list[int], Field(min_length=1)], [], "must not have fewer items than 1"),
        (Annotated[dict[str, int], Field(max_length=1)], {"a": 1, "b": 2}, "must not have more items than 1"),
        (tuple[int, str], [1, "a", 2], "must not have more items than 2"),
        (Json[int], "{", "not valid JSON: EOF while parsing an object at line 1 column 1"),
        (Json[int], True, "must be a string of JSON"),
    ],
    ids=stable_id,
)
def test_the_problem_for_each_type_says_what_is_expected_in_json_terms(hint: Any, value: Any, text: str) -> None:
    assert problems_of(hint, value) == f"x: {text}"


@pytest.mark.parametrize(
    ("hint", "value", "problems"),
    [
        (Place | None, {}, "x.city: is required"),
        (Place | None, {"town": "Bonn"}, "x.city: is required; x.town: is not a known field"),
        (
            list[Place],
            [{"city": "Bonn"}, {"city": 5, "size": "big"}],
            "x.1.city: must be a string; x.1.size: must be an integer",
        ),
        (dict[str, Place], {"a": {"city": []}}, "x.a.city: must be a string"),
        (list[Point], [{"x": 1, "places": [{"city": True}]}], "x.0.places.0.city: must be a string"),
        (list[Box], [{"tag": 5}], "x.0.width: is required; x.0.tag: must be a string"),
        (list[Box], [{"width": 5, "colour": 5}], "x.0.colour: is not a known field"),
        (tuple[int, str], ["x"], "x.0: must be an integer; x.1: is required"),
        (tuple[int, str], [], "x.0: is required; x.1: is required"),
        (
            dict[int, int],
            {"a": "b"},
            "x.a: is not an allowed field name: it must be an integer; x.a: must be an integer",
        ),
        (
            dict[Literal["a", "b"], int],
            {"c": 1},
            'x.c: is not an allowed field name: it must be one of: "a", "b"',
        ),
        (
            list[Node],
            [{"name": "a", "below": [{"below": 5}]}],
            "x.0.below.0.name: is required; x.0.below.0.below: must be an array",
        ),
        (list[Alias], [{}], "x.0.longName: is required"),
        (
            list[Alias],
            [{"longName": "a", "second": "b", "outer": {"inner": "c"}}],
            "x.0.longName: must be an integer; x.0.second: must be an integer; x.0.outer.inner: must be an integer",
        ),
        (Json[list[int]], "[1, []]", "x.1: must be an integer"),
        (Annotated[Place, BeforeValidator(_split)], "Bonn", "x.size: must be an integer"),
    ],
    ids=stable_id,
)
def test_a_problem_has_the_path_of_the_invalid_value(hint: Any, value: Any, problems: str) -> None:
    assert problems_of(hint, value) == problems


@pytest.mark.parametrize(
    ("hint", "value", "problems"),
    [
        (int | str, [], "x: must be an integer or a string"),
        (int | str, {"int": 1}, "x: must be an integer or a string"),
        (int | list[int], "many", "x: must be an integer or an array"),
        (int | list[int], ["many"], "x.0: must be an integer"),
        (int | Place, {"city": True}, "x.city: must be a string"),
        (datetime | date | None, [], f"x: {DATE_TIME} or a date in ISO 8601, such as 2025-01-31"),
        (Literal["a"] | Literal["b"] | None, "c", 'x: must be "a" or "b"'),
        (Place | Point, 5, "x: must be an object"),
        (Place | Box, {}, f"x: {NONE}: city is required, or else width is required"),
        (list[int] | list[bool], ["x"], "x.0: must be an integer or true or false"),
        (Circle | Square, {"kind": "line"}, 'x.kind: must be "circle" or "square"'),
        (Circle | Square, {}, "x.kind: is required"),
        (Circle | Square, {"kind": "square"}, "x.side: is required"),
        (
            Circle | Square,
            {"kind": "circle", "circle": {"radius": "big"}, "size": 1},
            "x.circle.radius: must be an integer",
        ),
        (Shape, {"kind": "line"}, 'x.kind: must be one of: "circle", "square"'),
        (Shape, {}, "x.kind: is required"),
        (Shape, 5, "x: must be an object"),
        (Shape, {"kind": "square"}, "x.side: is required"),
        (
            Shape,
            {"kind": "circle", "circle": {"radius": "big"}},
            "x.circle.radius: must be an integer; x.size: is required",
        ),
        (Called, {"kind": "line"}, f"x: {NONE}"),
        (Called, 5, f"x: {NONE}"),
        (Called, {"kind": "square", "side": "long"}, "x.side: must be a number"),
        (
            list[Shape | int],
            [1, {"kind": "square", "side": "long"}, "x"],
            "x.1.side: must be a number; x.2: must be an object or an integer",
        ),
    ],
    ids=stable_id,
)
def test_the_problems_of_a_union_are_those_of_the_nearest_form(hint: Any, value: Any, problems: str) -> None:
    assert problems_of(hint, value) == problems


@pytest.mark.parametrize(
    ("hint", "value", "problems"),
    [
        (Span | None, {"start": 3}, "x.start: take an even number"),
        (Span | None, {"start": 200}, "x.start: take a number below 100"),
        (Span | None, {"start": 20}, "x: start comes first"),
        (Span | Box, {"start": 20}, "x: start comes first"),
        (Annotated[int, AfterValidator(_speak)], 1, "x: choose another number"),
        (Annotated[int, AfterValidator(_speak_as_pydantic)], 1, "x: choose one of ours"),
        (Annotated[int, AfterValidator(_say_nothing)], 1, "x: is not valid"),
    ],
    ids=stable_id,
)
def test_messages_of_the_developers_validators_stay(hint: Any, value: Any, problems: str) -> None:
    assert problems_of(hint, value) == problems


def place(place: Place) -> None:
    """Take the fields of a model."""


def test_the_fields_of_an_only_model_are_at_the_top_level() -> None:
    with pytest.raises(InvalidArguments) as caught:
        FunctionToolCallback(place).call('{"town": "Bonn", "size": []}')
    assert caught.value.problems == "city: is required; size: must be an integer; town: is not a known field"


def test_at_most_ten_problems_are_listed_and_none_twice() -> None:
    assert problems_of(list[int], ["x"] * 5_000).count("; ") == 9
    assert problems_of(list[int | str], [[]]).count("x.0") == 1


HINTS = [
    *(int, str, bool, Decimal, datetime, date, timedelta, UUID, HttpUrl, Colour, Literal["a", 1, None]),
    *(Place, Point, Box, Span, Alias, Shape, Called, Circle | Square, Place | Box | None, int | list[int | Place]),
    *(dict[int, Shape], tuple[int, Shape], list[Node], set[int], Annotated[Place, BeforeValidator(_split)] | int),
    *(
        dict[Literal["a", "b"], Point] | list[Colour],
        Annotated[int, AfterValidator(_speak)] | Annotated[str, Field(min_length=9)],
    ),
]
FIELDS = st.sampled_from(["city", "size", "kind", "circle", "side", "name", "below", "x", "start", "int", "Place", "a"])
WORDS = st.sampled_from([MARKER, "circle", "square", "line", "a", "5", "", "2025-01-01", "red"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 200) | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=10,
)
PYTHON = re.compile(
    r"function-|Input |\bValue error|\btuple\b|\bdict\b|\bstr\b|\bNone\b|\blist\b|\[|\]|<|pydantic|union|\btag\b|"
    r"tests\.|Circle|Square|Point|Box|Span|Colour|Alias\b|Node|_kind|_speak"
)


@given(st.sampled_from(HINTS), VALUES)
def test_problems_never_contain_python_terms_or_values(hint: Any, value: Any) -> None:
    def take(x: Any, z: str = "") -> None:
        """Take one value."""

    take.__annotations__["x"] = hint
    try:
        FunctionToolCallback(take).bind(json.dumps({"x": value}))
    except InvalidArguments as invalid:
        assert MARKER not in invalid.problems
        assert not PYTHON.search(invalid.problems), invalid.problems
        assert all(re.match(r"(x|arguments)[^ ]*: \S", each) for each in invalid.problems.split("; "))
