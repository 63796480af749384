"""Decisions of casbin, by its model of access control lists."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from casbin import Enforcer, Model

from tests.bench.peers.decisions import serve_decisions

MODEL = """
[request_definition]
r = agent, tool
[policy_definition]
p = agent, tool, eft
[policy_effect]
e = some(where (p.eft == allow)) && !some(where (p.eft == deny))
[matchers]
m = r.agent == p.agent && r.tool == p.tool
"""


def policy_of(rules: int) -> Callable[[], bool]:
    """Return a function that decides about a call."""
    model = Model()
    model.load_model_from_text(MODEL)
    enforcer = Enforcer(model)
    enforcer.add_policies([["assistant", f"tool_{index}", "deny"] for index in range(rules - 1)])
    enforcer.add_policy("assistant", "add", "allow")
    return lambda: enforcer.enforce("assistant", "add")


if __name__ == "__main__":
    serve_decisions(version("casbin"), policy_of)
