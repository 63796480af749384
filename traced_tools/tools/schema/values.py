"""The JSON form of validated arguments, which advisors and the audit trail see.

The form depends only on the validated values, not on how the model wrote them: `"9000"` and `9000` for an `int` look
the same to a policy. The developer's own serializers are not used, because one that rounds or hides a value would show
the policy something else than the tool gets.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, NoReturn

from pydantic import AliasChoices, AliasPath, BaseModel, RootModel, TypeAdapter
from pydantic_core import SchemaValidator, core_schema, to_jsonable_python

from traced_tools.core.canonical import canonical_text

_PLAIN = frozenset({str, int, bool, type(None)})
_ARRAYS = (list, tuple, deque)
_SETS = (set, frozenset)
_LARGEST_EXPONENT = 300
ValidatorIterator: Any = type(SchemaValidator(core_schema.generator_schema()).validate_python([]))
"""The type of pydantic's lazy iterables: they validate each item only when the tool reads it."""
_UNKNOWN = object()
_ABSENT = object()


def to_json_value(value: Any, source: Any = _UNKNOWN) -> Any:
    """Return the JSON form of a validated value: dictionaries, lists, strings, numbers, booleans and None.

    Models and dataclasses become objects with the field names of the schema, sets become sorted lists, a `Decimal`
    becomes a number if a double has all of its digits, and a secret becomes its plain value.

    Args:
        value: the validated value.
        source: the JSON value that `value` was validated from. It replaces each part of `value` without a JSON form,
            such as an object of a class that pydantic does not know. If it is passed, the function consumes lazy
            iterables in `value`, so the tool must not be called with the same value.

    Raises:
        ValueError: for a part without a JSON form, if `source` is not passed.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name: to_json_value(item, _part(source, name)) for name, item in _items(value)}
    if isinstance(value, _ARRAYS):
        return [to_json_value(item, _part(source, index)) for index, item in enumerate(value)]
    if isinstance(value, _SETS):
        return sorted((to_json_value(item, _part(source, None)) for item in value), key=canonical_text)
    if isinstance(value, Enum):
        return to_json_value(value.value, source)
    if isinstance(value, RootModel):
        return to_json_value(value.root, source)
    if isinstance(value, BaseModel) or dataclasses.is_dataclass(kind):
        return {name: to_json_value(field, _part(source, name)) for name, field in _fields(value)}
    return _other_to_json(value, source)


def _other_to_json(value: Any, source: Any) -> Any:
    if isinstance(value, Decimal):
        return _decimal_to_number(value)
    if hasattr(value, "get_secret_value"):
        return to_json_value(value.get_secret_value(), source)
    if source is not _UNKNOWN and isinstance(value, ValidatorIterator):
        with suppress(ValueError):  # an item is invalid; the tool will get the same error
            return [to_json_value(item, source) for item in value]
    elif not hasattr(value, "__next__"):  # reading an iterator would consume it
        with suppress(Exception):  # the developer's own serializer may raise anything
            serializer = _serializer(type(value))  # type: ignore[arg-type]  # mypy: a class has no hash
            return to_jsonable_python(value) if serializer is None else serializer.dump_python(value, mode="json")
    if source is _UNKNOWN:
        raise ValueError(f"{type(value).__name__} has no JSON form")
    return f"<{type(value).__name__}>" if source is _ABSENT else source


@lru_cache(maxsize=1024)
def _serializer(kind: type) -> TypeAdapter[Any] | None:
    """Return a serializer for a class that defines its own pydantic schema; None for other classes."""
    return TypeAdapter(kind) if hasattr(kind, "__get_pydantic_core_schema__") else None


def _part(source: Any, key: str | int | None) -> Any:
    """Return the part of the JSON value `source` at `key`, from which a part of the validated value was made."""
    if source is _UNKNOWN:
        return _UNKNOWN
    try:
        return _ABSENT if key is None else source[key]
    except (TypeError, LookupError):
        return _ABSENT


def _items(value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    for key, item in value.items():
        yield key if type(key) is str else next(iter(to_jsonable_python({key: None}))), item


def _fields(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a pydantic model or dataclass under their names in the schema."""
    described: Mapping[str, Any] = getattr(type(value), "__pydantic_fields__", {})
    # the extra fields first, so that a declared field of the same name replaces them
    yield from (getattr(value, "__pydantic_extra__", None) or {}).items()
    names = described if isinstance(value, BaseModel) else [field.name for field in dataclasses.fields(value)]
    for name in names:
        if hasattr(value, name):
            yield name_in_schema(name, getattr(described.get(name), "validation_alias", None)), getattr(value, name)


def name_in_schema(name: str, alias: str | AliasPath | AliasChoices | None) -> str:
    """Return the name of a field in the JSON Schema; for an `AliasPath`, the name of the field itself."""
    first = alias.choices[0] if isinstance(alias, AliasChoices) else alias
    return first if isinstance(first, str) else name


def _decimal_to_number(value: Decimal) -> int | float | str:
    """Return the number that a `Decimal` is; text if it is not finite, too large, or has more digits than a double.

    A rule or an approval for the nearest number would not be for the value that the tool gets.
    """
    if not value.is_finite() or value.adjusted() > _LARGEST_EXPONENT:
        return str(value)
    if value == value.to_integral_value():
        return int(value)
    number = float(value)
    return number if Decimal(repr(number)) == value else str(value)


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError("the arguments of a call are read-only: pass on call.replace(arguments={**call.args, ...})")


class ReadOnlyObject(dict[str, Any]):
    """A read-only `dict` for a JSON object."""

    __slots__ = ()
    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain `dict`."""
        return dict, (dict(self),)


class ReadOnlyArray(list[Any]):
    """A read-only `list` for a JSON array."""

    __slots__ = ()
    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse
    append = clear = extend = insert = pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle as a plain `list`."""
        return list, (list(self),)


def read_only(value: Any) -> Any:
    """Return a read-only copy of a JSON value."""
    if isinstance(value, dict):
        return ReadOnlyObject({name: read_only(item) for name, item in value.items()})
    if isinstance(value, list):
        return ReadOnlyArray([read_only(item) for item in value])
    return value
