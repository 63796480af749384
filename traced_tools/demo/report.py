"""The demo's report of a run: its spans as a tree, who refused what, the audit trail, and the metrics."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from urllib.parse import urlsplit

from rich.console import Console
from rich.table import Table
from rich.text import Text

from traced_tools import ChatClientResponse
from traced_tools.audit import AuditReader, verify
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


def print_trace(console: Console, telemetry: CapturedTelemetry, *, with_hooks: bool) -> None:
    """Print the spans of the captured run as a tree.

    A hook in which nothing happened has a line only with `with_hooks`; else the line of its parent counts it.
    """
    for root in telemetry.tree():
        for line in _tree(root, console.width, with_hooks=with_hooks):
            console.print(line, soft_wrap=True)
        console.print(f"[dim]time: {summarize_time(root)}[/]", highlight=False)


def print_refusals(console: Console, response: ChatClientResponse) -> None:
    """Print who has refused calls of the run, and why."""
    for result in response.tool_results:
        if result.decision == "denied":
            refusal = f"[yellow]{result.tool} was refused[/] by the {result.advisor} advisor, rule {result.rule}"
            console.print(f"\n{refusal}. The model read:", highlight=False)
            console.print(result.content, style="yellow", markup=False, highlight=False)


def print_audit(console: Console, store: Path) -> None:
    """Print what the audit trail has of the calls, and whether it is whole."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("audit trail", "decision", "rule", "outcome", "arguments"):
        table.add_column(heading)
    for call in reversed(AuditReader(store).calls()):
        decision, arguments = call.fields("decision"), call.fields("intent").get("arguments", {})
        digest = f"digest {arguments.get('digest', '')[:12]}"
        rule = decision.get("rule") or ""
        outcome = call.state if call.outcome is not None else ""
        table.add_row(call.fields("intent")["tool"], decision["decision"], rule, outcome, digest)
    console.print()
    console.print(table, highlight=False)
    verification = verify(store)
    state = "whole and unchanged" if verification.ok else "NOT whole"
    console.print(f"verified: {verification.records} records, {state}", style="green" if verification.ok else "red")


def print_metrics(console: Console, telemetry: CapturedTelemetry) -> None:
    """Print the metrics of the captured run as a table."""
    console.print()
    console.print(_table(telemetry.metrics))


def _tree(root: SpanNode, room: int, *, with_hooks: bool) -> Iterator[Text]:
    """Yield the lines of a tree, each with name, duration and facts; facts that have no room are on the next line.

    Args:
        root: the root of the tree.
        room: the width of the terminal.
        with_hooks: whether each hook has a line.
    """
    folded: dict[int, str] = {}
    rows = list(tree_rows(root if with_hooks else _fold(root, folded)))
    width = max(len(name) for name, _ in rows)
    for name, node in rows:
        branch = name[: len(name) - len(node.name)]
        line = Text.assemble((branch, "dim"), (node.name, _style(node)))
        line.append(f"{format_seconds(node.duration):>{width - len(name) + 10}}", style="dim")
        parts = ((summarize(node), ""), (node.error_type or "", "red"), (folded.get(id(node), ""), "dim"))
        facts = Text("  ").join(Text(text, style) for text, style in parts if text)
        if len(line) + 2 + len(facts) <= room:
            yield line.append("  ").append(facts) if facts else line
        else:
            yield line
            below = branch.replace("├─", "│ ").replace("└─", "  ") + ("│  " if node.children else "   ")
            yield Text(below, "dim").append(facts)


def _fold(node: SpanNode, folded: dict[int, str]) -> SpanNode:
    """Return a tree without the hooks in which nothing happened; `folded` gets what to say of them, by their parents.

    The time of hooks around a tool is left out, because it has that of the tool in it.
    """
    copy = replace(node, children=[_fold(child, folded) for child in node.children if not _is_idle(child)])
    hooks = [hook for child in node.children if _is_idle(child) for _, hook in tree_rows(child)]
    if hooks:
        count = f"… {len(hooks)} hook{'' if len(hooks) == 1 else 's'}"
        is_around = any(hook.attributes[names.ADVISOR_HOOK] == "advise_tool" for hook in hooks)
        seconds = sum(hook.duration for hook in hooks)
        folded[id(copy)] = count if is_around else f"{count}, {format_seconds(seconds)}"
    return copy


def _is_idle(node: SpanNode) -> bool:
    """Return whether a span is a hook that has not failed, and all spans in it are."""
    is_hook = names.ADVISOR_HOOK in node.attributes and node.error_type is None
    return is_hook and all(_is_idle(child) for child in node.children)


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


def print_destination(console: Console) -> None:
    """Print where the telemetry of an application would go."""
    collector = urlsplit(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    destination = f"{collector.hostname}:{collector.port or 4318}" if collector.hostname else "localhost:4318"
    console.print(
        "\nNo telemetry has left this process. traced_tools.configure(otlp=True) would\n"
        f"send it to {destination} (set OTEL_EXPORTER_OTLP_ENDPOINT to change it), and\n"
        "configure(prometheus=9464) would serve the metrics at\n"
        "http://127.0.0.1:9464/metrics.",
        highlight=False,
    )
