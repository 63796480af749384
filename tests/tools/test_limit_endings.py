"""How a limit ends a run, in the response, the spans and the metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from tests.sweeps import sweep
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientResponse,
    LoopLimitExceeded,
    LoopLimits,
    ToolCall,
    ToolMessage,
    Usage,
    UserMessage,
)
from traced_tools.core import ToolCallback, ToolErrors, ToolResultPart
from traced_tools.models import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, tool_callbacks
from traced_tools.tools.batch import ExecuteTools

each_mode = pytest.mark.parametrize("mode", MODES)
UNLIMITED = LoopLimits(
    **dict.fromkeys(("max_iterations", "max_tool_calls", "max_calls_per_tool", "max_repeated_calls"))
)  # type: ignore[arg-type]


class Clock:
    """A clock that moves on request."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("traced_tools.core.limits.time", clock)
    return clock


class Counter:
    """Tools that count their calls."""

    def __init__(self) -> None:
        self.called: list[str] = []

    def tools(self, *tools: str) -> list[ToolCallback]:
        return tool_callbacks(*(self._tool(name) for name in tools))

    def _tool(self, name: str) -> Callable[[int], int]:
        def count(number: int) -> int:
            """Count."""
            self.called.append(name)
            return number

        count.__name__ = name
        return count


def calls(name: str, *numbers: int) -> list[ToolCall]:
    return [ToolCall(name, {"number": number}) for number in numbers]


SCENARIOS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "max_iterations": ({"max_iterations": 1}, calls("a", 1)),
    "max_tool_calls": ({"max_tool_calls": 1}, [*calls("a", 1), *calls("b", 2)]),
    "max_calls_per_tool": ({"max_calls_per_tool": 1}, calls("a", 1, 2)),
    "max_calls_of": ({"max_calls_of": {"a": 1}}, calls("a", 1, 2)),
    "repeated_call": ({"max_repeated_calls": 1}, calls("a", 1)),
    "token_budget": ({"max_tokens": 4}, calls("a", 1)),
    "deadline": ({"max_seconds": 60}, [ToolCall("wait")]),
}
REFUSALS = {
    "max_tool_calls": ("b", "limited"),
    "max_calls_per_tool": ("a", "limited"),
    "max_calls_of": ("a", "limited"),
    "repeated_call": ("a", "repeated"),
    "token_budget": ("a", "limited"),
}


@sweep(mode=MODES, scenario=SCENARIOS, on_limit=["conclude", "stop", "raise"])
def test_every_ending_at_a_limit_is_seen_in_response_spans_and_metrics(
    mode: str, scenario: str, on_limit: Any, clock: Clock, telemetry: Telemetry
) -> None:
    def wait() -> None:
        """Wait."""
        clock.now += 100

    settings, asked = SCENARIOS[scenario]
    answers = 2 if scenario == "repeated_call" else 1
    turns = [["so far", *asked]] * answers
    model = ScriptedChatModel([*turns, "concluded"], usage=Usage(input_tokens=3, output_tokens=2))
    client = ChatClient(
        model,
        tools=[*Counter().tools("a", "b"), wait],
        limits=LoopLimits(**settings, on_limit=on_limit),
        telemetry=telemetry.options,
    )
    limit = "max_calls_per_tool" if scenario == "max_calls_of" else scenario
    response = ended(client, mode, limit, on_limit)
    assert response.stop_reason == limit
    assert response.content == ("concluded" if on_limit == "conclude" else "so far")
    telemetry.check_each_ended_once()
    telemetry.check_run(limit, "traced_tools.errors.LoopLimitExceeded" if on_limit == "raise" else None)
    passes = answers + (on_limit == "conclude")
    assert recorded(telemetry, names.LOOP_ITERATIONS_METRIC.name) == {("assistant", limit): passes}
    refused = REFUSALS.get(scenario)
    assert [span.name for span in telemetry.named("refuse_tool")] == ([f"refuse_tool {refused[0]}"] if refused else [])
    decided = recorded(telemetry, names.TOOL_DECISIONS.name, "traced_tools.tool.decision", "gen_ai.tool.name")
    assert sum(decided.values()) == len(asked) * answers
    assert {key for key in decided if key[0] != "allowed"} == ({(refused[1], refused[0])} if refused else set())
    for span in telemetry.named("refuse_tool"):
        assert refused is not None
        assert (span.attributes or {})[names.TOOL_DECISION] == refused[1]
        assert names.ERROR_TYPE not in (span.attributes or {})


def ended(client: ChatClient, mode: str, limit: str, on_limit: str) -> ChatClientResponse:
    """Run `client` up to its limit and return the response, or the partial one."""
    if on_limit != "raise":
        return run(mode, client.prompt("?"))
    with pytest.raises(LoopLimitExceeded) as caught:
        run(mode, client.prompt("?"))
    assert caught.value.limit == limit
    assert caught.value.tool == ("a" if limit in ("max_calls_per_tool", "repeated_call") else None)
    return caught.value.response


def recorded(telemetry: Telemetry, metric: str, *labels: str) -> dict[tuple[Any, ...], float]:
    """The sums of a metric by its labels."""
    labels = labels or (names.AGENT_NAME, names.LOOP_STOP_REASON)
    return {tuple(point.attributes[label] for label in labels): total(point) for point in telemetry.metric(metric)}


# The exception.


def broken(mode: str, limits: LoopLimits, asked: list[ToolCall], *turns: Any) -> LoopLimitExceeded:
    client = ChatClient(ScriptedChatModel([asked, *turns]), tools=Counter().tools("a", "b"), limits=limits)
    with pytest.raises(LoopLimitExceeded) as caught:
        run(mode, client.prompt("?"))
    return caught.value


@each_mode
def test_the_limit_of_a_tool_raises_an_error_with_its_name_and_the_response(mode: str) -> None:
    limits = LoopLimits(max_calls_per_tool=2, on_limit="raise")
    error = broken(mode, limits, [*calls("b", 1), *calls("a", 1, 2, 3), *calls("b", 2)])
    assert (error.limit, error.tool) == ("max_calls_per_tool", "a")
    assert [each.content for each in error.response.tool_results if each.ok] == ["1", "1", "2", "2"]
    assert error.response.tool_results[3].decision == "limited"
    assert isinstance(error.response.messages[-1], ToolMessage)
    assert str(error) == "the run reached its limit max_calls_per_tool; see .response"


@each_mode
def test_the_limit_of_all_calls_raises_an_error_without_a_tools_name(mode: str) -> None:
    error = broken(mode, LoopLimits(max_tool_calls=2, on_limit="raise"), [*calls("a", 1), *calls("b", 1, 2)])
    assert (error.limit, error.tool) == ("max_tool_calls", None)


@each_mode
def test_an_invented_tool_is_limited_too_and_named_only_on_the_error(mode: str) -> None:
    limits = LoopLimits(max_calls_per_tool=1, on_limit="raise")
    error = broken(mode, limits, calls("made_up", 1, 2))
    assert error.tool == "made_up"
    assert "made_up" not in str(error)


# Refused calls. Unlike in the reference, whatever ends the run, its answer is complete: each call has a result.


@each_mode
def test_a_call_over_the_limit_is_not_run_and_is_answered_with_the_limit(mode: str) -> None:
    counter = Counter()
    model = ScriptedChatModel([calls("a", 1, 2), "concluded"])
    limits = LoopLimits(max_calls_per_tool=1)
    response = run(mode, ChatClient(model, tools=counter.tools("a"), limits=limits).prompt("?"))
    assert counter.called == ["a"]
    assert response.tool_results[1].content == (
        "The call was not run: the limit of calls to this tool is reached. Answer with what you have."
    )
    assert response.tool_results[1].part().is_error


@each_mode
def test_invalid_and_failed_calls_count_like_any_other(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("a", "{"), ToolCall("a", "["), *calls("a", 1)], "concluded"])
    limits = LoopLimits(max_calls_per_tool=2)
    response = run(mode, ChatClient(model, tools=Counter().tools("a"), limits=limits).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["invalid_arguments"] * 2 + ["limited"]


@each_mode
def test_a_call_over_a_limit_is_no_failure_to_a_policy_that_raises(mode: str) -> None:
    model = ScriptedChatModel([calls("a", 1, 2), "concluded"])
    client = ChatClient(model, tools=Counter().tools("a"), tool_errors=ToolErrors(always_raise=True))
    response = run(mode, client.prompt("?", limits=LoopLimits(max_calls_per_tool=1)))
    assert (response.content, response.stop_reason) == ("concluded", "max_calls_per_tool")


# Which limits are in force.


@each_mode
@pytest.mark.parametrize(
    ("tools", "each", "stop_reason", "run_calls"),
    [("a", 41, "max_calls_per_tool", 40), ("abcd", 38, "max_tool_calls", 150), ("abc", 40, "answered", 120)],
)
def test_without_settings_forty_calls_of_a_tool_and_a_hundred_and_fifty_run(
    mode: str, tools: str, each: int, stop_reason: str, run_calls: int
) -> None:
    counter = Counter()
    asked = [call for name in tools for call in calls(name, *range(each))]
    client = ChatClient(ScriptedChatModel([asked, "done"]), tools=counter.tools(*tools))
    assert run(mode, client.prompt("?")).stop_reason == stop_reason
    assert len(counter.called) == run_calls


@each_mode
def test_without_limits_a_run_lasts_as_long_as_the_model_requests_tools(mode: str) -> None:
    counter = Counter()
    turns = [*([calls("a", *range(5)) + calls("a", 1)] * 60), "done"]
    client = ChatClient(ScriptedChatModel(turns), tools=counter.tools("a"), limits=UNLIMITED)
    response = run(mode, client.prompt("?"))
    assert (response.stop_reason, len(counter.called), response.iteration) == ("answered", 360, 61)


@each_mode
def test_single_tools_are_limited_per_client_and_per_request(mode: str) -> None:
    counter = Counter()
    model = ScriptedChatModel([[*calls("a", 1, 2, 3), *calls("b", 1, 2)], "done"] * 3)
    client = ChatClient(
        model, tools=counter.tools("a", "b"), limits=LoopLimits(max_calls_per_tool=1, max_calls_of={"a": 2})
    )
    ran = []
    for limits in (None, LoopLimits(max_calls_per_tool=1, max_calls_of={"b": None}), LoopLimits()):
        counter.called.clear()
        run(mode, client.prompt("?") if limits is None else client.prompt("?", limits=limits))
        ran.append("".join(sorted(counter.called)))
    assert ran == ["aab", "abb", "aaabb"]


@each_mode
def test_a_tool_without_its_own_limit_is_still_subject_to_the_repetition_limit(mode: str) -> None:
    model = ScriptedChatModel([calls("a", *range(50)), *[calls("a", 1)] * 3, "done"])
    client = ChatClient(model, tools=Counter().tools("a"), limits=LoopLimits(max_calls_of={"a": None}))
    response = run(mode, client.prompt("?"))
    assert response.stop_reason == "repeated_call"
    assert [each.decision for each in response.tool_results].count("allowed") == 52


EARLIER = [
    UserMessage("before"),
    AssistantMessage(tool_calls=[ToolCall("a", {"number": 1}, id="1"), ToolCall("a", {"number": 1}, id="2")]),
    ToolMessage([ToolResultPart(call_id=each, name="a", content="1") for each in "12"]),
    AssistantMessage("one"),
]


@each_mode
@pytest.mark.parametrize("field", ["max_tool_calls", "max_calls_per_tool", "max_repeated_calls"])
def test_calls_of_earlier_turns_do_not_count_and_those_of_this_run_do(mode: str, field: str) -> None:
    counter = Counter()
    model = ScriptedChatModel([*[calls("a", 1)] * 3, "done"])
    limits = LoopLimits(**{field: 2})  # type: ignore[arg-type]
    run(mode, ChatClient(model, tools=counter.tools("a"), limits=limits).prompt("now", messages=EARLIER))
    assert counter.called == ["a", "a"]


# Caller-driven: in steps and by hand.


@pytest.mark.parametrize("on_limit", ["conclude", "stop", "raise"])
def test_a_run_in_steps_is_limited(on_limit: Any) -> None:
    counter = Counter()
    client = ChatClient(
        ScriptedChatModel([calls("a", 1, 2), "concluded"]),
        tools=counter.tools("a"),
        limits=LoopLimits(max_calls_per_tool=1, on_limit=on_limit),
    )
    driven, executed = client.prompt("?").start(), 0
    try:
        while step := driven.next():
            executed += isinstance(step, ExecuteTools)
            driven.perform(step)
    except LoopLimitExceeded as error:
        assert (on_limit, error.tool) == ("raise", "a")
    else:
        assert (driven.response.stop_reason, on_limit != "raise") == ("max_calls_per_tool", True)
    assert (executed, counter.called) == (1, ["a"])


@pytest.mark.parametrize(
    ("limits", "decisions"),
    [
        (LoopLimits(), ["allowed"] * 3),
        (LoopLimits(max_tool_calls=2), ["allowed", "allowed", "limited"]),
        (LoopLimits(max_calls_of={"a": 1}), ["allowed", "limited", "allowed"]),
        (LoopLimits(max_repeated_calls=1), ["allowed"] * 3),
        (LoopLimits(max_calls_per_tool=1, max_calls_of={"a": None}), ["allowed"] * 3),
    ],
    ids=repr,
)
def test_calls_by_hand_are_limited(limits: LoopLimits, decisions: list[str], telemetry: Telemetry) -> None:
    asked = [ToolCall("a", {"number": 1}, id="1"), ToolCall("a", '```{"number": 1.0}```', id="2"), *calls("b", 1)]
    response = ChatResponse(AssistantMessage(tool_calls=[*asked[:2], asked[2].replace(id="3")]))
    result = ToolCallingManager().execute_tool_calls(
        [UserMessage("?")], response, tools=Counter().tools("a", "b"), limits=limits, telemetry=telemetry.options
    )
    assert [each.decision for each in result.results] == decisions
    assert len(telemetry.named("refuse_tool")) == sum(each != "allowed" for each in decisions)
