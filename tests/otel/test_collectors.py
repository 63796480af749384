"""With any behaviour of a collector, runs complete, losses are counted and logged once, and the exit is in time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
from opentelemetry.sdk.trace.export import SpanExportResult

from tests.markers import MARKER
from tests.modes import ALL_MODES, run
from tests.otel.collector import (
    Collector,
    absent,
    accept,
    answer,
    close,
    collecting,
    collecting_grpc,
    die_in_body,
    die_in_headers,
    drip,
    endless,
    garbage,
    hang,
    mute,
    reject,
    seconds,
    send,
)
from tests.otel.pipelines import Pipelines, pipelines
from tests.sample_tools import add
from tests.waiting import PATIENCE
from traced_tools import ChatClient, ToolCall
from traced_tools.observe import names
from traced_tools.otel.exporters import make_exporter
from traced_tools.otel.otlp import TRACES
from traced_tools.testing import ScriptedChatModel

pytestmark = pytest.mark.slow

LATER = "Fri, 01 Jan 2100 00:00:00 GMT"
HTTP: dict[str, Callable[[], AbstractContextManager[Collector]]] = {
    "absent": absent,
    "mute": mute,
    "hanging": lambda: collecting(hang),
    "closing": lambda: collecting(close),
    "garbage": lambda: collecting(garbage),
    "dying in the headers": lambda: collecting(die_in_headers),
    "dying in the body": lambda: collecting(die_in_body),
    "dripping headers": lambda: collecting(drip(b"HTTP/1.1 200 OK\r\nx: ")),
    "dripping a body": lambda: collecting(drip(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")),
    "endless": lambda: collecting(endless(500)),
    "redirecting": lambda: collecting(answer(302, Location="/elsewhere")),
    "400": lambda: collecting(answer(400)),
    "401": lambda: collecting(answer(401)),
    "404": lambda: collecting(answer(404)),
    "500": lambda: collecting(answer(500)),
    "429 without a word": lambda: collecting(answer(429)),
    "503, at once": lambda: collecting(answer(503, Retry_After="0")),
    "503, soon": lambda: collecting(answer(503, Retry_After="1")),
    "429, in an hour": lambda: collecting(answer(429, Retry_After="3600")),
    "503, on a day": lambda: collecting(answer(503, Retry_After=LATER)),
    "503, whenever": lambda: collecting(answer(503, Retry_After="soon\x85")),
    "503, never": lambda: collecting(answer(503, Retry_After="inf")),
    "503, before": lambda: collecting(answer(503, Retry_After="-5")),
}
GRPC: dict[str, Callable[[], AbstractContextManager[Collector]]] = {
    "absent": absent,
    "mute": mute,
    "garbage": lambda: collecting(garbage),
    "hanging": lambda: collecting_grpc(hanging=True),
    "unavailable": lambda: collecting_grpc("UNAVAILABLE"),
    "unknown": lambda: collecting_grpc("UNKNOWN"),
    "refusing": lambda: collecting_grpc("PERMISSION_DENIED"),
}


def ask(mode: str, sending: Pipelines) -> str:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "It is three."])
    return run(mode, ChatClient(model, tools=[add], telemetry=sending.options).prompt("1 + 2?")).content


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.3")


def assert_all_is_lost_and_logged_once(sending: Pipelines, caplog: pytest.LogCaptureFixture) -> None:
    for mode in ALL_MODES:
        assert ask(mode, sending) == "It is three."
    spent = seconds(lambda: sending.handle.force_flush(3))
    assert spent < 3
    assert [stats.sent for stats in sending.export_stats] == [0, 0, 0]
    dropped = sending.measured(names.EXPORT_DROPPED.name)
    for stats in sending.export_stats:
        assert stats.lost["export_failed"] > 0
        assert stats.waiting == 0
        assert dropped[stats.name, "export_failed"] == stats.lost["export_failed"]
    ask("call", sending)
    assert not sending.handle.force_flush(3)
    assert seconds(lambda: sending.handle.shutdown(1)) < PATIENCE
    ours = [record for record in caplog.records if record.name.startswith("traced_tools")]
    lines = sorted(record.getMessage() for record in ours)
    outages, ends = ([line for line in lines if (": closed; " in line) is ended] for ended in (False, True))
    assert [line.split(":")[0] for line in outages] == ["otlp.logs", "otlp.metrics", "otlp.traces"]
    for line, stats in zip(ends, sorted(sending.export_stats, key=lambda each: each.name), strict=True):
        assert line.startswith(f"{stats.name}: closed; lost {stats.lost_in_all} ")
    assert [record.getMessage() for record in caplog.records if record not in ours] == []
    assert MARKER not in caplog.text
    assert not [
        thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()
    ]


@pytest.mark.parametrize("kind", HTTP)
def test_a_run_is_unaffected_by_a_failing_http_collector(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    with HTTP[kind]() as collector, pipelines(collector.url) as sending:
        assert_all_is_lost_and_logged_once(sending, caplog)
        assert "/elsewhere" not in collector.bodies


@pytest.mark.parametrize("kind", GRPC)
def test_a_run_is_unaffected_by_a_failing_grpc_collector(
    kind: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("grpc")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    caplog.set_level(logging.DEBUG)
    logging.getLogger("asyncio").setLevel(logging.INFO)
    with GRPC[kind]() as collector, pipelines(collector.url) as sending:
        assert_all_is_lost_and_logged_once(sending, caplog)


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_delivered_items_are_counted_and_nothing_is_logged(
    protocol: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", protocol)
    with (collecting_grpc if protocol == "grpc" else collecting)() as collector, pipelines(collector.url) as sending:
        ask("call", sending)
        assert sending.handle.force_flush()
        sent = sending.measured(names.EXPORT_ITEMS.name)
        assert sent["otlp.traces",] == sending.spans.sent == len(collector.spans())
        assert sent["otlp.logs",] == sending.logs.sent > 0
        assert sent["otlp.metrics",] == sending.metrics.sent > 0
        assert set(sending.measured(names.EXPORT_DROPPED.name).values()) == {0}
        assert ("otlp.metrics", "queue_full") not in sending.measured(names.EXPORT_DROPPED.name)
        assert sending.measured(names.EXPORT_QUEUE_SIZE.name) == {("otlp.traces",): 0, ("otlp.logs",): 0}
        sending.handle.shutdown()
    assert caplog.messages == []


def test_items_that_a_collector_rejects_are_counted_as_lost_and_the_rest_as_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with collecting(reject(2)) as collector, pipelines(collector.url) as sending:
        ask("call", sending)
        assert not sending.handle.force_flush()
        assert [stats.lost["export_failed"] for stats in sending.export_stats] == [2, 2, 2]
        assert sending.spans.sent == len(collector.spans()) - 2
    assert caplog.messages[0].endswith(
        "the collector rejected a part of them; further losses are only counted in traced_tools.export.dropped "
        "until export recovers"
    )
    assert MARKER not in caplog.text


@pytest.mark.parametrize("body", [MARKER.encode(), b"{}", b"x" * 200_000], ids=["a word", "JSON", "much"])
def test_a_2xx_response_that_is_not_otlp_is_a_success(body: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with collecting(lambda _, request: send(request, 200, body, {})) as collector, pipelines(collector.url) as sending:
        ask("call", sending)
        assert sending.handle.force_flush()
        assert sending.spans.sent == len(collector.spans())
    assert caplog.messages == []


def test_the_end_of_an_outage_and_the_next_outage_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")
    with collecting(answer(500)) as collector, pipelines(collector.url) as sending:

        def flush(times: int) -> None:
            for _ in range(times):
                ask("call", sending)
                sending.handle.force_flush()

        flush(2)
        lost = sending.spans.lost["export_failed"]
        collector.behave = accept
        flush(2)
        collector.behave = answer(404)
        flush(2)
    lines = [message for message in caplog.messages if message.startswith("otlp.traces")]
    assert [line.split(":")[1].strip() for line in lines] == [
        f"lost {lost // 2} spans ({lost // 2} in total)",
        "export recovered; lost 26 spans in total",
        f"lost {lost // 2} spans ({lost // 2 * 3} in total)",
        f"closed; lost {lost * 2} spans in total",
    ]
    assert [line.split(": ")[2].split(";")[0] for line in lines if " in total): " in line] == [
        "the collector answered HTTP 500",
        "the collector answered HTTP 404",
    ]
    assert [record.levelname for record in caplog.records if record.getMessage().startswith("otlp.traces")] == [
        "WARNING",
        "WARNING",
        "WARNING",
        "WARNING",
    ]


def test_the_response_to_one_batch_does_not_affect_the_next() -> None:
    with collecting(answer(500)) as collector:
        otlp = make_exporter(TRACES, collector.url)
        assert otlp.send(1, lambda exporter: exporter.export([]) is SpanExportResult.SUCCESS) == (
            1,
            "the collector answered HTTP 500",
        )
        lost, why = otlp.send(1, lambda _: False)
        assert (lost, why) == (1, "the collector was unreachable or did not answer (nothing was sent)")
        otlp.exporter.shutdown()


def test_logs_of_the_applications_own_exporter_are_not_suppressed(caplog: pytest.LogCaptureFixture) -> None:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    with collecting(answer(500)) as collector, pipelines(collector.url) as sending:
        ask("call", sending)
        sending.handle.force_flush()
        ours = len(caplog.records)
        own = OTLPSpanExporter(f"{collector.url}/v1/traces")
        own.export([])
        own.shutdown()
        assert [record.name for record in caplog.records[ours:]] == [OTLPSpanExporter.__module__]


def test_a_password_in_the_endpoint_is_used_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with collecting(answer(401)) as collector:
        with pipelines(collector.url.replace("//", f"//user:{MARKER}@")) as sending:
            ask("call", sending)
            sending.handle.force_flush()
        assert collector.headers["/v1/traces"]["authorization"].startswith("Basic ")
    assert "otlp.traces" in caplog.text and MARKER not in caplog.text


def test_a_full_queue_drops_new_items_and_logs_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    with collecting(hang) as collector, pipelines(collector.url) as sending:
        tracer = sending.options.tracer_provider.get_tracer("test")  # type: ignore[union-attr]
        for _ in range(10):
            tracer.start_span("sent").end()
        collector.wait_for("/v1/traces")
        for _ in range(25):
            tracer.start_span("waiting or lost").end()
        assert sending.measured(names.EXPORT_QUEUE_SIZE.name)["otlp.traces",] == 10
        assert sending.measured(names.EXPORT_DROPPED.name)["otlp.traces", "queue_full"] == 15
        assert len(caplog.messages) == 1
        assert caplog.messages[0].startswith("otlp.traces: lost 1 span (1 in total): more came than could be sent;")
        assert seconds(lambda: sending.handle.shutdown(0.1)) < PATIENCE
        assert sending.spans.lost == {"queue_full": 15, "export_failed": 0, "shutdown": 20}
        tracer.start_span("late").end()
        assert sending.spans.lost["shutdown"] == 21
        assert [text for text in caplog.messages[1:] if "otlp.traces" in text] == [
            "otlp.traces: lost 20 spans (35 in total): time ran out when it was closed"
        ]


def test_a_flush_that_times_out_returns_false_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "5")
    with collecting(hang) as collector, pipelines(collector.url) as sending:
        ask("call", sending)
        assert seconds(lambda: sending.handle.force_flush(0.1)) < PATIENCE
        assert not sending.handle.force_flush(0.1)
        assert sending.spans.lost_in_all == 0
        collector.behave = accept
        collector.released.set()


@pytest.mark.parametrize("timeout", ["5", None])
def test_a_timeout_must_be_a_number(timeout: object) -> None:
    with absent() as collector, pipelines(collector.url) as sending:
        with pytest.raises(TypeError, match="timeout must be a number of seconds"):
            sending.handle.shutdown(timeout)  # type: ignore[arg-type]
