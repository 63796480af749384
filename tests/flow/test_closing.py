"""Promise 7 for streams that are closed, fail to close, or are read by two tasks at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.flow.models import StreamedModel, client_of
from tests.waiting import PATIENCE, patiently
from traced_tools import ChatClient, ToolCall
from traced_tools.models.base import ChatChunk, ChatRequest
from traced_tools.testing import ScriptedChatModel


@pytest.fixture
def model() -> StreamedModel:
    return StreamedModel()


# What a closed stream is like.


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_closed_stream_has_ended(chunks: int, model: StreamedModel, telemetry: Telemetry) -> None:
    stream = client_of(model, telemetry).prompt("?").stream()
    for _ in range(chunks):
        next(stream)
    stream.close()
    stream.close()

    assert list(stream) == []
    with pytest.raises(RuntimeError, match="to its end"):
        _ = stream.response
    assert model.asked == chunks


@pytest.mark.parametrize("chunks", [0, 1])
def test_a_closed_async_stream_has_ended(chunks: int, model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> None:
        stream = client_of(model, telemetry).prompt("?").astream()
        for _ in range(chunks):
            await anext(stream)
        await stream.aclose()
        await stream.aclose()

        assert [chunk async for chunk in stream] == []
        with pytest.raises(RuntimeError, match="to its end"):
            _ = stream.response

    asyncio.run(patiently(main()))
    assert model.asked == chunks


def test_a_stream_that_failed_has_ended() -> None:
    stream = ChatClient(ScriptedChatModel([LookupError("down")])).prompt("?").stream()
    with pytest.raises(LookupError):
        next(stream)
    assert list(stream) == []


def test_closing_a_stream_after_its_end_keeps_its_response(model: StreamedModel, telemetry: Telemetry) -> None:
    with client_of(model, telemetry).prompt("?").stream() as stream:
        texts = [chunk.text for chunk in stream]
    assert stream.response.content == "".join(texts) == model.text
    telemetry.check_each_ended_once()
    telemetry.check_run("answered")


class Unclosable(StreamedModel):
    """A model whose stream fails when it is closed."""

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        try:
            yield from super().stream(request)
        finally:
            raise ConnectionError("while closing")

    async def astream(self, request: ChatRequest) -> Any:
        try:
            async for chunk in super().astream(request):
                yield chunk
        finally:
            raise ConnectionError("while closing")


def test_every_span_ends_when_the_models_stream_fails_to_close(telemetry: Telemetry) -> None:
    stream = client_of(Unclosable(), telemetry).prompt("?").stream()
    next(stream)
    with pytest.raises(ConnectionError):
        stream.close()
    telemetry.check_each_ended_once()


def test_every_span_ends_when_the_models_async_stream_fails_to_close(telemetry: Telemetry) -> None:
    async def main() -> None:
        stream = client_of(Unclosable(), telemetry).prompt("?").astream()
        await anext(stream)
        with pytest.raises(ConnectionError):
            await stream.aclose()
        telemetry.check_each_ended_once()

    asyncio.run(patiently(main()))


# Two tasks at once.


def test_closing_a_stream_while_another_task_waits_for_a_chunk_never_asks_the_model_again(telemetry: Telemetry) -> None:
    async def main() -> None:
        model = StreamedModel(waits_after=1)
        stream = client_of(model, telemetry).prompt("?").astream()

        async def consume() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(consume())
        await asyncio.to_thread(model.waiting.wait, PATIENCE)
        refused = (await asyncio.gather(stream.aclose(), return_exceptions=True))[0]
        model.go_on.set()
        await asyncio.wait([task])
        ended = task.cancelled() or task.exception()
        await stream.aclose()

        assert model.asked == 1
        assert model.closed_streams == 1
        telemetry.check_each_ended_once()
        if isinstance(refused, RuntimeError):  # refused: then the other task goes on undisturbed
            assert not ended
            assert stream.response.content == model.text
        else:
            telemetry.check_cancelled()

    asyncio.run(patiently(main()))


def test_reading_from_two_tasks_at_once_raises_an_error_in_one_and_does_not_affect_the_other(
    telemetry: Telemetry,
) -> None:
    async def main() -> None:
        model = StreamedModel(waits_after=1)
        stream = client_of(model, telemetry).prompt("?").astream()

        async def consume() -> str:
            return "".join([chunk.text async for chunk in stream])

        task = asyncio.create_task(consume())
        await asyncio.to_thread(model.waiting.wait, PATIENCE)
        with pytest.raises(RuntimeError):
            await anext(stream)
        model.go_on.set()
        assert await task == model.text
        telemetry.check_each_ended_once()
        telemetry.check_run("answered")

    asyncio.run(patiently(main()))


def test_pulling_from_two_tasks_at_once_runs_no_tool_twice(telemetry: Telemetry) -> None:
    async def main() -> None:
        under_way, go_on = asyncio.Event(), asyncio.Event()
        runs: list[str] = []

        async def slow() -> None:
            runs.append("slow")
            under_way.set()
            await go_on.wait()

        client = ChatClient(ScriptedChatModel([ToolCall("slow"), "done"]), tools=[slow], telemetry=telemetry.options)
        stream = client.prompt("?").astream()

        async def consume() -> str:
            return "".join([chunk.text async for chunk in stream])

        task = asyncio.create_task(consume())
        await under_way.wait()
        other = asyncio.create_task(anext(stream))
        for _ in range(5):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.wait([task, other])
        assert runs == ["slow"]
        assert isinstance(other.exception(), RuntimeError)
        assert await task == "done"
        telemetry.check_each_ended_once()

    asyncio.run(patiently(main()))
