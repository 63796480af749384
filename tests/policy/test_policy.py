"""Rules: which calls they are for, and which policies are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from traced_tools import ConfigurationError, Policy, Rule, ToolAnnotations
from traced_tools.flow.flow import call as drive
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.policy.policy import Verdict
from traced_tools.policy.rule import CallFacts


def verdict(policy: Policy, tool: str = "get_weather", arguments: Mapping[str, Any] = {}, **facts: Any) -> Verdict:
    given: dict[str, Any] = {"source": "local", "agent": "assistant", "attributes": {}, **facts}
    given["read_annotations"] = facts.get("read_annotations", ToolAnnotations)
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
        ({"attributes": {"tags": "beta"}}, {"attributes": {"tags": ["mobile", "beta"]}}, True),
        ({"attributes": {"tags": "beta"}}, {"attributes": {"tags": ["mobile"]}}, False),
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
        ({"less_than": 10}, 10, False),
        ({"at_most": 10}, 10, True),
        ({"more_than": 1, "at_most": 10}, 11, False),
        ({"at_least": 0.5}, 1, True),
        ({"equals": 10**22}, 1e22, True),
        ({"in": [[1e22]]}, [10**22], True),
        ({"equals": 6.571613604328794e16}, 65716136043287940, True),
        ({"in": ["1", [1]]}, 1, False),
        ({"in": [True]}, 1, False),
        ({"not_equals": 1}, 1.0, False),
        ({"not_equals": 1}, "1", True),
        ({"not_equals": None}, None, False),
        ({"not_in": ["a", None]}, None, False),
        ({"not_in": ["a", "b"]}, "c", True),
        ({"not_matches": "[a-z]+"}, "abc", False),
        ({"not_matches": "[a-z]+"}, "abc\n", True),
        ({"exists": True}, "", True),
        ({"exists": True}, None, False),
        ({"exists": False}, None, True),
        ({"exists": False}, 0, False),
        ({"at_most": 10**400}, 1, True),
    ],
)
def test_conditions_compare_json_values(conditions: dict[str, Any], arguments: Any, holds: bool) -> None:
    assert ArgumentConditions({"x": conditions})({"x": arguments}) is holds


TO = {"recipient": {"country": "DE", "bank.code": {"a\\b": 7}, "accounts": [{"country": "FR"}]}}


@pytest.mark.parametrize(
    ("conditions", "holds"),
    [
        ({"recipient.country": {"in": ["DE", "FR"]}}, True),
        ({"recipient.country": {"not_in": ["DE", "FR"]}}, False),
        ({r"recipient.bank\.code.a\\b": {"equals": 7}}, True),
        ({"recipient.city": {"exists": False}, "recipient.country": {"equals": "DE"}}, True),
        ({"sender.country.code": {"exists": True}}, False),
    ],
)
def test_a_dot_leads_to_a_member_of_an_object(conditions: dict[str, Any], holds: bool) -> None:
    assert ArgumentConditions(conditions)(TO) is holds


def test_an_argument_whose_name_has_a_dot_does_not_stand_for_a_member() -> None:
    conditions = {"recipient.country": {"in": ["DE"]}}
    shadowing = {"recipient": {"country": "RU"}, "recipient.country": "DE"}
    assert ArgumentConditions(conditions)(shadowing) is False
    assert ArgumentConditions({r"recipient\.country": {"in": ["DE"]}})(shadowing) is True


CONDITIONS: list[dict[str, Any]] = [
    *({operator: 5} for operator in ("less_than", "at_most", "more_than", "at_least")),
    *({operator: "a"} for operator in ("equals", "not_equals", "matches", "not_matches")),
    *({operator: ["a"]} for operator in ("in", "not_in")),
]
LACKING: list[dict[str, Any]] = [{}, {"x": None}, {"x": {}}, {"x": {"y": None}}, {"x": {"z": {"y": 1}}}]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
@pytest.mark.parametrize("arguments", LACKING, ids=str)
def test_a_missing_value_lets_no_rule_that_denies_be_passed_by(
    conditions: dict[str, Any], arguments: dict[str, Any]
) -> None:
    compares_null = next(iter(conditions)) in ("equals", "not_equals", "in", "not_in")
    if compares_null and arguments == {"x": {"y": None}}:
        return
    given = {"x.y": conditions}
    for decision in ("deny", "require_approval"):
        rule = Rule(id="limit", decision=decision, when=ArgumentConditions(given))
        found = verdict(Policy([rule], default="allow"), arguments=arguments)
        assert (found.decision, found.code, found.rule) == ("deny", "policy_error", rule)
    allow = Rule(id="limit", decision="allow", when=ArgumentConditions(given))
    assert verdict(Policy([allow], default="deny"), arguments=arguments).code == "policy_default"
    asked = Rule(id="limit", decision="deny", when=ArgumentConditions({"x.y": {**conditions, "exists": True}}))
    assert verdict(Policy([asked], default="allow"), arguments=arguments).code == "policy_default"


def test_a_condition_that_is_not_met_counts_whatever_the_others_lack_and_in_any_order() -> None:
    unmet, lacking, odd = {"a": {"equals": 1}}, {"b": {"equals": 1}}, {"c": {"at_most": 1}}
    arguments = {"a": 2, "c": "text"}
    for conditions in ({**unmet, **lacking, **odd}, {**odd, **lacking, **unmet}):
        deny = Rule(id="limit", decision="deny", when=ArgumentConditions(conditions))
        assert verdict(Policy([deny], default="allow"), arguments=arguments).decision == "allow"
    for conditions in ({**lacking, **odd}, {**odd, **lacking}):
        allow = Rule(id="limit", decision="allow", when=ArgumentConditions(conditions))
        assert verdict(Policy([allow], default="allow"), arguments=arguments).code == "policy_error"


@pytest.mark.parametrize("value", [[{"y": 1}], "text", 1, True], ids=str)
@pytest.mark.parametrize("conditions", [{"exists": False}, {"not_equals": 5}], ids=str)
def test_a_member_of_what_is_not_an_object_denies_the_call(conditions: dict[str, Any], value: Any) -> None:
    allow = Rule(id="limit", decision="allow", when=ArgumentConditions({"x.y": conditions}))
    assert verdict(Policy([allow], default="allow"), arguments={"x": value}).code == "policy_error"


@pytest.mark.parametrize(
    ("wanted", "stated", "matches"),
    [
        ({"read_only": True}, {"read_only": True}, True),
        ({"read_only": True}, {"read_only": False}, False),
        ({"read_only": True}, {}, False),
        ({"destructive": False}, {}, False),
        ({"read_only": True, "open_world": False}, {"read_only": True, "open_world": False}, True),
        ({"read_only": True, "open_world": False}, {"read_only": True}, False),
    ],
)
def test_a_hint_that_a_tool_does_not_give_meets_no_condition(
    wanted: dict[str, bool], stated: dict[str, Any], matches: bool
) -> None:
    policy = Policy([Rule(id="rule", decision="allow", annotations=wanted)])
    found = verdict(policy, read_annotations=lambda: ToolAnnotations(**stated))
    assert (found.code == "rule") is matches


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
    facts = CallFacts("t", "local", "a", {}, read_annotations=unknown, read_arguments=unknown)
    assert drive(policy.decide(facts)).decision == "allow"


IMPLIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"equals": 1}, {"equals": 1.0}),
    ({"in": [1, 2]}, {"equals": 2}),
    ({"not_in": [3, 4]}, {"in": [1, 2]}),
    ({"matches": "[a-z]+"}, {"in": ["a", "bc"]}),
    ({"at_most": 10}, {"in": [1, 10]}),
    ({"at_most": 10}, {"less_than": 10, "more_than": 3}),
    ({"less_than": 10}, {"at_most": 9}),
    ({"at_least": 3}, {"more_than": 3}),
    ({"more_than": 3}, {"at_least": 4}),
    ({"exists": True}, {"matches": "x"}),
]
NOT_IMPLIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"equals": 1}, {"a.b": {"equals": 1}}),  # denies calls without it, which the earlier rule passes on
    ({"equals": 1}, {"a": {"equals": 1, "exists": True}}),
    ({"equals": 1}, {"a.b": {"in": [1, 2], "exists": True}}),
    ({"less_than": 10}, {"a.b": {"at_most": 10, "exists": True}}),
    ({"at_most": 10}, {"a.b": {"in": [1, "x"], "exists": True}}),
    ({"at_most": 10}, {"a.b": {"at_least": 3, "exists": True}}),
    ({"not_in": [1]}, {"a.b": {"not_equals": 2, "exists": True}}),
    ({"exists": False}, {"a.b": {"equals": 1, "exists": True}}),
]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({}, {"tools": "pay"}),
        ({"tools": "pay*"}, {"tools": "pay_now"}),
        ({"tools": "pay*"}, {"tools": ["pay_*", "pay"]}),
        ({"tools": ["a", "b"]}, {"tools": "b", "agents": "desk"}),
        ({"attributes": {"tenant": ["a", "b"]}}, {"attributes": {"tenant": "b", "level": 1}}),
        ({"source": "m*"}, {"source": "maps", "when": lambda args: True}),
        ({"annotations": {"read_only": True}}, {"annotations": {"read_only": True, "open_world": False}}),
        ({}, {"annotations": {"read_only": True}, "when": ArgumentConditions({"a": {"equals": 1}})}),
        *(
            (
                {"when": ArgumentConditions({"a.b": earlier})},
                {"when": ArgumentConditions({"a.b": {**later, "exists": True}})},
            )
            for earlier, later in IMPLIED
        ),
        (
            {"when": ArgumentConditions({"a": {"equals": 1}})},
            {"when": ArgumentConditions({"a": {"equals": 1, "exists": True}, "b": {"equals": 1}})},
        ),
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
        ({"annotations": {"read_only": True}}, {}),
        ({"annotations": {"read_only": True}}, {"annotations": {"read_only": False}}),
        ({"annotations": {"read_only": True}}, {"annotations": {"destructive": False}}),
        *(
            ({"when": ArgumentConditions({"a.b": earlier})}, {"when": ArgumentConditions(later)})
            for earlier, later in NOT_IMPLIED
        ),
    ],
)
def test_a_rule_that_may_decide_is_accepted(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    Policy([Rule(id="first", decision="allow", **earlier), Rule(id="second", decision="deny", **later)])


def test_a_rule_with_the_same_conditions_and_decision_can_never_decide() -> None:
    conditions = {"a": {"at_most": 5}}
    for decision in ("allow", "deny", "require_approval"):
        rules = [Rule(id=each, decision=decision, when=ArgumentConditions(conditions)) for each in ("first", "second")]
        with pytest.raises(ConfigurationError, match="rule 'second' can never decide"):
            Policy(rules)


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
        {"annotations": {"readOnlyHint": True}},
    ],
    ids=str,
)
def test_an_invalid_rule_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rule(**{"id": "rule", "decision": "allow", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"tools": 1},
        {"tools": [1]},
        {"when": "x"},
        {"reason": 1},
        {"attributes": None},
        {"attributes": {"a": None}},
        {"annotations": None},
        {"annotations": {"read_only": 1}},
    ],
    ids=str,
)
def test_an_argument_of_another_type_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Rule(**{"id": "rule", "decision": "allow", **given})
