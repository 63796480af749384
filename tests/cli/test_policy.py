"""`traced-tools policy check`: what a policy would have changed about the calls of an audit trail."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.audit.made import Chain, content, write
from tests.modes import MODES, run
from tests.sample_tools import add, fail
from traced_tools import AuditAdvisor, AuditTrail, ChatClient, Policy, PolicyAdvisor, ToolCall, tool
from traced_tools.audit.digests import AuditKey
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


def digest(policy: str) -> str:
    return hashlib.sha256(policy.encode()).hexdigest()[:16]


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
        f"the policy is valid: 3 rules, default deny, digest {digest(POLICY)}",
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
    said = f"the policy is valid: 3 rules, default deny, digest {digest(POLICY)}\n"
    assert (result.exit_code, result.stdout) == (0, said)


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


BY_PRINCIPAL = """
default: deny
rules:
  - {id: known, then: allow, tool: get_*, principal: [ana, bob]}
  - {id: any, then: allow, tool: list_*, principal: "?*"}
  - {id: desks, then: allow, tool: pay, principal: desk-*}
"""
SECRET_KEY = "0123456789abcdef"


def principals(tmp_path: Path, key: AuditKey, *, stored: bool) -> Path:
    chain = Chain()
    for index, (name, principal) in enumerate(
        [(each, who) for each in ("get_it", "list_it", "pay") for who in ("ana", "eve", "desk-1", None)]
    ):
        content = None if principal is None else key.content(principal)
        if stored and principal is not None and content is not None:
            content |= key.committed(principal, cut=False)
        chain.call(name, call_id=f"{name} {principal}", run_id="run-1", batch_index=index, principal=content)
    return write(tmp_path / "audit.db", chain)


def replayed(result: Result) -> tuple[set[str], dict[str, tuple[str, str]]]:
    printed = json.loads(result.stdout)
    lacking = {each["call_id"]: (each["rule"], each["lacks"]) for each in printed["not_replayed"]}
    return {each["call_id"] for each in printed["changed"]}, lacking


CHANGED = {
    *("get_it eve", "get_it desk-1", "get_it None", "list_it None"),
    *("pay ana", "pay eve", "pay None"),
}


@pytest.mark.parametrize("key", [None, SECRET_KEY])
def test_principals_whose_names_are_stored_are_replayed(
    tmp_path: Path, key: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = principals(tmp_path, AuditKey(SECRET_KEY.encode()), stored=True)
    if key is not None:
        monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", key)
    assert replayed(check(tmp_path, BY_PRINCIPAL, "--audit", store, "--json")) == (CHANGED, {})


def test_principals_whose_digests_are_stored_are_compared_with_the_key_unless_a_pattern_has_wildcards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = principals(tmp_path, AuditKey(SECRET_KEY.encode()), stored=False)
    payers = {f"pay {who}": ("desks", "principal") for who in ("ana", "eve", "desk-1")}
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET_KEY)
    changed = {each for each in CHANGED if each not in payers}
    assert replayed(check(tmp_path, BY_PRINCIPAL, "--audit", store, "--json")) == (changed, payers)
    for key in ("another key of 16 bytes", ""):
        monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", key)
        found, lacking = replayed(check(tmp_path, BY_PRINCIPAL, "--audit", store, "--json"))
        assert found == {"get_it None", "list_it None", "pay None"}
        assert {rule for rule, _ in lacking.values()} == {"known", "any", "desks"}
        assert len(lacking) == 9


@pytest.mark.parametrize(("stored", "status"), [("digest", 1), ("full", 0)])
def test_principals_of_real_runs_are_replayed_as_their_policy_decided(
    tmp_path: Path, stored: Any, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET_KEY)
    file = tmp_path / "policy.yaml"
    file.write_text(BY_PRINCIPAL.replace("pay", "add").replace("get_*", "fail"))
    store = tmp_path / "audit.db"
    with AuditTrail(store, content=stored) as audit:
        advisors = [AuditAdvisor(audit), PolicyAdvisor(Policy.load(file))]
        for principal in ("ana", "eve", "desk-1", None):
            calls = [ToolCall("add", {"a": 1, "b": 1}), ToolCall("fail")]
            model = ScriptedChatModel([calls, "done"])
            ChatClient(model, tools=[add, fail], advisors=advisors).prompt("?", principal=principal).call()
    result = check(tmp_path, file.read_text(), "--audit", store, "--json")
    found, lacking = counts(result), {each["lacks"] for each in json.loads(result.stdout)["not_replayed"]}
    assert (result.exit_code, found["changed"], found["not_replayed"]) == (status, 0, 3 * status)
    assert lacking == ({"principal"} if status else set())


def test_attributes_of_a_principal_are_not_replayed_unless_the_run_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = """
default: deny
rules:
  - {id: team, then: allow, where: {principal.team: {eq: finance}, city: {eq: Oslo}}}
"""
    chain = Chain()
    key = AuditKey(SECRET_KEY.encode())
    ana = key.content("ana") | key.committed("ana", cut=False)
    oslo, bonn = (content(json.dumps({"city": city}), stored=True) for city in ("Oslo", "Bonn"))
    for index, (call_id, arguments, principal) in enumerate(
        [("needs them", oslo, ana), ("another city", bonn, ana), ("no principal", oslo, None)]
    ):
        chain.call("go", call_id=call_id, run_id="run-1", batch_index=index, arguments=arguments, principal=principal)
    store = write(tmp_path / "audit.db", chain)
    changed, lacking = replayed(check(tmp_path, policy, "--audit", store, "--json"))
    assert (changed, lacking) == ({"another city", "no principal"}, {"needs them": ("team", "principal attributes")})
    monkeypatch.setenv("COLUMNS", "120")
    said = check(tmp_path, policy, "--audit", store).stdout
    assert (
        "NOT REPLAYED: 1 call, because rule team needs attributes of the principal that the trail does not store"
        in said
    )


def test_the_digests_of_the_policies_that_decided_are_counted(tmp_path: Path) -> None:
    chain = Chain()
    for index, text in enumerate([ALL, ALL, POLICY, None]):
        chain.call("get_it", run_id="run-1", batch_index=index, policy_digest=None if text is None else digest(text))
    store = write(tmp_path / "audit.db", chain)
    printed = json.loads(check(tmp_path, ALL, "--audit", store, "--json").stdout)
    assert (printed["digest"], printed["decided_by"]) == (digest(ALL), {digest(ALL): 2, digest(POLICY): 1})
    said = check(tmp_path, ALL, "--audit", store).stdout
    assert "decided by this text: 2 recorded calls\n" in said
    assert f"decided by another policy, {digest(POLICY)}: 1 recorded call\n" in said


# What an evaluated policy would change.


def evaluated(*options: object) -> Result:
    return CliRunner().invoke(app, ["policy", "evaluated", *map(str, options)])


def verdict(decision: str, code: str, becomes: str, advisor: str = "evaluated_policy") -> dict[str, str]:
    found = {"advisor": advisor, "decision": decision, "reason_code": code, "policy_digest": digest(POLICY)}
    return found | {"becomes": becomes}


def test_calls_that_an_evaluated_policy_would_change_are_grouped_by_its_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "140")
    chain = Chain()
    for index, (decision, verdicts) in enumerate(
        [
            ("allowed", [verdict("deny", "large", "denied"), verdict("deny", "strict", "denied", "other")]),
            ("allowed", [verdict("deny", "large", "denied")]),
            ("allowed", [verdict("allow", "small", "allowed")]),
            ("denied", [verdict("require_approval", "policy_default", "pending")]),
            ("allowed", None),
        ]
    ):
        chain.call("pay", call_id=str(index), run_id="run-1", batch_index=index, decision=decision, evaluated=verdicts)
    store = write(tmp_path / "audit.db", chain)
    result = evaluated("--store", store)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == "5 verdicts: 4 would change a decision, 1 would not"
    assert lines[2:4] == [
        "advisor policy rule tool was would become calls",
        f"evaluated_policy {digest(POLICY)} large pay allowed denied 2",
    ]
    assert f"evaluated_policy {digest(POLICY)} policy_default pay denied pending 1" in lines
    printed = json.loads(evaluated("--store", store, "--advisor", "other", "--json").stdout)
    assert printed["counts"] == {"evaluated": 1, "changed": 1}
    assert printed["policies"] == {digest(POLICY): 1}
    [changed] = printed["changed"]
    assert (changed["call_id"], changed["evaluated"]["reason_code"]) == ("0", "strict")
    assert evaluated("--store", store, "--until", "2020-01-01T00:00Z").stdout.startswith("0 verdicts")
    missing = evaluated("--store", tmp_path / "none.db")
    assert (missing.exit_code, missing.stderr.startswith("policy: ")) == (2, True)


def test_a_policy_evaluated_in_a_run_is_shown_by_the_command(tmp_path: Path) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    store = tmp_path / "audit.db"
    with AuditTrail(store) as audit:
        advisors = [AuditAdvisor(audit), PolicyAdvisor(Policy.load(file), evaluate_only=True)]
        client = ChatClient(
            ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "done"]), tools=[add], advisors=advisors
        )
        client.prompt("?").call()
    [changed] = json.loads(evaluated("--store", store, "--json").stdout)["changed"]
    assert (changed["decision"], changed["evaluated"]["becomes"]) == ("allowed", "denied")
    assert changed["evaluated"]["policy_digest"] == digest(POLICY)
    shown = CliRunner().invoke(app, ["audit", "show", changed["run_id"], "--store", str(store)]).stdout
    assert "evaluated    denied with evaluated_policy (policy_default)" in shown


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
