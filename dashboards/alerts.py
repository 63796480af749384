"""Alert rules. Each has a runbook in docs/runbooks.md, under its name, and links to the panel that shows its value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

from dashboards import collector, rules
from dashboards import objectives as limits
from dashboards.conventions import MODEL_CALL_DURATION, TIME_TO_FIRST_CHUNK
from dashboards.objectives import ENOUGH, FAST_BURN, FEW, NOT_CANCELLED, SLOW_BURN, BurnRate, Objective
from dashboards.outcomes import GOES_ON, LIMITED, REFUSED
from dashboards.promql import (
    INSTANCE,
    JOB,
    Selection,
    Series,
    equals,
    has,
    labels,
    occurrences,
    one_of,
    quantile,
    rate,
    share,
    total,
)
from dashboards.rules import error_ratio
from traced_tools.observe import names
from traced_tools.otel.prometheus_names import label_name

RUNBOOKS: Final = "docs/runbooks.md"
"""Where the runbooks are; `traced-tools dashboards export --runbooks URL` writes another address."""
SOURCE: Final = "traced_tools"
"""The label by which the boards tell these alerts from others."""
select: Final = Selection()

Severity = Literal["page", "ticket", "none"]
Team = Literal["agents", "security", "audit"]


@dataclass(frozen=True, kw_only=True)
class Alert:
    """An alert rule.

    Attributes:
        name: its name, which is also the heading of its runbook.
        value: the expression whose value the alert compares; it has data as long as agents run.
        condition: the comparison, such as `> 5`, and further expressions that must have data.
        wait: how long the condition must hold.
        severity: `page` wakes a person; `ticket` waits until the morning; `none` is for machines.
        summary: what happens, with labels as `{{ $labels.x }}`.
        description: the value, and what to do first.
        panel: the board and the panel that show the value.
        team: who receives it.
    """

    name: str
    value: str
    condition: str
    wait: str
    severity: Severity
    summary: str
    description: str
    panel: tuple[str, int]
    team: Team = "agents"

    @property
    def text(self) -> str:
        """The expression of the rule."""
        return f"({self.value}) {self.condition}".strip()

    @property
    def annotations(self) -> dict[str, str]:
        """What a person reads, as templates."""
        uid, panel = self.panel
        return {
            "summary": self.summary,
            "description": self.description,
            "dashboard_url": f"/d/{uid}?viewPanel={panel}",
            "runbook_url": f"{RUNBOOKS}#{self.name.lower()}",
        }


def _label(attribute: str) -> str:
    return f"{{{{ $labels.{label_name(attribute)} }}}}"


_AGENT: Final = _label(names.AGENT_NAME)
_TOOL: Final = _label(names.TOOL_NAME)
_PERCENT: Final = "{{ $value | humanizePercentage }}"
_SECONDS: Final = "{{ $value | humanizeDuration }}"
_NUMBER: Final = "{{ $value | humanize }}"
_COUNT: Final = '{{ printf "%.0f" $value }}'


def _at_least(series: Series, *by: str, window: str, events: int = ENOUGH) -> str:
    """Return the part of a condition that holds if there were enough events."""
    return f"and on ({labels(*by)}) {occurrences(series, *by, window=window)} >= {events}"


# Objectives.


def _burn(name: str, objective: Objective, panel: int, severity: Severity, *rates: BurnRate) -> Alert:
    """Return the alert for an error budget that burns too fast, in a long and in a short window."""
    allowed = 1 - objective.objective
    conditions = [f"> {_burning(objective, rate, allowed)}" for rate in rates]
    values = [error_ratio(objective, rate.long) for rate in rates]
    others = (f" or {value} {condition}" for value, condition in zip(values[1:], conditions[1:], strict=True))
    return Alert(
        name=name,
        value=values[0],
        condition=conditions[0] + "".join(others),
        wait="2m" if severity == "page" else "15m",
        severity=severity,
        summary=f"{_label(objective.by)}: {objective.trouble}",
        description=(
            f"{_PERCENT} over hours or days, in {{{{ $labels.job }}}}. The objective allows {allowed:.1%} over "
            f"{limits.BUDGET_WINDOW}: the error budget burns {'fast' if severity == 'page' else 'slowly'}."
        ),
        panel=("tt-slo", panel),
    )


def _burning(objective: Objective, rate: BurnRate, allowed: float) -> str:
    """Return the condition of one burn rate: in both windows, and with more than a few bad events."""
    by, limit = (JOB, objective.by), rate.factor * allowed
    events = occurrences(objective.all, *by, window=rate.long)
    return (
        f"{limit:g} and {error_ratio(objective, rate.short)} > {limit:g} "
        f"and on ({labels(*by)}) {error_ratio(objective, rate.long)} * on ({labels(*by)}) {events} >= {FEW}"
    )


def _burns(prefix: str, objective: Objective, panel: int) -> Iterator[Alert]:
    yield _burn(f"{prefix}BurnFast", objective, panel, "page", *FAST_BURN)
    yield _burn(f"{prefix}BurnSlow", objective, panel, "ticket", *SLOW_BURN)


OBJECTIVE_ALERTS: Final = (
    *_burns("RunSuccess", limits.RUN_SUCCESS, 3),
    *_burns("RunLatency", limits.RUN_LATENCY, 6),
    *_burns("ModelSuccess", limits.MODEL_SUCCESS, 9),
)

# Loops.

_RUNS: Final = select(names.LOOP_ITERATIONS_METRIC, part="count")
_CALLS: Final = select(names.TOOL_DECISIONS)

LOOP_ALERTS: Final = (
    Alert(
        name="RunStuck",
        value=total(select(names.RUN_OLDEST_ACTIVE), JOB, names.AGENT_NAME, function="max"),
        condition=f"> {limits.STUCK_RUN_SECONDS}",
        wait="1m",
        severity="page",
        summary=f"{_AGENT}: a run is stuck",
        description=f"The oldest active run is {_SECONDS} old. Find it by its agent and start time, and cancel it.",
        panel=("tt-home", 3),
    ),
    Alert(
        name="RunsHitLimits",
        value=share(
            occurrences(
                select(names.LOOP_ITERATIONS_METRIC, one_of(names.LOOP_STOP_REASON, LIMITED), part="count"),
                JOB,
                names.AGENT_NAME,
                window="15m",
            ),
            occurrences(_RUNS, JOB, names.AGENT_NAME, window="15m"),
        ),
        condition=f"> {limits.LIMITED_RUNS:g} {_at_least(_RUNS, JOB, names.AGENT_NAME, window='15m')}",
        wait="5m",
        severity="page",
        summary=f"{_AGENT}: limits end too many runs",
        description=f"Limits ended {_PERCENT} of the runs of 15 minutes. The agent doesn't come to an end by itself.",
        panel=("tt-loops", 5),
    ),
    Alert(
        name="RepeatedCalls",
        value=share(
            occurrences(
                select(names.TOOL_DECISIONS, equals(names.TOOL_DECISION, "repeated")),
                JOB,
                names.AGENT_NAME,
                window="15m",
            ),
            occurrences(_CALLS, JOB, names.AGENT_NAME, window="15m"),
        ),
        condition=f"> {limits.REPEATED_CALLS:g} {_at_least(_CALLS, JOB, names.AGENT_NAME, window='15m')}",
        wait="5m",
        severity="ticket",
        summary=f"{_AGENT}: the agent goes round in circles",
        description=f"{_PERCENT} of its tool calls repeat an earlier call and are refused.",
        panel=("tt-loops", 20),
    ),
)

# Durable runs.

DURABLE_ALERTS: Final = (
    Alert(
        name="DurableRunsIdle",
        value=total(
            select(names.PENDING_STORE_OLDEST_RUN, one_of(names.DURABLE_RUN_STATUS, GOES_ON)),
            JOB,
            names.AGENT_NAME,
            function="max",
        ),
        condition=f"> {limits.IDLE_RUN_SECONDS}",
        wait="1m",
        severity="page",
        summary=f"{_AGENT}: no process goes on with a durable run",
        description=f"A run has made no progress for {_SECONDS}. Does a process run that drives what others have left?",
        panel=("tt-loops", 41),
    ),
    Alert(
        name="UnknownOutcomes",
        value=occurrences(select(names.DURABLE_RUN_UNKNOWN_OUTCOMES), JOB, names.AGENT_NAME, window="15m"),
        condition="> 0",
        wait="0m",
        severity="ticket",
        summary=f"{_AGENT}: nobody knows whether calls have run",
        description=f"The processes of {_COUNT} calls ended while their tools ran. Look up what the tools have done.",
        panel=("tt-loops", 44),
    ),
)

# Tools and policy.

_EXECUTIONS: Final = select(names.EXECUTE_TOOL_DURATION, part="count")
_REFUSED: Final = select(names.TOOL_DECISIONS, one_of(names.TOOL_DECISION, REFUSED))

TOOL_ALERTS: Final = (
    Alert(
        name="ToolStuck",
        value=total(select(names.TOOL_OLDEST_ACTIVE), JOB, names.TOOL_NAME, function="max"),
        condition=f"> {limits.STUCK_TOOL_SECONDS}",
        wait="1m",
        severity="page",
        summary=f"{_TOOL}: a call is stuck",
        description=f"The oldest running call is {_SECONDS} old. Give the tool a time-out.",
        panel=("tt-tools", 7),
    ),
    Alert(
        name="ApprovalWaits",
        value=total(select(names.APPROVAL_OLDEST_PENDING), JOB, names.AGENT_NAME, function="max"),
        condition=f"> {limits.APPROVAL_SECONDS}",
        wait="1m",
        severity="ticket",
        summary=f"{_AGENT}: a call waits for approval",
        description=f"The oldest call has waited for {_SECONDS}. Ask those who approve; at its time-out, it is denied.",
        panel=("tt-tools", 26),
    ),
    Alert(
        name="DecidedRunsWait",
        value=total(select(names.PENDING_STORE_OLDEST_READY), JOB, names.AGENT_NAME, function="max"),
        condition=f"> {limits.READY_SECONDS}",
        wait="1m",
        severity="page",
        summary=f"{_AGENT}: decided runs don't resume",
        description=f"A run in the pending store was decided {_SECONDS} ago. Does the worker run that resumes it?",
        panel=("tt-tools", 63),
    ),
    Alert(
        name="PendingCallsWait",
        value=total(select(names.PENDING_STORE_OLDEST), JOB, names.AGENT_NAME, function="max"),
        condition=f"> {limits.PENDING_SECONDS}",
        wait="5m",
        severity="ticket",
        summary=f"{_AGENT}: nobody decides about a call in the pending store",
        description=f"The oldest call has waited for {_SECONDS}. Ask those who approve, or withdraw its run.",
        panel=("tt-tools", 61),
    ),
    Alert(
        name="RunsRefused",
        value=total(select(names.PENDING_STORE_REFUSED), JOB, names.AGENT_NAME, names.RESUME_REFUSAL),
        condition="> 0",
        wait="1m",
        severity="ticket",
        summary=f"{_AGENT}: runs that were decided can't resume",
        description=f"{_COUNT} runs of the pending store can't resume: {_label(names.RESUME_REFUSAL)}.",
        panel=("tt-tools", 64),
    ),
    Alert(
        name="ToolDown",
        value=rules.TOOL_ERRORS.name,
        condition=f"> {limits.TOOL_ERRORS:g} {_at_least(_EXECUTIONS, JOB, names.TOOL_NAME, window='15m')}",
        wait="2m",
        severity="page",
        summary=f"{_TOOL}: most calls fail",
        description=f"{_PERCENT} of the calls of 15 minutes fail. Ask the tool's owner, or refuse its calls by policy.",
        panel=("tt-tools", 3),
    ),
    Alert(
        name="ToolRefusalsChanged",
        value=rules.TOOL_REFUSALS.name,
        condition=(
            f"> 3 * ({rules.TOOL_REFUSALS.name} offset 1w or {limits.NEW_REFUSALS:g} + 0 * {rules.TOOL_REFUSALS.name}) "
            f"{_at_least(_REFUSED, JOB, names.TOOL_NAME, window='1h')}"
        ),
        wait="5m",
        severity="ticket",
        team="security",
        summary=f"{_TOOL}: far more calls are refused than usual",
        description=f"Policies or persons refused {_PERCENT} of the calls of an hour: a policy change, or an attack?",
        panel=("tt-tools", 21),
    ),
)

# Models.

_MODEL_CALLS: Final = select(MODEL_CALL_DURATION, NOT_CANCELLED, part="count")
_BY_MODEL: Final = (JOB, names.PROVIDER_NAME, names.REQUEST_MODEL)
_MODEL: Final = f"{_label(names.PROVIDER_NAME)} {_label(names.REQUEST_MODEL)}"

MODEL_ALERTS: Final = (
    Alert(
        name="ModelErrors",
        value=share(
            occurrences(
                select(MODEL_CALL_DURATION, has(names.ERROR_TYPE), NOT_CANCELLED, part="count"), *_BY_MODEL, window="5m"
            ),
            occurrences(_MODEL_CALLS, *_BY_MODEL, window="5m"),
        ),
        condition=f"> {limits.MODEL_ERRORS:g} {_at_least(_MODEL_CALLS, *_BY_MODEL, window='5m')}",
        wait="2m",
        severity="page",
        summary=f"{_MODEL}: model calls fail",
        description=f"{_PERCENT} of the calls of 5 minutes fail. Look at the provider's status; switch models.",
        panel=("tt-models", 6),
    ),
    Alert(
        name="ModelRateLimited",
        value=share(
            occurrences(select(names.MODEL_RATE_LIMITS), *_BY_MODEL, window="10m"),
            occurrences(_MODEL_CALLS, *_BY_MODEL, window="10m"),
        ),
        condition=f"> {limits.RATE_LIMITED:g} {_at_least(_MODEL_CALLS, *_BY_MODEL, window='10m')}",
        wait="5m",
        severity="ticket",
        summary=f"{_MODEL}: the provider limits the rate of requests",
        description=f"{_NUMBER} requests are refused for each model call. Ask for more quota, or send less.",
        panel=("tt-models", 15),
    ),
    Alert(
        name="FirstChunkSlow",
        value=quantile(0.95, select, TIME_TO_FIRST_CHUNK, *_BY_MODEL, window="10m"),
        condition=(
            f"> {limits.FIRST_CHUNK_SECONDS} "
            + _at_least(select(TIME_TO_FIRST_CHUNK, part="count"), *_BY_MODEL, window="10m")
        ),
        wait="5m",
        severity="ticket",
        summary=f"{_MODEL}: streamed answers begin late",
        description=f"The 95th percentile of the time to the first chunk is {_SECONDS}.",
        panel=("tt-models", 11),
    ),
)

# Cost.

COST_ALERTS: Final = (
    Alert(
        name="CostBurn",
        value=rules.COST.name,
        condition=(
            f"> 1 and {rules.COST.name} > "
            f"{limits.COST_FACTOR} * quantile_over_time(0.5, ({rules.COST.name} > 0)[1w:5m])"  # of the hours with runs
        ),
        wait="10m",
        severity="page",
        summary=f"{_AGENT}: this hour costs far more than others",
        description=f"The hour costs ${_NUMBER}, over {limits.COST_FACTOR} times the median of the week.",
        panel=("tt-cost", 5),
    ),
    Alert(
        name="DailyCostExceeded",
        value=occurrences(select(names.USAGE_COST), JOB, window="1d"),
        condition=f"> {limits.DAILY_COST}",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.job }}: a day costs more than its budget",
        description=f"Model calls of the last 24 hours cost ${_NUMBER}; the budget is ${limits.DAILY_COST}.",
        panel=("tt-cost", 1),
    ),
    Alert(
        name="UnpricedTokens",
        value=occurrences(select(names.UNPRICED_TOKENS), JOB, names.PROVIDER_NAME, names.REQUEST_MODEL, window="1h"),
        condition="> 0",
        wait="0m",
        severity="ticket",
        summary=f"{_MODEL}: the price table lacks the model",
        description=f"{_COUNT} tokens of an hour have no price, so all costs read too low.",
        panel=("tt-cost", 20),
    ),
)

# The audit trail.

_MISSING: Final = rules.AUDIT_MISSING.name

AUDIT_ALERTS: Final = (
    Alert(
        name="AuditBehind",
        value=total(select(names.AUDIT_LAG), JOB, function="max"),
        condition=f"> {limits.AUDIT_LAG_SECONDS}",
        wait="1m",
        severity="page",
        team="audit",
        summary="{{ $labels.job }}: audit records are not durable",
        description=f"The oldest record has waited for {_SECONDS}. The store is slow or unreachable.",
        panel=("tt-audit", 3),
    ),
    Alert(
        name="AuditGap",
        value=occurrences(select(names.AUDIT_RECORDS, equals(names.AUDIT_RECORD, "gap")), JOB, window="15m"),
        condition="> 0",
        wait="0m",
        severity="page",
        team="audit",
        summary="{{ $labels.job }}: the audit trail has a gap",
        description="Intents became durable late, or records were lost. `traced-tools audit verify` shows which.",
        panel=("tt-audit", 4),
    ),
    Alert(
        name="AuditIntentsMissing",
        value=total(
            f"(last_over_time({_MISSING}[1h]) - ({_MISSING} offset 1h or 0 * last_over_time({_MISSING}[1h]))) > 0",
            JOB,
            names.AGENT_NAME,
        ),
        condition="> 0",
        wait="5m",
        severity="page",
        team="audit",
        summary=f"{_AGENT}: tool calls are missing in the audit trail",
        description=f"{_COUNT} tool calls of the last hour were decided and have no durable intent.",
        panel=("tt-audit", 20),
    ),
    Alert(
        name="AuditBroken",
        value=total(f"last_over_time({select(names.AUDIT_VERIFIED)}[1d])", JOB, function="min"),
        condition="< 1",
        wait="0m",
        severity="page",
        team="audit",
        summary="{{ $labels.job }}: the audit trail does not verify",
        description=(
            "Records were changed, removed or forged. Keep the store, and run `traced-tools audit verify`. The alert "
            "stays for a day after its process ends."
        ),
        panel=("tt-audit", 1),
    ),
    Alert(
        name="AuditUnverified",
        value=f"time() - {total(f'max_over_time({select(names.AUDIT_LAST_VERIFIED)}[7d])', JOB, function='max')}",
        condition=f"> {limits.VERIFICATION_SECONDS}",
        wait="1h",
        severity="ticket",
        team="audit",
        summary="{{ $labels.job }}: the audit trail is no longer verified",
        description=f"The last verification was {_SECONDS} ago. Does the job that verifies the trail still run?",
        panel=("tt-audit", 2),
    ),
    Alert(
        name="AuditCheckpointsLost",
        value=occurrences(select(names.AUDIT_CHECKPOINTS_LOST), JOB, window="1h"),
        condition="> 0",
        wait="0m",
        severity="page",
        team="audit",
        summary="{{ $labels.job }}: checkpoints of the audit trail were not published",
        description=f"{_COUNT} checkpoints never left the machine, so a change before them can't be proven.",
        panel=("tt-audit", 7),
    ),
)

# The telemetry itself.

_ANY_SERIES: Final = '{__name__=~"(gen_ai|traced_tools)_.+"}'

TELEMETRY_ALERTS: Final = (
    Alert(
        name="TelemetryLoss",
        value=rules.TELEMETRY_LOSS.name,
        condition=f"> {limits.TELEMETRY_LOSS:g}",
        wait="5m",
        severity="page",
        summary="{{ $labels.job }}: telemetry is lost",
        description=f"{_label(names.EXPORTER_NAME)} loses {_PERCENT}. Look at the receiver and at the queue.",
        panel=("tt-telemetry", 11),
    ),
    Alert(
        name="TelemetryFailures",
        value=occurrences(select(names.TELEMETRY_FAILURES), JOB, window="15m"),
        condition="> 0",
        wait="0m",
        severity="ticket",
        summary="{{ $labels.job }}: the application's telemetry code raises exceptions",
        description=f"{_COUNT} spans, records or contents were lost to a processor, exporter or redactor.",
        panel=("tt-telemetry", 2),
    ),
    Alert(
        name="TooManySeries",
        value=total(total(_ANY_SERIES, JOB, INSTANCE, function="count"), JOB, function="max"),
        condition=f"> {limits.SERIES}",
        wait="15m",
        severity="ticket",
        summary="{{ $labels.job }}: too many series",
        description=f"A process has {_COUNT} series. A label has grown: agents, tools or models with made-up names?",
        panel=("tt-telemetry", 16),
    ),
    Alert(
        name="AgentTelemetryAbsent",
        value=total(f"present_over_time({select(names.RUN_ACTIVE)}[2h])", JOB),
        condition=f"unless on ({JOB}) {total(f'present_over_time({select(names.RUN_ACTIVE)}[10m])', JOB)}",
        wait="5m",
        severity="page",
        summary="{{ $labels.job }}: no telemetry for ten minutes",
        description="The service reported within the last two hours. Did it stop, or does its telemetry not arrive?",
        panel=("tt-telemetry", 5),
    ),
    Alert(
        name="DeadMansSwitch",
        value="vector(1)",
        condition="",
        wait="0m",
        severity="none",
        summary="Alerts work",
        description="This alert always fires. Have an outside service page you when it stops.",
        panel=("tt-home", 4),
    ),
)

# The collectors.

_EXPORTER: Final = "{{ $labels.exporter }}"
_LOST: Final = (collector.FAILED_TO_SEND, collector.FAILED_TO_ENQUEUE)

COLLECTOR_ALERTS: Final = (
    Alert(
        name="AuditRecordsNotExported",
        value=occurrences(
            collector.select_all(*_LOST, matchers=('exporter=~".*audit.*"',)), JOB, "exporter", window="5m"
        ),
        condition="> 0",
        wait="0m",
        severity="page",
        team="audit",
        summary=f"{_EXPORTER}: a collector loses audit records",
        description=f"{_COUNT} records of 5 minutes don't reach the archive. The store of the trail still has them.",
        panel=("tt-telemetry", 21),
    ),
    Alert(
        name="CollectorLosesTelemetry",
        value=rate(collector.select_all(*_LOST, matchers=('exporter!~".*audit.*"',)), JOB, "exporter", window="5m"),
        condition="> 0",
        wait="5m",
        severity="ticket",
        summary=f"{_EXPORTER}: a collector loses telemetry",
        description=f"{_NUMBER} items a second are lost: their back end refuses them, or the queue is full.",
        panel=("tt-telemetry", 21),
    ),
    Alert(
        name="CollectorRefusesTelemetry",
        value=rate(collector.select_all(collector.REFUSED), JOB, "receiver", window="5m"),
        condition="> 0",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.job }}: a collector refuses telemetry",
        description=f"{_NUMBER} items a second are refused. The collector has no memory left, or its queues are full.",
        panel=("tt-telemetry", 19),
    ),
    Alert(
        name="CollectorQueueFull",
        value=collector.queue_fill(JOB, "exporter"),
        condition=f"> {limits.QUEUE_FILL:g}",
        wait="10m",
        severity="ticket",
        summary=f"{_EXPORTER}: the queue of a collector fills",
        description=f"{_PERCENT} of the queue are full. The back end is slow or unreachable.",
        panel=("tt-telemetry", 22),
    ),
    Alert(
        name="TracesDroppedTooEarly",
        value=rate(collector.select(collector.DROPPED_TOO_EARLY), JOB, window="5m"),
        condition="> 0",
        wait="5m",
        severity="ticket",
        summary="{{ $labels.job }}: tail sampling decides before traces are complete",
        description=f"{_NUMBER} traces a second are decided early, and may miss their errors.",
        panel=("tt-telemetry", 24),
    ),
)

GROUPS: Final = {
    "traced_tools_objective_alerts": OBJECTIVE_ALERTS,
    "traced_tools_loop_alerts": LOOP_ALERTS,
    "traced_tools_durable_alerts": DURABLE_ALERTS,
    "traced_tools_tool_alerts": TOOL_ALERTS,
    "traced_tools_model_alerts": MODEL_ALERTS,
    "traced_tools_cost_alerts": COST_ALERTS,
    "traced_tools_audit_alerts": AUDIT_ALERTS,
    "traced_tools_telemetry_alerts": TELEMETRY_ALERTS,
    "traced_tools_collector_alerts": COLLECTOR_ALERTS,
}
"""The alerts by the name of their group."""


def alert_file() -> dict[str, Any]:
    """Return the alerts as the content of a rule file."""
    return {"groups": [{"name": name, "rules": [_rule(alert) for alert in alerts]} for name, alerts in GROUPS.items()]}


def _rule(alert: Alert) -> dict[str, Any]:
    return {
        "alert": alert.name,
        "expr": alert.text,
        "for": alert.wait,
        "labels": {"severity": alert.severity, "source": SOURCE, "team": alert.team},
        "annotations": alert.annotations,
    }
