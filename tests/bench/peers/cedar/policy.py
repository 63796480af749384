"""Decisions of Cedar, by policies that are parsed beforehand."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version

from cedarpy import Entities, PolicySet, is_authorized

from tests.bench.peers.decisions import serve_decisions

REQUEST = {"principal": 'User::"ana"', "action": 'Action::"call"', "resource": 'Tool::"add"', "context": {}}


def policy_of(rules: int) -> Callable[[], bool]:
    """Return a function that decides about a call."""
    others = [f'forbid(principal, action, resource == Tool::"tool_{index}");' for index in range(rules - 1)]
    policies = PolicySet.from_str("\n".join([*others, 'permit(principal, action, resource == Tool::"add");']))
    entities = Entities.from_json_str("[]")
    return lambda: is_authorized(REQUEST, policies, entities).allowed


if __name__ == "__main__":
    serve_decisions(version("cedarpy"), policy_of)
