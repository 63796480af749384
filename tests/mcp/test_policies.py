"""Rules about the tools of MCP servers, whatever servers list, and whenever."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.mcp.servers import raw_server, tools_of
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import AuditAdvisor, AuditTrail, ChatClient, Policy, PolicyAdvisor, Rule, ToolCall
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.core import ToolAnnotations
from traced_tools.flow.flow import call as drive
from traced_tools.mcp import McpToolset
from traced_tools.mcp.naming import McpToolNames
from traced_tools.policy.rule import CallFacts
from traced_tools.testing import ScriptedChatModel

NO_DELETES = Rule("no-deletes", tool="delete_all", source="bank", then="deny")


def calling(toolset: McpToolset, policy: Policy, *names: str) -> ChatClient:
    calls = [ToolCall(name, {"text": "x"}) for name in names]
    return ChatClient(ScriptedChatModel([*calls, "done"]), tools=[toolset], advisors=[PolicyAdvisor(policy)])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bank_is_first", [True, False])
def test_a_server_that_lists_the_name_of_another_ones_tool_disarms_no_rule_and_renames_nothing(
    mode: str, bank_is_first: bool
) -> None:
    bank = raw_server("names=delete_all,balance", name="bank")
    weather = raw_server("names=forecast;forecast,delete_all,bank_delete_all", name="weather")
    policy = Policy([NO_DELETES], default="allow")
    with McpToolset(*((bank, weather) if bank_is_first else (weather, bank))) as both:
        before, after = tools_of(both), tools_of(both)
        assert [name for name in after if name in before] == [*before]
        name = "delete_all" if bank_is_first else "bank_delete_all"
        assert after[name].metadata.source == "bank"
        others = [each for each in after if each not in before]
        assert len(others) == 2
        response = run(mode, calling(both, policy, name, *others).prompt("?"))
    codes = [(each.decision, each.reason_code) for each in response.tool_results]
    assert codes == [("denied", "no-deletes"), *[("allowed", "policy_default")] * 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own_name", ["delete.all", "delete/all", "lösche", "delete all", "x" * 70])
def test_a_rule_with_the_servers_own_name_holds_for_a_name_that_providers_refuse_and_with_a_prefix(
    mode: str, own_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy = Policy([Rule("no-deletes", tool=own_name, source="bank", then="deny")], default="allow")
    for prefix in (False, True):
        with raw_server(f"names={own_name}", name="bank", prefix=prefix) as bank:
            (name,) = tools_of(bank)
            (result,) = run(mode, calling(bank, policy, name).prompt("?")).tool_results
        assert name != own_name
        assert (result.decision, result.reason_code) == ("denied", "no-deletes")
    assert caplog.text == ""


def test_a_tool_with_the_name_of_a_question_is_not_offered(caplog: pytest.LogCaptureFixture) -> None:
    with raw_server("names=sampling/createMessage,roots/list,elicitation/x,echo", name="bank") as bank:
        assert [*tools_of(bank)] == ["echo"]
    assert caplog.text.count("cannot be offered: it has the name of a question of servers") == 3


def test_a_tool_that_would_have_the_name_of_another_tool_is_not_offered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.mcp.naming.unmistakable_name", lambda name: name.split("_")[0])
    with raw_server("names=a_1,a_2,b", name="bank") as bank:
        assert {name: tool.metadata.own_name for name, tool in tools_of(bank).items()} == {"a": "a_1", "b": "b"}
    assert "the tool a of the MCP server bank cannot be offered: another tool of the server has its name" in caplog.text


def test_the_intent_of_a_call_has_the_servers_own_name_if_it_is_another_one(tmp_path: Any) -> None:
    calls = [[ToolCall("bank_pay", {"text": "x"}), ToolCall("add", {"a": 1, "b": 1})], "done"]
    with AuditTrail(tmp_path / "audit.db") as trail, raw_server("names=pay", name="bank", prefix=True) as bank:
        ChatClient(ScriptedChatModel(calls), tools=[bank, add], advisors=[AuditAdvisor(trail)]).prompt("?").call()
    names = {
        each.fields("intent")["tool"]: each.fields("intent").get("own_name")
        for each in AuditReader(tmp_path / "audit.db").calls()
    }
    assert names == {"bank_pay": "pay", "add": None}


# Names that no tool has.


@pytest.mark.parametrize("mode", MODES)
def test_a_rule_with_a_name_that_no_tool_of_its_source_has_is_logged_once(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    rules = [
        Rule("typo", tool=["delet_all", "delete_all"], source="bank", then="deny"),
        Rule("elsewhere", tool="forecast", source="weather", then="deny"),
        Rule("questions", tool="sampling/createMessage", source="bank", then="deny"),
        Rule("pattern", tool="drop_*", source="bank", then="deny"),
        Rule("other-agent", tool="drop", agent="desk", then="deny"),
        Rule("other-tenant", tool="drop", attributes={"tenant": "acme"}, then="deny"),
        Rule("spaced", tool="pay refund", then="deny"),
        Rule("own", tool="delete_all", then="allow"),
    ]
    policy = Policy(rules, default="allow")
    with raw_server("names=delete_all", name="bank", prefix=True) as bank:
        for _ in range(2):
            run(mode, calling(bank, policy).prompt("?"))
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    assert [record.getMessage() for record in caplog.records] == [
        "policy: rule 'typo' is for the tool 'delet_all', and no known tool of 'bank' has that name",
        "policy: rule 'spaced' is for the tool 'pay refund', and no known tool of 'bank' has that name",
        "policy: rule 'own' allows no call of the tool 'delete_all' of 'bank', which is offered under another name: "
        "add the source to the rule, or use the offered name",
    ]


def test_a_rule_is_logged_when_a_server_no_longer_lists_its_tool(caplog: pytest.LogCaptureFixture) -> None:
    policy = Policy([NO_DELETES], default="allow")
    with raw_server("names=delete_all;delete_everything", name="bank") as bank:
        calling(bank, policy).prompt("?").call()
        assert caplog.text == ""
        calling(bank, policy).prompt("?").call()
    assert "rule 'no-deletes' is for the tool 'delete_all', and no known tool of 'bank' has that name" in caplog.text


# Any servers.

SERVERS = st.permutations(["bank", "weather", "a", "a_b", "7"]).flatmap(
    lambda names: st.integers(1, len(names)).map(lambda count: names[:count])
)
PARTS = ["delete", "all", "b", "a", "bank", "weather", "_", "-", ".", "/", "x y", "7", "é", "x" * 30]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map("_".join)
LISTS = st.lists(st.sets(NAMES, min_size=1, max_size=6), min_size=1, max_size=3)


@given(SERVERS, st.booleans(), st.data())
def test_no_rule_that_denies_by_source_and_own_name_is_ever_passed(
    servers: list[str], prefix: bool, data: st.DataObject
) -> None:
    listed = {server: data.draw(LISTS, server) for server in servers}
    names = McpToolNames(servers, None if prefix else servers[0])
    target = servers[-1]
    own_name = data.draw(st.sampled_from(sorted(set.union(*listed[target]))))
    deny = Rule("deny", tool=own_name, source=target, then="deny")
    allow = Rule("allow", tool=own_name, then="allow")
    offered = {
        (server, tool): names.offered(server, tool) for server in servers for each in listed[server] for tool in each
    }
    for (server, tool), name in offered.items():
        facts = CallFacts(name, server, "agent", {}, ToolAnnotations, dict, tool)
        denied = drive(Policy([deny], default="allow").decide(facts)).decision == "deny"
        assert denied >= ((server, tool) == (target, own_name))
        allowed = drive(Policy([allow], default="deny").decide(facts)).decision == "allow"
        assert allowed is (name == own_name)
