"""Test utilities: scripted models, captured telemetry, and an HTTP server that replays responses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.testing.reply import Delay as Delay
    from traced_tools.testing.reply import Fault as Fault
    from traced_tools.testing.reply import Reply as Reply
    from traced_tools.testing.reply import split as split
    from traced_tools.testing.scripted import ScriptedChatModel as ScriptedChatModel
    from traced_tools.testing.server import Received as Received
    from traced_tools.testing.server import ReplayServer as ReplayServer
    from traced_tools.testing.telemetry import CapturedTelemetry as CapturedTelemetry
    from traced_tools.testing.telemetry import capture_telemetry as capture_telemetry

_EXPORTS = {
    "Delay": "traced_tools.testing.reply",
    "Fault": "traced_tools.testing.reply",
    "Reply": "traced_tools.testing.reply",
    "split": "traced_tools.testing.reply",
    "ScriptedChatModel": "traced_tools.testing.scripted",
    "Received": "traced_tools.testing.server",
    "ReplayServer": "traced_tools.testing.server",
    "CapturedTelemetry": "traced_tools.testing.telemetry",
    "capture_telemetry": "traced_tools.testing.telemetry",
}

__all__ = [
    "CapturedTelemetry",
    "Delay",
    "Fault",
    "Received",
    "ReplayServer",
    "Reply",
    "ScriptedChatModel",
    "capture_telemetry",
    "split",
]

_MOVED = {
    "OUTCOMES": "traced_tools.demo",
    "Scenario": "traced_tools.demo",
    "check_chat_memory_repository": "traced_tools.memory",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, _MOVED)
