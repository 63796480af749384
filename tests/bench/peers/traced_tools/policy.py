"""Decisions of a policy of this checkout."""

from __future__ import annotations

from collections.abc import Callable

from tests.bench.peers.decisions import serve_decisions
from traced_tools import Policy, Rule, __version__
from traced_tools.core import ToolAnnotations
from traced_tools.flow.flow import call
from traced_tools.policy.rule import CallFacts


def policy_of(rules: int) -> Callable[[], bool]:
    """Return a function that decides about a call."""
    others = [Rule(f"rule-{index}", tool=f"tool_{index}", then="deny") for index in range(rules - 1)]
    policy = Policy([*others, Rule("adds", tool="add", then="allow")])
    facts = CallFacts("add", "local", "assistant", {}, ToolAnnotations, lambda: {"a": 1, "b": 1})
    return lambda: call(policy.decide(facts)).decision == "allow"


if __name__ == "__main__":
    serve_decisions(__version__, policy_of)
