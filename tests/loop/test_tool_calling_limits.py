"""How the limits of a run end the tool loop: with a concluding answer, with what there is, or with an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.loop.loops import Loop, assert_complete
from tests.modes import MODES, run, run_chunks
from tests.observe.runs import adds
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ImagePart,
    LoopLimitExceeded,
    LoopLimits,
    ToolCall,
    ToolResult,
    Usage,
    tool,
)
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.parametrize("mode", MODES)


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


def limited(limit: str) -> tuple[LoopLimits, list[Any]]:
    """Limits and turns that break `limit` with the second pass or the second call."""
    settings: dict[str, Any] = {
        "max_iterations": {"max_iterations": 1},
        "max_tool_calls": {"max_tool_calls": 1},
        "max_calls_per_tool": {"max_calls_per_tool": 1},
        "repeated_call": {"max_repeated_calls": 1},
        "token_budget": {"max_tokens": 4},
        "deadline": {"max_seconds": 60},
        "consecutive_errors": {"max_consecutive_errors": 2},
    }
    turns = {
        "max_iterations": [["so far", adds(1, 1)]],
        "repeated_call": [["so far", adds(1, 1)]] * 2,
        "deadline": [["so far", ToolCall("wait")]],
        "consecutive_errors": [["so far", ToolCall("add", {"a": word, "b": 1})] for word in ("one", "two")],
    }
    return LoopLimits(**settings[limit]), turns.get(limit, [["so far", adds(1, 1), adds(2, 2)]])


def passes(limit: str) -> int:
    """How many passes it takes to break `limit`: identical calls of one answer count as one."""
    return 2 if limit in ("repeated_call", "consecutive_errors") else 1


def usage(passes: int) -> Usage:
    return Usage(input_tokens=3 * passes, output_tokens=2 * passes)


LIMITS = (
    *("max_iterations", "max_tool_calls", "max_calls_per_tool", "repeated_call", "token_budget", "deadline"),
    "consecutive_errors",
)


@pytest.fixture
def limited_client(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[ChatClient, ScriptedChatModel, Loop]]:
    clock = Clock()
    monkeypatch.setattr("traced_tools.core.limits.time", clock)

    def wait() -> str:
        """Wait."""
        clock.now += 100
        return "waited"

    def make(limit: str, on_limit: Any, *further: Any) -> tuple[ChatClient, ScriptedChatModel, Loop]:
        limits, turns = limited(limit)
        limits = LoopLimits(**{**limits.__dict__, "on_limit": on_limit})
        model = ScriptedChatModel([*turns, *further], usage=Usage(input_tokens=3, output_tokens=2))
        loop = Loop()
        return ChatClient(model, tools=[add, wait], limits=limits, tool_calling_advisor=loop), model, loop

    return make


@pytest.mark.parametrize("limit", LIMITS)
def test_a_broken_limit_asks_once_more_without_tools(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "conclude", "concluded")
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert (response.content, response.stop_reason) == ("concluded", limit)
    assert [len(request.tools) for request in model.requests] == [*[2] * passes(limit), 0]
    assert response.usage == usage(passes(limit) + 1)
    assert_complete(response.messages)
    assert response.messages[-1] == AssistantMessage("concluded")
    assert [final.stop_reason for final in loop.finals] == [limit]
    if chunks:
        assert "".join(chunk.text for chunk in chunks if chunk.iteration == passes(limit) + 1) == "concluded"


@pytest.mark.parametrize("limit", LIMITS)
def test_calls_in_the_concluding_answer_are_refused(mode: str, limit: str, limited_client: Any) -> None:
    client, model, _ = limited_client(limit, "conclude", ["I insist", adds(8, 8)])
    response = run(mode, client.prompt("?"))
    assert (response.content, response.stop_reason) == ("I insist", limit)
    assert len(model.requests) == passes(limit) + 1
    assert_complete(response.messages)
    assert response.tool_results[-1].outcome is None
    assert response.tool_results[-1].value is None
    assert response.tool_results[-1].decision in ("limited", "repeated")


@pytest.mark.parametrize("limit", LIMITS)
def test_a_broken_limit_can_stop_the_run_with_what_there_is(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "stop")
    response = run(mode, client.prompt("?"))
    assert (response.content, response.stop_reason) == ("so far", limit)
    assert len(model.requests) == passes(limit)
    assert response.usage == usage(passes(limit))
    assert_complete(response.messages)
    assert [final.stop_reason for final in loop.finals] == [limit]


@pytest.mark.parametrize("limit", LIMITS)
def test_a_broken_limit_can_raise_with_what_there_is(mode: str, limit: str, limited_client: Any) -> None:
    client, model, loop = limited_client(limit, "raise")
    with pytest.raises(LoopLimitExceeded) as caught:
        run(mode, client.prompt("?"))
    assert caught.value.limit == limit
    response = caught.value.response
    assert (response.stop_reason, response.content, len(model.requests)) == (limit, "so far", passes(limit))
    assert_complete(response.messages)
    assert response.usage == usage(passes(limit))
    assert response.tool_results
    assert [final.stop_reason for final in loop.finals] == [limit]


@pytest.mark.parametrize("limit", ["max_tool_calls", "max_calls_per_tool", "repeated_call"])
def test_calls_within_a_limit_keep_their_results(mode: str, limit: str, limited_client: Any) -> None:
    client, _, _ = limited_client(limit, "stop")
    first, second = run(mode, client.prompt("?")).tool_results
    assert (first.content, first.decision, first.ok) == ("2", "allowed", True)
    assert second.decision == ("repeated" if limit == "repeated_call" else "limited")
    assert (second.ok, second.error_type) == (False, None)


def test_a_used_up_budget_runs_no_tool(mode: str, limited_client: Any) -> None:
    client, _, _ = limited_client("token_budget", "stop")
    response = run(mode, client.prompt("?"))
    assert {each.decision for each in response.tool_results} == {"limited"}


def test_an_answer_within_the_last_allowed_pass_breaks_no_limit(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "two"], usage=Usage(input_tokens=5, output_tokens=5))
    limits = LoopLimits(max_iterations=2, max_tool_calls=1, max_calls_per_tool=1, max_repeated_calls=1, max_tokens=20)
    response = run(mode, ChatClient(model, tools=[add], limits=limits).prompt("?"))
    assert (response.content, response.stop_reason) == ("two", "answered")


def test_by_default_a_fourth_identical_call_ends_the_run(mode: str) -> None:
    same = [ToolCall("add", text) for text in ('{"a":1,"b":1}', '{"b": 1, "a": 1}', '{"a":1,"b":1}', '{"b":1,"a":1}')]
    model = ScriptedChatModel([*same, "enough"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed"] * 3 + ["repeated"]
    assert (response.stop_reason, response.content) == ("repeated_call", "enough")


def test_identical_calls_of_one_answer_count_as_one_repetition(mode: str) -> None:
    model = ScriptedChatModel([*[[adds(1, 1)] * 2] * 4, "enough"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed"] * 6 + ["repeated"] * 2
    assert (response.stop_reason, response.content) == ("repeated_call", "enough")
    (alone,) = [run(mode, ChatClient(ScriptedChatModel([[adds(1, 1)] * 5, "x"]), tools=[add]).prompt("?"))]
    assert [each.decision for each in alone.tool_results] == ["allowed"] * 5


def test_a_tool_whose_result_changes_may_be_asked_again_and_again(mode: str) -> None:
    states = iter(["queued", "running 1", "running 2", "running 3", "running 4", "done"])

    def status() -> str:
        """Get the state of the job."""
        return next(states)

    model = ScriptedChatModel([*[ToolCall("status")] * 6, "it is done"])
    response = run(mode, ChatClient(model, tools=[status]).prompt("?"))
    assert [each.content for each in response.tool_results][-1] == "done"
    assert (response.stop_reason, response.content) == ("answered", "it is done")


def test_a_repeated_call_is_counted_anew_when_its_result_changes(mode: str) -> None:
    states = iter(["queued", "queued", "running", "running", "running", "never"])

    def status() -> str:
        """Get the state of the job."""
        return next(states)

    model = ScriptedChatModel([*[ToolCall("status")] * 6, "enough"])
    response = run(mode, ChatClient(model, tools=[status]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed"] * 5 + ["repeated"]
    assert next(states) == "never"


def test_going_back_and_forth_between_two_calls_is_a_repetition(mode: str) -> None:
    model = ScriptedChatModel([*[adds(1, 1), adds(2, 2)] * 3, adds(1, 1), "enough"])
    response = run(mode, ChatClient(model, tools=[add]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed"] * 6 + ["repeated"]


def test_an_image_that_changes_is_a_result_that_changes(mode: str) -> None:
    pictures = iter(range(6))

    def camera() -> ImagePart:
        """Look through the camera."""
        return ImagePart(data=bytes([next(pictures)]))

    model = ScriptedChatModel([*[ToolCall("camera")] * 6, "seen"])
    response = run(mode, ChatClient(model, tools=[camera]).prompt("?"))
    assert response.stop_reason == "answered"


def test_a_refusal_with_new_words_is_no_result_that_changes(mode: str) -> None:
    class Clerk(Advisor):
        name, order = "clerk", 400

        def __init__(self) -> None:
            self.times = iter(range(10))

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied(f"not at {next(self.times)} o'clock")

    model = ScriptedChatModel([*[adds(1, 1)] * 4, "enough"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Clerk()]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["denied"] * 3 + ["repeated"]


def test_a_tool_marked_repeatable_may_be_called_with_the_same_arguments_at_will(mode: str) -> None:
    @tool(repeatable=True)
    def wait() -> str:
        """Wait for a moment."""
        return "waited"

    model = ScriptedChatModel([*[[ToolCall("wait"), adds(1, 1)]] * 4, "enough"])
    response = run(mode, ChatClient(model, tools=[wait, add]).prompt("?"))
    decisions = [(each.tool, each.decision) for each in response.tool_results]
    assert decisions == [("wait", "allowed"), ("add", "allowed")] * 3 + [("wait", "allowed"), ("add", "repeated")]


def test_calls_with_one_id_are_decided_apart(mode: str) -> None:
    calls = [ToolCall("add", {"a": 1, "b": 1}, id="same"), ToolCall("add", {"a": 2, "b": 2}, id="same")]
    model = ScriptedChatModel([calls, "enough"])
    response = run(mode, ChatClient(model, tools=[add], limits=LoopLimits(max_tool_calls=1)).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["allowed", "limited"]


def test_a_request_brings_its_own_limits(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], limits=LoopLimits(max_iterations=9))
    response = run(mode, client.prompt("?", limits=LoopLimits(max_iterations=1, on_limit="stop")))
    assert response.stop_reason == "max_iterations"


def test_a_run_whose_time_is_over_before_it_begins_is_only_concluded(mode: str) -> None:
    model = ScriptedChatModel(["too late"])
    response = run(mode, ChatClient(model, tools=[add], limits=LoopLimits(max_seconds=1e-9)).prompt("?"))
    assert (response.content, response.stop_reason, model.requests[0].tools) == ("too late", "deadline", ())


def test_the_concluding_call_does_not_demand_a_tool(mode: str) -> None:
    model = ScriptedChatModel([adds(1, 1), "enough"])
    client = ChatClient(model, tools=[add], options=ChatOptions(tool_choice="required"))
    run(mode, client.prompt("?", limits=LoopLimits(max_iterations=1)))
    assert model.requests[0].options.tool_choice == "required"
    assert model.requests[1].options.tool_choice in (None, "none", "auto")


def test_a_blank_concluding_answer_stays_blank(mode: str) -> None:
    model = ScriptedChatModel([["so far", adds(1, 1)], ""])
    response = run(mode, ChatClient(model, tools=[add], limits=LoopLimits(max_iterations=1)).prompt("?"))
    assert (response.content, response.stop_reason) == ("", "max_iterations")


def wrong(number: int) -> ToolCall:
    return ToolCall("add", {"a": "one", "b": number})


def test_only_passes_without_any_success_count_as_errors_in_a_row(mode: str) -> None:
    mixed, all_wrong = [wrong(2), adds(1, 1)], [wrong(3), ToolCall("invented")]
    turns = [wrong(1), mixed, all_wrong, adds(2, 2), wrong(4), wrong(5), "enough"]
    client = ChatClient(ScriptedChatModel(turns), tools=[add], limits=LoopLimits(max_consecutive_errors=2))
    response = run(mode, client.prompt("?"))
    assert (response.stop_reason, response.content) == ("consecutive_errors", "enough")
    assert len(response.tool_results) == 8


def test_refused_calls_are_errors_in_a_row_and_answered_ones_are_not(mode: str) -> None:
    class Clerk(Advisor):
        name, order = "clerk", 400

        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
            return call.denied("closed") if call.args["a"] == 1 else call.answered("open")

    turns = [adds(2, 1), adds(2, 2), adds(1, 1), adds(1, 2), adds(1, 3)]
    limits = LoopLimits(max_consecutive_errors=2, on_limit="stop")
    client = ChatClient(ScriptedChatModel(turns), tools=[add], advisors=[Clerk()], limits=limits)
    response = run(mode, client.prompt("?"))
    assert [each.decision for each in response.tool_results] == ["answered"] * 2 + ["denied"] * 2
    assert response.stop_reason == "consecutive_errors"
