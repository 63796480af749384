"""Draws the pictures of the dashboards: python docs/dashboard_pictures.py, from the root of the repository.

A scenario plays a day with an incident. A real Prometheus stores its metrics and answers the queries of the boards.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dashboards.boards import BOARDS
from dashboards.pictures.answers import Labels, Period, Points
from dashboards.pictures.board import picture
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE, Prometheus, scraping
from traced_tools.testing import Scenario, write_history

ROOT: Final = Path(__file__).parents[1]
PICTURES: Final = ROOT / "docs" / "images" / "dashboards"
_JOB: Final = "travel-agent"
_POINTS: Final = 90
_UNITS: Final = {"m": 60, "h": 3600, "d": 86_400}
_SERIES: Final = re.compile(r"^(\w+)(\{)?", re.MULTILINE)
_RARE: Final = (
    *("provider_down", "provider_error", "rate_limit_exhausted", "run_failed_by_tool", "run_failed_by_advisor"),
    *("deadline", "consecutive_errors", "audit_gap", "telemetry_failure", "abandoned_stream", "tool_timeout"),
    *("late_result", "max_iterations", "max_tool_calls", "max_calls_per_tool", "token_budget", "repeated_call"),
)
"""Outcomes that only happen during the incident."""


@dataclass(frozen=True)
class Chapter:
    """A part of the day.

    Attributes:
        minutes: how long it takes.
        step: seconds between two samples.
        runs_per_minute: how busy the agents are.
        without: the outcomes that don't happen.
    """

    minutes: int
    step: int
    runs_per_minute: int
    without: tuple[str, ...] = _RARE


DAY: Final = (
    Chapter(21 * 60, 300, 2),
    Chapter(75, 60, 6),
    Chapter(35, 60, 8, ()),
    Chapter(70, 60, 6),
)


def main() -> None:
    """Draw every board."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    end = float(int(time.time()) // 60 * 60)
    with tempfile.TemporaryDirectory() as folder:
        _write_blocks(Path(folder), end)
        with scraping({}, Path(folder)) as server:
            source = Answers(server)
            for board in BOARDS:
                span = int(board.span[4:-1]) * _UNITS[board.span[-1]]
                step = max(60, span // _POINTS)
                period = Period(end - span, end, step, rate_interval=max(300, 4 * step))
                path = PICTURES / f"{board.uid}.svg"
                path.write_text(picture(board, source, period))
                print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")


class Answers:
    """The answers of a Prometheus."""

    def __init__(self, server: Prometheus) -> None:
        self._server = server

    def over_time(self, query: str, start: float, end: float, step: float) -> list[tuple[Labels, Points]]:
        """Return the labels and points of each series of a range query."""
        found = self._server.ask("query_range", query=query, start=start, end=end, step=step)["result"]
        return [(each["metric"], [(at, float(value)) for at, value in each["values"]]) for each in found]

    def at(self, query: str, time: float) -> list[tuple[Labels, float]]:
        """Return the labels and the value of each series of an instant query."""
        found = self._server.ask("query", query=query, time=time)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]


def _write_blocks(folder: Path, end: float) -> None:
    """Write the day as blocks of Prometheus, and what the recording rules make of it."""
    promtool = program("promtool", PACKAGE)
    later = sum(chapter.minutes for chapter in DAY)
    for number, chapter in enumerate(DAY):
        later -= chapter.minutes
        history = folder / f"{number}.txt"
        write_history(
            history,
            Scenario(seed=number, without=chapter.without),
            days=chapter.minutes / 1440,
            step=chapter.step,
            runs_per_step=chapter.runs_per_minute * chapter.step // 60,
            end=end - later * 60,
            service_name=_JOB,
        )
        with history.open() as lines:
            labelled = folder / "labelled.txt"
            with labelled.open("w") as file:
                file.writelines(_with_job(lines))
        _run(promtool, "tsdb", "create-blocks-from", "openmetrics", labelled, folder / "data")
        history.unlink()
        labelled.unlink()


def _with_job(lines: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a history with the label that a scraper sets."""
    for line in lines:
        if line.startswith("#"):
            yield line
        else:
            name, brace = _SERIES.match(line).groups()  # type: ignore[union-attr]
            yield f'{name}{{job="{_JOB}"' + (f",{line[len(name) + 1 :]}" if brace else f"}}{line[len(name) :]}")


def _run(*command: object) -> None:
    done = subprocess.run([str(each) for each in command], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} ended with {done.returncode}: {done.stderr}")


if __name__ == "__main__":
    main()
