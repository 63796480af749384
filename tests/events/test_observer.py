"""An observer hands the events of runs to exporters, and no run waits for them or fails for their sake."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.events.exporting import Exporter
from tests.events.watching import add, check_sequence, types
from tests.helpers import MARKER, MODES, Telemetry, run
from tests.support import PATIENCE, in_time
from traced_tools import ChatClient, ToolCall
from traced_tools.advisors.observer import ObserverAdvisor
from traced_tools.events import Event, EventExporter, ExportFailed
from traced_tools.observe import names
from traced_tools.observe.export_stats import Ledger, totals_of_events
from traced_tools.testing import ScriptedChatModel


@pytest.fixture(autouse=True)
def own_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see what another has counted."""
    monkeypatch.setattr("traced_tools.observe.export_stats._OF_EVENTS", {})


def client(observer: ObserverAdvisor, **settings: Any) -> ChatClient:
    model = ScriptedChatModel([["Adding.", ToolCall("add", {"a": 1, "b": 1})], MARKER])
    return ChatClient(model, tools=[add], advisors=[observer], **settings)


def measured(telemetry: Telemetry, metric: str) -> dict[tuple[str, ...], float]:
    return {tuple(map(str, point.labels.values())): point.total for point in telemetry.metric(metric)}


@pytest.mark.parametrize("mode", MODES)
def test_the_events_of_a_run_reach_each_exporter(mode: str) -> None:
    exporters = Exporter("one"), Exporter("two", interval=60.0)
    with ObserverAdvisor(exporters) as observer:
        run(client(observer).prompt("?"), mode)
        assert observer.flush()
        for exporter in exporters:
            check_sequence(exporter.sent)
            assert types(exporter.sent)[0] == "run_started"
            assert types(exporter.sent)[-1] == "run_finished"
            assert len(exporter.sent) == 12
    assert [exporter.closed for exporter in exporters] == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_outside_the_loop_it_is_told_of_the_start_and_the_end(mode: str) -> None:
    exporter = Exporter()
    with ObserverAdvisor([exporter], order=100) as observer:
        run(client(observer).prompt("?"), mode)
    assert types(exporter.sent) == ["run_started", "run_finished"]


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_pieces_are_sent_where_they_are_asked_for_and_without_their_text(mode: str, deltas: bool) -> None:
    exporter = Exporter()
    with ObserverAdvisor([exporter], deltas=deltas) as observer:
        run(client(observer).prompt(MARKER), mode)
    assert types(exporter.sent).count("text_delta") == (2 if deltas else 0)
    assert types(exporter.sent).count("tool_arguments_delta") == (1 if deltas else 0)
    assert not [event for event in exporter.sent if MARKER in event.model_dump_json()]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_ends_beside_an_exporter_that_hangs_and_others_are_served(mode: str) -> None:
    hanging, other = Exporter("hanging"), Exporter("other")
    hanging.hold()
    observer = ObserverAdvisor([hanging, other], queue_size=4)
    try:
        response = in_time(lambda: run(client(observer).prompt("?"), mode))
        assert response.content == MARKER
        assert not observer.flush(0.05)
        assert len(other.sent) == 12 - lost_of(observer, "other")
        in_time(lambda: observer.close(0.05))
        assert lost_of(observer, "hanging") == 12
    finally:
        hanging.release()


def lost_of(observer: ObserverAdvisor, name: str) -> int:
    (found,) = [each.ledger for each in observer._processors if each.ledger.name == name]
    return found.lost_in_all


@pytest.mark.parametrize("mode", MODES)
def test_what_an_exporter_says_of_its_failure_is_logged_and_nothing_of_the_run(
    mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    exporter = Exporter("mine", ExportFailed("the host answered HTTP 410", retryable=False), interval=60)
    with ObserverAdvisor([exporter]) as observer:
        assert run(client(observer).prompt(MARKER), mode).stop_reason == "answered"
        assert not observer.flush()
    assert lost_of(observer, "mine") == 12
    logged = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert "mine: 12 events lost, 12 so far: the host answered HTTP 410, 1 time" in logged
    assert MARKER not in logged


def test_it_is_shared_by_clients_threads_and_event_loops() -> None:
    exporter = Exporter()

    async def several(shared: ObserverAdvisor) -> None:
        await asyncio.gather(*[client(shared).prompt("?").acall() for _ in range(5)])

    with ObserverAdvisor([exporter]) as observer:
        with ThreadPoolExecutor(8) as pool:
            done = [pool.submit(lambda: asyncio.run(several(observer))) for _ in range(4)]
            done += [pool.submit(lambda: client(observer).prompt("?").call()) for _ in range(20)]
            for each in done:
                each.result(4 * PATIENCE)
    runs: dict[str, list[Event]] = {}
    for event in exporter.sent:
        runs.setdefault(event.run_id, []).append(event)
    assert len(runs) == 40
    for events in runs.values():
        check_sequence(events)


def test_two_observers_share_nothing() -> None:
    one, two = Exporter("same"), Exporter("same")
    first, second = ObserverAdvisor([one]), ObserverAdvisor([two])
    first.close()
    run(client(second).prompt("?"), "call")
    second.close()
    assert (len(one.sent), len(two.sent)) == (0, 12)


# Metrics.


@pytest.mark.parametrize("mode", MODES)
def test_what_becomes_of_events_is_measured_where_the_runs_are(mode: str) -> None:
    telemetry, elsewhere = Telemetry(), Telemetry()
    failing = Exporter("failing", ExportFailed("no", retryable=False), interval=60)
    waiting = Exporter("waiting", interval=60)
    with ObserverAdvisor([failing, waiting]) as observer:
        run(client(observer, telemetry=telemetry.options).prompt("?"), mode)
        run(ChatClient(ScriptedChatModel(["x"]), telemetry=elsewhere.options).prompt("?"), mode)
        assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name)["waiting",] == 12
        observer.flush()
        assert measured(telemetry, names.EXPORT_ITEMS.name) == {("failing",): 0, ("waiting",): 12}
        lost = measured(telemetry, names.EXPORT_DROPPED.name)
        assert {key: count for key, count in lost.items() if count} == {("failing", "export_failed"): 12}
        assert {reason for _, reason in lost} == {"queue_full", "export_failed", "shutdown"}
        assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name) == {("failing",): 0, ("waiting",): 0}
    assert measured(elsewhere, names.EXPORT_ITEMS.name) == {}


def test_exporters_of_one_name_are_measured_as_their_sum_also_when_one_is_gone() -> None:
    telemetry = Telemetry()
    for _ in range(2):
        observer = ObserverAdvisor([Exporter("same")])
        run(client(observer, telemetry=telemetry.options).prompt("?"), "call")
        observer.close()
    del observer
    gc.collect()
    another = ObserverAdvisor([Exporter("same", interval=60)])
    run(client(another, telemetry=telemetry.options).prompt("?"), "call")
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("same",): 24}
    assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name) == {("same",): 12}
    another.close()
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("same",): 36}


def test_an_exporter_named_as_one_of_the_packages_own_is_added_to_it() -> None:
    telemetry = Telemetry()
    from traced_tools.observe.run_telemetry import instruments_of

    instruments, ledger = instruments_of(telemetry.meter_provider), Ledger("otlp.traces", "spans", 5)
    assert instruments is not None
    instruments.exports.show([ledger])
    ledger.admit()
    with ObserverAdvisor([Exporter("otlp.traces")]) as observer:
        run(client(observer, telemetry=telemetry.options).prompt("?"), "call")
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("otlp.traces",): 12}
    assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name) == {("otlp.traces",): 1}


def test_the_totals_of_a_name_are_kept_once() -> None:
    assert totals_of_events("x") is totals_of_events("x")


# The life of an observer.


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
def test_a_run_that_the_garbage_collector_ends_is_sent_with_the_next_flush() -> None:
    exporter = Exporter()
    with ObserverAdvisor([exporter]) as observer:
        stream = client(observer).prompt("?").stream()
        next(stream)
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        del stream, cycle
        with observer._processors[0].ledger._lock:  # which a watcher may hold where the collector strikes
            gc.collect()
        assert "run_finished" not in types(exporter.sent)
        assert observer.flush()
        assert types(exporter.sent)[-1] == "run_finished"


def test_an_observer_that_nobody_has_any_more_sends_what_waits_and_closes() -> None:
    exporter = Exporter(interval=60)
    observer = ObserverAdvisor([exporter])
    run(client(observer).prompt("?"), "call")
    thread = observer._processors[0]._thread
    del observer
    gc.collect()
    thread.join(PATIENCE)
    assert (len(exporter.sent), exporter.closed) == (12, 1)


def test_it_is_closed_with_its_block_also_when_that_fails() -> None:
    exporter = Exporter()
    with pytest.raises(KeyError), ObserverAdvisor([exporter]):
        raise KeyError
    assert exporter.closed == 1


# Settings.


class Unnamed(EventExporter):
    """Has no name."""


def exporter_with(**fields: Any) -> Exporter:
    exporter = Exporter()
    for name, value in fields.items():
        setattr(exporter, name, value)
    return exporter


ONE = Exporter()


@pytest.mark.parametrize(
    "settings, error, text",
    [
        ({"exporters": ONE}, TypeError, "exporters must be a sequence of EventExporter objects"),
        ({"exporters": [print]}, TypeError, r"exporters\[0\] must be an EventExporter"),
        ({"exporters": [ONE, ONE]}, ValueError, r"exporters\[1\] is there twice"),
        ({"exporters": [Unnamed()]}, TypeError, r"exporters\[0\].name must be a str"),
        ({"exporters": [exporter_with(name=" ")]}, ValueError, r"exporters\[0\].name must not be blank"),
        ({"exporters": [exporter_with(max_batch=0)]}, ValueError, r"exporters\[0\].max_batch must be at least 1"),
        ({"exporters": [exporter_with(interval=-1)]}, ValueError, r"exporters\[0\].interval must be at least 0"),
        ({"exporters": [exporter_with(interval=float("nan"))]}, ValueError, r"interval must be at least 0"),
        ({"exporters": [exporter_with(interval="1")]}, TypeError, r"exporters\[0\].interval must be a number"),
        ({"exporters": [], "deltas": 1}, TypeError, "deltas must be True or False"),
        ({"exporters": [], "queue_size": 0}, ValueError, "queue_size must be at least 1"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ObserverAdvisor(**settings)


def test_no_exporters_will_do() -> None:
    with ObserverAdvisor([]) as observer:
        assert run(client(observer).prompt("?"), "call").content == MARKER
        assert observer.flush()


def test_its_repr_names_its_exporters() -> None:
    with ObserverAdvisor([Exporter("one"), Exporter("two")]) as observer:
        assert repr(observer) == "<ObserverAdvisor 'observer': one, two>"
        assert repr(observer._processors[0]) == "<EventProcessor of one: 0 waiting, 0 sent>"
