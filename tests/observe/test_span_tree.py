"""The span tree of a run matches the contract in each mode, below the application's own spans."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry import trace

from tests.captured import Telemetry
from tests.modes import ALL_MODES, run
from tests.observe.closed_list import APPLICATION
from tests.observe.comparable import emitted_events, lineage, point_shape, steady
from tests.observe.runs import Guard, adds, scenario
from tests.sample_tools import add
from traced_tools import (
    ChatClient,
    ChatClientResponse,
    ToolCall,
)
from traced_tools.models import ChatModel, ChatRequest, ChatResponse
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel


def test_the_span_tree_of_a_run_matches_the_contract(telemetry: Telemetry) -> None:
    scenario(telemetry, "call")
    passes = [
        "before tool_calling",
        ("advise observer", ["chat scripted"]),
        "after tool_calling",
    ]
    loop = (
        "advise tool_calling",
        [
            "initialize tool_calling",
            ("iteration", [*passes, "execute_tool add", "execute_tool fail"]),
            ("iteration", passes),
            "finalize tool_calling",
        ],
    )
    tree = telemetry.nested_names()
    first = tree[0][1][0][1][0][1][1][1]
    first[3:] = sorted(first[3:])  # two tools at once start in either order
    assert tree == [("invoke_agent travel", [("advise memory", [loop])])]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_every_mode_emits_the_same_spans(telemetry: Telemetry, mode: str) -> None:
    reference = Telemetry()
    expected, response = scenario(reference, "call"), scenario(telemetry, mode)

    def answer_of(answer: ChatClientResponse) -> Any:
        calls = [
            (each.tool, each.content, each.decision, each.outcome, each.error_type) for each in answer.tool_results
        ]
        return (answer.content, answer.messages, answer.usage, answer.stop_reason, answer.finish_reason, calls)

    assert answer_of(response) == answer_of(expected)
    assert lineage(telemetry) == lineage(reference)
    assert [point_shape(each) for each in steady(telemetry)] == [point_shape(each) for each in steady(reference)]
    assert emitted_events(telemetry) == emitted_events(reference) != []


def test_child_spans_lie_within_the_time_of_their_parents(telemetry: Telemetry) -> None:
    scenario(telemetry, "call")
    for span in telemetry.spans:
        for child in telemetry.children(span):
            assert (span.start_time or 0) <= (child.start_time or 0)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_advise_tool_spans_are_children_of_the_tool_span(telemetry: Telemetry, mode: str) -> None:
    client = ChatClient(
        ScriptedChatModel([adds(1, 1), "two"]), tools=[add], advisors=[Guard()], telemetry=telemetry.options
    )
    run(mode, client.prompt("?"))
    (hook,) = telemetry.children(telemetry.one("execute_tool add"))
    assert hook.name == "advise_tool guard"
    assert dict(hook.attributes or {}) == {
        names.ADVISOR_NAME: "guard",
        names.ADVISOR_HOOK: "advise_tool",
        names.ADVISOR_ORDER: 350,
        names.ITERATION_INDEX: 1,
    }


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_span_is_a_child_of_the_applications_span_and_not_current_for_its_consumer(
    telemetry: Telemetry, mode: str
) -> None:
    tracer = telemetry.tracer_provider.get_tracer(APPLICATION)
    currents: list[object] = []
    spec = ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?")

    async def consume() -> None:
        async with spec.astream() as stream:
            async for _ in stream:
                currents.append(trace.get_current_span())

    with tracer.start_as_current_span("request") as outer:
        if mode == "stream":
            for _ in spec.stream():
                currents.append(trace.get_current_span())
        elif mode == "astream":
            asyncio.run(consume())
        else:
            run(mode, spec)
        currents.append(trace.get_current_span())
    assert set(currents) == {outer}
    (child,) = telemetry.children(telemetry.one("request"))
    assert child.name == "invoke_agent assistant"


@pytest.mark.parametrize("mode", ALL_MODES)
def test_spans_that_a_tool_or_model_starts_are_children_of_its_span(telemetry: Telemetry, mode: str) -> None:
    tracer = telemetry.tracer_provider.get_tracer(APPLICATION)

    def inside(label: str) -> str:
        with tracer.start_as_current_span("own"):
            return label

    class Spanning(ChatModel):
        model, provider = "spanning", "test"

        def __init__(self) -> None:
            self._script = ScriptedChatModel([ToolCall("inside", {"label": "x"}), "done"])

        def call(self, request: ChatRequest) -> ChatResponse:
            inside("model")
            return self._script.call(request)

    run(mode, ChatClient(Spanning(), tools=[inside], telemetry=telemetry.options).prompt("?"))
    assert [span.name for span in telemetry.children(telemetry.one("execute_tool inside"))] == ["own"]
    for chat in telemetry.named("chat spanning"):
        assert [span.name for span in telemetry.children(chat)] == ["own"]
