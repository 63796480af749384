"""Random conversations run in our loop and by hand, and both do, send, record and emit the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integrations.small_agent import without_our_loop
from tests.test_seven_ways import ANSWERS, CALLS, Conversation, World
from tests.waiting import patiently
from traced_tools import LoopLimits, ToolCall, ToolResult, UserMessage, observe
from traced_tools.core.messages import ToolMessage
from traced_tools.core.tool_errors import ToolErrors
from traced_tools.errors import LoopLimitExceeded
from traced_tools.models import ChatResponse
from traced_tools.models.base import ChatRequest
from traced_tools.observe import ManualModelCall, ManualRun


class ByHand:
    """The conversation of a world, driven by hand."""

    def __init__(self, world: World, execute: Callable[[ManualRun, Any, list[ToolCall]], list[ToolResult]]) -> None:
        self._world = world
        self._settings = world.client()._settings
        self._execute = execute

    def ask(self, question: str) -> tuple[ToolResult, ...]:
        settings, model = self._settings, self._world.model
        run = observe.run(
            settings.name,
            model=model.model,
            provider=model.provider,
            messages=[UserMessage(question)],
            advisors=settings.advisors,
            limits=self._world.conversation.limits,
            tool_errors=self._world.conversation.errors,
            telemetry=self._world.telemetry.options,
            conversation_id="c",
        )
        with run:
            try:
                self._loop(run, question)
            except LoopLimitExceeded:
                if self._world.conversation.limits.on_limit == "raise":
                    raise
        return run.tool_results

    def _loop(self, run: ManualRun, question: str) -> None:
        messages: list[Any] = [UserMessage(question)]
        while True:
            with run.iteration() as iteration:
                tools = () if iteration.limit else self._settings.tools
                with run.model_call(messages=messages, tools=tools) as call:
                    response = self._answer(call, messages)
                if not response.tool_calls:
                    return
                results = self._execute(run, self._settings.tools, list(response.tool_calls))
                if run.pending:
                    return
                messages += [response.message, ToolMessage([result.part() for result in results])]

    def _answer(self, call: ManualModelCall, messages: list[Any]) -> ChatResponse:
        return call.answered(self._world.model.call(ChatRequest(tuple(messages))))


def one_by_one(run: ManualRun, tools: Any, calls: list[ToolCall]) -> list[ToolResult]:
    return [run.execute(tools, call) for call in calls]


def in_threads(run: ManualRun, tools: Any, calls: list[ToolCall]) -> list[ToolResult]:
    """Run the calls in threads that know nothing of the run, one after the other, so that limits are deterministic."""
    with ThreadPoolExecutor(1) as threads:
        return list(threads.map(lambda call: run.execute(tools, call), calls))


def on_asyncio(run: ManualRun, tools: Any, calls: list[ToolCall]) -> list[ToolResult]:
    async def execute() -> list[ToolResult]:
        return [await run.aexecute(tools, call) for call in calls]

    return asyncio.run(patiently(execute()))


WAYS = {"one by one": one_by_one, "in threads": in_threads, "on asyncio": on_asyncio}
KINDS = sorted({"flaky", *CALLS} - {"answered", "search"})
"""Neither a tool whose result is the answer, nor a search for tools: these are decisions of our loop."""


@st.composite
def conversations(draw: st.DrawFn) -> Conversation:
    """Draw a conversation whose model answers and whose advisors wrap only tool calls.

    If errors end runs, an answer has one call: our loop runs the other calls of the answer, and a loop by hand stops.
    """
    errors = draw(st.sampled_from([ToolErrors(), ToolErrors(always_raise=True), ToolErrors(unknown_tool="raise")]))
    calls = st.lists(st.sampled_from(KINDS), min_size=1, max_size=4 if errors == ToolErrors() else 1).map(tuple)
    return Conversation(
        tuple(draw(st.lists(st.one_of(calls, st.sampled_from(ANSWERS)), min_size=1, max_size=6))),
        draw(st.frozensets(st.sampled_from(["guard", "policy", "evaluated policy", "retries", "audit"]))),
        None,
        None,
        LoopLimits(
            max_iterations=draw(st.none() | st.integers(1, 3)),
            max_tool_calls=draw(st.none() | st.integers(1, 6)),
            max_calls_per_tool=draw(st.none() | st.integers(1, 3)),
            max_repeated_calls=draw(st.none() | st.integers(1, 2)),
            max_tokens=draw(st.none() | st.integers(10, 60)),
            max_consecutive_errors=draw(st.none() | st.integers(1, 2)),
            on_limit=draw(st.sampled_from(["conclude", "stop"])),
        ),
        errors,
    )


def play(world: World, ask: Callable[[str], tuple[ToolResult, ...]]) -> dict[str, Any]:
    """Ask until the model has no more turns; return all that can be seen of it."""
    outcomes: list[Any] = []
    while len(world.model.requests) < len(world.conversation.turns) and len(outcomes) <= len(world.conversation.turns):
        try:
            outcomes.append([(str(result), result.content) for result in ask(f"Question {len(outcomes)}?")])
        except Exception as error:
            outcomes.append((type(error), str(error)))
    requests = [request.messages for request in world.model.requests]
    return {"outcomes": outcomes, "requests": requests, **without_our_loop(world.seen())}


@given(conversation=conversations())
@pytest.mark.parametrize("way", WAYS)
def test_a_conversation_is_the_same_by_hand(way: str, conversation: Conversation) -> None:
    ours, by_hand = World(conversation), World(conversation)
    client = ours.client()
    expected = play(ours, lambda question: client.prompt(question, conversation_id="c").call().tool_results)
    assert play(by_hand, ByHand(by_hand, WAYS[way]).ask) == expected
