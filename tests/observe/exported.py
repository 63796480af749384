"""Every byte that leaves a run: what each exporter would send or print, log lines, and unhandled errors."""

from __future__ import annotations

import asyncio
import base64
import gc
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from io import StringIO
from typing import Any, Self

import pytest
from opentelemetry.exporter.otlp.proto.common._internal._log_encoder import encode_logs
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk._logs.export import ConsoleLogRecordExporter
from opentelemetry.sdk.metrics.export import ConsoleMetricExporter
from opentelemetry.sdk.trace.export import ConsoleSpanExporter
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import ASYNC_MODES, arun
from tests.modes import run as run_blocking
from tests.waiting import patiently
from traced_tools import ChatClientRequestSpec
from traced_tools.observe.span_tree import build_trees, render_text
from traced_tools.otel.console import ConsoleProcessor
from traced_tools.otel.prometheus import PrometheusCollector, PrometheusReader


def spellings(text: str) -> list[bytes]:
    """The encodings in which an exporter could contain `text`, in lower case except base64."""
    low = text.lower()
    plain = [low.encode(each) for each in ("utf-8", "utf-16-le", "utf-16-be", "utf-32-le")]
    written = [repr(plain[1])[2:-1], "".join(f"\\u{ord(each):04x}" for each in text), text.encode().hex()]
    return [*plain, *(each.encode() for each in written)]


def in_base64(text: str) -> list[bytes]:
    """What of `text` is the same in base64 whatever stands before and after it, for each way it can be cut."""
    found = []
    for skipped, first in ((0, 0), (1, 2), (2, 3)):
        raw = bytes(skipped) + text.encode()
        found.append(base64.b64encode(raw)[first : len(raw) * 8 // 6])
    return [*found, *(each.replace(b"+", b"-").replace(b"/", b"_") for each in found)]


class Search:
    """Finds a text in bytes, however it is spelled."""

    def __init__(self, text: str) -> None:
        self._spelled, self._encoded = spellings(text), in_base64(text)

    def __call__(self, data: bytes) -> bool:
        low = data.lower()
        return any(each in low for each in self._spelled) or any(each in data for each in self._encoded)


holds_marker = Search(MARKER)


class Wiretap:
    """Records all output of a run: telemetry of every exporter, Python logs at DEBUG, and uncaught exceptions.

    Attributes:
        telemetry: what the run is given.
        complaints: errors of event loops, threads and finalizers that went unhandled, and warnings.
    """

    def __init__(self, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str], **options: Any) -> None:
        self._prometheus = PrometheusReader()
        self.telemetry = Telemetry(readers=[self._prometheus], cumulative=True, **options)
        self.telemetry.tracer_provider.add_span_processor(ConsoleProcessor())
        self.complaints: list[str] = []
        self._caplog, self._capsys = caplog, capsys
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> Self:
        self._caplog.set_level(logging.DEBUG)
        for module, hook in ((threading, "excepthook"), (sys, "unraisablehook")):
            self._patch.setattr(module, hook, self._complain)
        self._warnings = warnings.catch_warnings()
        self._warnings.__enter__()
        warnings.simplefilter("always")
        self._patch.setattr(warnings, "showwarning", self._complain)
        return self

    def __exit__(self, *error: Any) -> None:
        self._patch.undo()
        self._warnings.__exit__(*error)

    def _complain(self, *said: Any) -> None:
        self.complaints.append(everything(said))

    def run(self, spec: ChatClientRequestSpec, mode: str) -> Any:
        """Run `spec`, on asyncio with an exception handler of the loop's own."""
        if mode not in ASYNC_MODES:
            return run_blocking(mode, spec)
        with asyncio.Runner() as runner:
            runner.get_loop().set_exception_handler(self._complain)
            return runner.run(patiently(arun(mode, spec)))

    def check(self) -> None:
        """Assert that no error was logged and that the marker is nowhere."""
        assert found_in(self.exported(), holds_marker) == []

    def exported(self) -> dict[str, bytes]:
        """All exported bytes, by signal and encoder; asserts that no error was logged."""
        gc.collect(1)  # some complain only when they are collected
        assert self.complaints == []
        exported = dict(self._exported())
        assert all(data for where, data in exported.items() if where.startswith(("spans", "metrics", "printed")))
        return exported

    def _exported(self) -> Iterator[tuple[str, bytes]]:
        yield from exported_by(self.telemetry)
        registry = CollectorRegistry()
        registry.register(PrometheusCollector(self._prometheus))
        yield "metrics: Prometheus text", generate_latest(registry)
        yield "metrics: OpenMetrics", generate_openmetrics(registry)
        yield "logging", self._caplog.text.encode()
        for number, record in enumerate(self._caplog.records):
            parts = [record.getMessage(), record.exc_text or "", dict(record.__dict__)]
            yield f"logging: record {number}", everything(parts).encode()
        printed = self._capsys.readouterr()
        yield "printed", (printed.out + printed.err).encode()


def found_in(exported: dict[str, bytes], search: Search) -> list[str]:
    """The places that contain the searched text."""
    return [where for where, data in exported.items() if search(data)]


def exported_by(telemetry: Telemetry) -> Iterator[tuple[str, bytes]]:
    """What each exporter makes of the spans, metrics and events, by the exporter's name."""
    spans, logs = telemetry.spans, telemetry.records
    data = telemetry.metrics_data()
    yield "spans: console", on_console(ConsoleSpanExporter, spans)
    yield "metrics: console", on_console(ConsoleMetricExporter, data)
    yield "events: console", on_console(ConsoleLogRecordExporter, logs)
    yield "spans: OTLP", encode_spans(spans).SerializeToString()
    yield "metrics: OTLP", encode_metrics(data).SerializeToString()
    yield "events: OTLP", encode_logs(logs).SerializeToString()
    yield "trees", "".join(render_text(tree) for tree in build_trees(spans)).encode()
    for span in spans:
        parts = [span.name, dict(span.attributes or {}), span.events, span.status.description, span]
        yield f"spans: {span.name}", everything(parts).encode()
    for event in telemetry.events:
        yield f"events: {event.name}", everything([event.name, event.attributes, event]).encode()
    yield "metrics: repr", repr(data).encode()


def on_console(kind: Any, what: object) -> bytes:
    """What one of the SDK's console exporters prints, without its indentation, which takes most of the time."""
    out = StringIO()
    kind(out=out, formatter=lambda each: each.to_json(indent=None)).export(what)
    return out.getvalue().encode()
