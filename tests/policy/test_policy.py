"""Rules: which calls they are for, and which policies are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from traced_tools import ConfigurationError, Policy, Rule
from traced_tools.flow.flow import call as drive
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.policy.policy import Verdict
from traced_tools.policy.rule import CallFacts


def verdict(policy: Policy, tool: str = "get_weather", arguments: Mapping[str, Any] = {}, **facts: Any) -> Verdict:
    given: dict[str, Any] = {"source": "local", "agent": "assistant", "attributes": {}, **facts}
    return drive(policy.decide(CallFacts(tool, read_arguments=lambda: arguments, **given)))


@pytest.mark.parametrize(
    ("conditions", "facts", "matches"),
    [
        ({"tools": "get_*"}, {}, True),
        ({"tools": ["list_*", "get_weather"]}, {}, True),
        ({"tools": "GET_*"}, {}, False),
        ({"tools": "weather"}, {}, False),
        ({"source": "maps"}, {"source": "maps"}, True),
        ({"source": "maps"}, {}, False),
        ({"agents": ["a*", "b"]}, {}, True),
        ({"attributes": {"tenant": "acme"}}, {}, False),
        ({"attributes": {"tenant": "acme"}}, {"attributes": {"tenant": "acme"}}, True),
        ({"attributes": {"roles": ["admin"]}}, {"attributes": {"roles": ("user", "admin")}}, True),
        ({"attributes": {"level": 1}}, {"attributes": {"level": True}}, False),
        ({"attributes": {"level": 1, "tenant": "acme"}}, {"attributes": {"level": 1}}, False),
    ],
)
def test_a_rule_is_for_a_call_that_meets_all_conditions(
    conditions: dict[str, Any], facts: dict[str, Any], matches: bool
) -> None:
    policy = Policy([Rule(id="rule", decision="allow", **conditions)])
    assert (verdict(policy, **facts).code == "rule") is matches


@pytest.mark.parametrize(
    ("conditions", "arguments", "holds"),
    [
        ({"equals": 1}, 1.0, True),
        ({"equals": 1}, True, False),
        ({"equals": 1}, "1", False),
        ({"equals": {"b": 1, "a": [2]}}, {"a": [2], "b": 1}, True),
        ({"equals": None}, None, True),
        ({"in": ["a", None]}, None, True),
        ({"in": ["a", "b"]}, "b", True),
        ({"in": ["a", "b"]}, "c", False),
        ({"matches": "[a-z]+"}, "abc", True),
        ({"matches": "[a-z]+"}, "abc\n", False),
        ({"matches": "a|b"}, "bc", False),
        ({"matches": ".*"}, None, False),
        ({"less_than": 10}, 10, False),
        ({"at_most": 10}, 10, True),
        ({"more_than": 1, "at_most": 10}, 11, False),
        ({"at_least": 0.5}, 1, True),
        ({"at_least": 0.5}, None, False),
    ],
)
def test_conditions_compare_json_values(conditions: dict[str, Any], arguments: Any, holds: bool) -> None:
    assert ArgumentConditions({"x": conditions})({"x": arguments}) is holds
    assert ArgumentConditions({"y": conditions})({"x": arguments}) is False


@pytest.mark.parametrize(
    ("conditions", "value"),
    [({"less_than": 10}, "5"), ({"more_than": 10}, True), ({"matches": "1*"}, 1), ({"matches": ".*"}, "\ud800")],
)
def test_a_condition_on_a_value_of_another_type_denies_the_call(conditions: dict[str, Any], value: Any) -> None:
    deny = Rule(id="limit", decision="deny", when=ArgumentConditions({"x": conditions}))
    found = verdict(Policy([deny], default="allow"), arguments={"x": value})
    assert (found.decision, found.code, found.rule) == ("deny", "policy_error", deny)


def test_a_pattern_takes_linear_time() -> None:
    slow = ArgumentConditions({"x": {"matches": "(a+)+b"}})
    assert slow({"x": "a" * 50_000}) is False


def test_a_rule_without_a_predicate_decides_without_arguments() -> None:
    def unknown() -> Any:
        raise LookupError

    policy = Policy([Rule(id="all", decision="allow")])
    facts = CallFacts("t", "local", "a", {}, read_arguments=unknown)
    assert drive(policy.decide(facts)).decision == "allow"


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({}, {"tools": "pay"}),
        ({"tools": "pay*"}, {"tools": "pay_now"}),
        ({"tools": "pay*"}, {"tools": ["pay_*", "pay"]}),
        ({"tools": ["a", "b"]}, {"tools": "b", "agents": "desk"}),
        ({"attributes": {"tenant": ["a", "b"]}}, {"attributes": {"tenant": "b", "level": 1}}),
        ({"source": "m*"}, {"source": "maps", "when": lambda args: True}),
    ],
)
def test_a_rule_that_can_never_decide_is_refused(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    rules = [Rule(id="first", decision="allow", **earlier), Rule(id="second", decision="deny", **later)]
    with pytest.raises(ConfigurationError, match=r"rule 'second' can never decide, because rule 'first' before it"):
        Policy(rules)
    Policy(rules[::-1])


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"when": lambda args: True}, {}),
        ({"tools": "pay_*"}, {"tools": "pay*"}),
        ({"tools": "pay?"}, {"tools": "pay_?"}),
        ({"agents": "desk"}, {"tools": "pay"}),
        ({"attributes": {"tenant": "a"}}, {"attributes": {"tenant": ["a", "b"]}}),
        ({"attributes": {"level": 1}}, {"attributes": {"level": True}}),
    ],
)
def test_a_rule_that_may_decide_is_accepted(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    Policy([Rule(id="first", decision="allow", **earlier), Rule(id="second", decision="deny", **later)])


def test_a_policy_without_rules_or_with_an_id_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one rule"):
        Policy([])
    with pytest.raises(ConfigurationError, match="two rules have the id 'one'"):
        Policy([Rule(id="one", decision="allow", tools="a"), Rule(id="one", decision="allow", tools="b")])


@pytest.mark.parametrize(
    "given",
    [
        {"id": ""},
        {"id": "two words"},
        {"id": "policy_error"},
        {"decision": "perhaps"},
        {"tools": []},
        {"tools": ""},
        {"agents": [""]},
        {"attributes": {"tenant": []}},
    ],
    ids=str,
)
def test_an_invalid_rule_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rule(**{"id": "rule", "decision": "allow", **given})


@pytest.mark.parametrize(
    "given",
    [{"tools": 1}, {"tools": [1]}, {"when": "x"}, {"reason": 1}, {"attributes": None}, {"attributes": {"a": None}}],
    ids=str,
)
def test_an_argument_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Rule(**{"id": "rule", "decision": "allow", **given})
