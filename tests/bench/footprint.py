"""What the package takes up: time to import it, and memory of runs under way and of runs that are over."""

from __future__ import annotations

import gc
import json
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

from tests.bench.workload import Sdk, prompt

UNWANTED = ("opentelemetry.sdk", "grpc", "httpx")
IMPORTS = {
    "package": "import traced_tools",
    "pydantic": "import pydantic",
    "names": "from traced_tools import ChatClient, tool",
}
_CHILD = """
import json, sys, time
began = time.perf_counter()
{statement}
passed = time.perf_counter() - began
print(json.dumps([passed * 1000, [name for name in {unwanted!r} if name in sys.modules], len(sys.modules)]))
"""


def import_times(repeats: int) -> tuple[dict[str, float], list[str]]:
    """Return the median milliseconds of each import in a fresh interpreter, and what `import traced_tools` brought in
    of what it should not.
    """
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    found: list[str] = []
    for turn in range(repeats + 1):
        for name, statement in IMPORTS.items():
            passed, unwanted = _import_once(statement)
            if turn:  # the first turn fills the file cache
                times[name].append(passed)
            if name == "package":
                found = unwanted
    return {name: statistics.median(each) for name, each in times.items()}, found


def _import_once(statement: str) -> tuple[float, list[str]]:
    source = _CHILD.format(statement=statement, unwanted=UNWANTED)
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    passed, unwanted, _ = json.loads(done.stdout)
    return passed, unwanted


def bytes_per_live_run(providers: Sdk | None, count: int) -> float:
    """Return what one run holds that waits for its first step."""
    spec = prompt(2, None if providers is None else providers.options)

    def start() -> list[object]:
        runs = [spec.start() for _ in range(count)]
        for run in runs:
            run.next()
        return runs

    tracemalloc.start()
    try:
        start()
        _settle(providers)
        before = tracemalloc.get_traced_memory()[0]
        runs = start()
        _settle(providers)
        held = tracemalloc.get_traced_memory()[0] - before
        assert len(runs) == count
        return held / count
    finally:
        tracemalloc.stop()


def growth_per_finished_run(providers: Sdk | None, count: int) -> float:
    """Return the bytes each finished run leaves behind."""
    spec = prompt(2, None if providers is None else providers.options)
    return _growth(spec.call, providers, count)


def _growth(run: Callable[[], object], providers: Sdk | None, count: int) -> float:
    tracemalloc.start()
    try:
        held = []
        for _ in range(2):  # the first round fills what is filled once: caches, series of the metrics
            for _ in range(count):
                run()
            _settle(providers)
            held.append(tracemalloc.get_traced_memory()[0])
        return (held[1] - held[0]) / count
    finally:
        tracemalloc.stop()


def _settle(providers: Sdk | None) -> None:
    """Let go of what is only on its way out."""
    if providers is not None:
        providers.tracer_provider.force_flush()
    gc.collect()
