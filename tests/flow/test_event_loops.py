"""A blocking run on an event loop is logged once for each place; elsewhere, nothing is logged."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType

import pytest

from tests.modes import ALL_MODES, run
from traced_tools import ChatClient, ToolCall
from traced_tools.testing import ScriptedChatModel


def client(*turns: object, **settings: object) -> ChatClient:
    return ChatClient(ScriptedChatModel(turns or ["x"] * 9), **settings)


async def three_times(method: str) -> None:
    for _ in range(3):
        result = getattr(client().prompt("?"), method)()
        if method == "stream":
            with result as stream:
                assert [chunk.text for chunk in stream]


@pytest.mark.parametrize(("method", "instead"), [("call", "acall"), ("stream", "astream")])
def test_a_blocking_run_on_an_event_loop_is_logged_once_for_a_place(
    method: str, instead: str, caplog: pytest.LogCaptureFixture
) -> None:
    asyncio.run(three_times(method))
    (message,) = caplog.messages
    assert message.startswith(f"{method}() in {__file__}, line ")
    assert f"blocks the event loop of its thread until the run ends: await {instead}() instead" in message


def test_each_place_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def two_places() -> None:
        client().prompt("?").call()
        client().prompt("?").call()

    asyncio.run(two_places())
    asyncio.run(two_places())
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("mode", ALL_MODES)
def test_other_runs_are_not_logged(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    run(mode, client().prompt("?"))
    assert caplog.messages == []


def test_a_blocking_run_in_a_worker_thread_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    def streamed(stream: object) -> None:
        assert list(stream)  # type: ignore[call-overload]

    async def main() -> None:
        await asyncio.to_thread(client().prompt("?").call)
        await asyncio.to_thread(streamed, client().prompt("?").stream())  # as web frameworks iterate it

    asyncio.run(main())
    assert caplog.messages == []


def test_a_blocking_run_in_a_tool_is_logged_where_the_tool_runs_on_the_loop(
    async_mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    def blocking() -> str:
        """Ask another agent, in a worker thread."""
        return client().prompt("?").call().content

    async def on_the_loop() -> str:
        """Ask another agent on the loop."""
        return client().prompt("?").call().content

    for tool, logged in ((blocking, 0), (on_the_loop, 1)):
        run(async_mode, client(ToolCall(tool.__name__), "x", tools=[tool]).prompt("?"))
        assert len(caplog.messages) == logged


def test_a_notebook_has_a_loop_that_waits_for_its_cells(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    asyncio.run(three_times("call"))
    assert caplog.messages == []


def test_a_program_with_very_many_places_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def generated() -> None:
        for number in range(150):
            code = compile("client().prompt('?').call()", f"generated_{number}.py", "exec")
            exec(code, {"client": client})

    asyncio.run(generated())
    assert len(caplog.messages) == 100
