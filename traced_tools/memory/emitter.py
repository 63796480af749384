"""The events of conversation memory; see `observe/typed_events/dispatch.py` for where their types are imported."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traced_tools.memory.observation import CompactionObservation, MemoryObservation
    from traced_tools.observe.typed_events.dispatch import RunEventDispatcher


class MemoryEventEmitter:
    """Emits the events of reading a conversation and of appending to it."""

    __slots__ = ("_events", "_observed")

    def __init__(self, events: RunEventDispatcher, observed: MemoryObservation) -> None:
        self._events = events
        self._observed = observed

    def began(self) -> None:
        """Emit nothing: only what was read or stored has an event."""

    def read(self) -> None:
        """Emit how many messages were read."""
        from traced_tools.observe.typed_events.types import MemoryRead

        observed = self._observed
        fields = {"messages": observed.messages_read, "left_out": observed.messages_left_out}
        self._events.dispatch(MemoryRead, observed.iteration, fields)

    def stored(self) -> None:
        """Emit how many messages were appended."""
        from traced_tools.observe.typed_events.types import MemoryStored

        self._events.dispatch(MemoryStored, self._observed.iteration, {"messages": self._observed.messages_stored})

    def ended(self) -> None:
        """Emit nothing."""


class CompactionEventEmitter:
    """Emits the event of a compaction."""

    __slots__ = ("_events", "_observed")

    def __init__(self, events: RunEventDispatcher, observed: CompactionObservation) -> None:
        self._events = events
        self._observed = observed

    def began(self) -> None:
        """Emit nothing: only a conversation that was compacted has an event."""

    def compacted(self) -> None:
        """Emit the entries that are no longer sent to the model."""
        from traced_tools.observe.typed_events.types import MemoryCompacted

        observed = self._observed
        fields = {
            "entry_id": observed.entry_id,
            "trigger": observed.trigger,
            "strategy": observed.strategy,
            "covered": observed.covered,
            "through": observed.through,
            "branch": observed.branch,
            "tokens_before": observed.tokens_before,
            "tokens_after": observed.tokens_after,
            "estimated": observed.estimated,
        }
        self._events.dispatch(MemoryCompacted, observed.iteration, fields)

    def ended(self) -> None:
        """Emit nothing."""
