"""Creates the observation of a search for tools, connects it with its sinks, and reports what searches save."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe.off import OFF
from traced_tools.search.observation import ToolSearchObservation
from traced_tools.search.scope import RetrievalScope, count_discoveries, record_withheld

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from traced_tools.core.tool_definition import ToolCallback
    from traced_tools.observe.observations import ObservedRun
    from traced_tools.observe.typed_events.dispatch import RunEventDispatcher


def observe_tool_search(
    run: ObservedRun, kind: str, query: str, max_results: int, iteration: int, search_tool: ToolCallback
) -> ToolSearchObservation:
    """Return the observation of one search for tools; the arguments are those of `ToolSearchObservation`."""
    telemetry, events = run.telemetry, run.events
    observed: ToolSearchObservation = OFF
    if telemetry.enabled or events.wanted:
        observed = ToolSearchObservation(kind, query, max_results, iteration, search_tool)
        observed.report_to(
            RetrievalScope(telemetry, observed) if telemetry.enabled else OFF,
            _ToolSearchEventEmitter(events, observed) if events.wanted else OFF,
        )
    return observed


def observe_discovery(run: ObservedRun, kind: str, tools: Sequence[str], iteration: int) -> None:
    """Report that the model has called tools that no search had found, which are offered from now on.

    Args:
        run: the run.
        kind: the kind of the tool index.
        tools: the names of the tools.
        iteration: the iteration of the loop.
    """
    if run.telemetry.enabled:
        count_discoveries(run.telemetry, kind, len(tools))
    if run.events.wanted:
        _emit_discovery(run.events, kind, tools, iteration, searched=False)


def observe_withheld_tools(run: ObservedRun, kind: str, withheld: int, tokens_saved: Callable[[], int]) -> None:
    """Report how many tools a tool search withholds from a request to a model.

    Args:
        run: the run.
        kind: the kind of the tool index.
        withheld: how many tools the model is not offered.
        tokens_saved: returns an estimate of the tokens that this saves; called only if it is recorded.
    """
    if run.telemetry.enabled:
        record_withheld(run.telemetry, kind, withheld, tokens_saved)


class _ToolSearchEventEmitter:
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
            _emit_discovery(self._events, observed.kind, observed.discovered, observed.iteration, searched=True)

    def ended(self) -> None:
        """Emit nothing."""


def _emit_discovery(
    events: RunEventDispatcher, kind: str, tools: Sequence[str], iteration: int, *, searched: bool
) -> None:
    """Emit that tools were discovered, by a search or because the model called them."""
    from traced_tools.observe.typed_events.types import ToolsDiscovered  # few runs have listeners

    events.dispatch(ToolsDiscovered, iteration, {"tools": tuple(tools), "index": kind, "searched": searched})
