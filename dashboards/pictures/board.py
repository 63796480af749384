"""Draws a board in the layout and the colors of Grafana."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from dashboards import classic, v2
from dashboards.boards import home
from dashboards.panels import Board, Heatmap, Panel, Stat, Table, TimeSeries
from dashboards.pictures.answers import Period, Source, needs, series, table
from dashboards.pictures.charts import MUTED, TEXT, draw_heatmap, draw_stat, draw_table, draw_time_series
from dashboards.pictures.svg import Box, Canvas, number, width_of

WIDTH: Final = 1080.0
_PANEL_WIDTH: Final = 760.0
"""The width of a panel in a picture of its own."""
_COLUMN: Final = (WIDTH - 16) / 24
_ROW: Final = 38.0
_SPACE: Final = 8.0
_HEADER: Final = 96.0
_BACKGROUND: Final = "#111217"
_PANEL: Final = "#181b1f"
_EDGE: Final = "#2c3037"
_TITLE: Final = 14.0
_EMPTY_HEIGHT: Final = 3
"""Rows of the grid that a panel without data gets."""
PANELS: Final = {"where-the-time-goes": (home.BOARD, 8)}
"""The boards and the ids of panels with a picture of their own, by its name."""
Drawing = Callable[[Canvas, Box], None]


def picture(board: Board, source: Source, period: Period) -> str:
    """Return a board with the data of a time range, as the text of an SVG file."""
    canvas = Canvas()
    layout = classic.dashboard(v2.resource(board))
    panels = {panel.id: panel for panel in board.panels}
    drawings = {panel.id: _drawing(panel, source, period) for panel in board.panels}
    places = _places(layout["panels"], drawings)
    height = max(box.bottom for box in places.values()) + _SPACE
    canvas.rect(Box(0, 0, WIDTH, height), _BACKGROUND)
    _draw_header(canvas, board, layout["templating"]["list"], period)
    for each in layout["panels"]:
        box = places[each["id"]]
        if each["type"] == "row":
            canvas.text(box.x + 2, box.y + 21, f"▾  {each['title']}", size=15, fill=TEXT, bold=True)
        else:
            _draw_panel(canvas, box, panels[each["id"]], drawings[each["id"]])
    return canvas.document(WIDTH, height, f"{board.title}: {board.question}")


def panel_picture(panel: Panel, source: Source, period: Period) -> str:
    """Return one panel with the data of a time range, as the text of an SVG file."""
    canvas, box = Canvas(), Box(0, 0, _PANEL_WIDTH, panel.height * _ROW)
    _draw_panel(canvas, box, panel, _drawing(panel, source, period))
    return canvas.document(box.width, box.height, f"{panel.title}: {panel.question}")


def _places(panels: list[dict[str, Any]], drawings: Mapping[int, Drawing | None]) -> dict[int, Box]:
    """Return where each panel stands: on the board's grid, but for low rows where no panel has data."""
    rows: dict[int, list[dict[str, Any]]] = {}
    for each in panels:
        rows.setdefault(each["gridPos"]["y"], []).append(each)
    places: dict[int, Box] = {}
    top = _HEADER
    for row in rows.values():
        is_empty = all(each["type"] != "row" and drawings[each["id"]] is None for each in row)
        heights = [min(each["gridPos"]["h"], _EMPTY_HEIGHT if is_empty else math.inf) * _ROW for each in row]
        for each, height in zip(row, heights, strict=True):
            cell = Box(_SPACE + each["gridPos"]["x"] * _COLUMN, top, each["gridPos"]["w"] * _COLUMN, height)
            places[each["id"]] = cell.inside(_SPACE / 2, 0, _SPACE / 2, _SPACE)
        top += max(heights)
    return places


def _draw_header(canvas: Canvas, board: Board, variables: list[dict[str, Any]], period: Period) -> None:
    canvas.text(12, 30, board.title, size=20, fill=TEXT, bold=True)
    canvas.text(12, 50, board.question, size=13, fill=MUTED)
    hours = round((period.end - period.start) / 3600)
    _draw_field(canvas, WIDTH - 12, 14, "Last hour" if hours == 1 else f"Last {hours} hours")
    x = 12.0
    for variable in variables:
        canvas.text(x, 80, variable["label"], size=12, fill=MUTED)
        x += width_of(variable["label"], 12) + 6
        is_written = variable["type"] == "textbox"
        value = period.chosen.get(variable["name"], v2.SOURCES.get(variable["name"], "All"))
        width = width_of(value, 12) + 30
        _draw_field(canvas, x + width, 64, value, has_arrow=not is_written)
        x += width + 14


def _draw_field(canvas: Canvas, right: float, top: float, text: str, *, has_arrow: bool = True) -> None:
    """Draw a field in which a reader chooses a value, or writes one."""
    width = width_of(text, 12) + 30
    canvas.rect(Box(right - width, top, width, 24), _PANEL, stroke=_EDGE, radius=3)
    canvas.text(right - width + 8, top + 16, text, size=12, fill=TEXT)
    if has_arrow:
        canvas.path(f"M{number(right - 16)} {number(top + 10)}l4 4l4-4", stroke=MUTED, width=1.5)


def _draw_panel(canvas: Canvas, box: Box, panel: Panel, drawing: Drawing | None) -> None:
    canvas.rect(box, _PANEL, stroke=_EDGE, radius=3)
    size = min(_TITLE, round(_TITLE * (box.width - 16) / width_of(panel.title, _TITLE), 1))
    canvas.text(box.x + 10, box.y + 21, panel.title, size=size, fill=TEXT, bold=True)
    content = box.inside(10, 32, 8, 8)
    if drawing is not None:
        drawing(canvas, content)
    else:
        store = needs(panel)
        text = f"From {store}. {panel.question}" if store else panel.empty
        canvas.paragraph(content.inside(14, 0, 14, 0), text, size=12.5, fill=MUTED)


def _drawing(panel: Panel, source: Source, period: Period) -> Drawing | None:
    """Return a function that draws the data of a panel; None if there is none."""
    match panel:
        case TimeSeries() if found := series(panel, source, period):
            return partial(draw_time_series, panel=panel, found=found, period=period)
        case Stat() if found := series(panel, source, period):
            return partial(draw_stat, panel=panel, found=found, period=period)
        case Heatmap() if found := series(panel, source, period):
            has_values = any(value > 0 for each in found for _, value in each.points)
            return partial(draw_heatmap, panel=panel, found=found, period=period) if has_values else None
        case Table():
            columns, rows = table(panel, source, period)
            return partial(draw_table, columns=columns, rows=rows, sort=panel.sort) if rows else None
    return None
