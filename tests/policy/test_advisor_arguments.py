"""A policy decides about the validated arguments, however the model writes them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.modes import MODES, run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    Policy,
    PolicyAdvisor,
    Rule,
    ToolCall,
    ToolContext,
    ToolResult,
    UserMessage,
    tool,
)
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.models import ChatResponse
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

DEFAULTS = {"amount": 9000, "note": "", "tags": ["x"]}


@tool
def pay(to: str, amount: int = 9000, note: str = "", tags: list[str] = ["x"]) -> str:  # noqa: B006  # of the schema
    """Pay somebody."""
    return json.dumps({"to": to, "amount": amount, "note": note, "tags": tags})


@tool(name="pay")
def pay_exactly(amount: Decimal) -> str:
    """Pay an exact amount."""
    return f"{amount}"


class RemotePay:
    """A tool that implements the protocol itself, and reads exact numbers."""

    definition = ToolDefinition(
        name="pay",
        input_schema={"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
    )
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return f"{json.loads(tool_input, parse_float=Decimal, parse_int=Decimal)['amount']}"


@tool
def stop() -> str:
    """Stop everything."""
    return "stopped"


ARGUMENTS = st.fixed_dictionaries(
    {
        "to": st.sampled_from(["Eve", "Bob", "7"]),
        "amount": st.sampled_from([1, 100, 101, 9000]),
        "note": st.sampled_from(["", "rent"]),
        "tags": st.sampled_from([["x"], ["x", "y"], []]),
    }
)
CONDITIONS: Any = st.one_of(
    st.sampled_from(["le", "lt", "gt", "ge"]).flatmap(
        lambda operator: st.sampled_from([1, 100, 100.5]).map(lambda bound: {"amount": {operator: bound}})
    ),
    st.sampled_from([{"to": {"eq": "Eve"}}, {"to": {"in": ["Bob", "7"]}}, {"to": {"matches": "[A-Z].*"}}]),
    st.sampled_from([{"note": {"eq": ""}}, {"tags": {"eq": ["x"]}}, {"tags": {"in": [[], ["x", "y"]]}}]),
)
ORDERED = st.permutations([*DEFAULTS, "to"])
FIELDS = st.sets(
    st.sampled_from(["defaults", "null_fields", "number_as_string", "json_string", "quoted", "fraction", "twice"])
)
WRAPPINGS = st.lists(st.sampled_from(["string", "code_fence"]), max_size=2, unique=True)


def written(arguments: dict[str, Any], order: list[str], fields: set[str], wrappings: list[str]) -> str:
    """Return the arguments as a model may write them."""
    texts = {name: json.dumps(arguments[name]) for name in order}
    amount = arguments["amount"]
    if "fraction" in fields:
        texts["amount"] = f"{amount}.0"
    if "quoted" in fields:
        texts["amount"] = f'"{amount}"'
    if "number_as_string" in fields and arguments["to"].isdigit():
        texts["to"] = arguments["to"]
    if "json_string" in fields:
        texts["tags"] = json.dumps(texts["tags"])
    for name, default in DEFAULTS.items():
        if arguments[name] == default and "null_fields" in fields:
            texts[name] = "null"
        if arguments[name] == default and "defaults" in fields:
            del texts[name]
    first = ['"amount": 1'] if "twice" in fields and "amount" in texts else []
    text = "{" + ", ".join([*first, *(f'"{name}": {value}' for name, value in texts.items())]) + "}"
    for wrapping in wrappings:
        text = json.dumps(text) if wrapping == "string" else f"```json\n{text}\n```"
    return text


def execute(policy: Policy, name: str, arguments: str) -> ToolResult:
    response = ChatResponse(AssistantMessage("", tool_calls=(ToolCall(name, arguments),)))
    tools, advisors = [pay, stop], [PolicyAdvisor(policy)]
    done = ToolCallingManager().execute_tool_calls([UserMessage("?")], response, tools=tools, advisors=advisors)
    return done.results[0]


@given(ARGUMENTS, st.lists(CONDITIONS, min_size=1, max_size=2), st.booleans(), ORDERED, FIELDS, WRAPPINGS)
def test_no_form_of_the_arguments_passes_a_rule_that_the_plain_form_does_not(
    arguments: dict[str, Any],
    conditions: list[dict[str, Any]],
    allows: bool,
    order: list[str],
    fields: set[str],
    wrappings: list[str],
) -> None:
    merged = {name: each[name] for each in conditions for name in each}
    rule = Rule("rule", then="allow" if allows else "deny", where=ArgumentConditions(merged))
    policy = Policy([rule], default="deny" if allows else "allow")
    plain = execute(policy, "pay", json.dumps(arguments))
    other = execute(policy, "pay", written(arguments, order, fields, wrappings))
    if other.decision != "invalid_arguments":
        assert (other.decision, other.reason_code) == (plain.decision, plain.reason_code)
        assert (other.content, other.outcome) == (plain.content, plain.outcome)
    if other.ok:
        assert json.loads(other.content) == arguments


@given(st.sampled_from(["", "null", "{}", '{"dummy": ""}', '"{}"', "```json\n{}\n```", '{"_": null}', '{"x": []}']))
def test_no_placeholder_passes_a_rule_for_a_tool_without_arguments(arguments: str) -> None:
    policy = Policy([Rule("stop", then="deny", tool="stop", where=lambda args: not args)], default="allow")
    result = execute(policy, "stop", arguments)
    assert (result.decision, result.reason_code) == ("denied", "stop")


MORE_DIGITS = ["1000.00000000000000001", "1000.0000000000000001", "9007199254740993.5"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("written", MORE_DIGITS)
def test_no_digit_of_an_exact_number_escapes_a_policy(mode: str, written: str) -> None:
    small = Policy([Rule("small", tool="pay", where=lambda args: args["amount"] <= 1000, then="allow")], default="deny")
    equal = Policy([Rule("equal", tool="pay", where=ArgumentConditions({"amount": {"eq": 1000}}), then="allow")])
    for paying, policy in [(pay_exactly, small), (pay_exactly, equal), (RemotePay(), small), (RemotePay(), equal)]:
        for amount in (written, f'"{written}"') if paying is pay_exactly else (written,):
            model = ScriptedChatModel([ToolCall("pay", f'{{"amount": {amount}}}'), "done"])
            client = ChatClient(model, tools=[paying], advisors=[PolicyAdvisor(policy)])
            [result] = run(mode, client.prompt("?")).tool_results
            assert result.decision == "denied" or Decimal(result.content) <= 1000
    assert result.content == "1000" or not written.startswith("1000")
