"""An observer over the life of a process: exit, forks, and `configure`."""

from __future__ import annotations

import os

import pytest

from tests.otel.collector import Collector, collecting
from tests.otel.processes import in_a_process
from traced_tools.events.processor import PATIENCE
from traced_tools.observe import names

pytestmark = pytest.mark.slow  # each test starts processes

PRELUDE = """
import threading, time
from traced_tools.events.observer import ObserverAdvisor
from traced_tools.events import EventExporter, ExportFailed
class Printing(EventExporter):
    name, interval = "printing", 60
    def export(self, events):
        os.write(1, "".join(f"{os.getpid()} {event.run_id} {event.sequence}\\n" for event in events).encode())
    def close(self):
        os.write(1, f"{os.getpid()} closed\\n".encode())
class Hanging(EventExporter):
    name = "hanging"
    def export(self, events):
        threading.Event().wait()
class Failing(EventExporter):
    name = "failing"
    def export(self, events):
        raise ExportFailed("no", retryable=False)
def ask(observer):
    return ChatClient(ScriptedChatModel(["x"]), advisors=[observer]).prompt("?").call()
"""
EVENTS = 5
"""Of a run of one pass."""


def test_pending_events_are_sent_when_the_process_ends() -> None:
    done = in_a_process(PRELUDE + "ask(ObserverAdvisor([Printing()]))")
    lines = done.stdout.splitlines()
    assert len(lines) == EVENTS + 1
    assert lines[-1].endswith(" closed")
    assert done.stderr == ""


def test_no_thread_is_started_at_the_end_since_python_312_has_none_to_give() -> None:
    script = """
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
observer = ObserverAdvisor([Printing()])
ask(observer)
threading.Thread.start = refuse
"""
    done = in_a_process(PRELUDE + script)
    assert len(done.stdout.splitlines()) == EVENTS + 1
    assert done.stderr == ""


def test_the_events_of_a_garbage_collected_run_are_sent_at_process_exit() -> None:
    script = """
import gc
gc.disable()
def leave():
    client = ChatClient(ScriptedChatModel(["one two"]), advisors=[ObserverAdvisor([Printing()])])
    stream = client.prompt("?").stream()
    next(stream)
    cycle = [stream]
    cycle.append(cycle)
    return client
client = leave()
gc.collect()
"""
    done = in_a_process(PRELUDE + script)
    assert [line.split()[2] for line in done.stdout.splitlines()[:-1]] == ["1", "2", "3", "4"]


def test_a_process_with_hanging_exporters_ends_in_time_and_logs_its_losses() -> None:
    script = """
import atexit
atexit.register(lambda: print(time.monotonic() - ended))  # at the very end
logged()
one, two = ObserverAdvisor([Hanging()]), ObserverAdvisor([Hanging(), Hanging()])
ask(one), ask(two)
ended = time.monotonic()
"""
    *lines, spent = in_a_process(PRELUDE + script).stdout.splitlines()
    assert PATIENCE <= float(spent) < 2 * PATIENCE  # and not three times that
    expected = f"WARNING hanging: lost {EVENTS} events ({EVENTS} in total): time ran out when it was closed"
    assert lines == [expected] * 3


@pytest.mark.parametrize("first", ["configure", "observer"])
def test_export_counts_of_events_reach_the_collector_of_configure(first: str) -> None:
    begin = ["configure(otlp={url!r})", "observer = ObserverAdvisor([Printing(), Failing()])"]
    with collecting() as collector:
        script = "\n".join(begin if first == "configure" else reversed(begin)).format(url=collector.url)
        done = in_a_process(f"{PRELUDE}{script}\nask(observer)")
    assert "failing: lost 5 events (5 in total): no, 1 time; further losses are only counted" in done.stderr
    assert counted(collector, names.EXPORT_ITEMS.name)["printing",] == EVENTS
    assert counted(collector, names.EXPORT_DROPPED.name)["export_failed", "failing"] == EVENTS


def counted(collector: Collector, metric: str) -> dict[tuple[str, ...], int]:
    """The last counts of a metric that came, by the values of its labels."""
    return {
        tuple(sorted(attribute.value.string_value for attribute in point.attributes)): point.as_int
        for each in collector.metrics()
        if each.name == metric
        for point in each.sum.data_points
    }


def test_export_counts_of_events_are_scraped_once_each() -> None:
    with collecting() as collector:
        script = f"""
logged()
handle = configure(otlp={collector.url!r}, prometheus=0)
observer = ObserverAdvisor([Printing(), Failing()])
ask(observer)
observer.flush()
handle.force_flush()
for line in scrape(handle).splitlines():
    if line.startswith("traced_tools_export"):
        print(line)
"""
        done = in_a_process(PRELUDE + script)
    lines = [line for line in done.stdout.splitlines() if line.startswith("traced_tools_export")]
    found = dict(line.rsplit(" ", 1) for line in lines)
    assert len(found) == len(lines)
    label = 'traced_tools_exporter_name="{}"'.format
    assert float(found[f"traced_tools_export_items_total{{{label('printing')}}}"]) == EVENTS
    assert float(found[f"traced_tools_export_items_total{{{label('otlp.traces')}}}"]) > 0
    dropped = f'traced_tools_export_dropped_total{{traced_tools_export_drop_reason="export_failed",{label("failing")}}}'
    assert float(found[dropped]) == EVENTS
    assert float(found[f"traced_tools_export_queue_size{{{label('printing')}}}"]) == 0
    assert "has been created already" not in done.stdout + done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
class TestForks:
    def test_a_forked_child_and_its_parent_each_send_their_own_events_once(self) -> None:
        script = """
import warnings
warnings.simplefilter("ignore")
observer = ObserverAdvisor([Printing()])
ask(observer)  # waits, in the parent
child = os.fork()
ask(observer)
if not child:
    sys.exit(0)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
        done = in_a_process(PRELUDE + script)
        lines = done.stdout.splitlines()
        assert "status 0" in lines
        sent = [line.split() for line in lines if line != "status 0" and not line.endswith("closed")]
        assert len({(run_id, number) for _, run_id, number in sent}) == len(sent) == 3 * EVENTS
        by_process = {pid: len([each for each in sent if each[0] == pid]) for pid, _, _ in sent}
        assert sorted(by_process.values()) == [EVENTS, 2 * EVENTS]
        assert len([line for line in lines if line.endswith("closed")]) == 2

    @pytest.mark.parametrize("used", ["observer", "ObserverAdvisor([Printing()])"], ids=["made before", "made there"])
    def test_a_multiprocessing_child_sends_pending_events_when_it_ends(self, used: str) -> None:
        script = f"""
import multiprocessing, warnings
warnings.simplefilter("ignore")
observer = ObserverAdvisor([Printing()])
ask(observer)  # waits, in the parent
child = multiprocessing.get_context("fork").Process(target=lambda: ask({used}))
child.start()
child.join()
print("status", child.exitcode, flush=True)
"""
        lines = in_a_process(PRELUDE + script).stdout.splitlines()
        before, after = lines[: lines.index("status 0")], lines[lines.index("status 0") + 1 :]
        assert [len(before), len(after)] == [EVENTS + 1] * 2
        assert before[-1].endswith(" closed")

    def test_a_child_that_is_forked_while_its_parents_exporter_hangs_sends_its_own(self) -> None:
        script = """
import signal, warnings
warnings.simplefilter("ignore")
begun, held = threading.Event(), os.getpid()
class Hanging(Printing):
    interval = 0
    def export(self, events):
        begun.set()
        if os.getpid() == held:
            threading.Event().wait()
        super().export(events)
observer = ObserverAdvisor([Hanging()])
ask(observer)
assert begun.wait(5)
processor = observer._processors[0]
locked, forked = threading.Event(), threading.Event()
def hold():
    with processor.stats._lock, processor.stats.totals._lock:
        locked.set()
        forked.wait()
threading.Thread(target=hold).start()
assert locked.wait(5)
child = os.fork()
forked.set()
if not child:
    signal.alarm(20)
    assert processor.stats.totals.queues
    ask(observer)
    observer.close()
    os.write(1, str(processor.stats.lost_in_all).encode() + bytes([10]))
    sys.exit(0)
print("status", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
observer.close(0.05)
"""
        lines = in_a_process(PRELUDE + script).stdout.splitlines()
        assert lines.count("0") == 1
        assert lines[-1] == "status 0"
        assert len([line for line in lines if len(line.split()) == 3]) == EVENTS

    def test_a_child_that_emits_nothing_closes_nothing(self) -> None:
        script = """
import warnings
warnings.simplefilter("ignore")
observer = ObserverAdvisor([Printing()])
ask(observer)
observer.flush()
child = os.fork()
if not child:
    sys.exit(0)
os.waitpid(child, 0)
"""
        lines = in_a_process(PRELUDE + script).stdout.splitlines()
        assert len([line for line in lines if line.endswith("closed")]) == 1
