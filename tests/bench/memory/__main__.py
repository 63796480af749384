"""Prints how many facts survive compactions: `python -m tests.bench.memory [--json | --markdown]`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from tests.bench.memory.survival import Survival, survivals

HEADER = ("strategy", "compactions", "tokens", "saved", "facts in the view", "of messages", "of results", "with recall")


def cells(found: Survival) -> tuple[str, ...]:
    """Return the texts of a row of the table."""
    return (
        found.strategy,
        str(found.compactions),
        f"{found.tokens:,}",
        f"{found.saved:.0%}",
        f"{found.in_view} of {found.facts}",
        "{} of {}".format(*found.of_messages),
        "{} of {}".format(*found.of_results),
        f"{found.with_recall} of {found.facts}",
    )


def markdown(rows: Sequence[Survival]) -> str:
    """Return the table for the documentation."""
    lines = [HEADER, tuple("---" for _ in HEADER), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def text(rows: Sequence[Survival]) -> str:
    """Return the table as aligned text."""
    lines = [HEADER, *map(cells, rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.memory", description=(__doc__ or "").splitlines()[0])
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the figures as data")
    output.add_argument("--markdown", action="store_true", help="the table for the documentation")
    arguments = parser.parse_args()
    rows = survivals()
    if arguments.json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        print(markdown(rows) if arguments.markdown else text(rows))


if __name__ == "__main__":
    main()
