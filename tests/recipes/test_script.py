"""The script of docs/recipes/script.md ends with the status and the telemetry that the page promises."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from tests.otel.collector import Collector, accept, collecting
from tests.recipes.page import block, environment, start
from tests.test_docs import weather_service
from tests.waiting import PATIENCE
from traced_tools.observe import names
from traced_tools.testing import Delay, Received, ReplayServer, Reply

pytestmark = pytest.mark.slow  # each test starts a process

QUESTION = "What is the weather in Lisbon?"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "ask.py"
    file.write_text(block("script.md", "script"))
    return file


def ended(
    script: Path, service: Callable[[Received], Reply | Delay], collector: Collector, interrupt: int | None = None
) -> tuple[int, str, str]:
    """Run the script, interrupt it while it waits for the model if `interrupt` is a signal, and return how it ended."""
    is_asked = Event()

    def served(request: Received) -> Reply | Delay:
        is_asked.set()
        return service(request)

    with ReplayServer(served) as server:
        env = environment(
            f"{server.url}/v1",
            OTEL_EXPORTER_OTLP_ENDPOINT=collector.url,
            OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf",
        )
        with start(script, QUESTION, env=env) as process:
            if interrupt is not None:
                assert is_asked.wait(PATIENCE)
                process.send_signal(interrupt)
            output, errors = process.communicate(timeout=PATIENCE)
    return process.returncode, output, errors


def ends_of_runs(collector: Collector, attribute_name: str) -> list[str]:
    """Return an attribute of each run whose span has come."""
    return [
        attribute.value.string_value
        for span in collector.spans()
        if span.name.startswith("invoke_agent")
        for attribute in span.attributes
        if attribute.key == attribute_name
    ]


def test_the_script_prints_the_answer_and_sends_all_signals(script: Path) -> None:
    with collecting(accept) as collector:
        assert ended(script, weather_service, collector) == (0, "It is sunny.\n", "")
    assert "execute_tool get_weather" in collector.span_names()
    assert "traced_tools.tool.decisions" in collector.metric_names()
    assert ends_of_runs(collector, names.LOOP_STOP_REASON) == ["answered"]


def test_an_error_of_the_model_is_one_line_without_the_question(script: Path) -> None:
    with collecting(accept) as collector:
        status, output, errors = ended(script, lambda _: Reply.json({"error": {"message": QUESTION}}, 401), collector)
    assert (status, output, errors.count("\n")) == (1, "", 1)
    assert errors.startswith("ask: ")
    assert QUESTION not in errors
    assert ends_of_runs(collector, names.ERROR_TYPE) == ["traced_tools.errors.AuthenticationError"]


@pytest.mark.parametrize(
    ("number", "status", "error"),
    [(signal.SIGINT, -signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, 143, "SystemExit")],
    ids=["Ctrl+C", "SIGTERM"],
)
def test_a_script_that_is_interrupted_sends_its_telemetry(script: Path, number: int, status: int, error: str) -> None:
    with collecting(accept) as collector:
        code, output, _ = ended(script, lambda _: Delay(math.inf), collector, number)
    assert (code, output) == (status, "")
    assert ends_of_runs(collector, names.ERROR_TYPE) == [error]
