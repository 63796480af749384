"""`configure`, in its own process for each test, because OpenTelemetry accepts its providers once per process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import _logs, metrics, trace

from tests.markers import MARKER
from tests.otel.collector import Collector, collecting
from tests.otel.processes import in_a_process
from traced_tools.errors import ConfigurationError
from traced_tools.observe import names
from traced_tools.observe.content import capture_in_force
from traced_tools.otel.configure import configure


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


def assert_this_process_is_as_it_was() -> None:
    for provider in (trace.get_tracer_provider(), metrics.get_meter_provider(), _logs.get_logger_provider()):
        assert "Proxy" in type(provider).__name__


OUR_SPANS = {"invoke_agent assistant", "iteration", "chat scripted", "execute_tool fail"}
OUR_METRICS = {names.INVOKE_AGENT_DURATION.name, names.TOOL_DECISIONS.name, names.INPUT_TOKENS_USED.name}


def test_spans_metrics_and_events_reach_the_collector_named_by_url_when_the_process_ends(collector: Collector) -> None:
    in_a_process(f"configure(otlp={collector.url!r}, service_name='checkout'); run()")
    assert set(collector.bodies) == {"/v1/traces", "/v1/metrics", "/v1/logs"}
    assert collector.span_names() >= OUR_SPANS
    assert names.LOOP_STOP_EVENT.name in collector.event_names()
    assert collector.metric_names() >= OUR_METRICS
    assert collector.resource()["service.name"] == "checkout"
    assert MARKER.encode() not in b"".join(body for bodies in collector.bodies.values() for body in bodies)


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_service_name_in_code_wins_over_the_environments(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=True, service_name='in-code'); run()",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_SERVICE_NAME="by-name",
    )
    assert collector.resource()["service.name"] == "in-code"


@pytest.mark.slow
def test_otlp_false_sends_nothing_whatever_the_environment_says(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=False, console=True); run()",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
        OTEL_TRACES_EXPORTER="otlp",
    )
    assert not collector.bodies


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signal", "otlp"),
    [("metrics", "None"), ("traces", "True"), ("logs", "os.environ['OTEL_EXPORTER_OTLP_ENDPOINT']")],
)
def test_a_signal_whose_exporter_is_none_is_not_sent(collector: Collector, otlp: str, signal: str) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, f"OTEL_{signal.upper()}_EXPORTER": "none"}
    in_a_process(f"configure(otlp={otlp}); run()", **variables)
    assert set(collector.bodies) == {"/v1/traces", "/v1/metrics", "/v1/logs"} - {f"/v1/{signal}"}


@pytest.mark.slow
def test_no_logger_provider_is_set_when_no_logs_are_sent() -> None:
    script = "configure(prometheus=0, otlp=OTLP); from opentelemetry import _logs; print(_logs.get_logger_provider())"
    done = in_a_process(script.replace("OTLP", "True"), OTEL_LOGS_EXPORTER="none", OTEL_EXPORTER_OTLP_TIMEOUT="0.1")
    assert "ProxyLoggerProvider" in done.stdout
    assert "ProxyLoggerProvider" in in_a_process(script.replace("OTLP", "None")).stdout


@pytest.mark.slow
def test_a_logger_provider_of_the_application_stays(collector: Collector) -> None:
    done = in_a_process(
        f"""
from opentelemetry import _logs
from opentelemetry.sdk._logs import LoggerProvider
logged()
_logs.set_logger_provider(LoggerProvider())
before = _logs.get_logger_provider()
configure(otlp={collector.url!r})
run()
print(_logs.get_logger_provider() is before)
"""
    )
    assert done.stdout.splitlines() == [
        "WARNING the application has set its own OpenTelemetry provider for logs; configure() keeps it and adds "
        "nothing",
        "True",
    ]
    assert set(collector.bodies) == {"/v1/traces", "/v1/metrics"}


@pytest.mark.slow
def test_python_logging_is_not_sent(collector: Collector) -> None:
    in_a_process(f"configure(otlp={collector.url!r}); logging.getLogger('x').error({MARKER!r}); run()")
    assert MARKER.encode() not in b"".join(collector.bodies["/v1/logs"])


@pytest.mark.slow
def test_an_endpoint_for_one_signal_sends_that_signal_alone(collector: Collector) -> None:
    in_a_process("configure(); run()", OTEL_EXPORTER_OTLP_METRICS_ENDPOINT=f"{collector.url}/v1/metrics")
    assert set(collector.bodies) == {"/v1/metrics"}


@pytest.mark.slow
def test_an_exporter_that_configure_does_not_know_is_named_in_the_log_and_sends_nothing(collector: Collector) -> None:
    done = in_a_process(
        "logged(); configure(); run()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_EXPORTER="zipkin"
    )
    assert (
        "WARNING OTEL_TRACES_EXPORTER contains zipkin, which configure() ignores; it supports otlp and none\n"
        in done.stdout
    )
    assert set(collector.bodies) == {"/v1/metrics", "/v1/logs"}


@pytest.mark.slow
def test_the_sampler_of_the_environment_is_used(collector: Collector) -> None:
    in_a_process(
        "configure(otlp=True); run()", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_TRACES_SAMPLER="always_off"
    )
    assert set(collector.bodies) == {"/v1/metrics", "/v1/logs"}


@pytest.mark.slow
def test_a_flush_sends_pending_items_and_returns_true(collector: Collector) -> None:
    script = "handle = configure(otlp=True); run(); print(handle.force_flush()); os._exit(0)"
    done = in_a_process(
        f"{script.replace('os._exit', 'sys.stdout.flush(); os._exit')}", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url
    )
    assert done.stdout == "True\n"
    assert collector.span_names() >= OUR_SPANS and collector.metric_names() >= OUR_METRICS


def test_a_second_call_changes_nothing_and_returns_the_first_handle_with_a_warning() -> None:
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
        "WARNING configure() was called before; this call changes nothing and returns the first call's handle",
        "True True None",
    ]
    assert done.stderr.count("invoke_agent") == 1


@pytest.mark.slow
def test_after_a_shutdown_runs_go_on_and_configure_raises() -> None:
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
    assert third.startswith("configure() was called after shutdown(): OpenTelemetry accepts its providers only once")
    assert done.stderr == ""


def test_providers_of_the_application_stay_in_use() -> None:
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
        "WARNING the application has set its own OpenTelemetry provider for traces",
        "WARNING the application has set its own OpenTelemetry provider for metrics",
    ]
    assert lines[2] == "True None True"
    assert lines[-1] == "False True"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_disabled_sdk_sets_up_nothing_and_runs_go_on(collector: Collector) -> None:
    done = in_a_process(
        f"""
logged()
with configure(otlp={collector.url!r}, prometheus=0, console=True) as handle:
    print(run().stop_reason, provider_kinds(), handle.prometheus_address, handle.force_flush())
""",
        OTEL_SDK_DISABLED=" TRUE ",
    )
    assert done.stdout.splitlines() == [
        "INFO OTEL_SDK_DISABLED is true: configure() sets up nothing",
        "answered [False, False] None True",
    ]
    assert done.stderr == "" and not collector.bodies


@pytest.mark.slow
def test_with_a_disabled_sdk_configure_may_be_called_after_a_shutdown() -> None:
    done = in_a_process(
        """
for _ in range(2):
    with configure(prometheus=0):
        print(run().stop_reason)
""",
        OTEL_SDK_DISABLED="true",
    )
    assert done.stdout.splitlines() == ["answered", "answered"]


@pytest.mark.slow
def test_a_port_in_use_is_an_error_that_leaves_nothing_set_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = in_a_process(
            f"""
import threading
try:
    configure(prometheus={taken.getsockname()[1]}, otlp="http://127.0.0.1:9")
except ConfigurationError as error:
    print(error)
print(provider_kinds(), threading.active_count())
configure(prometheus=0)
print(provider_kinds())
"""
        )
    problem, before, after = done.stdout.splitlines()
    assert "prometheus: cannot listen on 127.0.0.1" in problem and "in use" in problem
    assert (before, after) == ("[False, False] 1", "[True, True]")
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
        ("OTEL_METRIC_EXPORT_INTERVAL", "-1", "OTEL_METRIC_EXPORT_INTERVAL must be a number of milliseconds above 0"),
        ("OTEL_METRICS_EXEMPLAR_FILTER", MARKER, "OTEL_METRICS_EXEMPLAR_FILTER must be one of always_on"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "-1", "OTEL_BSP_MAX_QUEUE_SIZE must be a whole number above 0"),
        ("OTEL_BLRP_SCHEDULE_DELAY", MARKER, "OTEL_BLRP_SCHEDULE_DELAY must be a whole number above 0"),
        ("OTEL_TRACES_SAMPLER", MARKER, "OTEL_TRACES_SAMPLER must be one of always_on"),
        ("OTEL_EXPORTER_OTLP_LOGS_HEADERS", MARKER, "OTEL_EXPORTER_OTLP_LOGS_HEADERS must be name=value pairs"),
        ("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", MARKER, "the SDK raised RuntimeError"),
        ("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", MARKER, "CAPTURE_MESSAGE_CONTENT must be one of"),
    ],
)
def test_an_invalid_variable_is_an_error_and_leaves_nothing_set_up(
    variable: str, value: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    threads = set(threading.enumerate())
    with pytest.raises(ConfigurationError) as raised:
        configure(otlp=True, prometheus=0, capture="SPAN_ONLY")
    assert text in str(raised.value) and MARKER not in str(raised.value)
    assert raised.value.__cause__ is None and (raised.value.__suppress_context__ or raised.value.__context__ is None)
    assert capture_in_force(None) is None
    assert_this_process_is_as_it_was()
    assert set(threading.enumerate()) <= threads


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
        (
            {"prometheus": 1.5},
            'prometheus must be True, a port number, "host:port", a CollectorRegistry or None, not float',
        ),
        (
            {"prometheus": 9464.0},
            'prometheus must be True, a port number, "host:port", a CollectorRegistry or None, not float',
        ),
        ({"console": 1}, "console must be True or False, not int"),
        ({"capture": True}, "capture must be a ContentCapture, one of its modes, or None, not bool"),
    ],
)
def test_an_argument_of_the_wrong_type_is_an_error_that_names_it(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(TypeError) as raised:
        configure(**arguments)
    assert str(raised.value) == text


def test_a_blank_service_name_and_a_malformed_address_are_errors() -> None:
    with pytest.raises(ConfigurationError, match="service_name must be a non-blank str"):
        configure(service_name=" ")
    with pytest.raises(ConfigurationError, match="prometheus must be True, a port"):
        configure(prometheus="9464")


def test_an_unknown_capture_mode_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="capture must be one of NO_CONTENT") as raised:
        configure(capture=MARKER)
    assert MARKER not in str(raised.value)


@pytest.mark.slow
def test_configure_capture_applies_to_the_process(collector: Collector) -> None:
    in_a_process(f"configure(otlp={collector.url!r}, capture='SPAN_ONLY'); run()")
    assert MARKER.encode() in b"".join(collector.bodies["/v1/traces"])
    assert MARKER.encode() not in b"".join(collector.bodies["/v1/logs"])


def test_errors_in_the_arguments_leave_this_process_as_it_was() -> None:
    with pytest.raises(ConfigurationError):
        configure(otlp="nonsense")
    assert_this_process_is_as_it_was()


@pytest.mark.slow
def test_a_set_up_that_sends_nowhere_is_logged() -> None:
    done = in_a_process("logged(); configure()")
    assert done.stdout == "WARNING configure() sends telemetry nowhere: pass otlp=, prometheus= or console=\n"


@pytest.mark.slow
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
