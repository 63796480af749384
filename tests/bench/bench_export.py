"""What an iteration takes beside a collector that hangs, one that answers, and none at all.

    python -m tests.bench.bench_export COLLECTOR_URL call|acall ITERATIONS

Each measurement is a process of its own, since `configure` is once per process: it sets traces and metrics up as an
application does, with `configure(otlp=...)` and nothing else, then runs the loop without a pause, which fills the queue
of a collector that takes nothing within half a second; that much is not measured. An iteration is what lies between two
model calls of a run, on the wall: a caller waits for whatever holds it up, be it the exporter's thread that
encodes a batch or a full queue. The processes of the three collectors take turns, beginning with another one each time,
and the figure is the median of the rounds' percentiles. Metrics are sent each second and not each minute, so that it
happens in every process.

A collector that answers is the worst case for the 99th percentile, since only its batches are encoded one after the
other, in a thread that takes turns with the loop: one that hangs is easily no worse. So a fourth process stands beside
them whose exporter drops what it is given, which nothing can hold up. Against that one a full queue shows.

The collector that hangs accepts a connection and never reads from it; the one that answers does so at once; where there
is none, the connection is refused.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import perf_counter_ns
from typing import Any

from opentelemetry import metrics, trace

from tests.bench.report import Row, Section
from tests.bench.workload import NO_LIMITS, CountingModel, add, async_add, sdk
from traced_tools import ChatClient, configure
from traced_tools.models import ChatRequest, ChatResponse

TARGET = 1.10
MODES = {"blocking": "call", "asyncio": "acall"}
COLLECTORS = ("that answers", "that hangs", "that is not there")
DROPPED = "of no kind: all is dropped"
PASSES = 50
WARM_UP = 1_000
INTERVAL = {"OTEL_METRIC_EXPORT_INTERVAL": "1000"}

Percentiles = dict[str, float]


class TimedModel(CountingModel):
    """Notes the time of each call."""

    def __init__(self, passes: int) -> None:
        super().__init__(passes)
        self.times: list[int] = []

    def call(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass."""
        self.times.append(perf_counter_ns())
        return super().call(request)

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Return the response of this pass, on asyncio."""
        self.times.append(perf_counter_ns())
        return await super().acall(request)


def iterations(mode: str, count: int) -> list[float]:
    """Run the loop for so many iterations and return the microseconds of each."""
    model = TimedModel(PASSES + 1)
    function: Any = add if mode == "call" else async_add
    spec = ChatClient(model, tools=[function], limits=NO_LIMITS).prompt("What is 41 + 1?")
    taken: list[float] = []
    with asyncio.Runner() as runner:
        while len(taken) < count:
            model.times.clear()
            spec.call() if mode == "call" else runner.run(spec.acall())
            taken += [(end - start) / 1000 for start, end in zip(model.times, model.times[1:], strict=False)]
    return taken


class Answering(BaseHTTPRequestHandler):
    """Takes what it is sent and says so: an empty message is a full success in OTLP."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer at once."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet."""


class Collector(ThreadingHTTPServer):
    """A collector that answers; that a measured process goes away without a word is nothing to report."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Keep quiet."""


@contextmanager
def answering() -> Iterator[str]:
    """A collector that answers."""
    with Collector(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def hanging() -> Iterator[str]:
    """A collector that hangs: the system accepts connections for it, as many as wait in line, and nobody reads."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def absent() -> Iterator[str]:
    """A port that is taken and where nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def export_section(rounds: int, count: int) -> Section:
    """Return the percentiles of an iteration beside each collector, blocking and on asyncio."""
    rows: list[Row] = []
    with ExitStack() as stack:
        collectors = dict(
            zip(COLLECTORS, (stack.enter_context(each()) for each in (answering, hanging, absent)), strict=True)
        )
        collectors[DROPPED] = ""
        for name, mode in MODES.items():
            rows += _rows(name, _measured(collectors, mode, rounds, count))
    return Section(f"an iteration while spans and metrics are exported, median of {rounds} x {count:,}", rows)


def _measured(collectors: dict[str, str], mode: str, rounds: int, count: int) -> dict[str, list[Percentiles]]:
    measured: dict[str, list[Percentiles]] = {name: [] for name in collectors}
    names = list(collectors)
    for turn in range(rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            measured[name].append(_in_process(collectors[name], mode, count))
    return measured


def _in_process(url: str, mode: str, count: int) -> Percentiles:
    command = [sys.executable, "-m", "tests.bench.bench_export", url, mode, str(count)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")} | INTERVAL
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)
    if done.returncode:
        raise RuntimeError(f"a measurement failed: {done.stderr[-2000:]}")
    percentiles: Percentiles = json.loads(done.stdout)
    return percentiles


def _rows(name: str, measured: dict[str, list[Percentiles]]) -> Iterator[Row]:
    answers, *others = COLLECTORS
    for which in ("p50", "p99"):
        for collector in measured:
            yield Row(f"{name}, {which} beside a collector {collector}", _median(measured[collector], which), "us")
        for collector in others:
            ratio = _median(measured[collector], which) / _median(measured[answers], which)
            at_most = TARGET if which == "p99" else None
            yield Row(f"  one {collector} / one {answers}", ratio, "x", at_most=at_most, digits=2)
            ratio = _median(measured[collector], which) / _median(measured[DROPPED], which)
            yield Row(f"  one {collector} / one {DROPPED}", ratio, "x", digits=2)


def _median(rounds: list[Percentiles], which: str) -> float:
    return statistics.median(each[which] for each in rounds)


def _child(url: str, mode: str, count: str) -> None:
    if url:
        configure(service_name="bench", otlp=url)
    else:
        providers = sdk()
        trace.set_tracer_provider(providers.tracer_provider)
        metrics.set_meter_provider(providers.meter_provider)
    iterations(mode, WARM_UP)
    cuts = statistics.quantiles(iterations(mode, int(count)), n=100)
    print(json.dumps({"p50": cuts[49], "p99": cuts[98]}), flush=True)
    os._exit(0)  # the flush at exit would wait for a collector that never answers


if __name__ == "__main__":
    _child(*sys.argv[1:])
