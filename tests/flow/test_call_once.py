"""A step that calls a function once, for all flows that await it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.waiting import patiently
from traced_tools.flow.call_once import CallFailedError, CallOnce
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import ParallelFlows


async def awaiting(step: CallOnce[Any]) -> Any:
    return await step


async def all_awaiting(step: CallOnce[Any]) -> list[Any]:
    return await ParallelFlows([awaiting(step) for _ in range(5)])


def outcome(step: CallOnce[Any], how: str) -> Any:
    return call(all_awaiting(step)) if how == "call" else asyncio.run(patiently(acall(all_awaiting(step))))


@pytest.mark.parametrize("how", ["call", "acall"])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_parallel_flows_get_the_result_of_one_call(how: str, is_async: bool) -> None:
    called: list[str] = []

    def function(name: str) -> str:
        called.append(name)
        return name

    async def function_async(name: str) -> str:
        await asyncio.sleep(0)
        return function(name)

    step = CallOnce(str.upper, function_async if is_async else function, "ana")
    assert outcome(step, how) == ["ANA"] * 5
    assert called == ["ana"]


def raising(_: str) -> Any:
    raise LookupError("secret")


@pytest.mark.parametrize("how", ["call", "acall"])
@pytest.mark.parametrize(("convert", "function"), [(str, raising), (raising, str)], ids=["function", "convert"])
def test_an_error_is_raised_by_its_class_to_each_flow(
    how: str, convert: Callable[..., Any], function: Callable[..., Any]
) -> None:
    step = CallOnce(convert, function, "ana")
    for _ in range(2):
        with pytest.raises(CallFailedError, match="LookupError") as caught:
            outcome(step, how)
        assert caught.value.kind is LookupError


def test_a_call_that_is_cancelled_is_made_again_by_the_next_flow() -> None:
    async def main() -> list[int]:
        begun, made = asyncio.Event(), list[int]()

        async def function() -> int:
            made.append(len(made))
            if len(made) == 1:
                begun.set()
                await asyncio.Event().wait()
            return made[-1]

        step: CallOnce[int] = CallOnce(int, function)
        first, second = (asyncio.ensure_future(acall(awaiting(step))) for _ in range(2))
        await begun.wait()
        first.cancel()
        assert await second == 1
        return made

    assert asyncio.run(patiently(main())) == [0, 1]


def test_a_flow_in_another_thread_waits_for_the_call() -> None:
    begun, go_on, made = threading.Event(), threading.Event(), list[int]()

    def function() -> int:
        made.append(1)
        begun.set()
        assert go_on.wait(30)
        return 7

    step: CallOnce[int] = CallOnce(int, function)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(call(awaiting(step)))) for _ in range(3)]
    for each in threads:
        each.start()
    assert begun.wait(30)
    go_on.set()
    for each in threads:
        each.join(30)
    assert (results, made) == ([7, 7, 7], [1])
