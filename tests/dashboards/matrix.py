"""Which panel shows which outcome of the scenario: `python -m tests.dashboards.matrix` writes the page in docs/."""

from __future__ import annotations

import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dashboards.boards import BOARDS
from tests.dashboards.asked import IN_PANELS, Asked
from tests.dashboards.board_queries import BoardQuery
from tests.dashboards.recorded_outcomes import recorded, recording
from tests.judges.programs import ROOT
from traced_tools.demo import OUTCOMES

PAGE = ROOT / "docs" / "dashboards-matrix.md"
PanelKey = tuple[str, int]
"""The uid of a board and the id of a panel."""
Labels = frozenset[tuple[str, str]]
LIVE = {
    **dict.fromkeys([("tt-home", 2), ("tt-home", 3), ("tt-tools", 7), ("tt-tools", 8)], "0 while no run is active"),
    **dict.fromkeys([("tt-audit", 3), ("tt-telemetry", 4), ("tt-telemetry", 14)], "0 while a trail can be written"),
    **dict.fromkeys([("tt-telemetry", number) for number in (1, 9, 10, 11, 12)], "shows exporters"),
    ("tt-telemetry", 6): "shows scrapes",
}
"""Panels that no outcome gives a value other than 0 when it is over, but that have one while the scenario plays."""
NOT_PLAYED = {
    ("tt-audit", 5): "no outcome erases records",
    ("tt-audit", 6): "no outcome publishes checkpoints",
    ("tt-audit", 7): "no outcome publishes checkpoints",
    **dict.fromkeys([("tt-loops", number) for number in range(40, 46)], "no outcome has durable runs"),
    ("tt-models", 23): "no embedding fails",
    ("tt-slo", 6): "no run takes that long",
    ("tt-telemetry", 3): "no target is down",
    **dict.fromkeys([("tt-tools", number) for number in range(60, 65)], "no outcome keeps runs in a pending store"),
    **dict.fromkeys([("tt-tools", 25), ("tt-tools", 26)], "0 while no call waits"),
}
"""Panels that are 0 for all outcomes, and why."""
_CHOICE, _ALL = "choice", "all"
_ROUNDING: Final = 1e-9
"""Below this, a value is 0: Prometheus adds up series in no fixed order, and equal sums then differ by 1e-16."""
_NOT_SHOWN: Final = {"le", "job", "instance", "__name__", _CHOICE}
"""Labels that differ without a difference in what happened: buckets of durations, and where a series is from."""


@dataclass
class Effects:
    """What an outcome does to a panel.

    Attributes:
        shown: the outcomes without which a series of the panel has no value, or only zero.
        counted: the outcomes that alone give the panel a value that is not zero.
    """

    shown: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)


def values(
    asked: Asked, query: BoardQuery, services: Mapping[str, str], **variables: str
) -> dict[str, dict[Labels, float]]:
    """Return the values of a query, except 0, for each of several choices of services, by what is shown of the series.

    Args:
        asked: whom to ask.
        query: the query.
        services: the value of the variable `job` by the name of the choice.
        variables: the values of the other variables.
    """
    found: dict[str, dict[Labels, float]] = {name: {} for name in services}
    choices = (
        f'label_replace({asked.text(query, job=job, **variables)}, "{_CHOICE}", "{name}", "", "")'
        for name, job in services.items()
    )
    for labels, value in asked.now(" or ".join(choices)):
        if math.isfinite(value) and abs(value) > _ROUNDING:
            shown = frozenset((label, text) for label, text in labels.items() if label not in _NOT_SHOWN)
            found[labels[_CHOICE]][shown] = value
    return found


def effects(asked: Asked, query: BoardQuery) -> Effects:
    """Ask a query for each outcome alone, and without each outcome that alone has a series of its own."""
    alone = values(asked, query, {name: name for name in OUTCOMES})
    owners = Counter(series for each in alone.values() for series in each)
    candidates = [name for name, each in alone.items() if any(owners[series] == 1 for series in each)]
    without = {name: "|".join(OUTCOMES.keys() - {name}) for name in candidates}
    left = values(asked, query, {_ALL: "|".join(OUTCOMES), **without})
    everything = left.pop(_ALL).keys()
    counted = {name for name, each in alone.items() if each}
    return Effects({name for name, each in left.items() if everything - each.keys()}, counted)


def measured(asked: Asked) -> dict[PanelKey, Effects]:
    """Return the effects of all outcomes on all panels."""
    panels: dict[PanelKey, Effects] = defaultdict(Effects)
    of_outcomes = [query for query in IN_PANELS if "ALERTS" not in query.text]  # the clock decides when an alert fires
    with ThreadPoolExecutor(4) as pool:
        for query, found in zip(of_outcomes, pool.map(lambda query: effects(asked, query), of_outcomes), strict=True):
            assert query.panel is not None
            panels[query.board, query.panel].shown |= found.shown
            panels[query.board, query.panel].counted |= found.counted
    return dict(panels)


# The page.

_HEAD: Final = """# Which panel shows which outcome

The scenario of `traced_tools.demo` plays runs with {count} outcomes. The tests ask a real Prometheus the queries of
all boards, for each outcome alone and without each outcome. This page is what they measured: if an outcome disappears
from the telemetry, or a query no longer sees it, the tests fail.

- **Shows**: without the outcome, a line, row or number of the panel disappears or is 0.
- **Counts**: the outcome alone gives the panel a value other than 0, among those of other outcomes.

Panels over alerts, logs and traces are not here. `python -m tests.dashboards.matrix` writes this page.
"""


def page(panels: Mapping[PanelKey, Effects]) -> str:
    """Return the page."""
    return "\n".join([_HEAD.format(count=len(OUTCOMES)), *_outcomes(panels), *_boards(panels)])


def _outcomes(panels: Mapping[PanelKey, Effects]) -> Iterator[str]:
    yield "## Outcomes\n"
    yield "| Outcome | What happens | Panels that show it |"
    yield "| --- | --- | --- |"
    for outcome in OUTCOMES.values():
        boards: dict[str, list[str]] = defaultdict(list)
        for (uid, panel), found in panels.items():
            if outcome.name in found.shown:
                boards[uid].append(str(panel))
        shown = "; ".join(f"`{uid}` {', '.join(numbers)}" for uid, numbers in boards.items())
        yield f"| `{outcome.name}` | {outcome.brief} | {shown} |"
    yield ""


def _boards(panels: Mapping[PanelKey, Effects]) -> Iterator[str]:
    for board in BOARDS:
        rows = [(panel, panels[board.uid, panel.id]) for panel in board.panels if (board.uid, panel.id) in panels]
        if not rows:
            continue
        yield f"## {board.title} (`{board.uid}`)\n"
        yield "| | Panel | Shows | Counts |"
        yield "| --- | --- | --- | --- |"
        for panel, found in rows:
            reason = {**LIVE, **NOT_PLAYED}.get((board.uid, panel.id))
            counted = f"*{reason}*" if reason else _names(found.counted)
            yield f"| {panel.id} | {panel.title} | {_names(found.shown)} | {counted} |"
        yield ""


def _names(outcomes: set[str]) -> str:
    """Return the names in the order of the scenario; if most outcomes are among them, the names of the others."""
    others = [f"`{name}`" for name in OUTCOMES if name not in outcomes]
    if not others:
        return "all"
    if len(others) <= len(OUTCOMES) // 3:
        return f"all but {', '.join(others)}"
    return ", ".join(f"`{name}`" for name in OUTCOMES if name in outcomes)


def main() -> None:
    """Measure, and write the page."""
    with (
        tempfile.TemporaryDirectory() as folder,
        recording(Path(folder), {each: recorded(each) for each in OUTCOMES}) as asked,
    ):
        PAGE.write_text(page(measured(asked)))


if __name__ == "__main__":
    main()
