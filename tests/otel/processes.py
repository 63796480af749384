"""Scripts that run in their own processes, because OpenTelemetry accepts its providers once per process."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.markers import MARKER

PRELUDE = f"""
import logging, os, sys, urllib.request
from opentelemetry import metrics, trace
from traced_tools.client import ChatClient
from traced_tools.errors import ConfigurationError
from traced_tools.core.messages import ToolCall, Usage
from traced_tools.otel.configure import configure
from traced_tools.testing.scripted import ScriptedChatModel

logging.getLogger("traced_tools.tools").disabled = True  # the tool fails on purpose

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
