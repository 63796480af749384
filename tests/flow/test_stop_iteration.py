"""`StopIteration` and `StopAsyncIteration` are errors like any other, wherever they are raised and in every mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.modes import run
from traced_tools import Advisor, ChatClient, ChatClientResponse, ToolCall, ToolExecutionError, tool
from traced_tools.core import ToolDefinition, ToolErrors, ToolMetadata
from traced_tools.flow import perform
from traced_tools.models.base import ChatModel, ChatRequest, ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback

Kind = type[StopIteration] | type[StopAsyncIteration]

KINDS = pytest.mark.parametrize("kind", [StopIteration, StopAsyncIteration], ids=lambda kind: kind.__name__)


def blocking(kind: Kind) -> Any:
    def t() -> str:
        raise kind("mine")

    return t


def on_asyncio(kind: Kind) -> Any:
    @tool(timeout=5.0)
    async def t() -> str:
        raise kind("mine")

    return t


def converting(kind: Kind) -> Any:
    def convert(value: Any) -> str:
        raise kind("mine")

    return FunctionToolCallback(lambda: 1, name="t", result_converter=convert)


def custom(kind: Kind) -> Any:
    class Custom:
        definition = ToolDefinition(name="t")
        metadata = ToolMetadata()

        def call(self, tool_input: str, context: Any = None) -> str:
            raise kind("mine")

    return Custom()


TOOLS = pytest.mark.parametrize("made", [blocking, on_asyncio, converting, custom], ids=lambda made: made.__name__)


@KINDS
@TOOLS
def test_a_tool_fails_with_the_error_it_raises(
    made: Callable[[Kind], Any], kind: Kind, mode: str, telemetry: Telemetry
) -> None:
    model = ScriptedChatModel([[ToolCall("t"), ToolCall("t")], "done"])
    client = ChatClient(model, tools=[made(kind)], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert [result.error_type for result in response.tool_results] == [kind.__name__] * 2
    assert {type(result.error) for result in response.tool_results} == {kind}
    assert response.tool_results[0].content == f"The tool t failed: {kind.__name__}: mine"
    assert [(span.attributes or {})["error.type"] for span in telemetry.named("execute_tool")] == [kind.__name__] * 2
    telemetry.check_each_ended_once()


@KINDS
def test_the_error_policy_matches_the_stop_iteration(kind: Kind, mode: str) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall("t")]), tools=[blocking(kind)])
    with pytest.raises(ToolExecutionError) as raised:
        run(mode, client.replace(tool_errors=ToolErrors(raise_on=(kind,))).prompt("?"))
    assert type(raised.value.original) is kind


def test_a_runtime_error_that_the_tool_raises_stays_a_runtime_error(mode: str) -> None:
    def t() -> str:
        try:
            return next(iter(()))
        except StopIteration as error:
            raise RuntimeError("nothing there") from error

    response = run(mode, ChatClient(ScriptedChatModel([ToolCall("t"), "done"]), tools=[t]).prompt("?"))
    assert response.tool_results[0].error_type == "RuntimeError"


class Raising(Advisor):
    name, order = "raising", 400


def performed(kind: Kind) -> Any:
    class Performs(Raising):
        async def advise(self, request: Any, call_next: Any) -> ChatClientResponse:
            def fail() -> None:
                raise kind("mine")

            await perform(fail)
            return await call_next(request)  # type: ignore[no-any-return]

    return {"advisors": [Performs()]}


def advised(kind: Kind) -> Any:
    class Advises(Raising):
        async def advise(self, request: Any, call_next: Any) -> ChatClientResponse:
            raise kind("mine")

    return {"advisors": [Advises()]}


def advised_tool(kind: Kind) -> Any:
    class Advises(Raising):
        async def advise_tool(self, call: Any, call_next: Any) -> Any:
            raise kind("mine")

    return {"advisors": [Advises()]}


def watched(kind: Kind) -> Any:
    class Watches(Raising):
        event_errors_end_run = True

        def on_event(self, event: Any) -> None:
            raise kind("mine")

    return {"advisors": [Watches()]}


def resolved(kind: Kind) -> Any:
    class Resolver:
        def resolve(self, name: str) -> Any:
            raise kind("mine")

    return {"tools": (), "resolver": Resolver(), "resolver_fallback": True}


def asked(kind: Kind) -> Any:
    class Model(ChatModel):
        model, provider = "raising", "tests"

        def call(self, request: ChatRequest) -> ChatResponse:
            raise kind("mine")

    return {"model": Model()}


SOURCES = [performed, advised, advised_tool, watched, resolved, asked]


@KINDS
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_a_stop_iteration_fails_the_run_as_a_runtime_error(
    source: Callable[[Kind], Any], kind: Kind, mode: str
) -> None:
    client = ChatClient(ScriptedChatModel([ToolCall("t"), "done"]), tools=[lambda_tool()])
    with pytest.raises(RuntimeError, match=f"raised {kind.__name__}$") as raised:
        run(mode, client.replace(**source(kind)).prompt("?"))
    assert isinstance(raised.value.__cause__, kind)


def lambda_tool() -> FunctionToolCallback:
    return FunctionToolCallback(lambda: 1, name="t")


@KINDS
@pytest.mark.parametrize("streaming", ["stream", "astream"])
def test_an_error_of_on_chunk_does_not_look_like_the_end_of_the_stream(kind: Kind, streaming: str) -> None:
    class Chunks(Raising):
        def on_chunk(self, chunk: Any) -> Any:
            raise kind("mine")

    with pytest.raises(RuntimeError, match=f"raised {kind.__name__}$"):
        run(streaming, ChatClient(ScriptedChatModel(["done"]), advisors=[Chunks()]).prompt("?"))
