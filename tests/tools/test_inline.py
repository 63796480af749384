"""Tools that run inline: on asyncio in place on the event loop, with everything else as for any tool."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
from pydantic import BaseModel

from tests.modes import ALL_MODES, ASYNC_MODES, MODES, arun, run
from tests.waiting import PATIENCE, patiently
from traced_tools import ChatClient, ToolCall, ToolContext, tool
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, augmented, tool_callbacks

WHO: ContextVar[str] = ContextVar("who", default="nobody")
INLINE = ToolMetadata(inline=True)


def place() -> str:
    """Say where this runs."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return "main thread" if threading.current_thread() is threading.main_thread() else "worker thread"
    return "event loop"


@tool(name="place", inline=True)
def inline_place() -> str:
    """Say where this runs."""
    return place()


@tool(name="place", inline=True)
def inline_places() -> Iterator[str]:
    """Say where this runs."""
    yield place()


class Why(BaseModel):
    why: str = ""


class Custom:
    definition = ToolDefinition(name="place")
    metadata = INLINE

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return place()


class Overriding(FunctionToolCallback):
    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return super().call(tool_input, context)


INLINE_TOOLS: dict[str, Any] = {
    "function": inline_place,
    "metadata": FunctionToolCallback(place, metadata=INLINE),
    "replaced metadata": FunctionToolCallback(place, metadata=ToolMetadata(retries=1).replace(inline=True)),
    "lambda that returns an awaitable": FunctionToolCallback(
        lambda: asyncio.sleep(0, place()), name="place", metadata=INLINE
    ),
    "generator": inline_places,
    "augmented": augmented(inline_place, arguments=Why),
    "custom": Custom(),
    "subclass": Overriding(place, metadata=INLINE),
}


def calling_client(tools: list[Any], *calls: ToolCall, **settings: Any) -> ChatClient:
    return ChatClient(ScriptedChatModel([[*calls], "done"]), tools=tools, **settings)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_inline_function_runs_on_the_event_loop_and_any_other_in_a_thread(mode: str) -> None:
    expected = ("event loop", "worker thread") if mode in ASYNC_MODES else ("main thread", "main thread")
    for name, inline in INLINE_TOOLS.items():
        if mode in ASYNC_MODES or not name.startswith("lambda"):
            (result,) = run(mode, calling_client([inline], ToolCall("place")).prompt("?")).tool_results
            assert expected[0] in result.content, name
    (result,) = run(mode, calling_client([place], ToolCall("place")).prompt("?")).tool_results
    assert result.content == expected[1]


def test_an_inline_tool_that_is_called_by_hand_runs_on_the_event_loop() -> None:
    (callback,) = tool_callbacks([inline_place])
    assert asyncio.run(callback.acall("{}")) == "event loop"  # type: ignore[attr-defined]
    assert callback.call("{}") == "main thread"


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_the_inline_tools_of_an_agent_that_is_a_tool_run_on_the_event_loop(mode: str) -> None:
    agent = calling_client([inline_place], ToolCall("place"))
    answers: list[str] = []

    @tool(name="ask", inline=True)
    def answer(context: ToolContext) -> str:
        answers.append(place())
        return "asked"

    client = calling_client(
        [agent.as_tool("agent", "Ask the agent."), answer], ToolCall("agent", {"question": "?"}), ToolCall("ask")
    )
    response = run(mode, client.prompt("?"))
    assert [result.content for result in response.tool_results] == ["done", "asked"]
    assert answers == ["event loop"]


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_inline_calls_of_one_answer_run_one_after_another_beside_those_in_threads(mode: str) -> None:
    begun, steps = threading.Event(), []

    @tool(inline=True)
    def first(number: int) -> int:
        steps.append(("begins", number))
        begun.set()
        steps.append(("ends", number))
        return number

    def waiting() -> bool:
        return begun.wait(PATIENCE)

    client = calling_client(
        [first, waiting], ToolCall("waiting"), ToolCall("first", {"number": 1}), ToolCall("first", {"number": 2})
    )
    results = run(mode, client.prompt("?")).tool_results
    assert [result.content for result in results] == ["true", "1", "2"]
    assert steps == [("begins", 1), ("ends", 1), ("begins", 2), ("ends", 2)]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_inline_tool_reads_the_context_and_the_context_variables_of_the_run(mode: str) -> None:
    @tool(inline=True)
    def who(greeting: str, context: ToolContext) -> str:
        before = WHO.get()
        WHO.set("the tool")
        return f"{greeting} {before}, {context['user']}, {context.call_id}"

    calls = [ToolCall("who", {"greeting": "hello"}, call_id) for call_id in ("a", "b")]
    token = WHO.set("the caller")
    try:
        spec = calling_client([who], *calls, tool_context={"user": "ana"}).prompt("?")
        contents = [result.content for result in run(mode, spec).tool_results]
    finally:
        WHO.reset(token)
    assert contents == ["hello the caller, ana, a", "hello the caller, ana, b"]
    assert WHO.get() == "nobody"


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("kind", [LookupError, StopIteration, asyncio.CancelledError, SystemExit])
def test_an_error_of_an_inline_tool_is_that_of_any_other_tool(mode: str, kind: type[BaseException]) -> None:
    def fails() -> None:
        raise kind("why")

    outcomes = []
    for metadata in (ToolMetadata(), INLINE):
        client = calling_client([FunctionToolCallback(fails, metadata=metadata)], ToolCall("fails"))
        try:
            (result,) = run(mode, client.prompt("?")).tool_results
        except SystemExit as error:
            outcomes.append(("exit", str(error)))
        else:
            outcomes.append((result.outcome, result.content))
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize("mode", MODES)
def test_an_inline_tool_that_fails_is_called_again(mode: str) -> None:
    attempts: list[str] = []

    @tool(inline=True, retries=1)
    def unsteady() -> str:
        attempts.append(place())
        if len(attempts) == 1:
            raise ConnectionError
        return "done"

    (result,) = run(mode, calling_client([unsteady], ToolCall("unsteady")).prompt("?")).tool_results
    assert result.ok
    assert len(attempts) == 2
    assert len(set(attempts)) == 1


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_run_that_an_inline_tool_cancels_ends_at_its_next_wait(mode: str) -> None:
    async def main() -> None:
        @tool(inline=True)
        def stop() -> str:
            task.cancel()
            return "stopped"

        spec = calling_client([stop, place], ToolCall("stop"), ToolCall("place")).prompt("?")
        task = asyncio.create_task(arun(mode, spec))
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))


async def coroutine() -> str:
    """Return a text."""
    return ""


@tool(inline=True)
async def decorated() -> str:
    """Return a text."""
    return ""


async def generator() -> AsyncIterator[str]:
    """Return a text."""
    yield ""


AGENT = ChatClient(ScriptedChatModel(["done"]))


@pytest.mark.parametrize(
    "create",
    [
        lambda: FunctionToolCallback(coroutine, metadata=INLINE),
        lambda: FunctionToolCallback(generator, metadata=INLINE),
        lambda: AGENT.as_tool("agent", "Ask the agent.", metadata=INLINE),
        lambda: tool_callbacks([decorated]),
    ],
    ids=["coroutine function", "async generator", "agent", "@tool"],
)
def test_an_async_function_cannot_be_inline(create: Callable[[], object]) -> None:
    with pytest.raises(ToolDefinitionError, match="runs on the event loop anyway: drop inline=True"):
        create()


@pytest.mark.parametrize(
    "create",
    [
        lambda: tool(inline=True, timeout=1),
        lambda: ToolMetadata(inline=True, timeout=1),
        lambda: ToolMetadata(timeout=1).replace(inline=True),
        lambda: INLINE.replace(timeout=1),
    ],
)
def test_an_inline_tool_cannot_have_a_timeout(create: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="a timeout cannot interrupt a tool that runs inline: drop timeout="):
        create()
