"""Functions as advisors, and what is used a second time, in all four modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import ChatClient, ChatClientRequest, ChatClientResponse, ToolCall, UserMessage, advisor
from traced_tools.errors import AdvisorChainError
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.testing import ScriptedChatModel


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def test_a_function_is_an_advisor(mode: str, telemetry: Telemetry) -> None:
    seen = []

    @advisor(order=400)
    async def shout(request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        seen.append(request.iteration)
        response = await call_next(request.replace(messages=(*request.messages, UserMessage("Shout!"))))
        return response.replace(context={"seen": len(seen)})

    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "THREE"])
    client = ChatClient(model, tools=[add], advisors=[shout], telemetry=telemetry.options)
    assert run(mode, client.prompt("?")).context == {"seen": 2}
    assert seen == [1, 2]
    assert len(telemetry.named("advise shout")) == 2


def test_a_plain_function_that_returns_what_the_chain_returns_is_an_advisor(mode: str) -> None:
    loud = advisor(lambda request, call_next: call_next(request), order=100, name="loud")
    assert (loud.name, loud.order) == ("loud", 100)
    assert run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[loud]).prompt("?")).content == "x"


@pytest.mark.parametrize("found", [None, "x"])
def test_a_function_that_returns_something_else_is_named(mode: str, found: Any) -> None:
    async def forgetful(request: ChatClientRequest, call_next: AdviseNext) -> Any:
        await call_next(request)
        return found

    client = ChatClient(ScriptedChatModel(["x"]), advisors=[advisor(forgetful, order=100)])
    with pytest.raises(TypeError, match="advise of forgetful must return a ChatClientResponse, not"):
        run(mode, client.prompt("?"))


async def plain(request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
    return await call_next(request)


_advisor: Any = advisor


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: ChatClient(ScriptedChatModel([]), advisors=[plain]), r"advisors\[0\] is a function: make an Advisor"),  # type: ignore[list-item]
        (lambda: _advisor(plain), "missing 1 required keyword-only argument: 'order'"),
        (lambda: _advisor(plain, order="first"), "order must be an int"),
        (lambda: _advisor(plain, order=1, name=2), "name must be a str or None"),
        (lambda: _advisor("plain", order=1), "advisor makes an Advisor of a function, not of str"),
        (lambda: _advisor(ToolCallingAdvisor, order=1), "advisor makes an Advisor of a function, not of"),
    ],
)
def test_what_is_no_function_or_has_no_order_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises(TypeError, match=says):
        attempt()


# What is used a second time.


def test_two_loops_in_a_chain_are_refused_by_name() -> None:
    loops = [ToolCallingAdvisor(), ToolCallingAdvisor(order=310)]
    with pytest.raises(AdvisorChainError, match=r"tool_calling \(order 300\), tool_calling \(order 310\)"):
        ChatClient(ScriptedChatModel([]), advisors=loops)


def test_a_prompt_runs_the_whole_chain_each_time(mode: str) -> None:
    seen = []

    @advisor(order=100)
    async def outer(request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        seen.append(request.run.id)
        return await call_next(request)

    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "3"] * 2)
    prompt = ChatClient(model, tools=[add], advisors=[outer]).prompt("?")
    assert [run(mode, prompt).content, run(mode, prompt).content] == ["3", "3"]
    assert len(set(seen)) == 2


def test_a_stream_that_has_ended_yields_nothing_more_and_calls_no_model() -> None:
    model = ScriptedChatModel(["one two"])
    stream = ChatClient(model).prompt("?").stream()
    assert [chunk.text for chunk in stream if chunk.text] == ["one ", "two"]
    assert list(stream) == []
    assert (stream.response.content, len(model.requests)) == ("one two", 1)


def test_a_step_of_a_run_that_has_ended_is_refused() -> None:
    model = ScriptedChatModel(["x"])
    driven = ChatClient(model).prompt("?").start()
    step = driven.next()
    assert step is not None
    driven.perform(step)
    assert driven.next() is None
    with pytest.raises(ValueError, match="the run does not wait for this step"):
        driven.perform(step)
    assert (driven.response.content, len(model.requests)) == ("x", 1)
