"""OTLP collectors on 127.0.0.1 that store what they receive and misbehave on request."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.markers import MARKER
from tests.waiting import PATIENCE

SERVICES = {
    "/v1/traces": (ExportTraceServiceRequest, ExportTraceServiceResponse, "trace.v1.TraceService"),
    "/v1/metrics": (ExportMetricsServiceRequest, ExportMetricsServiceResponse, "metrics.v1.MetricsService"),
    "/v1/logs": (ExportLogsServiceRequest, ExportLogsServiceResponse, "logs.v1.LogsService"),
}


class Collector:
    """What a collector has received, and how it behaves.

    Attributes:
        url: where it listens.
        bodies: what came, for each path.
        headers: the headers of the last request for each path.
        peers: which connection each request came over, for each path.
        behave: answers a request; may be replaced at any time.
        released: set when whoever hangs shall let go.
    """

    def __init__(self, url: str, behave: Behaviour) -> None:
        self.url = url
        self.behave = behave
        self.bodies: dict[str, list[bytes]] = defaultdict(list)
        self.headers: dict[str, dict[str, str]] = {}
        self.peers: dict[str, list[object]] = defaultdict(list)
        self.released = threading.Event()
        self._came = threading.Condition()

    def receive(self, path: str, body: bytes, peer: object) -> None:
        with self._came:
            self.peers[path].append(peer)
            self.bodies[path].append(body)
            self._came.notify_all()

    def wait_for(self, path: str, count: int = 1) -> None:
        """Wait until `count` requests have come for `path`."""
        with self._came:
            assert self._came.wait_for(lambda: len(self.bodies[path]) >= count, PATIENCE), "nothing came"

    def requests(self, path: str) -> list[Any]:
        return [SERVICES[path][0].FromString(body) for body in self.bodies[path]]

    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests("/v1/traces")
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def span_names(self) -> set[str]:
        return {span.name for span in self.spans()}

    def resource(self) -> dict[str, str]:
        attributes = self.requests("/v1/traces")[0].resource_spans[0].resource.attributes
        return {attribute.key: attribute.value.string_value for attribute in attributes}

    def metrics(self) -> list[Any]:
        return [
            metric
            for request in self.requests("/v1/metrics")
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]

    def metric_names(self) -> set[str]:
        return {metric.name for metric in self.metrics()}

    def event_names(self) -> set[str]:
        return {
            record.event_name
            for request in self.requests("/v1/logs")
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for record in scope.log_records
        }


Behaviour = Callable[[Collector, Any], None]
"""Given the collector and the handler of one HTTP request; writes the answer."""


def accept(_: Collector, request: Any) -> None:
    request.send_response(200)
    request.send_header("Content-Length", "0")
    request.end_headers()


def reject(count: int) -> Behaviour:
    """Accept the batch except for some of its items."""

    def behave(_: Collector, request: Any) -> None:
        answer = SERVICES[request.path][1]()
        for field in answer.partial_success.DESCRIPTOR.fields_by_name:
            setattr(answer.partial_success, field, MARKER if field == "error_message" else count)
        send(request, 200, answer.SerializeToString(), {"Content-Type": "application/x-protobuf"})

    return behave


def send(request: Any, status: int, body: bytes, headers: dict[str, str]) -> None:
    request.send_response(status, MARKER if status >= 300 else None)
    for name, value in headers.items():
        request.send_header(name, value)
    request.send_header("Content-Length", str(len(body)))
    request.end_headers()
    request.wfile.write(body)


def answer(status: int, **headers: str) -> Behaviour:
    """Answer with a status, and a text that quotes what it should not."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda _, request: send(request, status, MARKER.encode(), named)


def hang(collector: Collector, _: Any) -> None:
    collector.released.wait(PATIENCE)


def close(_: Collector, request: Any) -> None:
    request.close_connection = True


def die_in_headers(_: Collector, request: Any) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Le")
    request.close_connection = True


def die_in_body(_: Collector, request: Any) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + MARKER.encode())
    request.close_connection = True


def garbage(_: Collector, request: Any) -> None:
    request.wfile.write(b"\x00\xff\x16" + MARKER.encode() + b"\r\n\r\n")
    request.close_connection = True


def endless(status: int) -> Behaviour:
    """Answer with a body that does not end."""

    def behave(collector: Collector, request: Any) -> None:
        request.wfile.write(f"HTTP/1.1 {status} OK\r\nContent-Length: 1000000000000\r\n\r\n".encode())
        while not collector.released.is_set():
            request.wfile.write(b"x" * 65_536)

    return behave


def drip(start: bytes) -> Behaviour:
    """Answer a byte at a time, each soon enough to keep a reader waiting for the next."""

    def behave(collector: Collector, request: Any) -> None:
        request.wfile.write(start)
        while not collector.released.wait(0.02):
            request.wfile.write(b"x")

    return behave


@contextmanager
def collecting(behave: Behaviour = accept, tls: ssl.SSLContext | None = None) -> Iterator[Collector]:
    """Run a collector that speaks HTTP, or HTTPS as `localhost`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            collector.headers[self.path] = {name.lower(): value for name, value in self.headers.items()}
            collector.receive(self.path, self.rfile.read(int(self.headers["Content-Length"])), self.client_address)
            with suppress(OSError):  # whoever asked has gone
                collector.behave(collector, self)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            pass

    with Server(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}", behave)
        if tls is not None:
            collector.url = f"https://localhost:{server.server_port}"
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield collector
        collector.released.set()
        server.shutdown()
        thread.join()


@contextmanager
def collecting_grpc(status: str | None = None, *, hanging: bool = False) -> Iterator[Collector]:
    """Run a collector that speaks gRPC.

    Args:
        status: the name of the status it answers with; None for success.
        hanging: whether it does not answer.
    """
    import grpc

    def service(path: str) -> Any:
        _, response, name = SERVICES[path]

        def export(message: bytes, context: Any) -> Any:
            collector.receive(path, message, context.peer())
            if hanging:
                collector.released.wait(PATIENCE)
            if status is not None:
                context.abort(grpc.StatusCode[status], MARKER)
            return response()

        handler = grpc.unary_unary_rpc_method_handler(export, None, response.SerializeToString)
        return grpc.method_handlers_generic_handler(f"opentelemetry.proto.collector.{name}", {"Export": handler})

    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers(tuple(service(path) for path in SERVICES))
    collector = Collector(f"http://127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}", accept)
    server.start()
    try:
        yield collector
    finally:
        collector.released.set()
        server.stop(None).wait()


@contextmanager
def absent() -> Iterator[Collector]:
    """An absent collector: its port is bound, so that no other process gets it, but nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield Collector(f"http://127.0.0.1:{held.getsockname()[1]}", accept)


@contextmanager
def mute() -> Iterator[Collector]:
    """A collector whose connections the system accepts, but which never reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield Collector(f"http://127.0.0.1:{listening.getsockname()[1]}", accept)


def counted(spans: list[Any]) -> Counter[bytes]:
    """How often each span came."""
    return Counter(span.span_id for span in spans)


def seconds(action: Callable[[], object]) -> float:
    """How long an action takes."""
    began = time.monotonic()
    action()
    return time.monotonic() - began
