"""The page about the dashboards describes the boards that there are."""

from __future__ import annotations

import re

import pytest

from dashboards.boards import BOARDS
from dashboards.panels import Board
from dashboards.pictures.answers import needs
from tests.judges.programs import ROOT

PAGE = (ROOT / "docs" / "dashboards.md").read_text()


def test_the_page_has_a_section_for_each_board_in_the_order_of_their_menu() -> None:
    described = PAGE.partition("## The boards\n")[2].partition("\n## ")[0]
    section = r"^### (.+)\n\n\*(.+?)\* .+\n\n[^!]+\n\n!\[\1\]\(images/dashboards/(.+)\.svg\)$"
    sections = re.findall(section, described, re.MULTILINE)
    assert sections == [(board.title, board.question, board.uid) for board in BOARDS]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)
def test_the_page_counts_the_panels_of_each_data_source(board: Board) -> None:
    (row,) = re.findall(rf"^\| {re.escape(board.title)} \|(.*)\|$", PAGE, re.MULTILINE)
    counts = [int(cell or 0) for cell in map(str.strip, row.split("|"))]
    assert counts == [sum(needs(panel) == store for panel in board.panels) for store in ("", "Tempo", "Loki")]


def test_the_page_says_how_many_boards_there_are() -> None:
    numbers = ("Seven", "Eight", "Nine", "Ten", "Eleven")
    assert f"\n{numbers[len(BOARDS) - 7]} boards for Grafana" in PAGE
