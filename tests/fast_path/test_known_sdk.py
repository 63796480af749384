"""A release of the SDK that the fast path does not know is reported once, and its private names are not imported."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
from typing import Any

import pytest

from traced_tools.fast_path import known_sdk

UNKNOWN = """
import json, logging, sys
from opentelemetry.sdk import version
version.__version__ = "9.0.0"
texts = []
handler = logging.Handler()
handler.emit = lambda record: texts.append((record.levelname, record.getMessage()))
logging.getLogger("traced_tools").addHandler(handler)
"""
RUN = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from traced_tools import ChatClient, TelemetryOptions
from traced_tools.testing import ScriptedChatModel
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
for _ in range(2):
    client = ChatClient(ScriptedChatModel(["hello"]), telemetry=TelemetryOptions(tracer_provider=provider))
    client.prompt("hi").call()
assert len(exporter.get_finished_spans()) >= 2
"""
CONFIGURE = """
from traced_tools import configure
configure(otlp=False).shutdown()
"""
REPORT = """
parts = [name for name in sys.modules if name.startswith("traced_tools.fast_path.")]
print(json.dumps([texts, parts]))
"""


def doctor() -> Any:
    """Run `traced-tools doctor`, whose extra the environment of the oldest SDK does not have."""
    testing = pytest.importorskip("typer.testing")
    app: Any = importlib.import_module("traced_tools.cli.app").app
    return testing.CliRunner().invoke(app, ["doctor"])


@pytest.mark.parametrize("code", [RUN, CONFIGURE, CONFIGURE + RUN])
def test_an_unknown_release_is_logged_once_and_not_used(code: str) -> None:
    process = subprocess.run(
        [sys.executable, "-c", UNKNOWN + code + REPORT], capture_output=True, text=True, check=True, timeout=60
    )
    texts, parts = json.loads(process.stdout.splitlines()[-1])
    about = [(level, text) for level, text in texts if "opentelemetry-sdk 9.0.0" in text]
    assert [level for level, _ in about] == ["WARNING"]
    assert "1.45.0, 1.45.1, 1.45.2" in about[0][1]
    assert parts == ["traced_tools.fast_path.known_sdk"]


def test_a_known_release_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, known_sdk.__name__):
        assert known_sdk.takes_part()
    assert caplog.records == []


def test_the_doctor_says_whether_the_fast_path_knows_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    printed = doctor()
    assert printed.exit_code == 0
    assert f"  fast path  knows opentelemetry-sdk {known_sdk.RELEASE}" in printed.stdout.splitlines()
    monkeypatch.setattr(known_sdk, "KNOWN_VERSIONS", frozenset({"0.1"}))
    printed = doctor()
    assert printed.exit_code == 0
    assert "upgrade traced_tools, or install one of the releases 0.1" in printed.stdout
