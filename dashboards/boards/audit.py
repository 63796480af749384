"""The board of evidence: what an auditor can prove about the calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dashboards import links, logql, traceql
from dashboards.objectives import AUDIT_LAG_SECONDS, VERIFICATION_SECONDS
from dashboards.outcomes import ACCEPTED
from dashboards.panels import (
    Board,
    Column,
    Instant,
    Link,
    LogMetric,
    Logs,
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
    equals,
    has,
    lacks,
    legend,
    none_of,
    occurrences,
    rate,
    total,
)
from dashboards.variables import SERVICE, TOOL_CALLER, selection_of
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import EventType, SpanType
from traced_tools.otel.prometheus_names import label_name

VARIABLES: Final = (SERVICE, TOOL_CALLER)
select: Final = selection_of(*VARIABLES)
of_trail: Final = selection_of(SERVICE)  # gaps, erasures and checkpoints have no agent
spans: Final = traceql.SpanSelection()  # of all agents: not each span with content names its agent
events: Final = logql.EventSelection(VARIABLES)

_MOST_RECORDS: Final = 5000
"""As many as Loki returns by default for one query."""
_OF_CALLS: Final = (names.AUDIT_INTENT_EVENT, names.AUDIT_DECISION_EVENT, names.AUDIT_OUTCOME_EVENT)
_OF_TRAIL: Final = (*_OF_CALLS, names.AUDIT_CHECKPOINT_EVENT, names.AUDIT_GAP_EVENT, names.AUDIT_ERASURE_EVENT)
_DIGEST: Final = "arguments_digest"
_INTENTS: Final = select(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "intent"))
_SENT: Final = names.AUDIT_LAG
"""The gauge that each process with an audit trail sends, also before the first record."""
_NO_TRAIL: Final = "No audit trail reports. Give an agent an AuditAdvisor, or run: traced-tools demo --load"
_NO_EVENTS: Final = "No such event in Loki in this time range. Events need a logger provider."
_NO_MIRROR: Final = "No audit record in Loki in this time range. The trail's telemetry needs a logger provider."
_FIXED: Final = Link(
    "This board with a fixed time range, to cite",
    "/d/tt-audit?from=${__from}&to=${__to}&" + "&".join(f"${{{each.name}:queryparam}}" for each in VARIABLES),
)
_TRACE: Final = Column("Trace", link=links.trace_url("${__value.raw}"))


def _content(types: Iterable[SpanType | EventType]) -> list[str]:
    """Return the attributes that hold content on these spans or events."""
    # an application may set `user.id` itself, which says nothing about the capture of contents
    return sorted({name for each in types for name in each.content} - {names.CONTENT_TRUNCATED, names.USER_ID})


def _all_counted(series: str) -> str:
    """Return the value of a counter in each process of the time range, since the process began.

    Two counters of one process can be compared exactly with it, because nothing is extrapolated.
    """
    return total(f"last_over_time({series}[{RANGE}])", names.AGENT_NAME)


def _or_none(count: str) -> str:
    """Return a count, or 0 if an audit trail reports but the counter doesn't exist yet."""
    return f"{count} or 0 * {total(of_trail(_SENT))}"


_SPAN_HAS_CONTENT: Final = "(" + " || ".join(f"{traceql.span(name)} != nil" for name in _content(names.SPANS)) + ")"
_EVENT_HAS_CONTENT: Final = " or ".join(has(name) for name in _content(names.EVENTS.values()))
_CALL_COLUMNS: Final = {
    logql.TIME: Column("Time"),
    label_name(names.AGENT_NAME): Column("Agent"),
    label_name(names.TOOL_NAME): Column("Tool"),
    label_name(names.TOOL_DECISION): Column("Decision"),
    label_name(names.REASON_CODE): Column("Reason"),
    label_name(names.ADVISOR_NAME): Column("Advisor"),
    label_name(names.APPROVAL_BY): Column("By"),
    label_name(names.RUN_ID): Column("Run", link=links.board_url("tt-conversation", links.chosen("run"))),
    logql.TRACE_ID: _TRACE,
}

BOARD: Final = Board(
    uid="tt-audit",
    title="Agents: evidence",
    question="What can be proven about the tool calls of agents, and is the proof complete?",
    variables=VARIABLES,
    span="now-24h",
    refresh="",
    timezone="utc",
    sections=(
        Section(
            "Audit trail",
            (
                Stat(
                    id=1,
                    title="Last verification",
                    question="Are the records unchanged?",
                    reading="If it is broken, keep the store, and run traced-tools audit verify: it names the records.",
                    queries=(Instant(total(of_trail(names.AUDIT_VERIFIED), JOB, function="min"), legend(JOB)),),
                    unit="none",
                    threshold=Threshold(1, color="green", below="red"),
                    values={"0": "broken", "1": "intact"},
                    empty="No process has reported a verification. Run traced-tools audit verify --otlp regularly.",
                ),
                Stat(
                    id=2,
                    title="Age of the last verification",
                    question="Does the job that verifies the trail still run?",
                    reading="Above the limit, start it, and find out who stopped it.",
                    queries=(
                        Instant(
                            f"time() - {total(of_trail(names.AUDIT_LAST_VERIFIED), JOB, function='min')}", legend(JOB)
                        ),
                    ),
                    unit="s",
                    threshold=Threshold(VERIFICATION_SECONDS),
                    empty="No process has reported a verification. Run traced-tools audit verify --otlp regularly.",
                ),
                Stat(
                    id=3,
                    title="Oldest record that is not durable",
                    question="Does the store keep up?",
                    reading="0 if nothing waits. Above the limit, the store is slow or unreachable.",
                    queries=(Range(total(of_trail(names.AUDIT_LAG), JOB, function="max"), legend(JOB)),),
                    unit="s",
                    threshold=Threshold(AUDIT_LAG_SECONDS),
                    empty=_NO_TRAIL,
                ),
                Stat(
                    id=4,
                    title="Gaps",
                    question="Were records late or lost?",
                    reading="Must be 0. traced-tools audit verify shows what each gap record says.",
                    queries=(
                        Instant(
                            _or_none(
                                occurrences(
                                    of_trail(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "gap")), window=RANGE
                                )
                            )
                        ),
                    ),
                    threshold=Threshold(1),
                    empty=_NO_TRAIL,
                ),
                Stat(
                    id=5,
                    title="Erasures",
                    question="Was content erased from the trail?",
                    reading="Each erasure record says at whose request, and why.",
                    queries=(
                        Instant(
                            _or_none(
                                occurrences(
                                    of_trail(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "erasure")), window=RANGE
                                )
                            )
                        ),
                    ),
                    empty=_NO_TRAIL,
                ),
                Stat(
                    id=6,
                    title="Failed attempts to publish a checkpoint",
                    question="Can checkpoints leave the machine?",
                    reading="Each is retried. Look for the error in the application's log.",
                    queries=(Instant(_or_none(occurrences(of_trail(names.AUDIT_CHECKPOINTS_FAILED), window=RANGE))),),
                    threshold=Threshold(1, color="yellow"),
                    empty=_NO_TRAIL,
                ),
                Stat(
                    id=7,
                    title="Checkpoints lost",
                    question="Is there a time from which a change can't be proven?",
                    reading="Must be 0. Verify the trail now, and keep its head outside the store.",
                    queries=(Instant(_or_none(occurrences(of_trail(names.AUDIT_CHECKPOINTS_LOST), window=RANGE))),),
                    threshold=Threshold(1),
                    empty=_NO_TRAIL,
                ),
                Stat(
                    id=8,
                    title="Approvals without a name",
                    question="Did anybody approve a call without giving a name?",
                    reading="Must be 0. Pass by= to approve().",
                    queries=(
                        LogMetric(
                            logql.occurrences(
                                events(
                                    names.TOOL_DECISION_EVENT,
                                    equals(names.TOOL_DECISION, "approved"),
                                    lacks(names.APPROVAL_BY),
                                )
                            )
                            + " or vector(0)"
                        ),
                    ),
                    threshold=Threshold(1),
                    empty="Loki doesn't answer.",
                ),
                TimeSeries(
                    id=9,
                    title="Records per second by kind",
                    question="Is everything recorded, without a pause?",
                    reading="Of all agents. If intents, decisions and outcomes don't rise together, look at the gaps.",
                    queries=(
                        Range(rate(of_trail(names.AUDIT_RECORDS), names.AUDIT_RECORD), legend(names.AUDIT_RECORD)),
                    ),
                    unit="ops",
                    stacked=True,
                    width=24,
                    empty=_NO_TRAIL,
                ),
            ),
        ),
        Section(
            "Reconciliation",
            (
                Table(
                    id=20,
                    title="Decisions and intents by agent, in metrics",
                    question="Is each call that the loop decided in the audit trail?",
                    reading=(
                        "Missing must be 0 for an agent that is audited in all of its clients; an agent without "
                        "intents is not audited. Below 0, runs ended before their calls were decided. The counts "
                        "begin with the processes, not with the time range."
                    ),
                    queries=(
                        Instant(_all_counted(select(names.TOOL_DECISIONS))),
                        Instant(_all_counted(_INTENTS)),
                        Instant(f"{_all_counted(select(names.TOOL_DECISIONS))} - {_all_counted(_INTENTS)}"),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        "Value #A": Column("Decisions"),
                        "Value #B": Column("Intents in the trail"),
                        "Value #C": Column("Missing"),
                    },
                    sort="Value #C",
                    empty=_NO_TRAIL,
                ),
                Table(
                    id=21,
                    title="Intents by agent, in log events",
                    question="Is each call that a model requested in the audit trail?",
                    reading="Missing must be 0 for an agent that is audited in all of its clients.",
                    queries=(
                        LogMetric(logql.occurrences(events(names.TOOL_INTENT_EVENT), names.AGENT_NAME)),
                        LogMetric(logql.occurrences(events(names.AUDIT_INTENT_EVENT), names.AGENT_NAME)),
                        LogMetric(
                            logql.occurrences(events(names.TOOL_INTENT_EVENT), names.AGENT_NAME)
                            + " - "
                            + logql.occurrences(events(names.AUDIT_INTENT_EVENT), names.AGENT_NAME)
                        ),
                    ),
                    columns={
                        label_name(names.AGENT_NAME): Column("Agent"),
                        "Value #A": Column("Intents of the loop"),
                        "Value #B": Column("Intents in the trail"),
                        "Value #C": Column("Missing"),
                    },
                    sort="Value #C",
                    empty=_NO_MIRROR,
                ),
                Table(
                    id=22,
                    title="Records by chain, in log events",
                    question="Has each record of the trail also left the machine as a log event?",
                    reading=(
                        "Each record has the next number of its chain. Missing counts numbers between the first and "
                        "the last one that Loki doesn't have: it must be 0."
                    ),
                    queries=(
                        LogMetric(logql.occurrences(events(_OF_TRAIL), names.AUDIT_CHAIN_ID)),
                        LogMetric(logql.extreme("max", events(_OF_TRAIL), names.AUDIT_SEQUENCE, names.AUDIT_CHAIN_ID)),
                        LogMetric(
                            logql.extreme("max", events(_OF_TRAIL), names.AUDIT_SEQUENCE, names.AUDIT_CHAIN_ID)
                            + " - "
                            + logql.extreme("min", events(_OF_TRAIL), names.AUDIT_SEQUENCE, names.AUDIT_CHAIN_ID)
                            + " + 1 - "
                            + logql.occurrences(events(_OF_TRAIL), names.AUDIT_CHAIN_ID)
                        ),
                    ),
                    columns={
                        label_name(names.AUDIT_CHAIN_ID): Column("Chain"),
                        "Value #A": Column("Records"),
                        "Value #B": Column("Last number"),
                        "Value #C": Column("Missing"),
                    },
                    sort="Value #C",
                    width=24,
                    empty=_NO_MIRROR,
                ),
                Table(
                    id=23,
                    title="Records of the trail",
                    question="What does the trail say, and with which hash?",
                    reading=(
                        "Copies of all agents' records for a search, without content: the store is the evidence. A "
                        "hash here that is not in the store proves a change."
                    ),
                    queries=(Logs(events(_OF_TRAIL, f'json {_DIGEST}="arguments.digest"'), limit=_MOST_RECORDS),),
                    columns={
                        logql.TIME: Column("Time"),
                        label_name(names.AUDIT_CHAIN_ID): Column("Chain"),
                        label_name(names.AUDIT_SEQUENCE): Column("Number", "none"),
                        logql.EVENT_NAME: Column("Record"),
                        label_name(names.AGENT_NAME): Column("Agent"),
                        label_name(names.TOOL_NAME): Column("Tool"),
                        label_name(names.TOOL_DECISION): Column("Decision"),
                        label_name(names.AUDIT_OUTCOME): Column("Outcome"),
                        label_name(names.APPROVAL_BY): Column("By"),
                        _DIGEST: Column("Digest of the arguments"),
                        label_name(names.AUDIT_HASH): Column("Hash"),
                        logql.TRACE_ID: _TRACE,
                    },
                    width=24,
                    height=10,
                    empty=_NO_MIRROR,
                    links=(_FIXED,),
                ),
            ),
        ),
        Section(
            "Refusals and approvals",
            (
                Table(
                    id=30,
                    title="Refused calls",
                    question="Which agent wanted to call which tool, who refused, and why?",
                    reading=f"All of them, up to {_MOST_RECORDS}: choose a shorter time range to see the others.",
                    queries=(
                        Logs(
                            events(names.TOOL_DECISION_EVENT, none_of(names.TOOL_DECISION, ACCEPTED)),
                            limit=_MOST_RECORDS,
                        ),
                    ),
                    columns=_CALL_COLUMNS,
                    width=24,
                    height=12,
                    empty=_NO_EVENTS,
                    links=(_FIXED, links.board("tt-tools", "Denials by tool and reason", "job", "agent")),
                ),
                Table(
                    id=31,
                    title="Calls that a person or a service approved or refused",
                    question="Who approved which call?",
                    reading="The name is what the application passed as by=. Nobody but the application checks it.",
                    queries=(Logs(events(names.TOOL_DECISION_EVENT, has(names.APPROVAL_BY)), limit=_MOST_RECORDS),),
                    columns=_CALL_COLUMNS,
                    width=24,
                    empty=_NO_EVENTS,
                    links=(_FIXED,),
                ),
            ),
        ),
        Section(
            "Content",
            (
                TimeSeries(
                    id=40,
                    title="Spans with content by service",
                    question="Was content stored in traces, where, and since when?",
                    reading=(
                        "Content is prompts, answers, arguments, results and exception texts. Where it must not be "
                        "stored, set the capture of the service to NO_CONTENT, and delete the traces."
                    ),
                    queries=(
                        SpanMetric(
                            spans(_SPAN_HAS_CONTENT)
                            + " | count_over_time() by (resource.service.name, resource.deployment.environment.name)",
                            "",
                        ),
                    ),
                    empty="No content in Tempo in this time range, or Tempo answers no TraceQL metrics.",
                ),
                Table(
                    id=41,
                    title="Log events with content by service",
                    question="Was content stored in logs, and where?",
                    reading="The same as for traces, for services whose capture includes events.",
                    queries=(
                        LogMetric(
                            logql.occurrences(events((), _EVENT_HAS_CONTENT), logql.SERVICE_NAME, logql.EVENT_NAME)
                        ),
                    ),
                    columns={
                        logql.SERVICE_NAME: Column("Service"),
                        logql.EVENT_NAME: Column("Event"),
                        "Value #A": Column("Events with content"),
                    },
                    sort="Value #A",
                    empty="No content in Loki in this time range.",
                ),
                Table(
                    id=42,
                    title="Examples of spans with content",
                    question="Which agents store content?",
                    reading="Each row opens a trace with content.",
                    queries=(Spans(spans(_SPAN_HAS_CONTENT) + traceql.select(names.AGENT_NAME, names.OPERATION_NAME)),),
                    width=24,
                    empty="No content in Tempo in this time range.",
                ),
            ),
        ),
    ),
)
