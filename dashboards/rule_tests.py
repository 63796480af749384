"""The tests of the rules for `promtool test rules`: each alert fires when it must, and is silent when it must."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dashboards import collector, rules
from dashboards import objectives as limits
from dashboards.alerts import GROUPS, SOURCE, Alert
from dashboards.objectives import Objective
from dashboards.promql import INSTANCE, JOB, Part, Selection, equals
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.otel.prometheus_names import label_name

_select: Final = Selection()
_SERVICE: Final = "shop"
_AGENT: Final = {names.AGENT_NAME: "planner"}
_TOOL: Final = {names.TOOL_NAME: "book_hotel"}
_PROVIDER: Final = {names.PROVIDER_NAME: "openai"}
_MODEL: Final = {**_PROVIDER, names.REQUEST_MODEL: "demo-large"}

Series = Mapping[str, str]
"""Values by series, in promtool's notation: https://prometheus.io/docs/prometheus/latest/configuration/unit_testing_rules/."""


@dataclass(frozen=True)
class Case:
    """A test of an alert.

    Attributes:
        fires: series that make it fire.
        silent: series that are as near to that as possible, and don't.
        at: when it fires, and when it is silent.
        labels: the labels of the alert that fires, besides the service, severity and team.
        value: `$value` in its description, as Prometheus prints it.
        every: the time between two samples and evaluations.
    """

    fires: Series
    silent: Series
    at: str
    labels: Mapping[str, str]
    value: str
    every: str = "1m"


def _series(metric: Metric, values: Mapping[str, str], part: Part = "", service: str = _SERVICE) -> str:
    matchers = (equals(name, value) for name, value in {JOB: service, **values}.items())
    return _select(metric, *matchers, part=part)


def _recorded(name: str, values: Mapping[str, str]) -> str:
    matchers = ", ".join(equals(label, value) for label, value in {JOB: _SERVICE, **values}.items())
    return f"{name}{{{matchers}}}"


def _runs(**values: str) -> Series:
    """Return the counts of runs by stop reason."""
    return {
        _series(names.LOOP_ITERATIONS_METRIC, {**_AGENT, names.LOOP_STOP_REASON: reason}, "count"): count
        for reason, count in values.items()
    }


def _durations(fast: str, every: str) -> Series:
    """Return the counts of runs that are fast enough, and of all."""
    bound = {**_AGENT, "le": str(limits.SLOW_RUN_SECONDS)}
    return {
        _series(names.INVOKE_AGENT_DURATION, bound, "bucket"): fast,
        _series(names.INVOKE_AGENT_DURATION, _AGENT, "count"): every,
    }


def _days(objective: Objective, values: Mapping[str, str], counted: Series, *, bad: float) -> Series:
    """Return what is recorded of two days in which so many of a hundred events are bad, beside the counted events.

    Their samples are too far apart to record five minutes of them, but for the first ones, which are new.
    """
    of_bad, of_all = rules.counts_of(objective)
    return {
        **counted,
        _recorded(of_bad.name, values): f"_ {bad:g}+0x110",
        _recorded(of_all.name, values): "_ 100+0x110",
    }


def _model_calls(good: str, bad: str) -> Series:
    return {
        _series(names.INFERENCE_DURATION, _MODEL, "count"): good,
        _series(names.INFERENCE_DURATION, {**_MODEL, names.ERROR_TYPE: "TimeoutError"}, "count"): bad,
    }


def _decisions(**values: str) -> Series:
    return {
        _series(names.TOOL_DECISIONS, {**_AGENT, **_TOOL, names.TOOL_DECISION: decision}): count
        for decision, count in values.items()
    }


def _executions(good: str, bad: str) -> Series:
    return {
        _series(names.EXECUTE_TOOL_DURATION, _TOOL, "count"): good,
        _series(names.EXECUTE_TOOL_DURATION, {**_TOOL, names.ERROR_TYPE: "ConnectionError"}, "count"): bad,
    }


def _first_chunks(slow: str) -> Series:
    """Return a histogram in which so many answers begin after more than five seconds."""
    buckets = {"5.12": "0+1x60", "10.24": slow, "+Inf": slow}
    return {
        **{
            _series(names.INFERENCE_TIME_TO_FIRST_CHUNK, {**_MODEL, "le": bound}, "bucket"): values
            for bound, values in buckets.items()
        },
        _series(names.INFERENCE_TIME_TO_FIRST_CHUNK, _MODEL, "count"): slow,
    }


def _audited(decided: str, recorded: str) -> Series:
    process = {INSTANCE: "a", **_AGENT}
    return {
        _series(names.TOOL_DECISIONS, {**process, names.TOOL_DECISION: "allowed"}): decided,
        _series(names.AUDIT_RECORDS, {**process, names.AUDIT_RECORD: "intent"}): recorded,
    }


def _items(sent: str, lost: str) -> Series:
    exporter = {names.EXPORTER_NAME: "otlp.traces"}
    return {
        _series(names.EXPORT_ITEMS, exporter): sent,
        _series(names.EXPORT_DROPPED, {**exporter, names.DROP_REASON: "queue_full"}): lost,
    }


_TOOL_CHANGED: Final = {names.RESUME_REFUSAL: "tool_changed"}
_REFUSED_RUNS: Final = _series(names.PENDING_STORE_REFUSED, {**_AGENT, **_TOOL_CHANGED})
_COST: Final = _series(names.USAGE_COST, _AGENT)
_UNPRICED: Final = _series(names.UNPRICED_TOKENS, _MODEL)
_HOURLY_COST: Final = _recorded(rules.COST.name, _AGENT)
_GAPS: Final = _series(names.AUDIT_RECORDS, {names.AUDIT_RECORD: "gap"})
_LAG: Final = _series(names.AUDIT_LAG, {})
_VERIFIED: Final = _series(names.AUDIT_VERIFIED, {})
_LAST_VERIFIED: Final = _series(names.AUDIT_LAST_VERIFIED, {})
_LOST_CHECKPOINTS: Final = _series(names.AUDIT_CHECKPOINTS_LOST, {})
_FAILURES: Final = _series(names.TELEMETRY_FAILURES, {})
_ACTIVE: Final = _series(names.RUN_ACTIVE, _AGENT)

_AGENT_CASES: Final[Mapping[str, Case]] = {
    # A fifth of all runs fails: twenty times the budget of one percent. A tenth is ten times, and too slow for a page.
    "RunSuccessBurnFast": Case(
        _runs(answered="0+8x120", error="0+2x120", cancelled="0+90x120"),
        _runs(answered="0+9x120", error="0+1x50 50+0x70", cancelled="0+90x120"),
        "80m",
        _AGENT,
        "20%",
    ),
    "RunLatencyBurnFast": Case(
        _durations("0+1x120", "0+8x120"), _durations("0+7x120", "0+8x120"), "80m", _AGENT, "87.5%"
    ),
    "ModelSuccessBurnFast": Case(
        _model_calls("0+8x120", "0+2x120"),
        _model_calls("0+0.2x120", "0x60 1x60"),  # 8 % fail, but that is one call
        "80m",
        _PROVIDER,
        "20%",
    ),
    "RunSuccessBurnSlow": Case(
        _days(limits.RUN_SUCCESS, _AGENT, _runs(answered="0+100x110"), bad=4),
        _days(limits.RUN_SUCCESS, _AGENT, _runs(answered="0+100x110"), bad=0.5),
        "2d",
        _AGENT,
        "4%",
        every="30m",
    ),
    "RunLatencyBurnSlow": Case(
        _days(limits.RUN_LATENCY, _AGENT, _durations("0+80x110", "0+100x110"), bad=20),
        _days(limits.RUN_LATENCY, _AGENT, _durations("0+96x110", "0+100x110"), bad=4),
        "2d",
        _AGENT,
        "20%",
        every="30m",
    ),
    "ModelSuccessBurnSlow": Case(
        _days(limits.MODEL_SUCCESS, _PROVIDER, _model_calls("0+98x110", "0+2x110"), bad=2),
        _days(limits.MODEL_SUCCESS, _PROVIDER, _model_calls("0+98x110", "0+2x110"), bad=0.1),
        "2d",
        _PROVIDER,
        "2%",
        every="30m",
    ),
    "RunStuck": Case(
        {_series(names.RUN_OLDEST_ACTIVE, _AGENT): "0+60x30"},
        {_series(names.RUN_OLDEST_ACTIVE, _AGENT): "0+60x9 0 0+60x9 0"},
        "12m",
        _AGENT,
        "12m 0s",
    ),
    "RunsHitLimits": Case(
        _runs(answered="0+9x60", max_iterations="0+1x60"),
        _runs(answered="0+99x60", max_iterations="0+1x60"),
        "40m",
        _AGENT,
        "10%",
    ),
    "RepeatedCalls": Case(
        _decisions(allowed="0+4x60", repeated="0+1x60"),
        _decisions(allowed="0+19x60", repeated="0+1x60"),
        "40m",
        _AGENT,
        "20%",
    ),
    "DurableRunsIdle": Case(
        {_series(names.PENDING_STORE_OLDEST_RUN, {**_AGENT, names.DURABLE_RUN_STATUS: "running"}): "0+60x30"},
        {
            _series(
                names.PENDING_STORE_OLDEST_RUN, {**_AGENT, names.DURABLE_RUN_STATUS: "interrupted"}
            ): "0+60x14 0x20",
            _series(names.PENDING_STORE_OLDEST_RUN, {**_AGENT, names.DURABLE_RUN_STATUS: "waiting"}): "0+600x30",
            _series(names.PENDING_STORE_OLDEST_RUN, {**_AGENT, names.DURABLE_RUN_STATUS: "failed"}): "0+600x30",
        },
        "17m",
        _AGENT,
        "17m 0s",
    ),
    # One call is enough, although its counter begins with it.
    "UnknownOutcomes": Case(
        {_series(names.DURABLE_RUN_UNKNOWN_OUTCOMES, _AGENT): "_x75 1x20"},
        {_series(names.DURABLE_RUN_UNKNOWN_OUTCOMES, _AGENT): "1x95"},
        "80m",
        _AGENT,
        "1",
    ),
    "ToolStuck": Case(
        {_series(names.TOOL_OLDEST_ACTIVE, _TOOL): "0+60x30"},
        {_series(names.TOOL_OLDEST_ACTIVE, _TOOL): "0+60x4 0 0+60x4 0"},
        "7m",
        _TOOL,
        "7m 0s",
    ),
    "ApprovalWaits": Case(
        {_series(names.APPROVAL_OLDEST_PENDING, _AGENT): "0+60x30"},
        {_series(names.APPROVAL_OLDEST_PENDING, _AGENT): "0+60x3 0 0+60x3 0"},
        "6m",
        _AGENT,
        "6m 0s",
    ),
    "DecidedRunsWait": Case(
        {_series(names.PENDING_STORE_OLDEST_READY, _AGENT): "0+60x30"},
        {_series(names.PENDING_STORE_OLDEST_READY, _AGENT): "0+60x9 0 0+60x9 0"},
        "12m",
        _AGENT,
        "12m 0s",
    ),
    "PendingCallsWait": Case(
        {_series(names.PENDING_STORE_OLDEST, _AGENT): "0+1800x60"},
        {_series(names.PENDING_STORE_OLDEST, _AGENT): "0+1800x47 0 0+1800x40"},
        "25h",
        _AGENT,
        "1d 1h 0m 0s",
        every="30m",
    ),
    "RunsRefused": Case({_REFUSED_RUNS: "0x5 2x20"}, {_REFUSED_RUNS: "0x20"}, "10m", {**_AGENT, **_TOOL_CHANGED}, "2"),
    "ToolDown": Case(_executions("0+2x60", "0+8x60"), _executions("0+6x60", "0+4x60"), "20m", _TOOL, "80%"),
    "ToolRefusalsChanged": Case(
        _decisions(allowed="0+70x360", denied="0+7x338 2373+70x20"),
        _decisions(allowed="0+70x360", denied="0+30x338 10170+70x20"),
        "175h",
        _TOOL,
        "50%",
        every="30m",
    ),
    "ModelErrors": Case(_model_calls("0+0x60", "0+10x60"), _model_calls("0+9x60", "0+1x60"), "20m", _MODEL, "100%"),
    "ModelRateLimited": Case(
        {**_model_calls("0+8x60", "0x60"), _series(names.MODEL_RATE_LIMITS, _MODEL): "0+2x60"},
        {**_model_calls("0+100x60", "0x60"), _series(names.MODEL_RATE_LIMITS, _MODEL): "0+2x60"},
        "40m",
        _MODEL,
        "250m",
    ),
    "FirstChunkSlow": Case(_first_chunks("0+10x60"), _first_chunks("0+1x60"), "40m", _MODEL, "9.956s"),
    "CostBurn": Case(
        {_HOURLY_COST: "2+0x160 40+0x20"}, {_HOURLY_COST: "2+0x160 9+0x20"}, "165h", _AGENT, "40", every="1h"
    ),
    "DailyCostExceeded": Case(
        {_COST: f"0+{limits.DAILY_COST / 40:g}x80"},
        {_COST: f"0+{limits.DAILY_COST / 60:g}x80"},
        "30h",
        {},
        f"{48 / 40 * limits.DAILY_COST:g}",
        every="30m",
    ),
    # One call without a price is enough, although its counter begins with it.
    "UnpricedTokens": Case({_UNPRICED: "_x75 70x20"}, {_UNPRICED: "70x95"}, "80m", _MODEL, "70"),
    "AuditBehind": Case({_LAG: "0x5 60x10"}, {_LAG: "0x5 4x10"}, "10m", {}, "1m 0s"),
    # A scrape that fails does not make an old gap a new one.
    "AuditGap": Case({_GAPS: "_x75 1x20"}, {_GAPS: "1x62 _x3 1x30"}, "80m", {}, ""),
    "AuditIntentsMissing": Case(
        _audited("0+10x100", "0+10x49 490+9x50"), _audited("0+10x100", "1+10x100"), "90m", _AGENT, "50"
    ),
    "AuditBroken": Case({_VERIFIED: "1x5 0x10"}, {_VERIFIED: "1x20"}, "10m", {}, ""),
    "AuditUnverified": Case(  # a trail that no process has verified is silent: who verifies it may report no metric
        {_LAG: "0x110", _LAST_VERIFIED: "0x10"},
        {_LAG: "0x110"},
        "50h",
        {},
        "2d 2h 0m 0s",
        every="30m",
    ),
    "AuditCheckpointsLost": Case({_LOST_CHECKPOINTS: "_x75 2x20"}, {_LOST_CHECKPOINTS: "2x95"}, "80m", {}, "2"),
    "TelemetryLoss": Case(
        _items("0+95x60", "0+5x60"), _items("0+999x60", "0+1x60"), "20m", {names.EXPORTER_NAME: "otlp.traces"}, "5%"
    ),
    "TelemetryFailures": Case({_FAILURES: "_x75 3x20"}, {_FAILURES: "3x95"}, "80m", {}, "3"),
    "AgentTelemetryAbsent": Case({_ACTIVE: "1x20"}, {_ACTIVE: "1x60"}, "40m", {}, ""),
}

_EXPORTED: Final = {"exporter": "otlp_http"}
_ARCHIVED: Final = {"exporter": "otlp_http/audit"}


def _of_collector(metric: str, values: Mapping[str, str]) -> str:
    return _recorded(f"otelcol_{metric}", values)


_COLLECTOR_CASES: Final[Mapping[str, Case]] = {
    "AuditRecordsNotExported": Case(
        {_of_collector(f"{collector.FAILED_TO_SEND}_log_records_total", _ARCHIVED): "_x9 6x20"},
        {
            _of_collector(f"{collector.FAILED_TO_SEND}_log_records_total", _ARCHIVED): "6x30",
            _of_collector(f"{collector.FAILED_TO_SEND}_log_records_total", _EXPORTED): "0+6x30",
        },
        "12m",
        _ARCHIVED,
        "6",
    ),
    "CollectorLosesTelemetry": Case(
        {_of_collector(f"{collector.FAILED_TO_ENQUEUE}_spans", _EXPORTED): "0+6x30"},
        {_of_collector(f"{collector.FAILED_TO_ENQUEUE}_spans", _EXPORTED): "6x30"},
        "20m",
        _EXPORTED,
        "100m",
    ),
    "CollectorRefusesTelemetry": Case(
        {
            _of_collector(f"{collector.REFUSED}_spans", {"receiver": "otlp"}): "0x30",
            _of_collector(f"{collector.REFUSED}_log_records_total", {"receiver": "otlp"}): "0+6x30",
        },
        {_of_collector(f"{collector.ACCEPTED}_spans", {"receiver": "otlp"}): "0+6x30"},
        "20m",
        {"receiver": "otlp"},
        "100m",
    ),
    "CollectorQueueFull": Case(
        {
            _of_collector(collector.QUEUE_SIZE, _EXPORTED): "900x30",
            _of_collector(collector.QUEUE_CAPACITY, _EXPORTED): "1000x30",
        },
        {
            _of_collector(collector.QUEUE_SIZE, _EXPORTED): "700x30",
            _of_collector(collector.QUEUE_CAPACITY, _EXPORTED): "1000x30",
        },
        "20m",
        _EXPORTED,
        "90%",
    ),
    "TracesDroppedTooEarly": Case(
        {_of_collector(collector.DROPPED_TOO_EARLY, {}): "0+6x30"},
        {_of_collector(collector.DROPPED_TOO_EARLY, {}): "6x30"},
        "20m",
        {},
        "100m",
    ),
}
CASES: Final = {**_AGENT_CASES, **_COLLECTOR_CASES}
"""The test of each alert by its name."""


def _many(series: int, processes: int) -> Series:
    """Return so many series of a service in all, of several processes."""
    return {
        _series(names.RUN_ACTIVE, {INSTANCE: str(number % processes), names.AGENT_NAME: str(number)}): "1x20"
        for number in range(series)
    }


SMALL_LIMIT: Final = 5
CASES_OF_SMALL_LIMITS: Final = {
    "TooManySeries": Case(
        _many(SMALL_LIMIT + 1, processes=1), _many(2 * SMALL_LIMIT, processes=2), "18m", {}, f"{SMALL_LIMIT + 1}"
    ),
}
"""Tests of alerts whose limit is `SMALL_LIMIT` meanwhile, because promtool can't load as many series."""
UNTESTED: Final = {
    "DeadMansSwitch": "it always fires, and so can't be silent",
}


def rule_test_files(cases: Mapping[str, Case] = CASES) -> dict[str, dict[str, Any]]:
    """Return tests as the contents of files for promtool, by the interval at which they evaluate the rules."""
    alerts = {alert.name: alert for group in GROUPS.values() for alert in group}
    return {
        every: {
            "rule_files": ["../recording.yaml", "../alerts.yaml"],
            "evaluation_interval": every,
            "group_eval_order": [*rules.GROUPS, *GROUPS],  # an alert reads what is recorded at the same time
            "tests": [
                test for name, case in cases.items() if case.every == every for test in _tests(alerts[name], case)
            ],
        }
        for every in dict.fromkeys(case.every for case in cases.values())
    }


def _tests(alert: Alert, case: Case) -> list[dict[str, Any]]:
    given = {JOB: _SERVICE, **case.labels}
    shown = {label_name(name): value for name, value in given.items()}
    expected = {
        "exp_labels": {**shown, "severity": alert.severity, "source": SOURCE, "team": alert.team},
        "exp_annotations": {name: _rendered(text, shown, case.value) for name, text in alert.annotations.items()},
    }
    return [
        _test(f"{alert.name} fires", alert, case, case.fires, [expected]),
        _test(f"{alert.name} is silent", alert, case, case.silent, []),
    ]


def _test(name: str, alert: Alert, case: Case, series: Series, expected: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "name": name,
        "interval": case.every,
        "input_series": [{"series": each, "values": values} for each, values in series.items()],
        "alert_rule_test": [{"eval_time": case.at, "alertname": alert.name, "exp_alerts": expected}],
    }


def _rendered(text: str, shown: Mapping[str, str], value: str) -> str:
    """Return what Prometheus makes of an annotation's template."""
    for label, each in shown.items():
        text = text.replace(f"{{{{ $labels.{label} }}}}", each)
    return re.sub(r'{{ (\$value \| \w+|printf "%.0f" \$value) }}', value, text)
