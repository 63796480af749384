"""The pictures of the boards: what the renderer draws, and that each board has its picture."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dashboards.boards import BOARDS
from dashboards.outcomes import COLORS
from dashboards.panels import (
    Board,
    Column,
    Heatmap,
    Instant,
    Logs,
    Panel,
    Range,
    Section,
    Spans,
    Stat,
    Table,
    Threshold,
    TimeSeries,
    Unit,
)
from dashboards.pictures.answers import Labels, Period, Points, needs
from dashboards.pictures.board import PANELS, WIDTH, panel_picture, picture
from dashboards.pictures.charts import HEAT, NAMED
from dashboards.pictures.svg import width_of
from dashboards.pictures.traces import EndedSpan, UnknownQuery, matching
from dashboards.pictures.units import shown
from tests.judges.programs import ROOT

CHOSEN = {"conversation": "conversation-1", "run": ""}
PERIOD = Period(start=0.0, end=3600.0, step=60.0, rate_interval=300.0, chosen=CHOSEN)
IMAGES = ROOT / "docs" / "images"
PICTURES = IMAGES / "dashboards"
FILES = sorted(PICTURES.glob("*.svg"))


class Synthetic:
    """Answers every query with the same series.

    Attributes:
        found: the value of each series over time by its labels.
        asked: the queries, after their variables have been replaced.
    """

    def __init__(self, found: Mapping[tuple[tuple[str, str], ...], list[float]]) -> None:
        self.found = found
        self.asked: list[str] = []

    def over_time(self, query: str, start: float, end: float, step: float) -> list[tuple[Labels, Points]]:
        self.asked.append(query)
        times = [start + index * step for index in range(int((end - start) / step) + 1)]
        return [(dict(labels), list(zip(times, values, strict=False))) for labels, values in self.found.items()]

    def spans(self) -> list[EndedSpan]:
        return SPANS if self.found else []

    def at(self, query: str, time: float) -> list[tuple[Labels, float]]:
        self.asked.append(query)
        return [(dict(labels), values[-1]) for labels, values in self.found.items()]


def span(name: str, start: float, parent: str | None = None, **attributes: object) -> EndedSpan:
    given = {key.replace("__", "."): value for key, value in attributes.items()}
    return EndedSpan("4bf92f3577b34da6", name, parent, "travel-agent", name, start, 0.25, "error.type" in given, given)


SPANS = [
    span(
        "run", 0.0, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="planner", traced_tools__loop__cost=2.5
    ),
    span("model", 1.0, "run", gen_ai__operation__name="chat", gen_ai__response__finish_reasons=("stop", "length")),
    span("tool", 2.0, "model", gen_ai__operation__name="execute_tool", error__type="timeout"),
]
WAVES = {
    (("le", f"{2.0**index:g}"), ("gen_ai_tool_name", f"a_tool_with_a_long_name_{index}")): [
        (index + 1) * (2 + math.sin(minute / 9)) for minute in range(61)
    ]
    for index in range(12)
}
"""More series than a panel has room for, which grow like the buckets of a histogram."""


def board_of(panel: Panel) -> Board:
    return Board(uid="tt-one", title="One", question="What?", sections=(Section("Only", (panel,)),), variables=())


def drawn(panel: Panel, found: Mapping[tuple[tuple[str, str], ...], list[float]]) -> ElementTree.Element:
    return ElementTree.fromstring(picture(board_of(panel), Synthetic(found), PERIOD))


def elements(svg: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return svg.findall(f"{{http://www.w3.org/2000/svg}}{name}")


def texts(svg: ElementTree.Element) -> list[str]:
    return [each.text or "" for each in elements(svg, "text")]


RANGE = (Range("x", "{{gen_ai_tool_name}}"),)
STAT = Stat(id=1, title="Number", question="How many?", queries=(Instant("x"),), empty="Run the demo.")
LINES = TimeSeries(id=1, title="Lines", question="When?", queries=RANGE, empty="Run the demo.")
TABLE = Table(
    id=1,
    title="Rows",
    question="Which?",
    queries=(Instant("x"),),
    columns={"gen_ai_tool_name": Column("Tool"), "Value": Column("Time", "s")},
    sort="Value",
    empty="Run the demo.",
)


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
@pytest.mark.parametrize("found", [WAVES, {}], ids=["many series", "no series"])
def test_a_picture_shows_every_panel_within_its_edges(
    board: Board, found: Mapping[tuple[tuple[str, str], ...], list[float]]
) -> None:
    source = Synthetic(found)
    svg = ElementTree.fromstring(picture(board, source, PERIOD))
    assert {panel.title for panel in board.panels} <= {*texts(svg)}
    assert source.asked or all(needs(panel) for panel in board.panels)
    assert not [query for query in source.asked if "$" in query]
    for each in elements(svg, "text"):
        width = width_of(each.text or "", float(each.attrib["font-size"]))
        left = float(each.attrib["x"]) - width * {"middle": 0.5, "end": 1.0}.get(each.attrib.get("text-anchor", ""), 0)
        assert left >= 0, each.text
        assert left + width <= WIDTH + 1, each.text


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_each_board_has_a_committed_picture_of_its_panels(board: Board) -> None:
    svg = ElementTree.fromstring((PICTURES / f"{board.uid}.svg").read_text())
    assert {panel.title for panel in board.panels} <= {*texts(svg)}, "run `make pictures`"


@pytest.mark.parametrize("name", PANELS)
def test_a_panel_has_a_committed_picture_of_its_own(name: str) -> None:
    board, number = PANELS[name]
    (panel,) = [panel for panel in board.panels if panel.id == number]
    source = Synthetic(WAVES)
    for text in (panel_picture(panel, source, PERIOD), (IMAGES / f"{name}.svg").read_text()):
        assert panel.title in texts(ElementTree.fromstring(text)), "run `make pictures`"


def test_pictures_have_each_color_of_a_stop_reason() -> None:
    assert {*COLORS.values()} <= NAMED.keys()


def test_no_picture_is_left_from_a_board_that_is_gone() -> None:
    assert {path.stem for path in FILES} == {board.uid for board in BOARDS}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_committed_picture_is_small_and_loads_nothing(path: Path) -> None:
    text = path.read_text()
    assert len(text) < 200_000
    assert "<script" not in text
    assert re.findall(r"https?://[^\"<]+", text) == ["http://www.w3.org/2000/svg"]


@pytest.mark.parametrize("panel", [STAT, LINES, TABLE, replace(STAT, queries=(Range("x", ""),))])
def test_a_panel_without_data_says_what_to_do(panel: Panel) -> None:
    assert "Run the demo." in texts(drawn(panel, {}))


def test_a_panel_of_another_store_says_which() -> None:
    spans, logs = (replace(TABLE, queries=(query,)) for query in (Spans("{ name = nil } | count() > 4"), Logs("{}")))
    assert "From Tempo. Which?" in texts(drawn(spans, WAVES))
    assert "From Loki. Which?" in texts(drawn(logs, WAVES))


@pytest.mark.parametrize(("value", "color"), [(0.98, "red"), (0.99, "green"), (1.0, "green")])
def test_a_number_has_its_unit_and_the_color_of_its_threshold(value: float, color: str) -> None:
    panel = replace(STAT, unit="percentunit", threshold=Threshold(0.99, color="green", below="red"))
    svg = drawn(panel, {(): [value]})
    (number,) = [each for each in elements(svg, "text") if each.text == f"{value * 100:g}%"]
    assert number.attrib["fill"] == NAMED[color]


def test_a_row_of_panels_without_data_is_low() -> None:
    heights = [float(drawn(LINES, found).attrib["height"]) for found in (WAVES, {})]
    assert heights[0] - heights[1] == (LINES.height - 3) * 38


def test_each_of_several_numbers_has_its_name_and_a_single_one_has_not() -> None:
    panel = replace(STAT, queries=(Instant("x", "{{gen_ai_tool_name}} of all"),))
    search, pay = ({(("gen_ai_tool_name", name),): [3.0]} for name in ("search", "pay"))
    assert {"search of all", "pay of all"} <= {*texts(drawn(panel, search | pay))}
    assert "search of all" not in texts(drawn(panel, search))


def test_a_number_may_be_shown_as_a_text() -> None:
    assert "broken" in texts(drawn(replace(STAT, values={"0": "broken"}), {(): [0.0]}))


def test_a_legend_names_the_series_and_counts_those_without_room() -> None:
    shown_texts = texts(drawn(LINES, WAVES))
    assert "a_tool_with_a_long_name_0" in shown_texts
    (more,) = [text for text in shown_texts if re.fullmatch(r"\+ \d+ more", text)]
    assert sum("long_name" in text for text in shown_texts) + int(more.split()[1]) == len(WAVES)


def test_the_axis_of_stacked_series_reaches_their_sum() -> None:
    found = {(("gen_ai_tool_name", name),): [40.0] * 61 for name in "abc"}
    assert "150" in texts(drawn(replace(LINES, stacked=True), found))
    assert "150" not in texts(drawn(LINES, found))


def test_a_stacked_area_starts_with_its_first_value() -> None:
    late = [math.nan] * 30 + [4.0] * 31
    svg = drawn(replace(LINES, stacked=True), {(): late})
    (area,) = [each for each in elements(svg, "path") if each.attrib["d"].endswith("Z")]
    steps = [float(each) for each in area.attrib["d"].removesuffix("Z").partition("l")[2].split()]
    assert sum(steps[::2]) == pytest.approx(0, abs=0.01)  # so the line that closes the area is vertical


def test_a_line_breaks_where_values_are_missing() -> None:
    whole = [1.0 + minute % 2 for minute in range(61)]
    gap = [*whole[:20], *[math.nan] * 10, *whole[30:]]

    def lines(values: list[float]) -> int:
        return sum("stroke-width" in each.attrib and each.attrib["stroke"] == "#73bf69" for each in paths(values))

    def paths(values: list[float]) -> list[ElementTree.Element]:
        return elements(drawn(LINES, {(): values}), "path")

    assert lines(gap) == lines(whole) + 1


def test_rows_are_sorted_and_those_without_room_are_counted() -> None:
    shown_texts = texts(drawn(TABLE, WAVES))
    assert shown_texts.index("a_tool_with_a_long_name_11") < shown_texts.index("a_tool_with_a_long_name_10")
    assert f"{len(WAVES) - sum('long_name' in text for text in shown_texts)} more rows" in shown_texts


def test_rows_of_several_queries_with_the_same_labels_are_one() -> None:
    columns = {"gen_ai_tool_name": Column("Tool"), "Value #A": Column("Calls"), "Value #B": Column("Time", "s")}
    panel = replace(TABLE, queries=(Instant("x"), Instant("y")), columns=columns, sort="Value #A")
    shown_texts = texts(drawn(panel, {(("gen_ai_tool_name", "search"),): [3.0]}))
    assert shown_texts.count("search") == 1
    assert {"3", "3 s"} <= {*shown_texts}


def test_the_cells_of_a_heatmap_are_the_growth_of_each_bucket() -> None:
    panel = Heatmap(id=1, title="Cells", question="How many?", queries=(Range("x", "{{le}}"),), empty="", unit="s")
    growing = {(("le", le),): [value] * 61 for le, value in (("1", 0.0), ("2", 5.0), ("4", 5.0), ("+Inf", 6.0))}
    svg = drawn(panel, growing)
    colors = {each.attrib["fill"] for each in elements(svg, "path") if each.attrib["fill"] in HEAT}
    assert colors == {HEAT[-1], HEAT[int(math.sqrt(1 / 5) * len(HEAT))]}  # 5 in the bucket of 2, 1 in the last
    assert {"2 s", "∞"} <= {*texts(svg)}
    assert "1 s" not in texts(svg)


@pytest.mark.parametrize(
    ("query", "names", "selected"),
    [
        ('{ resource.service.name =~ ".*" }', ["tool", "model", "run"], []),
        ('{ resource.service.name = "other" }', [], []),
        ("{ status = error } | select(span.error.type, span.x)", ["tool"], ["error.type", "x"]),
        ('{ span.gen_ai.operation.name =~ "chat|agent" && name != "run" }', ["model"], []),
        ('{ span.gen_ai.response.finish_reasons =~ "length|content_filter" }', ["model"], []),
        ('{ name = "run" || (name = "tool" && duration > 100ms) }', ["tool", "run"], []),
        ("{ duration > 1s }", [], []),
        ("{ span.traced_tools.loop.cost > 2 }", ["run"], []),
        ("{ span.error.type != nil }", ["tool"], []),
        ("{ span.error.type = nil }", ["model", "run"], []),
        ('{ name = "run" } >> { span.gen_ai.operation.name = "execute_tool" }', ["tool"], []),
        ('{ name = "tool" } >> { name = "model" }', [], []),
    ],
)
def test_traceql_finds_spans_the_newest_first(query: str, names: list[str], selected: list[str]) -> None:
    found, columns = matching(query, SPANS)
    assert ([each.name for each in found], columns) == (names, selected)


@pytest.mark.parametrize(
    "query", ["{ } | count() > 4", '{ name = "a" } | rate()', '{ name = "a"', '{ name % "a" }', ""]
)
def test_traceql_that_only_tempo_knows_is_an_error(query: str) -> None:
    with pytest.raises(UnknownQuery):
        matching(query, SPANS)


def test_a_table_of_spans_has_their_attributes() -> None:
    query = "{ span.traced_tools.loop.cost > 0 } | select(span.gen_ai.agent.name, span.traced_tools.loop.cost)"
    shown_texts = texts(drawn(replace(TABLE, queries=(Spans(query),), columns=None, sort=None), WAVES))
    assert {"Trace", "4bf92f35", "agent.name", "planner", "loop.cost", "2.5", "250 ms"} <= {*shown_texts}
    assert "tool" not in shown_texts


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.9876, "percentunit", "98.8%"),
        (0.0123, "s", "12.3 ms"),
        (0.0000123, "s", "12.3 µs"),
        (75, "s", "1.25 mins"),
        (0, "s", "0 s"),
        (86_400 * 3, "s", "3 days"),
        (1234, "short", "1.23 K"),
        (2_500_000, "short", "2.5 Mil"),
        (-1234, "short", "-1.23 K"),
        (0.0421, "currencyUSD", "$0.0421"),
        (1536, "bytes", "1.5 KiB"),
        (0.25, "reqps", "0.25 req/s"),
        (100, "short", "100"),
        (1, "bool", "True"),
        (math.nan, "s", "-"),
    ],
)
def test_a_value_is_shown_with_its_unit(value: float, unit: Unit, text: str) -> None:
    assert shown(value, unit) == text
