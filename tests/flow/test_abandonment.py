"""Promises 6 and 7: a stream may be abandoned in any way, and every span ends exactly once."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.flow.models import Spanning, StreamedModel, client_of
from tests.waiting import PATIENCE, patiently
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext


def check(model: StreamedModel, telemetry: Telemetry) -> None:
    """The run counts as cancelled, each span ended once, nothing was logged; the model was asked and let go once."""
    telemetry.check_cancelled()
    assert {"mine", "chat streamed", "iteration"} <= {span.name for span in telemetry.spans}
    assert (telemetry.one("chat").attributes or {})["error.type"] == "cancelled"
    assert (model.asked, model.closed_streams) == (1, 1)


@pytest.fixture
def model() -> StreamedModel:
    return StreamedModel()


def test_a_stream_is_left_by_break_out_of_its_block(model: StreamedModel, telemetry: Telemetry) -> None:
    with client_of(model, telemetry).prompt("?").stream() as stream:
        for _ in stream:
            break
        assert not model.closed.is_set()
    check(model, telemetry)
    assert model.given == 1


def test_a_stream_is_left_by_an_error_in_its_block(model: StreamedModel, telemetry: Telemetry) -> None:
    with pytest.raises(LookupError), client_of(model, telemetry).prompt("?").stream() as stream:
        next(stream)
        raise LookupError
    check(model, telemetry)


def test_a_stream_is_garbage_collected(model: StreamedModel, telemetry: Telemetry) -> None:
    stream = client_of(model, telemetry).prompt("?").stream()
    next(stream)
    del stream
    gc.collect()
    check(model, telemetry)


def test_a_stream_without_a_block_is_left_by_break(model: StreamedModel, telemetry: Telemetry) -> None:
    for _ in client_of(model, telemetry).prompt("?").stream():
        break
    gc.collect()
    check(model, telemetry)


def test_a_stream_in_a_reference_cycle_is_garbage_collected(model: StreamedModel, telemetry: Telemetry) -> None:
    holder: dict[str, Any] = {"stream": client_of(model, telemetry).prompt("?").stream()}
    holder["self"] = holder
    next(holder["stream"])
    del holder
    gc.collect()
    # The collector may close the coroutine that holds the span before it closes the stream. The span is then detached
    # in another context than it was attached in, and OpenTelemetry logs that.
    assert {*telemetry.complaints.texts} <= {"Failed to detach context"}
    telemetry.complaints.texts.clear()
    check(model, telemetry)


def test_an_async_stream_is_left_by_break_out_of_its_block(model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> None:
        async with client_of(model, telemetry).prompt("?").astream() as stream:
            async for _ in stream:
                break
        check(model, telemetry)

    asyncio.run(patiently(main()))


def test_an_async_stream_is_closed_by_another_task(model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> None:
        stream = client_of(model, telemetry).prompt("?").astream()
        await asyncio.create_task(anext(stream))
        await asyncio.create_task(stream.aclose())
        check(model, telemetry)

    asyncio.run(patiently(main()))


def test_an_async_stream_is_cancelled_while_it_waits_for_a_chunk(telemetry: Telemetry) -> None:
    async def main() -> None:
        model = StreamedModel(waits_after=2)
        texts: list[str] = []

        async def consume() -> None:
            async with client_of(model, telemetry).prompt("?").astream() as stream:
                async for chunk in stream:
                    texts.append(chunk.text)

        task = asyncio.create_task(consume())
        await asyncio.to_thread(model.waiting.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert texts == ["one ", "two "]
        check(model, telemetry)

    asyncio.run(patiently(main()))


def test_an_async_stream_is_cancelled_between_two_chunks(model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> None:
        has_one = asyncio.Event()

        async def consume() -> None:
            async with client_of(model, telemetry).prompt("?").astream() as stream:
                async for _ in stream:
                    has_one.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(consume())
        await has_one.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        check(model, telemetry)

    asyncio.run(patiently(main()))


def test_an_async_stream_is_garbage_collected(model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> None:
        stream = client_of(model, telemetry).prompt("?").astream()
        await anext(stream)
        del stream
        gc.collect()
        await asyncio.to_thread(model.closed.wait, PATIENCE)
        check(model, telemetry)

    asyncio.run(patiently(main()))


def test_an_async_stream_outlives_its_event_loop(model: StreamedModel, telemetry: Telemetry) -> None:
    async def main() -> Any:
        stream = client_of(model, telemetry).prompt("?").astream()
        await anext(stream)
        return stream

    stream = asyncio.run(main())
    del stream
    gc.collect()
    check(model, telemetry)


def test_an_acall_is_cancelled_while_the_model_answers(telemetry: Telemetry) -> None:
    async def main() -> None:
        model = StreamedModel(waits_after=0)
        task = asyncio.create_task(client_of(model, telemetry).prompt("?").acall())
        await asyncio.to_thread(model.waiting.wait, PATIENCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    telemetry.check_cancelled()


def test_an_acall_is_closed_while_the_model_answers(telemetry: Telemetry) -> None:
    """As Python does to a task whose event loop is gone: GeneratorExit, and nothing can be awaited any more."""
    coroutine = client_of(StreamedModel(waits_after=0), telemetry).prompt("?").acall()

    async def main() -> None:
        coroutine.send(None)

    asyncio.run(main())
    coroutine.close()
    telemetry.check_cancelled()


@pytest.mark.parametrize("how", ["close", "collect"])
def test_a_step_awaited_by_an_abandoned_flow_is_performed_or_refused_and_never_hangs(
    how: str, model: StreamedModel, telemetry: Telemetry
) -> None:
    """Closing still performs the steps of `finally` blocks; the garbage collector performs nothing."""
    saved: list[str] = []

    class Saving(Advisor):
        name, order = "saving", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            try:
                return await call_next(request)
            finally:
                await perform(saved.append, "first")
                await perform(saved.append, "second")

    client = ChatClient(model, advisors=[Saving(), Spanning(telemetry)], telemetry=telemetry.options)
    stream = client.prompt("?").stream()
    next(stream)
    if how == "close":
        stream.close()
    del stream
    gc.collect()
    assert saved == (["first", "second"] if how == "close" else [])
    check(model, telemetry)
