"""Every `OTEL_*` variable keeps its meaning, and an invalid one is an error that does not quote it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import certifi
import pytest
import trustme
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from tests.markers import MARKER
from tests.otel.collector import collecting
from tests.otel.pipelines import pipelines
from traced_tools.errors import ConfigurationError
from traced_tools.otel import variables
from traced_tools.otel.otlp import SIGNALS

POSITIVE = ["0", "-1", "1.5", MARKER, "NaN", "inf"]
BATCHING = ["SCHEDULE_DELAY", "MAX_QUEUE_SIZE", "MAX_EXPORT_BATCH_SIZE", "EXPORT_TIMEOUT"]


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)


def check_all(*, is_grpc: bool = False) -> None:
    variables.check_providers()
    variables.check_metrics()
    for prefix in ("OTEL_BSP", "OTEL_BLRP"):
        variables.check_batches(prefix)
    for signal in SIGNALS:
        variables.check_otlp(signal.name, is_grpc=is_grpc)


def assert_refused(variable: str, *, is_grpc: bool = False) -> None:
    with pytest.raises(ConfigurationError, match=f"^{variable} ") as raised:
        check_all(is_grpc=is_grpc)
    assert MARKER not in str(raised.value)
    assert raised.value.__cause__ is None


def test_unset_variables_are_valid() -> None:
    check_all()
    check_all(is_grpc=True)


@pytest.mark.parametrize("value", POSITIVE)
@pytest.mark.parametrize("setting", BATCHING)
@pytest.mark.parametrize("prefix", ["OTEL_BSP", "OTEL_BLRP"])
def test_batch_variables_must_be_positive_whole_numbers(
    prefix: str, setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{prefix}_{setting}", value)
    assert_refused(f"{prefix}_{setting}")


@pytest.mark.parametrize("prefix", ["OTEL_BSP", "OTEL_BLRP"])
def test_a_batch_is_no_larger_than_the_queue(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"{prefix}_MAX_QUEUE_SIZE", "100")
    assert_refused(f"{prefix}_MAX_EXPORT_BATCH_SIZE")
    monkeypatch.setenv(f"{prefix}_MAX_EXPORT_BATCH_SIZE", " 100 ")
    check_all()


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("OTEL_METRIC_EXPORT_INTERVAL", ["0", "-1", MARKER, "nan"]),
        ("OTEL_METRIC_EXPORT_TIMEOUT", ["0", "-1", MARKER, "nan"]),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", [MARKER, "deltas"]),
        ("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", [MARKER]),
        ("OTEL_TRACES_SAMPLER", [MARKER, "always"]),
        ("OTEL_METRICS_EXEMPLAR_FILTER", [MARKER, ""]),
        ("OTEL_RESOURCE_ATTRIBUTES", [MARKER, f"a=b,{MARKER}"]),
        ("OTEL_ATTRIBUTE_COUNT_LIMIT", ["-1", "1.5", MARKER]),
        ("OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", ["-1", MARKER]),
        ("OTEL_LOGRECORD_ATTRIBUTE_COUNT_LIMIT", ["-1", MARKER]),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", ["0", "-1", "inf", "nan", MARKER]),
        ("OTEL_EXPORTER_OTLP_LOGS_TIMEOUT", ["0", MARKER]),
        ("OTEL_EXPORTER_OTLP_HEADERS", [MARKER, f"a b={MARKER}", f"a={MARKER}%0d%0ab", f"={MARKER}", f"a=b,{MARKER}"]),
        ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", [MARKER]),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", [MARKER, "zstd"]),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", [f"/nowhere/{MARKER}", "/", f"\0{MARKER}"]),
        ("OTEL_EXPORTER_OTLP_METRICS_CLIENT_KEY", [f"/nowhere/{MARKER}"]),
    ],
)
def test_an_invalid_value_is_refused(variable: str, values: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for value in values:
        if "\0" not in value:  # the system takes none
            monkeypatch.setenv(variable, value)
            assert_refused(variable)


@pytest.mark.parametrize("value", ["1.5", "-0.1", MARKER])
def test_a_sampling_ratio_is_from_0_to_1(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", value)
    check_all()  # nothing reads it
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_TraceIdRatio")
    assert_refused("OTEL_TRACES_SAMPLER_ARG")


@pytest.mark.parametrize("setting", ["TIMEOUT", "COMPRESSION"])
@pytest.mark.parametrize("prefix", ["OTEL_EXPORTER_OTLP", "OTEL_EXPORTER_OTLP_LOGS"])
def test_an_empty_variable_that_grpc_cannot_read_is_refused(
    prefix: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{prefix}_{setting}", "")
    check_all()
    assert_refused(f"{prefix}_{setting}", is_grpc=True)


def test_grpc_supports_only_gzip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "deflate")
    check_all()
    assert_refused("OTEL_EXPORTER_OTLP_COMPRESSION", is_grpc=True)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "inf"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", ""),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Basic%20abc==, x-team = payments and more ,"),
        ("OTEL_EXPORTER_OTLP_COMPRESSION", "GZIP"),
        ("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta"),
        ("OTEL_TRACES_SAMPLER", "Always_On"),
        ("OTEL_SPAN_LINK_COUNT_LIMIT", ""),
        ("OTEL_BSP_SCHEDULE_DELAY", ""),
        ("OTEL_METRIC_EXPORT_INTERVAL", " "),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", __file__),
    ],
)
def test_a_valid_value_is_accepted(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, value)
    check_all()


def test_headers_and_compression_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=every%20signal")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "x-key=traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    with collecting() as collector, pipelines(collector.url) as sending:
        sending.options.logger_provider.get_logger("test").emit(event_name="x")  # type: ignore[union-attr]
        sending.options.tracer_provider.get_tracer("test").start_span("x").end()  # type: ignore[union-attr]
        assert sending.handle.force_flush()
        keys = {path: headers["x-key"] for path, headers in collector.headers.items()}
        assert keys == {"/v1/traces": "traces", "/v1/metrics": "every signal", "/v1/logs": "every signal"}
        assert {headers["accept-encoding"] for headers in collector.headers.values()} == {"identity"}
        assert {headers["content-encoding"] for headers in collector.headers.values()} == {"gzip"}


@pytest.mark.parametrize(("preference", "temporality"), [("delta", "DELTA"), ("cumulative", "CUMULATIVE")])
def test_the_preferred_temporality_is_used(preference: str, temporality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", preference)
    with collecting() as collector, pipelines(collector.url) as sending:
        sending.options.meter_provider.get_meter("test").create_counter("count").add(1)  # type: ignore[union-attr]
        assert sending.handle.force_flush()
        (count,) = [metric for metric in collector.metrics() if metric.name == "count"]
    wanted = AggregationTemporality.Value(f"AGGREGATION_TEMPORALITY_{temporality}")
    assert count.sum.aggregation_temporality == wanted


@pytest.mark.parametrize(("prefix", "path"), [("OTEL_BSP", "/v1/traces"), ("OTEL_BLRP", "/v1/logs")])
def test_batch_sizes_and_delays_are_read_from_the_environment(
    prefix: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"{prefix}_MAX_EXPORT_BATCH_SIZE", "3")
    monkeypatch.setenv(f"{prefix}_SCHEDULE_DELAY", "20")
    with collecting() as collector, pipelines(collector.url) as sending:
        for _ in range(7):
            if path == "/v1/traces":
                sending.options.tracer_provider.get_tracer("test").start_span("x").end()  # type: ignore[union-attr]
            else:
                sending.options.logger_provider.get_logger("test").emit(event_name="x")  # type: ignore[union-attr]
        collector.wait_for(path, 3)
        sizes = [size_of(request) for request in collector.requests(path)]
    assert max(sizes) == 3 and sum(sizes) == 7


def size_of(request: Any) -> int:
    """How many items a request has."""
    resources = getattr(request, "resource_spans", None) or request.resource_logs
    scopes = [
        scope for resource in resources for scope in getattr(resource, "scope_spans", None) or resource.scope_logs
    ]
    return sum(len(getattr(scope, "spans", None) or scope.log_records) for scope in scopes)


def test_the_metric_export_interval_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    with collecting() as collector, pipelines(collector.url):
        collector.wait_for("/v1/metrics", 3)


def test_a_certificate_that_the_environment_names_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    with collecting(tls=context) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.5")
        with pipelines(collector.url) as sending:
            sending.options.tracer_provider.get_tracer("test").start_span("x").end()  # type: ignore[union-attr]
            assert not sending.handle.force_flush()
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_TIMEOUT")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / "ca.pem"))
        with pipelines(collector.url) as sending:
            sending.options.tracer_provider.get_tracer("test").start_span("y").end()  # type: ignore[union-attr]
            assert sending.handle.force_flush()
        assert collector.span_names() == {"y"}
