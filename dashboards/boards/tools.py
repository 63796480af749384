"""The board of tools: which tools fail, who refuses calls, and what goes into tools and comes out."""

from __future__ import annotations

from typing import Final

from dashboards import links, logql, traceql
from dashboards.objectives import APPROVAL_SECONDS, PENDING_SECONDS, READY_SECONDS, STUCK_TOOL_SECONDS, TOOL_ERRORS
from dashboards.outcomes import ACCEPTED, REFUSED
from dashboards.panels import (
    Board,
    Column,
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
    equals,
    has,
    increase,
    lacks,
    legend,
    mean,
    none_of,
    occurrences,
    one_of,
    quantile,
    rate,
    share,
    total,
)
from dashboards.variables import SERVICE, TOOL, TOOL_CALLER, selection_of
from traced_tools.core.enums import Decision
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, TOOL_CALLER, TOOL)
select: Final = selection_of(*VARIABLES)
spans: Final = traceql.SpanSelection(VARIABLES)
events: Final = logql.EventSelection(VARIABLES)

_EXECUTIONS: Final = select(names.EXECUTE_TOOL_DURATION, part="count")
_FAILURES: Final = select(names.EXECUTE_TOOL_DURATION, has(names.ERROR_TYPE), part="count")
_TIMEOUTS: Final = select(names.EXECUTE_TOOL_DURATION, equals(names.ERROR_TYPE, names.TIMEOUT), part="count")
_DECISIONS: Final = select(names.TOOL_DECISIONS)
_RESULTS: Final = select(names.TOOL_RESULT_SIZE_METRIC, part="count")
_CUT: Final = select(names.TOOL_RESULT_SIZE_METRIC, has(names.TOOL_RESULT_CUT), part="count")
_IS_MCP_CALL: Final = equals(names.MCP_METHOD, names.TOOLS_CALL)
_MCP_CALLS: Final = select(names.MCP_CLIENT_DURATION, _IS_MCP_CALL, part="count")
_MCP_FAILURES: Final = select(names.MCP_CLIENT_DURATION, _IS_MCP_CALL, has(names.ERROR_TYPE), part="count")
_MCP_REQUEST_FAILURES: Final = select(names.MCP_CLIENT_DURATION, has(names.ERROR_TYPE), part="count")
_OF_SERVER: Final = (names.TOOL_SOURCE, names.TOOL_NAME)
_NO_MCP_CALLS: Final = "No requests to MCP servers in this time range."
_NO_SEARCHES: Final = "No agent with a tool search has run in this time range."
_UNREADABLE: Final[tuple[Decision, ...]] = ("invalid_arguments", "unknown_tool")
_NO_CALLS: Final = "No tool calls in this time range. Choose a longer range, or run: traced-tools demo --load"
_NO_STORE: Final = "No process reports its pending store: call PendingStore.report_metrics() in the worker."
_TOOL_COLUMN: Final = Column("Tool", link=links.board_url("tt-tools", links.chosen("tool")))


def _decisions(*values: Decision) -> str:
    return select(names.TOOL_DECISIONS, one_of(names.TOOL_DECISION, values))


def _occurrences(decisions: str) -> str:
    return occurrences(decisions, names.AGENT_NAME, names.TOOL_NAME, window=RANGE)


BOARD: Final = Board(
    uid="tt-tools",
    title="Agents: tools and policy",
    question="Which tools fail or hang, who refuses calls, and why?",
    variables=VARIABLES,
    sections=(
        Section(
            "Tools",
            (
                Table(
                    id=1,
                    title="Tools",
                    question="How busy, how broken and how slow is each tool?",
                    reading="A p95 of fewer than 20 calls says little. Choose a tool to see the whole board for it.",
                    queries=(
                        Instant(rate(_EXECUTIONS, names.TOOL_NAME, window=RANGE)),
                        Instant(share(increase(_FAILURES, names.TOOL_NAME), increase(_EXECUTIONS, names.TOOL_NAME))),
                        Instant(quantile(0.95, select, names.EXECUTE_TOOL_DURATION, names.TOOL_NAME, window=RANGE)),
                        Instant(increase(_EXECUTIONS, names.TOOL_NAME)),
                    ),
                    columns={
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        "Value #A": Column("Calls per second", "reqps"),
                        "Value #B": Column("Failed", "percentunit"),
                        "Value #C": Column("p95", "s"),
                        "Value #D": Column("Calls"),
                    },
                    sort="Value #D",
                    width=24,
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=2,
                    title="p95 of the duration by tool",
                    question="Which tool makes runs slow, and since when?",
                    reading="A dot is a call: it opens the trace. The duration contains all attempts.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.EXECUTE_TOOL_DURATION, names.TOOL_NAME),
                            legend(names.TOOL_NAME),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_CALLS,
                    links=(links.traces("Slow calls", spans(traceql.TOOL_CALLS, "duration > 1s")),),
                ),
                TimeSeries(
                    id=3,
                    title="Share of failing calls by tool",
                    question="Is a tool down?",
                    reading="Above the limit, ask the tool's owner, or let an advisor refuse its calls.",
                    queries=(
                        Range(
                            share(rate(_FAILURES, names.TOOL_NAME), rate(_EXECUTIONS, names.TOOL_NAME)),
                            legend(names.TOOL_NAME),
                        ),
                    ),
                    unit="percentunit",
                    threshold=Threshold(TOOL_ERRORS),
                    empty=_NO_CALLS,
                    links=(links.traces("Failing calls", spans(traceql.TOOL_CALLS, traceql.FAILED)),),
                ),
                TimeSeries(
                    id=4,
                    title="Failures per second by tool and error",
                    question="How do tools fail, and since when?",
                    reading="timeout is a tool that exceeded its time-out. The model reads most errors and goes on.",
                    queries=(
                        Range(
                            rate(_FAILURES, names.TOOL_NAME, names.ERROR_TYPE),
                            legend(names.TOOL_NAME, names.ERROR_TYPE),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty="No tool has failed in this time range.",
                ),
                TimeSeries(
                    id=5,
                    title="Retries per second by tool",
                    question="Which tool fails so often that it is retried, and since when?",
                    reading="Many retries that help hide a broken service; the duration by tool contains them.",
                    queries=(
                        Range(
                            rate(select(names.TOOL_RETRIES), names.TOOL_NAME, names.ERROR_TYPE),
                            legend(names.TOOL_NAME, names.ERROR_TYPE),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty="No tool was retried in this time range.",
                ),
                Table(
                    id=6,
                    title="Time-outs, late results and retries",
                    question="Which tool exceeds its time-out, works on after it, or succeeds only when it is retried?",
                    reading=(
                        "A late result is dropped, but its effect remains: give the tool a longer time-out, or make it "
                        "stop. Retries repeat effects, too: retry only tools that may run twice."
                    ),
                    queries=(
                        Instant(occurrences(_TIMEOUTS, names.TOOL_NAME, names.AGENT_NAME, window=RANGE)),
                        Instant(
                            occurrences(
                                select(names.TOOL_LATE_RESULTS), names.TOOL_NAME, names.AGENT_NAME, window=RANGE
                            )
                        ),
                        Instant(
                            occurrences(select(names.TOOL_RETRIES), names.TOOL_NAME, names.AGENT_NAME, window=RANGE)
                        ),
                    ),
                    columns={
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        label_name(names.AGENT_NAME): Column("Agent"),
                        "Value #A": Column("Time-outs"),
                        "Value #B": Column("Late results"),
                        "Value #C": Column("Retries"),
                    },
                    sort="Value #A",
                    empty="No tool has exceeded its time-out or was retried in this time range.",
                ),
                TimeSeries(
                    id=7,
                    title="Oldest running call by tool",
                    question="Does a tool hang?",
                    reading=(
                        "A line that rises without an end is a call that hangs. Above the limit, look for the process "
                        "that the tool waits for, and set a time-out for the tool."
                    ),
                    queries=(
                        Range(
                            total(select(names.TOOL_OLDEST_ACTIVE), names.TOOL_NAME, function="max"),
                            legend(names.TOOL_NAME),
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(STUCK_TOOL_SECONDS),
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=8,
                    title="Running calls by agent",
                    question="How many tools run at the same time?",
                    reading="If the line is flat while calls wait, the workers are the limit.",
                    queries=(Range(total(select(names.TOOL_ACTIVE), names.AGENT_NAME), legend(names.AGENT_NAME)),),
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=9,
                    title="Longest wait before a tool starts",
                    question="Do calls wait for a free worker?",
                    reading=(
                        "Calls of one response wait for each other if they may not run at the same time, and all calls "
                        "wait if all workers are busy."
                    ),
                    queries=(
                        SpanMetric(
                            spans(traceql.TOOL_CALLS)
                            + f" | max_over_time({traceql.span(names.TOOL_QUEUE_TIME)})"
                            + f" by ({traceql.span(names.TOOL_NAME)})",
                            "",
                        ),
                    ),
                    unit="s",
                    empty="No tool calls in Tempo in this time range, or Tempo answers no TraceQL metrics.",
                ),
                TimeSeries(
                    id=10,
                    title="Calls per second by source",
                    question="Which MCP server do the tools come from?",
                    reading=f"{names.LOCAL} is this process. Compare with the failing calls beside it.",
                    queries=(
                        SpanMetric(spans(traceql.TOOL_CALLS) + f" | rate() by ({traceql.span(names.TOOL_SOURCE)})", ""),
                    ),
                    unit="reqps",
                    empty="No tool calls in Tempo in this time range, or Tempo answers no TraceQL metrics.",
                ),
                TimeSeries(
                    id=11,
                    title="Failing calls per second by source",
                    question="Is an MCP server down?",
                    reading="If only one source fails, look at its server, not at its tools.",
                    queries=(
                        SpanMetric(
                            spans(traceql.TOOL_CALLS, traceql.FAILED)
                            + f" | rate() by ({traceql.span(names.TOOL_SOURCE)})",
                            "",
                        ),
                    ),
                    unit="reqps",
                    empty="No failing tool call in Tempo in this time range, or Tempo answers no TraceQL metrics.",
                ),
                Table(
                    id=12,
                    title="Examples of failing calls",
                    question="What does a failing call look like?",
                    reading="Each row opens a trace.",
                    queries=(
                        Spans(
                            spans(traceql.TOOL_CALLS, traceql.FAILED)
                            + traceql.select(
                                names.AGENT_NAME,
                                names.TOOL_NAME,
                                names.ERROR_TYPE,
                                names.TOOL_OUTCOME,
                                names.TOOL_ATTEMPTS,
                                names.TOOL_SOURCE,
                            )
                        ),
                    ),
                    width=24,
                    empty="No failing tool call in Tempo in this time range.",
                ),
            ),
        ),
        Section(
            "MCP servers",
            (
                Table(
                    id=40,
                    title="Tools by MCP server",
                    question="How busy, how broken and how slow is each tool of each server?",
                    reading=(
                        "If all tools of a server fail, look at the server. A tool has the name that its server uses."
                    ),
                    queries=(
                        Instant(rate(_MCP_CALLS, *_OF_SERVER, window=RANGE)),
                        Instant(share(increase(_MCP_FAILURES, *_OF_SERVER), increase(_MCP_CALLS, *_OF_SERVER))),
                        Instant(
                            quantile(
                                0.95,
                                select,
                                names.MCP_CLIENT_DURATION,
                                *_OF_SERVER,
                                matchers=(_IS_MCP_CALL,),
                                window=RANGE,
                            )
                        ),
                        Instant(increase(_MCP_CALLS, *_OF_SERVER)),
                    ),
                    columns={
                        label_name(names.TOOL_SOURCE): Column("Server"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        "Value #A": Column("Calls per second", "reqps"),
                        "Value #B": Column("Failed", "percentunit"),
                        "Value #C": Column("p95", "s"),
                        "Value #D": Column("Calls"),
                    },
                    sort="Value #D",
                    width=24,
                    empty=_NO_MCP_CALLS,
                ),
                TimeSeries(
                    id=41,
                    title="Failing requests per second by server and error",
                    question="Is a server down, or does it refuse requests, and since when?",
                    reading=(
                        f"{names.TOOL_ERROR} is a tool that reports a failure. A number is a code of JSON-RPC. All "
                        "requests count, such as those that list tools."
                    ),
                    queries=(
                        Range(
                            rate(_MCP_REQUEST_FAILURES, names.TOOL_SOURCE, names.ERROR_TYPE),
                            legend(names.TOOL_SOURCE, names.ERROR_TYPE),
                        ),
                    ),
                    unit="reqps",
                    stacked=True,
                    empty="No request to an MCP server has failed in this time range.",
                ),
                TimeSeries(
                    id=42,
                    title="p95 of the duration of requests by server",
                    question="Which server makes runs slow, and since when?",
                    reading="A dot is a request: it opens the trace.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.MCP_CLIENT_DURATION, names.TOOL_SOURCE),
                            legend(names.TOOL_SOURCE),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty=_NO_MCP_CALLS,
                ),
            ),
        ),
        Section(
            "Tool search",
            (
                TimeSeries(
                    id=50,
                    title="Searches per second by index",
                    question="How often do models search for tools?",
                    reading="Many searches for few discovered tools mean that models don't find what they look for.",
                    queries=(
                        Range(
                            rate(select(names.TOOL_SEARCHES), names.TOOL_SEARCH_INDEX), legend(names.TOOL_SEARCH_INDEX)
                        ),
                    ),
                    unit="reqps",
                    empty=_NO_SEARCHES,
                ),
                TimeSeries(
                    id=51,
                    title="Discovered tools per second by index",
                    question="Do searches find tools?",
                    reading="A tool counts once in a session. Models also discover tools by calling them.",
                    queries=(
                        Range(
                            rate(select(names.TOOLS_DISCOVERED), names.TOOL_SEARCH_INDEX),
                            legend(names.TOOL_SEARCH_INDEX),
                        ),
                    ),
                    unit="reqps",
                    empty=_NO_SEARCHES,
                ),
                TimeSeries(
                    id=52,
                    title="Mean number of withheld definitions by agent",
                    question="How many tools are models not offered?",
                    reading="Per model call. It falls as the sessions discover tools.",
                    queries=(Range(mean(select, names.TOOLS_WITHHELD, names.AGENT_NAME), legend(names.AGENT_NAME)),),
                    empty=_NO_SEARCHES,
                ),
                TimeSeries(
                    id=53,
                    title="Mean number of tokens saved by agent",
                    question="What does it save that definitions are withheld?",
                    reading="Per model call, as an estimate. Searches cost model calls of their own.",
                    queries=(Range(mean(select, names.TOOL_TOKENS_SAVED, names.AGENT_NAME), legend(names.AGENT_NAME)),),
                    empty=_NO_SEARCHES,
                ),
            ),
        ),
        Section(
            "Policy",
            (
                TimeSeries(
                    id=20,
                    title="Calls per second by decision",
                    question="What happens to the calls that models request?",
                    reading=(
                        "allowed and approved run, an advisor answered answered, and pending waits for approval. The "
                        "others did not run: the model reads why and goes on."
                    ),
                    queries=(Range(rate(_DECISIONS, names.TOOL_DECISION), legend(names.TOOL_DECISION)),),
                    unit="reqps",
                    stacked=True,
                    empty=_NO_CALLS,
                ),
                TimeSeries(
                    id=21,
                    title="Share of denied calls by tool",
                    question="Is a policy too tight, or does an agent misbehave?",
                    reading="A step is a change of a policy or a prompt, or an attack. The next panel says who denies.",
                    queries=(
                        Range(
                            share(rate(_decisions(*REFUSED), names.TOOL_NAME), rate(_DECISIONS, names.TOOL_NAME)),
                            legend(names.TOOL_NAME),
                        ),
                    ),
                    unit="percentunit",
                    empty=_NO_CALLS,
                ),
                Table(
                    id=22,
                    title="Denied calls by tool, advisor and reason",
                    question="Who denies which calls, and why?",
                    reading="Without an advisor, the application or a person denied the call.",
                    queries=(
                        Instant(
                            occurrences(
                                _decisions(*REFUSED),
                                names.AGENT_NAME,
                                names.TOOL_NAME,
                                names.ADVISOR_NAME,
                                names.REASON_CODE,
                                window=RANGE,
                            )
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        label_name(names.ADVISOR_NAME): Column("Advisor"),
                        label_name(names.REASON_CODE): Column("Reason"),
                        "Value": Column("Calls"),
                    },
                    sort="Value",
                    empty="No call was denied in this time range.",
                    links=(links.board("tt-audit", "Evidence", "job", "agent"),),
                ),
                Table(
                    id=28,
                    title="Calls that the evaluated policy would change, by rule",
                    question="What would change if the policy that is only evaluated were enforced?",
                    reading=(
                        "When each row is as you want it, enforce the policy. traced-tools policy evaluated lists the "
                        "calls, and what would become of them."
                    ),
                    queries=(
                        Instant(
                            occurrences(
                                select(names.POLICY_EVALUATIONS, has(names.EVALUATED_CHANGES)),
                                names.EVALUATED_ADVISOR,
                                names.EVALUATED_CODE,
                                names.EVALUATED_DECISION,
                                names.AGENT_NAME,
                                names.TOOL_NAME,
                                window=RANGE,
                            )
                        ),
                    ),
                    columns={
                        label_name(names.EVALUATED_ADVISOR): Column("Advisor"),
                        label_name(names.EVALUATED_CODE): Column("Rule"),
                        label_name(names.EVALUATED_DECISION): Column("Would"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        "Value": Column("Calls"),
                    },
                    sort="Value",
                    empty="No evaluated policy would change a call in this time range.",
                    links=(links.board("tt-audit", "Evidence", "job", "agent"),),
                ),
                Table(
                    id=23,
                    title="Approvals by tool",
                    question="How often do people approve calls, and how often do they refuse them?",
                    reading=(
                        "Denied counts calls that the application denied without an advisor. Pending calls ended their "
                        "run. If all are approved, the approval is a habit: drop it, or ask for it less often."
                    ),
                    queries=(
                        Instant(_occurrences(_decisions("approved"))),
                        Instant(_occurrences(_decisions("rejected"))),
                        Instant(
                            _occurrences(
                                select(
                                    names.TOOL_DECISIONS,
                                    equals(names.TOOL_DECISION, "denied"),
                                    lacks(names.ADVISOR_NAME),
                                )
                            )
                        ),
                        Instant(_occurrences(_decisions("pending"))),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        "Value #A": Column("Approved"),
                        "Value #B": Column("Rejected"),
                        "Value #C": Column("Denied"),
                        "Value #D": Column("Pending"),
                    },
                    sort="Value #A",
                    empty="No call required approval in this time range.",
                    links=(links.board("tt-audit", "Who approved", "job", "agent"),),
                ),
                TimeSeries(
                    id=25,
                    title="Calls that wait for approval by agent",
                    question="How many runs stand still until somebody decides?",
                    reading="Only calls whose run waits. A pending call, whose run has ended, is not among them.",
                    queries=(Range(total(select(names.APPROVAL_PENDING), names.AGENT_NAME), legend(names.AGENT_NAME)),),
                    empty="No call has waited for approval in this time range.",
                ),
                TimeSeries(
                    id=26,
                    title="Oldest wait for approval by agent",
                    question="Does nobody decide?",
                    reading="Above the limit, ask those who approve. At its time-out, the call is denied.",
                    queries=(
                        Range(
                            total(select(names.APPROVAL_OLDEST_PENDING), names.AGENT_NAME, function="max"),
                            legend(names.AGENT_NAME),
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(APPROVAL_SECONDS),
                    empty="No call has waited for approval in this time range.",
                ),
                TimeSeries(
                    id=27,
                    title="p95 of the wait for approval by decision",
                    question="How long do those who approve take?",
                    reading="denied includes calls that nobody decided in time. Standing approvals take 0 s.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.APPROVAL_WAIT, names.TOOL_DECISION),
                            legend(names.TOOL_DECISION),
                            exemplars=True,
                        ),
                    ),
                    unit="s",
                    empty="No call has waited for approval in this time range.",
                ),
                Table(
                    id=24,
                    title="Newest refused calls",
                    question="Which calls did not run, and why?",
                    reading="The trace shows what the model did next.",
                    queries=(Logs(events(names.TOOL_DECISION_EVENT, none_of(names.TOOL_DECISION, ACCEPTED))),),
                    columns={
                        logql.TIME: Column("Time"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        label_name(names.TOOL_DECISION): Column("Decision"),
                        label_name(names.ADVISOR_NAME): Column("Advisor"),
                        label_name(names.REASON_CODE): Column("Reason"),
                        label_name(names.APPROVAL_BY): Column("By"),
                        logql.TRACE_ID: Column("Trace", link=links.trace_url("${__value.raw}")),
                    },
                    width=24,
                    empty="No refused call in Loki in this time range. Events need a logger provider.",
                ),
            ),
        ),
        Section(
            "The pending store",
            (
                TimeSeries(
                    id=60,
                    title="Calls in the pending store by agent",
                    question="How many calls wait for somebody who decides, after their runs have ended?",
                    reading="A line that only rises is an inbox that nobody reads.",
                    queries=(
                        Range(total(select(names.PENDING_STORE_CALLS), names.AGENT_NAME), legend(names.AGENT_NAME)),
                    ),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=61,
                    title="Oldest call in the pending store by agent",
                    question="Does nobody decide?",
                    reading="Above the limit, ask those who approve, or withdraw the run.",
                    queries=(
                        Range(
                            total(select(names.PENDING_STORE_OLDEST), names.AGENT_NAME, function="max"),
                            legend(names.AGENT_NAME),
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(PENDING_SECONDS),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=62,
                    title="Decided runs that have not resumed by agent",
                    question="Do workers resume what people have decided?",
                    reading="A worker takes each run within seconds. What stays waits for a worker.",
                    queries=(
                        Range(total(select(names.PENDING_STORE_READY), names.AGENT_NAME), legend(names.AGENT_NAME)),
                    ),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=63,
                    title="Longest wait of a decided run by agent",
                    question="For how long has no worker resumed a run?",
                    reading="Above the limit, look at the worker: it is down, lacks the key, or asks for other agents.",
                    queries=(
                        Range(
                            total(select(names.PENDING_STORE_OLDEST_READY), names.AGENT_NAME, function="max"),
                            legend(names.AGENT_NAME),
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(READY_SECONDS),
                    empty=_NO_STORE,
                ),
                TimeSeries(
                    id=64,
                    title="Runs that can't resume by agent and reason",
                    question="Which decisions come to nothing, and why?",
                    reading="traced-tools approvals list names the runs. Withdraw them, or repair the cause and retry.",
                    queries=(
                        Range(
                            total(select(names.PENDING_STORE_REFUSED), names.AGENT_NAME, names.RESUME_REFUSAL),
                            legend(names.AGENT_NAME, names.RESUME_REFUSAL),
                        ),
                    ),
                    threshold=Threshold(1),
                    empty="Each decided run can resume, or no process calls PendingStore.report_metrics().",
                ),
            ),
        ),
        Section(
            "Arguments and results",
            (
                TimeSeries(
                    id=30,
                    title="Share of calls with invalid arguments by tool",
                    question="Does a model misread the schema of a tool, and since when?",
                    reading=(
                        "The share of the tool's calls. A step after a release is a schema, a description or a model "
                        "that changed."
                    ),
                    queries=(
                        Range(
                            share(
                                rate(_decisions("invalid_arguments"), names.TOOL_NAME),
                                rate(_DECISIONS, names.TOOL_NAME),
                            ),
                            legend(names.TOOL_NAME),
                        ),
                    ),
                    unit="percentunit",
                    empty=_NO_CALLS,
                ),
                Table(
                    id=31,
                    title="Calls that no tool could run",
                    question="Which agent calls tools with invalid arguments, or tools that don't exist?",
                    reading=f"{names.UNKNOWN_TOOL} is a name that no tool has. Captured content shows which.",
                    queries=(
                        Instant(
                            occurrences(
                                _decisions(*_UNREADABLE),
                                names.AGENT_NAME,
                                names.TOOL_NAME,
                                names.TOOL_DECISION,
                                window=RANGE,
                            )
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        label_name(names.TOOL_DECISION): Column("Decision"),
                        "Value": Column("Calls"),
                    },
                    sort="Value",
                    empty="All calls in this time range had valid arguments.",
                    links=(links.traces("Traces", spans(traceql.one_of(names.TOOL_DECISION, _UNREADABLE))),),
                ),
                TimeSeries(
                    id=32,
                    title="p95 of the result size by tool",
                    question="Which tool fills the context of the model?",
                    reading="The size as sent to the model. Each result is read again in all iterations that follow.",
                    queries=(
                        Range(
                            quantile(0.95, select, names.TOOL_RESULT_SIZE_METRIC, names.TOOL_NAME),
                            legend(names.TOOL_NAME),
                            exemplars=True,
                        ),
                    ),
                    unit="bytes",
                    empty=_NO_CALLS,
                ),
                Table(
                    id=33,
                    title="Results by tool",
                    question="Which tool returns more than the model may read?",
                    reading="A model that reads a part of a result may answer from it. Page the results of the tool.",
                    queries=(
                        Instant(increase(_RESULTS, names.TOOL_NAME)),
                        Instant(mean(select, names.TOOL_RESULT_SIZE_METRIC, names.TOOL_NAME, window=RANGE)),
                        Instant(share(increase(_CUT, names.TOOL_NAME), increase(_RESULTS, names.TOOL_NAME))),
                    ),
                    columns={
                        label_name(names.TOOL_NAME): _TOOL_COLUMN,
                        "Value #A": Column("Results"),
                        "Value #B": Column("Mean size", "bytes"),
                        "Value #C": Column("Cut", "percentunit"),
                    },
                    sort="Value #C",
                    empty=_NO_CALLS,
                    links=(links.traces("Cut results", spans(f"{traceql.span(names.TOOL_RESULT_CUT)} = true")),),
                ),
            ),
        ),
    ),
)
