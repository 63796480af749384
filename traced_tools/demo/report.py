"""The demo's report of a run: spans as a tree, metrics as a table, and how to send them to a collector."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import groupby
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.span_tree import SpanNode, format_seconds, summarize, summarize_time, tree_rows
from traced_tools.testing import CapturedTelemetry

_STYLES = {
    names.INVOKE_AGENT: "bold",
    names.ITERATION_SPAN.name: "bold blue",
    names.CHAT: "cyan",
    names.EXECUTE_TOOL: "green",
    names.REFUSE_TOOL: "yellow",
}
_ROW_LABELS = {
    names.TOOL_DECISIONS.name: names.TOOL_DECISION,
    names.TOKEN_USAGE.name: names.TOKEN_TYPE,
    names.EXECUTE_TOOL_DURATION.name: names.TOOL_NAME,
    names.RUN_TIME.name: names.TIME_KIND,
}
"""The metrics with one table row per value of a label. Other metrics have one row."""


def print_report(console: Console, telemetry: CapturedTelemetry) -> None:
    """Print the spans and metrics of the captured run."""
    for root in telemetry.tree():
        for line in _tree(root):
            console.print(line, soft_wrap=True)
    console.print()
    console.print(_table(telemetry.metrics))
    console.print()
    console.print(_destination(), highlight=False)


def _tree(root: SpanNode) -> Iterator[Text]:
    """Yield the lines of a tree, each with name, duration and summary."""
    rows = list(tree_rows(root))
    width = max(len(name) for name, _ in rows)
    for name, node in rows:
        branch = len(name) - len(node.name)
        line = Text.assemble((name[:branch], "dim"), (name[branch:], _style(node)))
        line.append(f"{format_seconds(node.duration):>{width - len(name) + 10}}", style="dim")
        line.append(f"  {summarize(node)}").append(f"  {node.error_type or ''}", style="red")
        line.rstrip()
        yield line
    yield Text(f"time: {summarize_time(root)}", style="dim")


def _style(node: SpanNode) -> str:
    return "red" if node.error_type else _STYLES.get(node.name.split(" ")[0], "")


def _table(points: Iterable[MetricPoint]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("metric", "left"), ("", "left"), ("count", "right"), ("total", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    active_points = [point for point in points if point.count or point.value]
    for (name, part), group in groupby(sorted(active_points, key=_row), _row):
        table.add_row(name, part, *_numbers(list(group)))
    return table


def _row(point: MetricPoint) -> tuple[str, str]:
    return point.name, str(point.attributes.get(_ROW_LABELS.get(point.name, ""), ""))


def _numbers(points: list[MetricPoint]) -> tuple[str, str]:
    count = sum(point.count or 0 for point in points)
    total = sum((point.value or 0) if point.sum is None else point.sum for point in points)
    text = format_seconds(total) if points[0].unit == "s" else f"{total:,.0f}"
    return (f"{count}" if points[0].count is not None else "", text)


def _destination() -> str:
    collector = urlsplit(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    destination = f"{collector.hostname}:{collector.port or 4318}" if collector.hostname else "localhost:4318"
    return (
        "No telemetry has left this process. traced_tools.configure(otlp=True) would\n"
        f"send it to {destination} (set OTEL_EXPORTER_OTLP_ENDPOINT to change it), and\n"
        "configure(prometheus=9464) would serve the metrics."
    )
