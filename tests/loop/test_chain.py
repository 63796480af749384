"""The chain: advisors in order around a model, entered any number of times.

Of the reference's statements on its chain, a consumed queue, copies "after an advisor" and a builder seeded with one
have no meaning here: a chain holds no state of a run, and `call_next` is the rest of it.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import MODES, STREAMING_MODES, run, run_chunks
from tests.recorder import Recorder
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ToolCall,
    UserMessage,
)
from traced_tools.errors import AdvisorChainError
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel


class Note(Advisor):
    """Notes its way in and out."""

    def __init__(self, seen: list[str], name: str, order: int) -> None:
        self.name = name
        self.order = order
        self._seen = seen

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self._seen.append(f"{self.name} in")
        response = await call_next(request)
        self._seen.append(f"{self.name} out")
        return response


@pytest.mark.parametrize("mode", MODES)
def test_lower_orders_are_further_out(mode: str) -> None:
    seen: list[str] = []
    advisors = [Note(seen, "inner", 500), Note(seen, "outer", -7), Note(seen, "middle", 100)]
    run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=advisors).prompt("?"))
    assert seen == ["outer in", "middle in", "inner in", "inner out", "middle out", "outer out"]


@pytest.mark.parametrize("mode", MODES)
def test_equal_orders_keep_the_order_of_registration_in_every_pass(mode: str) -> None:
    seen: list[str] = []
    client = ChatClient(
        ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "two"]),
        tools=[add],
        advisors=[Note(seen, "first", 400), Note(seen, "second", 400)],
    )
    run(mode, client.prompt("?", advisors=[Note(seen, "third", 400)]))
    once = ["first in", "second in", "third in", "third out", "second out", "first out"]
    assert seen == once * 2


@pytest.mark.parametrize("mode", MODES)
def test_the_model_is_further_in_than_any_order(mode: str) -> None:
    seen: list[str] = []
    model = ScriptedChatModel([lambda request: seen.append("model") or ToolCall("add", {"a": 1, "b": 1}), "two"])
    advisors = [Note(seen, "innermost", sys.maxsize), Note(seen, "outermost", -sys.maxsize)]
    run(mode, ChatClient(model, tools=[add], advisors=advisors).prompt("?"))
    assert seen == [
        "outermost in",
        *("innermost in", "model", "innermost out"),
        *("innermost in", "innermost out"),
        "outermost out",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_can_ask_the_rest_of_the_chain_again(mode: str) -> None:
    class Insist(Advisor):
        name, order = "insist", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            response = await call_next(request)
            while "please" not in response.content:
                again = (*request.messages, response.message, UserMessage("say please"))
                response = await call_next(request.replace(messages=again))
            return response

    inner = Recorder("inner", 200)
    model = ScriptedChatModel(["no", "never", "please"])
    response = run(mode, ChatClient(model, advisors=[Insist(), inner]).prompt("?"))
    assert response.content == "please"
    assert (len(inner.requests), len(model.requests[2].messages)) == (3, 3)


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_outside_the_loop_can_run_the_loop_again(mode: str) -> None:
    class Twice(Advisor):
        name, order = "twice", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            await call_next(request)
            return await call_next(request)

    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "one", ToolCall("add", {"a": 2, "b": 2}), "two"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Twice()]).prompt("?"))
    assert response.content == "two"
    assert [each.content for each in response.tool_results] == ["2", "4"]
    assert model.requests[2].messages == (UserMessage("?"),)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kept", ["first", "own"])
def test_the_response_has_the_results_of_the_whole_run_whichever_answer_an_advisor_returns(
    mode: str, kept: str
) -> None:
    class Twice(Advisor):
        name, order = "twice", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            first = await call_next(request)
            assert [each.content for each in first.tool_results] == ["2"]
            await call_next(request)
            return first if kept == "first" else ChatClientResponse(request.run, first.chat_response)

    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "one", ToolCall("add", {"a": 2, "b": 2}), "two"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Twice()]).prompt("?"))
    assert response.content == "one"
    assert [each.content for each in response.tool_results] == ["2", "4"]


@pytest.mark.parametrize("mode", MODES)
def test_results_that_an_advisor_puts_in_their_place_stay(mode: str) -> None:
    class Redacting(BaseAdvisor):
        name, order = "redacting", 100

        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(tool_results=tuple(replace(each, content="-") for each in response.tool_results))

    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "one"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[Redacting()]).prompt("?"))
    assert [each.content for each in response.tool_results] == ["-"]


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_can_answer_without_the_model(mode: str) -> None:
    class Canned(Advisor):
        name, order = "canned", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            answer = ChatResponse(AssistantMessage("I may not say"))
            return ChatClientResponse(request.run, answer, stop_reason="advisor")

    model = ScriptedChatModel([])
    response, chunks = run_chunks(mode, ChatClient(model, advisors=[Canned()]).prompt("?"))
    assert (response.content, response.stop_reason, model.requests) == ("I may not say", "advisor", [])
    assert [chunk.text for chunk in chunks] == (["I may not say"] if mode.endswith("stream") else [])


@pytest.mark.parametrize("mode", MODES)
def test_what_an_advisor_puts_in_the_context_reaches_those_further_in_and_comes_back(mode: str) -> None:
    class Note(Advisor):
        name, order = "note", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request.replace(context={**request.context, "noted": True}))

    inner = Recorder("inner", 400)
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[Note(), inner])
    response = run(mode, client.prompt("?", params={"asked": 1}))
    assert dict(inner.requests[0].context) == dict(response.context) == {"asked": 1, "noted": True}


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_may_wait_for_a_blocking_or_an_async_function(mode: str) -> None:
    async def load(key: str) -> str:
        return f"loaded {key}"

    class Waits(Advisor):
        name, order = "waits", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            words = [await perform(load, "a"), await perform(str.upper, "b")]
            return await call_next(request.replace(messages=(*request.messages, *map(UserMessage, words))))

    model = ScriptedChatModel(["x"])
    run(mode, ChatClient(model, advisors=[Waits()]).prompt("?"))
    assert model.requests[0].messages[1:] == (UserMessage("loaded a"), UserMessage("B"))


@pytest.mark.parametrize("mode", MODES)
def test_an_error_of_an_advisor_passes_unchanged_and_others_can_catch_it(mode: str) -> None:
    error = LookupError("mine")

    class Raises(Advisor):
        name, order = "raises", 200

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            raise error

    class Catches(Advisor):
        name, order = "catches", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            try:
                return await call_next(request)
            except LookupError:
                return ChatClientResponse(request.run, ChatResponse(AssistantMessage("sorry")))

    with pytest.raises(LookupError) as caught:
        run(mode, ChatClient(ScriptedChatModel([]), advisors=[Raises()]).prompt("?"))
    assert caught.value is error
    response = run(mode, ChatClient(ScriptedChatModel([]), advisors=[Raises(), Catches()]).prompt("?"))
    assert response.content == "sorry"


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_can_catch_the_models_error_and_ask_again(mode: str) -> None:
    class Retry(Advisor):
        name, order = "retry", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            try:
                return await call_next(request)
            except ConnectionError:
                return await call_next(request)

    model = ScriptedChatModel([ConnectionError(), "there"])
    assert run(mode, ChatClient(model, advisors=[Retry()]).prompt("?")).content == "there"


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_that_returns_something_else_is_named(mode: str) -> None:
    class Odd(Advisor):
        name, order = "odd", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> Any:
            return "x"

    with pytest.raises(TypeError, match="advise of odd must return a ChatClientResponse, not str"):
        run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[Odd()]).prompt("?"))


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_that_overrides_nothing_leaves_no_trace(mode: str) -> None:
    class Idle(Advisor):
        name, order = "idle", 100

    telemetry = Telemetry()
    run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[Idle()], telemetry=telemetry.options).prompt("?"))
    assert not [span.name for span in telemetry.spans if "idle" in span.name]


@pytest.mark.parametrize("name", ["", None, 5])
@pytest.mark.parametrize("order", [1, "first", None, True])
def test_an_advisor_needs_a_name_and_an_order(name: Any, order: Any) -> None:
    advisor = Advisor()
    advisor.name, advisor.order = name, order
    with pytest.raises(AdvisorChainError, match=r"Advisor needs a `name` .* and an `order`"):
        ChatClient(ScriptedChatModel([]), advisors=[advisor])
    with pytest.raises(AdvisorChainError, match="needs a `name`"):
        ChatClient(ScriptedChatModel([])).prompt("?", advisors=[Advisor()])


# Before and after.


@pytest.mark.parametrize("mode", MODES)
def test_a_base_advisor_changes_what_passes_with_plain_or_async_methods(mode: str) -> None:
    class Change(BaseAdvisor):
        name, order = "change", 100

        async def before(self, request: ChatClientRequest) -> ChatClientRequest:
            return request.replace(messages=(*request.messages, UserMessage("and smile")))

        def after(self, response: ChatClientResponse) -> ChatClientResponse:
            return response.replace(context={"changed": True})

    model = ScriptedChatModel(["x"])
    response = run(mode, ChatClient(model, advisors=[Change()]).prompt("?"))
    assert (response.context, len(model.requests[0].messages)) == ({"changed": True}, 2)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("hook", ["before", "after"])
def test_a_base_advisors_hook_that_returns_something_else_is_named(mode: str, hook: str) -> None:
    advisor: Any = type("Odd", (BaseAdvisor,), {hook: lambda self, value: None, "name": "odd", "order": 100})()
    with pytest.raises(TypeError, match=f"{hook} of odd must return a ChatClientRe.*, not NoneType"):
        run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[advisor]).prompt("?"))


class Listen(BaseAdvisor):
    """Keeps what its `after` is given."""

    name, order = "listen", 400

    def __init__(self) -> None:
        self.seen: list[str] = []

    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        self.seen.append(response.content)
        return response


@pytest.mark.parametrize("mode", MODES)
def test_after_runs_once_an_answer_and_not_once_a_chunk(mode: str) -> None:
    listen = Listen()
    run(mode, ChatClient(ScriptedChatModel(["one two three"]), advisors=[listen]).prompt("?"))
    assert listen.seen == ["one two three"]


@pytest.mark.parametrize("mode", MODES)
def test_after_does_not_run_if_the_model_fails(mode: str) -> None:
    listen = Listen()
    with pytest.raises(ConnectionError):
        run(mode, ChatClient(ScriptedChatModel([ConnectionError()]), advisors=[listen]).prompt("?"))
    assert listen.seen == []


@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_after_does_not_run_if_the_stream_is_left(mode: str) -> None:
    listen = Listen()
    spec = ChatClient(ScriptedChatModel(["one two three"]), advisors=[listen]).prompt("?")

    async def leave() -> None:
        async with spec.astream() as stream:
            await anext(stream)

    if mode == "astream":
        asyncio.run(leave())
    else:
        with spec.stream() as stream:
            next(stream)
    assert listen.seen == []


# Chunks.


class OnChunk(Advisor):
    """Does with each chunk what it is made with."""

    def __init__(self, name: str, order: int, change: Any) -> None:
        self.name = name
        self.order = order
        self._change = change

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        return self._change(chunk)  # type: ignore[no-any-return]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_chunks_pass_the_innermost_advisor_first(mode: str) -> None:
    seen: list[str] = []
    advisors = [
        OnChunk("outer", 100, lambda chunk: seen.append(f"outer {chunk.text}") or chunk),
        OnChunk("inner", 500, lambda chunk: seen.append(f"inner {chunk.text}") or chunk),
    ]
    run(mode, ChatClient(ScriptedChatModel(["one"]), advisors=advisors).prompt("?"))
    assert seen[:2] == ["inner one", "outer one"]


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_advisor_can_drop_chunks_and_change_them(mode: str) -> None:
    def censor(chunk: ChatClientResponse) -> ChatClientResponse | None:
        if "two" in chunk.text:
            return None
        return chunk.replace(context={"seen": True})

    spec = ChatClient(ScriptedChatModel(["one two three"]), advisors=[OnChunk("censor", 100, censor)]).prompt("?")
    response, chunks = run_chunks(mode, spec)
    assert [chunk.text for chunk in chunks if chunk.text] == ["one ", "three"]
    assert all(chunk.context == {"seen": True} for chunk in chunks)
    assert response.content == "one two three"


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_only_an_advisor_inside_the_loop_sees_the_chunks_of_tool_calls(mode: str) -> None:
    inside: list[str] = []
    outside: list[str] = []

    def note(seen: list[str]) -> Any:
        return lambda chunk: seen.extend(call.name for call in chunk.tool_calls) or chunk

    client = ChatClient(
        ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "two"]),
        tools=[add],
        advisors=[OnChunk("inside", 400, note(inside)), OnChunk("outside", 200, note(outside))],
    )
    run(mode, client.prompt("?"))
    assert (inside, outside) == (["add"], [])


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_an_error_in_on_chunk_passes_unchanged(mode: str) -> None:
    def broken(chunk: ChatClientResponse) -> ChatClientResponse:
        raise LookupError("mine")

    client = ChatClient(ScriptedChatModel(["one"]), advisors=[OnChunk("broken", 100, broken)])
    with pytest.raises(LookupError, match="mine"):
        run(mode, client.prompt("?"))
