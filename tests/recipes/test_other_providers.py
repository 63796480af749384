"""The programs of the pages about opentelemetry-instrument and logfire trace each step once, in the pages' trees."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.judges.instrumented import python
from tests.judges.programs import ROOT
from tests.otel.collector import Collector, accept, collecting
from tests.recipes.page import block, environment, start
from tests.test_docs import weather_service
from tests.waiting import PATIENCE
from traced_tools.observe import names
from traced_tools.testing import Received, ReplayServer, Reply

pytestmark = pytest.mark.slow  # each test starts a process


def service(request: Received) -> Reply:
    """Answer as the model, and as the service that a tool asks."""
    return Reply(b"sunny in Lisbon") if request.method == "GET" else weather_service(request)


def telemetry_of(program: str, folder: Path, *, instrumented: bool = False, **variables: str) -> tuple[Collector, str]:
    """Run a program in the environment of the instrumentations; return what a collector got, and what it logged."""
    file = folder / "agent.py"
    file.write_text(program)
    with collecting(accept) as collector, ReplayServer(service) as server:
        env = environment(
            f"{server.url}/v1",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
            LOGFIRE_SEND_TO_LOGFIRE="false",
            LOGFIRE_CONSOLE="false",
            PYTHONPATH=str(ROOT),
            WEATHER_URL=server.url,
            **variables,
        )
        with start(file, env=env, command=python(instrumented=instrumented)) as process:
            output, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, output) == (0, "It is sunny.\n"), errors
    return collector, errors


def edges(collector: Collector) -> Counter[tuple[str | None, str]]:
    """Return how often a span of one name is the parent of a span of another."""
    named = {span.span_id: span.name for span in collector.spans()}
    return Counter((named.get(span.parent_span_id), span.name) for span in collector.spans())


def assert_all_signals_came(collector: Collector) -> None:
    assert names.TOOL_INTENT_EVENT.name in collector.event_names()
    assert names.TOOL_DECISIONS.name in collector.metric_names()


@pytest.mark.parametrize("also", ["", "import traced_tools\ntraced_tools.configure(service_name='another')\n"])
def test_beside_opentelemetry_instrument_each_step_has_one_span(tmp_path: Path, also: str) -> None:
    program = also + block("opentelemetry-instrument.md", "instrumented")
    collector, errors = telemetry_of(program, tmp_path, instrumented=True, OTEL_SERVICE_NAME="travel-agent")
    spans = edges(collector)
    assert spans[None, "invoke_agent travel"] == 1
    assert spans["iteration", "chat gpt-5-mini"] == 2
    assert spans["chat gpt-5-mini", "POST"] == 2
    assert spans["execute_tool get_weather", "GET"] == 1
    assert sum(count for (_, name), count in spans.items() if name in ("POST", "GET")) == 3
    assert sum(count for (_, name), count in spans.items() if name.startswith("chat")) == 2
    assert_all_signals_came(collector)
    assert collector.resource()["service.name"] == "travel-agent"
    assert errors.count("configure() keeps it and adds nothing") == (3 if also else 0)


def test_the_spans_of_http_clients_can_be_left_out(tmp_path: Path) -> None:
    program = block("opentelemetry-instrument.md", "instrumented")
    variables = {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "httpx"}
    collector, _ = telemetry_of(program, tmp_path, instrumented=True, **variables)
    assert {"POST", "GET"}.isdisjoint(collector.span_names())
    assert "chat gpt-5-mini" in collector.span_names()


def test_logfire_sends_the_run_in_its_own_trace_and_histograms_with_buckets(tmp_path: Path) -> None:
    collector, _ = telemetry_of(block("logfire.md", "logfire"), tmp_path)
    spans = edges(collector)
    assert spans[None, "a question"] == spans["a question", "invoke_agent travel"] == 1
    assert spans["iteration", "chat gpt-5-mini"] == 2
    assert spans["execute_tool get_weather", "look up {city}"] == 1
    assert_all_signals_came(collector)
    [duration] = [metric for metric in collector.metrics() if metric.name == names.INVOKE_AGENT_DURATION.name]
    assert duration.WhichOneof("data") == "histogram"
    assert collector.resource()["service.name"] == "travel-agent"


def test_logfires_instrumentation_of_httpx_adds_each_request_once(tmp_path: Path) -> None:
    program = block("logfire.md", "logfire").replace("\n\n\n@tool", "\nlogfire.instrument_httpx()\n\n\n@tool")
    spans = edges(telemetry_of(program, tmp_path)[0])
    assert spans["chat gpt-5-mini", "POST"] == 2


def test_configure_after_logfire_keeps_logfires_providers(tmp_path: Path) -> None:
    program = block("logfire.md", "logfire").replace(
        "\n\n\n@tool", "\nimport traced_tools\ntraced_tools.configure()\n@tool"
    )
    collector, errors = telemetry_of(program, tmp_path)
    assert edges(collector)["a question", "invoke_agent travel"] == 1
    assert errors.count("configure() keeps it and adds nothing") == 3
