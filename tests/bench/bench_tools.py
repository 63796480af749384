"""What a tool costs: made of a function, run once, run beside others, and offered beside many."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from tests.bench.report import Row, Section
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import NO_LIMITS, CountingModel, Sdk, add, async_add, inline_add, repeated
from traced_tools import BaseAdvisor, ChatClient, ChatClientRequestSpec, ToolCall, tool
from traced_tools.flow.flow import call
from traced_tools.flow.workers import in_thread
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.models import ChatModel
from traced_tools.run.context import RunContext
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, tool_callbacks
from traced_tools.tools.execution import ToolExecution
from traced_tools.tools.toolset import ToolSet

EXECUTION_TARGET_US = 15
BUILDING_TARGET_US = 1000
BATCH_TARGET_MS = 100
MANY_TOOLS_TARGET_US = 200
THREAD_TARGET = 0.75
BATCH = 64
NAP_SECONDS = 0.05
MANY_TOOLS = 500
PASSES = 10


def tools_section(rounds: int, runner: asyncio.Runner) -> Section:
    """Return the cost of tools."""
    series = sample(_cases(), rounds, lambda: None)
    added = [(many - few) / PASSES for many, few in zip(series["many tools"].cpu, series["one tool"].cpu, strict=True)]
    rows = [
        _timed("one validated execution of a trivial tool", series["execution"], EXECUTION_TARGET_US),
        _timed("the same by its own `call`, without the loop", series["call"]),
        _timed("a tool made of a function", series["building"], BUILDING_TARGET_US),
        _timed("a tool made of another object's method", series["building again"]),
        *_batch_rows(max(3, rounds // 10), runner),
        Row(f"{MANY_TOOLS} tools: added to each pass", statistics.median(added), "us", at_most=MANY_TOOLS_TARGET_US),
    ]
    return Section("tools, no SDK", rows)


def asyncio_section(rounds: int, runner: asyncio.Runner) -> Section:
    """Return what a pass costs on asyncio by where its tool runs, and what a thread costs that a coroutine awaits.

    `value` is the time of the loop's thread alone: what a worker thread takes is in `wall`.
    """
    cases = {
        "in_thread": _awaited(runner, lambda: in_thread(_nothing), 100),
        "to_thread": _awaited(runner, lambda: asyncio.to_thread(_nothing), 100),
        "worker thread": _awaited(runner, _spec([add]).acall, 5, PASSES),
        "async": _awaited(runner, _spec([async_add]).acall, 5, PASSES),
        "inline": _awaited(runner, _spec([inline_add]).acall, 5, PASSES),
    }
    series = sample(cases, rounds, lambda: None)
    rows = [
        _timed("a pass with an async tool", series["async"]),
        _timed("a pass with an inline tool", series["inline"]),
        _timed("a pass with a tool in a worker thread", series["worker thread"]),
        _timed("a function in a worker thread, awaited", series["in_thread"]),
        _timed("the same by asyncio.to_thread", series["to_thread"]),
        Row(
            "a worker thread / asyncio.to_thread",
            series["in_thread"].ratio(series["to_thread"]),
            "x",
            at_most=THREAD_TARGET,
            digits=2,
        ),
    ]
    return Section("tools on asyncio, no SDK", rows)


def advisor_section(rounds: int, providers: Sdk) -> Section:
    """Return what an advisor inside the loop adds to each pass by a plain `before`, and by an `after` as well."""
    advisors = {"no advisor": (), "before": (_Before(),), "before and after": (_BeforeAndAfter(),)}
    modes = {"no SDK": None, "everything on": providers}
    cases = {
        f"{name}, {mode}": Case(
            repeated(_spec([add], advisors=advisor, telemetry=None if used is None else used.options).call, 5),
            5 * PASSES,
        )
        for mode, used in modes.items()
        for name, advisor in advisors.items()
    }
    series = sample(cases, rounds, providers.flush)
    rows = [
        _timed(f"{name}, {mode}", series[f"{name}, {mode}"].slope(series[f"no advisor, {mode}"], 1))
        for mode in modes
        for name in ("before", "before and after")
    ]
    return Section("added to each pass by an advisor inside the loop", rows)


class _Before(BaseAdvisor):
    name, order = "bench", 400

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        return request


class _BeforeAndAfter(_Before):
    def after(self, response: ChatClientResponse) -> ChatClientResponse:
        return response


def _nothing() -> None:
    pass


def _spec(tools: list[Any], **settings: Any) -> ChatClientRequestSpec:
    return ChatClient(CountingModel(PASSES), tools=tools, limits=NO_LIMITS, **settings).prompt("?")


def _awaited(runner: asyncio.Runner, acall: Callable[[], Awaitable[object]], repeats: int, passes: int = 1) -> Case:
    async def loop() -> None:
        for _ in range(repeats):
            await acall()

    return Case(lambda: runner.run(loop()), repeats * passes)


def _cases() -> dict[str, Case]:
    return {
        "execution": Case(repeated(_execution(), 200), 200),
        "call": Case(repeated(partial(FunctionToolCallback(add).call, '{"a": 41, "b": 1}'), 200), 200),
        "building": Case(repeated(_build, 5), 5),
        "building again": Case(repeated(lambda: tool_callbacks(_Desk()), 20), 20),
        "many tools": Case(_passes([add, *map(_tool, range(MANY_TOOLS - 1))])),
        "one tool": Case(_passes([add])),
    }


def _timed(label: str, series: Series, at_most: float | None = None) -> Row:
    return Row(label, statistics.median(series.cpu), "us", statistics.median(series.wall), series.fastest, at_most)


def _execution() -> Callable[[], object]:
    run, tools = RunContext(), ToolSet(tool_callbacks(add))
    asked = ToolCall("add", {"a": 41, "b": 1}, "call_1")

    def execute() -> object:
        now = time.perf_counter()
        return call(ToolExecution(run, tools, asked, place=(0, 1), iteration=1, refusal=None, queued_at=now).result())

    return execute


def _build() -> object:
    def forecast(city: str, days: int = 3, unit: str | None = None) -> list[float]:
        """Return the temperatures of the next days.

        Args:
            city: Name of the city.
            days: How many days.
            unit: `C` or `F`.
        """
        return []

    return FunctionToolCallback(forecast)


class _Desk:
    @tool
    def forecast(self, city: str, days: int = 3) -> list[float]:
        """Return the temperatures of the next days."""
        return []


def _tool(number: int) -> FunctionToolCallback:
    return FunctionToolCallback(add, name=f"add_{number}")


def _passes(tools: list[Any]) -> Callable[[], None]:
    return repeated(_spec(tools).call, 1)


def _batch_rows(repeats: int, runner: asyncio.Runner) -> list[Row]:
    def nap() -> None:
        time.sleep(NAP_SECONDS)

    async def anap() -> None:
        await asyncio.sleep(NAP_SECONDS)

    def client(function: Any) -> ChatClient:
        batch = [ToolCall(function.__name__, {}, f"call_{index}") for index in range(BATCH)]
        model: ChatModel = ScriptedChatModel([batch, "done"] * (repeats + 1))
        return ChatClient(model, tools=[function], limits=NO_LIMITS)

    blocking, threads, tasks = client(nap), client(nap), client(anap)
    naps = f"{BATCH} tools that sleep {NAP_SECONDS * 1000:.0f} ms"
    return [
        _batch(f"{naps}, blocking", blocking.prompt("?").call, repeats),
        _batch(f"{naps}, asyncio, blocking tools", lambda: runner.run(threads.prompt("?").acall()), repeats),
        _batch(f"{naps}, asyncio, async tools", lambda: runner.run(tasks.prompt("?").acall()), repeats),
    ]


def _batch(label: str, run: Callable[[], object], repeats: int) -> Row:
    milliseconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        milliseconds.append((time.perf_counter() - began) * 1000)
    wall = statistics.median(milliseconds[1:])
    return Row(label, wall, "ms", wall, min(milliseconds), BATCH_TARGET_MS)
