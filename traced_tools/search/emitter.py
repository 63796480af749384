"""The event of tools that were discovered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from traced_tools.observe.typed_events.types import ToolsDiscovered

if TYPE_CHECKING:
    from traced_tools.observe.typed_events.dispatch import RunEventDispatcher
    from traced_tools.search.observation import ToolSearchObservation


class ToolSearchEventEmitter:
    """Emits the event of a search that discovers tools."""

    __slots__ = ("_events", "_observed")

    def __init__(self, events: RunEventDispatcher, observed: ToolSearchObservation) -> None:
        self._events = events
        self._observed = observed

    def began(self) -> None:
        """Emit nothing: the call of the search tool has its own events."""

    def found(self) -> None:
        """Emit which tools were discovered, if any were."""
        observed = self._observed
        if observed.discovered:
            emit_discovery(self._events, observed.kind, observed.discovered, observed.iteration, searched=True)

    def ended(self) -> None:
        """Emit nothing."""


def emit_discovery(
    events: RunEventDispatcher, kind: str, tools: Sequence[str], iteration: int, *, searched: bool
) -> None:
    """Emit that tools were discovered, by a search or because the model called them."""
    events.dispatch(ToolsDiscovered, iteration, {"tools": tuple(tools), "index": kind, "searched": searched})
