"""Frozen dataclasses whose `__init__` is replaced by a faster one."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, replace
from typing import Any

import pytest

from traced_tools.core.quick_init import quick_init


@dataclass(frozen=True, slots=True)
class Plain:
    first: str
    second: int = 2
    third: list[int] = field(default_factory=list)
    last: str | None = field(default="kept", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "first", self.first.strip())


@quick_init
@dataclass(frozen=True, slots=True)
class Quick(Plain):
    """The same with an additional field."""

    own: float = 0.5


def test_the_signature_is_the_one_of_the_dataclass() -> None:
    plain, quick = inspect.signature(Plain).parameters, inspect.signature(Quick).parameters
    assert [*quick] == [*plain, "own"]
    assert {name: (each.default, each.annotation) for name, each in quick.items() if name != "own"} == {
        name: (each.default, each.annotation) for name, each in plain.items()
    }


def test_every_field_has_the_passed_value_or_its_default() -> None:
    made = Quick(" a ", own=1.5)
    assert (made.first, made.second, made.third, made.last, made.own) == ("a", 2, [], "kept", 1.5)
    assert Quick("a", 3, [4]) == replace(Quick("a"), second=3, third=[4])
    assert Quick("a").third is not Quick("a").third


@pytest.mark.parametrize("arguments", [{}, {"first": "a", "last": "b"}, {"first": "a", "more": 1}])
def test_wrong_arguments_raise_a_type_error(arguments: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Quick\.__init__"):
        Quick(**arguments)


def test_an_object_stays_frozen_and_can_be_copied_and_pickled() -> None:
    made = Quick("a", third=[1])
    with pytest.raises(FrozenInstanceError):
        made.second = 3  # type: ignore[misc]
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
