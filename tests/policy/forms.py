"""Tools' arguments in many forms: their plain JSON, and what models write instead that the loop repairs or coerces."""

from __future__ import annotations

import enum
import inspect
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple
from uuid import UUID

from hypothesis import strategies as st
from pydantic import AliasChoices, BaseModel, ConfigDict, Field


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Recipient(BaseModel):
    """An object with fields that are renamed, optional and open."""

    model_config = ConfigDict(populate_by_name=True, extra="allow")

    country: str = Field(alias="countryCode")
    amount: int = Field(default=1, validation_alias=AliasChoices("amount", "sum"))
    note: str = "none"
    due: date | None = None


class Kind(NamedTuple):
    """A type (or a JSON Schema), JSON values that it takes as they are, and other JSON texts for such a value."""

    hint: Any
    plain: st.SearchStrategy[Any]
    forms: Callable[[Any], list[str]]
    default: Any = inspect.Parameter.empty

    @property
    def is_optional(self) -> bool:
        return self.default is not inspect.Parameter.empty


def quoted(*texts: object) -> list[str]:
    return [json.dumps(str(each)) for each in texts]


def forms_of_int(value: int) -> list[str]:
    return [*quoted(value, f"{value}.0", f" {value} ", f"{value:_}"), f"{value}.0", f"{value}e0", f"{value}0e-1"]


def forms_of_float(value: float) -> list[str]:
    return [*quoted(value, f"{value:+}", f" {value}"), f"{value:.17e}", f"{Decimal(value):f}"]


def forms_of_bool(value: bool) -> list[str]:
    texts = ("true", "True", "yes", "on", "t", "y", "1") if value else ("false", "FALSE", "no", "off", "f", "n", "0")
    return [*quoted(*texts), str(int(value)), f"{int(value)}.0"]


def forms_of_text(value: str) -> list[str]:
    escaped = "".join(f"\\u{unit:04x}" for unit in memoryview(value.encode("utf-16-le")).cast("H"))
    return [f'"{escaped}"', value]


def forms_of_date(value: str) -> list[str]:
    days = (date.fromisoformat(value) - date(1970, 1, 1)).days
    return [*quoted(f"{value}T00:00:00", f"{value} 00:00:00Z", days * 86_400), str(days * 86_400)]


def forms_of_datetime(value: str) -> list[str]:
    seconds = int(datetime.fromisoformat(value).timestamp())
    bare = value.removesuffix("Z")
    return [*quoted(f"{bare}+00:00", f"{bare}z", f"{bare.replace('T', ' ')}Z", f"{bare}.000Z", seconds), str(seconds)]


def forms_of_duration(value: str) -> list[str]:
    seconds = int(value[2:-1])
    return [str(seconds), *quoted(f"PT{seconds}.0S", f"P0DT{seconds}S", timedelta(seconds=seconds))]


def forms_of_uuid(value: str) -> list[str]:
    return quoted(value.upper(), value.replace("-", ""), f"urn:uuid:{value}", f"{{{value}}}")


def forms_of_list(value: list[int]) -> list[str]:
    return [json.dumps(json.dumps(value)), json.dumps([str(each) for each in value])]


def forms_of_mapping(value: dict[str, int]) -> list[str]:
    twice = ", ".join(f"{json.dumps(key)}: {each}" for key, number in value.items() for each in (0, number))
    as_text = {key: str(each) for key, each in value.items()}
    return [
        json.dumps(json.dumps(value)),
        f"{{{twice}}}",
        json.dumps(as_text),
        json.dumps(dict(reversed(value.items()))),
    ]


def forms_of_recipient(value: dict[str, Any]) -> list[str]:
    more = {key: each for key, each in value.items() if key != "countryCode"}
    country = value["countryCode"]
    renamed = {"country": country, **more}
    written = {"countryCode": country, "sum": str(value["amount"])}
    shadowed = {**value, "country": "XX", "recipient.countryCode": "XX", "sum": 99}
    objects = [renamed, written, shadowed, {**value, "note": None}, {**value, "due": None}, {**value, "note": 7}]
    return [*map(json.dumps, objects), json.dumps(json.dumps(value)), json.dumps(json.dumps(renamed))]


def texts_of(*values: object) -> st.SearchStrategy[str]:
    return st.sampled_from([str(each) for each in values])


NUMBERS = st.integers(-(10**4), 10**4) | st.integers(-(2**70), 2**70)
KINDS = {
    "int": Kind(int, NUMBERS, forms_of_int),
    "float": Kind(float, st.floats(-1e3, 1e3) | st.floats(-1e300, 1e300), forms_of_float),
    "bool": Kind(bool, st.booleans(), forms_of_bool),
    "str": Kind(str, texts_of(7, "1.10", "-3", "1e5", "0", 2**70, 'a"é😀\n', "NO", ""), forms_of_text),
    "literal": Kind(
        Literal["small", "large"], st.sampled_from(["small", "large"]), lambda value: forms_of_text(value)[:1]
    ),
    "enum": Kind(Size, st.sampled_from([1, 2]), forms_of_int),
    "date": Kind(date, st.dates(date(1900, 1, 1), date(2100, 1, 1)).map(str), forms_of_date),
    "datetime": Kind(
        datetime,
        st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1)).map(
            lambda at: f"{at.replace(microsecond=0).isoformat()}Z"
        ),
        forms_of_datetime,
    ),
    "duration": Kind(timedelta, st.integers(0, 86_399).map(lambda seconds: f"PT{seconds}S"), forms_of_duration),
    "uuid": Kind(UUID, st.uuids().map(str), forms_of_uuid),
    "decimal": Kind(Decimal, st.decimals(-1000, 1000, places=2).map(str), lambda value: [value, *quoted(f"{value}0")]),
    "list": Kind(list[int], st.lists(NUMBERS, max_size=3), forms_of_list),
    "set": Kind(set[int], st.lists(st.integers(-9, 9), max_size=3), forms_of_list),
    "tuple": Kind(tuple[int, int], st.lists(NUMBERS, min_size=2, max_size=2), forms_of_list),
    "mapping": Kind(dict[str, int], st.dictionaries(st.sampled_from("abc"), NUMBERS, max_size=2), forms_of_mapping),
    "object": Kind(
        Recipient,
        st.fixed_dictionaries({"countryCode": texts_of("DE", "FR", "KP"), "amount": st.integers(-100, 100)}),
        forms_of_recipient,
    ),
    "nullable": Kind(int | None, NUMBERS | st.none(), lambda value: quoted(value), default=None),
    "optional": Kind(str, texts_of("none", 7), lambda value: [value, "null"], default="none"),
}
"""Each type of parameter whose values pydantic coerces, or the loop repairs, in a way of its own."""


SCHEMA_KINDS = {
    "number": Kind(
        {"type": "number"}, st.integers(-(2**53), 2**53) | st.floats(-1e3, 1e3), lambda value: [f"{value:e}"]
    ),
    "text": Kind({"type": "string"}, texts_of(7, "1.10", "1e5", "DE", 'a"é😀'), forms_of_text),
    "items": Kind({"type": "array", "items": {"type": "integer"}}, st.lists(NUMBERS, max_size=3), forms_of_list),
    "recipient": Kind(
        {"type": "object", "properties": {"country": {"type": "string"}, "note": {"type": "string"}}},
        st.fixed_dictionaries({"country": texts_of("DE", "KP", 7)}),
        lambda value: [
            json.dumps(json.dumps(value)),
            json.dumps({**value, "note": None}),
            f'{{"country": "XX", "country": {json.dumps(value["country"])}}}',
        ],
    ),
    "note": Kind({"type": "string"}, texts_of("none", 7), lambda value: [value, "null"], default=None),
}
"""The types of a tool that has only a JSON Schema. It accepts further fields."""


def fenced(text: str) -> str:
    return f"```json\n{text}\n```"


WRAPPINGS: list[Callable[[str], str]] = [
    lambda text: text,
    lambda text: f"\n {text}\t",
    json.dumps,
    fenced,
    lambda text: f"```\n{text}```",
    lambda text: json.dumps(fenced(text)),
    lambda text: fenced(json.dumps(text)),
    lambda text: json.dumps(json.dumps(text)),
]


class Written(NamedTuple):
    """The arguments of a call: their kinds, the plain JSON, and the text that the model writes."""

    kinds: Mapping[str, Kind]
    plain: str
    text: str


@st.composite
def calls(draw: st.DrawFn, known: Mapping[str, Kind]) -> Written:
    """Calls of a tool with up to three parameters of the known kinds."""
    names = draw(st.lists(st.sampled_from([*known]), min_size=1, max_size=3, unique=True))
    if names == ["object"]:  # its fields would be the arguments
        names.append("bool")
    plain: list[tuple[str, str]] = []
    written: list[tuple[str, str]] = []
    for name in names:
        kind, key = known[name], json.dumps(name)
        is_omitted = kind.is_optional and draw(st.booleans())
        value = kind.default if is_omitted else draw(kind.plain)
        form = draw(st.sampled_from([json.dumps(value), *kind.forms(value)]))
        if not is_omitted:
            plain.append((key, json.dumps(value)))
        elif draw(st.booleans()):
            continue
        if draw(st.booleans()):  # of a repeated key, the last value counts
            written.append((key, draw(st.sampled_from(["0", "null", '"x"', "{}", json.dumps(draw(kind.plain))]))))
        escaped = f'"\\u{ord(name[0]):04x}{name[1:]}"'
        written.append((draw(st.sampled_from([key, escaped])), form))
    if draw(st.integers(0, 9)) == 0:
        written.append(draw(st.sampled_from([('"extra"', "1"), ('"recipient.country"', '"DE"'), ('"dummy"', '""')])))
    text = object_of(written)
    if not written:
        text = draw(st.sampled_from([text, "", " ", "null"]))
    return Written({name: known[name] for name in names}, object_of(plain), draw(st.sampled_from(WRAPPINGS))(text))


def object_of(fields: list[tuple[str, str]]) -> str:
    return f"{{{', '.join(f'{key}: {value}' for key, value in fields)}}}"
