"""However a model writes arguments, a policy decides as about the plain form, and the tool gets what the policy saw."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from tests.modes import MODES, run
from tests.policy.forms import KINDS, SCHEMA_KINDS, Kind, Recipient, Written, calls
from traced_tools import (
    ApprovalAdvisor,
    ChatClient,
    Policy,
    PolicyAdvisor,
    Reject,
    Rule,
    ToolCall,
    ToolContext,
    ToolResult,
)
from traced_tools.core import ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.core.enums import REPAIRS
from traced_tools.errors import InvalidArguments
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback
from traced_tools.tools.callback import as_invocable

DECISIONS = st.sampled_from(["allow", "deny", "require_approval"])
DEFAULTS = st.sampled_from(["allow", "deny"])


class TypedTool:
    """A function with one parameter of each kind, as a tool, and what it received."""

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.received: list[Any] = []
        self.kinds = kinds
        self.signature = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=kind.default, annotation=kind.hint)
                for name, kind in kinds.items()
            ]
        )

        def act(**arguments: Any) -> str:
            self.received.append(arguments)
            return "done"

        act.__signature__ = self.signature  # type: ignore[attr-defined]
        act.__annotations__ = {name: kind.hint for name, kind in kinds.items()}
        self.callback: ToolCallback = FunctionToolCallback(act, name="act", description="Act.")

    def json_of(self, arguments: dict[str, Any]) -> Any:
        """The JSON of arguments that the tool received, without the package's own conversion."""
        bound = self.signature.bind(**arguments)
        bound.apply_defaults()
        return {name: json_of(self.kinds[name].hint, value) for name, value in bound.arguments.items()}


class SchemaTool:
    """A custom tool with a JSON Schema, and the texts that it received. Of a repeated key, it reads the first value."""

    metadata = ToolMetadata()

    def __init__(self, kinds: Mapping[str, Kind]) -> None:
        self.received: list[Any] = []
        properties = {name: kind.hint for name, kind in kinds.items()}
        required = [name for name, kind in kinds.items() if not kind.is_optional]
        schema = {"type": "object", "properties": properties, "required": required}
        self.definition = ToolDefinition(name="act", description="Act.", input_schema=schema)
        self.callback: ToolCallback = self

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.received.append(tool_input)
        return "done"

    def json_of(self, text: str) -> Any:
        return json.loads(text, object_pairs_hook=lambda pairs: dict(reversed(pairs)))


def json_of(hint: Any, value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, set):
        return sorted(value, key=str)
    dumped = TypeAdapter(hint).dump_python(value, mode="json", by_alias=True)
    if isinstance(value, Recipient):  # of an extra field with the name of an alias, the field counts
        return {**(value.__pydantic_extra__ or {}), **dumped, "countryCode": value.country, "amount": value.amount}
    return dumped


def decide(
    mode: str, tool: ToolCallback, text: str, rules: list[Rule], default: Literal["allow", "deny"]
) -> tuple[ToolResult, list[Any]]:
    """The result of a call with `text` as its arguments, and the arguments that a predicate saw."""
    seen: list[Any] = []

    def watch(arguments: Mapping[str, Any]) -> bool:
        seen.append(arguments)
        return False

    policy = Policy([Rule("watch", then="deny", where=watch), *rules], default=default)
    model = ScriptedChatModel([ToolCall("act", text), "done"])
    advisors = [PolicyAdvisor(policy), ApprovalAdvisor(lambda request: Reject("no"))]
    (result,) = run(mode, ChatClient(model, tools=[tool], advisors=advisors).prompt("?")).tool_results
    return result, seen


def equal(value: Any, other: Any) -> bool:
    """Whether two JSON values are equal; `True` is not `1`."""
    if isinstance(value, Mapping) and isinstance(other, Mapping):
        return value.keys() == other.keys() and all(equal(value[key], other[key]) for key in value)
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(equal, value, other))
    return isinstance(value, bool) is isinstance(other, bool) and bool(value == other)


@st.composite
def conditions_on(draw: st.DrawFn, arguments: dict[str, Any]) -> ArgumentConditions:
    """Conditions on one argument, or on a member of it, whose operands are near its value."""
    name = draw(st.sampled_from([*arguments]))
    value, key = arguments[name], name
    if isinstance(value, dict) and value and draw(st.booleans()):
        member = draw(st.sampled_from([*value]))
        value, key = value[member], f"{name}.{member}"
    operand = draw(st.sampled_from([value, *([value + 1, value - 1] if is_number(value) else []), None, "x", 1]))
    operators = ["eq", "ne", "in", "not_in", "exists"]
    operators += ["lt", "le", "gt", "ge"] if is_number(value) else []
    operators += ["matches", "not_matches"] if isinstance(value, str) else []
    operator = draw(st.sampled_from(operators))
    if operator in ("in", "not_in"):
        operand = [operand, "other"]
    elif operator == "exists":
        operand = draw(st.booleans())
    elif operator in ("matches", "not_matches"):
        operand = draw(st.sampled_from([re.escape(value), "[0-9]+", ".*"]))
    elif operator not in ("eq", "ne"):
        operand = operand if is_number(operand) else value
    return ArgumentConditions({key: {operator: operand}})


def is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_forms(
    tool: TypedTool | SchemaTool, call: Written, rules: list[Rule], default: Literal["allow", "deny"]
) -> None:
    """Check that the policy decides about a form as about the plain one, and that the tool gets what it saw."""
    invocable = as_invocable(tool.callback)
    values = []
    results = []
    for text in (call.plain, call.text):
        tool.received.clear()
        try:
            value = invocable.bind(text).value
        except InvalidArguments:
            assert text != call.plain
            result, seen = decide("call", tool.callback, text, rules, default)
            assert (result.decision, seen, tool.received) == ("invalid_arguments", [], [])
            return
        result, seen = decide("call", tool.callback, text, rules, default)
        assert len(seen) == 1
        assert equal(seen[0], tool.json_of(value))
        assert len(tool.received) == (result.decision == "allowed")
        assert all(equal(seen[0], tool.json_of(each)) for each in tool.received)
        values.append(value if isinstance(tool, TypedTool) else tool.json_of(value))
        results.append((result.decision, result.reason_code))
    assert values[0] != values[1] or results[0] == results[1]


@given(st.data(), calls(KINDS), DECISIONS, DEFAULTS)
def test_no_form_of_the_arguments_passes_a_rule_that_the_plain_form_does_not(
    data: st.DataObject, call: Written, decision: Any, default: Any
) -> None:
    tool = TypedTool(call.kinds)
    invocable = as_invocable(tool.callback)
    conditions = data.draw(conditions_on(invocable.as_json(invocable.bind(call.plain))))
    check_forms(tool, call, [Rule("rule", then=decision, where=conditions)], default)


@given(st.data(), calls(SCHEMA_KINDS), DECISIONS, DEFAULTS)
def test_no_form_of_the_arguments_of_a_custom_tool_passes_a_rule_that_the_plain_form_does_not(
    data: st.DataObject, call: Written, decision: Any, default: Any
) -> None:
    tool = SchemaTool(call.kinds)
    arguments = json.loads(call.plain) or {"note": ""}
    conditions = data.draw(conditions_on(arguments))
    check_forms(tool, call, [Rule("rule", then=decision, where=conditions)], default)


REPAIRED = {
    "blank": (["optional"], "{}", ""),
    "null": (["optional"], "{}", "null"),
    "string": (["int"], '{"int": 9000}', json.dumps('{"int": 9000}')),
    "code_fence": (["int"], '{"int": 9000}', '```json\n{"int": 9000}\n```'),
    "empty_object": (["int"], '{"int": 9000}', '{}{"int": 9000}'),
    "null_fields": (["optional"], "{}", '{"optional": null}'),
    "number_as_string": (["str"], '{"str": "1.10"}', '{"str": 1.10}'),
    "json_string": (["list"], '{"list": [9000]}', '{"list": "[9000]"}'),
    "dummy_argument": ([], "{}", '{"dummy": ""}'),
}
"""For each repair, the kinds of the parameters, the plain arguments, and a form that needs the repair."""


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("repair", REPAIRS)
def test_repaired_arguments_do_not_pass_a_rule_that_denies_the_plain_ones(repair: str, mode: str) -> None:
    names, plain, text = REPAIRED[repair]
    tool = TypedTool({name: KINDS[name] for name in names})
    invocable = as_invocable(tool.callback)
    assert invocable.bind(text).repairs == (repair,)
    arguments = invocable.as_json(invocable.bind(plain))
    same = ArgumentConditions({name: {"eq": value} for name, value in arguments.items()})
    rules = [Rule("same", then="deny", where=same)]
    for written in (plain, text):
        result, seen = decide(mode, tool.callback, written, rules, "allow")
        assert (result.decision, result.reason_code, tool.received) == ("denied", "same", [])
        assert seen == [arguments]


def test_a_predicate_sees_a_float_beyond_2_53_as_the_tool_receives_it() -> None:
    tool = TypedTool({"float": KINDS["float"]})
    result, seen = decide("call", tool.callback, '{"float": 6.571613604328794e16}', [], "allow")
    assert result.decision == "allowed"
    assert seen == tool.received
