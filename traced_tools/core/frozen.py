"""Frozen dataclasses with slots that are quick to define and to create."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields, is_dataclass
from operator import attrgetter
from reprlib import recursive_repr
from typing import Any, Final, TypeVar, dataclass_transform, overload

T = TypeVar("T")


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()
"""The default of a parameter whose field has a factory."""


@overload
def frozen(kind: type[T], /) -> type[T]: ...


@overload
def frozen(*, repr: bool = ..., kw_only: bool = ...) -> Callable[[type[T]], type[T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(kind: Any = None, /, *, repr: bool = True, kw_only: bool = False) -> Any:
    """Make a class what `dataclass(frozen=True, slots=True)` makes it, at half the cost.

    `dataclass` compiles six methods for each class, which took a fifth of the package's import. This decorator compiles
    `__init__` alone. That `__init__` takes half the time of the one that `dataclass` generates: it calls the slot
    descriptors, while `object.__setattr__` looks up each slot by name. A run creates several such objects per
    iteration, and two per streamed chunk.

    Args:
        kind: the class.
        repr: whether the class gets a `__repr__` that shows its fields.
        kw_only: whether `__init__` takes all arguments by name.
    """
    if kind is None:
        return lambda decorated: _frozen_class(decorated, repr, kw_only)
    return _frozen_class(kind, repr, kw_only)


def _frozen_class(plain: type[Any], repr: bool, kw_only: bool) -> type[Any]:
    """Return the class that `frozen` makes of a class."""
    own = vars(plain)
    is_below = any(is_dataclass(base) for base in plain.__bases__)  # `dataclass` wants all of them frozen, or none
    kind: Any = dataclass(init=False, repr=False, eq=False, frozen=is_below, slots=True, kw_only=kw_only)(plain)
    kind.__dataclass_params__.frozen = True
    compared = _values(item.name for item in fields(kind) if item.compare)
    in_hash = _values(item.name for item in fields(kind) if (item.compare if item.hash is None else item.hash))

    def equal(self: Any, other: Any) -> Any:
        return compared(self) == compared(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(in_hash(self))

    methods = {"__init__": _init(kind), "__eq__": equal, "__getstate__": _state, "__setstate__": _set_state}
    if repr:
        methods["__repr__"] = _repr
    if own.get("__hash__") is None:  # Python sets it to None in a class that has an `__eq__`
        kind.__hash__ = hashed
    for name in methods.keys() - own.keys():
        setattr(kind, name, methods[name])
    kind.__setattr__, kind.__delattr__ = _set, _delete
    return kind  # type: ignore[no-any-return]


def _values(names: Iterable[str]) -> Callable[[Any], Any]:
    """Return a function of an object that returns what the object has under the names."""
    fields_of_objects = [*names]
    return attrgetter(*fields_of_objects) if fields_of_objects else type


def _init(kind: Any) -> Any:
    """Return the `__init__` of the signature that `dataclass` generates."""
    names: dict[str, Any] = {"_factory": _FACTORY}
    annotations: dict[str, Any] = {}
    defaults: dict[str, str] = {}
    lines = []
    for item in fields(kind):
        name, value = item.name, item.name
        names[f"_set_{name}"] = getattr(kind, name).__set__
        if item.default_factory is not MISSING:
            names[f"_make_{name}"] = item.default_factory
            value = f"_make_{name}() if {name} is _factory else {name}" if item.init else f"_make_{name}()"
            defaults[name] = f"{name}=_factory"
        elif item.default is not MISSING:
            names[f"_default_{name}"] = item.default
            value = name if item.init else f"_default_{name}"
            defaults[name] = f"{name}=_default_{name}"
        elif not item.init:
            continue  # `__post_init__` sets it
        lines.append(f"  _set_{name}(self, {value})")
        if item.init:
            annotations[name] = item.type
    if hasattr(kind, "__post_init__"):
        lines.append("  self.__post_init__()")
    positional = [defaults.get(item.name, item.name) for item in fields(kind) if item.init and not item.kw_only]
    by_name = [defaults.get(item.name, item.name) for item in fields(kind) if item.init and item.kw_only]
    parameters = ", ".join(["self", *positional, *(["*", *by_name] if by_name else [])])
    body = "\n".join(lines or ["  pass"])
    source = f"def define({', '.join(names)}):\n def __init__({parameters}):\n{body}\n return __init__"
    defined: dict[str, Any] = {}
    exec(source, vars(sys.modules[kind.__module__]), defined)  # where the names of annotations are looked up
    init = defined["define"](**names)
    init.__annotations__ = {**annotations, "return": None}
    init.__qualname__ = f"{kind.__qualname__}.__init__"
    return init


@recursive_repr()
def _repr(self: Any) -> str:
    texts = ", ".join(f"{item.name}={getattr(self, item.name)!r}" for item in fields(self) if item.repr)
    return f"{type(self).__qualname__}({texts})"


def _set(self: Any, name: str, value: object) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    if _is_frozen(self, name):
        raise FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def _is_frozen(self: Any, name: str) -> bool:
    """Return whether no attribute of the name may be set: a subclass that is no dataclass may have its own."""
    return "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__


def _state(self: Any) -> list[Any]:
    return [getattr(self, item.name) for item in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for item, value in zip(fields(self), state, strict=False):
        object.__setattr__(self, item.name, value)
