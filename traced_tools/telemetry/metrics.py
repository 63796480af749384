"""The package's instruments, made once per meter provider from the name table."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation, UpDownCounter

from traced_tools.telemetry import names
from traced_tools.telemetry.declared import Metric


class Instruments:
    """One instrument per metric of the table."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.invoke_agent_duration = self._histogram(names.INVOKE_AGENT_DURATION)
        self.inference_calls = self._histogram(names.INVOKE_AGENT_INFERENCE_CALLS)
        self.tool_calls = self._histogram(names.INVOKE_AGENT_TOOL_CALLS)
        self.loop_iterations = self._histogram(names.LOOP_ITERATIONS_METRIC)
        self.execute_tool_duration = self._histogram(names.EXECUTE_TOOL_DURATION)
        self.operation_duration = self._histogram(names.OPERATION_DURATION)
        self.time_to_first_chunk = self._histogram(names.TIME_TO_FIRST_CHUNK)
        self.time_per_output_chunk = self._histogram(names.TIME_PER_OUTPUT_CHUNK)
        self.token_usage = self._histogram(names.TOKEN_USAGE)
        self.iteration_duration = self._histogram(names.ITERATION_DURATION)
        self.advisor_duration = self._histogram(names.ADVISOR_DURATION)
        self.tool_decisions = self._counter(names.TOOL_DECISIONS)
        self.tool_retries = self._counter(names.TOOL_RETRIES)
        self.tool_late_results = self._counter(names.TOOL_LATE_RESULTS)
        self.telemetry_failures = self._counter(names.TELEMETRY_FAILURES)
        self.tool_active = self._up_down_counter(names.TOOL_ACTIVE)
        self.run_active = self._up_down_counter(names.RUN_ACTIVE)
        self.runs_under_way = RunsUnderWay()
        gauge = names.RUN_OLDEST_ACTIVE
        meter.create_observable_gauge(gauge.name, [self.runs_under_way.observe], gauge.unit, gauge.brief)

    def _histogram(self, metric: Metric) -> Histogram:
        return self._meter.create_histogram(
            metric.name, metric.unit, metric.brief, explicit_bucket_boundaries_advisory=metric.boundaries
        )

    def _counter(self, metric: Metric) -> Counter:
        return self._meter.create_counter(metric.name, metric.unit, metric.brief)

    def _up_down_counter(self, metric: Metric) -> UpDownCounter:
        return self._meter.create_up_down_counter(metric.name, metric.unit, metric.brief)


class RunsUnderWay:
    """When each run that has not ended began, for the age of the oldest one per agent."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started: dict[object, tuple[str, float]] = {}
        self._agents: set[str] = set()

    def begin(self, key: object, agent: str) -> None:
        """Remember that the run `key` of `agent` began now."""
        with self._lock:
            self._started[key] = (agent, time.monotonic())
            self._agents.add(agent)

    def end(self, key: object) -> None:
        """Forget the run `key`."""
        with self._lock:
            self._started.pop(key, None)

    def observe(self, options: CallbackOptions) -> Iterable[Observation]:
        """Age in seconds of each agent's oldest run; 0 for an agent that is idle, so that a line falls back."""
        now = time.monotonic()
        with self._lock:
            oldest = dict.fromkeys(self._agents, now)
            for agent, started in self._started.values():
                oldest[agent] = min(oldest[agent], started)
        return [Observation(now - started, {names.AGENT_NAME: agent}) for agent, started in oldest.items()]
