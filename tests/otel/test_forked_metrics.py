"""Metrics of forked children: each process exports its own counts, and no count twice."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest

from tests.otel.collector import Collector, collecting
from tests.otel.processes import in_a_process
from tests.sweeps import sweep

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")

INSTRUMENTS = """
import time, warnings
warnings.simplefilter("ignore")
handle = configure(otlp=URL, prometheus=0)
meter = metrics.get_meter("application")
seen = Counter()
def observe(options):
    return [metrics.Observation(seen[os.getpid()])]
counter, histogram = meter.create_counter("calls"), meter.create_histogram("seconds")
active = meter.create_up_down_counter("active")
meter.create_observable_counter("observed", [observe])

def work(times):
    for _ in range(times):
        run()
        counter.add(1); histogram.record(2); active.add(1); seen[os.getpid()] += 1
"""
PRE_FORK = """
from collections import Counter
INSTRUMENTS
FIRST = 3
work(FIRST); FLUSH
for _ in range(2):  # one worker after the other, as gunicorn forks them
    if not (child := os.fork()):
        work(2)
        handle.shutdown()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
work(1)
handle.shutdown()
"""
MULTIPROCESSING = """
import multiprocessing
from collections import Counter
INSTRUMENTS
work(3); FLUSH

def worker():
    work(2)
    handle.shutdown()

children = [multiprocessing.get_context("fork").Process(target=worker) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
assert [child.exitcode for child in children] == [0, 0]
work(1)
handle.shutdown()
"""
SCRIPTS = {
    "pre-fork": PRE_FORK,
    "multiprocessing": MULTIPROCESSING,
    "multiprocessing without shutdown": MULTIPROCESSING.replace("    handle.shutdown()\n", ""),
}
FLUSHES = {"flushed": "handle.force_flush()", "waiting": ""}
COUNTED = ("gen_ai.invoke_agent.duration", "traced_tools.tool.decisions", "calls", "seconds", "active", "observed")
"""Metrics that count each round of work once."""


def exported(collector: Collector) -> dict[str, list[int]]:
    """Return what each instance has counted: the sum of its deltas, or the newest of its cumulative values."""
    counts: dict[tuple[str, str, str], int] = {}
    for request in collector.requests("/v1/metrics"):
        for of in request.resource_metrics:
            instance = next(each.value.string_value for each in of.resource.attributes if each.key.endswith("ance.id"))
            for metric in (metric for scope in of.scope_metrics for metric in scope.metrics):
                data: Any = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points if metric.name in COUNTED else ():
                    key = (metric.name, instance, str(point.attributes))
                    before = counts.get(key, 0) if data.aggregation_temporality == 1 else 0
                    counts[key] = before + (point.count if hasattr(point, "count") else point.as_int)
    found: Counter[tuple[str, str]] = Counter()
    for (name, instance, _), count in counts.items():
        found[name, instance] += count
    return {name: sorted(count for (of, _), count in found.items() if of == name) for name in COUNTED}


@sweep(strength=1, script=SCRIPTS, temporality=("cumulative", "delta"), flush=FLUSHES)
def test_each_process_exports_its_own_counts(script: str, temporality: str, flush: str) -> None:
    with collecting() as collector:
        instruments = INSTRUMENTS.replace("URL", repr(collector.url))
        text = SCRIPTS[script].replace("INSTRUMENTS", instruments).replace("FLUSH", FLUSHES[flush])
        in_a_process(text, OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE=temporality)
    assert exported(collector) == {name: [2, 2, 4] for name in COUNTED}


def test_a_scraped_child_shows_neither_counts_nor_exemplars_of_its_parent() -> None:
    script = """
import warnings
warnings.simplefilter("ignore")
handle = configure(prometheus=0, otlp=False)
with trace.get_tracer("test").start_as_current_span("parent") as span:
    run()
    parent = f"{span.get_span_context().trace_id:032x}"
assert parent in scrape(handle)
if not os.fork():
    configure(prometheus=0)
    assert parent not in (text := scrape(handle)) and "gen_ai_invoke_agent_duration" not in text
    run()
    assert 'gen_ai_invoke_agent_duration_seconds_count{gen_ai_agent_name="assistant"' in (text := scrape(handle))
    ((_, count),) = [line.split("} ") for line in text.splitlines() if "invoke_agent_duration_seconds_count" in line]
    assert float(count) == 1
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    in_a_process(script)


def test_a_child_counts_its_exports_from_zero() -> None:
    script = """
import warnings
warnings.simplefilter("ignore")
handle = configure(prometheus=0, otlp=URL)
def sent():
    lines = [line for line in scrape(handle).splitlines() if line.startswith("traced_tools_export_items_total")]
    return sum(float(line.split("} ")[1].split()[0]) for line in lines)
run()
handle.force_flush()
assert sent() > 0
if not os.fork():
    configure(prometheus=0)
    assert sent() == 0
    os._exit(0)
raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    with collecting() as collector:
        in_a_process(script.replace("URL", repr(collector.url)))
