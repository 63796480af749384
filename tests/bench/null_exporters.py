"""Exporters that drop what they get, so that only what the caller's thread pays is measured."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk._logs.export import LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult


class NullExporter(SpanExporter):
    """Drops spans."""

    def export(self, spans: Any) -> SpanExportResult:
        """Drop `spans`."""
        return SpanExportResult.SUCCESS


class NullLogExporter(LogRecordExporter):
    """Drops log records."""

    def export(self, batch: Any) -> LogRecordExportResult:
        """Drop `batch`."""
        return LogRecordExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Do nothing."""
        return True
