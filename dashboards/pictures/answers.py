"""What a panel shows: its queries, answered as Grafana would ask them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Protocol

from dashboards.panels import Column, Instant, LogMetric, Logs, Panel, Range, SpanMetric, Spans, Table
from dashboards.pictures.traces import EndedSpan, UnknownQuery, matching

Labels = Mapping[str, str]
Points = list[tuple[float, float]]
Row = dict[str, str | float]
"""The values of a table's row by field."""
_VARIABLE: Final = re.compile(r"\$\{?(\w+)(?::\w+)?\}?")
_LABEL: Final = re.compile(r"{{\s*(\w+)\s*}}")
REFS: Final = "ABCDEFGH"


class Source(Protocol):
    """Answers PromQL, and has spans."""

    def over_time(self, query: str, start: float, end: float, step: float) -> list[tuple[Labels, Points]]:
        """Return the labels and points of each series of a range query."""

    def at(self, query: str, time: float) -> list[tuple[Labels, float]]:
        """Return the labels and the value of each series of an instant query."""

    def spans(self) -> Sequence[EndedSpan]:
        """Return the spans that ended."""


@dataclass(frozen=True)
class Period:
    """A time range, and how densely it is asked.

    Attributes:
        start: its beginning as Unix time.
        end: its end.
        step: the seconds between two points.
        rate_interval: the seconds of `$__rate_interval`.
        chosen: the values of the variables that a reader has to write.
    """

    start: float
    end: float
    step: float
    rate_interval: float
    chosen: Mapping[str, str] = field(default_factory=dict)

    def resolve(self, query: str) -> str:
        """Return a query with values for its variables: the chosen ones, else all."""
        known = {
            **self.chosen,
            "__rate_interval": f"{self.rate_interval:.0f}s",
            "__interval": f"{self.step:.0f}s",
            "__range": f"{self.end - self.start:.0f}s",
        }
        return _VARIABLE.sub(lambda found: known.get(found[1], ".*"), query)


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        name: its name in the legend.
        labels: its labels.
        points: times and values; values that are no number are left out.
    """

    name: str
    labels: Labels
    points: Points

    @property
    def last(self) -> float:
        """The newest value."""
        return self.points[-1][1]


def needs(panel: Panel) -> str:
    """Return the data source that a panel needs besides Prometheus; empty if it needs none."""
    for query in panel.queries:
        if isinstance(query, Spans | SpanMetric):
            return "Tempo"
        if isinstance(query, Logs | LogMetric):
            return "Loki"
    return ""


def series(panel: Panel, source: Source, period: Period) -> list[Series]:
    """Return the lines of a panel. A query at the end of the time range gives a line of one point."""
    found = []
    for query in panel.queries:
        match query:
            case Range():
                answer = source.over_time(period.resolve(query.text), period.start, period.end, period.step)
            case Instant():
                answer = [
                    (labels, [(period.end, value)])
                    for labels, value in source.at(period.resolve(query.text), period.end)
                ]
            case _:
                continue
        for labels, points in answer:
            numbers = [(time, value) for time, value in points if math.isfinite(value)]
            if numbers:
                found.append(Series(_name(query.legend, labels), labels, numbers))
    return found


def table(panel: Table, source: Source, period: Period) -> tuple[dict[str, Column], list[Row]]:
    """Return the columns and rows of a table; no rows if only another data source can answer."""
    if isinstance(first := panel.queries[0], Spans):
        return _of_spans(period.resolve(first.text), source.spans())
    merged: dict[frozenset[tuple[str, str]], Row] = {}
    for ref, query in zip(REFS, panel.queries, strict=False):
        if isinstance(query, Instant):
            name = "Value" if len(panel.queries) == 1 else f"Value #{ref}"
            for labels, value in source.at(period.resolve(query.text), period.end):
                # rows of several queries that have the same labels are one row
                merged.setdefault(frozenset(labels.items()), {**labels})[name] = value
    rows = list(merged.values())
    return {**(panel.columns or {name: Column(name, panel.unit) for row in rows for name in row})}, rows


def _of_spans(query: str, spans: Sequence[EndedSpan]) -> tuple[dict[str, Column], list[Row]]:
    try:
        found, selected = matching(query, spans)
    except UnknownQuery:
        return {}, []
    columns = {
        "Trace": Column("Trace", link="/explore"),
        "Start time": Column("Start time"),
        "Name": Column("Name"),
        **{name: Column(_short(name), "none") for name in selected},
        "Duration": Column("Duration", "s"),
    }
    rows: list[Row] = []
    for span in found:
        shown = {name: span.attributes[name] for name in selected if name in span.attributes}
        texts = {name: ", ".join(value) if isinstance(value, tuple) else value for name, value in shown.items()}
        start = datetime.fromtimestamp(span.start, UTC).strftime("%H:%M:%S")
        own: Row = {"Trace": span.trace_id[:8], "Start time": start, "Name": span.name, "Duration": span.seconds}
        rows.append({**own, **texts})
    return columns, rows


def _short(attribute: str) -> str:
    """Return the end of an attribute's name, of which a column has room."""
    *_, owner, last = attribute.split(".")
    return f"{owner}.{last}" if len(last) < 6 else last


def _name(legend: str, labels: Labels) -> str:
    return _LABEL.sub(lambda found: labels.get(found[1], ""), legend).strip()
