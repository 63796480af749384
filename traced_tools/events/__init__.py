"""Typed events of a run, and exporters that send them to files, servers, consoles and subscribers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.events.exporter import EventExporter as EventExporter
    from traced_tools.events.exporter import ExportFailed as ExportFailed
    from traced_tools.events.exporters.console import ConsoleEventExporter as ConsoleEventExporter
    from traced_tools.events.exporters.feed import EventFeed as EventFeed
    from traced_tools.events.exporters.feed import Subscription as Subscription
    from traced_tools.events.exporters.jsonl import JsonLinesExporter as JsonLinesExporter
    from traced_tools.events.exporters.otlp import OtlpEventExporter as OtlpEventExporter
    from traced_tools.events.exporters.webhook import WebhookExporter as WebhookExporter
    from traced_tools.events.schema import json_schema as json_schema
    from traced_tools.observe.typed_events.types import AnswerEvaluated as AnswerEvaluated
    from traced_tools.observe.typed_events.types import Delta as Delta
    from traced_tools.observe.typed_events.types import Event as Event
    from traced_tools.observe.typed_events.types import IterationFinished as IterationFinished
    from traced_tools.observe.typed_events.types import IterationStarted as IterationStarted
    from traced_tools.observe.typed_events.types import MemoryCompacted as MemoryCompacted
    from traced_tools.observe.typed_events.types import MemoryRead as MemoryRead
    from traced_tools.observe.typed_events.types import MemoryStored as MemoryStored
    from traced_tools.observe.typed_events.types import MissingResultsAnswered as MissingResultsAnswered
    from traced_tools.observe.typed_events.types import ModelResponded as ModelResponded
    from traced_tools.observe.typed_events.types import RunFinished as RunFinished
    from traced_tools.observe.typed_events.types import RunStarted as RunStarted
    from traced_tools.observe.typed_events.types import TextDelta as TextDelta
    from traced_tools.observe.typed_events.types import ToolArgumentsDelta as ToolArgumentsDelta
    from traced_tools.observe.typed_events.types import ToolDecided as ToolDecided
    from traced_tools.observe.typed_events.types import ToolEvent as ToolEvent
    from traced_tools.observe.typed_events.types import ToolFinished as ToolFinished
    from traced_tools.observe.typed_events.types import ToolIntended as ToolIntended
    from traced_tools.observe.typed_events.types import ToolProgressed as ToolProgressed
    from traced_tools.observe.typed_events.types import ToolsChanged as ToolsChanged
    from traced_tools.observe.typed_events.types import ToolsDiscovered as ToolsDiscovered
    from traced_tools.observe.typed_events.types import ToolStarted as ToolStarted

_EXPORTS = {
    "AnswerEvaluated": "traced_tools.observe.typed_events.types",
    "ConsoleEventExporter": "traced_tools.events.exporters.console",
    "Delta": "traced_tools.observe.typed_events.types",
    "Event": "traced_tools.observe.typed_events.types",
    "EventExporter": "traced_tools.events.exporter",
    "EventFeed": "traced_tools.events.exporters.feed",
    "ExportFailed": "traced_tools.events.exporter",
    "IterationFinished": "traced_tools.observe.typed_events.types",
    "IterationStarted": "traced_tools.observe.typed_events.types",
    "JsonLinesExporter": "traced_tools.events.exporters.jsonl",
    "MemoryCompacted": "traced_tools.observe.typed_events.types",
    "MemoryRead": "traced_tools.observe.typed_events.types",
    "MemoryStored": "traced_tools.observe.typed_events.types",
    "MissingResultsAnswered": "traced_tools.observe.typed_events.types",
    "ModelResponded": "traced_tools.observe.typed_events.types",
    "OtlpEventExporter": "traced_tools.events.exporters.otlp",
    "RunFinished": "traced_tools.observe.typed_events.types",
    "RunStarted": "traced_tools.observe.typed_events.types",
    "Subscription": "traced_tools.events.exporters.feed",
    "TextDelta": "traced_tools.observe.typed_events.types",
    "ToolArgumentsDelta": "traced_tools.observe.typed_events.types",
    "ToolDecided": "traced_tools.observe.typed_events.types",
    "ToolEvent": "traced_tools.observe.typed_events.types",
    "ToolFinished": "traced_tools.observe.typed_events.types",
    "ToolIntended": "traced_tools.observe.typed_events.types",
    "ToolProgressed": "traced_tools.observe.typed_events.types",
    "ToolStarted": "traced_tools.observe.typed_events.types",
    "ToolsChanged": "traced_tools.observe.typed_events.types",
    "ToolsDiscovered": "traced_tools.observe.typed_events.types",
    "WebhookExporter": "traced_tools.events.exporters.webhook",
    "json_schema": "traced_tools.events.schema",
}

__all__ = [
    "AnswerEvaluated",
    "ConsoleEventExporter",
    "Delta",
    "Event",
    "EventExporter",
    "EventFeed",
    "ExportFailed",
    "IterationFinished",
    "IterationStarted",
    "JsonLinesExporter",
    "MemoryCompacted",
    "MemoryRead",
    "MemoryStored",
    "MissingResultsAnswered",
    "ModelResponded",
    "OtlpEventExporter",
    "RunFinished",
    "RunStarted",
    "Subscription",
    "TextDelta",
    "ToolArgumentsDelta",
    "ToolDecided",
    "ToolEvent",
    "ToolFinished",
    "ToolIntended",
    "ToolProgressed",
    "ToolStarted",
    "ToolsChanged",
    "ToolsDiscovered",
    "WebhookExporter",
    "json_schema",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
