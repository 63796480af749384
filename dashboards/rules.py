"""Recording rules: the ratios and sums that alerts, objectives and long time ranges read.

The names follow https://prometheus.io/docs/practices/rules/#naming, with `traced_tools` as the level's prefix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from dashboards.conventions import token_rate
from dashboards.objectives import BUDGET_WINDOW, OBJECTIVES, WINDOWS, Objective
from dashboards.outcomes import REFUSED
from dashboards.promql import INSTANCE, JOB, Selection, equals, has, increase, one_of, rate, share, total
from traced_tools.observe import names

PREFIX: Final = "traced_tools"
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


def _error_ratio(objective: Objective, window: str) -> str:
    whole, by = rate(objective.all, JOB, objective.by, window=window), (JOB, objective.by)
    if objective.good:
        return f"1 - {share(rate(objective.good, *by, window=window), whole)}"
    return share(rate(objective.bad, *by, window=window), whole)


def _of_objectives() -> Iterator[Recording]:
    for objective in OBJECTIVES:
        for window in (*WINDOWS, BUDGET_WINDOW):
            yield Recording(error_ratio(objective, window), _error_ratio(objective, window))
        used = f"{error_ratio(objective, BUDGET_WINDOW)} / {1 - objective.objective:g}"
        yield Recording(budget_left(objective), f"1 - {used}")


TOOL_ERRORS: Final = Recording(
    f"{PREFIX}:tool_errors:ratio_rate5m",
    share(
        rate(
            select(names.EXECUTE_TOOL_DURATION, has(names.ERROR_TYPE), part="count"), JOB, names.TOOL_NAME, window="5m"
        ),
        rate(select(names.EXECUTE_TOOL_DURATION, part="count"), JOB, names.TOOL_NAME, window="5m"),
    ),
)
TOOL_REFUSALS: Final = Recording(
    f"{PREFIX}:tool_refusals:ratio_rate1h",
    share(
        rate(select(names.TOOL_DECISIONS, one_of(names.TOOL_DECISION, REFUSED)), JOB, names.TOOL_NAME, window="1h"),
        rate(select(names.TOOL_DECISIONS), JOB, names.TOOL_NAME, window="1h"),
    ),
)
TOKENS: Final = Recording(
    f"{PREFIX}:tokens:rate5m", token_rate(select, JOB, names.AGENT_NAME, names.REQUEST_MODEL, window="5m")
)
COST: Final = Recording(
    f"{PREFIX}:cost_usd:increase1h", increase(select(names.USAGE_COST), JOB, names.AGENT_NAME, window="1h")
)
TELEMETRY_LOSS: Final = Recording(
    f"{PREFIX}:telemetry_loss:ratio_rate5m",
    share(
        rate(select(names.EXPORT_DROPPED), JOB, names.EXPORTER_NAME, window="5m"),
        rate(select((names.EXPORT_ITEMS, names.EXPORT_DROPPED)), JOB, names.EXPORTER_NAME, window="5m"),
    ),
)
AUDIT_MISSING: Final = Recording(
    f"{PREFIX}:audit_missing:sum",
    # Both counters start with the process, so the difference is exact without a window. Its growth is what matters.
    " - ".join(
        total(series, JOB, INSTANCE, names.AGENT_NAME)
        for series in (select(names.TOOL_DECISIONS), select(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "intent")))
    ),
)

GROUPS: Final[dict[str, tuple[Recording, ...]]] = {
    "traced_tools_objectives": tuple(_of_objectives()),
    "traced_tools_tools": (TOOL_ERRORS, TOOL_REFUSALS),
    "traced_tools_usage": (TOKENS, COST),
    "traced_tools_telemetry": (TELEMETRY_LOSS, AUDIT_MISSING),
}
"""The recording rules by the name of their group."""


def recording_file() -> dict[str, Any]:
    """Return the rules as the content of a rule file."""
    return {
        "groups": [
            {"name": name, "rules": [{"record": rule.name, "expr": rule.text} for rule in rules]}
            for name, rules in GROUPS.items()
        ]
    }
