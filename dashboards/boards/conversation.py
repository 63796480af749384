"""The board of one conversation or one run: what happened, step by step."""

from __future__ import annotations

from typing import Final

from dashboards import links, logql, traceql
from dashboards.outcomes import ACCEPTED
from dashboards.panels import Board, Column, LogList, LogMetric, Logs, Section, Spans, Stat, Table
from dashboards.promql import has, none_of
from dashboards.variables import CONVERSATION, RUN, SERVICE
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, CONVERSATION, RUN)
spans: Final = traceql.SpanSelection((SERVICE,))
events: Final = logql.EventSelection((SERVICE,))

_IDS: Final = {names.CONVERSATION_ID: CONVERSATION, names.RUN_ID: RUN}
_CHOSEN_RUNS: Final = spans(
    traceql.RUNS,
    "(" + " || ".join(traceql.equals(attribute, f"${each.name}") for attribute, each in _IDS.items()) + ")",
)
_CHOSEN_EVENTS: Final = " or ".join(
    f'({label_name(attribute)}="${each.name}" and {has(attribute)})' for attribute, each in _IDS.items()
)  # an empty id would match the events that have none
_ENDS: Final = events(names.LOOP_STOP_EVENT, _CHOSEN_EVENTS)
_DECISIONS: Final = events(names.TOOL_DECISION_EVENT, _CHOSEN_EVENTS)
_MOST_RECORDS: Final = 1000
_MOST_SPANS: Final = 100
_NOTHING: Final = "Fill in a conversation ID or a run ID, or follow a link to a run. Then choose the time range of it."
_TRACE: Final = Column("Trace", link=links.trace_url("${__value.raw}"))


def _inside(*conditions: str) -> str:
    """Return the spans in the chosen runs that meet all conditions."""
    return f"{_CHOSEN_RUNS} >> {{ {' && '.join(conditions)} }} "


BOARD: Final = Board(
    uid="tt-conversation",
    title="Agents: a conversation",
    question="What happened in this conversation or run?",
    variables=VARIABLES,
    span="now-24h",
    refresh="",
    sections=(
        Section(
            "Conversation",
            (
                Stat(
                    id=1,
                    title="Ended runs",
                    question="How many runs does the conversation have?",
                    reading="Those of the conversation, and the run with the ID. Active runs are not counted yet.",
                    queries=(LogMetric(logql.occurrences(_ENDS)),),
                    width=4,
                    empty=_NOTHING,
                ),
                Stat(
                    id=2,
                    title="Input tokens",
                    unit="short",
                    question="How many tokens did its models read?",
                    reading="The tokens of agents that its tools started are not included.",
                    queries=(LogMetric(logql.added(_ENDS, names.USAGE_INPUT_TOKENS)),),
                    width=5,
                    empty=_NOTHING,
                ),
                Stat(
                    id=3,
                    title="Output tokens",
                    unit="short",
                    question="How many tokens did its models write?",
                    reading="The tokens of agents that its tools started are not included.",
                    queries=(LogMetric(logql.added(_ENDS, names.USAGE_OUTPUT_TOKENS)),),
                    width=5,
                    empty=_NOTHING,
                ),
                Stat(
                    id=4,
                    title="Cost",
                    question="What did its runs cost?",
                    reading="The cost of agents that its tools started is not included.",
                    queries=(LogMetric(logql.added(_ENDS, names.LOOP_COST)),),
                    unit="currencyUSD",
                    width=5,
                    empty="No run of it has a price. Pass prices to the client's telemetry.",
                ),
                Stat(
                    id=5,
                    title="Refused calls",
                    question="Was it kept from something?",
                    reading="The tool decisions say by whom, and why.",
                    queries=(
                        LogMetric(
                            logql.occurrences(
                                events(
                                    names.TOOL_DECISION_EVENT,
                                    _CHOSEN_EVENTS,
                                    none_of(names.TOOL_DECISION, ACCEPTED),
                                )
                            )
                            + f" or 0 * {logql.occurrences(_ENDS)}"
                        ),
                    ),
                    width=5,
                    empty=_NOTHING,
                ),
                Table(
                    id=6,
                    title="Ends of runs",
                    question="How did each run end, and what did it use?",
                    reading="The failed step is where the error that failed the run was raised.",
                    queries=(Logs(_ENDS, limit=_MOST_RECORDS),),
                    columns={
                        logql.TIME: Column("Time"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.REQUEST_MODEL): Column("Model"),
                        label_name(names.LOOP_STOP_REASON): Column("Stop reason"),
                        label_name(names.FAILED_STEP): Column("Failed step"),
                        label_name(names.LOOP_ITERATIONS): Column("Iterations"),
                        label_name(names.LOOP_TOOL_CALLS): Column("Tool calls"),
                        label_name(names.USAGE_INPUT_TOKENS): Column("Input tokens"),
                        label_name(names.USAGE_OUTPUT_TOKENS): Column("Output tokens"),
                        label_name(names.LOOP_COST): Column("Cost", "currencyUSD"),
                        label_name(names.RUN_ID): Column(
                            "Run", link=links.board_url("tt-conversation", links.chosen("run"))
                        ),
                        logql.TRACE_ID: _TRACE,
                    },
                    width=24,
                    empty=_NOTHING,
                ),
                Table(
                    id=7,
                    title="Timelines of runs",
                    question="How long did each run take?",
                    reading="Each row opens a trace, the timeline of the run.",
                    queries=(
                        Spans(
                            f"{_CHOSEN_RUNS} "
                            + traceql.select(
                                names.AGENT_NAME,
                                names.RUN_ID,
                                names.LOOP_STOP_REASON,
                                names.LOOP_ITERATIONS,
                                names.USAGE_INPUT_TOKENS,
                                names.USAGE_OUTPUT_TOKENS,
                                names.LOOP_COST,
                            ),
                            per_trace=_MOST_SPANS,
                        ),
                    ),
                    width=24,
                    empty=_NOTHING,
                ),
            ),
        ),
        Section(
            "Steps",
            (
                Table(
                    id=20,
                    title="Iterations",
                    question="Which iteration took the time?",
                    reading="With those of agents that its tools started.",
                    queries=(
                        Spans(
                            _inside(f'name = "{names.ITERATION_SPAN.name}"')
                            + traceql.select(names.ITERATION_INDEX, names.ITERATION_TOOL_CALLS, names.ERROR_TYPE),
                            per_trace=_MOST_SPANS,
                        ),
                    ),
                    empty=_NOTHING,
                ),
                Table(
                    id=21,
                    title="Model calls",
                    question="Which model call took the time, or the tokens?",
                    reading="Input tokens that rise from call to call are the results of tools.",
                    queries=(
                        Spans(
                            _inside(traceql.MODEL_CALLS)
                            + traceql.select(
                                names.ITERATION_INDEX,
                                names.RESPONSE_MODEL,
                                names.USAGE_INPUT_TOKENS,
                                names.USAGE_OUTPUT_TOKENS,
                                names.RESPONSE_FINISH_REASONS,
                                names.ERROR_TYPE,
                            ),
                            per_trace=_MOST_SPANS,
                        ),
                    ),
                    empty=_NOTHING,
                ),
                Table(
                    id=22,
                    title="Tool calls",
                    question="Which tools ran, how long, and how did they end?",
                    reading="Refused calls are here, too: they have a decision and no outcome.",
                    queries=(
                        Spans(
                            _inside(f"{traceql.span(names.TOOL_NAME)} != nil")
                            + traceql.select(
                                names.ITERATION_INDEX,
                                names.TOOL_NAME,
                                names.TOOL_DECISION,
                                names.TOOL_OUTCOME,
                                names.TOOL_ATTEMPTS,
                                names.TOOL_RESULT_SIZE,
                                names.ERROR_TYPE,
                            ),
                            per_trace=_MOST_SPANS,
                        ),
                    ),
                    width=24,
                    empty="No tool call of it in Tempo in this time range.",
                ),
                Table(
                    id=23,
                    title="Tool decisions",
                    question="Who allowed or refused each call, and why?",
                    reading="In the order of time, the newest first.",
                    queries=(Logs(_DECISIONS, limit=_MOST_RECORDS),),
                    columns={
                        logql.TIME: Column("Time"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.ITERATION_INDEX): Column("Iteration"),
                        label_name(names.TOOL_NAME): Column("Tool"),
                        label_name(names.TOOL_DECISION): Column("Decision"),
                        label_name(names.REASON_CODE): Column("Reason"),
                        label_name(names.ADVISOR_NAME): Column("Advisor"),
                        label_name(names.APPROVAL_BY): Column("By"),
                        logql.TRACE_ID: _TRACE,
                    },
                    width=24,
                    empty="No tool call of it in Loki in this time range.",
                    links=(links.board("tt-audit", "Evidence", "job"),),
                ),
            ),
        ),
        Section(
            "Log events",
            (
                LogList(
                    id=40,
                    title="Log events",
                    question="What was reported, in which order?",
                    reading="Events of exceptions name only their trace: open it, and from there its logs.",
                    queries=(Logs(events((), _CHOSEN_EVENTS), limit=_MOST_RECORDS),),
                    width=24,
                    height=16,
                    empty=_NOTHING,
                ),
            ),
        ),
    ),
)
