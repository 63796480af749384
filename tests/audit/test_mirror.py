"""Durable records are mirrored to OpenTelemetry, and nothing that OpenTelemetry does blocks or breaks a trail."""

from __future__ import annotations

import gc
import json
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk._logs import LoggerProvider, LogRecordProcessor, ReadWriteLogRecord

from tests.audit.mirrored import CALL, DIGEST, NOON, Waiting, one_of_each, record, rows_of
from tests.audit.trails import KEY, intent, write
from tests.captured import Telemetry, total
from tests.markers import MARKER
from tests.memory.sql_store import execute
from tests.observe.closed_list import assert_consistent
from tests.waiting import PATIENCE
from traced_tools import ChatClient, TelemetryOptions
from traced_tools.audit import AuditTrail, verify
from traced_tools.audit.records import (
    AUDIT_DECISIONS,
    AUDIT_OUTCOMES,
    RECORD_KINDS,
    AuditRecord,
    hash_of,
)
from traced_tools.audit.verifying.reporting import report_verification
from traced_tools.audit.writing import mirror
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel


def mirror_all(telemetry: Telemetry, *records: AuditRecord) -> None:
    mirror.mirror_records(rows_of(*records), telemetry.options)
    assert mirror.flush(PATIENCE)


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry(cumulative=True)


def test_each_record_is_emitted_as_an_event_and_counted(telemetry: Telemetry) -> None:
    mirror_all(telemetry, *one_of_each(), record("intent", 9))
    assert [event.name for event in telemetry.events] == [
        f"traced_tools.audit.{kind}" for kind in (*RECORD_KINDS, "intent")
    ]
    assert counted(telemetry) == {
        ("intent", "travel"): 2,
        ("decision", "travel"): 1,
        ("outcome", "travel"): 1,
        ("compaction", "travel"): 1,
        ("tools_changed", "travel"): 1,
        ("checkpoint", None): 1,
        ("gap", None): 1,
        ("erasure", None): 1,
    }
    assert_consistent(telemetry)


def counted(telemetry: Telemetry) -> dict[Any, float]:
    """The counted records by their kind and agent."""
    points = telemetry.metric(names.AUDIT_RECORDS.name)
    return {
        (each.attributes[names.AUDIT_RECORD], each.attributes.get(names.AGENT_NAME)): total(each) for each in points
    }


def test_the_agents_of_counted_records_are_limited_together_with_those_of_runs(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("traced_tools.observe.sanitize._SEEN", defaultdict(set))
    for number in range(names.MAX_AGENTS - 1):
        ChatClient(ScriptedChatModel(["x"]), name=f"agent-{number}", telemetry=telemetry.options).prompt("?").call()
    agents = ("agent-7", "travel", "one too many", "a\nb", "a" * 300)
    mirror_all(telemetry, *[record("intent", number, agent=agent) for number, agent in enumerate(agents, 1)])
    assert counted(telemetry) == {("intent", "agent-7"): 1, ("intent", "travel"): 1, ("intent", names.OTHER): 3}


def test_the_telemetry_registry_lists_the_enum_values_of_the_trail() -> None:
    assert names.ATTRIBUTES[names.AUDIT_RECORD].values == RECORD_KINDS
    assert names.ATTRIBUTES[names.AUDIT_OUTCOME].values == AUDIT_OUTCOMES
    assert set(AUDIT_DECISIONS) <= set(names.ATTRIBUTES[names.TOOL_DECISION].values)


def test_an_event_has_the_fields_the_time_and_the_trace_of_its_record(telemetry: Telemetry) -> None:
    mirror_all(telemetry, *one_of_each())
    intent, decision, outcome, compaction, changed, checkpoint, gap, _ = telemetry.events
    of_call = {
        names.RUN_ID: "run-1",
        names.AGENT_NAME: "travel",
        names.CONVERSATION_ID: "c-1",
        names.ITERATION_INDEX: 2,
        names.TOOL_NAME: "get_weather",
        names.TOOL_CALL_ID: "call-1",
        names.TOOL_BATCH_INDEX: 0,
    }
    places = [
        {names.AUDIT_CHAIN_ID: "chain-1", names.AUDIT_SEQUENCE: each.sequence, names.AUDIT_HASH: each.hash}
        for each in one_of_each()
    ]
    assert intent.attributes == {
        **places[0],
        **of_call,
        names.TOOL_BATCH_SIZE: 3,
        names.TOOL_SOURCE: "local",
        names.TOOL_ARGUMENTS_SIZE: 12,
        names.PROVIDER_NAME: "openai",
        names.RESPONSE_MODEL: "gpt-5",
        names.RESPONSE_ID: "chatcmpl-1",
        names.PRINCIPAL_ID: "pseudonym:abababababababab",
        names.ACTORS: ("agent:planner", "tool:ask_travel"),
    }
    assert decision.attributes == {
        **places[1],
        **of_call,
        names.TOOL_DECISION: "denied",
        names.ADVISOR_NAME: "policy",
        names.REASON_CODE: "rule-7",
        names.POLICY_RULE: "rule-7",
        names.POLICY_DIGEST: "9f86d081884c7d65",
        names.APPROVAL_BY: "pseudonym:abababababababab",
        names.ERROR_TYPE: "invalid_arguments",
    }
    assert outcome.attributes == {
        **places[2],
        **of_call,
        names.AUDIT_OUTCOME: "error",
        names.ERROR_TYPE: "ValueError",
        names.TOOL_ATTEMPTS: 2,
        names.TOOL_RESULT_SIZE: 12,
    }
    assert compaction.attributes == {
        **places[3],
        **{name: of_call[name] for name in (names.RUN_ID, names.AGENT_NAME, names.CONVERSATION_ID)},
        names.ITERATION_INDEX: 2,
        names.COMPACTION_TRIGGER: "tokens",
        names.COMPACTION_STRATEGY: "tool_results,summary",
        names.COMPACTION_COVERED: 12,
        names.COMPACTION_TOKENS_BEFORE: 900,
        names.COMPACTION_TOKENS_AFTER: 300,
        names.COMPACTION_TOKENS_ESTIMATED: True,
    }
    assert changed.attributes == {
        **places[4],
        **{name: of_call[name] for name in (names.RUN_ID, names.AGENT_NAME, names.CONVERSATION_ID)},
        names.ITERATION_INDEX: 0,
        names.TOOL_SOURCE: "github",
    }
    assert (checkpoint.attributes, gap.attributes) == (places[5], places[6])
    ids = {(each.trace_id, each.span_id) for each in (intent, decision, outcome, compaction, changed)}
    assert ids == {(CALL["trace_id"], CALL["span_id"])}
    assert (checkpoint.trace_id, checkpoint.span_id, gap.trace_id, gap.span_id) == (None, None, None, None)
    flags = {each.log_record.trace_flags for each in telemetry.records[:5]}
    assert flags == {trace.TraceFlags.SAMPLED}  # sampling logs by their traces would leave evidence out
    assert {each.log_record.timestamp for each in telemetry.records} == {NOON}


def test_the_body_is_the_record_itself_so_that_its_hash_can_be_checked(telemetry: Telemetry) -> None:
    mirror_all(telemetry, *one_of_each())
    for each, mirrored in zip(one_of_each(), telemetry.records, strict=True):
        assert mirrored.log_record.body == each.body
        assert hash_of(str(mirrored.log_record.body)) == (mirrored.log_record.attributes or {})[names.AUDIT_HASH]


@pytest.mark.parametrize("field", ["arguments", "reason", "requested_name", "result", "by"])
def test_a_stored_text_stays_in_the_store(telemetry: Telemetry, field: str) -> None:
    mirror_all(telemetry, record(**{field: {**DIGEST, "text": MARKER, "cut": True}}, tags={"text": "a tag"}))
    (mirrored,) = telemetry.records
    assert MARKER not in repr(mirrored.log_record)
    fields = json.loads(str(mirrored.log_record.body))
    assert fields[field] == DIGEST
    assert fields["tags"] == {"text": "a tag"}
    assert {name: fields[name] for name in CALL} == CALL


def test_a_field_that_the_registry_does_not_list_is_in_the_body_alone(telemetry: Telemetry) -> None:
    mirror_all(telemetry, record("outcome", source="local", decision="allowed", later="more"))
    (event,) = telemetry.events
    assert set(event.attributes) <= set(names.AUDIT_OUTCOME_EVENT.attributes)
    assert_consistent(telemetry)


def test_a_record_without_a_trace_does_not_join_the_current_trace(telemetry: Telemetry) -> None:
    with telemetry.tracer_provider.get_tracer("application").start_as_current_span("request"):
        mirror_all(telemetry, record(trace_id=None, span_id=None))
    (event,) = telemetry.events
    assert (event.trace_id, event.span_id) == (None, None)


def test_text_that_utf_8_cannot_encode_is_replaced(telemetry: Telemetry) -> None:
    mirror_all(telemetry, record(conversation_id="\ud800 x", tags={"\ud801": "\ud802"}))
    (mirrored,) = telemetry.records
    str(mirrored.log_record.body).encode()
    conversation = str((mirrored.log_record.attributes or {})[names.CONVERSATION_ID])
    assert conversation.encode().endswith(b" x")


def test_without_telemetry_nothing_is_emitted_or_raised() -> None:
    mirror.mirror_records(rows_of(*one_of_each()))
    mirror.mirror_records([], TelemetryOptions())
    report_verification("store", True, 1.0)
    mirror.watch_lag(Waiting(1.0).lag)
    assert mirror.flush(PATIENCE)


# What goes wrong.


class Blocked(LogRecordProcessor):
    """An exporter of the application's that takes its time, or raises."""

    def __init__(self, raises: bool = False) -> None:
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.threads: list[str] = []
        self._raises = raises

    def on_emit(self, log_record: ReadWriteLogRecord) -> None:
        self.threads.append(threading.current_thread().name)
        if self._raises:
            raise RuntimeError(MARKER)
        self.begun.set()
        assert self.go_on.wait(PATIENCE)

    def shutdown(self) -> None:
        self.go_on.set()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        return True


@pytest.fixture
def blocked(telemetry: Telemetry) -> Iterator[tuple[Blocked, TelemetryOptions]]:
    processor, provider = Blocked(), LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(processor)
    yield processor, TelemetryOptions(telemetry.tracer_provider, telemetry.meter_provider, provider)
    processor.go_on.set()
    assert mirror.flush(PATIENCE)


def failures(telemetry: Telemetry) -> float:
    return sum(total(point) for point in telemetry.metric(names.TELEMETRY_FAILURES.name))


def test_a_slow_exporter_blocks_no_caller_and_dropped_records_are_counted(
    telemetry: Telemetry, blocked: tuple[Blocked, TelemetryOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    processor, options = blocked
    monkeypatch.setattr(mirror, "MOST_WAITING", 3)
    mirror.mirror_records(rows_of(record()), options)
    assert processor.begun.wait(PATIENCE)
    mirror.mirror_records(rows_of(record(), record()), options)
    assert not mirror.flush(0.0)
    mirror.mirror_records(rows_of(record(), record("decision")), options)
    assert failures(telemetry) == 2
    processor.go_on.set()
    assert mirror.flush(PATIENCE)
    assert len(processor.threads) == 3
    assert threading.current_thread().name not in processor.threads
    mirror.mirror_records(rows_of(record()), options)
    assert mirror.flush(PATIENCE)
    assert (len(processor.threads), failures(telemetry)) == (4, 2)
    counted = sum(total(point) for point in telemetry.metric(names.AUDIT_RECORDS.name))
    assert counted == 6


def test_a_batch_larger_than_the_queue_is_emitted_if_the_queue_is_empty(
    telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "MOST_WAITING", 2)
    mirror_all(telemetry, *one_of_each())
    assert len(telemetry.events) == len(RECORD_KINDS)


def test_an_exporter_that_raises_loses_its_record_alone_and_is_counted(
    telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    provider = LoggerProvider(shutdown_on_exit=False)
    processor = Blocked(raises=True)
    provider.add_log_record_processor(processor)
    mirror.mirror_records(
        rows_of(record(), record("outcome")), TelemetryOptions(None, telemetry.meter_provider, provider)
    )
    assert mirror.flush(PATIENCE)
    assert len(processor.threads) == 2
    assert failures(telemetry) == 2
    assert MARKER not in caplog.text


@pytest.mark.parametrize("body", ["{", "[]", '{"kind":"intent","trace_id":"no hex","span_id":1}'])
def test_a_record_that_cannot_be_mirrored_is_lost_alone(telemetry: Telemetry, body: str) -> None:
    intent, outcome = rows_of(record(), record("outcome"))
    mirror.mirror_records([(*intent[:-1], body), outcome], telemetry.options)
    assert mirror.flush(PATIENCE)
    assert [event.name for event in telemetry.events] == [names.AUDIT_OUTCOME_EVENT.name]
    assert failures(telemetry) == 1


def test_a_meter_that_raises_does_not_reach_the_trail(telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any, **keywords: Any) -> None:
        raise RuntimeError(MARKER)

    monkeypatch.setattr(mirror, "RunTelemetry", broken)
    mirror.mirror_records(rows_of(record()), telemetry.options)


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes it so that there are no more threads, and that the mirror has none yet."""
    monkeypatch.setattr(mirror, "_QUEUE", mirror._Queue())

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError(MARKER)

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def test_a_flush_of_an_empty_queue_starts_no_thread(no_threads: Callable[[], None]) -> None:
    no_threads()
    assert mirror.flush(0.0)


def test_a_started_mirror_starts_no_further_thread(telemetry: Telemetry, no_threads: Callable[[], None]) -> None:
    mirror.begin(telemetry.options)
    no_threads()
    mirror_all(telemetry, *one_of_each())
    assert len(telemetry.events) == len(one_of_each())


def test_without_a_logger_the_mirror_starts_no_thread(no_threads: Callable[[], None]) -> None:
    before = set(threading.enumerate())
    mirror.begin()
    assert set(threading.enumerate()) <= before


def test_records_are_counted_as_lost_if_no_thread_can_start(
    telemetry: Telemetry, no_threads: Callable[[], None]
) -> None:
    no_threads()
    for _ in range(2):
        mirror_all(telemetry, *one_of_each())
    assert telemetry.events == []
    assert failures(telemetry) == 2 * len(one_of_each())


# Gauges.


def gauge(telemetry: Telemetry, metric: Any) -> list[float]:
    """What the gauge reports now; nothing once it reports nothing."""
    points = telemetry.observed(metric.name)
    assert all(dict(point.attributes or {}) == {} for point in points)
    return [point.value for point in points]


def test_the_lag_is_the_longest_of_all_live_trails(telemetry: Telemetry) -> None:
    assert gauge(telemetry, names.AUDIT_LAG) == []
    trails = [Waiting(0.0), Waiting(2.5)]
    for each in trails:
        mirror.watch_lag(each.lag, telemetry.options)
    assert gauge(telemetry, names.AUDIT_LAG) == [2.5]
    trails[1].seconds = 0.0
    assert gauge(telemetry, names.AUDIT_LAG) == [0.0]
    del trails, each
    gc.collect()
    assert gauge(telemetry, names.AUDIT_LAG) == []


def found(telemetry: Telemetry) -> Sequence[float]:
    return [*gauge(telemetry, names.AUDIT_VERIFIED), *gauge(telemetry, names.AUDIT_LAST_VERIFIED)]


def test_the_verification_metrics_report_the_worst_store(telemetry: Telemetry) -> None:
    assert found(telemetry) == []
    report_verification("one", True, 100.0, telemetry.options)
    assert found(telemetry) == [1, 100.0]
    report_verification("two", False, 200.0, telemetry.options)
    assert found(telemetry) == [0, 100.0]
    report_verification("two", True, 300.0, telemetry.options)
    report_verification("one", True, 400.0, telemetry.options)
    assert found(telemetry) == [1, 300.0]


def test_a_verification_of_a_store_reports_its_result_whoever_runs_it(telemetry: Telemetry, tmp_path: Path) -> None:
    with AuditTrail(tmp_path / "audit.db", key=KEY) as trail:
        write(trail, intent())
    before = time.time()
    assert verify(tmp_path / "audit.db", telemetry=telemetry.options).ok
    is_intact, at = found(telemetry)
    assert is_intact == 1
    assert before <= at <= time.time()
    execute(f"sqlite:///{tmp_path / 'audit.db'}", "UPDATE audit_records SET tool = 'other' WHERE kind = 'intent'")
    assert not verify(tmp_path / "audit.db", telemetry=telemetry.options).ok
    assert found(telemetry)[0] == 0


def test_mirroring_leaves_the_current_span_unchanged(telemetry: Telemetry) -> None:
    before = trace.get_current_span()
    mirror_all(telemetry, record())
    assert trace.get_current_span() is before
