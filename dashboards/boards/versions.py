"""The board of versions: what changed between two versions of an agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dashboards import links
from dashboards.outcomes import CANCELLED, FAILED, LIMITED, REFUSED
from dashboards.panels import Board, Column, Instant, Range, Section, Stat, Table, TimeSeries, Unit
from dashboards.promql import (
    RANGE,
    RATE_INTERVAL,
    Selection,
    increase,
    legend,
    mean,
    none_of,
    one_of,
    quantile,
    rate,
    share,
)
from dashboards.variables import AGENT, SERVICE, VERSION_A, VERSION_B, selection_of
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, AGENT, VERSION_A, VERSION_B)
select: Final = selection_of(*VARIABLES)
_SELECT_A: Final = selection_of(SERVICE, AGENT, VERSION_A)
_SELECT_B: Final = selection_of(SERVICE, AGENT, VERSION_B)
_VERSION: Final = (names.AGENT_NAME, names.AGENT_VERSION)
_NO_RUNS: Final = "No runs of these versions in this time range. Choose a longer range, or other versions."
_NO_CALLS: Final = "The runs of these versions requested no tool calls in this time range."
_NO_COST: Final = "No cost. Set TelemetryOptions(prices=GenaiPrices()), and look for unpriced tokens on Agents: cost."


def _runs(select: Selection, *matchers: str) -> str:
    return select(names.LOOP_ITERATIONS_METRIC, *matchers, part="count")


def _share_of_runs(select: Selection, reasons: tuple[str, ...], *by: str, window: str) -> str:
    """Return the share of runs, except cancelled ones, that ended for one of these reasons."""
    ended = _runs(select, one_of(names.LOOP_STOP_REASON, reasons))
    counted = _runs(select, none_of(names.LOOP_STOP_REASON, CANCELLED))
    return share(rate(ended, *by, window=window), rate(counted, *by, window=window))


def _failed(select: Selection, *by: str, window: str = RANGE) -> str:
    return _share_of_runs(select, FAILED, *by, window=window)


def _limited(select: Selection, *by: str, window: str = RANGE) -> str:
    return _share_of_runs(select, LIMITED, *by, window=window)


def _refused(select: Selection, *by: str, window: str = RANGE) -> str:
    """Return the share of requested calls that a policy or a person refused."""
    refused = select(names.TOOL_DECISIONS, one_of(names.TOOL_DECISION, REFUSED))
    return share(rate(refused, *by, window=window), rate(select(names.TOOL_DECISIONS), *by, window=window))


def _cost(select: Selection, *by: str, window: str = RANGE) -> str:
    return mean(select, names.LOOP_COST_METRIC, *by, window=window)


def _iterations(select: Selection, *by: str, window: str = RANGE) -> str:
    return mean(select, names.LOOP_ITERATIONS_METRIC, *by, window=window)


def _duration(of: float) -> Callable[..., str]:
    def query(select: Selection, *by: str, window: str = RANGE) -> str:
        return quantile(of, select, names.INVOKE_AGENT_DURATION, *by, window=window)

    return query


def _beside(
    id: int,
    title: str,
    question: str,
    query: Callable[..., str],
    unit: Unit,
    *,
    reading: str = "",
    empty: str = _NO_RUNS,
) -> Stat:
    """Return a panel with a number for A and one for B."""
    return Stat(
        id=id,
        title=title,
        question=question,
        reading=reading,
        queries=(Instant(query(_SELECT_A), "A"), Instant(query(_SELECT_B), "B")),
        unit=unit,
        empty=empty,
    )


def _over_time(
    id: int, title: str, question: str, query: Callable[..., str], unit: Unit, *, empty: str = _NO_RUNS
) -> TimeSeries:
    """Return a panel with a line for each version."""
    return TimeSeries(
        id=id,
        title=title,
        question=question,
        queries=(Range(query(select, *_VERSION, window=RATE_INTERVAL), legend(*_VERSION)),),
        unit=unit,
        empty=empty,
    )


BOARD: Final = Board(
    uid="tt-versions",
    title="Agents: versions",
    question="What changed between two versions of an agent?",
    variables=VARIABLES,
    span="now-24h",
    sections=(
        Section(
            "A and B",
            (
                _beside(
                    1,
                    "Runs",
                    "Are there enough runs of both to compare them?",
                    lambda select: increase(_runs(select)),
                    "locale",
                    reading="Fewer than 20 runs say little. Choose one agent, and a version each in A and in B.",
                ),
                _beside(
                    2,
                    "Failed runs",
                    "Do more runs fail?",
                    _failed,
                    "percentunit",
                    reading="Cancelled runs don't count. The home board says which tool or model fails.",
                ),
                _beside(
                    3,
                    "Runs that a limit ended",
                    "Do more runs go on until a limit ends them?",
                    _limited,
                    "percentunit",
                ),
                _beside(
                    4,
                    "Refused calls",
                    "Do policies or people refuse more calls?",
                    _refused,
                    "percentunit",
                    reading="The model requests other calls, or another policy decides: compare the digests of traces.",
                    empty=_NO_CALLS,
                ),
                _beside(5, "Cost per run", "Do runs cost more?", _cost, "currencyUSD", empty=_NO_COST),
                _beside(6, "p50 of the duration", "Are most runs slower?", _duration(0.5), "s"),
                _beside(
                    7,
                    "p95 of the duration",
                    "Is the slow tail longer?",
                    _duration(0.95),
                    "s",
                    reading="Where the time goes on the home board says why.",
                ),
                _beside(8, "Iterations per run", "Do runs take more iterations?", _iterations, "none"),
            ),
        ),
        Section(
            "All versions",
            (
                Table(
                    id=10,
                    title="Versions",
                    question="Which versions ran, and how did they do?",
                    reading=(
                        "A version is what ChatClient(version=...) says, else the digest of instructions, tools and "
                        "policies. _OTHER has the runs with instructions or tools of their request. Click a version "
                        "to compare it as B."
                    ),
                    queries=(
                        Instant(increase(_runs(select), *_VERSION)),
                        Instant(_failed(select, *_VERSION)),
                        Instant(_limited(select, *_VERSION)),
                        Instant(_refused(select, *_VERSION)),
                        Instant(_cost(select, *_VERSION)),
                        Instant(_duration(0.5)(select, *_VERSION)),
                        Instant(_duration(0.95)(select, *_VERSION)),
                        Instant(_iterations(select, *_VERSION)),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.AGENT_VERSION): Column(
                            "Version",
                            link=links.board_url(
                                "tt-versions",
                                *(f"${{{name}:queryparam}}" for name in ("prometheus", "job", "agent", "version_a")),
                                links.chosen("version_b"),
                            ),
                        ),
                        "Value #A": Column("Runs"),
                        "Value #B": Column("Failed", "percentunit"),
                        "Value #C": Column("Ended by a limit", "percentunit"),
                        "Value #D": Column("Refused calls", "percentunit"),
                        "Value #E": Column("Cost per run", "currencyUSD"),
                        "Value #F": Column("p50", "s"),
                        "Value #G": Column("p95", "s"),
                        "Value #H": Column("Iterations per run", "none"),
                    },
                    sort="Value #A",
                    width=24,
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=11,
                    title="Runs per second by version",
                    question="When did a version replace another one?",
                    queries=(Range(rate(_runs(select), *_VERSION), legend(*_VERSION)),),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_RUNS,
                    links=(links.board("tt-loops", "Loops", "job", "agent"),),
                ),
                _over_time(12, "Failed runs by version", "Since when do runs fail?", _failed, "percentunit"),
                _over_time(
                    13,
                    "Refused calls by version",
                    "Since when are calls refused?",
                    _refused,
                    "percentunit",
                    empty=_NO_CALLS,
                ),
                _over_time(
                    14, "Cost per run by version", "Since when do runs cost more?", _cost, "currencyUSD", empty=_NO_COST
                ),
                TimeSeries(
                    id=15,
                    title="Duration by version",
                    question="Since when are runs slower?",
                    reading="A dot is a run: it opens the trace, whose run has the digests of what it was sent.",
                    queries=tuple(
                        Range(
                            _duration(of)(select, *_VERSION, window=RATE_INTERVAL),
                            f"p{of * 100:g} {legend(*_VERSION)}",
                            exemplars=of == 0.95,
                        )
                        for of in (0.5, 0.95)
                    ),
                    unit="s",
                    empty=_NO_RUNS,
                ),
                _over_time(
                    16, "Iterations per run by version", "Since when do runs take more iterations?", _iterations, "none"
                ),
            ),
        ),
    ),
)
