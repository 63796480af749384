"""Types of parameters, each with a value in JSON and in Python."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, Required, TypeVar
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, StringConstraints
from pydantic.dataclasses import dataclass as checked_dataclass
from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12

from traced_tools import ToolParam

T = TypeVar("T")


class Unit(enum.Enum):
    CELSIUS = "celsius"


class Level(enum.IntEnum):
    LOW = 1


class Place(BaseModel):
    """Where something is."""

    city: str
    zip: int | None = None


@dataclass
class Point:
    x: float
    tags: dict[str, int] = field(default_factory=dict)


@checked_dataclass
class Checked:
    places: list[Place]


class Box(TypedDict, total=False):
    width: Required[int]
    place: Place


class Bag(TypedDict):
    owner: str
    colour: NotRequired[str]


class Pair(NamedTuple):
    left: int
    right: Place


class Node(BaseModel):
    name: str
    children: list[Node] = []


class Branch(TypedDict):
    leaves: list[Branch]


class Odd(BaseModel):
    even: Optional[Even] = None  # noqa: UP045


class Even(BaseModel):
    odd: Odd | None = None


class Page(BaseModel, Generic[T]):
    items: list[T]


@dataclass
class Frame(Generic[T]):
    inner: T


class Names(RootModel[list[str]]):
    """A list with a name."""


class Cat(BaseModel):
    kind: Literal["title"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["properties"]


class Described(BaseModel):
    model_config = ConfigDict(title="Titled", use_attribute_docstrings=True, extra="ignore")

    title: str
    """What it is called."""
    properties: Annotated[int, ToolParam(description="How many")] = 1


CAT_OR_DOG = Annotated[Cat | Dog, Field(discriminator="kind")]
EVEN_NUMBER = Annotated[int, Field(ge=2, le=8, multiple_of=2)]
PLACE = ({"city": "Bonn", "zip": 5}, Place(city="Bonn", zip=5))

# (annotation, value as JSON, value in Python)
TYPES: dict[str, tuple[Any, Any, Any]] = {
    "str": (str, "a", "a"),
    "int": (int, 5, 5),
    "float": (float, 1, 1.0),
    "bool": (bool, True, True),
    "None": (None, None, None),
    "Any": (Any, {"a": [1]}, {"a": [1]}),
    "object": (object, [None], [None]),
    "bytes": (bytes, "ab", b"ab"),
    "datetime": (datetime, "2025-01-02T03:04:05Z", datetime(2025, 1, 2, 3, 4, 5, tzinfo=UTC)),
    "date": (date, "2025-01-02", date(2025, 1, 2)),
    "time": (time, "03:04:05", time(3, 4, 5)),
    "timedelta": (timedelta, "PT90S", timedelta(seconds=90)),
    "UUID": (UUID, "12345678-1234-5678-1234-567812345678", UUID("12345678-1234-5678-1234-567812345678")),
    "Decimal": (Decimal, "1.50", Decimal("1.50")),
    "Path": (Path, "/tmp/a", Path("/tmp/a")),
    "pattern": (re.Pattern, "a+", re.compile("a+")),
    "Enum": (Unit, "celsius", Unit.CELSIUS),
    "IntEnum": (Level, 1, Level.LOW),
    "Literal": (Literal["a", 1, None], "a", "a"),
    "constrained int": (EVEN_NUMBER, 4, 4),
    "constrained str": (Annotated[str, StringConstraints(pattern="^a", strip_whitespace=True)], "ab", "ab"),
    "constrained list": (Annotated[list[Place], Field(min_length=1, max_length=2)], [PLACE[0]], [PLACE[1]]),
    "validated": (Annotated[int, AfterValidator(lambda value: value * 2)], 4, 8),
    "list": (list[int], [1, 2], [1, 2]),
    "list of lists": (list[list[date]], [["2025-01-02"]], [[date(2025, 1, 2)]]),
    "Sequence": (Sequence[int], [1], [1]),
    "set": (set[int], [1], {1}),
    "frozenset": (frozenset[str], ["a"], frozenset("a")),
    "tuple": (tuple[int, str], [1, "a"], (1, "a")),
    "tuple of any length": (tuple[int, ...], [1, 2], (1, 2)),
    "dict": (dict[str, int], {"a": 1}, {"a": 1}),
    "dict of models": (dict[str, list[Place]], {"a": [PLACE[0]]}, {"a": [PLACE[1]]}),
    "dict by numbers": (dict[int, Unit], {"1": "celsius"}, {1: Unit.CELSIUS}),
    "Mapping": (Mapping[str, float], {"a": 1}, {"a": 1.0}),
    "Optional": (Optional[int], None, None),  # noqa: UP045
    "union": (int | Place | None, *PLACE),
    "union with a map": (Place | dict[str, int], {"a": 1}, {"a": 1}),
    "union with a list": (Place | list[Place], [PLACE[0]], [PLACE[1]]),
    "union of models": (Place | Point, {"x": 1}, Point(1.0)),
    "discriminated": (CAT_OR_DOG, {"kind": "properties"}, Dog(kind="properties")),
    "model": (Place, *PLACE),
    "list of models": (list[Place], [PLACE[0]], [PLACE[1]]),
    "recursive model": (Node, {"name": "a", "children": [{"name": "b"}]}, Node(name="a", children=[Node(name="b")])),
    "recursive dict": (Branch, {"leaves": [{"leaves": []}]}, {"leaves": [{"leaves": []}]}),
    "mutually recursive": (Odd, {"even": {"odd": {}}}, Odd(even=Even(odd=Odd()))),
    "generic model": (Page[Place], {"items": [PLACE[0]]}, Page[Place](items=[PLACE[1]])),
    "generic of generic": (Page[Page[int]], {"items": [{"items": [1]}]}, Page[Page[int]](items=[Page[int](items=[1])])),
    "generic dataclass": (Frame[date], {"inner": "2025-01-02"}, Frame(date(2025, 1, 2))),
    "root model": (Names, ["a"], Names(["a"])),
    "dataclass": (Point, {"x": 1, "tags": {"a": 1}}, Point(1.0, {"a": 1})),
    "pydantic dataclass": (Checked, {"places": [PLACE[0]]}, Checked([PLACE[1]])),
    "typed dict": (Box, {"width": 1, "place": PLACE[0]}, {"width": 1, "place": PLACE[1]}),
    "typed dict in part": (Bag, {"owner": "ann"}, {"owner": "ann"}),
    "named tuple": (Pair, [1, PLACE[0]], Pair(1, PLACE[1])),
    "described": (Described, {"title": "a", "properties": 2}, Described(title="a", properties=2)),
}
