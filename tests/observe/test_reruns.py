"""When an advisor reruns a tool, all signals describe the last execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent
from traced_tools import Advisor, ChatClient, ToolCall, ToolResult, tool
from traced_tools.observe import Event, ToolDecided, ToolFinished, names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext


class Rerunning(Advisor):
    """Calls the tool once, and once more with other arguments."""

    name, order = "rerunning", 400

    def __init__(self, first: str, second: str) -> None:
        self._arguments = (first, second)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        first, second = self._arguments
        await call_next(call.replace(arguments=first))
        return await call_next(call.replace(arguments=second))


class Stop(BaseException):
    """Ends a run as an interrupt does."""


def work(how: str) -> str:
    """Work, fail, or be interrupted."""
    if how == "stop":
        raise Stop
    if how == "fail":
        raise KeyError(how)
    return how


def observed(mode: str, *advisors: Advisor, tools: Any = (work,)) -> tuple[Telemetry, Watching]:
    telemetry, watching = Telemetry(), Watching()
    model = ScriptedChatModel([ToolCall("work", {"how": "do"}), "x"])
    client = ChatClient(model, tools=tools, advisors=[watching, *advisors], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    return telemetry, watching


def ends_of(events: list[Event]) -> list[tuple[str, str | None]]:
    return [(event.outcome, event.error_type) for event in events if isinstance(event, ToolFinished)]


@pytest.mark.parametrize("first", ["do", "fail"])
def test_an_interrupted_rerun_has_neither_the_outcome_nor_the_error_of_the_execution_before(first: str) -> None:
    telemetry, watching = Telemetry(), Watching()
    rerunning = Rerunning(f'{{"how": "{first}"}}', '{"how": "stop"}')
    client = ChatClient(
        ScriptedChatModel([ToolCall("work", {"how": "do"})]),
        tools=[work],
        advisors=[watching, rerunning],
        telemetry=telemetry.options,
    )
    with pytest.raises(Stop):
        client.prompt("?").call()
    attributes = telemetry.one("execute_tool work").attributes or {}
    last = ends_of(watching.events)[-1]
    assert (attributes[names.TOOL_OUTCOME], attributes[names.ERROR_TYPE]) == last
    assert "KeyError" not in last
    (event,) = telemetry.events_named(names.TOOL_OUTCOME_EVENT.name)
    assert ((event.attributes or {})[names.TOOL_OUTCOME], (event.attributes or {})[names.ERROR_TYPE]) == last
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_runs_after_invalid_arguments_is_decided_as_allowed_in_all_signals(mode: str) -> None:
    telemetry, watching = observed(mode, Rerunning("[]", '{"how": "do"}'))
    decided = [event for event in watching.events if isinstance(event, ToolDecided)]
    assert [event.decision for event in decided] == ["allowed"]
    (event,) = telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    assert (event.attributes or {})[names.TOOL_DECISION] == "allowed"
    span = telemetry.one("execute_tool work")
    assert (span.attributes or {})[names.TOOL_DECISION] == "allowed"
    assert span.status.is_unset
    assert_consistent(telemetry)


def once(accepted: int) -> Callable[[str], str]:
    """A validator that accepts so many values and then no more."""
    left = [accepted]

    def check(value: str) -> str:
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("no more")
        return value

    return check


@pytest.mark.parametrize("mode", MODES)
def test_arguments_that_fit_the_first_attempt_alone_fail_the_call_in_all_signals(mode: str) -> None:
    def flaky(how: str) -> str:
        """Fail once."""
        raise ConnectionError

    flaky.__annotations__["how"] = Annotated[str, AfterValidator(once(1))]
    telemetry, watching = observed(mode, tools=[tool(name="work", retries=2)(flaky)])
    assert ends_of(watching.events) == [("error", "invalid_arguments")]
    span = telemetry.one("execute_tool work")
    attributes = span.attributes or {}
    assert (attributes[names.TOOL_OUTCOME], attributes[names.ERROR_TYPE]) == ("error", "invalid_arguments")
    assert (attributes[names.TOOL_DECISION], attributes[names.TOOL_ATTEMPTS]) == ("invalid_arguments", 1)
    assert not span.status.is_unset
    assert_consistent(telemetry)
