"""The JSON Schema of what a function returns, from its annotation."""

from __future__ import annotations

import functools
import json
import types
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from pydantic import TypeAdapter
from typing_extensions import TypedDict, get_type_hints

from traced_tools.core.messages import ImagePart, TextPart
from traced_tools.core.result_conversion import ToolContent
from traced_tools.tools.schema.callable_schema import SchemaGenerator, simplify_schema
from traced_tools.tools.schema.json_schema import SchemaCheck
from traced_tools.tools.schema.signature import annotated_function

RESULT = "result"
"""The property that holds a value that is not an object."""
_TEXTS = (str, bytes, bytearray, memoryview, Any, object)
_PARTS = (ImagePart, TextPart, ToolContent)
_UNIONS = (Union, types.UnionType)


class ReturnedSchema(NamedTuple):
    """The schema of the values that a tool returns, which is always one of objects.

    Attributes:
        schema: the JSON Schema.
        is_wrapped: whether the value is the property `result` of an object, because the value itself is not an object.
        check: validates values.
    """

    schema: dict[str, Any]
    is_wrapped: bool
    check: SchemaCheck

    def value_of(self, text: str) -> dict[str, Any] | None:
        """Return the value of which `text` is the form for the model; None if the schema does not allow the value."""
        for value in (_from_json(text), text):  # the members of a closed list of texts are written without quotes
            instance = {RESULT: value} if self.is_wrapped else value
            if isinstance(instance, dict) and not self.check.problems(instance):
                return instance
        return None


def returned_schema(function: Callable[..., Any]) -> ReturnedSchema | None:
    """Return the schema of what a function returns.

    Return None if the annotation allows only text, or also images or an iterator. Return None, too, if the annotation
    cannot be read, because types of returned values are often imported for type checkers only.
    """
    try:
        kind = _annotation(annotated_function(function))
        if kind in (None, type(None)) or not _is_data(kind):
            return None
        schema = _schema(kind)
        is_wrapped = schema.get("type") != "object"
        if is_wrapped:
            fields: Any = {RESULT: kind}
            wrapper: Any = TypedDict("Result", fields)  # type: ignore[misc]
            schema = _schema(wrapper)
    except Exception:  # pydantic does not know the type
        return None
    check = SchemaCheck(schema)
    return ReturnedSchema(schema, is_wrapped, check) if check.usable else None


def _annotation(annotated: Any) -> Any:
    annotations = getattr(annotated, "__annotations__", {})
    stand_in = functools.update_wrapper(lambda: None, annotated)
    stand_in.__annotations__ = {"return": annotations["return"]} if "return" in annotations else {}
    return get_type_hints(stand_in, include_extras=True).get("return")


def _schema(kind: Any) -> dict[str, Any]:
    return simplify_schema(TypeAdapter(kind).json_schema(mode="serialization", schema_generator=SchemaGenerator))


def _is_data(kind: Any) -> bool:
    """Return whether the model reads values of a type as JSON: they are not text, images or iterators."""
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    if get_origin(kind) in _UNIONS:
        return all(map(_is_data, get_args(kind)))
    is_iterator = _is_lazy(get_origin(kind) or kind)
    return kind not in _TEXTS and not is_iterator and not _mentions_parts(kind)


def _is_lazy(kind: Any) -> bool:
    """Return whether a type is that of an iterator; the model reads its items."""
    return kind in (Iterable, AsyncIterable) or hasattr(kind, "__next__") or hasattr(kind, "__anext__")


def _mentions_parts(kind: Any) -> bool:
    return kind in _PARTS or any(map(_mentions_parts, get_args(kind)))


def _from_json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
