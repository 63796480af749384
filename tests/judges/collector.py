"""Real collectors with the configurations of `deploy/collector`, and back ends that keep what arrives behind them."""

from __future__ import annotations

import gzip
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tests.judges.programs import ROOT, free_port, program, running, until
from tests.otel.collector import SERVICES
from traced_tools.testing import ReplayServer, Reply
from traced_tools.testing.reply import Piece
from traced_tools.testing.server import Received

CONFIGS = ROOT / "deploy" / "collector"
PROGRAM, TO_HAVE_IT = "otelcol-agents", "make collector, which needs Go; make test then finds it"
_PORTS = ("GRPC", "HTTP", "HEALTH", "METRICS")
_SECONDS_TO_START = 30


class Collector:
    """A running collector.

    Attributes:
        process: the handle of its process.
        variables: its environment variables; another collector with the same ones takes its place.
    """

    def __init__(self, process: subprocess.Popen[bytes], variables: Mapping[str, str]) -> None:
        self.process, self.variables = process, variables

    def port(self, name: str) -> str:
        """Return the port that it listens on for GRPC, HTTP, HEALTH or METRICS."""
        return self.variables[f"LISTEN_{name}_PORT"]

    @property
    def address(self) -> str:
        """The address at which it takes OTLP over HTTP."""
        return f"http://127.0.0.1:{self.port('HTTP')}"

    def total(self, metric: str) -> float:
        """Return the sum of all series of a metric that the collector has about itself."""
        text = httpx.get(f"http://127.0.0.1:{self.port('METRICS')}/metrics").text
        return sum(float(value) for value in re.findall(rf"^{metric}(?:{{.*}})? (\S+)$", text, re.MULTILINE))

    def kill(self) -> None:
        """End it with SIGKILL."""
        self.process.kill()
        self.process.wait()


def free_ports() -> dict[str, str]:
    """Return the variables that have a collector listen on free ports."""
    return {f"LISTEN_{name}_PORT": str(free_port()) for name in _PORTS}


@contextmanager
def collector(folder: Path, configs: Sequence[str], variables: Mapping[str, str]) -> Iterator[Collector]:
    """Run a collector with configurations of `deploy/collector` on the ports in `variables`, or on free ones."""
    folder.mkdir(exist_ok=True)
    variables = {**free_ports(), "QUEUE_DIRECTORY": str(folder / "queue"), **variables}
    options = [f"--config={CONFIGS / name}" for name in configs]
    with running([program(PROGRAM, TO_HAVE_IT), *options], folder, variables) as process:
        started = Collector(process, variables)
        health = f"http://127.0.0.1:{started.port('HEALTH')}"
        until(lambda: httpx.get(health).is_success, _SECONDS_TO_START, "collector that is ready", process)
        yield started


class BackEnd:
    """A back end that takes OTLP over HTTP.

    Attributes:
        url: its address.
        received: all requests that it has received.
        answer: how it answers requests from now on.
        keeps: whether it keeps what it receives from now on.
    """

    OK = Reply(content_type="application/x-protobuf")

    def __init__(self) -> None:
        self.answer: Reply | Piece = self.OK
        self.keeps = True
        self._kept: list[Received] = []
        self._server = ReplayServer(self._receive)
        self.url, self.received = self._server.url, self._server.requests

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self._server.__exit__(*raised)

    def _receive(self, request: Received) -> Reply | Piece:
        if self.keeps:
            self._kept.append(request)
        return self.answer

    def bodies(self) -> Iterator[tuple[str, bytes]]:
        """Yield the path and the uncompressed body of each request that it has kept."""
        for request in list(self._kept):
            yield request.path, gzip.decompress(request.body)

    def messages(self, path: str) -> Iterator[Any]:
        """Yield the requests to a path that it has kept."""
        return (SERVICES[path][0].FromString(body) for to, body in self.bodies() if to == path)

    def spans(self) -> list[Any]:
        """Return the spans that it has kept."""
        scopes = (
            scope for each in self.messages("/v1/traces") for of in each.resource_spans for scope in of.scope_spans
        )
        return [span for scope in scopes for span in scope.spans]

    def metrics(self) -> list[Any]:
        """Return the metrics that it has kept, in the order in which they came."""
        requests = self.messages("/v1/metrics")
        scopes = (scope for each in requests for of in each.resource_metrics for scope in of.scope_metrics)
        return [metric for scope in scopes for metric in scope.metrics]

    def logs(self) -> list[Any]:
        """Return the log records that it has kept."""
        scopes = (scope for each in self.messages("/v1/logs") for of in each.resource_logs for scope in of.scope_logs)
        return [record for scope in scopes for record in scope.log_records]


def attributes(pairs: Sequence[KeyValue]) -> dict[str, Any]:
    """Return attributes as a dictionary."""
    return {pair.key: _plain(pair.value) for pair in pairs}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return tuple(_plain(each) for each in value.array_value.values)
    return getattr(value, kind) if kind else None
