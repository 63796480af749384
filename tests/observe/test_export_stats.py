"""What the ledger of an exporter counts and logs."""

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
from traced_tools.observe.export_stats import Ledger

BEGIN = "losses are counted in traced_tools.export.dropped, and told here once until it works again"


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "traced_tools")


def test_an_outage_lasts_until_a_batch_is_sent_with_nothing_lost_before_it(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("otlp.traces", "spans", 1)
    for _ in range(3):  # more comes than can be sent, all the time
        assert ledger.admit() and not ledger.admit()
        ledger.take(1)
        ledger.settle(1, 0, "")
    assert caplog.messages == [f"otlp.traces: 1 span lost, 1 so far: more came than could be sent; {BEGIN}"]
    assert ledger.admit()
    ledger.take(1)
    ledger.settle(1, 0, "")
    assert caplog.messages[1:] == ["otlp.traces: works again; 3 spans lost so far"]


def test_items_sent_after_the_close_stay_counted_as_lost(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("otlp.traces", "spans", 10)
    assert ledger.admit() and ledger.admit() and ledger.admit()
    assert ledger.take(2)
    ledger.close()
    ledger.settle(2, 0, "")
    assert not ledger.take(1)  # the SDK comes with the one that waited
    assert (ledger.sent, ledger.waiting) == (0, 0)
    assert ledger.lost == {"queue_full": 0, "export_failed": 0, "shutdown": 3}
    ledger.close()
    assert caplog.messages == [
        "otlp.traces: 3 spans lost, 3 so far: time ran out when it was closed",
    ]


def close_in_an_outage() -> Ledger:
    ledger = Ledger("mine", "events", 10)
    for _ in range(2):
        assert ledger.admit() and ledger.take(1)
        ledger.settle(0, 1, "no")
    ledger.close()
    return ledger


def test_an_outage_that_lasts_until_the_close_is_summarized_once(caplog: pytest.LogCaptureFixture) -> None:
    close_in_an_outage().close()
    assert caplog.messages == [f"mine: 1 event lost, 1 so far: no; {BEGIN}", "mine: closed; 2 events lost in all"]


def test_losses_after_a_summarized_close_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    ledger = close_in_an_outage()
    assert not ledger.admit() and not ledger.admit()
    ledger.close()
    assert caplog.messages[2:] == ["mine: 1 event lost, 3 so far: it was closed"]


def test_a_close_logs_nothing_if_all_losses_were_logged(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("mine", "events", 10)
    assert ledger.admit() and ledger.take(1)
    ledger.settle(0, 1, "no")
    ledger.close()
    assert len(caplog.messages) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_forked_child_does_not_log_losses_of_its_parent() -> None:
    script = """
import os, warnings
from traced_tools.observe.export_stats import Ledger
warnings.simplefilter("ignore")
logged()
ledger = Ledger("mine", "events", 1)
assert ledger.admit() and not ledger.admit() and not ledger.admit()
child = os.fork()
if child:
    os.waitpid(child, 0)
    assert ledger.take(1)
    ledger.settle(1, 0, "")
print("the parent" if child else "the child", flush=True)
ledger.close()
os._exit(0)
"""
    lines = in_a_process(script).stdout.splitlines()
    assert lines[-3:] == ["the child", "the parent", "WARNING mine: closed; 2 events lost in all"]


def test_metric_points_that_come_after_the_end_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    ledger = Ledger("otlp.metrics", "metric points")
    ledger.close()
    assert not ledger.take(7)
    assert not ledger.take(7)
    assert ledger.lost == {"export_failed": 0, "shutdown": 14}
    assert caplog.messages == ["otlp.metrics: 7 metric points lost, 7 so far: it was closed"]


STEPS = st.lists(st.sampled_from(["admit", "take", "sent", "lost", "part", "close"]), max_size=60)


@given(STEPS, st.integers(1, 5))
def test_every_item_is_queued_in_flight_sent_or_lost(steps: list[str], capacity: int) -> None:
    ledger, offered, under_way = Ledger("x", "spans", capacity), 0, 0
    for step in steps:
        if step == "admit":
            offered += 1
            ledger.admit()
        elif step == "take" and not under_way and ledger.waiting:
            under_way = ledger.waiting
            ledger.take(under_way)
        elif step in ("sent", "lost", "part") and under_way:
            lost = {"sent": 0, "lost": under_way, "part": 1}[step]
            ledger.settle(under_way - lost, lost, "")
            under_way = 0
        elif step == "close":
            ledger.close()
            under_way = 0
        assert offered == ledger.waiting + under_way + ledger.sent + ledger.lost_in_all
        assert ledger.waiting <= capacity
    ledger.close()
    assert offered == ledger.sent + ledger.lost_in_all


def test_concurrent_callers_never_exceed_the_queue_capacity() -> None:
    ledger = Ledger("x", "spans", 500)
    together = threading.Barrier(8)

    def ask() -> None:
        together.wait(5)
        for _ in range(100):
            ledger.admit()

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (ledger.waiting, ledger.lost["queue_full"]) == (500, 300)


def test_a_ledger_is_not_kept_alive() -> None:
    ledger = Ledger("x", "spans", 1)
    weak = weakref.ref(ledger)
    del ledger
    gc.collect()
    assert weak() is None
