"""Conflicts between a tool, its advisors and the error policy in one call."""

from __future__ import annotations

import asyncio
import pickle
import traceback
from concurrent.futures import CancelledError
from typing import Any

import pytest

from tests.markers import MARKER
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    ChatClient,
    LoopLimitExceeded,
    LoopLimits,
    ModelError,
    ToolCall,
    ToolExecutionError,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel, capture_telemetry
from traced_tools.tools import tool_callbacks


def broken(x: int) -> int:
    """Fail."""
    raise ValueError(f"{MARKER} {x}")


def asking(*calls: ToolCall) -> ScriptedChatModel:
    return ScriptedChatModel([list(calls), "done"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("message", [lambda name, error: 1 / 0, lambda name, error: None])
def test_an_error_in_the_error_message_function_is_not_chained_to_the_tools_error(mode: str, message: Any) -> None:
    client = ChatClient(asking(ToolCall("broken", {"x": 1})), tools=[broken], tool_errors=ToolErrors(message=message))
    with pytest.raises((ZeroDivisionError, TypeError)) as caught:
        run(mode, client.prompt("go"))
    assert MARKER not in "".join(traceback.format_exception(caught.value))


class Fallback(Advisor):
    """Answers for a tool that fails."""

    name, order = "fallback", 350

    async def advise_tool(self, call: Any, call_next: Any) -> Any:
        """Call the tool, and answer in its place if it fails."""
        result = await call_next(call)
        return result if result.ok else call.answered("from the cache")


@pytest.mark.parametrize("mode", MODES)
def test_a_failed_execution_is_observed_even_if_an_advisor_answers_the_call(mode: str) -> None:
    with capture_telemetry() as telemetry:
        model = asking(ToolCall("broken", {"x": 1}))
        client = ChatClient(model, tools=[broken], advisors=[Fallback()], telemetry=telemetry.options)
        response = run(mode, client.prompt("go"))
        (span,) = [span for span in telemetry.spans if span.name == "execute_tool broken"]
    assert response.tool_results[0].content == "from the cache"
    assert span.attributes is not None
    assert span.attributes[names.TOOL_OUTCOME] == "error"
    assert span.attributes[names.ERROR_TYPE] == "ValueError"
    assert span.attributes[names.TOOL_DECISION] == "answered"
    assert span.status.status_code.name == "ERROR"


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_cancels_itself_is_a_failed_tool_and_not_a_cancelled_run(mode: str) -> None:
    async def gives_up() -> None:
        raise asyncio.CancelledError

    def works() -> str:
        return "fine"

    client = ChatClient(asking(ToolCall("gives_up"), ToolCall("works")), tools=[gives_up, works])
    response = run(mode, client.prompt("go"))
    assert [result.outcome for result in response.tool_results] == ["error", "ok"]
    assert isinstance(response.tool_results[0].error, CancelledError)


class Plain(Advisor):
    """Written without `async`."""

    name, order = "plain", 350

    def advise_tool(self, call: Any, call_next: Any) -> Any:
        """Refuse."""
        return call.denied("no")


@pytest.mark.parametrize("mode", MODES)
def test_an_advise_tool_that_never_awaits_may_be_a_plain_method(mode: str) -> None:
    client = ChatClient(asking(ToolCall("broken", {"x": 1})), tools=[broken], advisors=[Plain()])
    assert run(mode, client.prompt("go")).tool_results[0].decision == "denied"


class Kit:
    """A tool box."""

    @tool
    def reach(self, depth: int) -> int:
        """Reach down."""
        return depth


def test_a_method_of_a_class_is_refused_and_a_method_of_an_instance_is_a_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="instance"):
        tool_callbacks(Kit.reach)
    (bound,) = tool_callbacks(Kit())
    assert bound.call('{"depth": 3}') == "3"
    with pytest.raises(ToolDefinitionError, match="instance"):
        tool_callbacks(Kit.reach)


def test_errors_travel_between_processes() -> None:
    model_error = ModelError("busy", provider="openai", status_code=503, retryable=True)
    execution = ToolExecutionError("broken", "ValueError")
    for error in (model_error, execution, InvalidArguments("a: missing")):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("mode", MODES)
def test_an_error_for_a_limit_has_the_response_of_the_run(mode: str) -> None:
    limits = LoopLimits(max_iterations=1, on_limit="raise")
    client = ChatClient(asking(ToolCall("broken", {"x": 1})), tools=[broken], limits=limits)
    with pytest.raises(LoopLimitExceeded) as caught:
        run(mode, client.prompt("go"))
    assert caught.value.limit == "max_iterations"
    assert caught.value.response.tool_results[0].outcome == "error"
