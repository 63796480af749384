"""Programs that OpenInference, OpenLLMetry and logfire instrument, in an environment of their own.

`tests/judges/requirements-dialects.txt` pins it. The environment is `.venv-dialects` in the repository, or that of the
Python that TRACED_TOOLS_DIALECTS names.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from tests.judges.programs import ROOT, environment, missing
from tests.markers import MARKER
from traced_tools.testing import ReplayServer, Reply
from traced_tools.testing.server import Received

DIALECTS = ("openinference", "openllmetry", "logfire")
_PYTHON = Path(os.environ.get("TRACED_TOOLS_DIALECTS") or ROOT / ".venv-dialects/bin/python")
_TO_HAVE_IT = (
    "python3 -m venv .venv-dialects && .venv-dialects/bin/pip install -r tests/judges/requirements-dialects.txt, or "
    "TRACED_TOOLS_DIALECTS=/path/to/its/python"
)
_USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 8,
    "total_tokens": 48,
    "prompt_tokens_details": {"cached_tokens": 16},
    "completion_tokens_details": {"reasoning_tokens": 3},
}


class InstrumentedProgram:
    """A process that asks a model, or runs an agent, as often as it is told."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def play(self) -> None:
        """Have everything run once, and return when the spans are sent."""
        commands, answers = self._process.stdin, self._process.stdout
        assert commands is not None
        assert answers is not None
        commands.write("play\n")
        commands.flush()
        assert answers.readline() == "sent\n", "the process has ended"


@contextmanager
def instrumented_programs(dialect: str, otlp: str, model: str, log: IO[str]) -> Iterator[list[InstrumentedProgram]]:
    """Start the programs of a dialect, a client and an agent, as a service with its name.

    Args:
        dialect: one of `DIALECTS`.
        otlp: the address to which spans and metrics are sent.
        model: the address of a server that answers as `answer_as_model` does.
        log: gets what the programs log.
    """
    if not _PYTHON.is_file():
        missing(f"the other instrumentations are not here: {_TO_HAVE_IT}")
    variables = {
        "PYTHONPATH": str(ROOT),
        "OPENAI_BASE_URL": f"{model}/v1",
        "OPENAI_API_KEY": "none",
        "LANGSMITH_TRACING": "false",
        "OTEL_SERVICE_NAME": dialect,
    }
    with ExitStack() as stack:
        programs = []
        for part in ("client", "agent"):
            process = subprocess.Popen(
                [str(_PYTHON), "-m", "tests.judges.dialects_app", dialect, part, otlp, MARKER],
                cwd=ROOT,
                env=environment(variables),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            programs.append(InstrumentedProgram(process))
        yield programs


@contextmanager
def model_server() -> Iterator[ReplayServer]:
    """Start a server that answers as a model."""
    with ReplayServer(answer_as_model) as server:
        yield server


def answer_as_model(request: Received) -> Reply:
    """Answer like a model that first looks up the weather of a city, and refuses some prompts."""
    body = request.json()
    if request.path.endswith("/embeddings"):
        vector = {"object": "embedding", "index": 0, "embedding": [0.1, 0.2]}
        usage = {"prompt_tokens": 5, "total_tokens": 5}
        return Reply.json({"object": "list", "model": body["model"], "data": [vector], "usage": usage})
    prompt = json.dumps([message for message in body["messages"] if message["role"] == "user"])
    if "Refuse" in prompt:
        return Reply.json({"error": {"message": MARKER, "type": "invalid_request_error"}}, status=400)
    message: dict[str, Any] = {"role": "assistant", "content": f"It is sunny. {MARKER}"}
    reason = "stop"
    if body.get("tools") and body["messages"][-1]["role"] != "tool":
        arguments = json.dumps({"city": f"{'Atlantis' if 'Atlantis' in prompt else 'Lisbon'} {MARKER}"})
        function = {"name": "get_weather", "arguments": arguments}
        calls = [{"index": 0, "id": "call-1", "type": "function", "function": function}]
        message, reason = {"role": "assistant", "content": None, "tool_calls": calls}, "tool_calls"
    answer = {"id": "answer-1", "created": 1, "model": "gpt-x-2026"}
    if body.get("stream"):
        answer["object"] = "chat.completion.chunk"
        choices = [
            {"index": 0, "delta": message, "finish_reason": None},
            {"index": 0, "delta": {}, "finish_reason": reason},
        ]
        chunks = [{**answer, "choices": [choice]} for choice in choices]
        return Reply.sse([*chunks, {**answer, "choices": [], "usage": _USAGE}, "[DONE]"])
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return Reply.json({**answer, "object": "chat.completion", "usage": _USAGE, "choices": [choice]})
