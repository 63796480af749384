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
_NO_RUNS: Final = "No runs in this time range. Choose a longer range, or run: traced-tools demo --load"

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
                    links=(links.board("tt-loops", "Loops", "job", "agent"),),
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
                    question="Do models, tools or advisors make runs slow?",
                    reading=(
                        "Seconds that pass in each per second. Tools that run at the same time count each, and a tool "
                        "that runs an agent contains the agent's model calls."
                    ),
                    queries=tuple(
                        Range(rate(select(metric, part="sum")), title)
                        for metric, title in (
                            (MODEL_CALL_DURATION, "model calls"),
                            (names.EXECUTE_TOOL_DURATION, "tools"),
                            (names.ADVISOR_DURATION, "advisors"),
                        )
                    ),
                    unit="s",
                    stacked=True,
                    empty=_NO_RUNS,
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
