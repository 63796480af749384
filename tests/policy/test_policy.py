"""Rules: which calls they are for, and which policies are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from traced_tools import ConfigurationError, Policy, Rule
from traced_tools.core import ToolAnnotations
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
        ({"tool": "get_*"}, {}, True),
        ({"tool": ["list_*", "get_weather"]}, {}, True),
        ({"tool": "GET_*"}, {}, False),
        ({"tool": "weather"}, {}, False),
        ({"source": "maps"}, {"source": "maps"}, True),
        ({"source": "maps"}, {}, False),
        ({"source": ["maps", "loc*"]}, {}, True),
        ({"source": ["maps", "mail"]}, {}, False),
        ({"agent": ["a*", "b"]}, {}, True),
        ({"principal": "*"}, {}, True),
        ({"principal": ["*", "bob"]}, {}, True),
        ({"principal": "?*"}, {}, False),
        ({"principal": "**"}, {}, False),
        ({"principal": ["ana", "desk-*"]}, {}, False),
        ({"principal": "?*"}, {"principal": "ana"}, True),
        ({"principal": ["ana", "desk-*"]}, {"principal": "desk-1"}, True),
        ({"principal": "ana"}, {"principal": "ANA"}, False),
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
    policy = Policy([Rule("rule", then="allow", **conditions)])
    assert (verdict(policy, **facts).code == "rule") is matches


@pytest.mark.parametrize("then", ["allow", "deny", "require_approval"])
@pytest.mark.parametrize(
    ("conditions", "tool", "own_name", "matches"),
    [
        ({"tool": "delete_all", "source": "bank"}, "bank_delete_all", "delete_all", True),
        ({"tool": "delete_*", "source": "b*"}, "bank_delete_all", "delete_all", True),
        ({"tool": "bank_*"}, "bank_delete_all", "delete_all", True),
        ({"tool": "files.read", "source": "bank"}, "files_read_0a1b2c3d", "files.read", True),
        ({"tool": "delete_all", "source": "mail"}, "bank_delete_all", "delete_all", False),
        ({"tool": "delete_all", "source": "bank"}, "bank_delete", "delete", False),
        ({"tool": "delete_all"}, "bank_delete_all", "delete_all", None),
        ({"tool": "delete_*", "source": "*"}, "bank_delete_all", "delete_all", None),
        ({"tool": "delete_all", "source": ["mail", "?*"]}, "bank_delete_all", "delete_all", None),
    ],
)
def test_a_rule_is_for_the_offered_name_and_the_servers_own_which_a_rule_that_allows_trusts_of_named_sources(
    then: Any, conditions: dict[str, Any], tool: str, own_name: str, matches: bool | None
) -> None:
    found = verdict(Policy([Rule("rule", then=then, **conditions)]), tool, source="bank", own_name=own_name)
    assert (found.code == "rule") is (then != "allow" if matches is None else matches)


@pytest.mark.parametrize(
    ("conditions", "arguments", "holds"),
    [
        ({"eq": 1}, 1.0, True),
        ({"eq": 1}, True, False),
        ({"eq": 1}, "1", False),
        ({"eq": {"b": 1, "a": [2]}}, {"a": [2], "b": 1}, True),
        ({"eq": None}, None, True),
        ({"in": ["a", None]}, None, True),
        ({"in": ["a", "b"]}, "b", True),
        ({"in": ["a", "b"]}, "c", False),
        ({"matches": "[a-z]+"}, "abc", True),
        ({"matches": "[a-z]+"}, "abc\n", False),
        ({"matches": "a|b"}, "bc", False),
        ({"lt": 10}, 10, False),
        ({"le": 10}, 10, True),
        ({"gt": 1, "le": 10}, 11, False),
        ({"ge": 0.5}, 1, True),
        ({"eq": 10**22}, 1e22, True),
        ({"in": [[1e22]]}, [10**22], True),
        ({"eq": 6.571613604328794e16}, 65716136043287940, True),
        ({"in": ["1", [1]]}, 1, False),
        ({"in": [True]}, 1, False),
        ({"ne": 1}, 1.0, False),
        ({"ne": 1}, "1", True),
        ({"ne": None}, None, False),
        ({"not_in": ["a", None]}, None, False),
        ({"not_in": ["a", "b"]}, "c", True),
        ({"not_matches": "[a-z]+"}, "abc", False),
        ({"not_matches": "[a-z]+"}, "abc\n", True),
        ({"exists": True}, "", True),
        ({"exists": True}, None, False),
        ({"exists": False}, None, True),
        ({"exists": False}, 0, False),
        ({"le": 10**400}, 1, True),
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
        ({r"recipient.bank\.code.a\\b": {"eq": 7}}, True),
        ({"recipient.city": {"exists": False}, "recipient.country": {"eq": "DE"}}, True),
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
    *({operator: 5} for operator in ("lt", "le", "gt", "ge")),
    *({operator: "a"} for operator in ("eq", "ne", "matches", "not_matches")),
    *({operator: ["a"]} for operator in ("in", "not_in")),
]
LACKING: list[dict[str, Any]] = [{}, {"x": None}, {"x": {}}, {"x": {"y": None}}, {"x": {"z": {"y": 1}}}]


@pytest.mark.parametrize("conditions", CONDITIONS, ids=str)
@pytest.mark.parametrize("arguments", LACKING, ids=str)
def test_a_missing_value_lets_no_rule_that_denies_be_passed_by(
    conditions: dict[str, Any], arguments: dict[str, Any]
) -> None:
    compares_null = next(iter(conditions)) in ("eq", "ne", "in", "not_in")
    if compares_null and arguments == {"x": {"y": None}}:
        return
    given = {"x.y": conditions}
    for decision in ("deny", "require_approval"):
        rule = Rule("limit", then=decision, where=ArgumentConditions(given))
        found = verdict(Policy([rule], default="allow"), arguments=arguments)
        assert (found.decision, found.code, found.rule) == ("deny", "policy_error", rule)
    allow = Rule("limit", then="allow", where=ArgumentConditions(given))
    assert verdict(Policy([allow], default="deny"), arguments=arguments).code == "policy_default"
    asked = Rule("limit", then="deny", where=ArgumentConditions({"x.y": {**conditions, "exists": True}}))
    assert verdict(Policy([asked], default="allow"), arguments=arguments).code == "policy_default"


def test_a_condition_that_is_not_met_counts_whatever_the_others_lack_and_in_any_order() -> None:
    unmet, lacking, odd = {"a": {"eq": 1}}, {"b": {"eq": 1}}, {"c": {"le": 1}}
    arguments = {"a": 2, "c": "text"}
    for conditions in ({**unmet, **lacking, **odd}, {**odd, **lacking, **unmet}):
        deny = Rule("limit", then="deny", where=ArgumentConditions(conditions))
        assert verdict(Policy([deny], default="allow"), arguments=arguments).decision == "allow"
    for conditions in ({**lacking, **odd}, {**odd, **lacking}):
        allow = Rule("limit", then="allow", where=ArgumentConditions(conditions))
        assert verdict(Policy([allow], default="allow"), arguments=arguments).code == "policy_error"


@pytest.mark.parametrize("value", [[{"y": 1}], "text", 1, True], ids=str)
@pytest.mark.parametrize("conditions", [{"exists": False}, {"ne": 5}], ids=str)
def test_a_member_of_what_is_not_an_object_denies_the_call(conditions: dict[str, Any], value: Any) -> None:
    allow = Rule("limit", then="allow", where=ArgumentConditions({"x.y": conditions}))
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
    policy = Policy([Rule("rule", then="allow", annotations=wanted)])
    found = verdict(policy, read_annotations=lambda: ToolAnnotations(**stated))
    assert (found.code == "rule") is matches


@pytest.mark.parametrize(
    ("conditions", "value"),
    [({"lt": 10}, "5"), ({"gt": 10}, True), ({"matches": "1*"}, 1), ({"matches": ".*"}, "\ud800")],
)
def test_a_condition_on_a_value_of_another_type_denies_the_call(conditions: dict[str, Any], value: Any) -> None:
    deny = Rule("limit", then="deny", where=ArgumentConditions({"x": conditions}))
    found = verdict(Policy([deny], default="allow"), arguments={"x": value})
    assert (found.decision, found.code, found.rule) == ("deny", "policy_error", deny)


ATTRIBUTES = {"team": "finance", "limit": 100, "unit": {"country": "DE"}}
FORGED = {"principal": ATTRIBUTES, "principal.team": "finance", "team": "finance"}


@pytest.mark.parametrize(
    ("where", "arguments", "attributes", "holds"),
    [
        ({"principal.team": {"eq": "finance"}}, {}, ATTRIBUTES, True),
        ({"principal.unit.country": {"in": ["DE"]}}, {}, ATTRIBUTES, True),
        ({"principal.team": {"eq": "finance"}, "amount": {"le": 5}}, {"amount": 5}, ATTRIBUTES, True),
        ({"principal.team": {"eq": "finance"}, "amount": {"le": 5}}, {"amount": 6}, ATTRIBUTES, False),
        ({"principal.team": {"eq": "finance"}}, FORGED, {"team": "sales"}, False),
        ({"principal.team": {"eq": "finance"}}, FORGED, {}, False),
        ({"principal.team": {"exists": False}}, FORGED, {}, True),
        ({"principal": {"exists": True}}, FORGED, {}, True),
        ({"principal": {"exists": True}}, {}, ATTRIBUTES, False),
        ({r"principal\.team": {"eq": "finance"}}, FORGED, {}, True),
    ],
)
def test_a_key_with_a_name_after_principal_is_about_the_principal_and_never_about_an_argument(
    where: dict[str, Any], arguments: dict[str, Any], attributes: dict[str, Any], holds: bool
) -> None:
    async def read() -> Mapping[str, Any]:
        return attributes

    policy = Policy([Rule("rule", then="allow", where=where)])
    assert (verdict(policy, arguments=arguments, read_principal=read).code == "rule") is holds


def test_attributes_are_read_only_if_the_arguments_do_not_decide() -> None:
    async def unknown() -> Mapping[str, Any]:
        raise LookupError

    where = {"principal.team": {"eq": "finance"}, "amount": {"le": 5}}
    deny = Rule("rule", then="deny", where=where)
    policy = Policy([Rule("sums", then="allow", tool="sum"), deny], default="allow")
    assert verdict(policy, "sum", read_principal=unknown).code == "sums"
    assert verdict(policy, arguments={"amount": 6}, read_principal=unknown).code == "policy_default"
    for arguments in ({"amount": 5}, {"amount": "five"}, {}):
        found = verdict(policy, arguments=arguments, read_principal=unknown)
        assert (found.decision, found.code, found.rule) == ("deny", "policy_error", deny)


def test_a_missing_attribute_lets_no_rule_that_denies_be_passed_by() -> None:
    where = {"principal.team": {"ne": "finance"}}
    deny = Policy([Rule("rule", then="deny", where=where)], default="allow")
    assert verdict(deny).code == "policy_error"
    assert verdict(Policy([Rule("rule", then="allow", where=where)])).code == "policy_default"


def test_a_pattern_takes_linear_time() -> None:
    slow = ArgumentConditions({"x": {"matches": "(a+)+b"}})
    assert slow({"x": "a" * 50_000}) is False


def test_a_rule_without_a_predicate_decides_without_arguments() -> None:
    def unknown() -> Any:
        raise LookupError

    policy = Policy([Rule("all", then="allow")])
    facts = CallFacts("t", "local", "a", {}, read_annotations=unknown, read_arguments=unknown)
    assert drive(policy.decide(facts)).decision == "allow"


IMPLIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"eq": 1}, {"eq": 1.0}),
    ({"in": [1, 2]}, {"eq": 2}),
    ({"not_in": [3, 4]}, {"in": [1, 2]}),
    ({"matches": "[a-z]+"}, {"in": ["a", "bc"]}),
    ({"le": 10}, {"in": [1, 10]}),
    ({"le": 10}, {"lt": 10, "gt": 3}),
    ({"lt": 10}, {"le": 9}),
    ({"ge": 3}, {"gt": 3}),
    ({"gt": 3}, {"ge": 4}),
    ({"exists": True}, {"matches": "x"}),
]
NOT_IMPLIED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"eq": 1}, {"a.b": {"eq": 1}}),  # denies calls without it, which the earlier rule passes on
    ({"eq": 1}, {"a": {"eq": 1, "exists": True}}),
    ({"eq": 1}, {"a.b": {"in": [1, 2], "exists": True}}),
    ({"lt": 10}, {"a.b": {"le": 10, "exists": True}}),
    ({"le": 10}, {"a.b": {"in": [1, "x"], "exists": True}}),
    ({"le": 10}, {"a.b": {"ge": 3, "exists": True}}),
    ({"not_in": [1]}, {"a.b": {"ne": 2, "exists": True}}),
    ({"exists": False}, {"a.b": {"eq": 1, "exists": True}}),
]


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({}, {"tool": "pay"}),
        ({"tool": "pay*"}, {"tool": "pay_now"}),
        ({"tool": "pay*"}, {"tool": ["pay_*", "pay"]}),
        ({"tool": ["a", "b"]}, {"tool": "b", "agent": "desk"}),
        ({"attributes": {"tenant": ["a", "b"]}}, {"attributes": {"tenant": "b", "level": 1}}),
        ({"source": "m*"}, {"source": "maps", "where": lambda args: True}),
        ({"principal": "*"}, {"principal": "ana"}),
        ({"principal": ["ana", "*"]}, {"principal": "?*"}),
        ({"principal": "desk-*"}, {"principal": ["desk-1", "desk-?"]}),
        ({"where": {"principal.team": {"in": ["a", "b"]}}}, {"where": {"principal.team": {"eq": "a", "exists": True}}}),
        ({"source": ["m*", "local"]}, {"source": ["maps", "mail"]}),
        ({"annotations": {"read_only": True}}, {"annotations": {"read_only": True, "open_world": False}}),
        ({}, {"annotations": {"read_only": True}, "where": ArgumentConditions({"a": {"eq": 1}})}),
        *(
            (
                {"where": ArgumentConditions({"a.b": earlier})},
                {"where": ArgumentConditions({"a.b": {**later, "exists": True}})},
            )
            for earlier, later in IMPLIED
        ),
        (
            {"where": ArgumentConditions({"a": {"eq": 1}})},
            {"where": ArgumentConditions({"a": {"eq": 1, "exists": True}, "b": {"eq": 1}})},
        ),
    ],
)
def test_a_rule_that_can_never_decide_is_refused(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    rules = [Rule("first", then="allow", **earlier), Rule("second", then="deny", **later)]
    with pytest.raises(ConfigurationError, match=r"rule 'second' can never decide, because rule 'first' before it"):
        Policy(rules)
    Policy(rules[::-1])


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ({"where": lambda args: True}, {}),
        ({"tool": "pay_*"}, {"tool": "pay*"}),
        ({"tool": "pay?"}, {"tool": "pay_?"}),
        ({"agent": "desk"}, {"tool": "pay"}),
        ({"principal": "?*"}, {}),
        ({"principal": "**"}, {}),
        ({"where": {"principal.team": {"eq": "a"}}}, {"where": {"team": {"eq": "a", "exists": True}}}),
        ({"where": {"principal": {"exists": True}}}, {"where": {"principal.team": {"exists": True}}}),
        ({"source": "m*"}, {"source": ["maps", "local"]}),
        ({"attributes": {"tenant": "a"}}, {"attributes": {"tenant": ["a", "b"]}}),
        ({"attributes": {"level": 1}}, {"attributes": {"level": True}}),
        ({"annotations": {"read_only": True}}, {}),
        ({"annotations": {"read_only": True}}, {"annotations": {"read_only": False}}),
        ({"annotations": {"read_only": True}}, {"annotations": {"destructive": False}}),
        *(
            ({"where": ArgumentConditions({"a.b": earlier})}, {"where": ArgumentConditions(later)})
            for earlier, later in NOT_IMPLIED
        ),
    ],
)
def test_a_rule_that_may_decide_is_accepted(earlier: dict[str, Any], later: dict[str, Any]) -> None:
    Policy([Rule("first", then="allow", **earlier), Rule("second", then="deny", **later)])


def test_a_rule_with_the_same_conditions_and_decision_can_never_decide() -> None:
    conditions = {"a": {"le": 5}}
    for decision in ("allow", "deny", "require_approval"):
        rules = [Rule(each, then=decision, where=ArgumentConditions(conditions)) for each in ("first", "second")]
        with pytest.raises(ConfigurationError, match="rule 'second' can never decide"):
            Policy(rules)


def test_a_policy_with_another_default_is_refused() -> None:
    default: Any = "ask"
    with pytest.raises(ConfigurationError, match="default must be one of allow, deny, require_approval"):
        Policy([Rule("one", then="allow")], default=default)


def test_a_policy_without_rules_or_with_an_id_twice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least one rule"):
        Policy([])
    with pytest.raises(ConfigurationError, match="two rules have the id 'one'"):
        Policy([Rule("one", then="allow", tool="a"), Rule("one", then="allow", tool="b")])


@pytest.mark.parametrize(
    "given",
    [
        {"id": ""},
        {"id": "two words"},
        {"id": "policy_error"},
        {"then": "perhaps"},
        {"tool": []},
        {"tool": ""},
        {"tool": "pay, refund"},
        {"tool": "pay,refund"},
        {"tool": ["get_*", "pay, refund"]},
        {"tool": "[pay, refund]"},
        {"tool": " pay"},
        {"tool": "pay\n"},
        {"tool": "pay\trefund"},
        {"source": []},
        {"agent": [""]},
        {"attributes": {"tenant": []}},
        {"annotations": {"readOnlyHint": True}},
        {"principal": []},
        {"where": {}},
        {"where": {"amount": {}}},
        {"where": {"amount": {"above": 1}}},
        {"where": {"principal.": {"eq": 1}}},
        {"where": {"amount": {"eq": (1, 2)}}},
    ],
    ids=str,
)
def test_an_invalid_rule_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rule(**{"id": "rule", "then": "allow", **given})


@pytest.mark.parametrize(
    "given",
    [
        {"tool": 1},
        {"tool": [1]},
        {"source": None},
        {"where": {"amount": 1000}},
        {"where": {1: {"gt": 1000}}},
        {"where": {"amount": {1: 1000}}},
        {"principal": None},
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
        Rule(**{"id": "rule", "then": "allow", **given})


def test_only_the_id_may_be_positional() -> None:
    rule: Any = Rule
    with pytest.raises(TypeError, match="positional"):
        rule("one", "allow")
    assert Rule(id="one", then="allow") == Rule("one", then="allow")
