"""Prints how well tool indexes find tools, what they save and how fast they are.

`python -m tests.bench.search [--json | --markdown]`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import groupby

from tests.bench.search.quality import Quality, qualities
from tests.bench.search.speed import Speed, speeds
from tests.bench.search.tokens import Tokens, token_counts

Table = list[tuple[str, ...]]


def quality_table(found: Sequence[Quality]) -> Table:
    """Return the table of quality: a row for each index of each set."""
    rows = [("queries", "index", "recall@1", "recall@5", "recall@10", "MRR")]
    for queries, group in groupby(found, lambda each: each.queries):
        for place, each in enumerate(group):
            values = (each.recall_1, each.recall_5, each.recall_10, each.mrr)
            rows.append(("" if place else queries, each.index, *(f"{value:.3f}" for value in values)))
    return rows


def token_table(found: Sequence[Tokens]) -> Table:
    """Return the table of tokens: a row for each size of the catalogue."""
    header = ("tools", "all tools", "before a search", "after a search", "saved")
    rows = [
        (str(each.tools), f"{each.without:,.0f}", f"{each.before:,.0f}", f"{each.after:,.0f}", f"{each.saved:.0%}")
        for each in found
    ]
    return [header, *rows]


def speed_table(found: Sequence[Speed]) -> Table:
    """Return the table of speed: a row for each index."""
    header = ("index", "tools", "indexing", "search", "one more tool")
    rows = [
        (each.index, f"{each.tools:,}", f"{each.indexing:.2f} s", f"{each.search:.2f} ms", f"{each.one_more:.1f} ms")
        for each in found
    ]
    return [header, *rows]


def markdown(table: Table) -> str:
    """Return a table for the documentation."""
    header, *rows = table
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, tuple("---" for _ in header), *rows))


def text(table: Table) -> str:
    """Return a table as aligned text."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.search", description=(__doc__ or "").splitlines()[0])
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="the figures as data")
    output.add_argument("--markdown", action="store_true", help="the tables for the documentation")
    arguments = parser.parse_args()
    quality, tokens, speed = [*qualities()], [*token_counts()], [*speeds()]
    if arguments.json:
        figures = {"quality": quality, "tokens": tokens, "speed": speed}
        print(json.dumps({name: [asdict(each) for each in rows] for name, rows in figures.items()}, indent=2))  # type: ignore[call-overload]
        return
    shown = markdown if arguments.markdown else text
    print("\n\n".join(map(shown, (quality_table(quality), token_table(tokens), speed_table(speed)))))


if __name__ == "__main__":
    main()
