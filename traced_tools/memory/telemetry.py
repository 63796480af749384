"""Creates the observations of what a memory does, and connects them with their sinks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.memory.emitter import CompactionEventEmitter, MemoryEventEmitter
from traced_tools.memory.observation import CompactionObservation, MemoryObservation
from traced_tools.memory.scope import CompactionScope, MemoryScope, count_memory_failure
from traced_tools.observe.off import OFF

if TYPE_CHECKING:
    from traced_tools.core.enums import MemoryOperation
    from traced_tools.observe.observations import ObservedRun


def observe_memory(run: ObservedRun, operation: MemoryOperation, iteration: int) -> MemoryObservation:
    """Return the observation of one operation of conversation memory.

    Args:
        run: the run.
        operation: `search_memory` for what the model is sent of the conversation and for what is looked up in it;
            `upsert_memory` for appending to it.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
    """
    telemetry, events = run.telemetry, run.events
    observed: MemoryObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = MemoryObservation(operation, iteration)
        observed.report_to(
            MemoryScope(telemetry, observed) if telemetry.enabled else OFF,
            MemoryEventEmitter(events, observed) if events.wanted else OFF,
        )
    return observed


def observe_compaction(run: ObservedRun, trigger: str, iteration: int) -> CompactionObservation:
    """Return the observation of one attempt to compact the conversation.

    Args:
        run: the run.
        trigger: the name of what caused it, which is set in code.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
    """
    telemetry, events = run.telemetry, run.events
    observed: CompactionObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = CompactionObservation(trigger, iteration)
        observed.report_to(
            CompactionScope(telemetry, observed) if telemetry.enabled else OFF,
            CompactionEventEmitter(events, observed) if events.wanted else OFF,
        )
    return observed


def memory_failed(run: ObservedRun, operation: MemoryOperation, error: BaseException) -> None:
    """Report that an operation of conversation memory failed with `error` and that the run goes on without it."""
    if run.telemetry.enabled:
        count_memory_failure(run.telemetry, operation, error)
