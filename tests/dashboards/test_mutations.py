"""Without an outcome, or with another name of a label, exactly the panels change that are predicted to."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from dashboards.boards import BOARDS
from dashboards.rules import GROUPS as RECORDINGS
from dashboards.variables import SERVICE
from tests.dashboards.asked import IN_PANELS, Asked, check_all
from tests.dashboards.board_queries import BoardQuery
from tests.dashboards.matrix import LIVE, NOT_PLAYED, PAGE, Effects, Labels, PanelKey, measured, page, values
from tests.dashboards.recorded_outcomes import recorded, recording, total
from tests.judges.programs import program
from tests.judges.prometheus import PACKAGE
from traced_tools.demo import OUTCOMES
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name, prometheus_name

pytestmark = pytest.mark.slow

LABELS = sorted({label_name(attribute) for metric in names.METRICS.values() for attribute in metric.attributes})
RECORDED = {rule.name: rule.text for group in RECORDINGS.values() for rule in group.rules}
EVERYTHING = "everything"
"""The service that has all outcomes."""
REST = "rest"
"""The choice of a service in which all labels that a query doesn't name have another name."""
OF_EARLIER_NAMES: dict[tuple[str, int | None], set[str]] = {("tt-loops", 22): {label_name(names.OPERATION_NAME)}}
"""Labels that a query reads of metrics with earlier names alone, which the scenario does not emit."""
NOT_EMITTED = {label_name(names.TOKEN_TYPE)}
"""Labels that only metrics with earlier names have."""
ALL_NAMES = {
    f"{prometheus_name(metric)}{part}"
    for metric in names.METRICS.values()
    for part in (("_bucket", "_count", "_sum") if metric.instrument == "histogram" else ("",))
}
_ANY_NAME = re.compile("__name__|ALERTS")
"""In a query that reads series of any name."""
_EXCLUSION = re.compile(r'\w+!(?:="\w|~)')
"""A matcher that a series without the label meets, too."""


@dataclass(frozen=True)
class Mutated:
    """A Prometheus that has each outcome apart, and all of them with a label renamed, or with those that a query lacks.

    Attributes:
        asked: the boards' view of it.
        panels: what outcomes do to panels.
    """

    asked: Asked
    panels: dict[PanelKey, Effects]


@pytest.fixture(scope="module")
def mutated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mutated]:
    program("prometheus", PACKAGE)
    outcomes = {name: recorded(name) for name in OUTCOMES}
    everything = total(outcomes.values())
    others = {service: everything.of(read).renamed(renamed) for service, (renamed, read) in renamings().items()}
    with recording(tmp_path_factory.mktemp("mutated"), {**outcomes, EVERYTHING: everything, **others}) as asked:
        yield Mutated(asked, measured(asked))


def renamings() -> dict[str, tuple[frozenset[str], set[str]]]:
    """Return the labels with another name of each service, and the names in the queries that are asked about it."""
    services: dict[str, tuple[frozenset[str], set[str]]] = {}
    for query in IN_PANELS:
        labels, text = labels_of(query), expanded(query.text)
        read = ALL_NAMES if _ANY_NAME.search(text) else words(text)
        services.setdefault(only(labels), (frozenset(LABELS) - labels, set()))[1].update(read)
        for label in labels:
            services.setdefault(without(label), (frozenset({label}), set()))[1].update(read)
    return services


def test_each_outcome_changes_exactly_the_panels_on_the_page(mutated: Mutated) -> None:
    assert page(mutated.panels) == PAGE.read_text(), "if this is right, run `python -m tests.dashboards.matrix`"


def test_each_outcome_is_shown_by_a_panel(mutated: Mutated) -> None:
    assert set().union(*(found.shown for found in mutated.panels.values())) == OUTCOMES.keys()


def test_each_panel_counts_an_outcome_unless_there_is_a_reason(mutated: Mutated) -> None:
    assert {panel for panel, found in mutated.panels.items() if not found.counted} == LIVE.keys() | NOT_PLAYED.keys()


def test_with_another_name_of_a_label_the_queries_change_that_use_it_and_no_other(mutated: Mutated) -> None:
    chosen = {variable.name: ".+" for board in BOARDS for variable in board.variables if variable != SERVICE}

    def check(query: BoardQuery) -> None:
        labels = labels_of(query)
        services = {EVERYTHING: EVERYTHING, REST: only(labels), **{label: without(label) for label in labels}}
        found = values(mutated.asked, query, services, **chosen)
        was, without_rest = found.pop(EVERYTHING), found.pop(REST)
        assert are_equal(was, without_rest), "it changes with a label that it doesn't name"
        changed = {label for label, now in found.items() if not are_equal(was, now)}
        left_out = NOT_EMITTED | OF_EARLIER_NAMES.get((query.board, query.panel), set())
        used = words(_EXCLUSION.sub("", expanded(query.text))) & labels - left_out
        assert used <= changed or not was, used - changed

    check_all(IN_PANELS, check)


def labels_of(query: BoardQuery) -> frozenset[str]:
    """Return the labels that a query names, also in rules that it reads."""
    return frozenset(words(expanded(query.text)) & {*LABELS})


def are_equal(was: dict[Labels, float], now: dict[Labels, float]) -> bool:
    return was.keys() == now.keys() and all(math.isclose(was[series], now[series]) for series in was)


def without(label: str) -> str:
    """Return the name of the service of which a label has another name."""
    return f"without_{label}"


def only(labels: frozenset[str]) -> str:
    """Return the name of the service of which all labels but these have another name."""
    return f"only_{'_and_'.join(sorted(labels))}"


def expanded(text: str) -> str:
    """Return a query with the texts of the recording rules that it reads."""
    read = [RECORDED[name] for name in RECORDED if name in words(text)]
    return " ".join([text, *map(expanded, read)])


def words(text: str) -> set[str]:
    return set(re.findall(r"[\w:]+", text))
