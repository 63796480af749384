"""The JSON form of validated arguments: what advisors and the audit trail see of what a tool is called with.

The form depends on the validated values alone and never on how the model wrote them: `"9000"` and `9000` for an `int`
look the same to a policy. Serializers of the developer's own are not asked, because one that rounds or hides a value
would show a policy something else than the tool gets.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn

from pydantic import BaseModel, RootModel
from pydantic_core import to_jsonable_python

from traced_tools._canonical import canonical_text

_PLAIN = frozenset({str, int, bool, type(None)})
_ARRAYS = (list, tuple, deque)
_SETS = (set, frozenset)
_LARGEST = 2**53


def json_value(value: Any) -> Any:
    """Return the JSON form of a validated value: dictionaries, lists, strings, numbers, booleans and None.

    Models and dataclasses become objects with the names that the schema gives their fields, sets become sorted lists,
    a `Decimal` becomes a number where that is exact, a secret becomes what it holds.

    Raises:
        ValueError: for a value that JSON has no form for, such as an object of a class that pydantic does not know.
        TypeError: for an iterator, which the tool could not read any more.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {_key(key): json_value(each) for key, each in value.items()}
    if isinstance(value, _ARRAYS):
        return [json_value(each) for each in value]
    if isinstance(value, _SETS):
        return sorted((json_value(each) for each in value), key=canonical_text)
    if isinstance(value, Enum):
        return json_value(value.value)
    if isinstance(value, RootModel):
        return json_value(value.root)
    if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return {name: json_value(each) for name, each in _fields(value)}
    if isinstance(value, Decimal):
        return _number(value)
    if hasattr(value, "get_secret_value"):
        return json_value(value.get_secret_value())
    if hasattr(value, "__next__"):
        raise TypeError("an iterator can be read only once")
    return to_jsonable_python(value)


def _key(key: Any) -> str:
    return key if type(key) is str else next(iter(to_jsonable_python({key: None})))


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a model or dataclass under the names that the model writes."""
    described: Mapping[str, Any] = getattr(type(value), "__pydantic_fields__", {})
    plain = vars(value) if isinstance(value, BaseModel) else _slots_and_all(value)
    for name, each in plain.items():
        alias = getattr(described.get(name), "validation_alias", None)
        yield alias if isinstance(alias, str) else name, each
    yield from (getattr(value, "__pydantic_extra__", None) or {}).items()


def _slots_and_all(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if hasattr(value, field.name)}


def _number(value: Decimal) -> int | float | str:
    if value.is_finite():
        number = int(value) if value == value.to_integral_value() and abs(value) < _LARGEST else float(value)
        if Decimal(repr(number)) == value:
            return number
    return str(value)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("the arguments of a call are read-only: pass on call.replace(arguments={**call.args, ...})")


class ReadOnlyObject(dict[str, Any]):
    """A JSON object that nobody can change; apart from that, a `dict`."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain `dict`."""
        return dict, (dict(self),)


class ReadOnlyArray(list[Any]):
    """A JSON array that nobody can change; apart from that, a `list`."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain `list`."""
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """Return a JSON value with objects and arrays that nobody can change."""
    if isinstance(value, dict):
        return ReadOnlyObject({name: read_only(each) for name, each in value.items()})
    if isinstance(value, list):
        return ReadOnlyArray([read_only(each) for each in value])
    return value
