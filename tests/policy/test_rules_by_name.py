"""The rules of a policy by name: a call meets the rule that comparing all rules finds, and is compared with few."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from traced_tools.core.tool_definition import ToolAnnotations
from traced_tools.policy.rule import CallFacts, Rule
from traced_tools.policy.rules_by_name import RulesByName

NAMES = st.sampled_from(["pay", "pay[", "refund", "bank_pay", "*", "a]b"])
PATTERNS = NAMES | st.sampled_from(["pay*", "?ay", "[p]ay", "*_pay", "**"])
RULES = st.lists(
    st.tuples(
        st.sampled_from(["allow", "deny"]), st.lists(PATTERNS, min_size=1, max_size=3), st.sampled_from(["*", "bank"])
    ),
    max_size=12,
)


def call(tool: str, own_name: str | None, source: str = "bank") -> CallFacts:
    return CallFacts(tool, source, "assistant", {}, ToolAnnotations, dict, own_name)


@given(RULES, NAMES, st.none() | NAMES, st.sampled_from(["bank", "mail"]))
def test_the_candidates_have_each_rule_that_is_for_a_call_once_and_in_order(
    drawn: list[Any], tool: str, own_name: str | None, source: str
) -> None:
    rules = [
        Rule(f"rule-{number}", then=then, tool=patterns, source=origin)
        for number, (then, patterns, origin) in enumerate(drawn)
    ]
    facts = call(tool, own_name, source)
    candidates = [rule for rule in RulesByName(rules).candidates(facts) if rule.is_for(facts)]
    assert candidates == [rule for rule in rules if rule.is_for(facts)]


def test_a_call_is_compared_with_the_rules_of_its_names_and_those_with_wildcards() -> None:
    rules = [Rule(f"tool-{number}", then="deny", tool=f"tool_{number}") for number in range(10_000)]
    rules.insert(7, Rule("reads", then="allow", tool="get_*"))
    rules.append(Rule("both", then="deny", tool=["files_read", "read"]))
    by_name = RulesByName(rules)
    assert [rule.id for rule in by_name.candidates(call("tool_9999", None))] == ["reads", "tool-9999"]
    assert [rule.id for rule in by_name.candidates(call("files_read", "read"))] == ["reads", "both"]
    assert [rule.id for rule in by_name.candidates(call("another", None))] == ["reads"]
