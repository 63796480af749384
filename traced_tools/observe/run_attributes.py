"""The attributes that an application sets on a run, such as its user and tenant."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, Final

from traced_tools.core.checks import expect
from traced_tools.core.messages import encodable
from traced_tools.observe import names

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

MAX_ATTRIBUTES: Final = 32
MAX_TEXT_LENGTH: Final = 256
"""Characters of a str value or of a str in a sequence."""
MAX_ITEMS: Final = 32

_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,63}")
_OURS: Final = ("gen_ai.", f"{names.SCOPE}.")
_OF_CONTENTS: Final = ("digest", "text_hash")
"""Keys that mark a content in an audit record. The record's hash does not cover the text of a content."""
_INT64: Final = range(-(2**63), 2**63)
_ACCEPTED: Final = "a str, bool, int or float, or a list or tuple of one of these types"


class RunAttributes(Mapping[str, Any]):
    """The attributes of a run, as a read-only mapping."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(self._values)


NO_ATTRIBUTES: Final = RunAttributes({})


def check_attributes(attributes: Mapping[str, AttributeValue] | None) -> RunAttributes:
    """Return an application's attributes as plain values, after checking them.

    Raises:
        TypeError, ValueError: a key or value is invalid. The message has the key and what is accepted.
    """
    if attributes is None:
        return NO_ATTRIBUTES
    expect("attributes", attributes, Mapping, "a mapping of keys to values")
    return merge_attributes(
        NO_ATTRIBUTES, RunAttributes({_key(key): _value(key, value) for key, value in attributes.items()})
    )


def merge_attributes(outer: RunAttributes, own: RunAttributes) -> RunAttributes:
    """Return the attributes of an outer run or client together with `own` ones, which win.

    Raises:
        ValueError: there are too many attributes.
    """
    merged = RunAttributes({**outer, **own}) if outer else own
    if len(merged) > MAX_ATTRIBUTES:
        raise ValueError(
            f"a run has at most {MAX_ATTRIBUTES} attributes, including those of its client and of the run it is "
            f"nested in; these are {len(merged)}"
        )
    return merged


def _key(key: object) -> str:
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise ValueError(
            "attributes must have keys of 1 to 64 ASCII letters, digits, '.', '_' and '-' that begin with a letter"
        )
    if (key in names.ATTRIBUTES and key != names.USER_ID) or key.startswith(_OURS) or key in _OF_CONTENTS:
        raise ValueError(f"attributes[{key!r}]: telemetry or the audit trail reserves this key; choose another")
    return str.__str__(key)  # a plain str, in case it is an enum member


def _value(key: str, value: object) -> Any:
    if isinstance(value, list | tuple):
        if len(value) > MAX_ITEMS:
            raise ValueError(f"attributes[{key!r}] must have at most {MAX_ITEMS} items; it has {len(value)}")
        items = tuple(_scalar(key, item) for item in value)
        if len({type(item) for item in items}) > 1:
            raise TypeError(f"attributes[{key!r}] must be {_ACCEPTED}; its items are of several types")
        return items
    return _scalar(key, value)


def _scalar(key: str, value: object) -> str | bool | int | float:
    """Return a plain value, in case it is an enum member."""
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > MAX_TEXT_LENGTH:
            raise ValueError(f"attributes[{key!r}] must have at most {MAX_TEXT_LENGTH} characters; it has {len(value)}")
        return encodable(str.__str__(value))
    if isinstance(value, int):
        number = int(value)
        if number not in _INT64:
            raise ValueError(f"attributes[{key!r}] must be an int of at most 64 bits")
        return number
    expect(f"attributes[{key!r}]", value, float, _ACCEPTED)
    if not isfinite(value):  # type: ignore[arg-type]  # it is a float
        raise ValueError(f"attributes[{key!r}] must be a finite number, which JSON can hold")
    return float(value)  # type: ignore[arg-type]
