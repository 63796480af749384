"""The table: numbers with their targets beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Row:
    """One line. With a target, `value` must be at most `at_most` or at least `at_least`.

    Args:
        label: what was measured.
        value: the figure that counts; for times the median of the thread's CPU time.
        unit: its unit.
        wall: the same on the wall.
        best: the best round.
        at_most: the target, where less is better.
        at_least: the target, where more is better.
        digits: how many after the point.
    """

    label: str
    value: float
    unit: str
    wall: float | None = None
    best: float | None = None
    at_most: float | None = None
    at_least: float | None = None
    digits: int = 1

    @property
    def verdict(self) -> str:
        """`ok`, `MISSED`, or nothing for what has no target."""
        if self.at_most is None and self.at_least is None:
            return ""
        held = (self.at_most is None or self.value <= self.at_most) and self.value >= (self.at_least or 0)
        return "ok" if held else "MISSED"

    def cells(self) -> tuple[str, ...]:
        """Return the texts of the columns."""
        figures = (self._figure(each) for each in (self.value, self.wall, self.best))
        return (self.label, *figures, self.unit, self._target, self.verdict)

    @property
    def _target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:,g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def _figure(self, value: float | None) -> str:
        return "" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True)
class Section:
    """Rows that belong together."""

    title: str
    rows: list[Row]


HEADER = ("", "value", "wall", "best", "unit", "target", "")


def table(sections: Iterable[Section]) -> str:
    """Return the sections as aligned text."""
    sections = list(sections)
    cells = [HEADER, *(row.cells() for section in sections for row in section.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [_line(HEADER, widths)]
    for section in sections:
        lines += ["", section.title, *(_line(row.cells(), widths) for row in section.rows)]
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    label, *figures, unit, target, verdict = (
        text.rjust(width) if 1 <= column <= 3 else text.ljust(width)
        for column, (text, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(("", label, *figures, unit, target, verdict)).rstrip()


def as_data(sections: Iterable[Section]) -> list[dict[str, Any]]:
    """Return the sections for JSON."""
    return [{"title": section.title, "rows": [_row_data(row) for row in section.rows]} for section in sections]


def _row_data(row: Row) -> dict[str, Any]:
    return {**asdict(row), "verdict": row.verdict}
