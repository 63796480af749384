"""The package's instruments, made once per meter provider from the name table.

The metrics of model calls have two sets of names: those of the conventions so far, and those of their head. One of the
two is emitted, never both.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Protocol

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, Observation

from traced_tools.core.fork import on_fork
from traced_tools.flow.deferred import run_deferred_measurements
from traced_tools.observe import names
from traced_tools.observe.export_stats import ExportMetrics
from traced_tools.observe.names.registry_types import Metric
from traced_tools.observe.scope import put

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.enums import Conventions
    from traced_tools.core.messages import Usage
    from traced_tools.observe.scope import Attributes


class Instruments:
    """One instrument per metric of the table.

    Args:
        meter: makes them.
        conventions: which names the metrics of model calls have.
    """

    def __init__(self, meter: Meter, conventions: Conventions) -> None:
        self.models: ModelMetrics = LatestModelMetrics(meter) if conventions == "latest" else StableModelMetrics(meter)
        self.invoke_agent_duration = _histogram(meter, names.INVOKE_AGENT_DURATION)
        self.inference_calls = _histogram(meter, names.INVOKE_AGENT_INFERENCE_CALLS)
        self.tool_calls = _histogram(meter, names.INVOKE_AGENT_TOOL_CALLS)
        self.loop_iterations = _histogram(meter, names.LOOP_ITERATIONS_METRIC)
        self.execute_tool_duration = _histogram(meter, names.EXECUTE_TOOL_DURATION)
        self.iteration_duration = _histogram(meter, names.ITERATION_DURATION)
        self.advisor_duration = _histogram(meter, names.ADVISOR_DURATION)
        self.model_retries = _counter(meter, names.MODEL_RETRIES)
        self.model_retry_wait = _counter(meter, names.MODEL_RETRY_WAIT)
        self.model_rate_limits = _counter(meter, names.MODEL_RATE_LIMITS)
        self.tool_decisions = _counter(meter, names.TOOL_DECISIONS)
        self.tool_retries = _counter(meter, names.TOOL_RETRIES)
        self.tool_late_results = _counter(meter, names.TOOL_LATE_RESULTS)
        self.usage_cost = _counter(meter, names.USAGE_COST)
        self.unpriced_tokens = _counter(meter, names.UNPRICED_TOKENS)
        self.telemetry_failures = _counter(meter, names.TELEMETRY_FAILURES)
        self.runs_under_way, self.tools_under_way = UnderWay(), UnderWay()
        _observed(meter, names.RUN_ACTIVE, self.runs_under_way)
        _observed(meter, names.TOOL_ACTIVE, self.tools_under_way)
        _aged(meter, names.RUN_OLDEST_ACTIVE, self.runs_under_way)
        _aged(meter, names.TOOL_OLDEST_ACTIVE, self.tools_under_way)
        self.audit_records = _counter(meter, names.AUDIT_RECORDS)
        self.audit_checkpoints_failed = _counter(meter, names.AUDIT_CHECKPOINTS_FAILED)
        self.audit_checkpoints_lost = _counter(meter, names.AUDIT_CHECKPOINTS_LOST)
        self.audit = AuditGauges(meter)
        self.exports = ExportMetrics(meter)


class ModelMetrics(Protocol):
    """What is measured of model calls.

    Attributes:
        time_to_first_chunk: seconds, of streamed answers.
        time_per_output_chunk: seconds, of streamed answers.
    """

    time_to_first_chunk: Histogram
    time_per_output_chunk: Histogram

    def duration(self, operation: str) -> Histogram:
        """Return what takes the seconds of an operation: `chat` or `embeddings`."""

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Count what is known of a reported usage.

        Args:
            usage: what the model reported.
            labels: those of the call.
            ended: the same, with the type of the error if the call failed: some of the metrics have it.
            context: holds the span of the call.
        """


class StableModelMetrics:
    """The names that back ends know."""

    def __init__(self, meter: Meter) -> None:
        self._duration = _histogram(meter, names.OPERATION_DURATION)
        self.time_to_first_chunk = _histogram(meter, names.TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = _histogram(meter, names.TIME_PER_OUTPUT_CHUNK)
        self._token_usage = _histogram(meter, names.TOKEN_USAGE)

    def duration(self, operation: str) -> Histogram:
        """Return the one histogram of all operations."""
        return self._duration

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Record input and output in one histogram, told apart by a label."""
        if usage.input_tokens is not None:
            self._token_usage.record(usage.input_tokens, {**labels, names.TOKEN_TYPE: names.TOKEN_INPUT}, context)
        if usage.output_tokens is not None:
            self._token_usage.record(usage.output_tokens, {**labels, names.TOKEN_TYPE: names.TOKEN_OUTPUT}, context)


class LatestModelMetrics:
    """The names at the head of the conventions: a duration for inference alone, and a metric per kind of token.

    Embeddings have no duration of their own there yet and keep the one they had.
    """

    def __init__(self, meter: Meter) -> None:
        inference, other = _histogram(meter, names.INFERENCE_DURATION), _histogram(meter, names.OPERATION_DURATION)
        self._durations = {names.CHAT: inference, names.EMBEDDINGS: other}
        self.time_to_first_chunk = _histogram(meter, names.INFERENCE_TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = _histogram(meter, names.INFERENCE_TIME_PER_OUTPUT_CHUNK)
        self._used = {field: _counter(meter, metric) for field, metric in _TOKENS_USED.items()}
        self._a_call = {field: _histogram(meter, metric) for field, metric in _TOKENS_A_CALL.items()}

    def duration(self, operation: str) -> Histogram:
        """Return the histogram of that operation."""
        return self._durations[operation]

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Add up each kind of token; nobody says what the tokens stand for."""
        counted = {**labels, names.TOKEN_MODALITY: names.MODALITY_UNKNOWN}
        for field, used in self._used.items():
            if (count := getattr(usage, field)) is not None:
                used.add(count, counted, context)
                if field in self._a_call:
                    self._a_call[field].record(count, ended, context)


_TOKENS_USED = {
    "input_tokens": names.INPUT_TOKENS_USED,
    "output_tokens": names.OUTPUT_TOKENS_USED,
    "cache_read_tokens": names.CACHE_READ_TOKENS_USED,
    "cache_write_tokens": names.CACHE_WRITE_TOKENS_USED,
    "reasoning_tokens": names.REASONING_TOKENS_USED,
}
_TOKENS_A_CALL = {"input_tokens": names.INPUT_TOKENS_A_CALL, "output_tokens": names.OUTPUT_TOKENS_A_CALL}


def _histogram(meter: Meter, metric: Metric) -> Histogram:
    return meter.create_histogram(
        metric.name, metric.unit, metric.brief, explicit_bucket_boundaries_advisory=metric.boundaries
    )


def _counter(meter: Meter, metric: Metric) -> metrics.Counter:
    return meter.create_counter(metric.name, metric.unit, metric.brief)


def _observed(meter: Meter, metric: Metric, under_way: UnderWay) -> None:
    meter.create_observable_up_down_counter(metric.name, [under_way.observe], metric.unit, metric.brief)


def _aged(meter: Meter, metric: Metric, under_way: UnderWay) -> None:
    meter.create_observable_gauge(metric.name, [under_way.observe_oldest], metric.unit, metric.brief)


class UnderWay:
    """What is under way, told when somebody collects.

    Counted here and not by the SDK's up-down counters, which take as long as a histogram each time. What has been under
    way once is told for good, as 0, so that a line falls back.
    """

    def __init__(self) -> None:
        self._begin_empty()
        on_fork(self._begin_empty)

    def _begin_empty(self) -> None:
        self._lock = (
            threading.RLock()
        )  # the garbage collector may end runs while this thread is in here: hence the copies
        self._started: dict[object, tuple[_Labels, float]] = {}
        self._known: set[_Labels] = set()

    def begin(self, key: object, agent: str, tool: str = "") -> None:
        """Remember that what `key` stands for began now: a run of `agent`, or a call of one of its tools."""
        with self._lock:
            self._started[key] = ((agent, tool), time.monotonic())
            self._known.add((agent, tool))

    def end(self, key: object) -> None:
        """Forget what `key` stands for."""
        with self._lock:
            self._started.pop(key, None)

    def observe(self, options: CallbackOptions) -> Iterable[Observation]:
        """Tell how much is under way for each agent."""
        run_deferred_measurements()  # callbacks come first in a collection: what they record is collected with the rest
        with self._lock:
            counts = Counter(agent for (agent, _), _ in [*self._started.values()])
            return [Observation(counts[agent], _attributes(agent)) for agent in {agent for agent, _ in [*self._known]}]

    def observe_oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        """Tell the age in seconds of what began first, for each agent or each of its tools."""
        now = time.monotonic()
        with self._lock:
            oldest = dict.fromkeys([*self._known], now)
            for labels, started in [*self._started.values()]:
                oldest[labels] = min(oldest[labels], started)
        return [Observation(now - started, _attributes(*labels)) for labels, started in oldest.items()]


_Labels = tuple[str, str]


def _attributes(agent: str, tool: str = "") -> Attributes:
    labels: Attributes = {}
    put(labels, names.AGENT_NAME, agent)
    put(labels, names.TOOL_NAME, tool)
    return labels


class AuditGauges:
    """What is observed of audit trails: how long records wait, and what verifications in this process found."""

    def __init__(self, meter: Meter) -> None:
        self._lags: set[weakref.WeakMethod[Callable[[], float]]] = set()
        self._verified: dict[str, tuple[bool, float]] = {}
        for metric, observe in (
            (names.AUDIT_LAG, self._observe_lag),
            (names.AUDIT_VERIFIED, self._observe_verified),
            (names.AUDIT_LAST_VERIFIED, self._observe_last_verified),
        ):
            meter.create_observable_gauge(metric.name, [observe], metric.unit, metric.brief)

    def watch(self, lag: Callable[[], float]) -> None:
        """Observe a trail by a bound method that tells its lag in seconds, for as long as the trail lives."""
        self._lags.add(weakref.WeakMethod(lag, self._lags.discard))

    def verified(self, store: str, ok: bool, time: float) -> None:
        """Note what the last verification of a store found, and when (Unix time)."""
        self._verified[store] = (ok, time)

    def _observe_lag(self, options: CallbackOptions) -> Iterable[Observation]:
        lags = [lag() for each in [*self._lags] if (lag := each()) is not None]
        return [Observation(max(lags))] if lags else []

    def _observe_verified(self, options: CallbackOptions) -> Iterable[Observation]:
        found = [ok for ok, _ in [*self._verified.values()]]
        return [Observation(int(all(found)))] if found else []

    def _observe_last_verified(self, options: CallbackOptions) -> Iterable[Observation]:
        times = [time for _, time in [*self._verified.values()]]
        return [Observation(min(times))] if times else []
