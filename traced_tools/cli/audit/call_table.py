"""Prints calls as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from typing import Final

from rich.console import Console, JustifyMethod, OverflowMethod
from rich.table import Table
from rich.text import Text

from traced_tools.audit.reading.queries import UNFINISHED
from traced_tools.audit.reading.reader import AuditedCall
from traced_tools.audit.records import AUDIT_DECISIONS, RAN
from traced_tools.cli.audit.formatting import (
    as_text,
    decider_text,
    decision_text,
    duration_text,
    state_text,
    time_text,
    tool_name,
    verdict_text,
)
from traced_tools.cli.listing import advice, listed_of

SHORT_RUN: Final = len("0197a3b2-4c5d-7f12")
"""Characters of a run's id that are shown, as `ConsoleEventExporter` does: 48 bits of time, to the millisecond, and 12
that distinguish runs of the same millisecond."""

_GAP: Final = 2
_WIDE: Final = 110
"""The minimum width of a terminal for the full table."""
_HEADINGS: Final = ("time (UTC)", "run", "principal", "agent", "tool", "decision", "by", "outcome", "duration")
_NARROW: Final = ("time (UTC)", "run", "agent", "tool", "outcome", "duration")
_LEAVES_ROOM: Final = 70
"""The minimum width of a terminal for the durations."""
_CUT: Final = ("agent", "tool", "by", "decision", "principal")
"""The columns that are truncated if the terminal is too narrow."""
_LEAST: Final = 6
_DAY: Final = len("2026-07-01 ")


def print_calls(
    console: Console, calls: Sequence[AuditedCall], total: int | None, waiting: Sequence[AuditedCall]
) -> None:
    """Print calls in the given order, and a line with counts.

    Args:
        console: where to print.
        calls: the calls.
        total: how many calls there are; None if that is not known, but more than these.
        waiting: those of the calls that wait for a decision.
    """
    if not calls:
        console.print("no matching calls")
    elif console.width >= _WIDE:
        console.print(_wide_table(calls, console.width))
    else:
        headings = _NARROW if console.width >= _LEAVES_ROOM else _NARROW[:-1]
        rows = list(_by_day([_few_cells(call)[: len(headings)] for call in calls]))
        console.print(_table(headings, (*_CUT[:2], "outcome"), rows, console.width))
    if calls:
        console.print(f"\n{_summary(calls, total, waiting)}")


def _wide_table(calls: Sequence[AuditedCall], room: int) -> Table:
    """Return the table with all columns, without that of principals if no call has one."""
    has_principals = any(call.principal is not None for call in calls)
    headings = [heading for heading in _HEADINGS if has_principals or heading != "principal"]
    rows = []
    for call in calls:
        time, run, agent, tool, _, duration = _few_cells(call)
        principal = [as_text(call.principal)] if has_principals else []
        decider = Text(decider_text(call.fields("decision")))
        rows.append([time, run, *principal, agent, tool, decision_text(call), decider, state_text(call), duration])
    return _table(headings, [name for name in _CUT if name in headings], rows, room)


def _few_cells(call: AuditedCall) -> list[Text]:
    """Return the cells of a narrow table, with the decision in the outcome column unless it is plain `allowed`."""
    return [
        Text(time_text(call.records[0]), "dim"),
        as_text(call.run_id[:SHORT_RUN]),
        as_text(call.shared_field("agent")),
        as_text(tool_name(call)),
        verdict_text(call),
        Text(duration_text(call.fields("outcome"))),
    ]


def _by_day(rows: list[list[Text]]) -> Iterator[list[Text]]:
    """Yield the rows with each day in a row of its own and only the time in the others."""
    for day, of_day in groupby(rows, key=lambda row: row[0].plain[:_DAY]):
        yield [Text(day.rstrip(), "dim")]
        for time, *rest in of_day:
            yield [time[_DAY:], *rest]


def _table(headings: Sequence[str], cut: Sequence[str], rows: list[list[Text]], room: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading, width in zip(headings, _widths(headings, cut, rows, room), strict=True):
        justify: JustifyMethod = "right" if heading == "duration" else "left"
        wraps = heading == "outcome"  # which says who decided and why on a narrow screen; on a wide one it has room
        overflow: OverflowMethod = "fold" if wraps else "ellipsis"
        table.add_column(heading, no_wrap=not wraps, overflow=overflow, max_width=width, justify=justify)
    for row in rows:
        table.add_row(*row)
    return table


def _widths(headings: Sequence[str], cut: Sequence[str], rows: list[list[Text]], room: int) -> list[int]:
    """Return the widths of the columns: their widest cell, with the columns in `cut` narrowed until all fit."""
    columns = zip_longest(*rows, fillvalue=Text(""))
    cells = [max(cell.cell_len for cell in column) for column in columns]
    widths = [max(len(heading), width) for heading, width in zip(headings, cells, strict=True)]
    cuttable = [headings.index(heading) for heading in cut]
    while sum(widths) + _GAP * (len(widths) - 1) > room:
        widest = max(cuttable, key=widths.__getitem__)
        if widths[widest] <= _LEAST:
            break
        widths[widest] -= 1
    return widths


_REFUSED: Final = {*AUDIT_DECISIONS} - {*RAN, "answered", "pending"}
"""The states of refused calls."""


def _summary(calls: Sequence[AuditedCall], total: int | None, waiting: Sequence[AuditedCall]) -> str:
    refused = sum(call.state in _REFUSED for call in calls)
    unfinished = sum(call.state == UNFINISHED for call in calls)
    counts = [
        listed_of(len(calls), total, "newest"),
        f"{refused:,} refused",
        f"{len(waiting):,} pending",
        f"{unfinished:,} unfinished",
    ]
    return ", ".join(counts) + advice(len(calls), total)
