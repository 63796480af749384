"""Any text that a model writes as arguments is valid or refused with a reason, and causes nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.tools.schema.kinds import KINDS, Own, acting, noting
from tests.tools.schema.shapes import Part, Round, Square
from traced_tools import ChatClient, ToolCall, ToolMessage
from traced_tools.core import ToolCallback, ToolMetadata
from traced_tools.core.enums import REPAIRS
from traced_tools.errors import InvalidArguments
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback
from traced_tools.tools.callback import as_invocable
from traced_tools.tools.schema.arguments import BoundArguments

OBJECT = '{"text": "x"}'
FENCED = f"```json\n{OBJECT}\n```"


def note(kind: str) -> ToolCallback:
    return noting(kind, acting(kind, lambda given: "noted"))


class Odd(BaseModel):
    """Cannot be made."""

    size: int

    def model_post_init(self, context: Any) -> None:
        raise ZeroDivisionError(MARKER)


def nothing() -> str:
    """Take nothing."""
    return "nothing given"


def odd(odd: Odd) -> str:
    """Take what cannot be made."""
    return ""


def any_types(
    number: int, ratio: float = 0.5, flags: list[bool] | None = None, parts: dict[str, Part] | None = None
) -> str:
    """Take all kinds of values."""
    return ""


def any_form(shape: Round | Square | list[int] | str) -> str:
    """Take a union."""
    return ""


def any_value(value: Any = None, count: int = Field(default=1, ge=0)) -> str:
    """Take anything."""
    return ""


TREE = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "below": {"$ref": "#"}, "size": {"type": "integer", "minimum": 0}},
}
TOOLS: list[ToolCallback] = [
    *map(note, KINDS),
    *map(FunctionToolCallback, (nothing, odd, any_types, any_form, any_value)),
    Own(len, ToolMetadata(), TREE),
]

NAMES = st.sampled_from(
    ["text", "count", "tag", "number", "shape", "value", "below", "size", "radius", "flags", "parts"]
)
TEXTS = st.text() | st.sampled_from([MARKER, "", "null", FENCED, "\ud800", "5", "true"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES | TEXTS, inner, max_size=4),
    max_leaves=12,
)
WRAPPED: st.SearchStrategy[Callable[[str], str]] = st.sampled_from(
    [str, json.dumps, "```json\n{}\n```".format, "```{}".format, " {} ".format, lambda text: text[:-1]]
)


def outcome(tool: ToolCallback, text: str) -> BoundArguments | InvalidArguments | None:
    """The outcome of binding; None if a validator of the developer's fails, which the loop counts as the tool's."""
    try:
        return as_invocable(tool).bind(text)
    except InvalidArguments as invalid:
        return invalid
    except ZeroDivisionError:
        assert tool.definition.name == "odd"
        return None


@given(VALUES.map(json.dumps) | st.text(), st.lists(WRAPPED, max_size=4))
@example('{"size": 0}', [])
def test_any_arguments_are_valid_or_refused_with_a_reason(text: str, wrapping: list[Callable[[str], str]]) -> None:
    for wrap in wrapping:
        text = wrap(text)
    for tool in TOOLS:
        result = outcome(tool, text)
        if isinstance(result, InvalidArguments):
            assert result.problems
            assert (result.__cause__, result.__context__) == (None, None)
        elif result is not None:
            assert set(result.repairs) <= set(REPAIRS)


@given(st.dictionaries(NAMES, VALUES, max_size=5))
@example({"text": [MARKER], "count": MARKER})
@example({"size": False})
def test_no_problem_quotes_a_value(given: dict[str, Any]) -> None:
    for tool in TOOLS:
        result = outcome(tool, json.dumps(given))
        if isinstance(result, InvalidArguments) and MARKER not in str(_keys(given)):
            assert MARKER not in result.problems
            assert MARKER not in everything([result, str(result), repr(result)])


def _keys(value: Any) -> list[str]:
    """Every field name in a value."""
    if isinstance(value, dict):
        return [*value, *(key for each in value.values() for key in _keys(each))]
    return [key for each in value for key in _keys(each)] if isinstance(value, list) else []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param('{"value": ' + "[" * 100_000 + "]" * 100_000 + "}", id="deep"),
        pytest.param("[" * 100_000, id="deep and cut"),
        pytest.param('{"below": ' * 5_000 + "{}" + "}" * 5_000, id="deep tree"),
        pytest.param('{"count": ' + "9" * 5_000 + ', "text": "x"}', id="long integer"),
        pytest.param('{"count": -' + "9" * 5_000 + "}", id="long negative integer"),
        pytest.param("9" * 5_000, id="only a long integer"),
        pytest.param('{"text": "x", "count": NaN}', id="not a number"),
        pytest.param('{"text": "x", "count": -Infinity}', id="infinite"),
        pytest.param('{"text": "x", "count": 1e999}', id="overflowing"),
        pytest.param('{"text": "\\ud800"}', id="escaped lone surrogate"),
        pytest.param('{"text": "\ud800"}', id="lone surrogate"),
        pytest.param('{"\\udfff": 1}', id="lone surrogate in a name"),
        pytest.param('{"text": "a\u0000b\\u0000"}', id="null character"),
        pytest.param('\ufeff{"text": "x"}', id="byte order mark"),
        pytest.param('{"text": true, "text": "x"}', id="a field twice"),
        pytest.param('{"text": "' + "x" * 5_000_000 + '"}', id="5 MB of text"),
        pytest.param('{"' + "x" * 5_000_000 + '": 1}', id="5 MB of a name"),
        pytest.param('"' * 5_000_000, id="5 MB of quotes"),
        pytest.param("```" + " " * 5_000_000 + "x", id="5 MB of blanks in half a fence"),
        pytest.param("```json" + "\n" * 5_000_000 + "```", id="5 MB of lines in a fence"),
        pytest.param("`" * 5_000_000, id="5 MB of fences"),
        pytest.param('{"text": [' + "null," * 200_000 + "null]}", id="many nulls"),
        pytest.param("{" + "".join(f'"{index}": null, ' for index in range(3_000)) + '"a": 1}', id="many fields"),
    ],
)
def test_unusual_arguments_are_valid_or_refused_with_a_reason(text: str) -> None:
    for tool in TOOLS:
        result = outcome(tool, text)
        if isinstance(result, InvalidArguments):
            assert 0 < len(result.problems) < 5_000


def test_the_last_value_of_a_repeated_field_is_used() -> None:
    for kind in KINDS:
        assert isinstance(outcome(note(kind), '{"text": true, "text": "x"}'), BoundArguments)
        refused = outcome(note(kind), '{"text": "x", "text": true}')
        assert isinstance(refused, InvalidArguments)
        assert refused.problems == "text: must be a string"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_numbers_that_json_does_not_have_are_invalid_json_for_a_schema(number: str) -> None:
    tool = Own(len, ToolMetadata(), {"type": "object", "properties": {"x": {"type": "number"}}})
    result = outcome(tool, f'{{"x": {number}}}')
    assert isinstance(result, InvalidArguments)
    assert result.problems.startswith("arguments: not valid JSON: ")


def test_a_validators_own_exception_is_the_tools_failure() -> None:
    model = ScriptedChatModel([ToolCall("odd", {"size": 1}), "done"])
    (result,) = ChatClient(model, tools=[odd]).prompt("?").call().tool_results
    assert (result.outcome, result.error_type) == ("error", "ZeroDivisionError")


# In the loop, under a tool's name or any other.


@given(VALUES.map(json.dumps) | st.text())
@pytest.mark.parametrize("mode", ["call", "acall"])
def test_every_requested_call_gets_an_answer(mode: str, text: str) -> None:
    calls = [
        ToolCall(name, text) for name in ("nothing", "odd", "any_types", "any_value", "note", "invented", text or "x")
    ]
    model = ScriptedChatModel([calls, "done"])
    response = run(mode, ChatClient(model, tools=[nothing, odd, any_types, any_value, note("own")]).prompt("?"))
    assert response.content == "done"
    results = model.requests[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert len(results.results) == len(calls)
    assert all(isinstance(part.content, str) for part in results.results)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"text":' * 100_000, "1" * 10_000, '"\\ud800"', '{"a": "\ud800"}'],
    ids=lambda text: text[:12],
)
def test_unusual_arguments_get_an_answer(mode: str, text: str) -> None:
    model = ScriptedChatModel([[ToolCall("nothing", text), ToolCall("note", text)], "done"])
    response = run(mode, ChatClient(model, tools=[nothing, note("own")]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["invalid_arguments"] * 2
