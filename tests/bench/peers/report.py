"""The table of a workload, as plain text, Markdown or data."""

from __future__ import annotations

from typing import Any

from tests.bench.peers.driver import EMITTED, Cost, Measured
from tests.bench.peers.peers import REFERENCE, Peer
from tests.bench.peers.workloads import LOOP, Workload

SHORT, LONG = 0, 1
"""The slopes of the costs: between runs of 1 and 10 passes, and between runs of 10 and 50."""
LOOP_HEADER = (
    *("peer", "version", *(f"{mode}, {tool} tool" for mode, tool in LOOP.columns)),
    *(f"traced / {REFERENCE}", "in long runs", "spans", "metric records", "log events"),
)
Results = dict[Peer, Measured | str]


def text(workload: Workload, results: Results) -> str:
    """Return aligned text."""
    header = header_of(workload)
    rows = [header, *_rows(workload, results)]
    widths = [max(len(row[column]) for row in rows if len(row) == len(header)) for column in range(len(header))]
    widths[0] = max(len(row[0]) for row in rows)  # a peer that was not run has a reason instead of the other cells
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows
    )


def markdown(workload: Workload, results: Results) -> str:
    """Return a table for the documentation."""
    header = header_of(workload)
    rows = [header, ("---", "---", *("---:" for _ in header[2:])), *_rows(workload, results)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def header_of(workload: Workload) -> tuple[str, ...]:
    """Return the titles of the columns."""
    if workload is LOOP:
        return LOOP_HEADER
    steps = [f"{_step(step)} {workload.size_name}" for step in workload.steps] if len(workload.sizes) > 1 else [""]
    names = [", ".join(filter(None, (_case(workload, case), step))) for case in workload.cases for step in steps]
    return ("peer", "version", *(name or "µs" for name in names), f"/ {REFERENCE}")


def as_data(workload: Workload, results: Results) -> list[dict[str, Any]]:
    """Return all figures, in microseconds, for JSON."""
    return [{"peer": peer.title, **_data(workload, result)} for peer, result in results.items()]


def _data(workload: Workload, result: Measured | str) -> dict[str, Any]:
    if isinstance(result, str):
        return {"not_run": result}
    costs = [
        {"mode": mode, "case": case, "size": _step(step), "cpu": cost.cpu._asdict(), "wall": cost.wall._asdict()}
        for (mode, case), costs in result.costs.items()
        for step, cost in zip(workload.steps, costs, strict=True)
    ]
    return {"version": result.version, "costs": costs, "emitted": result.emitted}


def _step(step: tuple[int, ...]) -> str:
    return "-".join(map(str, step))


def _case(workload: Workload, case: str) -> str:
    return case if len(workload.cases) > 1 else ""


def _rows(workload: Workload, results: Results) -> list[tuple[str, ...]]:
    reference = next((result for peer, result in results.items() if peer.name == REFERENCE), "it was not run")
    row = _loop_row if workload is LOOP else _row
    return [
        (peer.title, f"not run: {result}") if isinstance(result, str) else row(peer, result, reference)
        for peer, result in results.items()
    ]


def _loop_row(peer: Peer, result: Measured, reference: Measured | str) -> tuple[str, ...]:
    return (
        *(peer.title, result.version, *(_cost(result.costs[column][SHORT].cpu) for column in LOOP.columns)),
        "" if isinstance(reference, str) else " / ".join(_ratio(result, reference, tool) for tool in LOOP.cases),
        f"x {_best(result, 'async', LONG) / _best(result, 'async'):.1f}",
        *(f"{result.emitted[name]:g}" for name in EMITTED),
    )


def _row(peer: Peer, result: Measured, reference: Measured | str) -> tuple[str, ...]:
    costs, own = _cpu_costs(result), [] if isinstance(reference, str) else _cpu_costs(reference)
    ratios = " / ".join(f"{cost.best / known.best:.2f}" for cost, known in zip(costs, own, strict=False))
    return (peer.title, result.version, *map(_cost, costs), ratios)


def _cpu_costs(result: Measured) -> list[Cost]:
    return [cost.cpu for costs in result.costs.values() for cost in costs]


def _cost(cost: Cost) -> str:
    return f"{_figure(cost.best)} ({_figure(cost.median)})"


def _figure(microseconds: float) -> str:
    return f"{microseconds:,.0f}" if microseconds >= 1 else "< 1"


def _ratio(result: Measured, reference: Measured, tool: str) -> str:
    return f"{_best(result, tool) / _best(reference, tool):.2f}"


def _best(result: Measured, tool: str, slope: int = SHORT) -> float:
    """Return the cost of a traced pass."""
    return result.costs["traced", tool][slope].cpu.best
