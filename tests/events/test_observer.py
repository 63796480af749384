"""An observer passes events to exporters without delaying or failing a run."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.captured import Telemetry, total
from tests.events.exporting import Exporter
from tests.events.watching import check_sequence, types
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.sample_tools import add
from tests.waiting import PATIENCE, in_time
from traced_tools import ChatClient, ToolCall
from traced_tools.events import EventExporter, ExportFailed
from traced_tools.events.observer import ObserverAdvisor
from traced_tools.flow.background import deadline_in
from traced_tools.observe import Event, names
from traced_tools.observe.export_stats import ExportStats, totals_of_events
from traced_tools.testing import ScriptedChatModel


@pytest.fixture(autouse=True)
def own_totals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no test see what another has counted."""
    monkeypatch.setattr("traced_tools.observe.export_stats._OF_EVENTS", {})


def client(observer: ObserverAdvisor, **settings: Any) -> ChatClient:
    model = ScriptedChatModel([["Adding.", ToolCall("add", {"a": 1, "b": 1})], MARKER])
    return ChatClient(model, tools=[add], advisors=[observer], **settings)


def measured(telemetry: Telemetry, metric: str) -> dict[tuple[str, ...], float]:
    return {tuple(map(str, point.attributes.values())): total(point) for point in telemetry.metric(metric)}


@pytest.mark.parametrize("mode", MODES)
def test_the_events_of_a_run_reach_each_exporter(mode: str) -> None:
    exporters = Exporter("one"), Exporter("two", interval=60.0)
    with ObserverAdvisor(exporters) as observer:
        run(mode, client(observer).prompt("?"))
        assert observer.flush()
        for exporter in exporters:
            check_sequence(exporter.sent)
            assert types(exporter.sent)[0] == "run_started"
            assert types(exporter.sent)[-1] == "run_finished"
            assert len(exporter.sent) == 12
    assert [exporter.closed for exporter in exporters] == [1, 1]


@pytest.mark.parametrize("mode", MODES)
def test_an_advisor_outside_the_loop_receives_the_start_and_the_end(mode: str) -> None:
    exporter = Exporter()
    with ObserverAdvisor([exporter], order=100) as observer:
        run(mode, client(observer).prompt("?"))
    assert types(exporter.sent) == ["run_started", "run_finished"]


@pytest.mark.parametrize("deltas", [False, True])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_deltas_are_exported_only_if_enabled_and_without_their_text(mode: str, deltas: bool) -> None:
    exporter = Exporter()
    with ObserverAdvisor([exporter], deltas=deltas) as observer:
        run(mode, client(observer).prompt(MARKER))
    assert types(exporter.sent).count("text_delta") == (2 if deltas else 0)
    assert types(exporter.sent).count("tool_arguments_delta") == (1 if deltas else 0)
    assert not [event for event in exporter.sent if MARKER in event.model_dump_json()]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_ends_while_an_exporter_hangs_and_other_exporters_receive_its_events(mode: str) -> None:
    hanging, other = Exporter("hanging"), Exporter("other")
    hanging.hold()
    observer = ObserverAdvisor([hanging, other], queue_size=4)
    try:
        response = in_time(lambda: run(mode, client(observer).prompt("?")))
        assert response.content == MARKER
        assert not observer.flush(0.05)
        assert len(other.sent) == 12 - lost_of(observer, "other")
        in_time(lambda: observer.close(0.05))
        assert lost_of(observer, "hanging") == 12
    finally:
        hanging.release()


def lost_of(observer: ObserverAdvisor, name: str) -> int:
    (found,) = [each.stats for each in observer._processors if each.stats.name == name]
    return found.lost_in_all


@pytest.mark.parametrize("mode", MODES)
def test_an_export_failure_is_logged_without_data_of_the_run(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    exporter = Exporter("mine", ExportFailed("the host answered HTTP 410", retryable=False), interval=60)
    with ObserverAdvisor([exporter]) as observer:
        assert run(mode, client(observer).prompt(MARKER)).stop_reason == "answered"
        assert not observer.flush()
    assert lost_of(observer, "mine") == 12
    logged = "\n".join(f"{record.getMessage()} {record.exc_text}" for record in caplog.records)
    assert "mine: lost 12 events (12 in total): the host answered HTTP 410, 1 time" in logged
    assert MARKER not in logged


def test_one_observer_serves_several_clients_threads_and_event_loops() -> None:
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
    run("call", client(second).prompt("?"))
    second.close()
    assert (len(one.sent), len(two.sent)) == (0, 12)


# Metrics.


@pytest.mark.parametrize("mode", MODES)
def test_export_counts_go_to_the_meter_provider_of_the_run(mode: str) -> None:
    telemetry, elsewhere = Telemetry(), Telemetry()
    failing = Exporter("failing", ExportFailed("no", retryable=False), interval=60)
    waiting = Exporter("waiting", interval=60)
    with ObserverAdvisor([failing, waiting]) as observer:
        run(mode, client(observer, telemetry=telemetry.options).prompt("?"))
        run(mode, ChatClient(ScriptedChatModel(["x"]), telemetry=elsewhere.options).prompt("?"))
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
        run("call", client(observer, telemetry=telemetry.options).prompt("?"))
        observer.close()
    del observer
    gc.collect()
    another = ObserverAdvisor([Exporter("same", interval=60)])
    run("call", client(another, telemetry=telemetry.options).prompt("?"))
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("same",): 24}
    assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name) == {("same",): 12}
    another.close()
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("same",): 36}


def test_an_exporter_with_the_name_of_a_built_in_one_adds_to_its_metrics() -> None:
    telemetry = Telemetry()
    from traced_tools.observe.providers import instruments_of

    instruments, stats = instruments_of(telemetry.meter_provider), ExportStats("otlp.traces", "spans", 5)
    assert instruments is not None
    instruments.exports.show([stats])
    stats.try_enqueue()
    with ObserverAdvisor([Exporter("otlp.traces")]) as observer:
        run("call", client(observer, telemetry=telemetry.options).prompt("?"))
    assert measured(telemetry, names.EXPORT_ITEMS.name) == {("otlp.traces",): 12}
    assert measured(telemetry, names.EXPORT_QUEUE_SIZE.name) == {("otlp.traces",): 1}


def test_exporters_of_one_name_share_their_totals() -> None:
    assert totals_of_events("x") is totals_of_events("x")


# The life of an observer.


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
def test_the_events_of_a_garbage_collected_run_are_sent_with_the_next_flush() -> None:
    exporter = Exporter(interval=60)
    with ObserverAdvisor([exporter]) as observer:
        stream = client(observer).prompt("?").stream()
        next(stream)
        cycle: list[Any] = [stream]
        cycle.append(cycle)
        del stream, cycle
        with observer._processors[0].stats._lock:  # which a watcher may hold where the collector strikes
            gc.collect()
        assert "run_finished" not in types(exporter.sent)
        assert observer.flush()
        assert types(exporter.sent)[-1] == "run_finished"


def test_an_unreferenced_observer_sends_its_pending_events_and_closes() -> None:
    exporter = Exporter(interval=60)
    observer = ObserverAdvisor([exporter])
    run("call", client(observer).prompt("?"))
    worker = observer._processors[0]._worker
    del observer
    gc.collect()
    assert worker.join(deadline_in(PATIENCE))
    assert (len(exporter.sent), exporter.closed) == (12, 1)


def test_an_observer_is_closed_with_its_block_also_after_an_error() -> None:
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
        ({"exporters": [ONE, ONE]}, ValueError, r"exporters\[1\] is a duplicate"),
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
def test_invalid_arguments_of_the_exporter_are_refused(
    settings: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        ObserverAdvisor(**settings)


def test_an_observer_may_have_no_exporters() -> None:
    with ObserverAdvisor([]) as observer:
        assert run("call", client(observer).prompt("?")).content == MARKER
        assert observer.flush()


def test_the_repr_of_an_observer_names_its_exporters() -> None:
    with ObserverAdvisor([Exporter("one"), Exporter("two")]) as observer:
        assert repr(observer) == "<ObserverAdvisor 'observer': one, two>"
        assert repr(observer._processors[0]) == "<EventProcessor of one: 0 waiting, 0 sent>"
