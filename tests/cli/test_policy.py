"""`traced-tools policy check`: what a policy would have changed about the calls of an audit trail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.audit.made import Chain, content, write
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import AuditAdvisor, AuditTrail, ChatClient, Policy, PolicyAdvisor, ToolCall, tool
from traced_tools.cli.app import app
from traced_tools.testing import ScriptedChatModel

POLICY = """
default: deny
rules:
  - {id: reads, then: allow, tool: get_*}
  - {id: small, then: allow, tool: pay, where: {amount: {le: 100}}}
  - {id: large, then: require_approval, tool: pay}
"""
ALL = "rules: [{id: all, then: allow}]"


def check(tmp_path: Path, policy: str, *options: object) -> Result:
    file = tmp_path / "policy.yaml"
    file.write_text(policy)
    return CliRunner().invoke(app, ["policy", "check", str(file), *map(str, options)])


def counts(result: Result) -> dict[str, int]:
    found: dict[str, int] = json.loads(result.stdout)["counts"]
    return found


def pays(amount: int, *, stored: bool = True) -> dict[str, Any]:
    return content(json.dumps({"amount": amount}), stored=stored)


def trail(tmp_path: Path) -> Path:
    chain = Chain()
    of_policy = {"decision": "denied", "advisor": "policy", "reason_code": "old"}
    for index, (name, fields) in enumerate(
        [
            ("get_weather", {}),
            ("get_weather", of_policy),
            ("pay", {"arguments": pays(50)}),
            ("pay", {"arguments": pays(500)}),
            ("pay", {"arguments": pays(500), "decision": "approved", "by": "ana"}),
            ("pay", {"arguments": pays(500), "decision": "rejected", "by": "ana"}),
            ("pay", {"arguments": pays(50), "decision": "pending", "reason_code": "old"}),
            ("pay", {"arguments": pays(50, stored=False)}),
            ("pay", {"arguments": {**pays(50, stored=True), "size": 99}}),
            ("delete", {}),
            ("delete", {"decision": "answered", "advisor": "cache"}),
            ("delete", {"decision": "limited", "reason_code": "max_tool_calls"}),
            ("delete", {"decision": "denied", "advisor": "desk"}),
            ("delete", {"decision": None}),
            ("delete", of_policy),
        ]
    ):
        chain.call(name, call_id=f"call_{index}", run_id="run-1", agent="desk", batch_index=index, **fields)
    return write(tmp_path / "audit.db", chain)


def test_the_calls_whose_decision_changes_are_counted_and_listed(tmp_path: Path) -> None:
    result = check(tmp_path, POLICY, "--audit", trail(tmp_path), "--json")
    assert result.exit_code == 1, result.output
    assert counts(result) == {"changed": 5, "unchanged": 5, "not_replayed": 2, "not_decided": 3}
    printed = json.loads(result.stdout)
    changed = {
        each["call_id"]: (each["decision"], each["becomes"], each["becomes_code"]) for each in printed["changed"]
    }
    assert changed == {
        "call_1": ("denied", "allowed", "reads"),
        "call_3": ("allowed", "pending", "large"),
        "call_6": ("pending", "allowed", "small"),
        "call_9": ("allowed", "denied", "policy_default"),
        "call_10": ("answered", "denied", "policy_default"),
    }
    assert {each["call_id"] for each in printed["not_replayed"]} == {"call_7", "call_8"}


def test_a_call_that_requires_approval_by_default_becomes_pending(tmp_path: Path) -> None:
    policy = POLICY.replace("default: deny", "default: require_approval")
    printed = json.loads(check(tmp_path, policy, "--audit", trail(tmp_path), "--json").stdout)
    by_default = [each for each in printed["changed"] if each["becomes_code"] == "policy_default"]
    assert {each["call_id"]: each["becomes"] for each in by_default} == {"call_9": "pending", "call_14": "pending"}


def test_the_text_has_the_counts_a_table_and_what_was_not_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    result = check(tmp_path, POLICY, "--audit", trail(tmp_path))
    assert result.exit_code == 1, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[:4] == [
        "the policy is valid: 3 rules, default deny",
        "replayed 10 calls: 5 changed, 5 as before",
        "NOT REPLAYED: 2 calls, because rule small needs arguments that the trail does not store",
        "left out: 3 calls that ended before a policy decides",
    ]
    assert "pay desk allowed pending large 1" in lines
    assert "pay desk allowed ? 2" in lines


def test_each_rule_that_needs_what_the_trail_does_not_store_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    hinted = "\n  - {id: hinted, then: allow, tool: [get_*, delete], annotations: {read_only: true}}"
    policy = POLICY.replace("rules:", f"rules:{hinted}")
    store = trail(tmp_path)
    result = check(tmp_path, policy, "--audit", store, "--json")
    assert counts(result) == {"changed": 2, "unchanged": 3, "not_replayed": 7, "not_decided": 3}
    lacking = {each["call_id"]: (each["rule"], each["lacks"]) for each in json.loads(result.stdout)["not_replayed"]}
    assert lacking == {
        **{f"call_{index}": ("hinted", "annotations") for index in (0, 1, 9, 10, 14)},
        **{f"call_{index}": ("small", "arguments") for index in (7, 8)},
    }
    printed = check(tmp_path, policy, "--audit", store).stdout
    assert "NOT REPLAYED: 5 calls, because rule hinted needs annotations that the trail does not store\n" in printed
    assert "NOT REPLAYED: 2 calls, because rule small needs arguments that the trail does not store\n" in printed


def test_without_a_change_the_status_is_zero(tmp_path: Path) -> None:
    chain = Chain()
    chain.call("get_weather")
    store = write(tmp_path / "audit.db", chain)
    result = check(tmp_path, POLICY, "--audit", store)
    assert (result.exit_code, "1 call: 0 changed" in result.stdout) == (0, True)
    result = check(tmp_path, POLICY, "--audit", store, "--until", "2020-01-01T00:00Z", "--json")
    assert (result.exit_code, sum(counts(result).values())) == (0, 0)


def test_a_call_that_cannot_be_replayed_exits_with_status_one(tmp_path: Path) -> None:
    chain = Chain()
    chain.call("pay", arguments=pays(50, stored=False))
    result = check(tmp_path, POLICY, "--audit", write(tmp_path / "audit.db", chain))
    assert result.exit_code == 1, result.output
    assert "replayed 0 calls" in result.stdout


def test_the_policy_alone_is_checked_without_a_trail(tmp_path: Path) -> None:
    result = check(tmp_path, POLICY)
    assert (result.exit_code, result.stdout) == (0, "the policy is valid: 3 rules, default deny\n")


def bank_trail(tmp_path: Path) -> Path:
    chain = Chain()
    chain.call("bank_delete_all", source="bank", own_name="delete_all")
    chain.call("_unknown", call_id="call_2", batch_index=1, decision="unknown_tool", requested_name=content("drop"))
    return write(tmp_path / "audit.db", chain)


NO_DELETES = "default: allow\nrules: [{id: no-deletes, then: deny, tool: NAME, source: bank}]"


@pytest.mark.parametrize("name", ["delete_all", "bank_delete_all", "delete_*"])
def test_calls_are_replayed_with_the_offered_and_the_servers_own_name(tmp_path: Path, name: str) -> None:
    result = check(tmp_path, NO_DELETES.replace("NAME", name), "--audit", bank_trail(tmp_path), "--json")
    (changed,) = json.loads(result.stdout)["changed"]
    assert (changed["tool"], changed["becomes_code"]) == ("bank_delete_all", "no-deletes")
    assert json.loads(result.stdout)["missing_names"] == []


def test_a_name_that_no_recorded_tool_of_its_source_has_exits_with_status_one(tmp_path: Path) -> None:
    store = bank_trail(tmp_path)
    policy = NO_DELETES.replace("NAME", "[delet_all, drop_*]")
    result = check(tmp_path, policy, "--audit", store)
    assert result.exit_code == 1, result.output
    assert (
        "NO SUCH TOOL: rule 'no-deletes' is for the tool 'delet_all', and no known tool of 'bank' has that name"
        in " ".join(result.stdout.split())
    )
    printed = json.loads(check(tmp_path, policy, "--audit", store, "--json").stdout)
    assert printed["missing_names"] == [{"rule": "no-deletes", "name": "delet_all", "sources": ["bank"]}]
    other = check(tmp_path, policy.replace("source: bank", "source: mail"), "--audit", store)
    assert (other.exit_code, "no-deletes" in other.stdout) == (0, False)


def test_a_name_for_any_source_that_no_recorded_tool_has_is_named_and_no_failure(tmp_path: Path) -> None:
    store, policy = bank_trail(tmp_path), NO_DELETES.replace("NAME", "pay refund").replace(", source: bank", "")
    result = check(tmp_path, policy, "--audit", store)
    assert result.exit_code == 0, result.output
    assert "not seen: rule 'no-deletes' is for the tool 'pay refund', and no known" in " ".join(result.stdout.split())
    printed = json.loads(check(tmp_path, policy, "--audit", store, "--json").stdout)
    assert [each["name"] for each in printed["unseen_names"]] == ["pay refund"]


def test_the_file_of_pinned_tools_has_the_names_of_tools_that_were_never_called(tmp_path: Path) -> None:
    pins = tmp_path / "tools.lock"
    pins.write_text(json.dumps({"servers": {"bank": {"pay": {}}, "mail": {"send": {}}}}))
    for name, status in (("pay", 0), ("delete_all", 1)):
        assert check(tmp_path, NO_DELETES.replace("NAME", name), "--pins", pins).exit_code == status
    assert check(tmp_path, NO_DELETES.replace("NAME", "pay"), "--pins", tmp_path / "none").exit_code == 2
    with_calls = check(
        tmp_path,
        NO_DELETES.replace("NAME", "[pay, delete_all]"),
        "--pins",
        pins,
        "--audit",
        bank_trail(tmp_path),
        "--json",
    )
    assert json.loads(with_calls.stdout)["missing_names"] == []


def test_denials_are_those_of_the_named_policy_advisor(tmp_path: Path) -> None:
    chain = Chain()
    chain.call("get_weather", decision="denied", advisor="guard", reason_code="old")
    store = write(tmp_path / "audit.db", chain)
    assert counts(check(tmp_path, ALL, "--audit", store, "--json"))["not_decided"] == 1
    assert counts(check(tmp_path, ALL, "--audit", store, "--advisor", "guard", "--json"))["changed"] == 1


@pytest.mark.parametrize(
    ("policy", "options", "problem"),
    [
        ("rules: []", (), "policy.yaml, line 1: rules is empty"),
        (ALL, ("--audit", "missing.db"), "missing.db"),
        (
            "rules: [{id: a, then: deny, tool: 'pay, refund'}]",
            (),
            "line 1: rule 'a': no tool has the name 'pay, refund'",
        ),
    ],
)
def test_an_error_is_one_line_and_status_two(tmp_path: Path, policy: str, options: Any, problem: str) -> None:
    result = check(tmp_path, policy, *options)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("policy: ")
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_trail_that_stores_texts_replays_as_its_policy_decided(tmp_path: Path, mode: str) -> None:
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        return "paid"

    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    calls = [ToolCall("pay", {"amount": "50"}), ToolCall("pay", {"amount": 500}), ToolCall("add", {"a": 1, "b": 1})]
    store = tmp_path / "audit.db"
    with AuditTrail(store, content="full") as audit:
        advisors = [AuditAdvisor(audit), PolicyAdvisor(Policy.load(file))]
        client = ChatClient(ScriptedChatModel([calls, "done"]), tools=[pay, add], advisors=advisors)
        response = run(mode, client.prompt("?"))
    assert [each.reason_code for each in response.tool_results] == ["small", "policy_default"]
    assert [each.rule for each in response.pending] == ["large"]
    result = check(tmp_path, POLICY, "--audit", store, "--json")
    assert (result.exit_code, counts(result)["unchanged"]) == (0, 3)
    looser = check(tmp_path, POLICY.replace("100", "1000"), "--audit", store, "--json")
    (changed,) = json.loads(looser.stdout)["changed"]
    assert (changed["reason_code"], changed["becomes"], changed["becomes_code"]) == ("large", "allowed", "small")
