"""Recording rules: the ratios and sums that alerts, objectives and long time ranges read.

The names follow https://prometheus.io/docs/practices/rules/#naming, with `traced_tools` as the level's prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dashboards.conventions import token_rate
from dashboards.objectives import BUDGET_WINDOW, LONG_WINDOWS, OBJECTIVES, WINDOWS, Objective
from dashboards.outcomes import REFUSED
from dashboards.promql import INSTANCE, JOB, Selection, equals, has, labels, occurrences, one_of, rate, share, total
from traced_tools.observe import names

PREFIX: Final = "traced_tools"
_COUNTED: Final = "5m"
select: Final = Selection()


@dataclass(frozen=True)
class Recording:
    """A recording rule.

    Attributes:
        name: the recorded series' name.
        text: the expression.
    """

    name: str
    text: str


def error_ratio(objective: Objective, window: str) -> str:
    """Return the name of the recorded share of bad events in a window."""
    return f"{PREFIX}:{objective.name}:ratio_rate{window}"


def budget_left(objective: Objective) -> str:
    """Return the name of the recorded share of the error budget that is left."""
    return f"{PREFIX}:{objective.name}:budget_left{BUDGET_WINDOW}"


def counts_of(objective: Objective) -> tuple[Recording, Recording]:
    """Return the recorded numbers of bad events and of all events in five minutes.

    Ratios over longer windows add these up, because that reads one series for each agent or provider instead of all
    buckets of all processes. An event counts in each evaluation of five minutes, among the bad ones as among all.
    """
    by = (JOB, objective.by)
    count = occurrences(objective.all, *by, window=_COUNTED)
    if objective.good:  # without the bucket of the objective, there is no ratio
        bad = f"{count} - {occurrences(objective.good, *by, window=_COUNTED)}"
    else:
        bad = f"{occurrences(objective.bad, *by, window=_COUNTED)} or 0 * {count}"
    return (
        Recording(f"{PREFIX}:{objective.name}:bad_increase{_COUNTED}", bad),
        Recording(f"{PREFIX}:{objective.name}:all_increase{_COUNTED}", count),
    )


def _ratio(objective: Objective, window: str) -> Recording:
    bad, every = (f"sum_over_time({count.name}[{window}])" for count in counts_of(objective))
    return Recording(error_ratio(objective, window), f"{bad} / ({every} > 0)")


def _over_hours() -> Iterator[Recording]:
    for objective in OBJECTIVES:
        yield from counts_of(objective)
        for window in WINDOWS:
            yield _ratio(objective, window)


def _over_days() -> Iterator[Recording]:
    for objective in OBJECTIVES:
        for window in (*LONG_WINDOWS, BUDGET_WINDOW):
            yield _ratio(objective, window)
        used = f"{_ratio(objective, BUDGET_WINDOW).text} / {1 - objective.objective:g}"
        yield Recording(budget_left(objective), f"1 - {used}")


TOOL_ERRORS: Final = Recording(
    f"{PREFIX}:tool_errors:ratio_rate15m",
    share(
        occurrences(
            select(names.EXECUTE_TOOL_DURATION, has(names.ERROR_TYPE), part="count"), JOB, names.TOOL_NAME, window="15m"
        ),
        occurrences(select(names.EXECUTE_TOOL_DURATION, part="count"), JOB, names.TOOL_NAME, window="15m"),
    ),
)
TOOL_REFUSALS: Final = Recording(
    f"{PREFIX}:tool_refusals:ratio_rate1h",
    share(
        occurrences(
            select(names.TOOL_DECISIONS, one_of(names.TOOL_DECISION, REFUSED)), JOB, names.TOOL_NAME, window="1h"
        ),
        occurrences(select(names.TOOL_DECISIONS), JOB, names.TOOL_NAME, window="1h"),
    ),
)
TOKENS: Final = Recording(
    f"{PREFIX}:tokens:rate5m", token_rate(select, JOB, names.AGENT_NAME, names.REQUEST_MODEL, window="5m")
)
COST: Final = Recording(
    f"{PREFIX}:cost_usd:increase1h", occurrences(select(names.USAGE_COST), JOB, names.AGENT_NAME, window="1h")
)
TELEMETRY_LOSS: Final = Recording(
    f"{PREFIX}:telemetry_loss:ratio_rate5m",
    share(
        rate(select(names.EXPORT_DROPPED), JOB, names.EXPORTER_NAME, window="5m"),
        rate(select((names.EXPORT_ITEMS, names.EXPORT_DROPPED)), JOB, names.EXPORTER_NAME, window="5m"),
    ),
)
_INTENTS: Final = select(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "intent"))
_DECIDED: Final = total(select(names.TOOL_DECISIONS), JOB, INSTANCE, names.AGENT_NAME)
_INTENDED: Final = total(_INTENTS, JOB, INSTANCE, names.AGENT_NAME)
_AUDITED: Final = total(f"last_over_time({_INTENTS}[1d])", JOB, names.AGENT_NAME, function="group")
AUDIT_MISSING: Final = Recording(
    f"{PREFIX}:audit_missing:sum",
    # Both counters start with the process, so the difference is exact without a window. Its growth is what matters. An
    # agent is audited if one of its processes has recorded an intent within a day.
    f"({_DECIDED} - ({_INTENDED} or 0 * {_DECIDED})) and on ({labels(JOB, names.AGENT_NAME)}) {_AUDITED}",
)


@dataclass(frozen=True)
class Group:
    """Rules that are evaluated one after the other.

    Attributes:
        rules: the rules.
        interval: how often; by default as Prometheus's configuration says.
    """

    rules: tuple[Recording, ...]
    interval: str | None = None


GROUPS: Final = {
    "traced_tools_objectives": Group(tuple(_over_hours())),
    "traced_tools_objectives_of_days": Group(tuple(_over_days()), "2m"),  # less than the 5 minutes a sample is current
    "traced_tools_tools": Group((TOOL_ERRORS, TOOL_REFUSALS)),
    "traced_tools_usage": Group((TOKENS, COST)),
    "traced_tools_telemetry": Group((TELEMETRY_LOSS, AUDIT_MISSING)),
}
"""The groups of recording rules by name."""


def recording_file() -> dict[str, Any]:
    """Return the rules as the content of a rule file."""
    return {
        "groups": [
            {
                "name": name,
                **({} if group.interval is None else {"interval": group.interval}),
                "rules": [{"record": rule.name, "expr": rule.text} for rule in group.rules],
            }
            for name, group in GROUPS.items()
        ]
    }
