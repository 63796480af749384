"""What the audit advisor does when the trail cannot be written, and where it cannot stand."""

from __future__ import annotations

from typing import Any

import pytest

from tests.audit.draft_trails import RAN, KeptTrail, Twice, assert_reconciled, auditing, client_of
from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.observe.runs import Outside, adds
from tests.sample_tools import add
from traced_tools import Advisor, ChatClient, ToolCall
from traced_tools.audit.advisor import AuditAdvisor
from traced_tools.audit.records import Draft
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import AdvisorChainError
from traced_tools.loop import TOOL_LOOP_ORDER, ToolCallingAdvisor
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.invocation import CallNext, ToolInvocation


@pytest.fixture
def trail() -> KeptTrail:
    return KeptTrail()


@pytest.mark.parametrize("mode", MODES)
def test_no_tool_runs_whose_intent_cannot_be_recorded(trail: KeptTrail, mode: str) -> None:
    ran: list[str] = []

    def act() -> None:
        """Act."""
        ran.append("act")

    trail.is_out = True
    telemetry = Telemetry()
    client = client_of(
        trail, [[ToolCall("act", ""), ToolCall("act", "")], "x"], tools=[act], telemetry=telemetry.options
    )
    response = run(mode, client.prompt("?"))
    assert ran == []
    assert [each.decision for each in response.tool_results] == ["denied", "denied"]
    assert trail.stories() == [["intent act", "denied"]] * 2
    decision = {"decision": "denied", "advisor": "audit", "reason_code": "audit_unavailable"}
    assert [each.fields for each in trail.of("decision")] == [decision, decision]
    assert_reconciled(trail, telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_with_warn_the_tool_runs_and_the_log_says_so_once_for_each_outage(
    trail: KeptTrail, mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    advisor = auditing(trail, on_failure="warn")
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], adds(3, 3), "x"] * 3)
    client = ChatClient(model, tools=[add], advisors=[advisor])
    for is_out, said in ((True, 1), (False, 1), (True, 2)):
        trail.is_out = is_out
        assert run(mode, client.prompt("?")).content == "x"
        assert len([each for each in caplog.records if each.name == "traced_tools.audit.advisor"]) == said
    assert "audit: the record is not durable in time; tools run before their record" in caplog.text
    assert trail.stories() == [RAN] * 9


@pytest.mark.parametrize("mode", MODES)
def test_with_warn_only_the_first_call_of_an_outage_waits(trail: KeptTrail, mode: str) -> None:
    for trail.is_out in (True, False, True):  # and each run has an advisor of its own
        model = ScriptedChatModel([adds(1, 1), adds(2, 2), "x"])
        client = ChatClient(model, tools=[add], advisors=[auditing(trail, on_failure="warn")])
        run(mode, client.prompt("?"))
    assert trail.timeouts == [None, 0.0, 0.0, None, None, 0.0]
    late = [each.fields.get("intent_late") for each in trail.of("decision")]
    assert late == [True, True, None, None, True, True]


def test_with_deny_every_call_of_an_outage_waits(trail: KeptTrail) -> None:
    trail.is_out = True
    client_of(trail, [adds(1, 1), adds(2, 2), "x"]).prompt("?").call()
    assert trail.timeouts == [None, None]


def test_a_call_that_was_denied_for_want_of_its_record_stays_so_when_advice_tries_again(trail: KeptTrail) -> None:
    trail.is_out = True
    response = client_of(trail, [adds(1, 1), "x"], Twice(350)).prompt("?").call()
    assert [each.decision for each in response.tool_results] == ["denied"]
    assert trail.stories() == [["intent add", "denied"]]


class AgainWhenItIsBack(Advisor):
    """Has a call that was denied tried again once the trail works."""

    name, order = "again", 350

    def __init__(self, trail: KeptTrail) -> None:
        self._trail = trail

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        result = await call_next(call)
        assert result.decision == "denied"
        self._trail.is_out = False
        return await call_next(call)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_is_tried_again_waits_again_and_runs_when_its_record_is_there(trail: KeptTrail, mode: str) -> None:
    trail.is_out = True
    response = run(mode, client_of(trail, [adds(1, 1), "x"], AgainWhenItIsBack(trail)).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed"]
    assert trail.stories() == [RAN]
    assert trail.waits == 2


@pytest.mark.parametrize("mode", MODES)
def test_with_warn_a_call_that_is_tried_again_waits_again(trail: KeptTrail, mode: str) -> None:
    trail.is_out = True
    model = ScriptedChatModel([adds(1, 1), "x"])
    client = ChatClient(model, tools=[add], advisors=[Twice(350), auditing(trail, on_failure="warn")])
    run(mode, client.prompt("?"))
    assert trail.waits == 2
    assert len(trail.of("intent")) == 1


def test_of_two_trails_one_may_fail(trail: KeptTrail) -> None:
    other = KeptTrail()
    other.is_out = True
    for on_failure, story in (("warn", RAN), ("deny", ["intent add", "denied"])):
        second = auditing(other, on_failure=on_failure, name="second", order=410)
        client_of(trail, [adds(1, 1), "x"], second).prompt("?").call()
        assert trail.stories()[-1] == other.stories()[-1] == story


def test_what_else_a_trail_raises_ends_the_run_and_no_tool_has_run(trail: KeptTrail) -> None:
    ran: list[str] = []

    def act() -> None:
        """Act."""
        ran.append("act")

    def broken(draft: Draft, timeout: float | None) -> Any:
        raise ZeroDivisionError

    trail.write = broken
    with pytest.raises(ZeroDivisionError):
        client_of(trail, [ToolCall("act", ""), "x"], tools=[act]).prompt("?").call()
    assert ran == []


# Where it stands.


@pytest.mark.parametrize("order", [TOOL_LOOP_ORDER, 0, -1])
def test_an_order_outside_the_loop_is_refused(trail: KeptTrail, order: int) -> None:
    with pytest.raises(AdvisorChainError, match=r"outside the tool loop.*300"):
        auditing(trail, order=order)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("asked", [adds(1, 1), ToolCall("nobody")])
def test_a_loop_that_is_further_in_is_an_error_and_no_tool_runs(trail: KeptTrail, mode: str, asked: ToolCall) -> None:
    ran: list[Any] = []

    def add(a: int, b: int) -> None:
        """Add."""
        ran.append((a, b))

    client = client_of(trail, [asked, "x"], tools=[add], tool_calling_advisor=ToolCallingAdvisor(order=500))
    with pytest.raises(AdvisorChainError, match=r"audit \(order 400\) is outside the tool loop"):
        run(mode, client.prompt("?"))
    assert ran == []


def test_without_a_loop_there_is_nothing_to_record(trail: KeptTrail) -> None:
    response = client_of(trail, [adds(1, 1)]).prompt("?", tool_calling=False).call()
    assert len(response.tool_calls) == 1
    assert trail.drafts == []


@pytest.mark.parametrize(
    ("trail_given", "options", "error"),
    [
        ("audit.db", {}, TypeError),
        (None, {}, TypeError),
        (KeptTrail(), {"on_failure": "raise"}, ValueError),
        (KeptTrail(), {"name": 3}, TypeError),
        (KeptTrail(), {"order": "400"}, TypeError),
    ],
)
def test_what_cannot_be_used_is_refused(trail_given: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        AuditAdvisor(trail_given, **options)


def test_the_same_advisor_twice_in_a_chain_records_once(trail: KeptTrail) -> None:
    advisor = auditing(trail)
    client = ChatClient(ScriptedChatModel([[adds(1, 1), ToolCall("no")], "x"]), tools=[add], advisors=[advisor])
    client.prompt("?", advisors=[advisor]).call()
    assert trail.stories() == [RAN, ["intent _unknown", "unknown_tool"]]


def test_it_has_a_span_around_the_tool_and_none_around_the_model(trail: KeptTrail) -> None:
    telemetry = Telemetry()
    client_of(trail, [adds(1, 1), "x"], telemetry=telemetry.options).prompt("?").call()
    assert len(telemetry.named("advise_tool audit")) == 1
    assert telemetry.named("advise audit") == []


def test_the_run_may_go_through_the_loop_again(trail: KeptTrail) -> None:
    class Again(Advisor):
        name, order = "again", 100

        async def advise(self, request: Any, call_next: Any) -> Any:
            await call_next(request)
            return await call_next(request)

    client_of(trail, [adds(1, 1), "x", adds(2, 2), "x"], Again(), Outside()).prompt("?").call()
    assert trail.stories() == [RAN, RAN]
