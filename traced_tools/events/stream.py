"""Where the events of a run are made and numbered."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from opentelemetry import trace

from traced_tools._ids import time_ordered_id
from traced_tools.events.types import Event, TextDelta, ToolArgumentsDelta

if TYPE_CHECKING:
    from traced_tools.models.base import ChatChunk


class RunEvents:
    """Makes the events of one run.

    Args:
        run_id: the run's id.
        agent: the client's name.
        conversation_id: the caller's conversation, when it gave one.
    """

    __slots__ = ("_deltas", "_identity", "_sequence")

    def __init__(self, run_id: str, agent: str, conversation_id: str | None) -> None:
        self._identity = {"run_id": run_id, "agent": agent, "conversation_id": conversation_id}
        self._sequence = 0
        self._deltas = 0

    def deltas(self, chunk: ChatChunk, iteration: int) -> Iterator[Event]:
        """Give the events a chunk stands for; its calls have ids."""
        if text := chunk.visible_text:
            yield TextDelta(text=text, **self._delta(iteration))
        for call in chunk.calls():
            yield ToolArgumentsDelta(
                call_id=call.id or "", tool_name=call.name, arguments=call.arguments, **self._delta(iteration)
            )

    def _delta(self, iteration: int) -> dict[str, Any]:
        fields = {**self._event(iteration), "sequence": self._sequence, "delta_index": self._deltas}
        self._deltas += 1
        return fields

    def _event(self, iteration: int) -> dict[str, Any]:
        fields = {**self._identity, "id": time_ordered_id(), "time": datetime.now(UTC), "iteration": iteration}
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            fields["trace_id"] = trace.format_trace_id(span.trace_id)
            fields["span_id"] = trace.format_span_id(span.span_id)
        return fields
