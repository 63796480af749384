"""The board of objectives: which are met, and how fast do their error budgets burn?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from dashboards.objectives import BUDGET_WINDOW, FAST_BURN, OBJECTIVES, SLOW_BURN, Objective
from dashboards.panels import Board, Instant, Panel, Range, Section, Stat, Threshold, TimeSeries
from dashboards.promql import JOB, labels, legend
from dashboards.rules import budget_left, error_ratio
from dashboards.variables import SERVICE
from traced_tools.otel.prometheus_names import label_name

_WINDOWS: Final = ("5m", "1h", "6h", "3d")
_NO_RULES: Final = "No recorded ratios. Load dashboards/rules into Prometheus, and wait for five minutes of traffic."


def _of_service(recorded: str) -> str:
    return f'{recorded}{{{label_name(JOB)}=~"${SERVICE.name}"}}'


def _panels(objective: Objective, first_id: int) -> Iterator[Panel]:
    allowed = 1 - objective.objective
    yield Stat(
        id=first_id,
        title=f"{objective.title}: last {BUDGET_WINDOW}",
        question="Is the objective met?",
        reading=f"The objective is {objective.objective:.1%}.",
        queries=(Instant(f"1 - {_of_service(error_ratio(objective, BUDGET_WINDOW))}", legend(JOB, objective.by)),),
        unit="percentunit",
        width=12,
        threshold=Threshold(objective.objective, color="green", below="red"),
        empty=_NO_RULES,
    )
    yield Stat(
        id=first_id + 1,
        title="Error budget left",
        question=f"How much may still go wrong in {BUDGET_WINDOW}?",
        reading="Below 0, the budget is used up: stop what adds risk until it recovers.",
        queries=(Instant(_of_service(budget_left(objective)), legend(JOB, objective.by)),),
        unit="percentunit",
        width=12,
        threshold=Threshold(0, color="green", below="red"),
        empty=_NO_RULES,
    )
    yield TimeSeries(
        id=first_id + 2,
        title=f"Burn rate: {objective.title.lower()}",
        question="How fast does the error budget burn, and since when?",
        reading=(
            f"At 1, the budget lasts exactly {BUDGET_WINDOW}. Somebody is paged at "
            f"{' and '.join(f'{rate.factor:g} over {rate.long} and {rate.short}' for rate in FAST_BURN)}; a ticket is "
            f"opened at {' and '.join(f'{rate.factor:g} over {rate.long} and {rate.short}' for rate in SLOW_BURN)}."
        ),
        queries=tuple(
            Range(
                f"max by ({labels(objective.by)}) ({_of_service(error_ratio(objective, window))}) / {allowed:g}",
                f"{legend(objective.by)} over {window}",
            )
            for window in _WINDOWS
        ),
        unit="none",
        width=24,
        threshold=Threshold(FAST_BURN[0].factor),
        empty=_NO_RULES,
    )


BOARD: Final = Board(
    uid="tt-slo",
    title="Agents: objectives",
    question="Which objectives are met, and how fast do their error budgets burn?",
    variables=(SERVICE,),
    span="now-7d",
    refresh="5m",
    sections=tuple(
        Section(objective.title, tuple(_panels(objective, 1 + 3 * number)))
        for number, objective in enumerate(OBJECTIVES)
    ),
)
