"""What the demo prints of a run: its spans as a tree, its metrics as a table, and where both would go."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from traced_tools.telemetry import names
from traced_tools.telemetry.points import MetricPoint
from traced_tools.telemetry.tree import SpanNode, seconds_text, summary
from traced_tools.testing import CapturedTelemetry

_STYLES = {
    names.INVOKE_AGENT: "bold",
    names.ITERATION_SPAN.name: "bold blue",
    names.CHAT: "cyan",
    names.EXECUTE_TOOL: "green",
    names.REFUSE_TOOL: "yellow",
}
_TOLD_APART_BY = {
    names.TOOL_DECISIONS.name: names.TOOL_DECISION,
    names.TOKEN_USAGE.name: names.TOKEN_TYPE,
    names.EXECUTE_TOOL_DURATION.name: names.TOOL_NAME,
}
"""The metrics of which the table shows a row per value of one label; of the others it shows one row."""


def print_report(console: Console, telemetry: CapturedTelemetry) -> None:
    """Print the captured run."""
    for root in telemetry.tree():
        console.print(_tree(root))
    console.print()
    console.print(_table(telemetry.metrics))
    console.print()
    console.print(_destination(), highlight=False)


def _tree(node: SpanNode) -> Tree:
    tree = Tree(_label(node), guide_style="dim")
    tree.children.extend(_tree(child) for child in node.children)
    return tree


def _label(node: SpanNode) -> Text:
    style = _STYLES.get(node.name.split(" ")[0], "")
    label = Text(node.name, style="red" if node.error_type else style)
    label.append(f"  {seconds_text(node.duration)}", style="dim")
    if facts := summary(node):
        label.append(f"  {facts}")
    if node.error_type:
        label.append(f"  {node.error_type}", style="red")
    return label


def _table(points: Iterable[MetricPoint]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("metric", "left"), ("", "left"), ("count", "right"), ("total", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    counted = [point for point in points if point.count or point.value]
    for (name, part), group in groupby(sorted(counted, key=_row), _row):
        table.add_row(name, part, *_numbers(list(group)))
    return table


def _row(point: MetricPoint) -> tuple[str, str]:
    return point.name, str(point.attributes.get(_TOLD_APART_BY.get(point.name, ""), ""))


def _numbers(points: list[MetricPoint]) -> tuple[str, str]:
    count = sum(point.count or 0 for point in points)
    total = sum((point.value or 0) if point.sum is None else point.sum for point in points)
    text = seconds_text(total) if points[0].unit == "s" else f"{total:,.0f}"
    return (f"{count}" if points[0].count is not None else "", text)


def _destination() -> str:
    endpoint = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318")
    return (
        "Nothing has left this process. In an application, traced_tools.configure(otlp=True) sends all of this to\n"
        f"{endpoint} (OTEL_EXPORTER_OTLP_ENDPOINT), and configure(prometheus=9464) serves the metrics."
    )
