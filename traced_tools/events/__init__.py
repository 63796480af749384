"""Typed events of a run, for advisors that watch it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.events.types import Delta as Delta
    from traced_tools.events.types import Event as Event
    from traced_tools.events.types import TextDelta as TextDelta
    from traced_tools.events.types import ToolArgumentsDelta as ToolArgumentsDelta

_EXPORTS = {
    "Delta": "traced_tools.events.types",
    "Event": "traced_tools.events.types",
    "TextDelta": "traced_tools.events.types",
    "ToolArgumentsDelta": "traced_tools.events.types",
}

__all__ = ["Delta", "Event", "TextDelta", "ToolArgumentsDelta"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
