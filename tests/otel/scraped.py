"""Metrics as Prometheus scrapes them, and a sample run."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.view import View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.samples import Sample

from tests.markers import MARKER
from traced_tools.client import ChatClient
from traced_tools.core.messages import ToolCall, Usage
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader, PrometheusServer
from traced_tools.testing.scripted import ScriptedChatModel

OPENMETRICS = "application/openmetrics-text"


class Exposed:
    """Providers whose metrics are exposed; `serve` starts the server."""

    def __init__(self, *views: View) -> None:
        resource = Resource({"service.name": "checkout", "cloud.region": "here"})
        self.exporter = InMemorySpanExporter()
        self.tracer_provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self.tracer_provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = PrometheusReader()
        self.collector = PrometheusCollector(self.reader)
        self.meter_provider = MeterProvider([self.reader], resource, shutdown_on_exit=False, views=views)
        self.meter = self.meter_provider.get_meter("a scope", "1.0")
        self.registry = CollectorRegistry(support_collectors_without_names=True)
        self.registry.register(self.collector)
        self.options = TelemetryOptions(self.tracer_provider, self.meter_provider)

    def close(self) -> None:
        self.tracer_provider.shutdown()
        self.meter_provider.shutdown()

    def text(self, accept: str = OPENMETRICS) -> str:
        """Return what a scraper would be given."""
        encode, _ = choose_encoder(accept)
        return encode(self.registry).decode()

    @contextmanager
    def serve(self) -> Iterator[PrometheusServer]:
        """Listen on a loopback port."""
        server = PrometheusServer(self.collector, "127.0.0.1", [0])
        try:
            yield server
        finally:
            server.stop()

    def samples(self, name: str) -> list[Sample]:
        """Return the samples of one name."""
        families = parse_openmetrics(self.text())
        return [sample for family in families for sample in family.samples if sample.name == name]

    def spans(self) -> dict[int, ReadableSpan]:
        return {span.get_span_context().span_id: span for span in self.exporter.get_finished_spans()}


def get(server: PrometheusServer, accept: str = OPENMETRICS, query: str = "") -> tuple[str, str]:
    """Scrape over HTTP; return the content type and the text."""
    request = urllib.request.Request(f"http://{server.address}/metrics{query}", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def fail(text: str) -> str:
    """Fail."""
    raise ValueError(f"{MARKER} {text}")


def run(options: TelemetryOptions) -> None:
    """A run with a failing and an unknown tool, and with secrets everywhere."""
    asked = [ToolCall(name="fail", arguments={"text": MARKER}), ToolCall(name=MARKER, arguments={"x": MARKER})]
    model = ScriptedChatModel([asked, MARKER], usage=Usage(input_tokens=812, output_tokens=93))
    client = ChatClient(model, tools=[fail], telemetry=options)
    client.prompt(MARKER, conversation_id=MARKER).call()


def only(samples: list[Sample]) -> Sample:
    (sample,) = samples
    return sample
