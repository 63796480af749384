"""The index of rules: it finds what comparing all rules finds, and compares few."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools import Rule
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.policy.rule_index import RuleIndex

PATTERNS = st.sampled_from(
    ["*", "pay", "pay_now", "pay*", "pay_*", "p*y", "p*w", "*y", "*now", "p?y", "[p]ay", "?", "**", "pay[", "a]b*"]
)
SOME = PATTERNS | st.lists(PATTERNS, min_size=1, max_size=2)
NUMBERS: Any = st.sampled_from([1, 1.0, 2, 3, 10**22, 1e22, 10**400, 65716136043287940, 6.571613604328794e16, -1])
VALUES: Any = NUMBERS | st.sampled_from(["a", "ab", "1", True, False, None, [1], [1.0], {"a": 1}])
CONDITIONS = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne"]), VALUES),
    st.tuples(st.sampled_from(["in", "not_in"]), st.lists(VALUES, min_size=1, max_size=2)),
    st.tuples(st.sampled_from(["lt", "le", "gt", "ge"]), NUMBERS),
    st.tuples(st.sampled_from(["matches", "not_matches"]), st.sampled_from(["a", "a.*"])),
    st.tuples(st.just("exists"), st.booleans()),
)
WHERE = st.none() | st.dictionaries(
    st.sampled_from(["x", "principal.x"]),
    st.lists(CONDITIONS, min_size=1, max_size=2).map(dict),
    min_size=1,
    max_size=2,
).map(ArgumentConditions)
ATTRIBUTES = st.dictionaries(
    st.sampled_from(["tenant", "level"]),
    st.lists(NUMBERS | st.sampled_from(["a", True]), min_size=1, max_size=2),
    max_size=2,
)
RULES = st.lists(
    st.tuples(st.sampled_from(["allow", "deny"]), SOME, SOME, SOME, ATTRIBUTES, WHERE), min_size=1, max_size=8
)
PRINCIPALS = st.none() | st.sampled_from(["pay", "pay_now", "", "y", "pay[", "a]b"])


@given(RULES)
def test_the_index_refuses_the_rules_that_an_earlier_rule_covers(found: list[Any]) -> None:
    index, kept = RuleIndex(), list[Rule]()
    for number, (then, tool, agent, principal, attributes, where) in enumerate(found):
        conditions: dict[str, Any] = {"agent": agent, "principal": principal, "attributes": attributes}
        rule = Rule(f"rule-{number}", then=then, tool=tool, where=where, **conditions)
        problem = index.add(rule)
        assert (problem is not None) is any(earlier.covers(rule) for earlier in kept)
        if problem is None:
            kept.append(rule)


@given(SOME, SOME, PRINCIPALS)
def test_a_rule_that_covers_another_is_for_each_principal_that_the_other_is_for(
    earlier: Any, later: Any, principal: str | None
) -> None:
    covering, covered = (Rule(each, then="deny", principal=each_of) for each, each_of in (("a", earlier), ("b", later)))
    if covering.covers(covered) and covered.is_for_principal(principal):
        assert covering.is_for_principal(principal)


@pytest.mark.parametrize(
    "conditions",
    [
        lambda n: {"tool": f"tool_{n}"},
        lambda n: {"tool": "pay", "principal": f"user-{n}"},
        lambda n: {"tool": "pay", "where": {"principal.team": {"eq": f"t{n}"}}},
        lambda n: {"tool": [f"svc{n}_*", f"svc{n}"]},
        lambda n: {"tool": f"get_*_of_{n}"},
        lambda n: {"tool": "pay", "agent": f"desk-{n}"},
        lambda n: {"tool": "pay", "source": f"server-{n}"},
        lambda n: {"tool": "pay", "attributes": {"tenant": f"t{n}"}},
        lambda n: {"tool": "pay", "where": ArgumentConditions({"to": {"eq": f"x{n}"}})},
        lambda n: {"tool": "pay", "where": ArgumentConditions({"to": {"in": [f"x{n}", f"y{n}"]}})},
        lambda n: {"tool": "pay", "where": ArgumentConditions({"to": {"not_in": [f"x{n}"]}, "amount": {"ge": -n}})},
        lambda n: {"tool": "pay", "where": ArgumentConditions({"amount": {"le": n}})},
        lambda n: {"tool": "pay", "where": lambda args: True},
    ],
)
def test_a_rule_is_compared_with_few_of_many(conditions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Rule] = []
    covers = Rule.covers
    monkeypatch.setattr(Rule, "covers", lambda rule, later: compared.append(rule) or covers(rule, later))
    index = RuleIndex()
    for number in range(300):
        assert index.add(Rule(f"rule-{number}", then="deny", **conditions(number))) is None
    assert len(compared) < 900
