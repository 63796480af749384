"""`frozen` makes of a class what `dataclass(frozen=True, slots=True)` makes of it."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from typing import Any, Generic, TypeVar, get_type_hints

import pytest

from traced_tools.core.frozen import frozen

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Plain:
    first: str
    second: int = 2
    third: list[int] = field(default_factory=list, compare=False)
    hidden: str = field(default="", repr=False)
    named: bool = field(default=True, kw_only=True)
    loose: list[int] = field(default_factory=list, kw_only=True, hash=False)
    last: str | None = field(default="kept", init=False)
    derived: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first.strip())
        object.__setattr__(self, "derived", self.first * 2)


@frozen
class Quick:
    """The same."""

    first: str
    second: int = 2
    third: list[int] = field(default_factory=list, compare=False)
    hidden: str = field(default="", repr=False)
    named: bool = field(default=True, kw_only=True)
    loose: list[int] = field(default_factory=list, kw_only=True, hash=False)
    last: str | None = field(default="kept", init=False)
    derived: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first.strip())
        object.__setattr__(self, "derived", self.first * 2)


@frozen
class Below(Quick):
    """A dataclass below one."""

    own: float = 0.5


@frozen(repr=False, kw_only=True)
class Named(Generic[T]):
    value: T
    other: int = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.other == other.other


@frozen
class Empty:
    pass


def test_the_signature_and_the_fields_are_those_of_the_dataclass() -> None:
    plain, quick = inspect.signature(Plain), inspect.signature(Quick)
    assert str(quick) == str(plain)
    assert [parameter.kind for parameter in quick.parameters.values()] == [
        parameter.kind for parameter in plain.parameters.values()
    ]
    assert [item.name for item in fields(Quick)] == [item.name for item in fields(Plain)]
    assert get_type_hints(Quick.__init__) == get_type_hints(Plain.__init__)
    assert Quick.__match_args__ == Plain.__match_args__
    assert Quick.__slots__ == Plain.__slots__
    assert Quick.__init__.__qualname__ == "Quick.__init__"


def test_every_field_has_the_passed_value_or_its_default() -> None:
    value = Below(" a ", own=1.5)
    assert (value.first, value.second, value.third, value.last, value.own) == ("a", 2, [], "kept", 1.5)
    assert value.derived == "aa"
    assert Below("a", 3, [4]) == replace(Below("a"), second=3, third=[4])
    assert Quick("a").third is not Quick("a").third
    assert asdict(Quick("a", 3)) == asdict(Plain("a", 3))


@pytest.mark.parametrize("arguments", [{}, {"first": "a", "last": "b"}, {"first": "a", "more": 1}])
@pytest.mark.parametrize("kind", [Quick, Below])
def test_wrong_arguments_raise_a_type_error(kind: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=rf"{kind.__name__}\.__init__"):
        kind(**arguments)


def test_objects_of_one_class_with_equal_fields_are_equal() -> None:
    assert Quick("a", third=[1]) == Quick("a", third=[2])
    assert hash(Quick("a", third=[1])) == hash(Quick("a", third=[2]))
    assert Quick("a") != Quick("b")
    assert Quick("a", loose=[1]) != Quick("a")
    assert hash(Quick("a", loose=[1])) == hash(Quick("a"))
    assert Quick("a") != Plain("a")
    assert Quick("a") != Below("a")
    assert Empty() == Empty()
    assert Empty() != Quick("a")
    assert len({Empty(), Empty()}) == 1


def test_a_repr_shows_the_fields_and_methods_of_the_class_stay() -> None:
    assert repr(Quick("a", hidden="secret")) == repr(Plain("a", hidden="secret")).replace("Plain", "Quick")
    assert repr(Named(value=1)).startswith("<")
    assert Named(value=1) == Named(value=2) != Named(value=1, other=2)
    assert len({Named(value=1), Named(value=1)}) == 1


@pytest.mark.parametrize("value", [Quick("a", third=[1]), Below("a", third=[1])])
def test_an_object_stays_frozen_and_can_be_copied_and_pickled(value: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        value.second = 3
    with pytest.raises(FrozenInstanceError):
        del value.second
    with pytest.raises(FrozenInstanceError):
        value.unknown = 3
    assert copy.deepcopy(value) == pickle.loads(pickle.dumps(value)) == value
    assert copy.deepcopy(value).third == [1]


def test_a_dataclass_and_a_class_can_be_below_it() -> None:
    @dataclass(frozen=True)
    class Dataclass(Quick):
        own: int = 0

    class Ordinary(Quick):
        pass

    assert Dataclass("a", own=1).own == 1
    ordinary = Ordinary("a")
    ordinary.own = 1  # type: ignore[attr-defined]
    with pytest.raises(FrozenInstanceError):
        ordinary.second = 3  # type: ignore[misc]
