"""Policies in YAML files: what is read, and the errors, which have the file, the line and what to do."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.policy.test_policy import verdict
from traced_tools import ConfigurationError, Policy
from traced_tools.core import ToolAnnotations
from traced_tools.core.enums import POLICY_DECISIONS

WHOLE = """\
default: deny
rules:
  - id: big-payments
    then: require_approval
    tool: pay*
    where:
      amount: {gt: 1000}
    reason: A person approves payments above 1000.
  - id: payments
    then: allow
    tool: [pay, pay_later]
    agent: [desk, lab-*]
    attributes: {tenant: [acme, globex], level: 3}
    source: [local, maps]
    principal: [ana, desk-*]
    annotations: {read_only: false, destructive: false}
    where:
      recipient.country: {not_in: [KP], exists: true}
      currency: {in: [EUR, USD]}
      principal.team: {eq: finance}
      to: {matches: '[A-Z]{2}\\d+'}
"""
RULE = "rules:\n  - id: one\n    then: allow\n"


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_key_of_a_rule_is_read(tmp_path: Path) -> None:
    policy = Policy.load(str(file(tmp_path, WHOLE)))
    hints = ToolAnnotations(read_only=False, destructive=False)

    def of(team: str) -> Any:
        async def read() -> dict[str, str]:
            return {"team": team}

        return read

    desk = {
        "principal": "desk-7",
        "read_principal": of("finance"),
        "agent": "lab-1",
        "attributes": {"tenant": "globex", "level": 3},
        "read_annotations": lambda: hints,
    }
    small = {"amount": 5, "currency": "EUR", "to": "DE12", "recipient": {"country": "DE"}}
    big = verdict(policy, "pay", {**small, "amount": 2000}, **desk)
    assert (big.decision, big.code) == ("require_approval", "big-payments")
    assert big.reason == "A person approves payments above 1000."
    assert verdict(policy, "pay", small, **desk).code == "payments"
    assert verdict(policy, "pay", small, **desk, source="maps").code == "payments"
    refused = [
        verdict(policy, "pay_never", small, **desk),
        verdict(policy, "pay", small, **{**desk, "agent": "other"}),
        verdict(policy, "pay", small, **{**desk, "attributes": {"tenant": "acme"}}),
        verdict(policy, "pay", small, **desk, source="mail"),
        verdict(policy, "pay", small, **{**desk, "principal": "bob"}),
        verdict(policy, "pay", small, **{**desk, "principal": None}),
        verdict(policy, "pay", {**small, "principal": {"team": "finance"}}, **{**desk, "read_principal": of("sales")}),
        verdict(policy, "pay", {**small, "currency": "GBP"}, **desk),
        verdict(policy, "pay", {**small, "to": "DE"}, **desk),
        verdict(policy, "pay", {**small, "recipient": {"country": "KP"}}, **desk),
        verdict(policy, "pay", {**small, "recipient": None}, **desk),
        verdict(policy, "pay", small, **{**desk, "read_annotations": ToolAnnotations}),
    ]
    assert {(each.decision, each.code) for each in refused} == {("deny", "policy_default")}


def test_a_policy_without_a_default_denies(tmp_path: Path) -> None:
    assert Policy.load(file(tmp_path, RULE)).default == "deny"


@pytest.mark.parametrize("default", POLICY_DECISIONS)
def test_the_default_of_a_file_decides_about_a_call_that_no_rule_is_for(tmp_path: Path, default: str) -> None:
    policy = Policy.load(file(tmp_path, f"default: {default}\n{RULE}    tool: pay"))
    found = verdict(policy, "delete")
    assert (found.decision, found.code) == (default, "policy_default")


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("default: [", 1, "the policy is not valid YAML"),
        ("- a", 1, "the policy must be a mapping of keys to values, not a list"),
        ("default: deny", 1, "the policy has no rules: add `rules:`"),
        ("default: perhaps\nrules: []", 1, "default must be one of allow, deny, require_approval"),
        ("default: deny\nrules: []", 2, "rules is empty: add at least one rule"),
        ("rules: one", 1, "rules must be a list, not text"),
        ("rule:\n - id: a", 1, "unknown key 'rule' in the policy: use default, rules"),
        ("rules:\n  - one", 2, "a rule must be a mapping of keys to values, not text"),
        ("rules:\n  - then: allow", 2, "the rule has no 'id': add `id:`"),
        ("rules:\n  - id: one", 2, "the rule has no 'then': add `then:`"),
        ("rules:\n  - id: one\n    then: maybe", 3, "then must be one of allow, deny, require_approval"),
        ("rules:\n  - id: policy_error\n    then: allow", 2, "choose another id"),
        (f"{RULE}    tools: pay", 4, "unknown key 'tools' in a rule: use id, then, tool, source, agent, principal"),
        (f"{RULE}    id: two", 4, "the key 'id' is there twice: delete one"),
        (f"{RULE}    tool: 3", 4, "tool must be a str or a list of str, not int"),
        (f"{RULE}    tool: [a, 3]", 4, "tool[1] must be a str, not int"),
        (f"{RULE}    tool:", 4, "tool must be a str or a list of str, not None"),
        (f"{RULE}    tool: *_get", 4, "put a pattern that begins with * in quotes"),
        (f"{RULE}    tool: *", 4, "put a pattern that begins with * in quotes"),
        (f"{RULE}    tool: []", 4, "tool must have at least one pattern"),
        (f"{RULE}    attributes:", 4, "attributes must be a mapping"),
        (f"{RULE}    attributes: {{tenant: [acme, null]}}", 4, "attributes must be a str, bool, int or float"),
        (f"{RULE}    attributes: {{1: acme}}", 4, "must be text, not a number: put it in quotes"),
        (f"{RULE}    annotations: [read_only]", 4, "annotations must be a mapping of hints to True or False"),
        (
            f"{RULE}    annotations: {{readOnlyHint: true}}",
            4,
            "unknown hint 'readOnlyHint' in annotations: use",
        ),
        (f"{RULE}    annotations: {{read_only: 'yes'}}", 4, "annotations['read_only'] must be True or False, not str"),
        (f"{RULE}    annotations: {{read_only: yes}}", 4, "'yes' is true or false in YAML: put it in quotes"),
        (f"{RULE}    where:", 4, "where must be a mapping of keys to values, not nothing"),
        (f"{RULE}    where: {{}}", 4, "where is empty"),
        (f"{RULE}    where:\n      a: 1", 5, "the conditions of 'a' must be a mapping"),
        (f"{RULE}    where:\n      a: {{}}", 5, "'a' has no condition"),
        (
            f"{RULE}    where:\n      a:\n        gte: 1",
            6,
            "unknown operator 'gte': use one of eq, ne, gt, ge, lt, le, in, not_in, matches, not_matches, exists",
        ),
        (f"{RULE}    where:\n      a: {{matches: '('}}", 5, "not a valid regular expression"),
        (f"{RULE}    where:\n      a: {{matches: 'a)|(b'}}", 5, "not a valid regular expression"),
        (f"{RULE}    where:\n      a: {{matches: 7}}", 5, "'matches' must have a regular expression as text"),
        (f"{RULE}    where:\n      a..b:\n        eq: 1", 5, "invalid argument 'a..b': put one dot between"),
        (f"{RULE}    where:\n      'a.': {{eq: 1}}", 5, "invalid argument 'a.'"),
        (
            f"{RULE}    where:\n      Principal.team: {{eq: a}}",
            5,
            "invalid key 'Principal.team': it would be met by an",
        ),
        (
            f"{RULE}    where:\n      'PRINCIPAL .team': {{eq: a}}",
            5,
            "write 'principal.' for an attribute of the principal",
        ),
        (f"{RULE}    where:\n      a\\b: {{eq: 1}}", 5, "invalid argument 'a\\\\b'"),
        (f"{RULE}    where:\n      a: {{exists: 1}}", 5, "'exists' must have true or false"),
        (f"{RULE}    where:\n      a: {{not_in: []}}", 5, "'not_in' must have a list"),
        (f"{RULE}    where:\n      a: {{not_matches: '('}}", 5, "'not_matches' has a pattern that is not a valid"),
        (f"{RULE}    where:\n      a: {{in: EUR}}", 5, "'in' must have a list"),
        (f"{RULE}    where:\n      a: {{lt: '5'}}", 5, "'lt' must have a finite number"),
        (f"{RULE}    where:\n      a: {{lt: .nan}}", 5, "'.nan' is a number in YAML: put it in quotes"),
        (f"{RULE}    where:\n      a: {{in: [SE, NO]}}", 5, "'NO' is true or false in YAML: put it in quotes"),
        (f"{RULE}    where:\n      a: {{eq: 12:30}}", 5, "'12:30' is a number in YAML: put it in quotes"),
        (f"{RULE}    where:\n      a: {{eq: 007}}", 5, "'007' is a number in YAML: put it in quotes"),
        (f"{RULE}    where:\n      a: {{eq: 2026-01-01}}", 5, "put it in quotes"),
        (f"{RULE}    where:\n      a: {{eq: !python/name:os.system x}}", 5, "put it in quotes"),
        (f"{RULE}  - id: one\n    then: deny", 4, "two rules have the id 'one'"),
        (
            f"{RULE}  - id: two\n    then: deny\n    tool: pay",
            4,
            "rule 'two' can never decide, because rule 'one'",
        ),
    ],
)
def test_an_error_has_the_file_and_the_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        Policy.load(path)
    place, _, said = str(caught.value).partition(": ")
    assert place == f"{path}, line {line}"
    assert problem in said


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the policy is empty"),
        ("# only a comment\n", "the policy is empty"),
        (b"\xff", "it is not UTF-8"),
        ("a: \x00", "the policy is not valid YAML"),
        (f"{RULE}    where: {{a: {{in: &a [*a]}}}}", "an anchor contains itself"),
    ],
)
def test_a_file_without_lines_to_name_is_refused(tmp_path: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        Policy.load(file(tmp_path, text))


@pytest.mark.parametrize(
    "place",
    [
        "where: {x: {eq: BOMB}}",
        "where: {x: {in: BOMB}}",
        "where: {x: {matches: BOMB}}",
        "where: {x: BOMB}",
        "where: BOMB",
        "attributes: {tenant: BOMB}",
        "attributes: BOMB",
        "tool: BOMB",
        "reason: BOMB",
    ],
)
def test_aliases_that_stand_for_too_much_are_refused_at_once(tmp_path: Path, place: str) -> None:
    bomb = "&a0 [aaaaaaaaaa, bbbbbbbbbb]"
    for number in range(1, 12):
        bomb = f"&a{number} [{bomb}, {', '.join([f'*a{number - 1}'] * 9)}]"
    path = file(tmp_path, f"{RULE}    {place.replace('BOMB', bomb)}")
    with pytest.raises(ConfigurationError) as caught:
        Policy.load(path)
    assert len(str(caught.value)) < 400
    if place.startswith(("where: {x: {", "attributes: {", "tool", "reason")):
        assert "the aliases of the file stand for more than 1,000,000 characters" in str(caught.value)


def test_a_long_text_counts_as_often_as_aliases_repeat_it(tmp_path: Path) -> None:
    repeated = ", ".join(["*long"] * 1_000)
    text = f"{RULE}    where: {{x: {{in: [&long {'x' * 10_000}, {repeated}]}}}}"
    with pytest.raises(ConfigurationError, match=r"line 4: the aliases of the file stand for more than"):
        Policy.load(file(tmp_path, text))


def test_long_lists_and_some_aliases_are_read(tmp_path: Path) -> None:
    values = ", ".join(f"value-{number}" for number in range(3_000))
    second = "  - id: two\n    then: deny\n    where: {x: {in: *values}}"
    policy = Policy.load(file(tmp_path, f"{RULE}    where: {{y: {{in: &values [{values}]}}}}\n{second}"))
    assert len(policy.rules) == 2


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: the policy cannot be read: No such file"):
        Policy.load(tmp_path / "nowhere.yaml")


def test_without_its_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'traced_tools[policy]'")):
        Policy.load(file(tmp_path, RULE))
