"""Set-up from the file that `OTEL_CONFIG_FILE` names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.markers import MARKER
from tests.otel.collector import Collector, collecting, hang
from tests.otel.processes import in_a_process
from traced_tools.errors import ConfigurationError
from traced_tools.otel.configure import configure

installed = pytest.mark.skipif(find_spec("opentelemetry.configuration") is None, reason="needs the extra")
FILE = """
file_format: "1.0"
resource:
  attributes:
    - {{name: service.name, value: from-the-file}}
tracer_provider:
  processors:
    - batch: {{exporter: {{otlp_http: {{endpoint: {url}/v1/traces}}}}}}
meter_provider:
  readers:
    - periodic: {{exporter: {{otlp_http: {{endpoint: {url}/v1/metrics}}}}}}
logger_provider:
  processors:
    - batch: {{exporter: {{otlp_http: {{endpoint: {url}/v1/logs}}}}}}
"""


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture
def file(tmp_path: Path, collector: Collector) -> str:
    path = tmp_path / "otel.yaml"
    path.write_text(FILE.format(url=collector.url))
    return str(path)


@installed
def test_providers_of_the_file_are_set_up_and_flushed_at_exit(collector: Collector, file: str) -> None:
    done = in_a_process("logged(); configure(); run()", OTEL_CONFIG_FILE=file)
    assert set(collector.bodies) == {"/v1/traces", "/v1/metrics", "/v1/logs"}
    assert collector.resource()["service.name"] == "from-the-file"
    assert done.stdout == done.stderr == ""


@pytest.mark.slow
@installed
def test_the_handle_flushes_and_stops_what_the_file_set_up(collector: Collector, file: str) -> None:
    done = in_a_process(
        "handle = configure(); run(); print(handle.force_flush(), handle.prometheus_address); handle.shutdown(); run()",
        OTEL_CONFIG_FILE=file,
    )
    assert done.stdout == "True None\n"
    assert [span.name for span in collector.spans()].count("invoke_agent assistant") == 1


@pytest.mark.slow
@installed
def test_a_hanging_collector_of_the_file_does_not_delay_the_exit_beyond_the_timeout(
    collector: Collector, file: str
) -> None:
    collector.behave = hang
    done = in_a_process(
        "import time; handle = configure(); run(); began = time.monotonic(); handle.shutdown(0.2); "
        "print(time.monotonic() - began < 1)",
        OTEL_CONFIG_FILE=file,
    )
    assert done.stdout == "True\n"
    assert done.stderr == ""


@pytest.mark.slow
@installed
def test_content_is_captured_beside_the_file_when_that_is_asked_for(collector: Collector, file: str) -> None:
    in_a_process("configure(capture='SPAN_ONLY'); run()", OTEL_CONFIG_FILE=file)
    assert MARKER.encode() in b"".join(collector.bodies["/v1/traces"])


@pytest.mark.slow
@installed
def test_providers_of_the_application_stay_beside_the_file(collector: Collector, file: str) -> None:
    done = in_a_process(
        """
from opentelemetry.sdk.trace import TracerProvider
logged()
trace.set_tracer_provider(TracerProvider())
configure()
run()
""",
        OTEL_CONFIG_FILE=file,
    )
    assert done.stdout == (
        "WARNING the application has set its own OpenTelemetry provider for traces; configure() keeps it and adds "
        "nothing\n"
    )
    assert set(collector.bodies) == {"/v1/metrics", "/v1/logs"}


@pytest.mark.parametrize(
    "arguments", [{"otlp": True}, {"otlp": False}, {"prometheus": 0}, {"console": True}, {"service_name": "x"}]
)
def test_arguments_together_with_the_file_are_refused(
    arguments: dict[str, Any], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_CONFIG_FILE", file)
    with pytest.raises(ConfigurationError) as raised:
        configure(**arguments)
    assert str(raised.value) == (
        "OTEL_CONFIG_FILE is set, so service_name, otlp, prometheus and console cannot be passed; configure them in "
        "the file, or unset the variable"
    )


@pytest.mark.slow
def test_a_disabled_sdk_does_not_even_read_the_file(file: str) -> None:
    done = in_a_process(
        "configure(otlp=True); print(provider_kinds())", OTEL_CONFIG_FILE=file + MARKER, OTEL_SDK_DISABLED="true"
    )
    assert done.stdout == "[False, False]\n"


def test_without_the_package_the_extra_is_named(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.configuration", None)
    monkeypatch.setenv("OTEL_CONFIG_FILE", file)
    with pytest.raises(ConfigurationError, match="OTEL_CONFIG_FILE needs an extra: pip install") as raised:
        configure()
    assert "traced_tools[file-configuration]" in str(raised.value)


@installed
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{MARKER}: [", "ConfigurationError"),
        (f"file_format: '9.0'\nx: {MARKER}", "ConfigurationError"),
        (f"file_format: '1.0'\ntracer_provider: {{processors: {MARKER}}}", "at $.tracer_provider.processors"),
        ("", "ConfigurationError"),
        (None, "ConfigurationError"),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_does_not_quote_it(
    text: str | None, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"{MARKER}.yaml"
    if text is not None:
        path.write_text(text)
    monkeypatch.setenv("OTEL_CONFIG_FILE", str(path))
    with pytest.raises(ConfigurationError) as raised:
        configure()
    problem = str(raised.value)
    assert problem.startswith("OTEL_CONFIG_FILE: the file cannot be used: opentelemetry.configuration")
    assert said in problem and MARKER not in problem
    assert raised.value.__cause__ is None and raised.value.__context__ is None
