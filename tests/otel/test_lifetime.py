"""Telemetry over the life of a process: flushes, shutdowns, forks and exit."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.otel.collector import Collector, absent, answer, collecting, collecting_grpc, counted, hang
from tests.otel.processes import in_a_process
from traced_tools.observe import names
from traced_tools.otel.handle import PATIENCE

pytestmark = pytest.mark.slow  # each test starts processes

OUR_SPANS = {"invoke_agent assistant", "iteration", "chat scripted", "execute_tool fail"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_all_three_signals_are_sent_when_the_process_ends(protocol: str) -> None:
    if protocol == "grpc":
        pytest.importorskip("grpc")
    with (collecting_grpc if protocol == "grpc" else collecting)() as collector:
        done = in_a_process(f"logged(); configure(otlp={collector.url!r}); run()", OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert collector.span_names() >= OUR_SPANS
    assert collector.metric_names() >= {names.INVOKE_AGENT_DURATION.name, names.EXPORT_ITEMS.name}
    assert collector.event_names() >= {names.TOOL_INTENT_EVENT.name, names.LOOP_STOP_EVENT.name}
    assert done.stdout == done.stderr == ""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_no_thread_is_started_at_the_end_since_python_312_has_none_to_give(protocol: str) -> None:
    with (collecting_grpc if protocol == "grpc" else collecting)() as collector:
        done = in_a_process(
            f"""
import threading
def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")
configure(otlp={collector.url!r})
run()
threading.Thread.start = refuse
""",
            OTEL_EXPORTER_OTLP_PROTOCOL=protocol,
        )
    assert collector.span_names() >= OUR_SPANS and collector.metric_names() and collector.event_names()
    assert done.stderr == ""


def test_no_connection_is_left_open_at_the_end(collector: Collector) -> None:
    done = in_a_process(f"configure(otlp={collector.url!r}).force_flush(); run()")
    assert done.stderr == ""


def test_a_process_without_its_collector_ends_in_time_and_logs_its_losses() -> None:
    with absent() as collector:
        script = f"logged(); configure(otlp={collector.url!r}); print(run().stop_reason); print(time.monotonic())"
        lines = in_a_process(f"import time\n{script}").stdout.splitlines()
        spent = time.monotonic() - float(lines.pop(1))  # without the start of the process, which takes its own time
    assert spent < 2 * PATIENCE  # left to themselves, the exporters take three times that
    assert lines[0] == "answered"
    assert sorted(line.split(":")[0] for line in lines[1:]) == [
        "WARNING otlp.logs",
        "WARNING otlp.metrics",
        "WARNING otlp.traces",
    ]
    for line in lines[1:]:
        assert "time ran out when it was closed; the collector was unreachable" in line
        assert "ConnectionError" in line


def test_losses_are_scraped_when_the_collector_is_down(collector: Collector) -> None:
    collector.behave = answer(400)
    done = in_a_process(
        f"""
handle = configure(otlp={collector.url!r}, prometheus=0)
run()
print(handle.force_flush())
for line in scrape(handle).splitlines():
    if line.startswith("traced_tools_export"):
        print(line)
""",
        OTEL_METRICS_EXPORTER="none",
    )
    flushed, *lines = done.stdout.splitlines()
    assert flushed == "False"
    found = dict(line.rsplit(" ", 1) for line in lines)
    name = 'traced_tools_exporter_name="otlp.traces"'
    assert float(found[f"traced_tools_export_items_total{{{name}}}"]) == 0
    dropped = f'traced_tools_export_dropped_total{{traced_tools_export_drop_reason="export_failed",{name}}}'
    assert float(found[dropped]) == len(collector.spans())
    assert float(found[f"traced_tools_export_queue_size{{{name}}}"]) == 0


FORKING = """
import warnings
warnings.simplefilter("ignore")
handle = configure(otlp={url!r}, prometheus=0)
def spans(name):
    for _ in range(3):
        with trace.get_tracer("test").start_as_current_span(name):
            pass
    run()
spans("before"); FLUSH
child = os.fork()
if not child:
    spans("in the child"); FLUSH
    assert handle.prometheus_address is None
    sys.exit(0)
spans("in the parent"); FLUSH
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "trace_id" in scrape(handle))
"""


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
@pytest.mark.parametrize("flush", ["handle.force_flush()", ""], ids=["flushed", "waiting"])
def test_a_forked_child_and_its_parent_each_send_their_own_spans_once(flush: str, protocol: str) -> None:
    with (collecting_grpc if protocol == "grpc" else collecting)() as collector:
        script = FORKING.replace("FLUSH", flush).format(url=collector.url)
        done = in_a_process(script, OTEL_EXPORTER_OTLP_PROTOCOL=protocol)
    assert done.stdout == "0 True\n"
    assert done.stderr == ""
    assert set(counted(collector.spans()).values()) == {1}
    sent = Counter(span.name for span in collector.spans())
    assert (sent["before"], sent["in the child"], sent["in the parent"]) == (3, 3, 3)
    assert sent["invoke_agent assistant"] == 3
    came = list(zip(collector.peers["/v1/traces"], map(str, collector.requests("/v1/traces")), strict=True))
    assert not {peer for peer, spans in came if "in the child" in spans} & {
        peer for peer, spans in came if "in the child" not in spans
    }


def test_a_child_that_is_forked_while_its_parent_sends_does_not_wait_for_it(collector: Collector) -> None:
    collector.behave = hang
    done = in_a_process(
        f"""
import warnings
warnings.simplefilter("ignore")
handle = configure(otlp={collector.url!r})
run()
handle.force_flush(0.2)
child = os.fork()
if not child:
    handle.shutdown(0.3)
    print("child", flush=True)
    os._exit(0)
os.waitpid(child, 0)
handle.shutdown(0.1)
""",
        OTEL_EXPORTER_OTLP_TIMEOUT="3",
    )
    assert done.stdout == "child\n"
    assert len(collector.requests("/v1/metrics")) == 2  # one of each process


def test_a_forked_child_leaves_the_address_to_its_parent() -> None:
    done = in_a_process(
        """
import socket, warnings
warnings.simplefilter("ignore")
handle = configure(prometheus=0)
address = handle.prometheus_address
reading, writing = os.pipe()
child = os.fork()
if not child:
    os.close(writing)
    os.read(reading, 1)
    os._exit(0)
handle.shutdown()
try:
    urllib.request.urlopen("http://" + address, timeout=1)
except OSError as error:
    print(type(error.reason).__name__)
os.close(writing)
os.waitpid(child, 0)
"""
    )
    assert done.stdout == "ConnectionRefusedError\n"


def test_the_children_of_a_process_that_was_shut_down_end_well(collector: Collector) -> None:
    done = in_a_process(
        f"""
import warnings
warnings.simplefilter("ignore")
handle = configure(otlp={collector.url!r})
run()
handle.shutdown()
child = os.fork()
if not child:
    run()
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert done.stdout == "0\n"


def test_a_forked_child_that_calls_configure_serves_its_own_metrics() -> None:
    script = """
import os, urllib.request
logged()
parent_address = configure(prometheus=0).prometheus_address
read, write = os.pipe()
if os.fork() == 0:
    child = configure(prometheus=0)
    run()
    text = urllib.request.urlopen(f"http://{child.prometheus_address}/metrics", timeout=5).read().decode()
    os.write(write, f"{child.prometheus_address != parent_address} {'invoke_agent_duration' in text}".encode())
    os._exit(0)
os.wait()
print(os.read(read, 100).decode())
"""
    assert in_a_process(script).stdout.splitlines() == ["True True"]


def test_configure_in_a_forked_child_without_metrics_logs_a_warning() -> None:
    script = """
import os
logged()
configure(console=True)
if os.fork() == 0:
    assert configure(prometheus=0).prometheus_address is None
    os._exit(0)
os.wait()
"""
    (line,) = in_a_process(script).stdout.splitlines()
    assert line.startswith(
        "WARNING configure() was called before this process was forked, and either collects no metrics"
    )
