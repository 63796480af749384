"""A failed tool is retried if its settings say so; to advisors and telemetry it is one call."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.modes import arun, run
from tests.tools.batches import Stuck, attributes, client_of, function_tool, recorded
from tests.waiting import PATIENCE, patiently, until
from traced_tools import Advisor, LoopLimits, ToolCall, ToolContext, ToolExecutionError, ToolResult
from traced_tools.core import ToolErrors, ToolMetadata
from traced_tools.errors import ToolTimeout
from traced_tools.tools import ToolInvocation, retries
from traced_tools.tools.invocation import CallNext
from traced_tools.tools.retries import Retries


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test of this module waits between attempts."""
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

    async def afailing(self) -> int:
        """Try."""
        await asyncio.sleep(0)
        return self.failing()


@pytest.mark.parametrize("colour", ["blocking", "async"])
@pytest.mark.parametrize("timeout", [None, PATIENCE])
@pytest.mark.parametrize("times", [1, 3])
def test_a_tool_is_retried_until_it_succeeds(
    mode: str, times: int, timeout: float | None, colour: str, telemetry: Telemetry
) -> None:
    failing = Failing(times)
    function = failing.failing if colour == "blocking" else failing.afailing
    tool = function_tool(function, retries=3, timeout=timeout)
    (result,) = run(mode, client_of([tool.definition.name], [tool], telemetry).prompt("?")).tool_results
    assert (result.outcome, result.value, result.error) == ("ok", times + 1, None)
    assert failing.attempts == times + 1
    telemetry.check_each_ended_once()


def test_after_the_last_attempt_its_error_is_the_result(mode: str, telemetry: Telemetry) -> None:
    failing = Failing(math.inf)
    tool = function_tool(failing.failing, retries=2)
    (result,) = run(mode, client_of(["failing"], [tool], telemetry).prompt("?")).tool_results
    assert failing.attempts == 3
    assert (result.outcome, result.error_type, result.error) == ("error", "ConnectionError", failing.error)
    telemetry.check_each_ended_once()


def test_a_policy_that_raises_applies_after_the_last_attempt(mode: str, telemetry: Telemetry) -> None:
    failing = Failing(math.inf)
    client = client_of(["failing"], [function_tool(failing.failing, retries=2)], telemetry)
    with pytest.raises(ToolExecutionError):
        run(mode, client.prompt("?", tool_errors=ToolErrors(always_raise=True)))
    assert failing.attempts == 3
    telemetry.check_each_ended_once()


class Specific(LookupError):
    pass


@pytest.mark.parametrize("mode", ["call", "acall"])
@pytest.mark.parametrize(
    ("declared", "error", "attempts"),
    [
        ({}, ConnectionError(), 2),
        ({}, ConnectionResetError(), 2),
        ({}, TimeoutError(), 2),
        ({}, ToolTimeout(1), 2),
        ({}, ValueError(), 1),
        ({}, OSError(), 1),
        ({"retry_on": (LookupError,)}, Specific(), 2),
        ({"retry_on": (LookupError,)}, KeyError(), 2),
        ({"retry_on": (LookupError,)}, ConnectionError(), 1),
        ({"retry_on": (KeyError, ValueError)}, ValueError(), 2),
        ({"retry_on": (Exception,)}, StopIteration(), 2),
        ({"retry_on": ()}, ConnectionError(), 1),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Exception) else None,
)
def test_only_the_declared_classes_are_worth_another_attempt(
    mode: str, declared: dict[str, Any], error: Exception, attempts: int, telemetry: Telemetry
) -> None:
    failing = Failing(1, error)
    client = client_of(["failing"], [function_tool(failing.failing, retries=5, **declared)], telemetry)
    (result,) = run(mode, client.prompt("?")).tool_results
    assert failing.attempts == attempts
    assert result.ok == (attempts == 2)
    telemetry.check_each_ended_once()


def test_each_attempt_gets_fresh_arguments(mode: str, telemetry: Telemetry) -> None:
    seen: list[list[int]] = []

    def spends(numbers: list[int]) -> None:
        seen.append(numbers.copy())
        numbers.clear()
        raise ConnectionError

    call = ToolCall("spends", {"numbers": [1, 2]})
    run(mode, client_of([call], [function_tool(spends, retries=2)], telemetry).prompt("?"))
    assert seen == [[1, 2]] * 3
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("declared", [True, False])
def test_an_attempt_that_timed_out_is_retried_where_that_is_declared(
    mode: str, declared: bool, telemetry: Telemetry
) -> None:
    stuck = Stuck()

    def slow_once() -> str:
        return "in time" if stuck.threads else stuck.stuck(ToolContext())

    retry_on = (TimeoutError,) if declared else (ConnectionError,)
    tool = function_tool(slow_once, retries=1, retry_on=retry_on, timeout=0.1)
    (result,) = run(mode, client_of(["slow_once"], [tool], telemetry).prompt("?")).tool_results
    assert (result.outcome, result.content == "in time") == (("ok", True) if declared else ("timeout", False))
    telemetry.check_each_ended_once()
    stuck.ends()
    assert recorded(telemetry, "traced_tools.tool.late_results") == 1


def test_the_attempts_of_a_call_are_one_span_and_one_decision(mode: str, telemetry: Telemetry) -> None:
    failing = Failing(2)
    client = client_of(["failing"], [function_tool(failing.failing, retries=2)], telemetry)
    run(mode, client.prompt("?"))

    telemetry.check_each_ended_once()
    (span,) = attributes(telemetry)
    assert span["traced_tools.tool.attempts"] == 3
    assert span["traced_tools.tool.outcome"] == "ok"
    assert "error.type" not in span
    assert recorded(telemetry, "traced_tools.tool.retries") == 2
    assert recorded(telemetry, "traced_tools.tool.decisions") == 1
    assert recorded(telemetry, "gen_ai.execute_tool.duration") == 1
    assert recorded(telemetry, "traced_tools.tool.active") == 0


class Watching(Advisor):
    """Counts the calls that pass, and may change their arguments."""

    name, order = "watching", 350

    def __init__(self, arguments: str | None = None) -> None:
        self.arguments = arguments
        self.results: list[ToolResult] = []

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Pass the call on."""
        changed = call if self.arguments is None else call.replace(arguments=self.arguments)
        self.results.append(await call_next(changed))
        return self.results[-1]


def test_an_advisor_sees_one_call_for_all_attempts(mode: str, telemetry: Telemetry) -> None:
    watching, failing = Watching(), Failing(2)
    tool = function_tool(failing.failing, retries=2)
    run(mode, client_of(["failing"], [tool], telemetry, advisors=[watching]).prompt("?"))
    assert [each.value for each in watching.results] == [3]
    assert len(telemetry.named("advise_tool watching")) == 1
    telemetry.check_each_ended_once()


def test_every_attempt_gets_the_arguments_that_an_advisor_set(mode: str, telemetry: Telemetry) -> None:
    seen: list[int] = []

    def fails(x: int) -> None:
        seen.append(x)
        raise ConnectionError

    client = client_of(
        [ToolCall("fails", {"x": 1})], [function_tool(fails, retries=1)], telemetry, advisors=[Watching('{"x": 2}')]
    )
    run(mode, client.prompt("?"))
    assert seen == [2, 2]
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("advisors", [[], [Watching('{"x": "no number"}')]])
def test_invalid_arguments_are_not_retried(mode: str, advisors: list[Watching], telemetry: Telemetry) -> None:
    ran: list[int] = []

    def takes(x: int) -> None:
        ran.append(x)

    tool = function_tool(takes, retries=3, retry_on=(Exception,))
    call = ToolCall("takes", {"x": 1} if advisors else {"x": "no number"})
    (result,) = run(mode, client_of([call], [tool], telemetry, advisors=advisors).prompt("?")).tool_results
    assert (result.decision, result.outcome, ran) == ("invalid_arguments", None, [])
    assert recorded(telemetry, "traced_tools.tool.retries") == 0
    telemetry.check_each_ended_once()


# The pauses.


def pauses_of(monkeypatch: pytest.MonkeyPatch, attempts: int, uniform: Callable[[float, float], float]) -> list[float]:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 0.1)
    monkeypatch.setattr("traced_tools.core.jitter._RANDOM.uniform", uniform)
    tried = Retries(ToolMetadata(retries=attempts), None)
    pauses = [tried.pause_after(ConnectionError()) for _ in range(attempts)]
    assert tried.pause_after(ConnectionError()) is None
    return [round(pause, 6) for pause in pauses if pause is not None]


def test_the_pause_doubles_each_time_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = pauses_of(monkeypatch, 8, lambda low, high: high)
    assert longest == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]


def test_up_to_a_quarter_of_each_pause_is_random(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses_of(monkeypatch, 3, lambda low, high: low) == [0.075, 0.15, 0.3]


@given(st.floats(0, 1000), st.integers(0, 20), st.floats(0, 1000))
def test_no_pause_extends_beyond_the_deadline(now: float, attempts: int, deadline: float) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "FIRST_PAUSE", 0.1)
        patch.setattr(retries, "time", SimpleNamespace(monotonic=lambda: now))
        tried = Retries(ToolMetadata(retries=attempts), deadline)
        pauses = [tried.pause_after(ConnectionError()) for _ in range(attempts + 1)]
    assert pauses[-1] is None
    assert all(pause is None or (0 < pause <= 5.0 and now + pause < deadline) for pause in pauses)


def test_a_call_is_not_retried_if_the_pause_would_end_after_the_run(
    mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1000.0)
    failing = Failing(math.inf)
    client = client_of(["failing"], [function_tool(failing.failing, retries=2)], telemetry)
    run(mode, client.prompt("?", limits=LoopLimits(max_seconds=500)))
    assert failing.attempts == 1
    assert recorded(telemetry, "traced_tools.tool.retries") == 0
    telemetry.check_each_ended_once()


def test_a_run_that_is_cancelled_during_a_pause_makes_no_further_attempt(
    async_mode: str, monkeypatch: pytest.MonkeyPatch, telemetry: Telemetry
) -> None:
    monkeypatch.setattr(retries, "FIRST_PAUSE", 1000.0)
    failing = Failing(math.inf)
    client = client_of(["afailing"], [function_tool(failing.afailing, retries=2)], telemetry)

    async def main() -> None:
        task = asyncio.create_task(arun(async_mode, client.prompt("?")))
        await asyncio.to_thread(until, lambda: failing.attempts == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    assert failing.attempts == 1
    telemetry.check_cancelled()
    (span,) = attributes(telemetry)
    assert (span["traced_tools.tool.attempts"], span["traced_tools.tool.outcome"]) == (1, "cancelled")
