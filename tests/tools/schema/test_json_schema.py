"""Validating arguments against a JSON Schema from elsewhere."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import MappingProxyType
from typing import Any

import pytest
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from tests.markers import MARKER
from tests.tools.schema.schemas import DRAFT_3, DRAFT_4, DRAFT_7
from traced_tools.tools.schema.json_schema import ArgumentProblem, SchemaCheck

TREE = {"type": "object", "properties": {"below": {"$ref": "#"}, "size": {"type": "integer"}}}


def problems_of(schema: Any, value: Any) -> list[tuple[str, str]]:
    """The problems, as (dotted path, text)."""
    return [(".".join(map(str, each.path)), each.text) for each in SchemaCheck(schema).problems(value)]


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"size": "x"}
    for _ in range(depth):
        value = {"below": value}
    return value


# What is said of a value that does not fit.


@pytest.mark.parametrize(
    ("schema", "value", "text"),
    [
        ({"type": "integer"}, "5", "must be an integer"),
        ({"type": "number"}, True, "must be a number"),
        ({"type": "boolean"}, 1, "must be true or false"),
        ({"type": ["string", "null"]}, 5, "must be a string or null"),
        ({"type": ["array", "object"]}, 5, "must be an array or an object"),
        ({"enum": ["a", "b", None, 5]}, "c", 'must be one of: "a", "b", null, 5'),
        ({"enum": [*range(30)]}, 30, f"must be one of: {', '.join(map(str, range(20)))}, ..."),
        ({"enum": [0]}, False, "must be one of: 0"),
        ({"const": "ä"}, "a", 'must be "ä"'),
        ({"minimum": 3}, 2, "must be at least 3"),
        ({"maximum": 3}, 4, "must be at most 3"),
        ({"exclusiveMinimum": 3}, 3, "must be more than 3"),
        ({"exclusiveMaximum": 3}, 3, "must be less than 3"),
        ({"multipleOf": 5}, 3, "must be a multiple of 5"),
        ({"minLength": 1}, "", "must have at least 1 character"),
        ({"maxLength": 2}, "abc", "must have at most 2 characters"),
        ({"pattern": "^a+$"}, "b", "must match the pattern ^a+$"),
        ({"minItems": 2}, [], "must have at least 2 items"),
        ({"maxItems": 1}, [1, 2], "must have at most 1 item"),
        ({"uniqueItems": True}, [1, 1.0], "must not have the same item twice"),
        ({"minProperties": 1}, {}, "must have at least 1 field"),
        ({"maxProperties": 0}, {"a": 1}, "must have at most 0 fields"),
        ({"prefixItems": [{}], "items": False}, [1, 2], "has more items than are allowed"),
        ({"$schema": DRAFT_7, "items": [{}], "additionalItems": False}, [1, 2], "has more items than are allowed"),
        ({"contains": {"type": "null"}}, [1], "lacks an item of the required form"),
        (
            {"contains": {"type": "null"}, "minContains": 2},
            [None],
            "must have at least 2 items of the required form",
        ),
        ({"contains": {"type": "null"}, "maxContains": 1}, [None] * 2, "must have at most 1 item of the required form"),
        ({"not": {"type": "null"}}, None, "is of a form that is not allowed"),
        ({"unevaluatedProperties": False}, {"a": 1}, "has fields that are not allowed"),
        ({"unevaluatedItems": False}, [1], "has items that are not allowed"),
        (False, 5, "is not allowed, or contains a value that is not allowed"),
        ({"properties": {"a": False}}, {"a": 1}, "is not allowed, or contains a value that is not allowed"),
        ({"$schema": DRAFT_3, "divisibleBy": 5}, 3, "does not match the schema's divisibleBy"),
        ({"$schema": DRAFT_4, "minimum": 3}, 2, "must be at least 3"),
        ({"$schema": DRAFT_4, "minimum": 3, "exclusiveMinimum": True}, 3, "must be more than 3"),
        ({"$schema": DRAFT_4, "maximum": 3, "exclusiveMaximum": True}, 3, "must be less than 3"),
    ],
    ids=str,
)
def test_the_problem_for_each_keyword_says_what_is_expected(schema: Any, value: Any, text: str) -> None:
    assert problems_of(schema, value) == [("", text)]


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"required": ["a", "b", "c"]}, {"b": 1}, [("a", "is required"), ("c", "is required")]),
        (
            {"properties": {"a": {"items": {"type": "string"}}}},
            {"a": ["x", 1, "y", 2]},
            [("a.1", "must be a string"), ("a.3", "must be a string")],
        ),
        (
            {"properties": {"a": {}, "b": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False},
            {"d": 1, "a": 1, "x1": 1, "c": 1},
            [(name, "is not a known field; known fields: a, b") for name in "cd"],
        ),
        ({"additionalProperties": False}, {"a": 1}, [("a", "is not a known field; known fields: none")]),
        ({"additionalProperties": {"type": "null"}}, {"b": 1, "a": 1}, [("a", "must be null"), ("b", "must be null")]),
        (
            {"dependentRequired": {"a": ["b", "c"], "x": ["y"]}},
            {"a": 1, "c": 1},
            [("b", "is required when a is given")],
        ),
        (
            {"$schema": DRAFT_7, "dependencies": {"a": ["b"], "c": {"required": ["d"]}}},
            {"a": 1, "c": 1},
            [("b", "is required when a is given"), ("d", "is required")],
        ),
        (
            {"propertyNames": {"pattern": "^[a-z]$"}},
            {"B": 1, "a": 1},
            [("B", "is not an allowed field name: it must match the pattern ^[a-z]$")],
        ),
        (
            {"propertyNames": {"anyOf": [{"const": "a"}, {"const": "b"}]}},
            {"c": 1},
            [("c", 'is not an allowed field name: it must be "a" or "b"')],
        ),
        (
            {"properties": {"propertyNames": {"type": "null"}, "properties": {"type": "null"}}},
            {"propertyNames": 1, "properties": 1},
            [("properties", "must be null"), ("propertyNames", "must be null")],
        ),
        (
            {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "else": {"required": ["c"]}},
            {"a": 1},
            [("b", "is required")],
        ),
        ({"allOf": [{"required": ["a"]}, {"required": ["a", "b"]}]}, {}, [("a", "is required"), ("b", "is required")]),
        (TREE, nested(2), [("below.below.size", "must be an integer")]),
    ],
    ids=str,
)
def test_a_problem_has_the_path_of_the_invalid_value(schema: Any, value: Any, problems: list[tuple[str, str]]) -> None:
    assert problems_of(schema, value) == problems


SHAPES = {
    "oneOf": [
        {"properties": {"kind": {"const": "circle"}, "radius": {"type": "number"}}, "required": ["kind", "radius"]},
        {"properties": {"kind": {"const": "square"}, "side": {"type": "number"}}, "required": ["kind", "side"]},
    ]
}
NONE = "matches none of the allowed forms"


@pytest.mark.parametrize(
    ("schema", "value", "problems"),
    [
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 5, [("", "must be a string or null")]),
        ({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}, -1, [("", "must be at least 0 or null")]),
        ({"anyOf": [{"const": "a"}, {"const": "b"}, {"const": "a"}]}, "c", [("", 'must be "a" or "b"')]),
        (
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
            ["a", 1],
            [("1", "must be a string")],
        ),
        (
            {"anyOf": [{"type": "object", "required": ["a", "b"]}, {"type": "null"}]},
            {},
            [("a", "is required"), ("b", "is required")],
        ),
        ({"anyOf": [{"anyOf": [{"type": "string"}, {"type": "null"}]}]}, 5, [("", "must be a string or null")]),
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {}, [("", NONE)]),
        ({"anyOf": [False, False]}, 5, [("", NONE)]),
        ({"anyOf": [False, {"type": "null"}]}, 5, [("", "must be null")]),
        ({"oneOf": [{}, {}]}, 5, [("", "matches more than one of the allowed forms, and must match exactly one")]),
        (SHAPES, {"kind": "circle", "radius": "x"}, [("radius", "must be a number")]),
        (SHAPES, {"kind": "square"}, [("side", "is required")]),
        (SHAPES, {"kind": "line"}, [("", NONE)]),
        (
            {"properties": {"shape": SHAPES}},
            {"shape": {"kind": "square", "side": []}},
            [("shape.side", "must be a number")],
        ),
    ],
    ids=str,
)
def test_the_problems_are_those_of_the_nearest_alternative(
    schema: Any, value: Any, problems: list[tuple[str, str]]
) -> None:
    assert problems_of(schema, value) == problems


def test_there_are_ten_problems_at_most_ordered_by_path() -> None:
    schema = {"properties": {"b": {"items": {"type": "null"}}, "a": {"type": "null"}}, "required": ["c", "B"]}
    paths = [each.path for each in SchemaCheck(schema).problems({"b": [*range(20)], "a": 1})]
    assert paths == [("B",), ("a",), *[("b", index) for index in range(8)]]


def test_a_problem_has_the_value_and_its_repr_does_not_show_it() -> None:
    schema = {"properties": {"a": {"type": "integer"}}, "required": ["b"], "additionalProperties": False}
    problems = SchemaCheck(schema).problems({"a": MARKER, "c": [MARKER]})
    assert [(each.path, each.value) for each in problems] == [
        (("a",), MARKER),
        (("b",), {"a": MARKER, "c": [MARKER]}),
        (("c",), [MARKER]),
    ]
    assert MARKER not in repr(problems)
    assert repr(ArgumentProblem((), "is required", MARKER)) == "<ArgumentProblem: is required>"


def test_integers_and_numbers_are_distinguished_as_in_json() -> None:
    assert problems_of({"type": "integer"}, 1.0) == []
    assert problems_of({"type": "integer"}, True) == [("", "must be an integer")]
    assert problems_of({"type": "integer"}, json.loads("1e400")) == [("", "must be an integer")]
    assert problems_of({"enum": [1]}, True) == [("", "must be one of: 1")]


def test_formats_are_not_checked() -> None:
    assert problems_of({"format": "date"}, "tomorrow") == []


# Which draft.


def test_the_draft_is_the_one_in_the_schema() -> None:
    pair = {"items": [{"type": "string"}], "additionalItems": False}
    assert problems_of({"$schema": DRAFT_7, **pair}, [1]) == [("0", "must be a string")]
    assert problems_of(pair, [1]) == [("0", "must be a string")]  # by what the form of another draft means
    assert not SchemaCheck({"$schema": DRAFT_7, **pair, "type": "sting"}).usable


@pytest.mark.parametrize("schema", [{}, {"$schema": "https://example.com/mine"}], ids=str)
def test_the_default_draft_is_2020_12(schema: dict[str, Any]) -> None:
    assert problems_of({**schema, "prefixItems": [{"type": "string"}]}, [1]) == [("0", "must be a string")]


def test_any_mapping_is_a_schema() -> None:
    assert problems_of(MappingProxyType({"required": ["a"]}), {}) == [("a", "is required")]


@pytest.mark.parametrize("schema", [True, {}, {"$ref": "https://json-schema.org/draft/2020-12/schema"}, TREE], ids=str)
def test_a_valid_schema_is_usable(schema: Any, log: pytest.LogCaptureFixture) -> None:
    assert SchemaCheck(schema).usable
    assert problems_of(schema, {}) == []
    assert log.messages == []


# Schemas that cannot be used.


def deep_schema() -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "sting"},
        {"type": {"a": MARKER}},
        {"minimum": MARKER},
        {"pattern": "("},
        {"patternProperties": {r"^\p{Letter}": {}}},
        {"$schema": 5},
        {"$ref": f"#/$defs/{MARKER}"},
        {"properties": {"a": {"anyOf": [{"$ref": f"#/$defs/{MARKER}"}]}}},
        {"$ref": f"https://127.0.0.1:1/{MARKER}"},
        {"properties": {"a": {"$ref": "file:///etc/hostname"}}},
        {"$ref": "other.json"},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$defs": {"type": "sting"}, "$ref": "#/$defs"},
        pytest.param(deep_schema(), id="deep"),
        None,
        [MARKER],
        MARKER,
    ],
    ids=str,
)
def test_an_invalid_schema_is_logged_once_and_validates_nothing(schema: Any, log: pytest.LogCaptureFixture) -> None:
    check = SchemaCheck(schema)
    assert not check.usable
    assert [check.problems(value) for value in ({}, {"a": 1}, MARKER)] == [[], [], []]
    (text,) = log.messages
    assert text.startswith("the input schema of a tool is not a valid JSON Schema")
    assert "its arguments are only checked to be an object" in text
    assert MARKER not in text


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(urllib.request, "urlopen", lambda *args, **kwargs: opened.append(args))
    monkeypatch.setattr(socket, "create_connection", lambda *args, **kwargs: opened.append(args))
    for address in ("http://127.0.0.1:1/a.json", "https://127.0.0.1:1/a.json", "file:///etc/hostname", "a.json"):
        for schema in ({"$ref": address}, {"$id": "http://127.0.0.1:1/", "$ref": address}, {"$dynamicRef": address}):
            assert problems_of(schema, {"a": 1}) == []
    assert opened == []


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"a": MARKER}),
        ({"properties": {"a": {"$ref": "#/mine"}}, "mine": {"type": MARKER}}, {"a": MARKER}),
        ({"properties": {"a": {"$ref": "#/mine"}}, "mine": {"pattern": f"({MARKER}"}}, {"a": MARKER}),
        ({"properties": {"a": {"$dynamicRef": f"https://127.0.0.1:1/{MARKER}"}}}, {"a": MARKER}),
        ({"properties": {"a": {"multipleOf": 0.1}}}, {"a": 10**400}),
        pytest.param({"properties": {"a": {"maximum": 1}}}, {"a": 10**5000}, id="huge"),
        pytest.param(TREE, nested(5000), id="nested"),
    ],
    ids=str,
)
def test_a_value_that_breaks_the_validator_is_refused_and_others_are_validated(
    schema: dict[str, Any], value: Any, log: pytest.LogCaptureFixture
) -> None:
    check = SchemaCheck({**schema, "required": ["a"]} if schema is not TREE else schema)
    uncheckable = [((), "could not be checked; send simpler values")]
    assert [[each[:2] for each in check.problems(value)] for _ in range(3)] == [uncheckable] * 3
    assert check.usable
    assert check.problems({"size": "x"}) != []
    (text,) = log.messages
    assert text.startswith("arguments of a tool could not be validated")
    assert MARKER not in text


def test_a_stack_overflow_at_any_depth_is_handled() -> None:
    circle = {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"not": {"$ref": "#/$defs/a"}}}}

    def checked(depth: int) -> list[ArgumentProblem]:
        return checked(depth - 1) if depth else SchemaCheck(circle).problems({"a": 1})

    assert {each.text for depth in range(40) for each in checked(depth)} == {
        "could not be checked; send simpler values"
    }


def test_interrupts_pass_through_the_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Draft202012Validator, "iter_errors", interrupted)
    with pytest.raises(KeyboardInterrupt):
        SchemaCheck({}).problems({})


# How it is used.


def test_a_schema_is_compiled_when_the_first_value_is_validated(log: pytest.LogCaptureFixture) -> None:
    check = SchemaCheck({"type": MARKER})
    assert log.messages == []
    assert check.problems({}) == []
    assert len(log.messages) == 1
    code = (
        "import sys, traced_tools.tools.schema.json_schema as m; m.SchemaCheck({}); print('jsonschema' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == ["False"]


def test_threads_may_share_a_schema_check(log: pytest.LogCaptureFixture) -> None:
    good, bad, threads = SchemaCheck({"items": {"type": "integer"}}), SchemaCheck({"type": MARKER}), 8
    barrier = Barrier(threads, timeout=5)

    def work(number: int) -> list[Any]:
        barrier.wait()
        assert bad.problems({}) == []
        return [good.problems([0] * size + [str(number)]) for size in range(20)]

    with ThreadPoolExecutor(threads) as pool:
        for number, found in enumerate(pool.map(work, range(threads))):
            assert found == [[((size,), "must be an integer", str(number))] for size in range(20)]
    assert len(log.messages) == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"pattern": "^(a+)+$"}}},
        {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "additionalProperties": False},
        {"patternProperties": {"^(a+)+$": {"type": "integer"}}, "unevaluatedProperties": False},
        {"propertyNames": {"pattern": "^(a+)+$"}},
    ],
)
def test_a_pattern_takes_linear_time(schema: dict[str, Any]) -> None:
    """With the engine of Python, each of these takes years, and no other thread runs."""
    long = "a" * 60 + "!"
    assert SchemaCheck(schema).problems({"a": long, long: 1})


def test_a_pattern_without_a_linear_form_is_not_checked() -> None:
    assert SchemaCheck({"properties": {"a": {"pattern": "^(?=x)a$"}}}).problems({"a": "b"}) == []


def test_a_schema_whose_references_double_is_not_followed_for_ever() -> None:
    doubling: dict[str, Any] = {f"d{i}": {"allOf": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)}
    check = SchemaCheck({"$defs": {**doubling, "d40": {}}, "$ref": "#/$defs/d0"})
    assert not check.usable
    assert check.problems({"a": 1}) == []


@pytest.mark.parametrize(
    ("keyword", "leaf", "value"),
    [
        ("unevaluatedProperties", {"properties": {"a": {}}}, {"a": 1}),
        pytest.param("unevaluatedItems", {"items": {}}, [1], marks=pytest.mark.slow),
    ],
)
def test_nested_unevaluated_keywords_are_not_followed_for_ever(keyword: str, leaf: Any, value: Any) -> None:
    """Each of them validates the schemas beside it again, so their work doubles with each level."""
    schema = leaf
    for _ in range(40):
        schema = {keyword: False, "anyOf": [schema]}
    (problem,) = SchemaCheck({"properties": {"below": schema}}).problems({"below": value})
    assert problem.text == "could not be checked; send simpler values"
