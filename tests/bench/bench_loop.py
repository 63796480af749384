"""What a pass of the loop costs, with no SDK and with everything on, and what the same telemetry costs by itself.

    python -m tests.bench [--quick] [--json]

A pass is a model call (of a model that answers at once, with one tool call and its usage) and one trivial tool. Its
cost is the slope between runs of different length, so that what a run costs once does not count. `value` is the median
of the thread's own CPU time, on a shared machine the steadiest figure; `wall` is the median a caller sees; `best` is
that of the fastest rounds by CPU time. All variants take turns in each round. What the exporting thread costs is left
out of the loop and of the floor alike. A report, not a test: it exits with 0 whatever it finds.

The floor is measured in three ways. In a tight loop all it needs is in the processor's caches, and it is written as
tersely as the SDK allows; a second one is written as the SDK's documentation has it. *In place* is what the terse one
costs where telemetry is really made: replayed in each model call of a run without an SDK, less that run by itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import version
from typing import Any

from tests.bench.bench_audit import audit_sections
from tests.bench.bench_export import export_section
from tests.bench.bench_features import feature_sections
from tests.bench.bench_gateway import gateway_sections
from tests.bench.bench_manual import manual_section
from tests.bench.bench_mcp import mcp_sections
from tests.bench.bench_memory import conversations_section
from tests.bench.bench_models import models_section
from tests.bench.bench_search import search_section
from tests.bench.bench_startup import startup_section
from tests.bench.bench_telemetry import telemetry_sections
from tests.bench.bench_tools import advisor_section, asyncio_section, tools_section
from tests.bench.floor import Capture, DocumentedFloor, Floor, capture
from tests.bench.footprint import UNWANTED, bytes_per_live_run, growth_per_finished_run, import_times
from tests.bench.report import Row, Section, as_data, table
from tests.bench.timing import Case, Series, sample
from tests.bench.workload import Sdk, add, async_add, prompt, repeated, sdk, yielding_add

LENGTHS = (1, 10, 50)
OFF_TARGET_US = 50
FLOOR_TARGET = 0.8
ADDED_TARGET = 0.8
LINEAR_TARGET_PERCENT = 10
IMPORT_TARGET = 1.5
GROWTH_TARGET_BYTES = 16
PASSES_A_CASE = 50
CONCURRENT_RUNS = 200
MANY_RUNS = 10_000
MANY_TARGET = 0.8
THREADS = 8


class LoopCost:
    """Times runs of each length, blocking and on asyncio, off and on, with the floor in between."""

    def __init__(self, captured: Capture, providers: Sdk, runner: asyncio.Runner) -> None:
        self._providers = providers
        self._runner = runner
        self._floor_providers = sdk()
        self._floor = Floor(captured, self._floor_providers)
        self._documented = DocumentedFloor(captured, self._floor_providers)

    def measure(self, rounds: int) -> dict[str, Series]:
        """Return microseconds a pass: per variant between 10 and 50 passes, and (`… short`) between 1 and 10."""
        series = sample(dict(self._cases()), rounds, self._settle)
        costs = {name: series[name].per(PASSES_A_CASE) for name in ("floor", "documented")}
        for variant in ("off", "on", "by hand", "async off", "async on", "async by hand"):
            one, ten, fifty = (series[f"{variant} {length}"] for length in LENGTHS)
            costs[variant] = fifty.slope(ten, 40)
            costs[f"{variant} short"] = ten.slope(one, 9)
        self._floor_providers.shutdown()
        return costs

    def _settle(self) -> None:
        """Empty the queues of spans: no case fills a batch, so no export falls into one case and not into another."""
        self._providers.tracer_provider.force_flush()
        self._floor_providers.tracer_provider.force_flush()

    def _cases(self) -> Iterator[tuple[str, Case]]:
        for mode, telemetry in (("off", None), ("on", self._providers.options)):
            for length in LENGTHS:
                number = PASSES_A_CASE // length
                blocking = prompt(length, telemetry, function=add)
                yield f"{mode} {length}", Case(repeated(blocking.call, number), number)
                on_asyncio = prompt(length, telemetry, function=async_add)
                yield f"async {mode} {length}", Case(self._awaited(on_asyncio.acall, number), number)
        for length in LENGTHS:
            number = PASSES_A_CASE // length
            by_hand = prompt(length, None, beforehand=self._floor.replay)
            yield f"by hand {length}", Case(self._under_a_span(repeated(by_hand.call, number)), number)
            on_asyncio = prompt(length, None, function=async_add, beforehand=self._floor.replay)
            awaited = self._awaited(on_asyncio.acall, number, self._floor.current_span)
            yield f"async by hand {length}", Case(awaited, number)
        yield "floor", Case(lambda: self._floor.run(PASSES_A_CASE))
        yield "documented", Case(lambda: self._documented.run(PASSES_A_CASE))

    def _under_a_span(self, function: Callable[[], None]) -> Callable[[], None]:
        def under() -> None:
            with self._floor.current_span():
                function()

        return under

    def _awaited(
        self, acall: Callable[[], Any], number: int, around: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> Callable[[], None]:
        async def loop() -> None:
            with around():
                for _ in range(number):
                    await acall()

        return lambda: self._runner.run(loop())


def loop_section(costs: dict[str, Series]) -> Section:
    """Return the cost of a pass against the floor."""
    in_place = costs["by hand"].slope(costs["off"], 1)
    in_place_on_asyncio = costs["async by hand"].slope(costs["async off"], 1)
    drift = {mode: _percent(costs[f"{mode} short"], costs[mode]) for mode in ("off", "on")}
    rows = [
        _cost("blocking, no SDK", costs["off"], OFF_TARGET_US),
        _cost("blocking, everything on", costs["on"]),
        _cost("the floor: the same telemetry with the bare SDK", costs["floor"]),
        _over("everything on / floor", costs["on"], costs["floor"]),
        _added("what turning telemetry on adds / floor", costs, costs["floor"]),
        _cost("the floor, written with start_as_current_span", costs["documented"]),
        _over("everything on / that", costs["on"], costs["documented"]),
        _cost("the floor in place: what it adds to each pass", in_place),
        _over("everything on / that", costs["on"], in_place),
        _added("what turning telemetry on adds / that", costs, in_place),
        Row("everything on / no SDK and the floor in place", costs["on"].ratio(costs["by hand"]), "x", digits=2),
        _cost("asyncio, no SDK", costs["async off"]),
        _cost("asyncio, everything on", costs["async on"]),
        _cost("asyncio, the floor in place", in_place_on_asyncio),
        _over("asyncio, everything on / that", costs["async on"], in_place_on_asyncio),
        Row(
            "asyncio, everything on / no SDK and the floor in place",
            costs["async on"].ratio(costs["async by hand"]),
            "x",
            digits=2,
        ),
        Row("no SDK: passes 1-10 against 10-50", drift["off"], "%", at_most=LINEAR_TARGET_PERCENT),
        Row("everything on: passes 1-10 against 10-50", drift["on"], "%", at_most=LINEAR_TARGET_PERCENT),
    ]
    return Section("one pass of the loop", rows)


def _cost(label: str, series: Series, at_most: float | None = None) -> Row:
    cpu, wall = statistics.median(series.cpu), statistics.median(series.wall)
    return Row(label, cpu, "us", wall, series.fastest, at_most)


def _over(label: str, on: Series, floor: Series) -> Row:
    return Row(label, on.ratio(floor), "x", at_most=FLOOR_TARGET, digits=2)


def _added(label: str, costs: dict[str, Series], floor: Series) -> Row:
    added = costs["on"].slope(costs["off"], 1)
    return Row(label, added.ratio(floor), "x", at_most=ADDED_TARGET, digits=2)


def _percent(short: Series, long: Series) -> float:
    """Return how far the two slopes are apart."""
    return abs(statistics.median(short.cpu) / statistics.median(long.cpu) - 1) * 100


def throughput_section(providers: Sdk, runner: asyncio.Runner, repeats: int, many: int) -> Section:
    """Return how many runs of five passes end in a second, on asyncio by the thread's CPU time.

    Args:
        providers: where the runs with everything on send their telemetry.
        runner: runs the event loop.
        repeats: how often the runs are timed.
        many: how many runs at once stand for a large number of them.
    """
    rows = []
    for mode, telemetry in (("no SDK", None), ("everything on", providers.options)):
        concurrent = prompt(5, telemetry, function=yielding_add)
        blocking = prompt(5, telemetry, function=add)

        def seconds(count: int, acall: Callable[[], object] = concurrent.acall) -> float:
            return _seconds_on_asyncio(runner, acall, count, providers)

        few_seconds = [seconds(CONCURRENT_RUNS) for _ in range(repeats + 1)][1:]
        rate = CONCURRENT_RUNS / statistics.median(few_seconds)
        rows.append(Row(f"{CONCURRENT_RUNS} concurrent runs on asyncio, {mode}", rate, "runs/s", digits=0))
        rows.append(Row(f"{many} concurrent runs on asyncio, {mode}", many / seconds(many), "runs/s", digits=0))
        with _rare_collections():
            few_rate = CONCURRENT_RUNS / statistics.median([seconds(CONCURRENT_RUNS) for _ in range(9)])
            many_rate = many / seconds(many)
        rows.append(Row(f"{many} with rare garbage collections, {mode}", many_rate, "runs/s", digits=0))
        label = f"that / {CONCURRENT_RUNS} with rare collections"
        rows.append(Row(label, many_rate / few_rate, "x", at_least=MANY_TARGET, digits=2))
        with ThreadPoolExecutor(THREADS) as pool:
            rate = _rate(lambda call=blocking.call, pool=pool: _run_in(pool, call), repeats)
        rows.append(Row(f"blocking in {THREADS} threads, {mode}", rate, "runs/s", digits=0))
    return Section("runs of five passes", rows)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Set the garbage collector's thresholds as docs/details/runs.md recommends for thousands of runs at once."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _seconds_on_asyncio(runner: asyncio.Runner, acall: Callable[[], object], count: int, providers: Sdk) -> float:
    async def gather() -> None:
        await asyncio.gather(*(acall() for _ in range(count)))

    providers.flush()
    began = time.thread_time()
    runner.run(gather())
    return time.thread_time() - began


def _run_in(pool: ThreadPoolExecutor, call: Callable[[], object]) -> None:
    for future in [pool.submit(call) for _ in range(CONCURRENT_RUNS)]:
        future.result()


def _rate(run: Callable[[], None], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):
        began = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - began)
    return CONCURRENT_RUNS / statistics.median(seconds[1:])


def import_section(repeats: int) -> Section:
    """Return the time of imports in fresh interpreters."""
    times, unwanted = import_times(repeats)
    ratio = times["package"] / times["pydantic"]
    rows = [
        Row("import traced_tools", times["package"], "ms"),
        Row("import pydantic", times["pydantic"], "ms"),
        Row("import traced_tools / import pydantic", ratio, "x", at_most=IMPORT_TARGET, digits=2),
        Row("from traced_tools import ChatClient, tool", times["names"], "ms"),
        Row(f"of {', '.join(UNWANTED)}: imported by it", len(unwanted), ", ".join(unwanted), at_most=0, digits=0),
    ]
    return Section("imports, in a fresh interpreter", rows)


def memory_section(providers: Sdk, count: int) -> Section:
    """Return what runs hold."""
    rows = []
    for mode, used in (("no SDK", None), ("everything on", providers)):
        held = bytes_per_live_run(used, count)
        rows.append(Row(f"a run that waits for its first step, {mode}", held, "bytes", digits=0))
        growth = growth_per_finished_run(used, count)
        rows.append(Row(f"left behind by a finished run, {mode}", growth, "bytes", at_most=GROWTH_TARGET_BYTES))
    return Section(f"memory, by tracemalloc over {count} runs", rows)


def sections(quick: bool) -> list[Section]:
    """Measure everything."""
    captured, providers = capture(), sdk()
    with asyncio.Runner() as runner:
        costs = LoopCost(captured, providers, runner).measure(8 if quick else 60)
        made = [
            loop_section(costs),
            *telemetry_sections(8 if quick else 60, runner),
            tools_section(8 if quick else 60, runner),
            asyncio_section(8 if quick else 60, runner),
            advisor_section(8 if quick else 60, providers),
            manual_section(8 if quick else 60, providers),
            *mcp_sections(8 if quick else 60, runner),
            *gateway_sections(8 if quick else 60, runner),
            models_section(3 if quick else 15, providers, runner),
            *feature_sections(8 if quick else 60, providers, runner),
            throughput_section(providers, runner, 1 if quick else 5, 2_000 if quick else MANY_RUNS),
            import_section(3 if quick else 15),
            startup_section(3 if quick else 15),
            search_section(2 if quick else 5, 2_000 if quick else 10_000),
            memory_section(providers, 300 if quick else 1000),
        ]
    providers.shutdown()
    made += audit_sections(quick)
    made.append(conversations_section(quick))
    made.append(export_section(1, 1_000) if quick else export_section(5, 3_000))
    spans, records = len(captured.spans), len(captured.records)
    made[0] = Section(f"{made[0].title} ({spans} spans, {records} records when everything is on)", made[0].rows)
    return made


def about() -> dict[str, str]:
    """Return what the numbers depend on."""
    return {
        "python": platform.python_version(),
        "cpus": str(os.cpu_count()),
        **{name: version(name) for name in ("traced_tools", "opentelemetry-sdk", "pydantic")},
    }


def main(argv: list[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", action="store_true", help="data instead of a table")
    arguments = parser.parse_args(argv)
    made = sections(arguments.quick)
    if arguments.json:
        print(json.dumps({"about": about(), "sections": as_data(made)}, indent=1))
    else:
        print(" | ".join(f"{name} {value}" for name, value in about().items()))
        print(table(made))
