"""The page about the costs of the SDK has the parts that are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.sdk_costs import ATTRIBUTES, costs, markdown, parts

PAGE = Path(__file__).parents[2] / "docs" / "sdk-costs.md"


def test_the_page_has_each_part_and_what_is_proposed_for_it() -> None:
    measured = markdown(costs(1)).splitlines()
    stated = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    rows = [[cell for cell in row.split(" | ") if "µs" not in cell] for row in (*measured, *stated)]
    assert rows[: len(measured)] == rows[len(measured) :]


def test_the_cheaper_way_has_the_same_attributes() -> None:
    with parts() as (listed, _):
        bounded: Any = {part.name: part for part in listed}["`BoundedAttributes` of 5 attributes"]
        assert dict(bounded.sdk()) == bounded.less() == ATTRIBUTES
