"""The home board: are the agents working, and if not, where?"""

from __future__ import annotations

from typing import Final

from dashboards import links, traceql
from dashboards.conventions import MODEL_CALL_DURATION
from dashboards.objectives import NOT_CANCELLED, RUN_SUCCESS, STUCK_RUN_SECONDS
from dashboards.outcomes import CANCELLED, COLORS, FAILED
from dashboards.panels import (
    FIRING_ALERTS,
    Board,
    Column,
    Heatmap,
    Instant,
    Range,
    Section,
    Spans,
    Stat,
    Table,
    Threshold,
    TimeSeries,
)
from dashboards.promql import (
    differs,
    distribution,
    has,
    increase,
    legend,
    none_of,
    one_of,
    quantile,
    rate,
    share,
    total,
)
from dashboards.variables import AGENT, SERVICE, selection_of
from traced_tools.advisors.tool_calling import ToolCallingAdvisor
from traced_tools.advisors.tool_search import ToolSearchToolCallingAdvisor
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, AGENT)
select: Final = selection_of(*VARIABLES)
spans: Final = traceql.SpanSelection(VARIABLES)

_RUNS: Final = select(names.LOOP_ITERATIONS_METRIC, part="count")
_COUNTED: Final = select(
    names.LOOP_ITERATIONS_METRIC, none_of(names.LOOP_STOP_REASON, CANCELLED), part="count"
)  # a run that its user left says nothing about the agent
_FAILED: Final = select(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, FAILED), part="count")
_OF_ADVISORS: Final = ("hook", "chunk")
"""The kinds of time that hooks of advisors take."""
_TIME_OF_ADVISORS: Final = select(names.RUN_TIME, one_of(names.TIME_KIND, _OF_ADVISORS), part="sum")
_TIME_OF_OTHERS: Final = select(names.RUN_TIME, none_of(names.TIME_KIND, _OF_ADVISORS), part="sum")
_HOOKS: Final = select(
    names.ADVISOR_DURATION,
    none_of(names.ADVISOR_NAME, (ToolCallingAdvisor.name, ToolSearchToolCallingAdvisor.name)),
    differs(names.ADVISOR_HOOK, "decide_approval"),
    part="sum",
)
"""The seconds in hooks, without those that are of another kind: the tool loop, and waiting for a decision."""
_NO_RUNS: Final = "No runs in this time range. Choose a longer range, or run: traced-tools demo --load"


def _share_of_time(seconds: str) -> str:
    """Return what share of the time of all runs these seconds are."""
    return f"({seconds}) / scalar({rate(select(names.RUN_TIME, part='sum'))})"


def _time_of_hooks() -> str:
    """Return the seconds of each hook.

    Hooks of parallel calls take more seconds than pass, so their sum is at most what the ledger has booked to advisors.
    """
    by_hook = rate(_HOOKS, names.AGENT_NAME, names.ADVISOR_NAME, names.ADVISOR_HOOK)
    booked, taken = rate(_TIME_OF_ADVISORS, names.AGENT_NAME), rate(_HOOKS, names.AGENT_NAME)
    agent = label_name(names.AGENT_NAME)
    passing = f"{by_hook} * on ({agent}) group_left () clamp_max({booked} / ({taken} > 0), 1)"
    return total(passing, names.ADVISOR_NAME, names.ADVISOR_HOOK)


def _time_between_hooks() -> str:
    """Return the rest of the seconds that the ledger has booked to advisors."""
    booked, taken = rate(_TIME_OF_ADVISORS, names.AGENT_NAME), rate(_HOOKS, names.AGENT_NAME)
    return total(f"clamp_min({booked} - ({taken} or 0 * {booked}), 0)")


BOARD: Final = Board(
    uid="tt-home",
    title="Agents: home",
    question="Are the agents working, and if not, where?",
    variables=VARIABLES,
    sections=(
        Section(
            "Overview",
            (
                Stat(
                    id=1,
                    title="Runs that don't fail",
                    question="How many runs give an answer?",
                    reading=(
                        "Cancelled runs don't count; runs of agents inside agents do, so choose the outer agent to see "
                        "what users get. Below the objective, look at the stop reasons."
                    ),
                    queries=(Instant(f"1 - {share(increase(_FAILED), increase(_COUNTED))}"),),
                    unit="percentunit",
                    threshold=Threshold(RUN_SUCCESS.objective, color="green", below="red"),
                    empty=_NO_RUNS,
                    links=(links.board("tt-slo", "Objectives and budgets", "job"),),
                ),
                Stat(
                    id=2,
                    title="Active runs",
                    question="How many runs are under way right now?",
                    queries=(Range(total(select(names.RUN_ACTIVE)), "runs"),),
                    empty=_NO_RUNS,
                ),
                Stat(
                    id=3,
                    title="Oldest active run",
                    question="Is a run stuck?",
                    reading="Above the limit, search the traces of its agent, and check the time-outs of its tools.",
                    queries=(Range(total(select(names.RUN_OLDEST_ACTIVE), function="max"), "age"),),
                    unit="s",
                    threshold=Threshold(STUCK_RUN_SECONDS),
                    empty=_NO_RUNS,
                ),
                Stat(
                    id=4,
                    title="Firing alerts",
                    question="How many alerts fire?",
                    queries=(Instant(f"count({FIRING_ALERTS}) or vector(0)"),),
                    threshold=Threshold(1),
                    empty="No alert rules: load dashboards/rules into Prometheus.",
                ),
                TimeSeries(
                    id=5,
                    title="Runs per second by stop reason",
                    question="How do runs end, and since when?",
                    reading=(
                        "error, deadline and consecutive_errors are failures; max_…, token_budget and repeated_call "
                        "are limits that ended a run."
                    ),
                    queries=(Range(rate(_RUNS, names.LOOP_STOP_REASON), legend(names.LOOP_STOP_REASON)),),
                    colors=COLORS,
                    unit="reqps",
                    stacked=True,
                    empty=_NO_RUNS,
                    links=(
                        links.board("tt-loops", "Loops", "job", "agent"),
                        links.board("tt-versions", "Versions", "job", "agent"),
                    ),
                ),
                TimeSeries(
                    id=6,
                    title="Duration of runs",
                    question="Are all runs slow, or a few?",
                    reading="A dot is a run: it opens the trace.",
                    queries=tuple(
                        Range(quantile(of, select, names.INVOKE_AGENT_DURATION), f"p{of * 100:g}", exemplars=of == 0.95)
                        for of in (0.5, 0.95, 0.99)
                    ),
                    unit="s",
                    empty=_NO_RUNS,
                    links=(links.traces("Slowest runs", spans(traceql.RUNS, "duration > 5s")),),
                ),
                Heatmap(
                    id=7,
                    title="Distribution of run durations",
                    question="Are there two kinds of runs, or a long tail?",
                    queries=(Range(distribution(select, names.INVOKE_AGENT_DURATION), "{{le}}", exemplars=True),),
                    unit="s",
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=8,
                    title="Where the time goes",
                    question="What makes runs slow: the model, a tool, or a hook of which advisor?",
                    reading=(
                        "The share of each kind in the time of all runs; together they are 100 %. The kinds hook and "
                        "chunk are shown by advisor and hook, such as redactor on_chunk. A run inside a tool counts "
                        "twice: as tool for the run around it, and with its own kinds. Choose one agent to see the "
                        "time of its runs alone."
                    ),
                    queries=(
                        Range(
                            _share_of_time(rate(_TIME_OF_OTHERS, names.TIME_KIND)),
                            legend(names.TIME_KIND),
                        ),
                        Range(_share_of_time(_time_of_hooks()), legend(names.ADVISOR_NAME, names.ADVISOR_HOOK)),
                        Range(_share_of_time(_time_between_hooks()), "passing chunks and events on"),
                    ),
                    unit="percentunit",
                    stacked=True,
                    empty=_NO_RUNS,
                    links=(
                        *(
                            links.traces(f"Runs with a slow {kind}", spans(traceql.RUNS, traceql.exceeds(name, 1)))
                            for kind, name in names.TIME_BY_KIND.items()
                            if kind in _OF_ADVISORS
                        ),
                        links.board("tt-loops", "Hooks", "job", "agent"),
                    ),
                ),
                Table(
                    id=12,
                    title="Failing runs",
                    question="Which agent fails, and with which error?",
                    reading="The examples below say in which step.",
                    queries=(
                        Instant(
                            increase(
                                select(names.INVOKE_AGENT_DURATION, has(names.ERROR_TYPE), NOT_CANCELLED, part="count"),
                                names.AGENT_NAME,
                                names.ERROR_TYPE,
                            )
                            + " > 0"
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column(
                            "Agent", link=links.board_url("tt-loops", links.chosen("agent"))
                        ),
                        label_name(names.ERROR_TYPE): Column("Error"),
                        "Value": Column("Failures"),
                    },
                    sort="Value",
                    width=8,
                    empty="No run has failed in this time range.",
                ),
                Table(
                    id=9,
                    title="Failing tools",
                    question="Which tool fails, for which agent, and how?",
                    queries=(
                        Instant(
                            increase(
                                select(names.EXECUTE_TOOL_DURATION, has(names.ERROR_TYPE), part="count"),
                                names.AGENT_NAME,
                                names.TOOL_NAME,
                                names.ERROR_TYPE,
                            )
                            + " > 0"
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): Column(
                            "Tool", link=links.board_url("tt-tools", links.chosen("tool"))
                        ),
                        label_name(names.ERROR_TYPE): Column("Error"),
                        "Value": Column("Failures"),
                    },
                    sort="Value",
                    width=8,
                    empty="No tool has failed in this time range.",
                ),
                Table(
                    id=10,
                    title="Failing model calls",
                    question="Which model fails, and how?",
                    queries=(
                        Instant(
                            increase(
                                select(MODEL_CALL_DURATION, has(names.ERROR_TYPE), NOT_CANCELLED, part="count"),
                                names.PROVIDER_NAME,
                                names.REQUEST_MODEL,
                                names.ERROR_TYPE,
                            )
                            + " > 0"
                        ),
                    ),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column(
                            "Model", link=links.board_url("tt-models", links.chosen("model"))
                        ),
                        label_name(names.ERROR_TYPE): Column("Error"),
                        "Value": Column("Failures"),
                    },
                    sort="Value",
                    width=8,
                    empty="No model call has failed in this time range.",
                ),
                Table(
                    id=11,
                    title="Examples of failed runs",
                    question="What does a failed run look like?",
                    reading="Each row opens a trace.",
                    queries=(
                        Spans(
                            spans(traceql.RUNS, traceql.one_of(names.LOOP_STOP_REASON, FAILED))
                            + traceql.select(
                                names.AGENT_NAME,
                                names.LOOP_STOP_REASON,
                                names.FAILED_STEP,
                                names.LOOP_ITERATIONS,
                                names.USAGE_INPUT_TOKENS,
                                names.LOOP_COST,
                            )
                        ),
                    ),
                    width=24,
                    empty="No failed run in Tempo in this time range.",
                ),
            ),
        ),
    ),
)
