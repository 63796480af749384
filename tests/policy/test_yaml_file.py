"""Policies in YAML files: what is read, and the errors, which have the file, the line and what to do."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.policy.test_policy import verdict
from traced_tools import ConfigurationError, Policy, ToolAnnotations

WHOLE = """\
default: deny
rules:
  - id: big-payments
    decision: require_approval
    tools: pay*
    arguments:
      amount: {more_than: 1000}
    reason: A person approves payments above 1000.
  - id: payments
    decision: allow
    tools: [pay, pay_later]
    agents: [desk, lab-*]
    attributes: {tenant: [acme, globex], level: 3}
    source: local
    annotations: {read_only: false, destructive: false}
    arguments:
      recipient.country: {not_in: [KP], exists: true}
      currency: {in: [EUR, USD]}
      to: {matches: '[A-Z]{2}\\d+'}
"""
RULE = "rules:\n  - id: one\n    decision: allow\n"


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_every_key_of_a_rule_is_read(tmp_path: Path) -> None:
    policy = Policy.from_yaml(str(file(tmp_path, WHOLE)))
    hints = ToolAnnotations(read_only=False, destructive=False)
    desk = {
        "agent": "lab-1",
        "attributes": {"tenant": "globex", "level": 3},
        "read_annotations": lambda: hints,
    }
    small = {"amount": 5, "currency": "EUR", "to": "DE12", "recipient": {"country": "DE"}}
    big = verdict(policy, "pay", {**small, "amount": 2000}, **desk)
    assert (big.decision, big.code) == ("require_approval", "big-payments")
    assert big.reason == "A person approves payments above 1000."
    assert verdict(policy, "pay", small, **desk).code == "payments"
    refused = [
        verdict(policy, "pay_never", small, **desk),
        verdict(policy, "pay", small, **{**desk, "agent": "other"}),
        verdict(policy, "pay", small, **{**desk, "attributes": {"tenant": "acme"}}),
        verdict(policy, "pay", small, **desk, source="maps"),
        verdict(policy, "pay", {**small, "currency": "GBP"}, **desk),
        verdict(policy, "pay", {**small, "to": "DE"}, **desk),
        verdict(policy, "pay", {**small, "recipient": {"country": "KP"}}, **desk),
        verdict(policy, "pay", {**small, "recipient": None}, **desk),
        verdict(policy, "pay", small, **{**desk, "read_annotations": ToolAnnotations}),
    ]
    assert {(each.decision, each.code) for each in refused} == {("deny", "policy_default")}


def test_a_policy_without_a_default_denies(tmp_path: Path) -> None:
    assert Policy.from_yaml(file(tmp_path, RULE)).default == "deny"


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("default: [", 1, "the policy is not valid YAML"),
        ("- a", 1, "the policy must be a mapping of keys to values, not a list"),
        ("default: deny", 1, "the policy has no rules: add `rules:`"),
        ("default: perhaps\nrules: []", 1, "default must be allow or deny"),
        ("default: deny\nrules: []", 2, "rules is empty: add at least one rule"),
        ("rules: one", 1, "rules must be a list, not text"),
        ("rule:\n - id: a", 1, "unknown key 'rule' in the policy: use default, rules"),
        ("rules:\n  - one", 2, "a rule must be a mapping of keys to values, not text"),
        ("rules:\n  - decision: allow", 2, "the rule has no id: add `id:`"),
        ("rules:\n  - id: one", 2, "the rule has no decision: add `decision:`"),
        ("rules:\n  - id: one\n    decision: maybe", 3, "decision must be one of allow, deny, require_approval"),
        ("rules:\n  - id: policy_error\n    decision: allow", 2, "choose another id"),
        (f"{RULE}    tool: pay", 4, "unknown key 'tool' in a rule: use id, decision, tools"),
        (f"{RULE}    id: two", 4, "the key 'id' is there twice: delete one"),
        (f"{RULE}    tools: 3", 4, "tools must be a str or a list of str, not int"),
        (f"{RULE}    tools: [a, 3]", 4, "tools[1] must be a str, not int"),
        (f"{RULE}    tools:", 4, "tools must be a str or a list of str, not None"),
        (f"{RULE}    tools: []", 4, "tools must have at least one pattern"),
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
        (f"{RULE}    arguments:", 4, "arguments must be a mapping of keys to values, not nothing"),
        (f"{RULE}    arguments: {{}}", 4, "arguments is empty"),
        (f"{RULE}    arguments:\n      a: 1", 5, "the conditions of 'a' must be a mapping"),
        (f"{RULE}    arguments:\n      a: {{}}", 5, "'a' has no condition"),
        (
            f"{RULE}    arguments:\n      a:\n        gt: 1",
            6,
            "unknown operator 'gt': use one of equals, not_equals",
        ),
        (f"{RULE}    arguments:\n      a: {{matches: '('}}", 5, "not a valid regular expression"),
        (f"{RULE}    arguments:\n      a: {{matches: 'a)|(b'}}", 5, "not a valid regular expression"),
        (f"{RULE}    arguments:\n      a: {{matches: 7}}", 5, "matches must have a regular expression as text"),
        (f"{RULE}    arguments:\n      a..b:\n        equals: 1", 5, "invalid argument 'a..b': put one dot between"),
        (f"{RULE}    arguments:\n      'a.': {{equals: 1}}", 5, "invalid argument 'a.'"),
        (f"{RULE}    arguments:\n      a\\b: {{equals: 1}}", 5, "invalid argument 'a\\\\b'"),
        (f"{RULE}    arguments:\n      a: {{exists: 1}}", 5, "exists must have true or false"),
        (f"{RULE}    arguments:\n      a: {{not_in: []}}", 5, "not_in must have a list"),
        (f"{RULE}    arguments:\n      a: {{not_matches: '('}}", 5, "not_matches has a pattern that is not a valid"),
        (f"{RULE}    arguments:\n      a: {{in: EUR}}", 5, "in must have a list"),
        (f"{RULE}    arguments:\n      a: {{less_than: '5'}}", 5, "less_than must have a finite number"),
        (f"{RULE}    arguments:\n      a: {{less_than: .nan}}", 5, "'.nan' is a number in YAML: put it in quotes"),
        (f"{RULE}    arguments:\n      a: {{in: [SE, NO]}}", 5, "'NO' is true or false in YAML: put it in quotes"),
        (f"{RULE}    arguments:\n      a: {{equals: 12:30}}", 5, "'12:30' is a number in YAML: put it in quotes"),
        (f"{RULE}    arguments:\n      a: {{equals: 007}}", 5, "'007' is a number in YAML: put it in quotes"),
        (f"{RULE}    arguments:\n      a: {{equals: 2026-01-01}}", 5, "put it in quotes"),
        (f"{RULE}    arguments:\n      a: {{equals: !python/name:os.system x}}", 5, "put it in quotes"),
        (f"{RULE}  - id: one\n    decision: deny", 4, "two rules have the id 'one'"),
        (
            f"{RULE}  - id: two\n    decision: deny\n    tools: pay",
            4,
            "rule 'two' can never decide, because rule 'one'",
        ),
    ],
)
def test_an_error_has_the_file_and_the_line(tmp_path: Path, text: str, line: int, problem: str) -> None:
    path = file(tmp_path, text)
    with pytest.raises(ConfigurationError) as caught:
        Policy.from_yaml(path)
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
        (f"{RULE}    arguments: {{a: {{in: &a [*a]}}}}", "an anchor contains itself"),
    ],
)
def test_a_file_without_lines_to_name_is_refused(tmp_path: Path, text: str | bytes, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(problem)):
        Policy.from_yaml(file(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"nowhere\.yaml: the policy cannot be read: No such file"):
        Policy.from_yaml(tmp_path / "nowhere.yaml")


def test_without_its_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ConfigurationError, match=re.escape("pip install 'traced_tools[policy]'")):
        Policy.from_yaml(file(tmp_path, RULE))
