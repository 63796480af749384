"""A process that plays the scenario and serves its metrics: `python -m tests.dashboards.playing --help`.

OpenTelemetry is set up once in a process, so each setup has a process of its own. Each line it writes is JSON: first
the address of its metrics, and when it has played, the ids of the traces that ended. It begins when it reads a line,
and serves until its input ends.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import Timer
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.metrics.export import MetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor

import traced_tools
from tests.judges.programs import ROOT, environment
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer
from traced_tools.testing import Scenario

_SECONDS_TO_PLAY = 120


class EndedTraces(SpanProcessor):
    """The ids of the traces of all spans that ended."""

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def on_end(self, span: ReadableSpan) -> None:
        """Keep the id of the span's trace."""
        assert span.context is not None
        self.ids.add(f"{span.context.trace_id:032x}")


def served_by_configure(otlp: str | None) -> str:
    """Set OpenTelemetry up as `configure` does, and return the address of the metrics."""
    handle = traced_tools.configure(service_name="played", prometheus=0, otlp=otlp or False)
    assert handle.prometheus_address is not None
    return handle.prometheus_address


def served_by_logfire(traces: EndedTraces) -> str:
    """Set logfire up with a reader of ours, and return the address of the metrics."""
    import logfire  # type: ignore[import-not-found, unused-ignore]

    reader: MetricReader = PrometheusReader()
    logfire.configure(
        send_to_logfire=False,
        console=False,
        additional_span_processors=[traces],
        metrics=logfire.MetricsOptions(additional_readers=[reader]),
    )
    assert isinstance(reader, PrometheusReader)
    return PrometheusServer(PrometheusCollector(reader), "127.0.0.1", [0]).address


def served_by_instrumentation() -> str:
    """Return the address of the exporter that `opentelemetry-instrument` has set up."""
    return f"{os.environ['OTEL_EXPORTER_PROMETHEUS_HOST']}:{os.environ['OTEL_EXPORTER_PROMETHEUS_PORT']}"


def main() -> None:
    """Set OpenTelemetry up, play, and serve until the input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--setup", choices=("configure", "logfire", "instrumentation"), required=True)
    parser.add_argument("--otlp")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    scenario, traces = Scenario(), EndedTraces()
    match given.setup:
        case "configure":
            address = served_by_configure(given.otlp)
            trace.get_tracer_provider().add_span_processor(traces)  # type: ignore[attr-defined]
        case "logfire":
            address = served_by_logfire(traces)
        case _:
            address = served_by_instrumentation()
    print(json.dumps({"address": address}), flush=True)
    sys.stdin.readline()
    scenario.run(count=given.rounds * scenario.runs_per_round, rate=given.rate, on_unexpected=print_unexpected)
    print(json.dumps({"traces": sorted(traces.ids)}), flush=True)
    sys.stdin.read()


def print_unexpected(error: Exception) -> None:
    """Report a run that an overloaded machine made end in another way; the next round plays its outcome again."""
    print(repr(error), file=sys.stderr)


# The test's side.


class Player:
    """A process that plays the scenario.

    Attributes:
        address: where its metrics are served.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.address: str = self._read()["address"]

    def begin(self) -> None:
        """Have the process play."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)

    def traces(self) -> set[str]:
        """Wait until the process has played, and return the ids of the traces that ended."""
        return set(self._read()["traces"])

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process has ended early"
        return json.loads(line)


@contextmanager
def playing(
    setup: str,
    variables: Mapping[str, str],
    *,
    python: Sequence[str] = (sys.executable, "-W", "error"),
    otlp: str | None = None,
    rounds: int = 4,
    rate: float = 30,
) -> Iterator[Player]:
    """Start a process that plays rounds of the scenario; it serves until the block ends.

    Args:
        setup: who sets OpenTelemetry up.
        variables: for its environment.
        python: the command that runs Python.
        otlp: the URL of a collector.
        rounds: how often each outcome occurs, at least.
        rate: runs per second.
    """
    command = [*python, "-m", "tests.dashboards.playing", f"--setup={setup}", f"--rounds={rounds}", f"--rate={rate}"]
    if otlp is not None:
        command.append(f"--otlp={otlp}")
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(ROOT), **variables}),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        given_up = Timer(_SECONDS_TO_PLAY, process.kill)
        given_up.start()
        try:
            yield Player(process)
        finally:
            given_up.cancel()
    assert process.returncode == 0


if __name__ == "__main__":
    main()
