"""The board of loops: how runs go, and why some become long, go in circles or are given up."""

from __future__ import annotations

from typing import Final

from dashboards import links, logql, traceql
from dashboards.conventions import input_tokens_of_chats
from dashboards.objectives import IDLE_RUN_SECONDS, LIMITED_RUNS, REPEATED_CALLS
from dashboards.outcomes import CANCELLED, FAILED, GOES_ON, LIMITED
from dashboards.panels import (
    Board,
    Column,
    Heatmap,
    Instant,
    Logs,
    Range,
    Section,
    SpanMetric,
    Spans,
    Table,
    Threshold,
    TimeSeries,
)
from dashboards.promql import (
    RANGE,
    Part,
    distribution,
    equals,
    increase,
    legend,
    mean,
    none_of,
    occurrences,
    one_of,
    quantile,
    quantile_of,
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
events: Final = logql.EventSelection(VARIABLES)

MANY_ITERATIONS: Final = 4
"""From how many iterations on a run is in the list of runs with most iterations."""
MANY_MODEL_CALLS: Final = 4
"""From how many model calls on a trace, with all agents inside, is in the list of the longest runs."""

_RUNS: Final = select(names.LOOP_ITERATIONS_METRIC, part="count")
_COUNTED: Final = select(names.LOOP_ITERATIONS_METRIC, none_of(names.LOOP_STOP_REASON, CANCELLED), part="count")
_FAILED: Final = select(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, FAILED), part="count")
_LIMITED: Final = select(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, LIMITED), part="count")
_CANCELLED: Final = select(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, CANCELLED), part="count")
_REPEATED: Final = select(names.TOOL_DECISIONS, equals(names.TOOL_DECISION, "repeated"))
_SUM_AND_COUNT: Final[tuple[Part, Part]] = ("sum", "count")
_NO_RUNS: Final = "No runs in this time range. Choose a longer range, or run: traced-tools demo --load"
_NO_TRACES: Final = "No runs in Tempo in this time range, or Tempo answers no TraceQL metrics."
_NO_STORE: Final = "No durable runs, or no process reports its pending store: call PendingStore.report_metrics()."
_NO_LIVES: Final = "No durable run was driven in this time range."


def _per(part: str, whole: str) -> str:
    """Return how many events there are per event of another kind, by agent."""
    return share(rate(part, names.AGENT_NAME), rate(whole, names.AGENT_NAME))


def _mean_input_tokens() -> str:
    tokens, calls = (rate(input_tokens_of_chats(select, part), names.AGENT_NAME) for part in _SUM_AND_COUNT)
    return f"{tokens} / ({calls} > 0)"


BOARD: Final = Board(
    uid="tt-loops",
    title="Agents: loops",
    question="Do runs get longer, go in circles, or hit limits?",
    variables=VARIABLES,
    sections=(
        Section(
            "Runs",
            (
                Table(
                    id=1,
                    title="Agents",
                    question="How busy, how broken, how slow and how long are the runs of each agent?",
                    reading="A p95 of fewer than 20 runs says little. Choose an agent to see the whole board for it.",
                    queries=(
                        Instant(rate(_RUNS, names.AGENT_NAME, window=RANGE)),
                        Instant(share(increase(_FAILED, names.AGENT_NAME), increase(_COUNTED, names.AGENT_NAME))),
                        Instant(quantile(0.95, select, names.INVOKE_AGENT_DURATION, names.AGENT_NAME, window=RANGE)),
                        Instant(mean(select, names.LOOP_ITERATIONS_METRIC, names.AGENT_NAME, window=RANGE)),
                        Instant(increase(_RUNS, names.AGENT_NAME)),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column(
                            "Agent", link=links.board_url("tt-loops", links.chosen("agent"))
                        ),
                        "Value #A": Column("Runs per second", "reqps"),
                        "Value #B": Column("Failed", "percentunit"),
                        "Value #C": Column("p95", "s"),
                        "Value #D": Column("Iterations per run", "none"),
                        "Value #E": Column("Runs"),
                    },
                    sort="Value #E",
                    width=24,
                    empty=_NO_RUNS,
                ),
                Heatmap(
                    id=2,
                    title="Distribution of iterations per run",
                    question="Do runs get longer?",
                    reading="A second band at the top is an agent that goes on until a limit ends its runs.",
                    queries=(Range(distribution(select, names.LOOP_ITERATIONS_METRIC), "{{le}}", exemplars=True),),
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=3,
                    title="Iterations per run by agent",
                    question="Which agent's runs get longer, and since when?",
                    reading="A step after a release is a prompt, a tool or a model that changed.",
                    queries=(
                        Range(mean(select, names.LOOP_ITERATIONS_METRIC, names.AGENT_NAME), legend(names.AGENT_NAME)),
                    ),
                    empty=_NO_RUNS,
                    links=(links.board("tt-versions", "Versions", "job", "agent"),),
                ),
                TimeSeries(
                    id=4,
                    title="Runs per second that a limit ended",
                    question="Do limits stop runaway agents, or do they hurt users?",
                    reading=(
                        "Open some traces: if the runs made progress, raise the limit; if they went in circles, "
                        "change the prompt or the tools."
                    ),
                    queries=(
                        Range(
                            rate(_LIMITED, names.AGENT_NAME, names.LOOP_STOP_REASON),
                            legend(names.AGENT_NAME, names.LOOP_STOP_REASON),
                        ),
                    ),
                    unit="reqps",
                    width=8,
                    stacked=True,
                    empty="No limit has ended a run in this time range.",
                    links=(
                        links.traces("Traces", spans(traceql.RUNS, traceql.one_of(names.LOOP_STOP_REASON, LIMITED))),
                    ),
                ),
                TimeSeries(
                    id=5,
                    title="Share of runs that a limit ended by agent",
                    question="Which agent does not come to an end by itself?",
                    reading="Above the limit, compare with the last release: go back to its prompt, tools or model.",
                    queries=(Range(_per(_LIMITED, _RUNS), legend(names.AGENT_NAME)),),
                    unit="percentunit",
                    width=8,
                    threshold=Threshold(LIMITED_RUNS),
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=6,
                    title="Share of cancelled runs by agent",
                    question="Do users leave before the answer?",
                    reading="If they leave more often as runs get slower, users don't want to wait that long.",
                    queries=(Range(_per(_CANCELLED, _RUNS), legend(names.AGENT_NAME)),),
                    unit="percentunit",
                    width=8,
                    empty=_NO_RUNS,
                    links=(
                        links.traces("Traces", spans(traceql.RUNS, traceql.one_of(names.LOOP_STOP_REASON, CANCELLED))),
                    ),
                ),
                Table(
                    id=7,
                    title="Runs with most iterations",
                    question="What did the longest runs do?",
                    reading=f"Examples of runs with {MANY_ITERATIONS} iterations or more. Open the run or its trace.",
                    queries=(
                        Logs(
                            events(names.LOOP_STOP_EVENT, f"{label_name(names.LOOP_ITERATIONS)} >= {MANY_ITERATIONS}")
                        ),
                    ),
                    columns={
                        logql.TIME: Column("Time"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.LOOP_STOP_REASON): Column("Stop reason"),
                        label_name(names.LOOP_ITERATIONS): Column("Iterations"),
                        label_name(names.LOOP_TOOL_CALLS): Column("Tool calls"),
                        label_name(names.USAGE_INPUT_TOKENS): Column("Input tokens"),
                        label_name(names.LOOP_COST): Column("Cost", "currencyUSD"),
                        label_name(names.RUN_ID): Column(
                            "Run", link=links.board_url("tt-conversation", links.chosen("run"))
                        ),
                        label_name(names.CONVERSATION_ID): Column(
                            "Conversation",
                            link=links.board_url("tt-conversation", links.chosen("conversation")),
                        ),
                        logql.TRACE_ID: Column("Trace", link=links.trace_url("${__value.raw}")),
                    },
                    sort=label_name(names.LOOP_ITERATIONS),
                    width=24,
                    empty=f"No run with {MANY_ITERATIONS} iterations in Loki in this time range.",
                ),
                Table(
                    id=8,
                    title="Traces with many model calls",
                    question="Which requests take many model calls, with all agents that they start?",
                    reading=f"Traces with {MANY_MODEL_CALLS} model calls or more. Each row opens a trace.",
                    queries=(Spans(spans(traceql.MODEL_CALLS) + f" | count() >= {MANY_MODEL_CALLS}", per_trace=1),),
                    empty=f"No trace with {MANY_MODEL_CALLS} model calls in Tempo in this time range.",
                ),
                Table(
                    id=9,
                    title="Agents inside agents",
                    question="Which runs start other agents?",
                    reading="A row is a run inside another run. A failed run inside rarely fails the run around it.",
                    queries=(
                        Spans(
                            f"{{ {traceql.RUNS} }} >> {spans(traceql.RUNS)} "
                            + traceql.select(names.AGENT_NAME, names.LOOP_STOP_REASON, names.LOOP_ITERATIONS)
                        ),
                    ),
                    empty="No run inside another run in Tempo in this time range.",
                ),
            ),
        ),
        Section(
            "Steps",
            (
                TimeSeries(
                    id=20,
                    title="Share of repeated identical calls by agent",
                    question="Does an agent go in circles?",
                    reading=(
                        "Calls with the same tool and arguments as before, beyond the limit of identical calls. Look "
                        "at what the tool returns: the model doesn't understand it."
                    ),
                    queries=(Range(_per(_REPEATED, select(names.TOOL_DECISIONS)), legend(names.AGENT_NAME)),),
                    unit="percentunit",
                    threshold=Threshold(REPEATED_CALLS),
                    empty=_NO_RUNS,
                    links=(
                        links.traces("Traces", spans(traceql.equals(names.TOOL_DECISION, "repeated"))),
                        links.board("tt-tools", "Tools", "job", "agent"),
                    ),
                ),
                TimeSeries(
                    id=21,
                    title="Tool calls per model call by agent",
                    question="Does the model call tools one by one, or several at once?",
                    reading="Above 1, calls share iterations, which saves model calls. A fall means more iterations.",
                    queries=(
                        Range(
                            _per(
                                select(names.INVOKE_AGENT_TOOL_CALLS, part="sum"),
                                select(names.INVOKE_AGENT_INFERENCE_CALLS, part="sum"),
                            ),
                            legend(names.AGENT_NAME),
                        ),
                    ),
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=22,
                    title="Input tokens per model call by agent",
                    question="Does the context get so large that it reaches the model's window?",
                    reading="A dot is a model call: it opens the trace. Shorten tool results, or the conversation.",
                    queries=(
                        Range(_mean_input_tokens(), f"mean {legend(names.AGENT_NAME)}"),
                        Range(
                            quantile_of(
                                0.95,
                                input_tokens_of_chats(select, "bucket"),
                                input_tokens_of_chats(select, ""),
                                names.AGENT_NAME,
                            ),
                            f"p95 {legend(names.AGENT_NAME)}",
                            exemplars=True,
                        ),
                    ),
                    empty="No model call with a usage in this time range.",
                    links=(links.board("tt-tools", "Sizes of tool results", "job", "agent"),),
                ),
                TimeSeries(
                    id=23,
                    title="Input tokens by iteration",
                    question="How fast does the context grow from iteration to iteration?",
                    reading="Lines far apart are tools whose results are large.",
                    queries=(
                        SpanMetric(
                            spans(traceql.MODEL_CALLS, f"{traceql.span(names.USAGE_INPUT_TOKENS)} > 0")
                            + f" | avg_over_time({traceql.span(names.USAGE_INPUT_TOKENS)})"
                            + f" by ({traceql.span(names.ITERATION_INDEX)})",
                            "",
                        ),
                    ),
                    empty=_NO_TRACES,
                ),
                TimeSeries(
                    id=24,
                    title="p95 of the duration of iterations",
                    question="Are iterations with tools slow, or those that answer?",
                    reading="A dot is an iteration: it opens the trace.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.ITERATION_DURATION, names.ITERATION_OUTCOME),
                            legend(names.ITERATION_OUTCOME),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_RUNS,
                ),
                TimeSeries(
                    id=25,
                    title="Duration of model calls by iteration",
                    question="Do model calls get slower from the first iteration to the last?",
                    reading="They do if the context grows and the provider doesn't read it from a cache.",
                    queries=(
                        SpanMetric(
                            spans(traceql.MODEL_CALLS)
                            + f" | avg_over_time(duration) by ({traceql.span(names.ITERATION_INDEX)})",
                            "",
                        ),
                    ),
                    unit="s",
                    empty=_NO_TRACES,
                ),
                TimeSeries(
                    id=26,
                    title="p95 of the time in hooks",
                    question="Which advisor makes runs slow?",
                    reading="The time in the advisor itself. A dot opens the trace.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.ADVISOR_DURATION, names.ADVISOR_NAME, names.ADVISOR_HOOK),
                            legend(names.ADVISOR_NAME, names.ADVISOR_HOOK),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty="No advisor ran in this time range.",
                ),
                TimeSeries(
                    id=27,
                    title="Retries per run by agent",
                    question="How much do retries hide?",
                    reading="Model requests and tools that failed and were tried again, per run.",
                    queries=(
                        Range(_per(select(names.MODEL_RETRIES), _RUNS), f"{legend(names.AGENT_NAME)} model requests"),
                        Range(_per(select(names.TOOL_RETRIES), _RUNS), f"{legend(names.AGENT_NAME)} tools"),
                    ),
                    empty=_NO_RUNS,
                    links=(links.board("tt-models", "Models", "job"), links.board("tt-tools", "Tools", "job", "agent")),
                ),
            ),
        ),
        Section(
            "Durable runs",
            (
                TimeSeries(
                    id=40,
                    title="Durable runs by agent and status",
                    question="Where are the runs that have not ended?",
                    reading=(
                        "submitted is the queue of an agent. interrupted waits for its next life, waiting for a "
                        "person, and failed for somebody who drives or withdraws it: traced-tools runs list."
                    ),
                    queries=(
                        Range(
                            total(
                                select(names.PENDING_STORE_RUNS),
                                names.AGENT_NAME,
                                names.DURABLE_RUN_STATUS,
                            ),
                            legend(names.AGENT_NAME, names.DURABLE_RUN_STATUS),
                        ),
                    ),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=41,
                    title="Longest time without progress by agent",
                    question="Does a run wait for a process, or for one that died?",
                    reading=(
                        "The time since a run was submitted or interrupted, or since the last record of a running "
                        "one. Above the limit, no process drives it, or a step takes that long."
                    ),
                    queries=(
                        Range(
                            total(
                                select(names.PENDING_STORE_OLDEST_RUN, one_of(names.DURABLE_RUN_STATUS, GOES_ON)),
                                names.AGENT_NAME,
                                function="max",
                            ),
                            legend(names.AGENT_NAME),
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(IDLE_RUN_SECONDS),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=42,
                    title="Lives per second by the status before",
                    question="How often do processes go on with what others have left?",
                    reading=(
                        "submitted begins a run. running goes on after a process that died, interrupted after an "
                        "error, and failed because somebody drove the run by hand."
                    ),
                    queries=(
                        Range(
                            rate(select(names.DURABLE_RUN_IDLE, part="count"), names.DURABLE_RUN_STATUS),
                            legend(names.DURABLE_RUN_STATUS),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_LIVES,
                ),
                TimeSeries(
                    id=43,
                    title="p95 of the time to the next life by the status before",
                    question="How long do runs wait for a process?",
                    reading="running is how long a run lies still after its process has died.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.DURABLE_RUN_IDLE, names.DURABLE_RUN_STATUS),
                            legend(names.DURABLE_RUN_STATUS),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_LIVES,
                ),
                Table(
                    id=44,
                    title="Lives, overtaken processes and unknown outcomes",
                    question="Do runs die, do two processes drive one run, and which calls may have run?",
                    reading=(
                        "Overtaken processes stopped in time; many of them are deliveries that come twice. An unknown "
                        "outcome needs a person: traced-tools audit list --outcome unknown."
                    ),
                    queries=(
                        Instant(mean(select, names.DURABLE_RUN_LIVES, names.AGENT_NAME, window=RANGE)),
                        Instant(occurrences(select(names.DURABLE_RUN_TAKEN), names.AGENT_NAME, window=RANGE)),
                        Instant(
                            occurrences(select(names.DURABLE_RUN_UNKNOWN_OUTCOMES), names.AGENT_NAME, window=RANGE)
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        "Value #A": Column("Lives per run"),
                        "Value #B": Column("Overtaken processes"),
                        "Value #C": Column("Unknown outcomes"),
                    },
                    sort="Value #C",
                    empty=_NO_LIVES,
                    links=(links.board("tt-audit", "Evidence", "job", "agent"),),
                ),
                TimeSeries(
                    id=45,
                    title="p95 of the time to keep a record by agent",
                    question="Does the store slow runs down?",
                    reading="A run keeps a record for each answer with calls, and two for each call of a tool.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.DURABLE_RUN_RECORD_DURATION, names.AGENT_NAME),
                            legend(names.AGENT_NAME),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_LIVES,
                ),
            ),
        ),
    ),
)
