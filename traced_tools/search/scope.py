"""The scope of a search for tools, and what is counted of a tool search without a span."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from opentelemetry.trace import SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.content import may_capture
from traced_tools.observe.sanitize import limit_cardinality, safe_person_name
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.observe.content import Makers
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.run_telemetry import RunTelemetry
    from traced_tools.search.observation import ToolSearchObservation


class RetrievalScope(Scope):
    """One search for tools: `retrieval`."""

    content_names = names.RETRIEVAL_SPAN.content
    openinference = names.RETRIEVAL_SPAN.openinference

    def __init__(self, run: RunTelemetry, observed: ToolSearchObservation) -> None:
        self.run = run
        self._observed = observed

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        run, observed = self.run, self._observed
        attributes: Attributes = {
            names.OPERATION_NAME: names.RETRIEVAL,
            names.TOOL_SEARCH_INDEX: safe_person_name(observed.kind),
        }
        if run.conventions == "v0.1.0":
            attributes[names.RETRIEVAL_TOP_K] = observed.max_results
        else:
            attributes[names.REQUEST_TOP_K] = float(observed.max_results)
        put(attributes, names.AGENT_NAME, run.agent)
        put(attributes, names.CONVERSATION_ID, run.conversation_id)
        if observed.iteration:
            attributes[names.ITERATION_INDEX] = observed.iteration
        return names.RETRIEVAL_SPAN.name, SpanKind.INTERNAL, attributes

    def _owner(self) -> str:
        return names.RETRIEVAL_SPAN.name

    def _final_attributes(self) -> Attributes:
        observed = self._observed
        if observed.matches is None:
            return {}
        return {
            names.TOOL_SEARCH_RESULTS: len(observed.matches),
            names.TOOL_SEARCH_DISCOVERED: len(observed.discovered),
        }

    def _makers(self) -> Makers:
        return {names.RETRIEVAL_QUERY: self._query, names.RETRIEVAL_DOCUMENTS: self._documents}

    def _query(self) -> str | None:
        return self._observed.query if may_capture(self._observed.search_tool) else None

    def _documents(self) -> list[dict[str, Any]] | None:
        if self._observed.matches is None or not may_capture(self._observed.search_tool):
            return None
        return [{"id": name, "score": score} for name, score in self._observed.matches]

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        labels = _labels(self.run, self._observed.kind)
        measurements: list[Measurement] = [(instruments.tool_searches, 1, labels)]
        if self._observed.discovered:
            measurements.append((instruments.tools_discovered, len(self._observed.discovered), labels))
        return measurements


def count_discoveries(run: RunTelemetry, kind: str, discovered: int) -> None:
    """Count tools that were discovered without a search."""
    run.record(lambda instruments: [(instruments.tools_discovered, discovered, _labels(run, kind))])


def record_withheld(run: RunTelemetry, kind: str, withheld: int, tokens_saved: Callable[[], int]) -> None:
    """Record the tools that a request to a model withholds, and the tokens that this saves."""

    def measure(instruments: Instruments) -> list[Measurement]:
        labels = _labels(run, kind)
        return [(instruments.tools_withheld, withheld, labels), (instruments.tool_tokens_saved, tokens_saved(), labels)]

    run.record(measure)


def _labels(run: RunTelemetry, kind: str) -> Attributes:
    index = limit_cardinality(names.TOOL_SEARCH_INDEX, run.agent_in_metrics, safe_person_name(kind))
    return {**run.agent_label, names.TOOL_SEARCH_INDEX: index}
