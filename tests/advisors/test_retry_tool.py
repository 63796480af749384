"""`RetryToolAdvisor` retries failed calls of the tools that it is for, as one call in telemetry."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.modes import MODES, arun, run
from tests.tools.batches import attributes, client_of, function_tool, recorded
from tests.waiting import patiently, until
from traced_tools import Advisor, ConfigurationError, LoopLimits, RetryToolAdvisor, ToolCall, ToolResult
from traced_tools.core import ToolAnnotations
from traced_tools.tools import ToolInvocation, retries
from traced_tools.tools.invocation import CallNext

READ_ONLY = ToolAnnotations(read_only=True)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this module waits between attempts, unless it says so."""
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.0)


class Failing:
    """Fails a number of times, then answers with the number of the attempt."""

    def __init__(self, times: float, error: Exception | None = None) -> None:
        self.times = times
        self.error = error or ConnectionError("down")
        self.attempts = 0

    def failing(self) -> int:
        """Try."""
        self.attempts += 1
        if self.attempts <= self.times:
            raise self.error
        return self.attempts


def one_result(mode: str, failing: Failing, telemetry: Telemetry, *advisors: Advisor, **settings: Any) -> ToolResult:
    """Call the failing tool once, with its settings and the advisors, and return the result."""
    tool = function_tool(failing.failing, **settings)
    client = client_of(["failing"], [tool], telemetry, advisors=advisors)
    (result,) = run(mode, client.prompt("?")).tool_results
    return result


def test_a_failed_call_is_retried_until_it_succeeds(mode: str, telemetry: Telemetry) -> None:
    failing = Failing(2)
    result = one_result(mode, failing, telemetry, RetryToolAdvisor(), annotations=READ_ONLY)
    assert (result.decision, result.outcome, result.value, failing.attempts) == ("allowed", "ok", 3, 3)
    (span,) = attributes(telemetry)
    assert span["traced_tools.tool.attempts"] == 3
    assert span["traced_tools.tool.outcome"] == "ok"
    assert recorded(telemetry, "traced_tools.tool.retries") == 2
    assert recorded(telemetry, "traced_tools.tool.decisions") == 1
    telemetry.check_each_ended_once()


def test_the_error_of_the_last_attempt_is_the_result(mode: str, telemetry: Telemetry) -> None:
    failing = Failing(math.inf)
    result = one_result(mode, failing, telemetry, RetryToolAdvisor(retries=3), annotations=READ_ONLY)
    assert (result.outcome, result.error, failing.attempts) == ("error", failing.error, 4)
    telemetry.check_each_ended_once()


@pytest.mark.parametrize(
    ("tools", "annotations", "is_retried"),
    [
        ("*", READ_ONLY, True),
        ("*", ToolAnnotations(idempotent=True, destructive=True), True),
        ("*", ToolAnnotations(), False),
        ("fail*", ToolAnnotations(read_only=False, idempotent=False), False),
        ("failing", ToolAnnotations(), True),
        ("failing", ToolAnnotations(destructive=True), True),
        (["other", "fail?ng"], READ_ONLY, True),
        (["other", "Failing"], READ_ONLY, False),
    ],
)
def test_a_pattern_chooses_tools_that_are_safe_to_repeat_and_a_name_any_tool(
    tools: Any, annotations: ToolAnnotations, is_retried: bool, telemetry: Telemetry
) -> None:
    failing = Failing(1)
    result = one_result("call", failing, telemetry, RetryToolAdvisor(tools), annotations=annotations)
    assert (result.ok, failing.attempts) == (is_retried, 1 + is_retried)


@pytest.mark.parametrize(
    ("retry_on", "error", "is_retried"),
    [
        (LookupError, KeyError(), True),
        ((LookupError, ValueError), ValueError(), True),
        (LookupError, ConnectionError(), False),
        (lambda error: "busy" in str(error), OSError("busy"), True),
        (lambda error: "busy" in str(error), OSError("gone"), False),
        (lambda error: 1, OSError("gone"), False),
        (lambda error: 1 / 0 > 0, OSError("gone"), False),
    ],
    ids=["of its type", "of one of its types", "of another type", "chosen", "not chosen", "not True", "broken"],
)
@pytest.mark.parametrize("mode", MODES)
def test_only_the_given_errors_are_retried(
    retry_on: Any, error: Exception, is_retried: bool, mode: str, telemetry: Telemetry
) -> None:
    failing = Failing(1, error)
    advisor = RetryToolAdvisor("failing", retry_on=retry_on)
    assert one_result(mode, failing, telemetry, advisor).ok is is_retried
    assert failing.attempts == 1 + is_retried


class Refusing(Advisor):
    """Refuses each call, inside the retries."""

    name, order = "refusing", 500

    def __init__(self) -> None:
        self.calls = 0

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        self.calls += 1
        return call.denied("not today")


def test_a_refusal_is_not_retried(mode: str, telemetry: Telemetry) -> None:
    failing, refusing = Failing(0), Refusing()
    advisor = RetryToolAdvisor("failing", retry_on=Exception)
    result = one_result(mode, failing, telemetry, advisor, refusing)
    assert (result.decision, refusing.calls, failing.attempts) == ("denied", 1, 0)


def test_arguments_that_an_inner_advisor_makes_invalid_are_not_retried(mode: str, telemetry: Telemetry) -> None:
    class Breaking(Refusing):
        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            self.calls += 1
            return await call_next(call.replace(arguments={"x": "no number"}))

    def takes(x: int) -> None:
        raise AssertionError

    breaking = Breaking()
    advisors = [RetryToolAdvisor("takes", retry_on=Exception), breaking]
    client = client_of([ToolCall("takes", {"x": 1})], [function_tool(takes)], telemetry, advisors=advisors)
    (result,) = run(mode, client.prompt("?")).tool_results
    assert (result.decision, breaking.calls) == ("invalid_arguments", 1)


def test_no_retry_begins_after_the_deadline_of_the_run(
    mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1000.0)
    failing = Failing(math.inf)
    tool = function_tool(failing.failing)
    client = client_of(["failing"], [tool], telemetry, advisors=[RetryToolAdvisor("failing")])
    run(mode, client.prompt("?", limits=LoopLimits(max_seconds=500)))
    assert failing.attempts == 1
    assert recorded(telemetry, "traced_tools.tool.retries") == 0


def test_a_run_that_is_cancelled_during_a_pause_makes_no_further_attempt(
    async_mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1000.0)
    failing = Failing(math.inf)
    client = client_of(["failing"], [function_tool(failing.failing)], telemetry, advisors=[RetryToolAdvisor("failing")])

    async def main() -> None:
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.to_thread(until, lambda: recorded(telemetry, "traced_tools.tool.retries") == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    assert failing.attempts == 1
    telemetry.check_cancelled()


def test_the_audit_trail_has_one_intent_and_the_outcome_of_each_attempt(mode: str, telemetry: Telemetry) -> None:
    trail = KeptTrail()
    one_result(mode, Failing(2), telemetry, auditing(trail), RetryToolAdvisor("failing"))
    assert trail.stories() == [["intent failing", "allowed", "error", "error", "ok"]]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"tools": 3}, TypeError),
        ({"tools": ["a", 3]}, TypeError),
        ({"tools": []}, ConfigurationError),
        ({"tools": ""}, ConfigurationError),
        ({"retries": 0}, ValueError),
        ({"retries": True}, TypeError),
        ({"retry_on": "ConnectionError"}, ValueError),
        ({"retry_on": ConnectionError("an instance")}, ValueError),
        ({"name": 1}, TypeError),
        ({"order": "first"}, TypeError),
    ],
    ids=repr,
)
def test_wrong_settings_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        RetryToolAdvisor(**settings)


def test_a_name_that_no_tool_of_the_run_has_is_logged_once(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    advisor = RetryToolAdvisor(["failing", "flakey", "fail*"])
    for _ in range(2):
        one_result("call", Failing(0), telemetry, advisor)
    logged = [each.getMessage() for each in caplog.records if each.name == "traced_tools.advisors.tool_patterns"]
    assert logged == ["no tool of the run is named 'flakey': check tools= of RetryToolAdvisor or CacheToolAdvisor"]


def test_the_repr_says_what_is_retried() -> None:
    assert repr(RetryToolAdvisor(["get_*", "pay"])) == (
        "<RetryToolAdvisor 'retry_tool': get_*, pay, 2 retries, order 430>"
    )
