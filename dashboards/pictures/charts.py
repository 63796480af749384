"""Draws the content of each kind of panel."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from dashboards.panels import Column, Heatmap, Stat, Threshold, TimeSeries, Unit
from dashboards.pictures.answers import Period, Points, Row, Series
from dashboards.pictures.svg import Box, Canvas, cut, line, number, width_of, wrapped
from dashboards.pictures.units import shown

TEXT: Final = "#d5d6e0"
MUTED: Final = "#9a9ca8"
GRID: Final = "#2a2d33"
LINK: Final = "#6e9fff"
NAMED: Final = {
    "green": "#73bf69",
    "red": "#f2495c",
    "yellow": "#f2cc0c",
    "orange": "#ff9830",
    "blue": "#5794f2",
    "light-blue": "#8ab8ff",
    "super-light-blue": "#c0d8ff",
    "purple": "#b877d9",
    "text": "#9a9ca8",
    "dark-red": "#c4162a",
    "light-red": "#ff7383",
    "dark-orange": "#fa6400",
    "light-orange": "#ffb357",
    "dark-yellow": "#e0b400",
    "light-yellow": "#ffee52",
}
"""Colors of Grafana by their names."""
LINES: Final = (
    *("#73bf69", "#f2cc0c", "#8ab8ff", "#ff780a", "#f2495c", "#5794f2", "#b877d9", "#9a8ce0", "#37872d", "#fade2a"),
    *("#447ebc", "#c15c17", "#e0b400", "#ca95e5", "#56a64b", "#ffa6b0"),
)
HEAT: Final = ("#3a2416", "#63330f", "#8f4a0d", "#bd650e", "#e5811c", "#ff9f45", "#ffc58a", "#ffe8cf")
SMALL: Final = 12.0
_LEGEND_ROW: Final = 18.0
_MOST_LEGEND_ROWS: Final = 3
_TABLE_ROW: Final = 27.0
_GAP: Final = 14.0
_EXPENDABLE: Final = ("Name", "Start time")
"""The columns of a table of spans that are left out first if it is too narrow."""
_TICKS: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800)
_DAY: Final = 86_400
_SCALES: Final = {"s": (86_400.0, 3_600.0, 60.0), "bytes": (2.0**30, 2.0**20, 2.0**10)}
"""The larger units in which an axis has round values."""


def draw_time_series(canvas: Canvas, box: Box, panel: TimeSeries, found: Sequence[Series], period: Period) -> None:
    """Draw lines or stacked areas with axes and a legend."""
    legend = list(_legend_rows(found, box.width))
    box = box.inside(0, 4, 0, len(legend) * _LEGEND_ROW + 24)
    layers = _stacked([each.points for each in found]) if panel.stacked else [each.points for each in found]
    highest = max((value for points in layers for _, value in points), default=0)
    ticks, plot = _value_axis(canvas, box, highest, panel.unit)
    _time_axis(canvas, plot, period)
    top = ticks[-1]

    below = [(points[at][0], 0.0) for points in layers[:1] for at in (0, -1)]
    for index, points in enumerate(layers):
        color = _line_color(panel, index, found)
        if panel.stacked and not any(value for _, value in found[index].points):
            continue
        for part in [points] if panel.stacked else _unbroken(points, period.step):
            xy = _placed(_without_repetition(part), plot, period, top)
            if panel.stacked:
                edge = reversed(_placed(below, plot, period, top))
                canvas.path(f"{line([*xy, *edge])}Z", fill=color, opacity=0.55)
            canvas.path(line(xy), stroke=color, width=1.3)
        if panel.stacked:
            below = _without_repetition(points)
    if panel.threshold is not None and panel.threshold.value <= top:
        y = plot.bottom - panel.threshold.value / top * plot.height
        canvas.path(line([(plot.x, y), (plot.right, y)]), stroke=NAMED[panel.threshold.color], dash="8 6", width=1.3)
    y = box.bottom + 24 + 12
    for row in legend:
        x = box.x
        for of_line, name in row:
            if of_line is not None:
                canvas.path(line([(x, y - 4), (x + 12, y - 4)]), stroke=_line_color(panel, of_line, found), width=3)
                x += 18
            canvas.text(x, y, name, size=SMALL, fill=MUTED)
            x += width_of(name, SMALL) + _GAP
        y += _LEGEND_ROW


def draw_stat(canvas: Canvas, box: Box, panel: Stat, found: Sequence[Series], period: Period) -> None:
    """Draw one large number for each series, over its course if it has one."""
    share = box.width / len(found)
    texts = [(panel.values or {}).get(f"{each.last:g}") or shown(each.last, panel.unit) for each in found]
    names = [wrapped(each.name, share - 4, SMALL) if len(found) > 1 else [] for each in found]
    top = max(map(len, names)) * (SMALL + 3)
    size = min(40.0, (box.height - top) * 0.55, *(40 * (share - 14) / width_of(text, 40) for text in texts))
    for index, each in enumerate(found):
        cell = Box(box.x + index * share, box.y, share, box.height)
        color = _color(each.last, panel.threshold)
        if len(each.points) > 2:
            area = Box(cell.x, cell.y + cell.height * 0.55, cell.width, cell.height * 0.45)
            highest = max(value for _, value in each.points) or 1
            xy = _placed(_without_repetition(each.points), area, period, highest)
            canvas.path(f"{line([*xy, (xy[-1][0], area.bottom), (xy[0][0], area.bottom)])}Z", fill=color, opacity=0.22)
            canvas.path(line(xy), stroke=color, width=1, opacity=0.8)
        middle = cell.x + cell.width / 2
        for row, name in enumerate(names[index]):
            canvas.text(middle, cell.y + 12 + row * (SMALL + 3), name, size=SMALL, fill=MUTED, anchor="middle")
        baseline = cell.y + top + (cell.height - top) * 0.44 + size * 0.36
        canvas.text(middle, baseline, texts[index], size=round(size, 1), fill=color, anchor="middle", bold=True)


def draw_heatmap(canvas: Canvas, box: Box, panel: Heatmap, found: Sequence[Series], period: Period) -> None:
    """Draw the growth of each bucket as cells that are the brighter the more values fell into it."""
    buckets = sorted((_bound(each.labels["le"]), dict(each.points)) for each in found if "le" in each.labels)
    grown = [
        (bound, {time: max(0.0, value - before.get(time, 0.0)) for time, value in points.items()})
        for (_, before), (bound, points) in pairwise([(0.0, {}), *buckets])
    ]
    filled = [index for index, (_, points) in enumerate(grown) if any(value > 1e-9 for value in points.values())]
    grown = grown[filled[0] : filled[-1] + 1]
    labels = ["∞" if math.isinf(bound) else shown(bound, panel.unit) for bound, _ in grown]
    left = max(width_of(label, SMALL) for label in labels) + 8
    plot = box.inside(left, 4, 6, 24)
    height = plot.height / len(grown)
    every = math.ceil(16 / height)
    for index, label in enumerate(labels):
        if index % every == 0:
            y = plot.bottom - (index + 0.5) * height + 4
            canvas.text(plot.x - 8, y, label, size=SMALL, fill=MUTED, anchor="end")
    highest = max(value for _, points in grown for value in points.values())
    width = period.step / (period.end - period.start) * plot.width
    cells: dict[str, list[str]] = {}
    for index, (_, points) in enumerate(grown):
        y = plot.bottom - (index + 1) * height
        for time, value in points.items():
            x = _across(time, plot, period) - width
            if value > highest / 1000 and x >= plot.x - 0.1:
                level = HEAT[min(len(HEAT) - 1, int(math.sqrt(value / highest) * len(HEAT)))]
                size = f"h{number(width - 0.4)}v{number(height - 0.8)}h-{number(width - 0.4)}z"
                cells.setdefault(level, []).append(f"M{number(x)} {number(y)}{size}")
    for level, paths in cells.items():
        canvas.path("".join(paths), fill=level)
    _time_axis(canvas, plot, period)


def draw_table(
    canvas: Canvas, box: Box, columns: Mapping[str, Column], rows: Sequence[Row], *, sort: str | None
) -> None:
    """Draw a table with as many rows as have room, sorted by a field, the largest first."""
    if sort is not None:
        rows = sorted(rows, key=lambda row: -_number(row.get(sort)))
    room = int((box.height - 18) // _TABLE_ROW)
    hidden = max(0, len(rows) - room)
    visible = rows[: room - 1 if hidden else room]
    for left_out in (None, *_EXPENDABLE):
        columns = {each: column for each, column in columns.items() if each != left_out}
        lines = [
            [column.heading for column in columns.values()],
            *([_cell(row.get(name), column.unit) for name, column in columns.items()] for row in visible),
        ]
        size = next((size for size in (12.5, 11.5) if sum(_needed(lines, size)) <= box.width), 10.5)
        if sum(_needed(lines, size)) <= box.width * 1.1:
            break
    widths = _fitted(_needed(lines, size), box.width)
    numbers = {name for row in visible for name, value in row.items() if not isinstance(value, str)}
    y = box.y + 18
    for index, cells in enumerate(lines):
        x = box.x
        for (name, column), text, width in zip(columns.items(), cells, widths, strict=True):
            fill = MUTED if index == 0 else LINK if column.link else TEXT
            shown_text = cut(text, width - 10, size)
            if name in numbers:
                canvas.text(x + width - 8, y, shown_text, size=size, fill=fill, anchor="end")
            else:
                canvas.text(x + 2, y, shown_text, size=size, fill=fill)
            x += width
        y += _TABLE_ROW
    rules = (
        f"M{number(box.x)} {number(box.y + 27 + index * _TABLE_ROW)}h{number(box.width)}" for index in range(len(lines))
    )
    canvas.path("".join(rules), stroke=GRID)
    if hidden:
        canvas.text(box.x + 2, y, f"{hidden + 1} more rows", size=SMALL, fill=MUTED)


# Axes and legends.


def _value_axis(canvas: Canvas, box: Box, highest: float, unit: Unit) -> tuple[list[float], Box]:
    """Draw the axis of values; return its ticks and the rectangle beside it."""
    scale = next((scale for scale in _SCALES.get(unit, ()) if highest >= 2 * scale), 1.0)
    ticks = [tick * scale for tick in _round_ticks((highest or 1.0) / scale, most=max(2, int(box.height // 38)))]
    labels = [shown(tick, unit) for tick in ticks]
    plot = box.inside(max(width_of(label, SMALL) for label in labels) + 8, 4, 6, 0)
    heights = [plot.bottom - tick / ticks[-1] * plot.height for tick in ticks]
    canvas.path("".join(f"M{number(plot.x)} {number(y)}h{number(plot.width)}" for y in heights), stroke=GRID)
    for y, label in zip(heights, labels, strict=True):
        canvas.text(plot.x - 8, y + 4, label, size=SMALL, fill=MUTED, anchor="end")
    return ticks, plot


def _round_ticks(highest: float, most: int) -> list[float]:
    """Return at most so many steps of a round size, of which the last is not below the highest value."""
    size = 10.0 ** math.floor(math.log10(highest / most))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor * most >= highest * 0.9999)
    return [step * index for index in range(math.ceil(highest / step * 0.9999) + 1)]


def _time_axis(canvas: Canvas, plot: Box, period: Period) -> None:
    span = period.end - period.start
    step = next((each for each in _TICKS if span / each * 64 <= plot.width), _TICKS[-1])
    shape = "%H:%M:%S" if step < 60 else "%H:%M" if span <= _DAY else "%m-%d %H:%M" if step < _DAY else "%m-%d"
    first = math.ceil(period.start / step)
    grid = []
    for tick in (index * step for index in range(first, int(period.end // step) + 1)):
        x = _across(tick, plot, period)
        grid.append(f"M{number(x)} {number(plot.y)}v{number(plot.height)}")
        text = datetime.fromtimestamp(tick, UTC).strftime(shape)
        half = width_of(text, SMALL) / 2
        canvas.text(min(x, plot.right + 6 - half), plot.bottom + 17, text, size=SMALL, fill=MUTED, anchor="middle")
    canvas.path("".join(grid), stroke=GRID, opacity=0.7)


def _line_color(panel: TimeSeries, index: int, found: Sequence[Series]) -> str:
    named = panel.colors.get(found[index].name)
    return LINES[index % len(LINES)] if named is None else NAMED[named]


def _legend_rows(found: Sequence[Series], width: float) -> Iterator[list[tuple[int | None, str]]]:
    """Yield the rows of a legend: the number and the name of each line. The last row says how many are left out."""
    rows: list[list[tuple[int | None, str]]] = [[]]
    used = 0.0
    for index, each in enumerate(found):
        name = cut(each.name, width - 18, SMALL)
        needed = 18 + width_of(name, SMALL) + _GAP
        is_last_row = len(rows) == _MOST_LEGEND_ROWS
        reserve = 70 if is_last_row and index + 1 < len(found) else 0
        if rows[-1] and used + needed - _GAP + reserve > width:
            if is_last_row:
                rows[-1].append((None, f"+ {len(found) - index} more"))
                break
            rows.append([])
            used = 0.0
        rows[-1].append((index, name))
        used += needed
    yield from rows


# Points.


def _across(time: float, plot: Box, period: Period) -> float:
    """Return where a time is on the time axis."""
    return plot.x + (time - period.start) / (period.end - period.start) * plot.width


def _placed(points: Points, plot: Box, period: Period, top: float) -> list[tuple[float, float]]:
    """Return where points are in a rectangle whose upper edge is `top` and whose lower edge is 0."""
    return [
        (_across(time, plot, period), plot.bottom - min(max(value, 0.0) / top, 1.0) * plot.height)
        for time, value in points
    ]


def _stacked(layers: Sequence[Points]) -> list[Points]:
    """Return each line on top of the lines before it."""
    times = sorted({time for points in layers for time, _ in points})
    sums = dict.fromkeys(times, 0.0)
    stacked = []
    for points in layers:
        for time, value in points:
            sums[time] += value
        stacked.append([(time, sums[time]) for time in times])
    return stacked


def _unbroken(points: Points, step: float) -> Iterator[Points]:
    """Yield the parts of a line between which values are missing."""
    part = points[:1]
    for before, point in pairwise(points):
        if point[0] - before[0] > step * 1.5:
            yield part
            part = []
        part.append(point)
    yield part


def _without_repetition(points: Points) -> Points:
    """Return the points without those in the middle of a level line."""
    inner = (
        point
        for before, point, after in zip(points, points[1:], points[2:], strict=False)
        if not (before[1] == point[1] == after[1])
    )
    return [points[0], *inner, points[-1]]


def _color(value: float, threshold: Threshold | None) -> str:
    if threshold is None:
        return NAMED["green"]
    return NAMED[(threshold.below, threshold.color)[bisect([threshold.value], value)]]


def _bound(le: str) -> float:
    return math.inf if le == "+Inf" else float(le)


# Tables.


def _cell(value: str | float | None, unit: Unit) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return shown(value, unit)


def _number(value: str | float | None) -> float:
    return value if isinstance(value, int | float) and not math.isnan(value) else -math.inf


def _needed(lines: Sequence[Sequence[str]], size: float) -> list[float]:
    """Return the width that each column needs."""
    return [max(width_of(text, size) for text in column) + 12 for column in zip(*lines, strict=True)]


def _fitted(needed: list[float], room: float) -> list[float]:
    """Return widths that fill the room: each column gets an equal part of the rest, or the widest get narrower."""
    if (rest := room - sum(needed)) >= 0:
        return [width + rest / len(needed) for width in needed]
    while sum(needed) > room:
        widest = max(range(len(needed)), key=needed.__getitem__)
        needed[widest] -= 4
    return needed
