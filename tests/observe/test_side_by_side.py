"""Concurrent runs in threads and tasks each have the span tree of a single run."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from tests.captured import SpanCounter, Telemetry, context_of, series_key, total
from tests.modes import ALL_MODES, ASYNC_MODES, arun, run
from tests.observe.comparable import emitted_events, lineage, lineage_of, point_shape, steady
from tests.observe.cutting import Silence
from tests.observe.runs import scenario, scenario_spec
from tests.waiting import PATIENCE, in_time, patiently
from traced_tools.observe import names

RUNS = 24


@pytest.fixture(autouse=True)
def silence() -> Iterator[None]:
    with Silence() as silence:
        yield
    assert silence.said == []


@pytest.fixture
def counting(telemetry: Telemetry) -> Iterator[SpanCounter]:
    """Holds every span to begin and to end once."""
    counting = SpanCounter()
    telemetry.tracer_provider.add_span_processor(counting)
    yield counting
    assert counting.begun == counting.ended
    assert set(counting.ended.values()) == {1}


@pytest.fixture(scope="module")
def alone() -> Telemetry:
    telemetry = Telemetry()
    scenario(telemetry, "call")
    return telemetry


def by_trace(telemetry: Telemetry) -> list[list[ReadableSpan]]:
    traces = defaultdict(list)
    for span in telemetry.spans:
        traces[context_of(span).trace_id].append(span)
    return list(traces.values())


def assert_each_as(alone: Telemetry, telemetry: Telemetry, runs: int) -> None:
    """Each trace has the spans of the run that was alone, and the series have been recorded so many times as often."""
    traces = by_trace(telemetry)
    assert len(traces) == runs
    expected = lineage(alone)
    assert [trace for trace in map(lineage_of, traces) if trace != expected] == []
    assert sorted(emitted_events(telemetry), key=str) == sorted(emitted_events(alone) * runs, key=str)
    found = {series_key(point): point for point in steady(telemetry)}
    once = {series_key(point): point for point in steady(alone)}
    assert set(found) == set(once)
    for key, point in once.items():
        assert found[key].count == (None if point.count is None else point.count * runs), key
        if names.METRICS[point.name].unit != "s":
            assert total(found[key]) == total(point) * runs, key


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_run_in_another_thread_emits_the_same_telemetry(
    mode: str, telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    in_time(lambda: scenario(telemetry, mode))
    assert lineage(telemetry) == lineage(alone)
    assert [point_shape(each) for each in steady(telemetry)] == [point_shape(each) for each in steady(alone)]
    assert emitted_events(telemetry) == emitted_events(alone)


@pytest.mark.parametrize("mode", ALL_MODES)
def test_concurrent_runs_in_threads_emit_the_same_telemetry_as_single_runs(
    mode: str, telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    at_once(telemetry, lambda number: mode)
    assert_each_as(alone, telemetry, RUNS)


def test_concurrent_runs_of_all_modes_emit_the_same_telemetry_as_single_runs(
    telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    at_once(telemetry, lambda number: ALL_MODES[number % len(ALL_MODES)])
    assert_each_as(alone, telemetry, RUNS)


def at_once(telemetry: Telemetry, mode_of: Callable[[int], str]) -> None:
    ready = threading.Barrier(RUNS)

    def one(number: int) -> str:
        ready.wait(PATIENCE)
        return run(mode_of(number), scenario_spec(telemetry)).content

    with ThreadPoolExecutor(RUNS) as pool:
        assert set(pool.map(one, range(RUNS), timeout=4 * PATIENCE)) == {"three it is"}


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_concurrent_runs_in_tasks_emit_the_same_telemetry_as_single_runs(
    mode: str, telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(*(arun(mode, scenario_spec(telemetry)) for _ in range(RUNS)))

    responses = asyncio.run(patiently(main()))
    assert {response.content for response in responses} == {"three it is"}
    assert_each_as(alone, telemetry, RUNS)


def test_interleaved_streams_emit_the_same_telemetry_as_single_runs(
    telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    streams = [scenario_spec(telemetry).stream() for _ in range(RUNS)]
    left = list(streams)
    while left:
        left = [stream for stream in left if next(stream, None) is not None]
    assert {stream.response.content for stream in streams} == {"three it is"}
    assert_each_as(alone, telemetry, RUNS)


def test_interleaved_async_streams_emit_the_same_telemetry_as_single_runs(
    telemetry: Telemetry, alone: Telemetry, counting: SpanCounter
) -> None:
    async def main() -> None:
        left = [scenario_spec(telemetry).astream() for _ in range(RUNS)]
        while left:
            left = [stream for stream in left if await anext(stream, None) is not None]

    asyncio.run(patiently(main()))
    assert_each_as(alone, telemetry, RUNS)
