"""The board of telemetry: does all telemetry arrive, so that the other boards can be trusted?"""

from __future__ import annotations

from typing import Final

from dashboards import collector, links, traceql
from dashboards.objectives import AUDIT_LAG_SECONDS, SERIES, TELEMETRY_LOSS
from dashboards.panels import (
    Board,
    Column,
    Instant,
    Range,
    Section,
    SpanMetric,
    Stat,
    Table,
    Threshold,
    TimeSeries,
)
from dashboards.promql import INSTANCE, JOB, RANGE, RATE_INTERVAL, legend, occurrences, rate, share, total
from dashboards.variables import SERVICE, selection_of
from traced_tools.observe import names
from traced_tools.observe.settings import EARLIER, GENAI_CONVENTIONS, RELEASED

VARIABLES: Final = (SERVICE,)
select: Final = selection_of(*VARIABLES)
spans: Final = traceql.SpanSelection(VARIABLES)

_SENT: Final = select(names.EXPORT_ITEMS)
_LOST: Final = select(names.EXPORT_DROPPED)
_SENT_OR_LOST: Final = select((names.EXPORT_ITEMS, names.EXPORT_DROPPED))
_FAILURES: Final = select(names.TELEMETRY_FAILURES)
_AUDIT_LAG: Final = select(names.AUDIT_LAG)
_RUN_ACTIVE: Final = select(names.RUN_ACTIVE)
_OUR_SERIES: Final = f'{{__name__=~"(gen_ai|traced_tools)_.+", {JOB}=~"${SERVICE.name}"}}'

_SERVICES: Final = total(f"present_over_time({_RUN_ACTIVE}[1d])", JOB, function="group")
"""The services that have reported an agent within the last day."""
_TARGETS: Final = f'(up{{{JOB}=~"${SERVICE.name}"}} and on ({JOB}) {_SERVICES})'
_LAST_SAMPLE: Final = total(f"timestamp({_RUN_ACTIVE})", JOB, function="max")
_LAST_SAMPLE_OF_A_DAY: Final = total(f"max_over_time(timestamp({_RUN_ACTIVE})[1d:1m])", JOB, function="max")

_VERSIONS: Final = {
    JOB: Column("Service"),
    "service_version": Column("Version"),
    "telemetry_sdk_name": Column("SDK"),
    "telemetry_sdk_language": Column("Language"),
    "telemetry_sdk_version": Column("SDK version"),
}
"""Labels of `target_info`: attributes of the service's resource."""
_CONVENTIONS: Final = "conventions"

_NO_EXPORTER: Final = (
    "No exporter counts items. Those that traced_tools.configure sets up do: pass otlp=..., or set "
    "OTEL_EXPORTER_OTLP_ENDPOINT."
)
_NO_SERVICE: Final = "No service has reported an agent. Start one, or run: traced-tools demo --load"
_NO_TARGETS: Final = "Prometheus scrapes no service with agents. Services that send metrics over OTLP have no target."
_NO_COLLECTOR: Final = (
    "No metrics of a collector. Have Prometheus scrape its own metrics: port 8888, 8889 or 8890 in deploy/collector."
)


def _conventions(of: str, series: str) -> str:
    return f'label_replace({total(series, JOB, function="count")}, "{_CONVENTIONS}", "{of}", "", "")'


def _collector_rates(*metrics: str, by: str) -> tuple[Range, ...]:
    """Return the rates of metrics of the collector, for each signal."""
    return tuple(
        Range(
            rate(collector.select(f"{metric}_{signal}"), by),
            f"{signal.replace('_', ' ')} {metric.partition('_')[2]} {{{{{by}}}}}",
        )
        for metric in metrics
        for signal in collector.SIGNALS
    )


_IS_KEPT: Final = 'sampled="true"'
_DECIDED: Final = collector.select(collector.TRACES_DECIDED)
_KEPT: Final = collector.select(collector.TRACES_DECIDED, _IS_KEPT)
_DECIDED_BY_POLICY: Final = collector.select(collector.TRACES_DECIDED_BY_POLICY)
_KEPT_BY_POLICY: Final = collector.select(collector.TRACES_DECIDED_BY_POLICY, _IS_KEPT)

BOARD: Final = Board(
    uid="tt-telemetry",
    title="Agents: telemetry",
    question="Does all telemetry arrive, so that the other boards can be trusted?",
    variables=VARIABLES,
    sections=(
        Section(
            "Services",
            (
                Stat(
                    id=1,
                    title="Telemetry lost",
                    question="Can I trust the other boards?",
                    reading=(
                        "The share of spans, metric points, log records and events that exporters gave up in this time "
                        "range. Above the limit, counts from traces and logs are too low; metrics over Prometheus are "
                        "right."
                    ),
                    queries=(Instant(share(rate(_LOST, window=RANGE), rate(_SENT_OR_LOST, window=RANGE))),),
                    unit="percentunit",
                    threshold=Threshold(TELEMETRY_LOSS),
                    empty=_NO_EXPORTER,
                ),
                Stat(
                    id=2,
                    title="Telemetry failures",
                    question="Does the application's own telemetry code raise exceptions?",
                    reading=(
                        "Spans, records and contents that were lost in this time range because a processor, exporter "
                        "or redactor of the application raised an exception. The log says which: fix it there."
                    ),
                    # The counter exists from the first failure on.
                    queries=(Instant(f"{occurrences(_FAILURES, window=RANGE)} or 0 * count({_RUN_ACTIVE})"),),
                    threshold=Threshold(1),
                    empty=_NO_SERVICE,
                ),
                Stat(
                    id=3,
                    title="Targets that are down",
                    question="Does Prometheus reach every process?",
                    reading="Processes of services with agents. The table of targets has their addresses.",
                    queries=(Instant(f"count({_TARGETS} == 0) or 0 * count({_TARGETS})"),),
                    threshold=Threshold(1),
                    empty=_NO_TARGETS,
                ),
                Stat(
                    id=4,
                    title="Audit lag",
                    question="Are audit records written in time?",
                    reading=(
                        "The age of the oldest record that is not durable. Above the limit, the store is slow or "
                        "unreachable, and calls that must be audited wait or are denied."
                    ),
                    queries=(Range(total(_AUDIT_LAG, function="max"), "lag"),),
                    unit="s",
                    threshold=Threshold(AUDIT_LAG_SECONDS),
                    empty="No service has an audit trail at the moment. Add an AuditAdvisor.",
                    links=(links.board("tt-audit", "Audit", "job"),),
                ),
                Table(
                    id=5,
                    title="Last samples of services",
                    question="Has a service stopped to report?",
                    reading=(
                        "The age of the newest sample. Above a few minutes, the process has ended, or its telemetry "
                        "doesn't arrive: a service that is silent for a day is no longer listed."
                    ),
                    queries=(Instant(f"time() - ({_LAST_SAMPLE} or {_LAST_SAMPLE_OF_A_DAY})"),),
                    columns={JOB: Column("Service"), "Value": Column("Age", "s")},
                    sort="Value",
                    empty=_NO_SERVICE,
                ),
                Table(
                    id=6,
                    title="Targets",
                    question="Which process does Prometheus not reach?",
                    reading="1 is up, 0 is down. A process that is down has no metrics, and keeps its spans and logs.",
                    queries=(Instant(total(_TARGETS, JOB, INSTANCE, function="max")),),
                    columns={JOB: Column("Service"), INSTANCE: Column("Process"), "Value": Column("Up")},
                    empty=_NO_TARGETS,
                ),
                Table(
                    id=7,
                    title="Versions",
                    question="Do all processes of a service run the same version and the same SDK?",
                    reading="Two rows of a service are a rollout under way, or one that stopped half-way.",
                    queries=(
                        Instant(
                            total(
                                f'target_info{{{JOB}=~"${SERVICE.name}"}} and on ({JOB}) {_SERVICES}',
                                *_VERSIONS,
                                function="count",
                            )
                        ),
                    ),
                    columns={**_VERSIONS, "Value": Column("Processes")},
                    sort="Value",
                    empty="No target_info of a service with agents: Prometheus or a collector drops it.",
                ),
                Table(
                    id=8,
                    title="GenAI conventions",
                    question="Which names do the metrics of model calls have?",
                    reading=(
                        "The boards and rules read both. Two rows of a service are an upgrade under way, or processes "
                        f"with different settings of {GENAI_CONVENTIONS}; own queries and alerts may then miss a part."
                    ),
                    queries=(
                        Instant(
                            " or ".join(
                                (
                                    _conventions(EARLIER, select(names.TOKEN_USAGE, part="count")),
                                    _conventions(EARLIER, select(names.TOKEN_USAGE)),
                                    _conventions(RELEASED, select(names.INPUT_TOKENS_USED)),
                                )
                            )
                        ),
                    ),
                    columns={
                        JOB: Column("Service"),
                        _CONVENTIONS: Column("Conventions"),
                        "Value": Column("Series of token usage"),
                    },
                    sort="Value",
                    empty="No service has called a model.",
                ),
            ),
        ),
        Section(
            "Export",
            (
                TimeSeries(
                    id=9,
                    title="Sent items per second by exporter",
                    question="Does every exporter send, and since when does one not?",
                    reading="A line that ends while agents run is an exporter that stopped: see the queue beside it.",
                    queries=(Range(rate(_SENT, JOB, names.EXPORTER_NAME), legend(JOB, names.EXPORTER_NAME)),),
                    unit="ops",
                    empty=_NO_EXPORTER,
                ),
                TimeSeries(
                    id=10,
                    title="Lost items per second by exporter and reason",
                    question="What is lost, and why?",
                    reading=(
                        "queue_full: more telemetry than the exporter sends; raise the queue, or send less detail. "
                        "export_failed: the receiver is unreachable, or refuses. shutdown: the process ended too fast."
                    ),
                    queries=(
                        Range(
                            rate(_LOST, JOB, names.EXPORTER_NAME, names.DROP_REASON),
                            legend(JOB, names.EXPORTER_NAME, names.DROP_REASON),
                        ),
                    ),
                    unit="ops",
                    empty=_NO_EXPORTER,
                ),
                TimeSeries(
                    id=11,
                    title="Share of items lost by exporter",
                    question="Which numbers are too low, and by how much?",
                    reading="Above the limit, don't trust what this exporter's signal says about that time.",
                    queries=(
                        Range(
                            share(
                                rate(_LOST, JOB, names.EXPORTER_NAME),
                                rate(_SENT_OR_LOST, JOB, names.EXPORTER_NAME),
                            ),
                            legend(JOB, names.EXPORTER_NAME),
                        ),
                    ),
                    unit="percentunit",
                    threshold=Threshold(TELEMETRY_LOSS),
                    empty=_NO_EXPORTER,
                ),
                TimeSeries(
                    id=12,
                    title="Items in the queues of exporters",
                    question="Does an exporter fall behind?",
                    reading="A queue that only grows loses items soon: the receiver is slow or unreachable.",
                    queries=(
                        Range(
                            total(select(names.EXPORT_QUEUE_SIZE), JOB, names.EXPORTER_NAME),
                            legend(JOB, names.EXPORTER_NAME),
                        ),
                    ),
                    empty=_NO_EXPORTER,
                ),
                TimeSeries(
                    id=13,
                    title="Telemetry failures over time",
                    question="Since when does the application's telemetry code raise exceptions?",
                    reading="Failures in each interval. The log names the source and the error.",
                    queries=(
                        Range(
                            f"{occurrences(_FAILURES, JOB, window=RATE_INTERVAL)} "
                            f"or 0 * {total(_RUN_ACTIVE, JOB, function='count')}",
                            legend(JOB),
                        ),
                    ),
                    empty=_NO_SERVICE,
                ),
                TimeSeries(
                    id=14,
                    title="Audit lag over time",
                    question="Since when are audit records late?",
                    reading="The age of the oldest record that is not durable. It grows while the store is down.",
                    queries=(Range(total(_AUDIT_LAG, JOB, function="max"), legend(JOB)),),
                    unit="s",
                    threshold=Threshold(AUDIT_LAG_SECONDS),
                    empty="No service has an audit trail in this time range. Add an AuditAdvisor.",
                    links=(links.board("tt-audit", "Audit", "job"),),
                ),
                TimeSeries(
                    id=15,
                    title="Spans in Tempo per second by service",
                    question="Do the spans arrive that were sent?",
                    reading=(
                        "Compare it with what otlp.traces sends. What is missing was sampled, refused or lost after "
                        "the process: see the collector."
                    ),
                    queries=(
                        SpanMetric(f"{spans()} | rate() by (resource.service.name)", "{{resource.service.name}}"),
                    ),
                    unit="ops",
                    stacked=True,
                    width=24,
                    empty="No spans of traced_tools in Tempo in this time range. Send traces over OTLP.",
                ),
            ),
        ),
        Section(
            "Series",
            (
                TimeSeries(
                    id=16,
                    title="Series of agents by service",
                    question="Do our metrics stay affordable?",
                    reading=(
                        "All series of gen_ai and traced_tools metrics. Steps are new agents, tools or models. Steady "
                        "growth is a label with made-up values: the table beside it says which metric has it."
                    ),
                    queries=(
                        Range(
                            total(total(_OUR_SERIES, JOB, INSTANCE, function="count"), JOB, function="max"), legend(JOB)
                        ),
                    ),
                    threshold=Threshold(SERIES),
                    empty=_NO_SERVICE,
                ),
                Table(
                    id=17,
                    title="Metrics with the most series",
                    question="Which metric has grown?",
                    reading="Buckets of histograms lead by far. Native histograms store them as one series.",
                    queries=(Instant(f"topk(10, count by (__name__) ({_OUR_SERIES}))"),),
                    columns={"__name__": Column("Metric"), "Value": Column("Series")},
                    sort="Value",
                    empty=_NO_SERVICE,
                ),
            ),
        ),
        Section(
            "Collector",
            (
                TimeSeries(
                    id=18,
                    title="Items that collectors accept, per second",
                    question="Does telemetry reach the collectors?",
                    reading="If exporters send and collectors accept nothing, the network between them is broken.",
                    queries=_collector_rates(collector.ACCEPTED, by="receiver"),
                    unit="ops",
                    empty=_NO_COLLECTOR,
                ),
                TimeSeries(
                    id=19,
                    title="Items that collectors refuse, per second",
                    question="Do collectors turn telemetry away?",
                    reading=(
                        "Senders try again after a while, then lose it. The collector is out of memory, its queues are "
                        "full, or its pipeline fails: see what it sends."
                    ),
                    queries=_collector_rates(collector.REFUSED, collector.FAILED_TO_RECEIVE, by="receiver"),
                    unit="ops",
                    empty=_NO_COLLECTOR,
                ),
                TimeSeries(
                    id=20,
                    title="Items that collectors send, per second",
                    question="Does telemetry leave the collectors?",
                    reading="Spans that are accepted and not sent are sampled, or wait in a queue.",
                    queries=_collector_rates(collector.SENT, by="exporter"),
                    unit="ops",
                    empty=_NO_COLLECTOR,
                ),
                TimeSeries(
                    id=21,
                    title="Items that collectors lose, per second",
                    question="Which backend loses our telemetry?",
                    reading=(
                        "send_failed: the backend refused it, or retries were used up. enqueue_failed: the queue is "
                        "full. Both are lost, unless their sender tries again."
                    ),
                    queries=_collector_rates(collector.FAILED_TO_SEND, collector.FAILED_TO_ENQUEUE, by="exporter"),
                    unit="ops",
                    empty=f"Nothing was lost, or there is no collector. {_NO_COLLECTOR}",
                ),
                TimeSeries(
                    id=22,
                    title="Fill of the collectors' queues",
                    question="How long until a collector loses telemetry?",
                    reading="At 100 %, new items are lost. A queue that fills has a slow or unreachable backend.",
                    queries=(
                        Range(
                            collector.queue_fill("exporter", "data_type"),
                            legend("exporter", "data_type"),
                        ),
                    ),
                    unit="percentunit",
                    empty=_NO_COLLECTOR,
                ),
                TimeSeries(
                    id=23,
                    title="Share of traces that tail sampling keeps, by policy",
                    question="How many traces can I find, and which policy keeps them?",
                    reading=(
                        "Divide counts from traces by the share of all policies to estimate them. If a policy that "
                        "should be rare keeps most traces, look at what has changed in the runs."
                    ),
                    queries=(
                        Range(
                            share(rate(_KEPT_BY_POLICY, "policy"), rate(_DECIDED_BY_POLICY, "policy")), legend("policy")
                        ),
                        Range(share(rate(_KEPT), rate(_DECIDED)), "all policies"),
                    ),
                    unit="percentunit",
                    empty=f"No collector samples traces. {_NO_COLLECTOR}",
                ),
                TimeSeries(
                    id=24,
                    title="Traces that tail sampling decides wrongly, per second",
                    question="Are traces incomplete because sampling is too small or too hasty?",
                    reading=(
                        "Dropped too early: raise TRACES_IN_MEMORY. Late spans arrived after the decision: raise "
                        "DECISION_WAIT_AFTER_ROOT."
                    ),
                    queries=(
                        Range(
                            rate(collector.select(collector.DROPPED_TOO_EARLY)),
                            "dropped too early",
                        ),
                        Range(
                            rate(collector.select(collector.LATE_SPANS)),
                            "late spans",
                        ),
                    ),
                    unit="ops",
                    empty=f"No collector samples traces. {_NO_COLLECTOR}",
                ),
            ),
        ),
    ),
)
