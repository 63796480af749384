"""OpenTelemetry sets its providers once in a process, so what sets them runs in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from traced_tools.client import ChatClient
from traced_tools.errors import ConfigurationError
from traced_tools.messages import ToolCall, Usage
from traced_tools.telemetry import names
from traced_tools.telemetry.configure import InMemoryTelemetry, configure
from traced_tools.telemetry.points import MetricPoint
from traced_tools.telemetry.run import TelemetryOptions
from traced_tools.testing.scripted import ScriptedChatModel
from traced_tools.testing.telemetry import capture_telemetry

MARKER = "the-secret-marker"
PRELUDE = f"""
import logging, os, sys, urllib.request
from opentelemetry import metrics, trace
from traced_tools.client import ChatClient
from traced_tools.errors import ConfigurationError
from traced_tools.messages import ToolCall, Usage
from traced_tools.telemetry.configure import configure
from traced_tools.testing.scripted import ScriptedChatModel

def fail(text: str) -> str:
    "Fail."
    raise ValueError({MARKER!r} + text)

def run():
    turns = [ToolCall(name="fail", arguments={{"text": {MARKER!r}}}), {MARKER!r}]
    model = ScriptedChatModel(turns, usage=Usage(input_tokens=812, output_tokens=93))
    return ChatClient(model, tools=[fail]).prompt({MARKER!r}).call()

def scrape(handle):
    accept = {{"Accept": "application/openmetrics-text"}}
    request = urllib.request.Request("http://" + handle.prometheus_address, headers=accept)
    with urllib.request.urlopen(request, timeout=5) as answer:
        return answer.read().decode()

def logged():
    "Show what is logged as lines of stdout."
    logging.basicConfig(stream=sys.stdout, format="%(levelname)s %(message)s", level=logging.INFO)

def provider_kinds():
    providers = trace.get_tracer_provider(), metrics.get_meter_provider()
    return [type(provider).__module__.startswith("opentelemetry.sdk") for provider in providers]
"""


def in_a_process(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `script` after the prelude, with no other `OTEL_*` variables than `variables`; it must end well."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + script],
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


class Collector:
    """An OTLP collector on loopback, over HTTP, that keeps what it is sent."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.bodies: dict[str, list[bytes]] = defaultdict(list)

    def traces(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies["/v1/traces"]]

    def span_names(self) -> set[str]:
        return {
            span.name
            for request in self.traces()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        }

    def resource(self) -> dict[str, str]:
        attributes = self.traces()[0].resource_spans[0].resource.attributes
        return {attribute.key: attribute.value.string_value for attribute in attributes}

    def metric_names(self) -> set[str]:
        return {
            metric.name
            for body in self.bodies["/v1/metrics"]
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture
def collector() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.bodies[self.path].append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield collector
        server.shutdown()
        thread.join()


@contextmanager
def a_free_port() -> Iterator[int]:
    """A port that nobody listens on, held so that nobody else is given it."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


OUR_SPANS = {"invoke_agent assistant", "iteration", "chat scripted", "execute_tool fail"}
OUR_METRICS = {names.INVOKE_AGENT_DURATION.name, names.TOOL_DECISIONS.name, names.TOKEN_USAGE.name}


def test_spans_and_metrics_reach_the_collector_named_by_url_when_the_process_ends(collector: Collector) -> None:
    in_a_process(f"configure(otlp={collector.url!r}, service_name='checkout'); run()")
    assert set(collector.bodies) == {"/v1/traces", "/v1/metrics"}
    assert collector.span_names() >= OUR_SPANS
    assert collector.metric_names() >= OUR_METRICS
    assert collector.resource()["service.name"] == "checkout"
    assert MARKER.encode() not in b"".join(body for bodies in collector.bodies.values() for body in bodies)


def test_a_collector_named_by_the_environment_is_enough(collector: Collector) -> None:
    in_a_process(
        "configure(); run()",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"{collector.url}/",
        OTEL_SERVICE_NAME="by-name",
        OTEL_RESOURCE_ATTRIBUTES="service.name=by-attribute,team=payments",
    )
    assert collector.span_names() >= OUR_SPANS and collector.metric_names() >= OUR_METRICS
    assert collector.resource()["service.name"] == "by-name"
    assert collector.resource()["team"] == "payments"


def test_a_service_name_in_code_wins_over_the_environments(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=True, service_name='in-code'); run()",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_SERVICE_NAME="by-name",
    )
    assert collector.resource()["service.name"] == "in-code"


def test_otlp_false_sends_nothing_whatever_the_environment_says(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=False, console=True); run()",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_TRACES_EXPORTER="otlp",
    )
    assert not collector.bodies


@pytest.mark.parametrize("otlp", ["None", "True", "os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']"])
def test_a_signal_whose_exporter_is_none_is_not_sent(collector: Collector, otlp: str) -> None:
    in_a_process(
        f"configure(otlp={otlp}); run()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_METRICS_EXPORTER="none"
    )
    assert set(collector.bodies) == {"/v1/traces"}


def test_an_endpoint_for_one_signal_sends_that_signal_alone(collector: Collector) -> None:
    in_a_process("configure(); run()", OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.url}/v1/metrics")
    assert set(collector.bodies) == {"/v1/metrics"}


def test_an_exporter_that_configure_does_not_know_is_named_in_the_log_and_sends_nothing(collector: Collector) -> None:
    done = in_a_process(
        "logged(); configure(); run()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_EXPORTER="zipkin"
    )
    assert "WARNING OTEL_TRACES_EXPORTER names zipkin; configure() knows otlp and none\n" in done.stdout
    assert set(collector.bodies) == {"/v1/metrics"}


def test_the_sampler_of_the_environment_is_used(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=True); run()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_SAMPLER="always_off"
    )
    assert set(collector.bodies) == {"/v1/metrics"}


def test_a_flush_sends_what_is_waiting_and_says_so(collector: Collector) -> None:
    script = "handle = configure(otlp=True); run(); print(handle.force_flush()); os._exit(0)"
    done = in_a_process(
        f"{script.replace('os._exit', 'sys.stdout.flush(); os._exit')}", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url
    )
    assert done.stdout == "True\n"
    assert collector.span_names() >= OUR_SPANS and collector.metric_names() >= OUR_METRICS


def test_spans_and_metrics_go_over_grpc_when_the_environment_says_so() -> None:
    grpc = pytest.importorskip("grpc")
    received: dict[str, list[Any]] = defaultdict(list)

    def service(name: str, request: Any, response: Any) -> Any:
        def export(message: Any, _: Any) -> Any:
            received[name].append(message)
            return response()

        handler = grpc.unary_unary_rpc_method_handler(export, request.FromString, response.SerializeToString)
        return grpc.method_handlers_generic_handler(f"opentelemetry.proto.collector.{name}", {"Export": handler})

    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (
            service("trace.v1.TraceService", ExportTraceServiceRequest, ExportTraceServiceResponse),
            service("metrics.v1.MetricsService", ExportMetricsServiceRequest, ExportMetricsServiceResponse),
        )
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        in_a_process(f"configure(otlp='http://127.0.0.1:{port}'); run()", OTEL_EXPORTER_OTLP_PROTOCOL="grpc")
    finally:
        server.stop(None).wait()
    spans = received["trace.v1.TraceService"][0].resource_spans[0].scope_spans[0].spans
    assert {span.name for span in spans} >= OUR_SPANS
    assert received["metrics.v1.MetricsService"]


def test_a_collector_that_does_not_answer_costs_the_program_nothing() -> None:
    with a_free_port() as port:
        done = in_a_process(
            f"configure(otlp='http://127.0.0.1:{port}'); print(run().content)", OTEL_EXPORTER_OTLP_TIMEOUT="0.2"
        )
    assert done.stdout == f"{MARKER}\n"
    assert "Failed to export" in done.stderr


def test_a_second_call_changes_nothing_says_so_and_returns_the_first_handle() -> None:
    done = in_a_process(
        """
logged()
first = configure(console=True)
provider = trace.get_tracer_provider()
second = configure(console=True, prometheus=0)
print(first is second, provider is trace.get_tracer_provider(), second.prometheus_address)
run()
"""
    )
    assert done.stdout.splitlines() == [
        "WARNING configure() was called before; this call changes nothing and returns the first one's handle",
        "True True None",
    ]
    assert done.stderr.count("invoke_agent") == 1


def test_after_a_shutdown_runs_go_on_and_configure_says_why_it_cannot() -> None:
    done = in_a_process(
        """
with configure(prometheus=0) as handle:
    address = handle.prometheus_address
    run()
handle.shutdown()
print(run().stop_reason, handle.force_flush(0.1))
try:
    urllib.request.urlopen("http://" + address, timeout=5)
except OSError:
    print("not served")
try:
    configure()
except ConfigurationError as error:
    print(error)
"""
    )
    first, second, third = done.stdout.splitlines()
    assert first.startswith("answered") and second == "not served"
    assert third.startswith("configure() was called after shutdown(): OpenTelemetry sets its providers once")
    assert done.stderr == ""


def test_providers_of_the_application_stay_in_force_and_running() -> None:
    done = in_a_process(
        """
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
logged()
trace.set_tracer_provider(TracerProvider())
metrics.set_meter_provider(MeterProvider())
before = trace.get_tracer_provider(), metrics.get_meter_provider()
handle = configure(console=True, prometheus=0)
same = (trace.get_tracer_provider(), metrics.get_meter_provider()) == before
print(same, handle.prometheus_address, handle.force_flush())
handle.shutdown()
print(before[1]._shutdown, configure() is handle)
"""
    )
    lines = done.stdout.splitlines()
    assert [line.split(";")[0] for line in lines[:2]] == [
        "WARNING the application has set OpenTelemetry's provider of traces",
        "WARNING the application has set OpenTelemetry's provider of metrics",
    ]
    assert lines[2] == "True None True"
    assert lines[-1] == "False True"


def test_metrics_are_set_up_beside_a_tracer_provider_of_the_application() -> None:
    done = in_a_process(
        """
from opentelemetry.sdk.trace import TracerProvider
trace.set_tracer_provider(TracerProvider())
with configure(prometheus=0) as handle:
    run()
    print("gen_ai_invoke_agent_duration_seconds_count" in scrape(handle), "trace_id" in scrape(handle))
"""
    )
    assert done.stdout == "True True\n"


def test_a_disabled_sdk_sets_nothing_up_and_runs_go_on(collector: Collector) -> None:
    done = in_a_process(
        f"""
logged()
with configure(otlp={collector.url!r}, prometheus=0, console=True) as handle:
    print(run().stop_reason, provider_kinds(), handle.prometheus_address, handle.force_flush())
""",
        OTEL_SDK_DISABLED=" TRUE ",
    )
    assert done.stdout.splitlines() == [
        "INFO OTEL_SDK_DISABLED is true: configure() sets nothing up",
        "answered [False, False] None True",
    ]
    assert done.stderr == "" and not collector.bodies


def test_a_port_in_use_is_an_error_that_leaves_nothing_set_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = in_a_process(
            f"""
try:
    configure(prometheus={taken.getsockname()[1]}, otlp="http://127.0.0.1:9")
except ConfigurationError as error:
    print(error)
print(provider_kinds())
configure(prometheus=0)
print(provider_kinds())
"""
        )
    problem, before, after = done.stdout.splitlines()
    assert "prometheus: cannot listen on 127.0.0.1" in problem and "in use" in problem
    assert (before, after) == ("[False, False]", "[True, True]")
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("variable", "value", "text"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "OTEL_EXPORTER_OTLP_PROTOCOL must be grpc or http/protobuf"),
        (
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL",
            "x",
            "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL must be grpc or http/protobuf",
        ),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318", "OTEL_EXPORTER_OTLP_ENDPOINT must be an http or https URL"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "the SDK raised ValueError"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", MARKER, "the SDK raised ValueError"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "the SDK raised ValueError"),
    ],
)
def test_a_variable_that_cannot_work_is_an_error_and_leaves_nothing_set_up(
    variable: str, value: str, text: str
) -> None:
    done = in_a_process(
        """
import threading
try:
    configure(otlp=True, prometheus=0)
except ConfigurationError as error:
    print(error)
    print(error.__cause__, error.__suppress_context__ or error.__context__ is None)
print(provider_kinds(), threading.active_count())
""",
        **{variable: value},
    )
    problem, chained, left = done.stdout.splitlines()
    assert text in problem and MARKER not in problem
    assert chained == "None True"
    assert left == "[False, False] 1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "collector",
        "collector:4318",
        "ftp://collector",
        "http://",
        "http://:4318",
        "http://collector:0",
        "http://collector:99999",
        "http://[::1",
        f"ftp://user:{MARKER}@collector",
        " http://collector",
        "http://coll\nector",
    ],
)
def test_a_bad_url_is_an_error_that_says_what_is_accepted_and_does_not_quote_it(url: str) -> None:
    with pytest.raises(ConfigurationError, match="otlp must be an http or https URL") as raised:
        configure(otlp=url)
    assert MARKER not in str(raised.value)
    assert raised.value.__cause__ is None


@pytest.mark.parametrize("url", ["http://c:4318/v1/traces", "http://c:4318/?key=x", "http://c:4318/#x"])
def test_a_url_that_is_more_than_the_base_is_an_error(url: str) -> None:
    with pytest.raises(ConfigurationError, match="otlp must be the collector's base URL"):
        configure(otlp=url)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"service_name": 1}, "service_name must be a str or None, not int"),
        ({"otlp": 4318}, "otlp must be True, False, None or the URL of a collector, not int"),
        ({"prometheus": True}, 'prometheus must be a port number, "host:port" or None, not bool'),
        ({"prometheus": 9464.0}, 'prometheus must be a port number, "host:port" or None, not float'),
        ({"console": 1}, "console must be True or False, not int"),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error_that_names_it(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as raised:
        configure(**arguments)
    assert str(raised.value) == text


def test_a_blank_service_name_and_a_malformed_address_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="service_name must be a non-blank str"):
        configure(service_name=" ")
    with pytest.raises(ConfigurationError, match="prometheus must be a port"):
        configure(prometheus="9464")


def test_errors_in_the_arguments_leave_this_process_as_it_was() -> None:
    with pytest.raises(ConfigurationError):
        configure(otlp="nonsense")
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider()):
        assert "Proxy" in type(provider).__name__


def test_nowhere_to_send_to_is_said_in_the_log() -> None:
    done = in_a_process("logged(); configure()")
    assert done.stdout == "WARNING configure() was told of nowhere to send to: give otlp=, prometheus= or console=\n"


def test_the_console_shows_each_finished_run_as_a_tree_without_content() -> None:
    done = in_a_process("configure(console=True); run(); print('between', file=sys.stderr); run()")
    first, second = done.stderr.split("between\n")
    for block in (first, second):
        assert [" ".join(line.split()[:3]) for line in block.splitlines() if "fail" in line or "invoke" in line] == [
            "invoke_agent assistant " + block.split()[2],
            "│ └─ execute_tool" if "│  └─ execute_tool" in block else "│ ├─ execute_tool",
        ]
        assert "812 -> 93 tokens" in block and "error  failed: ValueError" in block
    assert MARKER not in done.stderr


def test_the_console_waits_for_a_span_of_the_application_around_runs() -> None:
    done = in_a_process(
        """
configure(console=True)
with trace.get_tracer("application").start_as_current_span("job"):
    run(); run()
    print("inside", file=sys.stderr)
"""
    )
    inside, block = done.stderr.split("inside\n")
    assert inside == ""
    assert block.splitlines()[1].startswith("job ")
    assert [line[:16] for line in block.splitlines() if "invoke_agent" in line] == [
        "├─ invoke_agent ",
        "└─ invoke_agent ",
    ]


def test_the_console_shows_a_run_that_continues_a_trace_from_elsewhere() -> None:
    done = in_a_process(
        """
from opentelemetry import context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
configure(console=True)
remote = NonRecordingSpan(SpanContext(1, 2, True, TraceFlags(1)))
context.attach(set_span_in_context(remote))
run()
print("after", file=sys.stderr)
"""
    )
    assert done.stderr.lstrip().startswith("invoke_agent assistant") and done.stderr.endswith("after\n")


def test_a_closed_stderr_does_not_fail_a_run() -> None:
    done = in_a_process(
        "logged(); configure(console=True); sys.stderr.close(); print(run().stop_reason); sys.stderr = None; run()"
    )
    assert done.stdout.splitlines() == ["WARNING telemetry: _print_trees raised ValueError", "answered"]


def test_the_exposition_of_a_process_has_no_content_and_real_traces() -> None:
    done = in_a_process(
        """
from opentelemetry.sdk.trace import SpanProcessor
seen = set()
class Note(SpanProcessor):
    def on_end(self, span):
        seen.add(f"{span.get_span_context().trace_id:032x}")
handle = configure(prometheus="127.0.0.1:0", service_name="checkout")
trace.get_tracer_provider().add_span_processor(Note())
run()
text = scrape(handle)
print(all('trace_id="%s"' % trace_id in text for trace_id in seen), len(seen))
print(text)
"""
    )
    first, *text = done.stdout.splitlines()
    assert first == "True 1"
    assert any(line.startswith("target_info{") and 'service_name="checkout"' in line for line in text)
    assert MARKER not in done.stdout


def test_a_forked_child_ends_without_waiting_for_the_parents_server() -> None:
    done = in_a_process(
        """
import warnings
warnings.simplefilter("ignore")
handle = configure(prometheus=0)
run()
child = os.fork()
if not child:
    sys.exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "trace_id" in scrape(handle))
"""
    )
    assert done.stdout == "0 True\n"


@pytest.fixture
def memory() -> Iterator[InMemoryTelemetry]:
    memory = InMemoryTelemetry()
    yield memory
    memory.shutdown()


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def a_run(options: TelemetryOptions) -> None:
    model = ScriptedChatModel(
        [ToolCall(name="add", arguments={"a": 1, "b": 2}), "3"], usage=Usage(input_tokens=5, output_tokens=2)
    )
    ChatClient(model, tools=[add], telemetry=options).prompt("1 + 2?").call()


def points(found: list[MetricPoint], name: str) -> list[MetricPoint]:
    return [point for point in found if point.name == name]


def test_in_memory_telemetry_keeps_spans_and_leaves_the_process_alone(memory: InMemoryTelemetry) -> None:
    a_run(TelemetryOptions(memory.tracer_provider, memory.meter_provider))
    assert [span.name for span in memory.spans() if "_" in span.name] == [
        "initialize tool_calling",
        "before tool_calling",
        "after tool_calling",
        "execute_tool add",
        "before tool_calling",
        "after tool_calling",
        "finalize tool_calling",
        "advise tool_calling",
        "invoke_agent assistant",
    ]
    assert trace.get_tracer_provider() is not memory.tracer_provider


def test_in_memory_metrics_are_summed_up_over_runs_and_readings(memory: InMemoryTelemetry) -> None:
    options = TelemetryOptions(memory.tracer_provider, memory.meter_provider)
    a_run(options)
    memory.metrics()
    a_run(options)
    for found in (memory.metrics(), memory.metrics()):
        attributes = {names.TOOL_NAME: "add", names.TOOL_DECISION: "allowed"}
        assert points(found, names.TOOL_DECISIONS.name) == [
            MetricPoint(names.TOOL_DECISIONS.name, attributes, "{decision}", value=2)
        ]
        read, written = points(found, names.TOKEN_USAGE.name)
        assert (read.count, read.sum, read.unit, written.count, written.sum) == (4, 20, "{token}", 4, 8)
        assert [point.value for point in points(found, names.RUN_ACTIVE.name)] == [0]


def test_clearing_forgets_what_was_counted_and_keeps_what_is_there_now(memory: InMemoryTelemetry) -> None:
    meter = memory.meter_provider.get_meter("test")
    open_files = meter.create_up_down_counter("open_files")
    open_files.add(2)
    a_run(TelemetryOptions(memory.tracer_provider, memory.meter_provider))
    memory.clear()
    assert memory.spans() == ()
    open_files.add(1)
    found = memory.metrics()
    assert not points(found, names.TOOL_DECISIONS.name)
    assert [point.value for point in points(found, "open_files")] == [3]


def test_what_was_kept_can_be_read_after_a_shutdown() -> None:
    with capture_telemetry() as captured:
        a_run(captured.options)
    assert points(captured.metrics, names.TOOL_DECISIONS.name)
    assert captured.spans


def test_captured_telemetry_is_a_tree_until_it_is_cleared() -> None:
    with capture_telemetry() as captured:
        a_run(captured.options)
        assert [tree.name for tree in captured.tree()] == ["invoke_agent assistant"]
        assert points(captured.metrics, names.INVOKE_AGENT_DURATION.name)[0].count == 1
        captured.clear()
        assert captured.tree() == [] and captured.spans == ()
        assert not points(captured.metrics, names.INVOKE_AGENT_DURATION.name)
