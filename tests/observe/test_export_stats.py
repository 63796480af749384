"""What the stats of an exporter counts and logs."""

from __future__ import annotations

import gc
import logging
import os
import threading
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.otel.processes import in_a_process
from traced_tools.observe.export_stats import ExportStats

BEGIN = "further losses are only counted in traced_tools.export.dropped until export recovers"


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")


def test_an_outage_lasts_until_a_batch_is_sent_with_nothing_lost_before_it(caplog: pytest.LogCaptureFixture) -> None:
    stats = ExportStats("otlp.traces", "spans", 1)
    for _ in range(3):  # more comes than can be sent, all the time
        assert stats.try_enqueue() and not stats.try_enqueue()
        stats.begin_batch(1)
        stats.record_batch(1, 0, "")
    assert caplog.messages == [f"otlp.traces: lost 1 span (1 in total): more came than could be sent; {BEGIN}"]
    assert stats.try_enqueue()
    stats.begin_batch(1)
    stats.record_batch(1, 0, "")
    assert caplog.messages[1:] == ["otlp.traces: export recovered; lost 3 spans in total"]


def test_items_sent_after_the_close_stay_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    stats = ExportStats("otlp.traces", "spans", 10)
    assert stats.try_enqueue() and stats.try_enqueue() and stats.try_enqueue()
    assert stats.begin_batch(2)
    stats.close()
    stats.record_batch(2, 0, "")
    assert not stats.begin_batch(1)  # the SDK comes with the one that waited
    assert (stats.sent, stats.waiting) == (0, 0)
    assert stats.lost == {"queue_full": 0, "export_failed": 0, "shutdown": 3}
    stats.close()
    assert caplog.messages == [
        "otlp.traces: lost 3 spans (3 in total): time ran out when it was closed",
    ]


def close_in_an_outage() -> ExportStats:
    stats = ExportStats("mine", "events", 10)
    for _ in range(2):
        assert stats.try_enqueue() and stats.begin_batch(1)
        stats.record_batch(0, 1, "no")
    stats.close()
    return stats


def test_an_outage_that_lasts_until_the_close_is_summarized_once(caplog: pytest.LogCaptureFixture) -> None:
    close_in_an_outage().close()
    assert caplog.messages == [f"mine: lost 1 event (1 in total): no; {BEGIN}", "mine: closed; lost 2 events in total"]


def test_losses_after_a_summarized_close_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    stats = close_in_an_outage()
    assert not stats.try_enqueue() and not stats.try_enqueue()
    stats.close()
    assert caplog.messages[2:] == ["mine: lost 1 event (3 in total): it was closed"]


def test_a_close_logs_nothing_if_all_losses_were_logged(caplog: pytest.LogCaptureFixture) -> None:
    stats = ExportStats("mine", "events", 10)
    assert stats.try_enqueue() and stats.begin_batch(1)
    stats.record_batch(0, 1, "no")
    stats.close()
    assert len(caplog.messages) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_does_not_log_losses_of_its_parent() -> None:
    script = """
import os, warnings
from traced_tools.observe.export_stats import ExportStats
warnings.simplefilter("ignore")
logged()
stats = ExportStats("mine", "events", 1)
assert stats.try_enqueue() and not stats.try_enqueue() and not stats.try_enqueue()
child = os.fork()
if child:
    os.waitpid(child, 0)
    assert stats.begin_batch(1)
    stats.record_batch(1, 0, "")
print("the parent" if child else "the child", flush=True)
stats.close()
os._exit(0)
"""
    lines = in_a_process(script).stdout.splitlines()
    assert lines[-3:] == ["the child", "the parent", "WARNING mine: closed; lost 2 events in total"]


def test_metric_points_that_come_after_the_end_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    stats = ExportStats("otlp.metrics", "metric points")
    stats.close()
    assert not stats.begin_batch(7)
    assert not stats.begin_batch(7)
    assert stats.lost == {"export_failed": 0, "shutdown": 14}
    assert caplog.messages == ["otlp.metrics: lost 7 metric points (7 in total): it was closed"]


STEPS = st.lists(st.sampled_from(["admit", "take", "sent", "lost", "part", "close"]), max_size=60)


@given(STEPS, st.integers(1, 5))
def test_every_item_is_queued_in_flight_sent_or_lost(steps: list[str], capacity: int) -> None:
    stats, offered, under_way = ExportStats("x", "spans", capacity), 0, 0
    for step in steps:
        if step == "admit":
            offered += 1
            stats.try_enqueue()
        elif step == "take" and not under_way and stats.waiting:
            under_way = stats.waiting
            stats.begin_batch(under_way)
        elif step in ("sent", "lost", "part") and under_way:
            lost = {"sent": 0, "lost": under_way, "part": 1}[step]
            stats.record_batch(under_way - lost, lost, "")
            under_way = 0
        elif step == "close":
            stats.close()
            under_way = 0
        assert offered == stats.waiting + under_way + stats.sent + stats.lost_in_all
        assert stats.waiting <= capacity
    stats.close()
    assert offered == stats.sent + stats.lost_in_all


def test_concurrent_callers_never_exceed_the_queue_capacity() -> None:
    stats = ExportStats("x", "spans", 500)
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait(5)
        for _ in range(100):
            stats.try_enqueue()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (stats.waiting, stats.lost["queue_full"]) == (500, 300)


def test_stats_are_not_kept_alive() -> None:
    stats = ExportStats("x", "spans", 1)
    weak = weakref.ref(stats)
    del stats
    gc.collect()
    assert weak() is None
