"""The cells of docs/recipes/jupyter.md show in a real kernel what the page says.

The environment is `.venv-notebook` in the repository, or that of the Python that TRACED_TOOLS_NOTEBOOK names.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.judges.programs import ROOT, missing
from tests.recipes.page import environment
from tests.test_docs import weather_service
from traced_tools.testing import ReplayServer

pytestmark = pytest.mark.slow  # each test starts a kernel

PYTHON = Path(os.environ.get("TRACED_TOOLS_NOTEBOOK") or ROOT / ".venv-notebook/bin/python")
PAGE = ROOT / "docs" / "recipes" / "jupyter.md"
CELLS = re.findall(r"^```python cell\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def shown_by(cells: list[str], folder: Path) -> list[dict[str, str]]:
    """Run cells in a kernel whose files are in a folder of their own, and return what each shows."""
    if not PYTHON.is_file():
        missing(
            "Jupyter is not here: python3 -m venv .venv-notebook && .venv-notebook/bin/pip install -r "
            "tests/judges/requirements-notebook.txt, or TRACED_TOOLS_NOTEBOOK=/path/to/its/python"
        )
    with ReplayServer(weather_service) as server:
        done = subprocess.run(
            [PYTHON, ROOT / "tests" / "recipes" / "notebook.py"],
            input=json.dumps(cells),
            cwd=folder,
            env=environment(f"{server.url}/v1", PYTHONPATH=str(ROOT), HOME=str(folder), IPYTHONDIR=str(folder)),
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    outputs: list[dict[str, str]] = json.loads(done.stdout.splitlines()[-1])
    return outputs


def test_the_cells_show_answers_streams_and_traces(tmp_path: Path) -> None:
    configured, _, awaited, streamed, blocking, flushed = shown_by(CELLS, tmp_path)
    assert configured == {"value": "", "stdout": "", "stderr": ""}
    assert awaited["value"] == "'It is sunny.'"
    assert "invoke_agent assistant" in awaited["stderr"]
    assert streamed["stdout"] == "It is sunny."
    assert streamed["value"].startswith("Usage(")
    assert "decision='allowed'" in blocking["value"]
    assert "blocks the event loop" not in blocking["stderr"]
    assert flushed["value"] == "True"


def test_the_cell_with_configure_can_run_again(tmp_path: Path) -> None:
    again = CELLS[0] + "telemetry is first"
    outputs = shown_by([CELLS[0], "first = telemetry", again, *CELLS[1:3]], tmp_path)
    assert outputs[2]["value"] == "True"
    assert "configure() was called before" in outputs[2]["stderr"]
    assert outputs[4]["value"] == "'It is sunny.'"
    assert outputs[4]["stderr"].count("invoke_agent assistant") == 1


INTERRUPTED = """
import asyncio, os, signal

from traced_tools import ToolCall
from traced_tools.testing import ScriptedChatModel, capture_telemetry


@tool
async def interrupt() -> str:
    \"""Interrupt the kernel, and wait for it.\"""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()


with capture_telemetry() as captured:
    stuck = ChatClient(ScriptedChatModel([ToolCall("interrupt", {})]), tools=[interrupt], telemetry=captured.options)
    try:
        CALL
    except BaseException as error:
        print(type(error).__name__)
[run] = [span for span in captured.spans if span.name == "invoke_agent assistant"]
dict(run.attributes)["traced_tools.loop.stop_reason"]
"""


@pytest.mark.parametrize(
    ("call", "error", "stop_reason"),
    [
        ('await stuck.prompt("?").acall()', "CancelledError", "cancelled"),
        ('stuck.prompt("?").call()', "KeyboardInterrupt", "error"),
    ],
    ids=["await", "call"],
)
def test_interrupting_a_cell_ends_its_run(tmp_path: Path, call: str, error: str, stop_reason: str) -> None:
    outputs = shown_by([*CELLS[:2], INTERRUPTED.replace("CALL", call)], tmp_path)
    assert outputs[-1]["stdout"].splitlines() == [error]
    assert outputs[-1]["value"] == repr(stop_reason)
