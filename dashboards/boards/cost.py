"""The board of cost: what do the agents cost, what do we get for it, and is the number complete?"""

from __future__ import annotations

from typing import Final

from dashboards import links, traceql
from dashboards.conventions import token_rate
from dashboards.objectives import DAILY_COST, ENOUGH
from dashboards.outcomes import COLORS, FAILED, SUCCEEDED
from dashboards.panels import (
    Board,
    Column,
    Heatmap,
    Instant,
    Range,
    Section,
    SpanMetric,
    Spans,
    Stat,
    Table,
    Threshold,
    TimeSeries,
)
from dashboards.promql import (
    JOB,
    RANGE,
    distribution,
    increase,
    legend,
    occurrences,
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

_COST: Final = select(names.USAGE_COST)
_UNPRICED: Final = select(names.UNPRICED_TOKENS)
_UNPRICED_SHARE: Final = share(rate(_UNPRICED, window=RANGE), total(token_rate(select, window=RANGE)))
_RUN_COST: Final = select(names.LOOP_COST_METRIC, part="sum")
_FAILED_RUN_COST: Final = select(names.LOOP_COST_METRIC, one_of(names.LOOP_STOP_REASON, FAILED), part="sum")
_SUCCEEDED_RUN_COST: Final = select(names.LOOP_COST_METRIC, one_of(names.LOOP_STOP_REASON, SUCCEEDED), part="sum")
_RUNS: Final = select(names.LOOP_COST_METRIC, part="count")
_SUCCEEDED_RUNS: Final = select(names.LOOP_COST_METRIC, one_of(names.LOOP_STOP_REASON, SUCCEEDED), part="count")

_NO_PRICES: Final = (
    "No cost: pass a price table, TelemetryOptions(prices=GenaiPrices()), or run: traced-tools demo --load"
)
_NO_RUNS: Final = "No run with a priced model in this time range. Choose a longer range, or pass a price table."
_NO_TOKENS: Final = "No tokens in this time range. Choose a longer range, or run: traced-tools demo --load"


def _hourly(series: str, *by: str) -> str:
    return f"3600 * {rate(series, *by)}"


def _tokens_of_spans(attribute: str) -> SpanMetric:
    """Return the tokens that spans, but not the metrics of all conventions, have."""
    # Tempo sums wrongly where some spans lack the attribute.
    chosen = spans(traceql.MODEL_CALLS, f"{traceql.span(attribute)} > 0")
    by_model = f"sum_over_time({traceql.span(attribute)}) by ({traceql.span(names.REQUEST_MODEL)})"
    return SpanMetric(f"{chosen} | {by_model}", legend(names.REQUEST_MODEL))


BOARD: Final = Board(
    uid="tt-cost",
    title="Agents: cost",
    question="What do the agents cost, what do we get for it, and is the number complete?",
    variables=VARIABLES,
    span="now-24h",
    sections=(
        Section(
            "Spend",
            (
                Stat(
                    id=1,
                    title="Spend in the last 24 hours",
                    question="What did each service cost since this time yesterday?",
                    reading=(
                        "A rolling window that ends where the time range ends, not the calendar day. Above the daily "
                        "limit, the spend by agent says who has grown."
                    ),
                    queries=(Instant(occurrences(_COST, JOB, window="1d"), legend(JOB)),),
                    unit="currencyUSD",
                    threshold=Threshold(DAILY_COST),
                    empty=_NO_PRICES,
                ),
                Stat(
                    id=2,
                    title="Spend in the last 30 days",
                    question="What did the agents cost in a month?",
                    reading=(
                        "A rolling window, not the calendar month. If Prometheus keeps fewer than 30 days, it is the "
                        "spend of the days that it keeps."
                    ),
                    queries=(Instant(occurrences(_COST, window="30d")),),
                    unit="currencyUSD",
                    empty=_NO_PRICES,
                ),
                Stat(
                    id=3,
                    title="Forecast for 30 days",
                    question="What will a month cost if every day is like the last one?",
                    reading=(
                        "30 times the last 24 hours, so it is too low while the agents have run for less than a day. "
                        "If it is far above the last 30 days, see which agent has grown."
                    ),
                    queries=(Instant(f"30 * {occurrences(_COST, window='1d')}"),),
                    unit="currencyUSD",
                    empty=_NO_PRICES,
                ),
                Stat(
                    id=4,
                    title="Tokens without a price",
                    question="Is the price table missing a model?",
                    reading=(
                        "The share of tokens whose model has no price. Above 0, every amount on this board is too low: "
                        "the table of unpriced models says what to add to the price table."
                    ),
                    queries=(Instant(f"{_UNPRICED_SHARE} and (count({_COST}) or count({_UNPRICED}))"),),
                    unit="percentunit",
                    threshold=Threshold(0.0001),
                    empty=_NO_PRICES,
                ),
                TimeSeries(
                    id=5,
                    title="Spend per hour by agent",
                    question="Which agent spends the money, and since when?",
                    reading="An agent that grows without more runs makes longer runs: look at its iterations.",
                    queries=(Range(_hourly(_COST, names.AGENT_NAME), legend(names.AGENT_NAME)),),
                    unit="currencyUSD",
                    stacked=True,
                    empty=_NO_PRICES,
                    links=(links.board("tt-loops", "Loops", "job", "agent"),),
                ),
                TimeSeries(
                    id=6,
                    title="Spend per hour by model",
                    question="Which model spends the money, and since when?",
                    reading="If an expensive model grows, check whether a cheaper one answers as well.",
                    queries=(
                        Range(
                            _hourly(_COST, names.PROVIDER_NAME, names.REQUEST_MODEL),
                            legend(names.PROVIDER_NAME, names.REQUEST_MODEL),
                        ),
                    ),
                    unit="currencyUSD",
                    stacked=True,
                    empty=_NO_PRICES,
                    links=(links.board("tt-models", "Models", "job"),),
                ),
                Table(
                    id=7,
                    title="Spend by agent and model",
                    question="Where does the money of this time range go?",
                    queries=(
                        Instant(
                            occurrences(_COST, names.AGENT_NAME, names.PROVIDER_NAME, names.REQUEST_MODEL, window=RANGE)
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column(
                            "Agent", link=links.board_url("tt-loops", links.chosen("agent"))
                        ),
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column(
                            "Model", link=links.board_url("tt-models", links.chosen("model"))
                        ),
                        "Value": Column("Spend", "currencyUSD"),
                    },
                    sort="Value",
                    empty=_NO_PRICES,
                ),
                Table(
                    id=8,
                    title="Models without a price",
                    question="Which models does the price table not know?",
                    reading="Their calls cost nothing on this board. Add them to the price table.",
                    queries=(
                        Instant(
                            occurrences(_UNPRICED, names.PROVIDER_NAME, names.REQUEST_MODEL, window=RANGE) + " > 0"
                        ),
                    ),
                    columns={
                        label_name(names.PROVIDER_NAME): Column("Provider"),
                        label_name(names.REQUEST_MODEL): Column("Model"),
                        "Value": Column("Tokens"),
                    },
                    sort="Value",
                    empty="Every token has a price, or there is no price table: see the spend.",
                ),
            ),
        ),
        Section(
            "Runs",
            (
                Stat(
                    id=9,
                    title="Mean cost of a successful run",
                    question="What does an answer cost?",
                    reading="Without the runs that failed or that a limit ended; see the number beside it.",
                    queries=(Instant(f"{increase(_SUCCEEDED_RUN_COST)} / ({increase(_SUCCEEDED_RUNS)} > 0)"),),
                    unit="currencyUSD",
                    empty=_NO_RUNS,
                ),
                Stat(
                    id=10,
                    title="Spend per successful run",
                    question="What does an answer cost, with all that failed for it?",
                    reading=(
                        "The cost of all runs, divided by the successful ones. If it is far above the mean cost of a "
                        "successful run, failures and limits waste the difference."
                    ),
                    queries=(Instant(f"{increase(_RUN_COST)} / ({increase(_SUCCEEDED_RUNS)} > 0)"),),
                    unit="currencyUSD",
                    empty=_NO_RUNS,
                ),
                Stat(
                    id=11,
                    title="Cost of failed runs",
                    question="What do failures cost?",
                    reading="Runs that ended with error, deadline or consecutive_errors in this time range.",
                    queries=(Instant(f"{increase(_FAILED_RUN_COST)} or 0 * {increase(_RUN_COST)}"),),
                    unit="currencyUSD",
                    empty=_NO_RUNS,
                    links=(
                        links.traces(
                            "Failed runs with a cost",
                            spans(
                                traceql.RUNS,
                                traceql.one_of(names.LOOP_STOP_REASON, FAILED),
                                f"{traceql.span(names.LOOP_COST)} > 0",
                            ),
                        ),
                    ),
                ),
                Stat(
                    id=12,
                    title="Share of cost that fails",
                    question="Would fixing the failures save money?",
                    reading="If it is small, save on successful runs instead: fewer iterations, or a cheaper model.",
                    queries=(Instant(share(increase(_FAILED_RUN_COST), increase(_RUN_COST))),),
                    unit="percentunit",
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=13,
                    title="Cost of runs per hour by stop reason",
                    question="What do runs cost that give no answer?",
                    reading=(
                        "error, deadline and consecutive_errors are failures. max_…, token_budget and repeated_call "
                        "are limits that ended a run before it had an answer."
                    ),
                    queries=(Range(_hourly(_RUN_COST, names.LOOP_STOP_REASON), legend(names.LOOP_STOP_REASON)),),
                    colors=COLORS,
                    unit="currencyUSD",
                    stacked=True,
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=14,
                    title="Cost per run",
                    question="Are all runs expensive, or a few?",
                    reading=(
                        "A dot is a run: it opens the trace. The top dots are the most expensive runs. A run without a "
                        "priced model doesn't count; nested runs count by themselves."
                    ),
                    queries=tuple(
                        Range(quantile(of, select, names.LOOP_COST_METRIC), f"p{of * 100:g}", exemplars=of == 0.95)
                        for of in (0.5, 0.95)
                    ),
                    unit="currencyUSD",
                    empty=_NO_RUNS,
                ),
                Heatmap(
                    id=15,
                    title="Distribution of the cost per run",
                    question="Do a few runs cost a hundred times as much as the others?",
                    reading="A dot in the highest row is one of the most expensive runs: it opens the trace.",
                    queries=(Range(distribution(select, names.LOOP_COST_METRIC), "{{le}}", exemplars=True),),
                    unit="currencyUSD",
                    empty=_NO_RUNS,
                ),
                Table(
                    id=16,
                    title="Cost per run by agent",
                    question="Which agent's runs are expensive?",
                    reading=f"Runs is the number of samples. Below {ENOUGH}, the quantiles say little.",
                    queries=(
                        Instant(increase(_RUNS, names.AGENT_NAME)),
                        *(
                            Instant(quantile(of, select, names.LOOP_COST_METRIC, names.AGENT_NAME, window=RANGE))
                            for of in (0.5, 0.95)
                        ),
                        Instant(increase(_RUN_COST, names.AGENT_NAME)),
                        Instant(
                            share(increase(_FAILED_RUN_COST, names.AGENT_NAME), increase(_RUN_COST, names.AGENT_NAME))
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column(
                            "Agent", link=links.board_url("tt-loops", links.chosen("agent"))
                        ),
                        "Value #A": Column("Runs"),
                        "Value #B": Column("p50", "currencyUSD"),
                        "Value #C": Column("p95", "currencyUSD"),
                        "Value #D": Column("All", "currencyUSD"),
                        "Value #E": Column("Failed", "percentunit"),
                    },
                    sort="Value #D",
                    empty=_NO_RUNS,
                ),
                Table(
                    id=17,
                    title="Most expensive runs",
                    question="What did an expensive run do?",
                    reading=(
                        "Examples of runs with a cost, the most expensive first. Each row opens a trace. The dots of "
                        "the cost per run lead to the most expensive runs of all."
                    ),
                    queries=(
                        Spans(
                            spans(traceql.RUNS, f"{traceql.span(names.LOOP_COST)} > 0")
                            + traceql.select(
                                names.LOOP_COST,
                                names.AGENT_NAME,
                                names.LOOP_STOP_REASON,
                                names.LOOP_ITERATIONS,
                                names.LOOP_TOOL_CALLS,
                                names.USAGE_INPUT_TOKENS,
                                names.USAGE_OUTPUT_TOKENS,
                            )
                        ),
                    ),
                    sort=names.LOOP_COST,
                    width=24,
                    empty="No run with a cost in Tempo in this time range. Pass a price table, and keep some traces.",
                ),
            ),
        ),
        Section(
            "Tokens",
            (
                TimeSeries(
                    id=18,
                    title="Input and output tokens per second",
                    question="Do the agents read more, or write more?",
                    reading="Output tokens cost more. Cached tokens count as input, reasoning tokens as output.",
                    queries=(Range(token_rate(select), legend(names.TOKEN_TYPE)),),
                    stacked=True,
                    empty=_NO_TOKENS,
                ),
                TimeSeries(
                    id=19,
                    title="Tokens per second by agent",
                    question="Which agent uses the tokens?",
                    reading="It shows agents whose models have no price, too.",
                    queries=(
                        Range(total(token_rate(select, names.AGENT_NAME), names.AGENT_NAME), legend(names.AGENT_NAME)),
                    ),
                    stacked=True,
                    empty=_NO_TOKENS,
                ),
                TimeSeries(
                    id=20,
                    title="Tokens without a price per second by model",
                    question="Since when is the price table missing a model?",
                    reading="It starts where a new model begins. Add the model to the price table.",
                    queries=(
                        Range(
                            rate(_UNPRICED, names.PROVIDER_NAME, names.REQUEST_MODEL),
                            legend(names.PROVIDER_NAME, names.REQUEST_MODEL),
                        ),
                    ),
                    stacked=True,
                    empty="Every token has a price, or there is no price table: see the spend.",
                ),
                TimeSeries(
                    id=21,
                    title="Cached input tokens by model",
                    question="Does the provider's cache save money?",
                    reading=(
                        "Input tokens that the provider read from its cache, in each interval. If they fall while "
                        "input stays, the beginning of the prompts changes too often. Counted from traces, so sampling "
                        "makes it smaller."
                    ),
                    queries=(_tokens_of_spans(names.USAGE_CACHE_READ_TOKENS),),
                    stacked=True,
                    empty="No cached tokens in Tempo in this time range. Providers report them if a prompt is cached.",
                ),
                TimeSeries(
                    id=22,
                    title="Tokens written to a cache by model",
                    question="Do we pay for caches that are not read?",
                    reading=(
                        "Some providers charge more for writing than for reading without a cache. If it is above the "
                        "tokens that are read from the cache, few caches are read before they expire. Counted from "
                        "traces, so sampling makes it smaller."
                    ),
                    queries=(
                        _tokens_of_spans(names.USAGE_CACHE_CREATION_TOKENS),
                        _tokens_of_spans(names.USAGE_CACHE_WRITE_TOKENS),
                    ),
                    stacked=True,
                    empty="No tokens written to a cache in Tempo in this time range. Anthropic's models report them.",
                ),
                TimeSeries(
                    id=23,
                    title="Reasoning tokens by model",
                    question="How much do we pay for thinking that nobody reads?",
                    reading=(
                        "A part of the output tokens, in each interval. If it grows, lower the reasoning effort for "
                        "easy questions. Counted from traces, so sampling makes it smaller."
                    ),
                    queries=(_tokens_of_spans(names.USAGE_REASONING_TOKENS),),
                    stacked=True,
                    empty="No reasoning tokens in Tempo in this time range. Only reasoning models report them.",
                ),
            ),
        ),
    ),
)
