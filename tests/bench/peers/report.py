"""The table of the peers, as plain text, Markdown or data."""

from __future__ import annotations

from typing import Any

from tests.bench.peers.driver import EMITTED, MODES, TOOLS, Cost, Measured
from tests.bench.peers.peers import REFERENCE, Peer

SHORT, LONG = 0, 1
"""The slopes of the costs: between runs of 1 and 10 passes, and between runs of 10 and 50."""
CASES = tuple((mode, tool) for mode in MODES for tool in TOOLS)
HEADER = (
    *("peer", "version", *(f"{mode}, {tool} tool" for mode, tool in CASES)),
    *(f"traced / {REFERENCE}", "in long runs", "spans", "metric records", "log events"),
)
Results = dict[Peer, Measured | str]


def text(results: Results) -> str:
    """Return aligned text."""
    rows = [HEADER, *_rows(results)]
    widths = [max(len(row[column]) for row in rows if len(row) == len(HEADER)) for column in range(len(HEADER))]
    widths[0] = max(len(row[0]) for row in rows)  # a peer that was not run has a reason instead of the other cells
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    )


def markdown(results: Results) -> str:
    """Return a table for the documentation."""
    rows = [HEADER, ("---", "---", *("---:" for _ in HEADER[2:])), *_rows(results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def as_data(results: Results) -> list[dict[str, Any]]:
    """Return all figures, in microseconds a pass, for JSON."""
    return [{"peer": peer.title, **_data(result)} for peer, result in results.items()]


def _data(result: Measured | str) -> dict[str, Any]:
    if isinstance(result, str):
        return {"not_run": result}
    costs = [
        {"mode": mode, "tool": tool, "passes": passes, "cpu": slope.cpu._asdict(), "wall": slope.wall._asdict()}
        for (mode, tool), slopes in result.costs.items()
        for passes, slope in zip(("1-10", "10-50"), slopes, strict=True)
    ]
    return {"version": result.version, "costs": costs, "emitted": result.emitted}


def _rows(results: Results) -> list[tuple[str, ...]]:
    reference = next((result for peer, result in results.items() if peer.name == REFERENCE), "it was not run")
    return [
        (peer.title, f"not run: {result}") if isinstance(result, str) else _row(peer, result, reference)
        for peer, result in results.items()
    ]


def _row(peer: Peer, result: Measured, reference: Measured | str) -> tuple[str, ...]:
    return (
        *(peer.title, result.version, *(_cost(result.costs[case][SHORT].cpu) for case in CASES)),
        "" if isinstance(reference, str) else " / ".join(_ratio(result, reference, tool) for tool in TOOLS),
        f"x {_best(result, 'async', LONG) / _best(result, 'async'):.1f}",
        *(f"{result.emitted[name]:g}" for name in EMITTED),
    )


def _cost(cost: Cost) -> str:
    return f"{_figure(cost.best)} ({_figure(cost.median)})"


def _figure(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 1 else "< 1"


def _ratio(result: Measured, reference: Measured, tool: str) -> str:
    return f"{_best(result, tool) / _best(reference, tool):.2f}"


def _best(result: Measured, tool: str, slope: int = SHORT) -> float:
    """Return the cost of a traced pass."""
    return result.costs["traced", tool][slope].cpu.best
