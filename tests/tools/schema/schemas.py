"""Helpers of the tests of input schemas: short forms, and generated schemas with values for them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

DRAFT_3 = "http://json-schema.org/draft-03/schema#"
DRAFT_4 = "http://json-schema.org/draft-04/schema#"
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
TEXT = {"type": "string"}
NODE = {"type": "object", "properties": {"below": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}


def fields(**properties: Any) -> dict[str, Any]:
    """An object schema whose fields are all required."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def closed(**properties: Any) -> dict[str, Any]:
    """The same in strict mode."""
    return {**fields(**properties), "additionalProperties": False}


def bomb(levels: int, **beside: Any) -> dict[str, Any]:
    """A schema in which each definition refers to the next one twice."""
    to_next = [{"$ref": f"#/$defs/D{level}", **beside} for level in range(levels + 1)]
    definitions = {f"D{level}": fields(a=to_next[level + 1], b=to_next[level + 1]) for level in range(levels)}
    return {**fields(a=to_next[0]), "$defs": {**definitions, f"D{levels}": TEXT}}


def keywords(schema: Any) -> Iterator[str]:
    """Every keyword and name in a schema."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            yield key
            yield from keywords(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from keywords(each)


# Wild schemas without recursion.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text("ab", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
SIMPLE = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "minLength": 2, "description": "two"},
        {"type": ["string", "null"], "maxLength": 1},
        {"type": "integer", "minimum": 0, "maximum": 3, "default": 1},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a", "b", 1]},
        {"type": ["string", "null"], "enum": ["a", "b"]},
        {"const": "a"},
    ]
)
BESIDE = st.sampled_from([{}, {}, {"description": "d"}, {"title": "T", "default": None}, {"minLength": 2}])


def valid(schema: Any, value: Any) -> bool:
    """Return whether `value` is valid under `schema`."""
    return bool(Draft202012Validator(schema).is_valid(value))


def schemas(references: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas that may contain the given references."""

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        arrays = st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner)
        unions = st.builds(lambda some, one: {"anyOf": [*some, one]}, st.lists(SIMPLE, max_size=2), inner)
        return arrays | unions | objects(inner)

    return st.recursive(SIMPLE | references, larger, max_leaves=5)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Any]) -> dict[str, Any]:
    """Draw an object with some fields, of which some are required."""
    fields = draw(st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3))
    required = draw(st.lists(st.sampled_from(sorted(fields)), unique=True))
    closed = draw(st.sampled_from([{}, {"additionalProperties": False}]))
    return {"type": "object", "properties": fields, "required": required, **closed}


@st.composite
def documents(draw: st.DrawFn, beside: st.SearchStrategy[Any] = BESIDE) -> dict[str, Any]:
    """Draw a whole schema with definitions; the keywords `beside` references are drawn for each of them."""
    definitions: dict[str, Any] = {}
    references: st.SearchStrategy[Any] = st.nothing()
    for name in ("One", "Two", "Three"):
        definitions[name] = draw(schemas(references))
        references |= st.builds(lambda more, to=name: {"$ref": f"#/$defs/{to}", **more}, beside)
    return {**draw(objects(schemas(references))), "$defs": definitions}


def values(schema: Any, root: Any) -> st.SearchStrategy[Any]:
    """Return values that are mostly valid under a schema drawn here, or a strict one."""
    if "$ref" in schema:
        return values(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        return st.one_of([values(each, root) for each in schema["anyOf"]])
    if "const" in schema:
        return st.just(schema["const"])
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return st.one_of([_of_type(each, schema, root) for each in types])


def _of_type(kind: str, schema: Any, root: Any) -> st.SearchStrategy[Any]:
    if kind == "object":
        fields = {name: values(each, root) for name, each in schema["properties"].items()}
        required = {name: fields.pop(name) for name in schema["required"]}
        return st.fixed_dictionaries(required, optional=fields)
    if kind == "array":
        return st.lists(values(schema["items"], root), max_size=2)
    if kind == "string":
        return st.text("ab", min_size=schema.get("minLength", 0), max_size=3)
    plain = {"integer": st.integers(0, 3), "number": st.integers(-2, 2) | st.just(0.5)}
    return {**plain, "boolean": st.booleans(), "null": st.none()}[kind]


def without_nulls(value: Any, schema: Any, root: Any) -> Any:
    """Return `value` without the fields that are null and optional."""
    if "$ref" in schema:
        return without_nulls(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        made = [without_nulls(value, each, root) for each in schema["anyOf"]]
        fitting = [
            each
            for each, branch in zip(made, schema["anyOf"], strict=True)
            if valid({**branch, "$defs": root["$defs"]}, each)
        ]
        return fitting[0] if fitting else value
    if isinstance(value, list) and "items" in schema:
        return [without_nulls(each, schema["items"], root) for each in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    given = {name: each for name, each in value.items() if each is not None or name in schema["required"]}
    return {name: without_nulls(each, schema["properties"].get(name, {}), root) for name, each in given.items()}
