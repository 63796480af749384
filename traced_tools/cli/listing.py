"""Lists that may be cut. The last line says how many there are."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final

import typer
from rich.table import Table

from traced_tools.cli.audit.formatting import pluralize

MOST_LISTED: Final = 100
"""The number of rows in a table without `--limit`. JSON is for programs, which read no last line, so it has all."""
Limit = Annotated[
    int | None,
    typer.Option(min=1, help="The maximum number of calls to list.  [default: 100; with --json: all]"),
]


def listed_of(count: int, total: int | None, order: str, noun: str = "call") -> str:
    """Return how many calls are listed, such as `3 calls` or `the newest 100 of 150 calls`.

    Args:
        count: how many are listed.
        total: how many there are; None if that is not known, but more than are listed.
        order: which of them are listed, such as `newest`.
        noun: what they are.
    """
    if total == count:
        return pluralize(count, noun)
    return f"the {order} {count:,} of {f'more than {count:,}' if total is None else f'{total:,}'} {noun}s"


def advice(count: int, total: int | None) -> str:
    """Return how to list the other calls; empty if there are none."""
    return "" if total == count else f"; list more with --limit {count * 10}"


def make_table(*headings: str) -> Table:
    """Return a table without lines, whose cells fold where the terminal ends."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def time_or_never(time: datetime | None) -> str:
    """Return a time to the second; `never` for None."""
    return "never" if time is None else time.isoformat(" ", "seconds").removesuffix("+00:00")
