"""Traces, events and metrics name who refused or approved a call, and the reason code."""

from __future__ import annotations

import asyncio
import hmac
import re
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.events.watching import Watching
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from tests.observe.runs import adds
from tests.sample_tools import add, fail
from tests.waiting import patiently
from traced_tools import (
    Advisor,
    ApprovalAdvisor,
    Approve,
    ChatClient,
    ContentCapture,
    LoopLimits,
    ToolCall,
    ToolResult,
    tool,
)
from traced_tools.observe import ToolDecided, names
from traced_tools.observe.settings import PSEUDONYM_KEY
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, ToolInvocation
from traced_tools.tools.invocation import CallNext

WHO_AND_WHY = (names.ADVISOR_NAME, names.REASON_CODE, names.APPROVAL_BY)


@tool(requires_approval=True)
def launch() -> str:
    """Launch."""
    return "gone"


class Desk(Advisor):
    """Refuses every call, in the name of a person, with a code."""

    name, order = "desk", 400

    def __init__(self, code: Any = "weekend", by: str | None = "Ana Müller") -> None:
        self._decided = {"code": code, "by": by}

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        return call.denied(MARKER, **self._decided)


def who_and_why(attributes: Any) -> list[Any]:
    return [attributes.get(name) for name in WHO_AND_WHY]


def assert_recorded(telemetry: Telemetry, watching: Watching, span: str, expected: list[Any]) -> None:
    """Assert that span, log event, typed event and metric agree; the metric never names the person."""
    assert who_and_why(telemetry.one(span).attributes) == expected
    (decided,) = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert who_and_why(decided.attributes) == expected
    (typed,) = (event for event in watching.events if isinstance(event, ToolDecided))
    assert [typed.advisor, typed.reason_code, typed.by] == expected
    (counted,) = telemetry.metric(names.TOOL_DECISIONS.name)
    assert who_and_why(counted.attributes) == [*expected[:2], None]
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_names_the_advisor_the_reason_code_and_the_person(mode: str) -> None:
    telemetry, watching = Telemetry("SPAN_AND_EVENT"), Watching()
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "x"]), tools=[add], advisors=[watching, Desk()], telemetry=telemetry.options
    )
    (result,) = run(mode, client.prompt("?")).tool_results
    assert (result.advisor, result.reason_code, result.by) == ("desk", "weekend", "Ana Müller")
    assert_recorded(telemetry, watching, "refuse_tool add", ["desk", "weekend", "Ana Müller"])


@pytest.mark.parametrize("mode", MODES)
def test_a_refusal_by_the_loop_has_its_reason_code_on_span_event_and_metric(mode: str) -> None:
    telemetry, code = Telemetry(), "max_tool_calls"
    limits = LoopLimits(max_tool_calls=1, on_limit="stop")
    model = ScriptedChatModel([[adds(1, 1), adds(2, 2)], "x"])
    run(mode, ChatClient(model, tools=[add], telemetry=telemetry.options, limits=limits).prompt("?"))
    (span,) = (each for each in telemetry.spans if each.name.startswith("refuse_tool"))
    assert who_and_why(span.attributes) == [None, code, None]
    events = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert [None, code, None] in [who_and_why(each.attributes) for each in events]
    points = telemetry.metric(names.TOOL_DECISIONS.name)
    assert [None, code, None] in [who_and_why(each.attributes) for each in points]


def driven(how: str, telemetry: Telemetry, watching: Watching, decide: Any) -> list[ToolResult]:
    """Run a call whose driver decides about it."""
    client = ChatClient(
        ScriptedChatModel([ToolCall("launch", "", id="1"), "x"]),
        tools=[launch],
        advisors=[watching],
        telemetry=telemetry.options,
    )

    async def drive() -> list[ToolResult]:
        run = client.prompt("?").start()
        while step := run.next():
            if isinstance(step, ExecuteTools):
                decide(step)
            run.perform(step) if how == "perform" else await run.aperform(step)
        return list(run.response.tool_results)

    return asyncio.run(patiently(drive()))


@pytest.mark.parametrize("how", ["perform", "aperform"])
def test_a_driver_names_the_refusing_person_and_reason(how: str) -> None:
    telemetry, watching = Telemetry("SPAN_AND_EVENT"), Watching()
    (result,) = driven(how, telemetry, watching, lambda step: step.deny("1", MARKER, code="too_late", by="ana"))
    assert (result.decision, result.reason_code, result.by) == ("denied", "too_late", "ana")
    assert_recorded(telemetry, watching, "refuse_tool launch", [None, "too_late", "ana"])


@pytest.mark.parametrize("how", ["perform", "aperform"])
def test_a_driver_names_the_approving_person(how: str) -> None:
    telemetry, watching = Telemetry("SPAN_AND_EVENT"), Watching()
    (result,) = driven(how, telemetry, watching, lambda step: step.approve("1", by="ana"))
    assert (result.decision, result.by) == ("approved", "ana")
    assert_recorded(telemetry, watching, "execute_tool launch", [None, None, "ana"])


def test_a_refusal_by_an_advisor_does_not_name_the_person_who_approved() -> None:
    telemetry, watching = Telemetry("SPAN_AND_EVENT"), Watching()
    client = ChatClient(
        ScriptedChatModel([ToolCall("launch", "", id="1"), "x"]),
        tools=[launch],
        advisors=[watching, Desk(by=None)],
        telemetry=telemetry.options,
    )
    run = client.prompt("?").start()
    while step := run.next():
        if isinstance(step, ExecuteTools):
            step.approve("1", by="ana")
        run.perform(step)
    assert_recorded(telemetry, watching, "refuse_tool launch", ["desk", "weekend", None])


# Who decided is a content.


def recorded(capture: Any, tools: Any = launch, by: str = "ana") -> list[Any]:
    """Who decided about a call, as span, log event and typed event record it."""
    telemetry, watching = Telemetry(capture), Watching()
    model = ScriptedChatModel([ToolCall("launch", "", id="1"), "x"])
    advisors = [watching, ApprovalAdvisor(lambda request: Approve(by=by))]
    ChatClient(model, tools=tools, advisors=advisors, telemetry=telemetry.options).prompt("?").call()
    (typed,) = (event for event in watching.events if isinstance(event, ToolDecided))
    (logged,) = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    spans = [telemetry.one(name).attributes or {} for name in ("execute_tool launch", "await_approval launch")]
    assert_consistent(telemetry)
    return [*(each.get(names.APPROVAL_BY) for each in (*spans, logged.attributes)), typed.by]


def test_a_name_is_recorded_where_content_is_captured_and_a_pseudonym_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PSEUDONYM_KEY, "a key of 16 bytes or more")
    known = "pseudonym:" + hmac.digest(b"a key of 16 bytes or more", b"ana", "sha256").hex()[:16]
    assert recorded(None) == [known] * 4
    assert recorded("SPAN_ONLY") == ["ana", "ana", known, known]
    assert recorded("EVENT_ONLY") == [known, known, "ana", "ana"]
    assert (
        recorded("SPAN_AND_EVENT", tool(name="launch", capture=False, requires_approval=True)(lambda: ""))
        == [known] * 4
    )
    assert recorded(None, by="bob") != [known] * 4
    monkeypatch.setenv(PSEUDONYM_KEY, "another key of 16 bytes")
    assert recorded(None) != [known] * 4


def test_a_redactor_decides_about_the_name() -> None:
    seen: list[Any] = []

    def redact(name: str, value: Any) -> Any:
        seen.append((name, value))
        return value.title() if name == names.APPROVAL_BY else None

    assert recorded(ContentCapture("SPAN_AND_EVENT", redact)) == ["Ana"] * 4
    assert (names.APPROVAL_BY, "ana") in seen


def test_without_a_key_pseudonyms_are_the_same_within_the_process(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(PSEUDONYM_KEY, raising=False)
    (first,) = {*recorded(None)}
    assert re.fullmatch("pseudonym:[0-9a-f]{16}", first)
    monkeypatch.setenv(PSEUDONYM_KEY, "short")
    assert recorded(None) == [first] * 4
    (warning,) = caplog.messages
    assert warning.startswith(f"{PSEUDONYM_KEY} must have at least 16 bytes, it has 5; ")


def test_the_number_of_reason_codes_and_advisor_labels_is_limited() -> None:
    telemetry = Telemetry()
    turns = [adds(number, 1) for number in range(100)]
    calls = iter(range(1000))

    class Computing(Advisor):
        name, order = "computing", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            number = next(calls)
            result = call.denied("no", code=f"code-{number}", by=f"person-{number}")
            return ToolResult(
                result.call_id,
                result.tool,
                "no",
                decision="denied",
                reason_code=result.reason_code,
                advisor=f"advisor-{number}",
            )

    client = ChatClient(
        ScriptedChatModel([*turns, "x"]),
        tools=[add],
        advisors=[Computing()],
        limits=LoopLimits(max_iterations=None, max_calls_per_tool=101),
        telemetry=telemetry.options,
    )
    client.prompt("?").call()
    points = telemetry.metric(names.TOOL_DECISIONS.name)
    assert sum(total(point) for point in points) == 100
    for label in (names.REASON_CODE, names.ADVISOR_NAME):
        values = {point.attributes[label] for point in points}
        assert len(values) <= names.MAX_LABEL_VALUES + 1
        assert names.OTHER in values


def test_an_invalid_person_or_reason_code_is_refused() -> None:
    model = ScriptedChatModel([[ToolCall("fail", "", id="1")], "x"])
    run = ChatClient(model, tools=[fail]).prompt("?").start()
    while not isinstance(step := run.next(), ExecuteTools):
        assert step is not None
        run.perform(step)
    for decide, wrong in (
        (lambda: step.deny("1", "no", by=7), "by must be a str or None, not int"),  # type: ignore[arg-type]
        (lambda: step.deny("1", "no", code=7), "code must be a str or None, not int"),  # type: ignore[arg-type]
        (lambda: step.deny("1", None), "reason must be a str, not None"),  # type: ignore[arg-type]
        (lambda: step.approve("1", by=["ana"]), "by must be a str or None, not list"),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match=wrong):
            decide()
    with pytest.raises(ValueError, match="by must not be blank"):
        step.approve("1", by=" ")
    run.close()
