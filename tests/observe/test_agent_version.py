"""The version of an agent: what its runs are sent, and what their metrics are compared by."""

from __future__ import annotations

import hashlib
import hmac
from itertools import count
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    Approve,
    ChatClient,
    Policy,
    PolicyAdvisor,
    Rule,
    SystemMessage,
    ToolCall,
    ToolResult,
    UserMessage,
)
from traced_tools.core import ToolMetadata
from traced_tools.core.messages import Usage
from traced_tools.demo.scenario.models import LARGE, ScenarioPrices
from traced_tools.observe import names
from traced_tools.observe.agent_version import AgentDigests
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.invocation import CallNext

COMPARED = (
    names.INVOKE_AGENT_DURATION,
    names.LOOP_ITERATIONS_METRIC,
    names.LOOP_COST_METRIC,
    names.TOOL_DECISIONS,
)
DIGESTS = (names.INSTRUCTIONS_DIGEST, names.TOOLS_DIGEST, names.AGENT_POLICY_DIGEST)

NUMBERS = count()
"""For the names of agents, because the versions of an agent are limited."""


class Refuses(Advisor):
    name, order = "refuses", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return call.denied("no")


def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


def agent(telemetry: Telemetry, **settings: Any) -> ChatClient:
    model = ScriptedChatModel(["x"] * 50)
    return ChatClient(model, telemetry=telemetry.options, **{"system": "Be brief.", "tools": [add], **settings})


def facts(telemetry: Telemetry) -> dict[str, Any]:
    """What the span of the newest run says of the version."""
    attributes = [each.attributes for each in telemetry.spans if each.name.startswith("invoke_agent")][-1] or {}
    return {name: attributes[name] for name in (names.AGENT_VERSION, *DIGESTS) if name in attributes}


def version_of(**settings: Any) -> str:
    telemetry = Telemetry()
    agent(telemetry, **{"name": f"agent-{next(NUMBERS)}", **settings}).prompt("?").call()
    (labels,) = labels_of(telemetry, names.LOOP_ITERATIONS_METRIC)
    assert facts(telemetry)[names.AGENT_VERSION] == labels
    return str(labels)


def labels_of(telemetry: Telemetry, metric: Any) -> list[Any]:
    return [point.attributes.get(names.AGENT_VERSION) for point in telemetry.metric(metric.name)]


@pytest.mark.parametrize("mode", MODES)
def test_the_version_of_a_client_is_on_its_runs_and_the_metrics_that_compare_them(mode: str) -> None:
    telemetry = Telemetry(prices=ScenarioPrices())
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "3"], usage=[Usage(input_tokens=9)] * 2, model=LARGE)
    client = ChatClient(model, version="2.1", tools=[add], advisors=[Refuses()], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    assert facts(telemetry)[names.AGENT_VERSION] == "2.1"
    (stopped,) = [each for each in telemetry.events if each.name == names.LOOP_STOP_EVENT.name]
    assert stopped.attributes[names.AGENT_VERSION] == "2.1"
    assert {metric.name: labels_of(telemetry, metric) for metric in COMPARED} == {
        metric.name: ["2.1"] for metric in COMPARED
    }


def test_without_a_version_another_instruction_tool_or_policy_is_another_version() -> None:
    policies = [PolicyAdvisor(Policy([Rule("no_adding", then=then, tool=["add"])])) for then in ("deny", "allow")]
    settings: list[dict[str, Any]] = [
        {},
        {"system": "Be long."},
        {"system": None},
        {"tools": [add, subtract]},
        {"tools": [FunctionToolCallback(add, description="Add up.")]},
        {"tools": ()},
        *({"advisors": [policy]} for policy in policies),
        {"advisors": [policies[0], PolicyAdvisor(Policy([Rule("b", then="deny", tool=["b"])]), name="second")]},
    ]
    versions = [version_of(**each) for each in settings]
    assert len({*versions}) == len(settings)
    assert versions == [version_of(**each) for each in settings]


def test_what_is_no_setting_of_the_agent_makes_no_version() -> None:
    evaluated = PolicyAdvisor(Policy([Rule("no_adding", then="deny", tool=["add"])]), evaluate_only=True)
    others: list[dict[str, Any]] = [{"advisors": [Refuses(), evaluated]}, {"tool_context": {"user": "ana"}}]
    assert {version_of(**each) for each in others} == {version_of()}
    assert version_of(tools=[add, subtract]) == version_of(tools=[subtract, add])


def test_the_digests_of_a_run_are_those_of_what_it_is_sent() -> None:
    telemetry, policy = Telemetry(), Policy([Rule("no_adding", then="deny", tool=["add"])])
    client = agent(telemetry, advisors=[PolicyAdvisor(policy)])
    client.prompt("?").call()
    own = facts(telemetry)
    assert own[names.INSTRUCTIONS_DIGEST] == hashlib.sha256(b"Be brief.").hexdigest()[:16]
    assert own[names.AGENT_POLICY_DIGEST] == policy.digest
    client.prompt("?", system="Be long.", tools=[subtract]).call()
    other = facts(telemetry)
    assert other[names.INSTRUCTIONS_DIGEST] == hashlib.sha256(b"Be long.").hexdigest()[:16]
    assert other[names.TOOLS_DIGEST] != own[names.TOOLS_DIGEST]
    assert other[names.AGENT_POLICY_DIGEST] == own[names.AGENT_POLICY_DIGEST]


def test_the_key_of_pseudonyms_makes_the_digest_of_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "a key of sixteen bytes"
    monkeypatch.setenv("TRACED_TOOLS_PSEUDONYM_KEY", key)
    telemetry = Telemetry()
    agent(telemetry, system="You help Ana.").prompt("?").call()
    keyed = hmac.digest(key.encode(), b"You help Ana.", "sha256").hex()[:16]
    assert facts(telemetry)[names.INSTRUCTIONS_DIGEST] == keyed


@pytest.mark.parametrize("mode", MODES)
def test_nothing_that_is_sent_is_emitted_with_its_digest(mode: str) -> None:
    def secretive() -> str:
        return "x"

    telemetry = Telemetry()
    described = FunctionToolCallback(secretive, description=f"Finds {MARKER}.")
    run(mode, agent(telemetry, system=f"You help {MARKER}.", tools=[described]).prompt("?"))
    assert len(facts(telemetry)) == 3
    assert MARKER not in everything(telemetry)


def test_a_run_without_instructions_tools_and_policies_has_no_digests() -> None:
    telemetry = Telemetry()
    agent(telemetry, system=None, tools=()).prompt("?").call()
    assert facts(telemetry).keys() == {names.AGENT_VERSION}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "request_settings",
    [
        {"system": "The time is 12:07."},
        {"tools": [add]},
        {"messages": [SystemMessage("The time is 12:07."), UserMessage("Hi.")]},
    ],
    ids=["system", "tools", "messages"],
)
def test_what_a_request_sets_is_no_version(mode: str, request_settings: dict[str, Any]) -> None:
    telemetry = Telemetry()
    client = agent(telemetry, system=None) if "messages" in request_settings else agent(telemetry)
    run(mode, client.prompt("?", **request_settings))
    assert names.AGENT_VERSION not in facts(telemetry)
    assert labels_of(telemetry, names.LOOP_ITERATIONS_METRIC) == [names.OTHER]
    telemetry = Telemetry()
    run(mode, agent(telemetry, version="2.1").prompt("?", **request_settings))
    assert labels_of(telemetry, names.LOOP_ITERATIONS_METRIC) == ["2.1"]


def test_a_conversation_that_goes_on_with_the_instructions_of_the_client_has_its_version() -> None:
    telemetry = Telemetry()
    client = agent(telemetry)
    client.prompt("?").call()
    client.prompt("!", messages=[SystemMessage("Be brief."), UserMessage("?")]).call()
    (label,) = labels_of(telemetry, names.LOOP_ITERATIONS_METRIC)
    assert label == facts(telemetry)[names.AGENT_VERSION]


def test_a_run_that_resumes_has_the_version_of_the_client_unless_its_instructions_have_changed() -> None:
    telemetry = Telemetry()
    pay = FunctionToolCallback(lambda: "paid", name="pay", metadata=ToolMetadata(requires_approval=True))
    client = agent(telemetry, tools=[pay]).replace(model=ScriptedChatModel([ToolCall("pay", id="c1"), "x", "y"]))
    state = client.prompt("?").call().state or ""
    paused = facts(telemetry)
    client.resume(state, {"c1": Approve()}).call()
    assert facts(telemetry) == paused
    client.replace(system="Be long.").resume(state, {"c1": Approve()}).call()
    resumed = facts(telemetry)
    assert names.AGENT_VERSION not in resumed
    assert resumed[names.INSTRUCTIONS_DIGEST] == paused[names.INSTRUCTIONS_DIGEST]


def test_the_number_of_versions_of_an_agent_in_metrics_is_limited() -> None:
    telemetry = Telemetry()
    for number in range(50):
        for version in (None, f"1.{number}"):
            name = "numbered" if version else "digested"
            agent(telemetry, name=name, version=version, system=f"The time is 12:{number}.").prompt("?").call()
    for name in ("numbered", "digested"):
        shown = {
            point.attributes[names.AGENT_VERSION]
            for point in telemetry.metric(names.LOOP_ITERATIONS_METRIC.name)
            if point.attributes[names.AGENT_NAME] == name
        }
        assert len(shown) == names.MAX_VERSIONS + 1
        assert names.OTHER in shown
    assert facts(telemetry)[names.AGENT_VERSION] == "1.49"


def test_a_run_whose_tools_cannot_be_listed_has_no_version_unless_it_is_set() -> None:
    class Broken:
        def tool_callbacks(self) -> Any:
            raise ConnectionError

    telemetry = Telemetry()
    for version in (None, "2.1"):
        with pytest.raises(ConnectionError):
            agent(telemetry, tools=[Broken()], version=version).prompt("?").call()
    assert labels_of(telemetry, names.LOOP_ITERATIONS_METRIC) == [None, "2.1"]


def test_without_an_sdk_no_digest_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AgentDigests, "of", lambda *_: pytest.fail("a digest was made"))
    assert ChatClient(ScriptedChatModel(["x"]), system="Be brief.", tools=[add]).prompt("?").call().content == "x"


def test_a_tool_whose_definition_has_no_digest_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise LookupError

    monkeypatch.setattr(AgentDigests, "of", broken)
    telemetry = Telemetry()
    assert agent(telemetry).prompt("?").call().content == "x"
    assert [point.value for point in telemetry.metric(names.TELEMETRY_FAILURES.name)] == [1]


@pytest.mark.parametrize("version", ["", " ", "a" * 65, "2\n1", "\ud800"])
def test_a_version_has_a_few_printable_characters(version: str) -> None:
    with pytest.raises(ValueError, match=r"version must have 1 to 64 printable characters.*pass version='2\.1'"):
        agent(Telemetry(), version=version)
    with pytest.raises(TypeError, match="version must be a str or None"):
        agent(Telemetry(), version=2.1)


def test_a_version_is_not_the_label_that_stands_for_many_versions() -> None:
    with pytest.raises(ValueError, match="version must not be '_OTHER'"):
        agent(Telemetry(), version=names.OTHER)
