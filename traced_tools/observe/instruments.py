"""The package's instruments, created once per meter provider from the telemetry registry.

The metrics of model calls have two sets of names: those of the GenAI conventions v0.1.0, and those that v1.41.0 of the
general conventions had. The package emits one set, never both.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from opentelemetry.metrics import CallbackOptions, Observation

from traced_tools.core.fork import on_fork
from traced_tools.core.frozen import frozen
from traced_tools.flow.deferred import run_deferred_measurements
from traced_tools.observe import names
from traced_tools.observe.attributes import put
from traced_tools.observe.export_stats import ExportMetrics
from traced_tools.observe.failures import SDK, report_failure
from traced_tools.observe.meter import ApiMeter, CounterRecorder, HistogramRecorder, Measurement
from traced_tools.observe.sanitize import agent_name_label

if TYPE_CHECKING:
    from traced_tools.core.enums import Conventions
    from traced_tools.core.messages import Usage
    from traced_tools.observe.attributes import Attributes


class Instruments:
    """One instrument for each metric of the telemetry registry.

    Args:
        meter: creates the instruments.
        conventions: the conventions that name the metrics of model calls.
    """

    def __init__(self, meter: ApiMeter, conventions: Conventions) -> None:
        self._meter = meter  # before any callback: a collection may run while instruments are created
        self.record = meter.record
        self.models: ModelMetrics = _MODEL_METRICS[conventions](meter)
        self.invoke_agent_duration = meter.histogram(names.INVOKE_AGENT_DURATION)
        self.inference_calls = meter.histogram(names.INVOKE_AGENT_INFERENCE_CALLS)
        self.tool_calls = meter.histogram(names.INVOKE_AGENT_TOOL_CALLS)
        self.loop_iterations = meter.histogram(names.LOOP_ITERATIONS_METRIC)
        self.loop_cost = meter.histogram(names.LOOP_COST_METRIC)
        self.execute_tool_duration = meter.histogram(names.EXECUTE_TOOL_DURATION)
        self.mcp_server_duration = meter.histogram(names.MCP_SERVER_DURATION)
        self.run_time = meter.histogram(names.RUN_TIME)
        self.iteration_duration = meter.histogram(names.ITERATION_DURATION)
        self.advisor_duration = meter.histogram(names.ADVISOR_DURATION)
        self.evaluation_scores = meter.histogram(names.EVALUATION_SCORES)
        self.answer_retries = meter.counter(names.ANSWER_RETRIES)
        self.safeguard_blocks = meter.counter(names.SAFEGUARD_BLOCKS)
        self.model_retries = meter.counter(names.MODEL_RETRIES)
        self.model_retry_wait = meter.counter(names.MODEL_RETRY_WAIT)
        self.model_rate_limits = meter.counter(names.MODEL_RATE_LIMITS)
        self.model_rate_limit_wait = meter.histogram(names.MODEL_RATE_LIMIT_WAIT)
        self.tool_decisions = meter.counter(names.TOOL_DECISIONS)
        self.policy_evaluations = meter.counter(names.POLICY_EVALUATIONS)
        self.tool_result_size = meter.histogram(names.TOOL_RESULT_SIZE_METRIC)
        self.tool_retries = meter.counter(names.TOOL_RETRIES)
        self.tool_late_results = meter.counter(names.TOOL_LATE_RESULTS)
        self.usage_cost = meter.counter(names.USAGE_COST)
        self.unpriced_tokens = meter.counter(names.UNPRICED_TOKENS)
        self.memory_duration = meter.histogram(names.MEMORY_OPERATION_DURATION)
        self.memory_messages = meter.counter(names.MEMORY_MESSAGES)
        self.memory_conflicts = meter.counter(names.MEMORY_CONFLICTS_METRIC)
        self.memory_failures = meter.counter(names.MEMORY_FAILURES)
        self.compactions = meter.counter(names.COMPACTIONS)
        self.compaction_tokens_saved = meter.histogram(names.COMPACTION_TOKENS_SAVED)
        self.missing_results = meter.counter(names.MISSING_RESULTS)
        self.tool_searches = meter.counter(names.TOOL_SEARCHES)
        self.tools_discovered = meter.counter(names.TOOLS_DISCOVERED)
        self.tools_withheld = meter.histogram(names.TOOLS_WITHHELD)
        self.tool_tokens_saved = meter.histogram(names.TOOL_TOKENS_SAVED)
        self.mcp_client_duration = meter.histogram(names.MCP_CLIENT_DURATION)
        self.mcp_tools_omitted = meter.counter(names.MCP_TOOLS_OMITTED)
        self.mcp_servers_omitted = meter.counter(names.MCP_SERVERS_OMITTED)
        self.telemetry_failures = meter.counter(names.TELEMETRY_FAILURES)
        self.approval_wait = meter.histogram(names.APPROVAL_WAIT)
        self.active_runs, self.active_tools, self.pending_approvals = ActiveTracker(), ActiveTracker(), ActiveTracker()
        meter.observe_up_down_counter(names.RUN_ACTIVE, self._observe_active_runs)
        meter.observe_gauge(names.RUN_OLDEST_ACTIVE, self.active_runs.observe_oldest)
        meter.observe_up_down_counter(names.TOOL_ACTIVE, self.active_tools.observe)
        meter.observe_gauge(names.TOOL_OLDEST_ACTIVE, self.active_tools.observe_oldest)
        meter.observe_up_down_counter(names.APPROVAL_PENDING, self.pending_approvals.observe)
        meter.observe_gauge(names.APPROVAL_OLDEST_PENDING, self.pending_approvals.observe_oldest)
        self.durable_run_lives = meter.histogram(names.DURABLE_RUN_LIVES)
        self.durable_run_idle = meter.histogram(names.DURABLE_RUN_IDLE)
        self.durable_run_taken = meter.counter(names.DURABLE_RUN_TAKEN)
        self.durable_run_unknown_outcomes = meter.counter(names.DURABLE_RUN_UNKNOWN_OUTCOMES)
        self.durable_run_record_duration = meter.histogram(names.DURABLE_RUN_RECORD_DURATION)
        self.audit_records = meter.counter(names.AUDIT_RECORDS)
        self.audit_checkpoints_failed = meter.counter(names.AUDIT_CHECKPOINTS_FAILED)
        self.audit_checkpoints_lost = meter.counter(names.AUDIT_CHECKPOINTS_LOST)
        self.audit = AuditGauges(meter)
        self.pending_stores = PendingStoreGauges(meter, self.telemetry_failures)
        self.exports = ExportMetrics(meter)

    def aggregate(self) -> None:
        """Aggregate the values that wait for it, as each collection does."""
        try:
            self._meter.aggregate()
        except Exception as error:
            report_failure(error, SDK)
            self.telemetry_failures.add(1)

    def _observe_active_runs(self, options: CallbackOptions) -> Iterable[Observation]:
        """Report active runs. Callbacks run first, so values recorded here are part of the same collection."""
        run_deferred_measurements()
        self.aggregate()
        return self.active_runs.observe(options)


class ModelMetrics(Protocol):
    """The instruments that measure model calls.

    Attributes:
        time_to_first_chunk: seconds to the first chunk of a streamed response.
        time_per_output_chunk: seconds between two chunks of a streamed response.
    """

    time_to_first_chunk: HistogramRecorder
    time_per_output_chunk: HistogramRecorder

    def duration(self, operation: str) -> HistogramRecorder:
        """Return the histogram of durations, in seconds, of an operation: `chat` or `embeddings`."""

    def tokens(self, usage: Usage, labels: Attributes, ended: Attributes) -> Iterable[Measurement]:
        """Return the measurements of the token counts that the provider reported.

        Args:
            usage: the reported usage; counts that are None are not measured.
            labels: the labels of the call.
            ended: the same labels, with the error type if the call failed, for the metrics that have this label.
        """


class ModelMetricsV010:
    """The metrics of model calls, named by v0.1.0, with metrics of its own for each kind of call and of token."""

    def __init__(self, meter: ApiMeter) -> None:
        self._durations = {
            names.CHAT: meter.histogram(names.INFERENCE_DURATION),
            names.EMBEDDINGS: meter.histogram(names.EMBEDDINGS_DURATION),
        }
        self.time_to_first_chunk = meter.histogram(names.INFERENCE_TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = meter.histogram(names.INFERENCE_TIME_PER_OUTPUT_CHUNK)
        self._counters = {field: meter.counter(metric) for field, metric in _TOKENS_USED.items()}
        self._a_call = {field: meter.histogram(metric) for field, metric in _TOKENS_A_CALL.items()}
        self._embedded = meter.histogram(names.EMBEDDINGS_INPUT_TOKENS)

    def duration(self, operation: str) -> HistogramRecorder:
        """Return the histogram of the operation."""
        return self._durations[operation]

    def tokens(self, usage: Usage, labels: Attributes, ended: Attributes) -> Iterable[Measurement]:
        """Measure each kind of token. The modality is `unknown`, because providers don't report it."""
        if labels[names.OPERATION_NAME] == names.EMBEDDINGS:
            return [] if usage.input_tokens is None else [(self._embedded, usage.input_tokens, labels)]
        with_modality = {**labels, names.TOKEN_MODALITY: names.MODALITY_UNKNOWN}
        return [
            (instrument, count, attributes)
            for instruments, attributes in ((self._a_call, ended), (self._counters, with_modality))
            for kind, instrument in instruments.items()
            if (count := getattr(usage, kind)) is not None
        ]


_TOKENS_USED = {
    "input_tokens": names.INPUT_TOKENS_USED,
    "output_tokens": names.OUTPUT_TOKENS_USED,
    "cache_read_tokens": names.CACHE_READ_TOKENS_USED,
    "cache_write_tokens": names.CACHE_WRITE_TOKENS_USED,
    "reasoning_tokens": names.REASONING_TOKENS_USED,
}
_TOKENS_A_CALL = {"input_tokens": names.INPUT_TOKENS_A_CALL, "output_tokens": names.OUTPUT_TOKENS_A_CALL}


class ModelMetricsV141:
    """The metrics of model calls, named by v1.41.0."""

    def __init__(self, meter: ApiMeter) -> None:
        self._duration = meter.histogram(names.OPERATION_DURATION)
        self.time_to_first_chunk = meter.histogram(names.TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = meter.histogram(names.TIME_PER_OUTPUT_CHUNK)
        self._token_usage = meter.histogram(names.TOKEN_USAGE)

    def duration(self, operation: str) -> HistogramRecorder:
        """Return the histogram that all operations share."""
        return self._duration

    def tokens(self, usage: Usage, labels: Attributes, ended: Attributes) -> Iterable[Measurement]:
        """Measure input and output tokens in one histogram, distinguished by a label."""
        counts = ((names.TOKEN_INPUT, usage.input_tokens), (names.TOKEN_OUTPUT, usage.output_tokens))
        return [
            (self._token_usage, count, {**labels, names.TOKEN_TYPE: kind})
            for kind, count in counts
            if count is not None
        ]


_MODEL_METRICS: Mapping[Conventions, Callable[[ApiMeter], ModelMetrics]] = {
    "v0.1.0": ModelMetricsV010,
    "v1.41.0": ModelMetricsV141,
}


class ActiveTracker:
    """Active runs, tool calls or waits for approval, reported by observable instruments.

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
        self._label_sets: set[_Labels] = set()

    def begin(self, key: object, agent: str, tool: str = "") -> None:
        """Record that the run or tool call that `key` identifies is active from now on.

        Args:
            key: identifies the run or tool call.
            agent: the agent's name.
            tool: the tool's name; empty for a run.
        """
        with self._lock:
            self._started[key] = ((agent, tool), time.monotonic())
            self._label_sets.add((agent, tool))

    def end(self, key: object) -> None:
        """Record that the run or tool call that `key` identifies is no longer active."""
        with self._lock:
            self._started.pop(key, None)

    def observe(self, options: CallbackOptions) -> Iterable[Observation]:
        """Report the number of active runs or tool calls of each agent."""
        with self._lock:
            counts = Counter(agent for (agent, _), _ in [*self._started.values()])
            return [
                Observation(counts[agent], _attributes(agent)) for agent in {agent for agent, _ in [*self._label_sets]}
            ]

    def observe_oldest(self, options: CallbackOptions) -> Iterable[Observation]:
        """Report the age in seconds of the oldest active run of each agent, or call of each of its tools."""
        now = time.monotonic()
        with self._lock:
            oldest = dict.fromkeys([*self._label_sets], now)
            for labels, started in [*self._started.values()]:
                oldest[labels] = min(oldest[labels], started)
        return [Observation(now - started, _attributes(*labels)) for labels, started in oldest.items()]


_Labels = tuple[str, str]
"""Agent and tool."""


def _attributes(agent: str, tool: str = "") -> Attributes:
    labels: Attributes = {}
    put(labels, names.AGENT_NAME, agent)
    put(labels, names.TOOL_NAME, tool)
    return labels


class AuditGauges:
    """Gauges of audit trails: the age of records that are not durable yet, and the results of verifications."""

    def __init__(self, meter: ApiMeter) -> None:
        self._lags: set[weakref.WeakMethod[Callable[[], float]]] = set()
        self._forget_verified()
        on_fork(self._forget_verified)
        for metric, observe in (
            (names.AUDIT_LAG, self._observe_lag),
            (names.AUDIT_VERIFIED, self._observe_verified),
            (names.AUDIT_LAST_VERIFIED, self._observe_last_verified),
        ):
            meter.observe_gauge(metric, observe)

    def _forget_verified(self) -> None:
        self._verified: dict[str, tuple[bool, float]] = {}

    def watch(self, lag: Callable[[], float]) -> None:
        """Report a trail's lag until the trail is garbage-collected. `lag` is a bound method that returns seconds."""
        self._lags.add(weakref.WeakMethod(lag, self._lags.discard))

    def verified(self, store: str, ok: bool, time: float) -> None:
        """Record the result and the Unix time of the last verification of a store."""
        self._verified[store] = (ok, time)

    def _observe_lag(self, options: CallbackOptions) -> Iterable[Observation]:
        lags = [lag() for get_lag in [*self._lags] if (lag := get_lag()) is not None]
        return [Observation(max(lags))] if lags else []

    def _observe_verified(self, options: CallbackOptions) -> Iterable[Observation]:
        verdicts = [ok for ok, _ in [*self._verified.values()]]
        return [Observation(int(all(verdicts)))] if verdicts else []

    def _observe_last_verified(self, options: CallbackOptions) -> Iterable[Observation]:
        times = [time for _, time in [*self._verified.values()]]
        return [Observation(min(times))] if times else []


@frozen
class PendingCounts:
    """What a pending store has of an agent. Several counts of an agent add up.

    Attributes:
        agent: the agent's name.
        calls: the calls that wait for a decision.
        oldest_call: the age of the oldest of them in seconds.
        ready: the runs whose calls are all decided or expired, and which have not resumed.
        oldest_ready: the seconds since the first of them became ready.
        refused: the runs that can't resume, by the reason.
        runs: the durable runs, by their status.
        oldest_runs: the seconds for which the oldest of them has this status, by the status.
    """

    agent: str
    calls: int = 0
    oldest_call: float = 0.0
    ready: int = 0
    oldest_ready: float = 0.0
    refused: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    oldest_runs: Mapping[str, float] = field(default_factory=dict)


class PendingStoreGauges:
    """Gauges of stores in which runs wait for approval, read at each collection.

    An agent that had waiting calls once is reported as 0 from then on, so that its graph returns to zero. A store that
    fails is counted, and has no values meanwhile. A forked child leaves the stores of its parent to the parent.
    """

    def __init__(self, meter: ApiMeter, failures: CounterRecorder) -> None:
        self._failures = failures
        self._forget_stores()
        on_fork(self._forget_stores)
        meter.observe_gauge(names.PENDING_STORE_CALLS, self._observe_calls)  # called first, so it reads for the others
        for metric, value_of in (
            (names.PENDING_STORE_OLDEST, _oldest_call),
            (names.PENDING_STORE_READY, _ready),
            (names.PENDING_STORE_OLDEST_READY, _oldest_ready),
        ):
            meter.observe_gauge(metric, partial(self._observe, value_of))
        meter.observe_gauge(names.PENDING_STORE_REFUSED, self._observe_refused)
        meter.observe_gauge(names.PENDING_STORE_RUNS, self._observe_runs)
        meter.observe_gauge(names.PENDING_STORE_OLDEST_RUN, self._observe_oldest_runs)

    def _forget_stores(self) -> None:
        self._reads: set[weakref.WeakMethod[Callable[[], list[PendingCounts]]]] = set()
        self._counts: dict[str, list[PendingCounts]] = {}
        self._refusals: set[tuple[str, str]] = set()
        self._statuses: set[tuple[str, str]] = set()
        self._is_read = False  # as the last collection tried

    def watch(self, read: Callable[[], list[PendingCounts]]) -> None:
        """Report what `read`, a bound method, returns until its store is garbage-collected."""
        self._reads.add(weakref.WeakMethod(read, self._reads.discard))

    def _observe_calls(self, options: CallbackOptions) -> Iterable[Observation]:
        counts: dict[str, list[PendingCounts]] = {agent: [] for agent in self._counts}
        for get_read in [*self._reads]:
            try:
                store_counts = [] if (read_counts := get_read()) is None else read_counts()
            except Exception as error:
                report_failure(error, "the gauges of a pending store")
                self._failures.add(1)
                self._is_read = False
                return []
            for count in store_counts:
                counts.setdefault(agent_name_label(count.agent), []).append(count)
        self._counts, self._is_read = counts, True
        for agent, agent_counts in counts.items():
            for count in agent_counts:
                self._refusals |= {(agent, reason) for reason in count.refused}
                self._statuses |= {(agent, status) for status in count.runs}
        return self._of_agents(lambda counts: sum(agent_count.calls for agent_count in counts))

    def _observe(self, value_of: Callable[[list[PendingCounts]], float], _: CallbackOptions) -> list[Observation]:
        return self._of_agents(value_of)

    def _of_agents(self, value_of: Callable[[list[PendingCounts]], float]) -> list[Observation]:
        """Return a value of each agent, as the stores had it when they were read."""
        counts = sorted(self._counts.items()) if self._is_read else ()
        return [Observation(value_of(agent_counts), {names.AGENT_NAME: agent}) for agent, agent_counts in counts]

    def _observe_refused(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._of_labels(
            names.RESUME_REFUSAL, self._refusals, lambda counts, reason: sum(c.refused.get(reason, 0) for c in counts)
        )

    def _observe_runs(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._of_labels(
            names.DURABLE_RUN_STATUS, self._statuses, lambda counts, status: sum(c.runs.get(status, 0) for c in counts)
        )

    def _observe_oldest_runs(self, options: CallbackOptions) -> Iterable[Observation]:
        return self._of_labels(
            names.DURABLE_RUN_STATUS,
            self._statuses,
            lambda counts, status: max((c.oldest_runs.get(status, 0.0) for c in counts), default=0.0),
        )

    def _of_labels(
        self, name: str, labels: set[tuple[str, str]], value_of: Callable[[list[PendingCounts], str], float]
    ) -> list[Observation]:
        """Return a value for each agent and second label that the stores have had."""
        pairs = sorted(labels) if self._is_read else ()
        return [
            Observation(value_of(self._counts[agent], label), {names.AGENT_NAME: agent, name: label})
            for agent, label in pairs
        ]


def _oldest_call(counts: list[PendingCounts]) -> float:
    return max((count.oldest_call for count in counts), default=0.0)


def _ready(counts: list[PendingCounts]) -> float:
    return sum(count.ready for count in counts)


def _oldest_ready(counts: list[PendingCounts]) -> float:
    return max((count.oldest_ready for count in counts), default=0.0)
