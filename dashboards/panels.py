"""The nouns of a board: panels with their queries, the sections they stand in, variables and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, Literal

from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name, prometheus_name

TAG: Final = "traced-tools"
"""The tag of all boards, by which their menu finds them."""
WIDTH: Final = 24
"""The columns of Grafana's grid."""

Unit = Literal[
    "short", "locale", "s", "percentunit", "reqps", "currencyUSD", "bytes", "ops", "none", "dateTimeFromNow", "bool"
]
"""Grafana's identifiers of units: `locale` for counts, which are shown as whole numbers, `short` for large numbers.

Tokens have no unit: use `short`, and say tokens in the title.
"""


# Queries.


@dataclass(frozen=True)
class Range:
    """A PromQL query over the board's time range.

    Attributes:
        text: the expression.
        legend: the name of each series; `{{label}}` is a placeholder.
        exemplars: whether to draw exemplars, which open a trace.
    """

    text: str
    legend: str
    exemplars: bool = False


@dataclass(frozen=True)
class Instant:
    """A PromQL query at the end of the board's time range."""

    text: str
    legend: str = ""


@dataclass(frozen=True)
class Logs:
    """A LogQL query for log records.

    Attributes:
        text: the expression.
        limit: the most records that are shown, the newest ones.
    """

    text: str
    limit: int = 50


@dataclass(frozen=True)
class LogMetric:
    """A LogQL query for numbers at the end of the board's time range."""

    text: str
    legend: str = ""


@dataclass(frozen=True)
class Spans:
    """A TraceQL query for spans. Tempo returns the first that it finds, which need not be the newest.

    Attributes:
        text: the expression.
        per_trace: the most spans of a trace that are shown. By default, Tempo returns at most 100.
    """

    text: str
    per_trace: int = 3


@dataclass(frozen=True)
class SpanMetric:
    """A TraceQL query for numbers over the board's time range."""

    text: str
    legend: str


Query = Range | Instant | Logs | LogMetric | Spans | SpanMetric


# Panels.


@dataclass(frozen=True)
class Threshold:
    """The value from which a panel is drawn in another color.

    Attributes:
        value: the value; it comes from an objective or a limit that a rule uses, too.
        color: the color from there on.
        below: the color under it.
    """

    value: float
    color: str = "red"
    below: str = "green"


@dataclass(frozen=True)
class Link:
    """A link from a panel.

    Attributes:
        title: what the reader finds there.
        url: where; it may contain variables.
    """

    title: str
    url: str


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel.

    Attributes:
        id: identifies the panel on its board. Alerts link to it, so it never changes.
        title: what is drawn.
        question: the question that the panel answers.
        reading: how to read the panel, and what to do about it.
        queries: what is drawn.
        empty: what to do so that the panel has data. Grafana shows it instead of "No data".
        unit: the unit of the values.
        width: columns of the grid, of 24.
        height: rows of the grid.
        threshold: the value from which the panel changes its color.
        links: links to other boards and to traces.
    """

    kind: ClassVar[str]

    id: int
    title: str
    question: str
    queries: tuple[Query, ...]
    empty: str
    reading: str = ""
    unit: Unit = "short"
    width: int = 12
    height: int = 8
    threshold: Threshold | None = None
    links: tuple[Link, ...] = ()

    @property
    def description(self) -> str:
        """The text behind the panel's information sign."""
        return f"{self.question} {self.reading}".strip()


@dataclass(frozen=True, kw_only=True)
class TimeSeries(Panel):
    """Lines over time.

    Attributes:
        stacked: whether the values add up to a whole.
        colors: Grafana's color for some series by their names; the others get one of its palette.
    """

    kind = "timeseries"
    stacked: bool = False
    colors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Stat(Panel):
    """One large number for each series.

    Attributes:
        values: texts that are shown instead of values, such as `broken` instead of 0.
    """

    kind = "stat"
    unit: Unit = "locale"
    width: int = 6
    height: int = 4
    values: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Heatmap(Panel):
    """How the values of a histogram are distributed over time."""

    kind = "heatmap"


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        heading: its heading.
        unit: the unit of its values.
        link: the URL that its values open; `${__value.raw}` is the value.
    """

    heading: str
    unit: Unit = "locale"
    link: str | None = None


@dataclass(frozen=True, kw_only=True)
class Table(Panel):
    """A table.

    Attributes:
        columns: the columns by field, in their order. The value of query A is the field `Value #A`, or `Value` if it is
            the only query. The attributes of a log record are its fields. Fields that are not listed are hidden. If
            there are no columns, all fields are shown.
        sort: the field by which rows are sorted, the largest first. A field of spans is `Duration`, or an attribute.
    """

    kind = "table"
    columns: Mapping[str, Column] | None = None
    sort: str | None = None


@dataclass(frozen=True, kw_only=True)
class LogList(Panel):
    """Log records, the newest first."""

    kind = "logs"
    unit: Unit = "none"


# Boards.


@dataclass(frozen=True)
class Annotation:
    """A mark on the time axis of all boards, by a PromQL query.

    Attributes:
        title: what is marked.
        text: the expression; there is a mark wherever it has a value.
        legend: the text of a mark.
        color: the color of the marks.
    """

    title: str
    text: str
    legend: str
    color: str


FIRING_ALERTS: Final = 'ALERTS{alertstate="firing", severity=~"page|ticket", source="traced_tools"}'
"""The alerts of `dashboards/rules` that somebody has to look at."""
_RUNS: Final = f'{prometheus_name(names.LOOP_ITERATIONS_METRIC)}_count{{job=~"$job"}}'
_VERSION: Final = ", ".join(("job", label_name(names.AGENT_NAME), label_name(names.AGENT_VERSION)))
ANNOTATIONS: Final = (
    Annotation(
        "New versions",
        'count by (job, service_version) (target_info{job=~"$job"}) '
        'unless count by (job, service_version) (target_info{job=~"$job"} offset 5m)',
        "{{job}} {{service_version}}",
        "blue",
    ),
    Annotation(
        "New agent versions",
        f"count by ({_VERSION}) ({_RUNS}) unless count by ({_VERSION}) ({_RUNS} offset 5m)",
        f"{{{{{label_name(names.AGENT_NAME)}}}}} {{{{{label_name(names.AGENT_VERSION)}}}}}",
        "purple",
    ),
    Annotation("Alerts", FIRING_ALERTS, "{{alertname}}", "red"),
)


@dataclass(frozen=True)
class Variable:
    """A variable that a reader chooses values of.

    Attributes:
        name: the variable's name.
        title: what the reader sees.
        query: a query of Grafana's Prometheus data source for its values; None if the reader writes the value.
    """

    name: str
    title: str
    query: str | None


@dataclass(frozen=True)
class Section:
    """A tab of a board; in the classic schema, a row."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, kw_only=True)
class Board:
    """A dashboard.

    Attributes:
        uid: its stable id, which is its file's name and a part of its URL.
        title: its title.
        question: the question that it answers, for the list of boards.
        sections: its panels.
        variables: its variables, after those of the data sources.
        span: the time range at first, such as `now-6h`.
        refresh: how often it is loaded again; empty for never.
        timezone: `browser`, or `utc` where people compare times.
    """

    uid: str
    title: str
    question: str
    sections: tuple[Section, ...]
    variables: tuple[Variable, ...]
    span: str = "now-3h"
    refresh: str = "1m"
    timezone: Literal["browser", "utc"] = "browser"

    @property
    def panels(self) -> tuple[Panel, ...]:
        """All panels, in their order."""
        return tuple(panel for section in self.sections for panel in section.panels)
