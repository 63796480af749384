"""For any schema, generated or published, the check agrees with the library and the test suites of the drafts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.validators import validator_for  # type: ignore[import-untyped]

from tests.fixtures import bfcl_calls, bfcl_tools, json_schema_groups, livemcp_tools
from tests.markers import MARKER, everything
from tests.sweeps import check_each
from tests.tools.schema.schemas import DRAFT_3, DRAFT_4, DRAFT_7
from traced_tools.tools.schema.drafts import to_current_draft
from traced_tools.tools.schema.json_schema import SchemaCheck


def plain(schema: Any) -> Any:
    """The library's own validator."""
    return validator_for(schema, default=Draft202012Validator)(schema)


# Whatever comes.

PATTERNS = st.sampled_from(["", "^a", "b$", "(", r"\p{L}", "[a-c]+", "(?i)A"])
NAMES = st.sampled_from(["a", "b", "$ref", "properties", "propertyNames"])
SMALL = st.integers(-1, 3) | st.sampled_from([0.5, 1e308, 5e-324, 10**400])


def json_values(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.just(10**400) | texts
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | texts, inner, max_size=4)
    )


def keywords(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of several keywords over `schemas`."""
    several, by_name = st.lists(schemas, max_size=3), st.dictionaries(NAMES, schemas, max_size=3)
    names = st.lists(NAMES, max_size=3, unique=True)
    of: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["object", "array", "string", "integer", ["number", "null"], ["boolean"], "text"]),
        "properties": by_name,
        "required": names,
        "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
        "enum": st.lists(json_values(NAMES), max_size=3),
        "const": json_values(NAMES),
        "pattern": PATTERNS,
        "patternProperties": st.dictionaries(PATTERNS, schemas, max_size=2),
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/nowhere", "https://127.0.0.1:1/x"]),
        "$defs": by_name,
        "$schema": st.sampled_from([DRAFT_3, DRAFT_4, DRAFT_7, "https://example.com/mine"]),
        "items": schemas | several,
        **dict.fromkeys(("anyOf", "oneOf", "allOf", "prefixItems"), several),
        **dict.fromkeys(("not", "contains", "propertyNames", "additionalProperties", "if", "then"), schemas),
        **dict.fromkeys(("unevaluatedProperties", "unevaluatedItems"), schemas),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "multipleOf", "minLength", "maxLength"), SMALL),
        **dict.fromkeys(("minItems", "maxItems", "minProperties", "maxContains"), SMALL),
        "uniqueItems": st.booleans(),
    }
    return st.sets(st.sampled_from(sorted(of)), max_size=4).flatmap(
        lambda chosen: st.fixed_dictionaries({name: of[name] for name in sorted(chosen)})
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(st.booleans() | st.just({}), keywords, max_leaves=6) | json_values(NAMES)
MARKED = st.sampled_from([MARKER, f"a{MARKER}"])


def fits(schema: Any, value: Any) -> bool | None:
    """The verdict of the library itself; None if it has none."""
    try:
        return not list(plain(schema).iter_errors(value))
    except Exception:
        return None


@given(SCHEMAS, json_values(MARKED))
def test_no_schema_and_no_value_cause_an_exception_or_a_quoted_value(schema: Any, value: Any) -> None:
    check = SchemaCheck(schema)
    problems = check.problems(value)
    assert len(problems) <= 10
    assert MARKER not in everything([each.text for each in problems])
    assert MARKER not in repr(problems)
    assert problems == [] or check.usable


@given(keywords(keywords(st.booleans() | st.just({"type": "null"}))), json_values(MARKED))
def test_a_valid_schema_gives_the_same_verdict_as_the_library(schema: Any, value: Any) -> None:
    assume("'$ref'" not in str(schema))  # the library may panic in a circle
    assume(Draft202012Validator(Draft202012Validator.META_SCHEMA).is_valid(schema))  # another one is converted
    assume("draft-0" not in str(schema))  # one of an earlier draft is converted, too
    check = SchemaCheck(schema)
    verdict = fits(schema, value)
    if check.usable and verdict is not None:
        assert (check.problems(value) == []) is verdict


# Published schemas and calls.


@pytest.mark.slow
def test_every_schema_of_the_leaderboard_is_usable() -> None:
    tools = bfcl_tools()
    assert len(tools) == 3417
    assert [tool["id"] for tool in tools if not SchemaCheck(tool["parameters"]).usable] == []


def kind(text: str) -> str:
    if text == "is required":
        return "required"
    return "enum" if text.startswith("must be one of: ") else "type" if text.startswith("must be a") else text


def expected(error: Any) -> set[tuple[Any, ...]]:
    """The (path, keyword) of an error of the library."""
    path = tuple(error.path)
    if error.validator != "required":
        return {(path, error.validator)}
    return {((*path, name), "required") for name in error.validator_value if name not in error.instance}


@pytest.mark.slow
def test_reference_calls_of_the_leaderboard_are_invalid_if_the_library_says_so() -> None:
    wrong = Counter[str]()
    calls = bfcl_calls()
    for call in calls:
        problems = SchemaCheck(call.schema).problems(call.arguments)
        found = {(each.path, kind(each.text)) for each in problems}
        assert found == set().union(*map(expected, plain(call.schema).iter_errors(call.arguments))), call.query
        assert len(found) == len(problems)
        wrong["+".join(sorted({keyword for _, keyword in found}))] += 1
    # the reference calls are not clean: some give a variable's name for an object, or a word the schema does not list
    assert len(calls) == 1640
    assert wrong == {"": 1616, "type": 13, "required": 5, "enum": 3, "enum+type": 3}


def samples(schema: dict[str, Any]) -> list[Any]:
    """Values to try on a tool's schema: each field with each kind of value."""
    names = [*schema.get("properties", {}), "unknown"]
    whole = {"string": "a", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}
    fitting = {name: whole.get(each.get("type"), 1) for name, each in schema.get("properties", {}).items()}
    kinds: list[Any] = [None, True, -1, 1.5, "", "x", [], [1, "x"], {}, {"a": {"b": []}}]
    return [{}, fitting, [], None, *[dict.fromkeys(names, value) for value in kinds]]


MENDED = "pdf-reader-mcp/read_pdf"
"""The only tool whose published schema is invalid; what it means is translated."""


@pytest.mark.slow
def test_all_schemas_of_real_servers_are_usable(log: pytest.LogCaptureFixture) -> None:
    tools = livemcp_tools()
    unusable = [tool["id"] for tool in tools if not SchemaCheck(tool["inputSchema"]).usable]
    assert (len(tools), unusable, log.messages) == (527, [], [])
    verdicts = Counter[bool]()
    for tool in tools:
        schema = tool["inputSchema"]
        check = SchemaCheck(schema)
        schema = to_current_draft(schema) if tool["id"] == MENDED else schema
        for value in samples(schema) if check.usable else []:
            fit = fits(schema, value)
            assert (check.problems(value) == []) is fit, tool["id"]
            verdicts[bool(fit)] += 1
    assert min(verdicts.values()) > 500
    assert log.messages == []


UNCOMPILABLE = {"pattern with Unicode property escape requires unicode mode"}
"""Of ECMAScript's regular expressions, Python's do not know `\\p`: such a schema is not checked against."""


def test_draft_2020_12_is_understood_as_its_test_suite_asks() -> None:
    def agrees(group: dict[str, Any]) -> None:
        check = SchemaCheck(group["schema"])
        assert check.usable is (group["description"] not in UNCOMPILABLE)
        for case in group["tests"]:
            assert (check.problems(case["data"]) == []) is (case["valid"] or not check.usable), case["description"]

    check_each(json_schema_groups("draft2020-12"), agrees)


def test_draft_7_is_understood_as_its_test_suite_asks() -> None:
    def agrees(group: dict[str, Any]) -> None:
        schema = group["schema"]
        check = SchemaCheck({"$schema": DRAFT_7, **schema} if isinstance(schema, dict) else schema)
        assert check.usable
        for case in group["tests"]:
            assert (check.problems(case["data"]) == []) is case["valid"], case["description"]

    check_each(json_schema_groups("draft7"), agrees)
