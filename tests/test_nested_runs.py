"""A run that begins inside another run has its id, and its usage counts there too."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from contextvars import copy_context
from typing import Any

import pytest
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.trace import NoOpTracerProvider

from tests.audit.draft_trails import KeptTrail, auditing
from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.sample_tools import add
from tests.waiting import PATIENCE
from traced_tools import (
    Advisor,
    ChatClient,
    LoopLimitExceeded,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
    UserMessage,
    tool,
)
from traced_tools.core import NestedUsage, messages
from traced_tools.core.messages import Usage
from traced_tools.flow import perform
from traced_tools.models.base import ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager

ONE = Usage(input_tokens=10, output_tokens=5)
"""What each answer of a model takes."""


class Metered(ScriptedChatModel):
    """Reports the usage `ONE` for every answer."""

    def call(self, request: Any) -> ChatResponse:
        return super().call(request).replace(usage=ONE)


def times(number: int) -> Usage:
    return Usage(input_tokens=10 * number, output_tokens=5 * number)


def asking(inner: ChatClient, mode: str = "call", name: str = "ask") -> Any:
    """A tool that runs another agent: blocking, streaming, or under asyncio."""

    def ask() -> str:
        """Ask another agent."""
        return run(mode, inner.prompt("?")).content

    async def aask() -> str:
        """Ask another agent."""
        return (await inner.prompt("?").acall()).content

    return tool(name=name)(aask if mode == "acall" else ask)


def calls(*names: str) -> list[ToolCall]:
    return [ToolCall(name, {}) for name in names]


def adder(**settings: Any) -> ChatClient:
    """An agent that adds once: two calls of its model and one of a tool."""
    return ChatClient(Metered([adds(1, 2), "three"] * 9), tools=[add], name="adder", **settings)


@pytest.mark.parametrize("inner_mode", ["call", "stream", "acall"])
@pytest.mark.parametrize("mode", MODES)
def test_events_and_records_of_a_nested_run_name_the_run_around_it(mode: str, inner_mode: str) -> None:
    outside, inside, trail = Watching(), Watching(), KeptTrail()
    inner = adder(advisors=[inside, auditing(trail)])
    outer = ChatClient(Metered([calls("ask"), "done"]), tools=[asking(inner, inner_mode)], advisors=[outside])
    response = run(mode, outer.prompt("?"))
    assert {event.parent_run_id for event in inside.events} == {response.run_id}
    assert {event.parent_run_id for event in outside.events} == {None}
    assert [draft.subject and draft.subject.parent_run_id for draft in trail.drafts] == [response.run_id] * 3


@pytest.mark.parametrize("inner_mode", ["call", "stream", "acall"])
@pytest.mark.parametrize("mode", MODES)
def test_the_response_reports_the_usage_of_nested_runs_separately(mode: str, inner_mode: str) -> None:
    outer = ChatClient(Metered([calls("ask", "ask"), "done"]), tools=[asking(adder(), inner_mode)])
    response = run(mode, outer.prompt("?"))
    assert response.nested_usage == NestedUsage(model_calls=4, tool_calls=2, usage=times(4))
    assert response.usage == times(2)


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_nested_runs_has_no_nested_usage(mode: str) -> None:
    assert run(mode, adder().prompt("?")).nested_usage is None


@pytest.mark.parametrize("mode", MODES)
def test_deeper_nested_usage_counts_once_at_each_level(mode: str) -> None:
    usages: list[NestedUsage | None] = []
    inside = Watching()
    innermost = adder(advisors=[inside])
    middle = ChatClient(Metered([calls("ask"), "middle"]), tools=[asking(innermost)], name="middle")

    def ask_middle() -> str:
        """Ask the middle one."""
        response = middle.prompt("?").call()
        usages.append(response.nested_usage)
        ids.append(response.run_id)
        return response.content

    ids: list[str] = []
    response = run(mode, ChatClient(Metered([calls("ask_middle"), "done"]), tools=[ask_middle]).prompt("?"))
    assert usages == [NestedUsage(model_calls=2, tool_calls=1, usage=times(2))]
    assert response.nested_usage == NestedUsage(model_calls=4, tool_calls=2, usage=times(4))
    assert {event.parent_run_id for event in inside.events} == set(ids)


@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_nested_runs_count_towards_the_budget(mode: str) -> None:
    model = Metered([calls("ask"), "enough"])
    outer = ChatClient(model, tools=[asking(adder())], limits=LoopLimits(max_tokens=45))
    response = run(mode, outer.prompt("?"))
    assert (response.stop_reason, response.content) == ("token_budget", "enough")
    assert model.requests[1].tools == ()


@pytest.mark.parametrize("mode", MODES)
def test_tool_calls_of_nested_runs_count_towards_the_limit_of_tool_calls(mode: str) -> None:
    model = Metered([calls("ask"), calls("ask"), "enough"])
    outer = ChatClient(model, tools=[asking(adder())], limits=LoopLimits(max_tool_calls=2))
    response = run(mode, outer.prompt("?"))
    assert response.stop_reason == "max_tool_calls"
    assert [result.decision for result in response.tool_results] == ["allowed", "limited"]


def test_an_iteration_does_not_sum_the_usage_of_each_nested_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sums: list[int] = []
    sum_of = messages._add_usages

    def counted(usages: Sequence[Usage]) -> Usage:
        sums.append(len(usages))
        return sum_of(usages)

    monkeypatch.setattr(messages, "_add_usages", counted)
    inner = ChatClient(Metered(["inner"] * 20), name="inner")
    outer = ChatClient(
        Metered([*[calls("ask")] * 20, "done"]),
        tools=[asking(inner)],
        limits=LoopLimits(max_iterations=30, max_repeated_calls=None),
    )
    assert outer.prompt("?").call().stop_reason == "answered"
    assert len(sums) < 5 * 20


@pytest.mark.parametrize("mode", MODES)
def test_iterations_of_nested_runs_are_counted_separately(mode: str) -> None:
    outer = ChatClient(Metered([calls("ask"), "done"]), tools=[asking(adder())], limits=LoopLimits(max_iterations=2))
    assert run(mode, outer.prompt("?")).stop_reason == "answered"


@pytest.mark.parametrize("mode", MODES)
def test_the_usage_of_a_failed_nested_run_counts(mode: str) -> None:
    failing = ChatClient(Metered([adds(1, 2), ConnectionError("gone")]), tools=[add])
    response = run(mode, ChatClient(Metered([calls("ask"), "done"]), tools=[asking(failing)]).prompt("?"))
    assert response.tool_results[0].error_type == "ConnectionError"
    assert response.nested_usage == NestedUsage(model_calls=2, tool_calls=1, usage=times(1))


@pytest.mark.parametrize("mode", MODES)
def test_the_usage_of_an_abandoned_nested_run_counts(mode: str) -> None:
    def peek() -> str:
        """Read the beginning of another agent's answer."""
        with adder().prompt("?").stream() as stream:
            return next(chunk.text for chunk in stream if chunk.text)

    response = run(mode, ChatClient(Metered([calls("peek"), "done"]), tools=[peek]).prompt("?"))
    assert response.nested_usage is not None
    assert (response.nested_usage.model_calls, response.nested_usage.tool_calls) == (2, 1)


@pytest.mark.parametrize("mode", MODES)
def test_the_usage_so_far_of_a_nested_run_whose_tool_timed_out_counts(mode: str) -> None:
    waiting, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def wait() -> str:
        """Wait."""
        waiting.set()
        assert go_on.wait(PATIENCE)
        return "waited"

    inner = ChatClient(Metered([calls("wait"), "late"]), tools=[wait])

    @tool(timeout=0.01)
    def ask() -> str:
        """Ask another agent."""
        try:
            return inner.prompt("?").call().content
        finally:
            ended.set()

    def done(request: Any) -> str:
        assert waiting.wait(PATIENCE)
        return "done"

    response = run(mode, ChatClient(Metered([calls("ask"), done]), tools=[ask]).prompt("?"))
    assert response.tool_results[0].outcome == "timeout"
    assert response.nested_usage == NestedUsage(model_calls=1, tool_calls=1, usage=times(1))
    go_on.set()
    assert ended.wait(PATIENCE)
    assert response.nested_usage == NestedUsage(model_calls=2, tool_calls=1, usage=times(2))


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_a_tool_runs_by_hand_count_once(mode: str) -> None:
    watching = Watching()

    def by_hand() -> str:
        """Ask another agent and run its calls."""
        messages = [UserMessage("?")]
        response = adder().prompt(messages=messages, tool_calling=False).call()
        done = ToolCallingManager().execute_tool_calls(messages, response, tools=[add], advisors=[watching])
        return done.results[0].content

    response = run(mode, ChatClient(Metered([calls("by_hand"), "done"]), tools=[by_hand]).prompt("?"))
    assert response.nested_usage == NestedUsage(model_calls=1, tool_calls=1, usage=times(1))
    assert {event.parent_run_id for event in watching.events} == {response.run_id}


def test_an_error_at_a_limit_has_the_usage_of_nested_runs() -> None:
    limits = LoopLimits(max_tokens=45, on_limit="raise")
    outer = ChatClient(Metered([calls("ask")]), tools=[asking(adder())], limits=limits)
    with pytest.raises(LoopLimitExceeded) as raised:
        outer.prompt("?").call()
    assert raised.value.response.nested_usage == NestedUsage(model_calls=2, tool_calls=1, usage=times(2))


class FlatPrice:
    """A dollar a call."""

    def price(self, provider: str, model: str, usage: Usage) -> float | None:
        return 1.0


@pytest.mark.parametrize("mode", MODES)
def test_nested_runs_report_a_cost_if_their_client_has_prices(mode: str) -> None:
    telemetry = Telemetry(prices=FlatPrice())
    outer = ChatClient(
        Metered([calls("priced", "unpriced"), "done"]),
        tools=[asking(adder(telemetry=telemetry.options), name="priced"), asking(adder(), name="unpriced")],
    )
    response = run(mode, outer.prompt("?"))
    assert response.nested_usage == NestedUsage(model_calls=4, tool_calls=2, usage=times(4), cost=2.0)


@pytest.mark.parametrize("mode", MODES)
def test_the_run_counts_its_cost_without_an_sdk(mode: str) -> None:
    seen: list[float | None] = []

    class Budget(Advisor):
        name, order = "budget", 400

        async def advise(self, request: Any, call_next: Any) -> Any:
            response = await call_next(request)
            seen.append(request.run.totals.cost)
            return response

    silent = TelemetryOptions(NoOpTracerProvider(), NoOpMeterProvider(), prices=FlatPrice())
    inner = adder(telemetry=silent)
    outer = ChatClient(Metered([calls("ask"), "done"]), tools=[asking(inner)], advisors=[Budget()], telemetry=silent)
    response = run(mode, outer.prompt("?"))
    assert response.run.totals.cost == 2.0
    assert response.nested_usage == NestedUsage(model_calls=2, tool_calls=1, usage=times(2), cost=2.0)
    assert seen == [1.0, 2.0]


@pytest.mark.parametrize("mode", MODES)
def test_each_run_has_its_own_cost_on_its_span_and_its_stop_event(mode: str) -> None:
    telemetry = Telemetry(prices=FlatPrice())
    inner = adder(telemetry=telemetry.options)
    outer = ChatClient(
        Metered([calls("ask"), "done", "done"]), name="outer", tools=[asking(inner)], telemetry=telemetry.options
    )
    run(mode, outer.prompt("?"))
    run(mode, outer.prompt("?"))
    costs = [span.attributes[names.LOOP_COST] for span in telemetry.named("invoke_agent outer") if span.attributes]
    assert costs == [2.0, 1.0]
    stopped = [each.attributes for each in telemetry.events if each.name == names.LOOP_STOP_EVENT.name]
    assert [each[names.LOOP_COST] for each in stopped] == [2.0, 2.0, 1.0]


def test_a_run_without_prices_has_no_cost_on_its_span() -> None:
    telemetry = Telemetry()
    run("call", adder(telemetry=telemetry.options).prompt("?"))
    assert all(names.LOOP_COST not in (span.attributes or {}) for span in telemetry.spans)


def test_a_price_table_that_raises_fails_no_run_without_an_sdk() -> None:
    class Broken:
        def price(self, provider: str, model: str, usage: Usage) -> float | None:
            raise RuntimeError("no prices today")

    silent = TelemetryOptions(NoOpTracerProvider(), NoOpMeterProvider(), prices=Broken())
    response = ChatClient(Metered(["done"]), telemetry=silent).prompt("?").call()
    assert (response.content, response.run.totals.cost) == ("done", None)


def test_a_run_that_an_advisor_begins_is_nested_as_well() -> None:
    class Checking(Advisor):
        name, order = "checking", 200

        async def advise(self, request: Any, call_next: Any) -> Any:
            await perform(adder().prompt("?").call)
            return await call_next(request)

    response = ChatClient(Metered(["done"]), advisors=[Checking()]).prompt("?").call()
    assert response.nested_usage == NestedUsage(model_calls=2, tool_calls=1, usage=times(2))


def test_a_run_beside_another_is_not_nested_in_it() -> None:
    async def main() -> None:
        watching = Watching()
        stream = adder(advisors=[watching]).prompt("?").astream()
        async with stream:
            async for _ in stream:
                assert (await adder(advisors=[watching]).prompt("?").acall()).content == "three"
        assert {event.parent_run_id for event in watching.events} == {None}
        assert stream.response.nested_usage is None

    asyncio.run(main())


@pytest.mark.parametrize("mode", MODES)
def test_a_run_that_begins_after_the_run_around_it_has_ended_names_it_and_does_not_count(mode: str) -> None:
    left: list[Any] = []

    def leave() -> str:
        """Leave something for later."""
        left.append(copy_context())
        return "left"

    watching = Watching()
    response = run(mode, ChatClient(Metered([calls("leave"), "done"]), tools=[leave]).prompt("?"))
    left[0].run(adder(advisors=[watching]).prompt("?").call)
    assert {event.parent_run_id for event in watching.events} == {response.run_id}
    assert response.nested_usage is None
