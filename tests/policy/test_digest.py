"""The digest of a policy: the same for the same policy, and another one for any other."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from traced_tools import ChatClient, Policy, PolicyAdvisor, Rule
from traced_tools.policy.conditions import ArgumentConditions
from traced_tools.testing import ScriptedChatModel

RULES = "default: deny\nrules:\n  - {id: reads, then: allow, tool: get_*}\n"


def is_small(args: Mapping[str, Any]) -> bool:
    return bool(args["a"] < 10)


def is_large(args: Mapping[str, Any]) -> bool:
    return not is_small(args)


def test_the_digest_of_a_file_is_the_beginning_of_its_sha256(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    for text in (RULES, RULES + "# a comment\n", RULES.replace("\n", "\r\n")):
        file.write_bytes(text.encode())
        assert Policy.load(file).digest == hashlib.sha256(text.encode()).hexdigest()[:16]


GIVEN: dict[str, Any] = {"then": "allow", "tool": ["a", "b"], "attributes": {"tenant": {"acme", "globex", "x", "y"}}}


@pytest.mark.parametrize(
    "changes",
    [
        {"then": "deny"},
        {"tool": ["b", "a"]},
        {"source": "bank"},
        {"agent": "desk"},
        {"principal": "ana"},
        {"where": {"principal.team": {"eq": "finance"}}},
        {"attributes": {"tenant": "acme"}},
        {"attributes": {"tenant": ["acme", "globex", "x", 1]}},
        {"annotations": {"read_only": True}},
        {"reason": "why"},
        {"where": is_small},
        {"where": ArgumentConditions({"a": {"lt": 10}})},
    ],
)
def test_rules_in_code_that_differ_have_another_digest(changes: dict[str, Any]) -> None:
    digest = Policy([Rule("rule", **GIVEN)]).digest
    assert digest == Policy([Rule("rule", **GIVEN)], default="deny").digest
    assert len(digest) == 16
    assert digest not in (
        Policy([Rule("rule", **{**GIVEN, **changes})]).digest,
        Policy([Rule("other", **GIVEN)]).digest,
        Policy([Rule("rule", **GIVEN)], default="allow").digest,
    )


def test_functions_count_by_their_names() -> None:
    def digest(where: Any) -> str:
        return Policy([Rule("rule", then="allow", where=where)]).digest

    assert digest(is_small) != digest(is_large)
    assert digest(lambda args: True) == digest(lambda args: False)
    assert digest(functools.partial(is_small)) == digest(functools.partial(is_large))


def test_a_check_of_the_client_finds_a_file_that_differs_from_the_loaded_policy(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(RULES)
    advisors = [PolicyAdvisor(Policy.load(file)), PolicyAdvisor(Policy([Rule("all", then="allow")]), name="coded")]
    client = ChatClient(ScriptedChatModel([]), advisors=advisors)
    assert [(each.part, each.ok) for each in client.check()] == [("policy: policy", True)]
    file.write_text(RULES + "# changed\n")
    [changed] = client.check()
    assert changed.problem is not None
    assert f"{file}: the policy has changed since it was loaded" in changed.problem
    file.unlink()
    [gone] = client.check()
    assert gone.problem == f"{file}: the policy cannot be read: No such file or directory"
