"""The digest of a policy: short enough to read, and another one for another policy."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final

from traced_tools.core.canonical import canonical_text
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.policy.rule import Rule

DIGITS: Final = 16
"""How many hexadecimal digits a digest has."""


def digest_of(data: bytes) -> str:
    """Return the digest of the contents of a policy file: the beginning of what `sha256sum` prints."""
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def digest_of_rules(rules: Iterable[Rule], default: str) -> str:
    """Return the digest of rules that code has built; a function counts by its module and its qualified name."""
    value = {"default": default, "rules": [_rule_value(rule) for rule in rules]}
    return digest_of(canonical_text(value).encode("utf-8", "surrogatepass"))


def _rule_value(rule: Rule) -> dict[str, Any]:
    value: dict[str, Any] = {"id": rule.id, "then": rule.then, "reason": rule.reason}
    value |= {"tool": [*rule.tool], "source": [*rule.source], "agent": [*rule.agent]}
    value["principal"] = [*rule.principal]
    value["attributes"] = {key: sorted(map(canonical_text, values)) for key, values in rule.attributes.items()}
    value["annotations"] = dict(rule.annotations)
    if isinstance(rule.where, ArgumentConditions):
        value["where"] = [
            [[*condition.path], condition.operator, condition.operand] for condition in rule.where.conditions
        ]
    elif rule.where is not None:
        function: Any = rule.where if hasattr(rule.where, "__qualname__") else type(rule.where)
        value["where"] = f"{function.__module__}.{function.__qualname__}"
    return value
