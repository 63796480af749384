"""The viewer of development mode: the only place that gets contents while it is set.

While a viewer is set, spans, log-based events, typed events and logs carry no contents, whatever clients say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from opentelemetry.trace import SpanContext

if TYPE_CHECKING:
    from traced_tools.observe.attributes import Attributes
    from traced_tools.observe.typed_events.types import Event


class Viewer(Protocol):
    """Shows the events and the contents of runs in this process. Its methods raise nothing."""

    def receive(self, event: Event) -> None:
        """Show an event, which has no contents."""

    def keep(self, span: SpanContext, contents: Attributes) -> None:
        """Keep the contents of a span that is about to end."""


_viewer: Viewer | None = None


def current_viewer() -> Viewer | None:
    """Return the viewer of the process; None outside development mode."""
    return _viewer


def set_viewer(viewer: Viewer | None) -> None:
    """Set the viewer of the process; None ends development mode."""
    global _viewer
    _viewer = viewer
