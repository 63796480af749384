"""Draws a board in the layout and the colors of Grafana."""

from __future__ import annotations

from typing import Final

from dashboards import classic, v2
from dashboards.panels import Board, Heatmap, LogList, Panel, Stat, Table, TimeSeries
from dashboards.pictures.answers import Period, Source, needs, rows, series
from dashboards.pictures.charts import MUTED, TEXT, draw_heatmap, draw_stat, draw_table, draw_time_series
from dashboards.pictures.svg import Box, Canvas, width_of

WIDTH: Final = 1080.0
_COLUMN: Final = (WIDTH - 16) / 24
_ROW: Final = 38.0
_SPACE: Final = 8.0
_HEADER: Final = 96.0
_BACKGROUND: Final = "#111217"
_PANEL: Final = "#181b1f"
_EDGE: Final = "#2c3037"
_TITLE: Final = 14.0


def picture(board: Board, source: Source, period: Period) -> str:
    """Return a board with the data of a time range, as the text of an SVG file."""
    canvas = Canvas()
    layout = classic.dashboard(v2.resource(board))
    bottom = max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in layout["panels"])
    height = _HEADER + bottom * _ROW + _SPACE
    canvas.rect(Box(0, 0, WIDTH, height), _BACKGROUND)
    _draw_header(canvas, board, [variable["label"] for variable in layout["templating"]["list"]], period)
    panels = {panel.id: panel for panel in board.panels}
    for each in layout["panels"]:
        place = each["gridPos"]
        box = Box(_SPACE + place["x"] * _COLUMN, _HEADER + place["y"] * _ROW, place["w"] * _COLUMN, place["h"] * _ROW)
        box = box.inside(_SPACE / 2, 0, _SPACE / 2, _SPACE)
        if each["type"] == "row":
            canvas.text(box.x + 2, box.y + 21, f"▾  {each['title']}", size=15, fill=TEXT, bold=True)
        else:
            _draw_panel(canvas, box, panels[each["id"]], source, period)
    return canvas.document(WIDTH, height, f"{board.title}: {board.question}")


def _draw_header(canvas: Canvas, board: Board, variables: list[str], period: Period) -> None:
    canvas.text(12, 30, board.title, size=20, fill=TEXT, bold=True)
    canvas.text(12, 50, board.question, size=13, fill=MUTED)
    hours = round((period.end - period.start) / 3600)
    _draw_choice(canvas, WIDTH - 12, 14, "Last hour" if hours == 1 else f"Last {hours} hours")
    x = 12.0
    for label in variables:
        canvas.text(x, 80, label, size=12, fill=MUTED)
        x += width_of(label, 12) + 6
        value = label if label in v2.SOURCES.values() else "All"
        width = width_of(value, 12) + 30
        _draw_choice(canvas, x + width, 64, value)
        x += width + 14


def _draw_choice(canvas: Canvas, right: float, top: float, text: str) -> None:
    """Draw a field in which a reader chooses a value."""
    width = width_of(text, 12) + 30
    canvas.rect(Box(right - width, top, width, 24), _PANEL, stroke=_EDGE, radius=3)
    canvas.text(right - width + 8, top + 16, text, size=12, fill=TEXT)
    canvas.path(f"M{right - 16:g} {top + 10:g}l4 4l4-4", stroke=MUTED, width=1.5)


def _draw_panel(canvas: Canvas, box: Box, panel: Panel, source: Source, period: Period) -> None:
    canvas.rect(box, _PANEL, stroke=_EDGE, radius=3)
    size = min(_TITLE, round(_TITLE * (box.width - 16) / width_of(panel.title, _TITLE), 1))
    canvas.text(box.x + 10, box.y + 21, panel.title, size=size, fill=TEXT, bold=True)
    content = box.inside(10, 32, 8, 8)
    found = series(panel, source, period) if not isinstance(panel, Table | LogList) else []
    match panel:
        case TimeSeries() if found:
            draw_time_series(canvas, content, panel, found, period)
        case Stat() if found:
            draw_stat(canvas, content, panel, found, period)
        case Heatmap() if any(value > 0 for each in found for _, value in each.points):
            draw_heatmap(canvas, content, panel, found, period)
        case Table() if answered := rows(panel, source, period):
            draw_table(canvas, content, panel, answered)
        case _ if store := needs(panel):
            canvas.paragraph(content.inside(20, 0, 20, 0), f"From {store}. {panel.question}", size=12.5, fill=MUTED)
        case _:
            canvas.paragraph(content.inside(10, 0, 10, 0), panel.empty, size=12.5, fill=MUTED)
