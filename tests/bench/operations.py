"""What telemetry costs by a list of measured operations of the SDK: so many spans, attributes and records, added up.

The list is `bench/otel_floor.py`, a file beside the folder of fixtures and no part of this project. It is loaded from
there, and its operations are timed in the same rounds as everything else; without it there is nothing to add up.

One of its cases is a whole run: seven spans of five attributes, each made current, and nine records of four attributes.
That case is taken as it is. What a captured run emits beyond it is added, each thing at the price of the operation that
does it, and what it emits less is taken off:

- a span that is made current: the case of one with five attributes; one that is not: the case without that;
- an attribute of a span: a fifth of what ten at its start cost more than five (none at all skips more than attributes);
- attributes set later: the one call for ten attributes, with the attributes there are more or fewer than ten;
- a record: the case of its kind of instrument with four attributes, with those there are more or fewer, and what the
  exemplar adds, since all of a run's records are made under a sampled span. The list has a record of four attributes
  and one of none, which again skips more than attributes; so one of two is timed beside them, made as those are;
- a log event: its case with five attributes, with those there are more or fewer.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.bench.floor import Capture, EventStep, RecordStep, SpanStep
from tests.bench.timing import Case, Series
from tests.bench.workload import repeated

SHARED = Path("../shared")
NUMBER = 40

PLAIN = "span: batch, 0 attrs at start"
FIVE = "span: batch, 5 attrs at start"
TEN = "span: batch, 10 attrs at start"
CURRENT = "span: batch, start + attach/detach by hand, 5 attrs"
LATE = "span: batch, set_attributes(10)"
RECORD = "histogram.record, explicit buckets, 4 attrs"
TWO_LABELS = "histogram.record, explicit buckets, 2 attrs"
EXEMPLAR = "histogram.record under a sampled span (exemplar)"
COUNT = "counter.add, 4 attrs"
UP_DOWN = "up_down_counter.add, 4 attrs"
EVENT = "logger.emit, batch, 5 attrs"
WHOLE_RUN = "a whole run: 7 current spans of 5 attrs + 9 records"
USED = (PLAIN, FIVE, TEN, CURRENT, LATE, RECORD, TWO_LABELS, EXEMPLAR, COUNT, UP_DOWN, EVENT, WHOLE_RUN)
OF_INSTRUMENT = {"create_histogram": RECORD, "create_counter": COUNT, "create_up_down_counter": UP_DOWN}

Round = dict[str, float]


class Operations:
    """The operations, bound to providers of their own.

    Args:
        path: the file that lists them.
    """

    def __init__(self, path: Path) -> None:
        listed = _load(path)
        known = {label: (operation, provider) for label, operation, provider in listed.cases()}
        known[TWO_LABELS] = _two_labels(listed)
        self._operations: dict[str, Callable[[], object]] = {label: known[label][0] for label in USED}
        self._providers = [provider for _, provider in known.values() if provider is not None]

    def cases(self) -> Iterator[tuple[str, Case]]:
        """Return what is to be timed."""
        for label, operation in self._operations.items():
            yield label, Case(repeated(operation, NUMBER), NUMBER)

    def flush(self) -> None:
        """Empty the queues, untimed."""
        for provider in self._providers:
            provider.force_flush()

    def shutdown(self) -> None:
        """End the threads of the providers."""
        for provider in self._providers:
            provider.shutdown()


def _two_labels(listed: Any) -> tuple[Callable[[], object], MeterProvider]:
    provider = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    histogram = provider.get_meter("floor").create_histogram(
        "d", unit="s", explicit_bucket_boundaries_advisory=listed.SECONDS
    )
    labels = dict(islice(listed.METRIC_ATTRS.items(), 2))
    return lambda: histogram.record(0.3, labels), provider


def operations() -> Operations | None:
    """Return the operations, None where the file that lists them is not."""
    fixtures = os.environ.get("TRACED_TOOLS_FIXTURES")
    folder = Path(fixtures).parent if fixtures else SHARED
    path = folder / "bench" / "otel_floor.py"
    return Operations(path) if path.is_file() else None


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("otel_floor", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def priced(series: dict[str, Series], captured: Capture) -> Series:
    """Return what `captured` costs by the operations, in each round."""
    return _each_round(series, lambda costs: _sum(costs, captured))


def priced_as_run(series: dict[str, Series], captured: Capture) -> Series:
    """Return the cost of the whole run that is measured as one, and of what `captured` has more or less than it."""
    return _each_round(series, lambda costs: costs[WHOLE_RUN] + _sum(costs, captured) - _whole_run_by_parts(costs))


def _each_round(series: dict[str, Series], price: Callable[[Round], float]) -> Series:
    used = [series[label] for label in USED]
    cpu = [price(_named(costs)) for costs in zip(*(each.cpu for each in used), strict=True)]
    wall = [price(_named(costs)) for costs in zip(*(each.wall for each in used), strict=True)]
    return Series(cpu, wall, price(_named([each.fastest for each in used])))


def _named(costs: Iterable[float]) -> Round:
    return dict(zip(USED, costs, strict=True))


def _whole_run_by_parts(costs: Round) -> float:
    return 7 * costs[CURRENT] + 9 * costs[RECORD]


def _sum(costs: Round, captured: Capture) -> float:
    spans = sum(_span(costs, step) for step in captured.spans)
    records = sum(_record(costs, step, captured) for step in captured.records)
    return spans + records + sum(_event(costs, step) for step in captured.events)


def _span(costs: Round, step: SpanStep) -> float:
    an_attribute = (costs[TEN] - costs[FIVE]) / 5
    cost = costs[CURRENT if step.current else FIVE] + (len(step.start) - 5) * an_attribute
    if step.final:
        cost += costs[LATE] - costs[PLAIN] + (len(step.final) - 10) * an_attribute
    return cost


def _record(costs: Round, step: RecordStep, captured: Capture) -> float:
    a_label = (costs[RECORD] - costs[TWO_LABELS]) / 2
    method, _ = captured.instruments[step.instrument]
    exemplar = costs[EXEMPLAR] - costs[RECORD]
    return costs[OF_INSTRUMENT[method]] + (len(step.attributes or ()) - 4) * a_label + exemplar


def _event(costs: Round, step: EventStep) -> float:
    return costs[EVENT] + (len(step.attributes) - 5) * (costs[TEN] - costs[FIVE]) / 5
