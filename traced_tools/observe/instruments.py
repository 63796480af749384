"""The package's instruments, created once per meter provider from the telemetry registry.

The metrics of model calls have two sets of names: those of the stable conventions and those of the latest ones. The
package emits one set, never both.
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
from traced_tools.observe.attributes import put
from traced_tools.observe.export_stats import ExportMetrics
from traced_tools.observe.names.registry_types import Metric

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.enums import Conventions
    from traced_tools.core.messages import Usage
    from traced_tools.observe.attributes import Attributes


class Instruments:
    """One instrument for each metric of the telemetry registry.

    Args:
        meter: creates the instruments.
        conventions: the conventions that name the metrics of model calls.
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
        self.active_runs, self.active_tools = ActiveTracker(), ActiveTracker()
        _observe(meter, names.RUN_ACTIVE, names.RUN_OLDEST_ACTIVE, self.active_runs)
        _observe(meter, names.TOOL_ACTIVE, names.TOOL_OLDEST_ACTIVE, self.active_tools)
        self.audit_records = _counter(meter, names.AUDIT_RECORDS)
        self.audit_checkpoints_failed = _counter(meter, names.AUDIT_CHECKPOINTS_FAILED)
        self.audit_checkpoints_lost = _counter(meter, names.AUDIT_CHECKPOINTS_LOST)
        self.audit = AuditGauges(meter)
        self.exports = ExportMetrics(meter)


class ModelMetrics(Protocol):
    """The instruments that measure model calls.

    Attributes:
        time_to_first_chunk: seconds to the first chunk of a streamed response.
        time_per_output_chunk: seconds between two chunks of a streamed response.
    """

    time_to_first_chunk: Histogram
    time_per_output_chunk: Histogram

    def duration(self, operation: str) -> Histogram:
        """Return the histogram of durations, in seconds, of an operation: `chat` or `embeddings`."""

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Record the token counts that the provider reported.

        Args:
            usage: the reported usage; counts that are None are not recorded.
            labels: the labels of the call.
            ended: the same labels, with the error type if the call failed, for the metrics that have this label.
            context: the context with the span of the call.
        """


class StableModelMetrics:
    """The metrics of model calls, named by the stable conventions."""

    def __init__(self, meter: Meter) -> None:
        self._duration = _histogram(meter, names.OPERATION_DURATION)
        self.time_to_first_chunk = _histogram(meter, names.TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = _histogram(meter, names.TIME_PER_OUTPUT_CHUNK)
        self._token_usage = _histogram(meter, names.TOKEN_USAGE)

    def duration(self, operation: str) -> Histogram:
        """Return the histogram that all operations share."""
        return self._duration

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Record input and output tokens in one histogram, distinguished by a label."""
        if usage.input_tokens is not None:
            self._token_usage.record(usage.input_tokens, {**labels, names.TOKEN_TYPE: names.TOKEN_INPUT}, context)
        if usage.output_tokens is not None:
            self._token_usage.record(usage.output_tokens, {**labels, names.TOKEN_TYPE: names.TOKEN_OUTPUT}, context)


class LatestModelMetrics:
    """The metrics of model calls, named by the latest conventions, with one metric for each kind of token.

    These conventions have a duration for chat models only. Embedding models keep the stable one.
    """

    def __init__(self, meter: Meter) -> None:
        inference, other = _histogram(meter, names.INFERENCE_DURATION), _histogram(meter, names.OPERATION_DURATION)
        self._durations = {names.CHAT: inference, names.EMBEDDINGS: other}
        self.time_to_first_chunk = _histogram(meter, names.INFERENCE_TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = _histogram(meter, names.INFERENCE_TIME_PER_OUTPUT_CHUNK)
        self._used = {field: _counter(meter, metric) for field, metric in _TOKENS_USED.items()}
        self._a_call = {field: _histogram(meter, metric) for field, metric in _TOKENS_A_CALL.items()}

    def duration(self, operation: str) -> Histogram:
        """Return the histogram of the operation."""
        return self._durations[operation]

    def count(self, usage: Usage, labels: Attributes, ended: Attributes, context: Context | None) -> None:
        """Record each kind of token. The modality is `unknown`, because providers don't report it."""
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


class ActiveTracker:
    """Active runs or tool calls, reported by observable instruments.

    Counting here is cheaper than an SDK up-down counter, whose every update costs as much as a histogram's. A label set
    that was active once is reported as 0 from then on, so that its graph returns to zero.
    """

    def __init__(self) -> None:
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        # Reentrant, and read through copies: the garbage collector may end a run while this thread holds the lock.
        self._lock = threading.RLock()
        self._started: dict[object, tuple[_Labels, float]] = {}
        self._known: set[_Labels] = set()

    def begin(self, key: object, agent: str, tool: str = "") -> None:
        """Record that the run or tool call that `key` identifies is active from now on.

        Args:
            key: identifies the run or tool call.
            agent: the agent's name.
            tool: the tool's name; empty for a run.
        """
        with self._lock:
            self._started[key] = ((agent, tool), time.monotonic())
            self._known.add((agent, tool))

    def end(self, key: object) -> None:
        """Record that the run or tool call that `key` identifies is no longer active."""
        with self._lock:
            self._started.pop(key, None)

    def observe(self, options: CallbackOptions) -> Iterable[Observation]:
        """Report the number of active runs or tool calls of each agent."""
        run_deferred_measurements()  # callbacks run first, so what is recorded here is part of the same collection
        with self._lock:
            counts = Counter(agent for (agent, _), _ in [*self._started.values()])
            return [Observation(counts[agent], _attributes(agent)) for agent in {agent for agent, _ in [*self._known]}]

    def observe_oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        """Report the age in seconds of the oldest active run of each agent, or call of each of its tools."""
        now = time.monotonic()
        with self._lock:
            oldest = dict.fromkeys([*self._known], now)
            for labels, started in [*self._started.values()]:
                oldest[labels] = min(oldest[labels], started)
        return [Observation(now - started, _attributes(*labels)) for labels, started in oldest.items()]


def _observe(meter: Meter, active: Metric, oldest: Metric, tracker: ActiveTracker) -> None:
    """Create the observable instruments that report the number of active items and the age of the oldest."""
    meter.create_observable_up_down_counter(active.name, [tracker.observe], active.unit, active.brief)
    meter.create_observable_gauge(oldest.name, [tracker.observe_oldest], oldest.unit, oldest.brief)


_Labels = tuple[str, str]
"""Agent and tool."""


def _attributes(agent: str, tool: str = "") -> Attributes:
    labels: Attributes = {}
    put(labels, names.AGENT_NAME, agent)
    put(labels, names.TOOL_NAME, tool)
    return labels


class AuditGauges:
    """Gauges of audit trails: the age of records that are not durable yet, and the results of verifications."""

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
        """Report a trail's lag until the trail is garbage-collected. `lag` is a bound method that returns seconds."""
        self._lags.add(weakref.WeakMethod(lag, self._lags.discard))

    def verified(self, store: str, ok: bool, time: float) -> None:
        """Record the result and the Unix time of the last verification of a store."""
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
