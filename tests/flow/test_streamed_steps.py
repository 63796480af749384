"""The caller who drives a run can read the model's answer as it arrives, one step at a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import aclosing, closing
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.events.watching import Watching
from tests.flow.models import Spanning, StreamedModel
from tests.sample_tools import add
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools import AssistantMessage, ChatClient, ChatRun, ToolCall, advisor
from traced_tools.models import CallModel, ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

HOWS = ("stream", "astream")


def streamed(run: ChatRun, how: str, on_chunk: Callable[[Any], object] = id) -> list[str]:
    """Stream all steps of a run and return the texts of the chunks; `on_chunk` is called with each chunk."""

    async def on_asyncio() -> list[str]:
        texts = []
        while step := run.next():
            async with aclosing(run.astream(step)) as chunks:
                async for chunk in chunks:
                    on_chunk(chunk)
                    texts.append(chunk.text)
        return texts

    def blocking() -> list[str]:
        texts = []
        while step := run.next():
            for chunk in run.stream(step):
                on_chunk(chunk)
                texts.append(chunk.text)
        return texts

    return in_time(blocking if how == "stream" else lambda: asyncio.run(patiently(on_asyncio())))


def adder(telemetry: Telemetry, **settings: Any) -> ChatClient:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "It is three."])
    return ChatClient(model, tools=[add], telemetry=telemetry.options, **settings)


@pytest.mark.parametrize("how", HOWS)
def test_the_chunks_the_spans_and_the_events_are_those_of_a_stream(how: str, telemetry: Telemetry) -> None:
    built_in, streaming, watching = Telemetry(), Watching(), Watching()
    with adder(built_in, advisors=[streaming]).prompt("?").stream() as stream:
        expected = [chunk.text for chunk in stream]
    run = adder(telemetry, advisors=[watching]).prompt("?").start()
    assert [text for text in streamed(run, how) if text] == [text for text in expected if text]
    assert run.response.content == "It is three."
    assert telemetry.parents() == built_in.parents()
    assert watching.types == streaming.types
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("how", HOWS)
def test_the_model_streams_in_the_context_of_the_run_and_the_reader_reads_in_its_own(
    how: str, telemetry: Telemetry
) -> None:
    from opentelemetry import trace

    client = ChatClient(StreamedModel(), advisors=[Spanning(telemetry)], telemetry=telemetry.options)
    spans: list[Any] = []
    streamed(client.prompt("?").start(), how, lambda chunk: spans.append(trace.get_current_span()))
    assert {span.get_span_context().is_valid for span in spans} == {False}
    assert telemetry.parent(telemetry.one("chat streamed")) == "mine"


@pytest.mark.parametrize("how", HOWS)
def test_a_reader_who_stops_closes_the_answer_and_may_replace_it(how: str, telemetry: Telemetry) -> None:
    model = StreamedModel()
    run = ChatClient(model, telemetry=telemetry.options).prompt("?").start()
    step = run.next()
    assert isinstance(step, CallModel)

    async def first() -> str:
        async with aclosing(run.astream(step)) as chunks:
            return (await anext(chunks)).text

    if how == "astream":
        text = asyncio.run(patiently(first()))
    else:
        with closing(run.stream(step)) as chunks:
            text = next(chunks).text
    assert (text, model.given, model.closed_streams) == ("one ", 1, 1)
    assert run.next() is step
    run.answer(step, ChatResponse(AssistantMessage(text)))
    assert run.next() is None
    assert run.response.content == "one "
    telemetry.check_each_ended_once()
    telemetry.check_run("answered")


@pytest.mark.parametrize("how", HOWS)
def test_a_run_cancelled_between_two_chunks_closes_the_answer_and_ends(how: str, telemetry: Telemetry) -> None:
    model = StreamedModel()
    run = ChatClient(model, telemetry=telemetry.options).prompt("?").start()
    assert streamed(run, how, lambda chunk: run.cancel()) == ["one "]
    assert model.closed_streams == 1
    telemetry.check_cancelled()


def test_another_thread_cancels_while_the_run_awaits_a_chunk(telemetry: Telemetry) -> None:
    model = StreamedModel(waits_after=2)
    run = ChatClient(model, telemetry=telemetry.options).prompt("?").start()

    def cancel() -> None:
        assert model.waiting.wait(PATIENCE)
        run.cancel()

    other = threading.Thread(target=cancel)
    other.start()
    assert streamed(run, "astream") == ["one ", "two "]
    other.join(PATIENCE)
    assert model.closed_streams == 1
    telemetry.check_cancelled()


@pytest.mark.parametrize("how", HOWS)
def test_an_error_of_the_model_passes_the_advisors_and_ends_the_run(how: str, telemetry: Telemetry) -> None:
    seen: list[str] = []

    async def advised(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except LookupError as error:
            seen.append(str(error))
            raise

    client = ChatClient(
        ScriptedChatModel([LookupError("down")]), advisors=[advisor(advised, order=400)], telemetry=telemetry.options
    )
    run = client.prompt("?").start()
    with pytest.raises(LookupError, match="down"):
        streamed(run, how)
    assert (seen, run.next()) == (["down"], None)
    telemetry.check_run("error", "LookupError")


@pytest.mark.parametrize("how", HOWS)
def test_streaming_another_step_than_the_awaited_one_is_refused(how: str, telemetry: Telemetry) -> None:
    run, other = (adder(telemetry).prompt("?").start() for _ in range(2))
    step = other.next()
    assert step is not None
    run.next()
    with pytest.raises(ValueError, match=r"run\.next"):
        asyncio.run(anext(run.astream(step))) if how == "astream" else next(run.stream(step))


@pytest.mark.parametrize("how", HOWS)
def test_a_reader_who_goes_on_after_the_run_went_on_is_refused(how: str) -> None:
    asking = ["one ", "two ", ToolCall("add", {"a": 1, "b": 2})]  # asked twice: by the stream, and by `perform`
    run = ChatClient(ScriptedChatModel([asking, asking, "It is three."]), tools=[add]).prompt("?").start()
    step = run.next()
    assert step is not None

    async def late() -> None:
        async with aclosing(run.astream(step)) as chunks:
            await anext(chunks)
            await run.aperform(step)
            async for _ in chunks:
                pass

    def blocking() -> None:
        with closing(run.stream(step)) as chunks:
            next(chunks)
            run.perform(step)
            list(chunks)

    with pytest.raises(ValueError, match="does not wait for this step"):
        in_time(blocking if how == "stream" else lambda: asyncio.run(patiently(late())))
    assert isinstance(run.next(), ExecuteTools)
    streamed(run, how)
    assert run.response.content == "It is three."
