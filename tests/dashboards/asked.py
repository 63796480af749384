"""Asks Prometheus the queries of boards and rules as Grafana does."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

from tests.dashboards.board_queries import BoardQuery, all_queries, files
from tests.judges.prometheus import Prometheus

T = TypeVar("T")
Line = tuple[dict[str, str], list[float]]
"""The labels and the values of a series."""

OF_OTHERS = {"otelcol_": "the OpenTelemetry Collector emits it about itself; the tests of its configuration ask it"}
"""The beginnings of metrics that no application of ours emits, and who proves their queries."""


def is_ours(text: str) -> bool:
    """Whether a query asks for no metric of others."""
    return not any(metric in text for metric in OF_OTHERS)


RULES = files("rules", "*.yaml")
QUERIES = [query for query in all_queries() if query.language == "promql" and is_ours(query.text)]
IN_PANELS = [query for query in QUERIES if query.panel is not None]
RULES_AND_ALERTS = [query for query in QUERIES if query.board.endswith(".yaml")]
BOARDS = [json.loads(path.read_text()) for path in files("classic", "*.json")]
_LABELS = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True)
class Asked:
    """A Prometheus, and the time range of a board that reads it.

    Attributes:
        prometheus: the server.
        start: the beginning of the time range, as Unix time.
        end: its end.
        step: the seconds between two points.
        rate_interval: `$__rate_interval`.
        job: the service that the board shows.
    """

    prometheus: Prometheus
    start: float
    end: float
    step: int
    rate_interval: str
    job: str

    def lines(self, query: BoardQuery, **variables: str) -> list[Line]:
        """Return the series of a query that have a value, with the values that are numbers."""
        text = self.text(query, **variables)
        if query.is_instant:
            return [(labels, [value]) for labels, value in self.now(text)]
        return self.over_time(text)

    def text(self, query: BoardQuery, **variables: str) -> str:
        """Return the text of a query as Grafana sends it."""
        grafana = {
            "__rate_interval": self.rate_interval,
            "__interval": f"{self.step}s",
            "__range": f"{int(self.end - self.start)}s",
        }
        return query.resolve(**{**grafana, "job": self.job, **variables})

    def now(self, text: str) -> list[tuple[dict[str, str], float]]:
        """Return the series of an expression at the end of the time range, if their value is a number."""
        return [(labels, value) for labels, value in self.prometheus.values(text, time=self.end) if value == value]

    def over_time(self, text: str) -> list[Line]:
        """Return the series of an expression over the time range, with the values that are numbers."""
        found = self.prometheus.lines(text, self.start, self.end, self.step)
        numbers = [(labels, [value for value in values if not math.isnan(value)]) for labels, values in found]
        return [(labels, values) for labels, values in numbers if values]

    def has_data(self, query: BoardQuery, **variables: str) -> None:
        """Fail if a query has no data."""
        assert self.lines(query, **variables), f"no data for {query.text}"

    def of(self, job: str) -> Asked:
        """Return the same for another service."""
        return replace(self, job=job)

    def choices(self, board: str, variable: str) -> list[str]:
        """Return the values that a reader of a board can choose for a variable."""
        (query,) = [
            each["definition"]
            for every in BOARDS
            if every["uid"] == board
            for each in every["templating"]["list"]
            if each["name"] == variable
        ]
        found = re.fullmatch(r"label_values\((.+), *(\w+)\)", query)
        assert found, f"{board} asks for {variable} in another way: {query}"
        selector = found[1].replace("$job", self.job).replace("$agent", ".*")
        return self.prometheus.label_values(found[2], selector)


def check_all(cases: Iterable[T], check: Callable[[T], object]) -> None:
    """Call `check` with each case, several at a time, and fail with all that failed."""

    def failure(case: T) -> str | None:
        try:
            check(case)
        except AssertionError as error:
            return f"{case}: {error}"
        return None

    with ThreadPoolExecutor(4) as pool:
        checked = list(pool.map(failure, cases))
    assert checked, "there are no cases"
    failures = [each for each in checked if each]
    assert not failures, "\n".join(failures)


def labels_shown(query: BoardQuery) -> set[str]:
    """Return the labels that the legend of a query shows."""
    return set(_LABELS.findall(query.legend))


def variables_of(query: BoardQuery) -> list[str]:
    """Return the board's variables in a query."""
    return [name for name in query.variables if re.search(rf"\$(?:{name}\b|{{{name}\b)", query.text)]
