"""Policies that read the principal of a run and its attributes, in all modes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest

from tests.markers import MARKER
from tests.modes import ALL_MODES, run
from tests.observe.exported import Wiretap
from tests.observe.runs import adds
from tests.sample_tools import add
from tests.waiting import until
from traced_tools import (
    ChatClient,
    ConfigurationError,
    Policy,
    PolicyAdvisor,
    Rule,
    ToolCall,
    ToolResult,
    tool,
)
from traced_tools.run.context import RunContext
from traced_tools.testing import ScriptedChatModel

SECRET = "my mother's maiden name"
FINANCE = Policy([Rule("finance", then="allow", where={"principal.team": {"eq": "finance"}})])
TEAMS = {"ana": "finance", "bob": "sales"}


def ask(mode: str, advisor: PolicyAdvisor, principal: str | None, *calls: ToolCall, **client: Any) -> list[ToolResult]:
    model = ScriptedChatModel([[*(calls or (adds(1, 1),))], "done"])
    settings = {"tools": [add], "advisors": [advisor], **client}
    return [*run(mode, ChatClient(model, **settings).prompt("?", principal=principal)).tool_results]


def codes(results: list[ToolResult]) -> list[tuple[str, str | None]]:
    return [(each.decision, each.reason_code) for each in results]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_rules_read_the_principal_of_the_run(mode: str) -> None:
    policy = PolicyAdvisor(Policy([Rule("desk", then="allow", principal=["ana", "desk-*"])]))
    seen = {each: ask(mode, policy, each)[0].decision for each in ("ana", "desk-1", "bob", None)}
    assert seen == {"ana": "allowed", "desk-1": "allowed", "bob": "denied", None: "denied"}


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize("mode", ALL_MODES)
def test_attributes_of_the_principal_are_read_once_in_a_run_and_only_if_a_rule_needs_them(
    mode: str, is_async: bool
) -> None:
    asked: list[str] = []

    def team_of(principal: str) -> Mapping[str, Any]:
        asked.append(principal)
        return {"team": TEAMS[principal]}

    async def team_of_async(principal: str) -> Mapping[str, Any]:
        await asyncio.sleep(0)
        return team_of(principal)

    rules = [Rule("zero", then="allow", where={"a": {"eq": 0}}), *FINANCE.rules]
    advisor = PolicyAdvisor(Policy(rules), principal_attributes=team_of_async if is_async else team_of)
    several = [adds(each, 1) for each in range(1, 6)]
    assert codes(ask(mode, advisor, "ana", *several)) == [("allowed", "finance")] * 5
    assert asked == ["ana"]
    assert codes(ask(mode, advisor, "bob", *several)) == [("denied", "policy_default")] * 5
    assert asked == ["ana", "bob"]
    assert codes(ask(mode, advisor, None)) == [("denied", "policy_default")]
    assert codes(ask(mode, advisor, "bob", adds(0, 1))) == [("allowed", "zero")]
    assert asked == ["ana", "bob"]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_argument_called_principal_does_not_stand_for_the_principal(mode: str) -> None:
    @tool
    def report(principal: dict[str, str]) -> str:
        """Report."""
        return "reported"

    advisor = PolicyAdvisor(FINANCE, principal_attributes=lambda principal: {"team": TEAMS[principal]})
    forged = ToolCall("report", {"principal": {"team": "finance"}, "principal.team": "finance"})
    for principal in ("bob", None):
        results = ask(mode, advisor, principal, ToolCall("report", {"principal": {"team": "finance"}}), tools=[report])
        assert codes(results) == [("denied", "policy_default")]
        assert ask(mode, advisor, principal, forged, tools=[report])[0].decision in ("denied", "invalid_arguments")


def raising(principal: str) -> Mapping[str, Any]:
    raise LookupError(SECRET)


async def raising_async(principal: str) -> Mapping[str, Any]:
    raise LookupError(SECRET)


BROKEN: dict[str, tuple[Any, str]] = {
    "raises": (raising, "LookupError"),
    "raises, async": (raising_async, "LookupError"),
    "returns text": (lambda principal: SECRET, "TypeError"),
    "returns nothing": (lambda principal: None, "TypeError"),
    "returns what is not JSON": (
        lambda principal: {"team": object()},
        "pydantic_core._pydantic_core.PydanticSerializationError",
    ),
    "returns a number that JSON does not have": (lambda principal: {"limit": float("nan")}, "ValueError"),
}


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize(("resolver", "kind"), BROKEN.values(), ids=BROKEN)
def test_a_resolver_that_fails_denies_each_call_and_its_text_is_not_logged(
    mode: str, resolver: Any, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[str] = []

    def counted(principal: str) -> Any:
        calls.append(principal)
        return resolver(principal)

    advisor = PolicyAdvisor(FINANCE, principal_attributes=counted if "async" not in repr(resolver) else resolver)
    results = ask(mode, advisor, "ana", adds(1, 1), adds(2, 1))
    assert codes(results) == [("denied", "policy_error")] * 2
    assert [each.rule for each in results] == ["finance"] * 2
    assert len(calls) <= 1
    expected = f"policy: principal_attributes, which rule finance needs, failed: {kind}; the call is denied"
    said = [each.getMessage() for each in caplog.records if each.name == "traced_tools.policy.advisor"]
    assert said == [expected] * 2
    assert SECRET not in caplog.text + "".join(each.content + repr(each) for each in results)


def test_an_advisor_without_a_resolver_refuses_a_policy_that_needs_one() -> None:
    with pytest.raises(ConfigurationError, match="pass principal_attributes="):
        PolicyAdvisor(FINANCE)
    PolicyAdvisor(Policy([Rule("bare", then="allow", where={"principal": {"exists": True}})]))
    with pytest.raises(TypeError, match="principal_attributes must be callable"):
        PolicyAdvisor(FINANCE, principal_attributes={"ana": {}})  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_advisor_keeps_no_run_that_is_over(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[weakref.ref[RunContext]] = []
    entered = RunContext.__enter__

    def entering(context: RunContext) -> None:
        runs.append(weakref.ref(context))
        entered(context)

    monkeypatch.setattr(RunContext, "__enter__", entering)
    for resolver in (raising, lambda principal: {"team": "finance"}):
        advisor = PolicyAdvisor(FINANCE, principal_attributes=resolver)
        ask(mode, advisor, "ana")
    assert runs

    def are_gone() -> bool:
        gc.collect()
        return all(run() is None for run in runs)

    until(are_gone)  # a worker forgets its job just after it gave the result


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_nested_run_has_the_principal_of_the_run_around_it(mode: str) -> None:
    advisor = PolicyAdvisor(FINANCE, principal_attributes=lambda principal: {"team": TEAMS[principal]})
    inner = ChatClient(ScriptedChatModel([adds(1, 1), "2"]), tools=[add], advisors=[advisor])
    agent = inner.as_tool("ask", "Ask.")
    model = ScriptedChatModel([ToolCall("ask", {"question": "?"}), "done"])
    response = run(mode, ChatClient(model, tools=[agent]).prompt("?", principal="ana"))
    assert response.tool_results[0].content == "2"


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("evaluate_only", [False, True])
def test_no_attribute_of_a_principal_is_recorded(
    mode: str, evaluate_only: bool, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    where = {"principal.team": {"eq": MARKER}, "principal.level": {"ge": 1}}
    policy = Policy([Rule("marked", then="allow", where=where)])
    for attributes in ({"team": MARKER, "level": 2}, {"team": MARKER, "level": MARKER}, {MARKER: MARKER}):
        advisor = PolicyAdvisor(
            policy, principal_attributes=lambda _, found=attributes: found, evaluate_only=evaluate_only
        )
        with Wiretap(caplog, capsys) as wiretap:
            model = ScriptedChatModel([adds(1, 1), "done"])
            client = ChatClient(model, tools=[add], advisors=[advisor], telemetry=wiretap.telemetry.options)
            wiretap.run(client.prompt("?", principal="ana"), mode)
            wiretap.check()
        assert MARKER not in repr(advisor) + repr(policy)


def test_the_log_says_that_a_rule_compares_what_nobody_has(caplog: pytest.LogCaptureFixture) -> None:
    rule = Rule("sales", then="deny", where={"principal.team": {"eq": "sales"}})
    advisor = PolicyAdvisor(Policy([rule], default="allow"), principal_attributes=lambda principal: {})
    assert codes(ask("call", advisor, None)) == [("denied", "policy_error")]
    (record,) = caplog.records
    said = "policy: rule sales compares a value that the call or its principal does not have; the call is denied"
    assert record.getMessage() == said
