"""The servers and the program on the page about your own loop do what the page says."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from httpx_sse import connect_sse

from tests.captured import Telemetry
from tests.flow.models import StreamedModel
from tests.test_docs import BLOCK, ROOT
from tests.waiting import PATIENCE, until
from traced_tools import ChatClient, SafeguardAdvisor, ToolCall, tool
from traced_tools.testing import ScriptedChatModel

pytest.importorskip("fastapi", reason="needs fastapi and uvicorn (the extra dev)")
uvicorn = pytest.importorskip("uvicorn", reason="needs fastapi and uvicorn (the extra dev)")


def code_below(heading: str) -> str:
    """Return the first block of code below a heading of the page."""
    _, found, below = (ROOT / "docs" / "own-loops.md").read_text().partition(f"\n{heading}\n")
    block = BLOCK.search(below)
    assert found
    assert block is not None
    return block.group(2)


def module_below(heading: str) -> Any:
    """Return the first block of code below a heading of the page as a module."""
    module = ModuleType("example")
    exec(compile(code_below(heading), heading, "exec", dont_inherit=True), vars(module))
    return module


@contextmanager
def served(app: Any) -> Iterator[httpx.Client]:
    """Serve `app` on a free port of 127.0.0.1 until the block ends, and return a client of it."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=[[listener]])
    thread.start()  # the client may send requests from now on, because the socket listens
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with httpx.Client(base_url=url, timeout=PATIENCE, trust_env=False) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
    assert not thread.is_alive()


def events_of(example: Any) -> list[tuple[str, Any]]:
    """Return what a browser that asks a question receives."""
    with served(example.app) as client, connect_sse(client, "GET", "/ask", params={"question": "?"}) as source:
        return [(event.event, json.loads(event.data)) for event in source.iter_sse()]


def test_a_browser_sees_the_tools_and_the_text_of_a_run() -> None:
    assert events_of(module_below("### Over server-sent events")) == [
        ("tools", ["add"]),
        ("text", "It "),
        ("text", "is "),
        ("text", "42."),
        ("answer", "It is 42."),
        ("done", "answered"),
    ]


def test_a_browser_sees_answers_that_no_model_has_streamed() -> None:
    example = module_below("### Over server-sent events")

    @tool(return_direct=True)
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    model = ScriptedChatModel([ToolCall("add", {"a": 20, "b": 22})])
    example.agent = lambda: ChatClient(model, tools=[add])
    assert events_of(example) == [("tools", ["add"]), ("answer", "42"), ("done", "return_direct")]
    for said, words in (("No.", "?"), ("It is a secret.", "secret")):
        guard = SafeguardAdvisor([words], answer="I may not say.")
        example.agent = lambda said=said, guard=guard: ChatClient(ScriptedChatModel([said]), advisors=[guard])
        assert events_of(example)[-2:] == [("answer", "I may not say."), ("done", "advisor")]


def test_a_browser_is_told_the_type_of_an_error_and_not_its_text() -> None:
    example = module_below("### Over server-sent events")
    example.agent = lambda: ChatClient(ScriptedChatModel([ConnectionError("secret")]))
    assert events_of(example) == [("failed", "ConnectionError")]


def test_a_run_is_cancelled_when_the_browser_leaves(telemetry: Telemetry) -> None:
    example = module_below("### Over server-sent events")
    model = StreamedModel(waits_after=2)
    example.agent = lambda: ChatClient(model, telemetry=telemetry.options)
    with served(example.app) as client:
        with connect_sse(client, "GET", "/ask", params={"question": "?"}) as source:
            assert json.loads(next(source.iter_sse()).data) == "one "
            until(model.waiting.is_set)
        assert model.closed.wait(PATIENCE)
        until(lambda: bool(telemetry.named("invoke_agent")))
    telemetry.check_cancelled()


@pytest.mark.parametrize(
    ("approved", "answer"), [(True, "paid 90 EUR to Ana"), (False, "The call was not run: Not allowed.")]
)
def test_a_call_is_decided_once_over_http_and_a_worker_resumes_its_run(
    approved: bool, answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = module_below("## Over HTTP")
    with served(example.app) as client:
        assert client.post("/ask", params={"question": "Pay Ana.", "chat": "c-7"}).json() == {"waits": True}
        [waits] = client.get("/waiting").json()
        assert (waits["call_id"], waits["tool"], waits["args"]) == ("c1", "pay", {"to": "Ana", "amount": 90})
        example.resume_decided_runs()
        assert not example.answers
        decision = {"run_id": waits["run_id"], "call_id": "c1", "approved": approved}
        assert client.post("/decide", json=decision).json() == {"status": "decided"}
        assert client.post("/decide", json=decision).status_code == 409
        assert client.get("/waiting").json() == []
        example.resume_decided_runs()
        example.resume_decided_runs()
    example.store.close()
    assert example.answers == {"c-7": answer}


@pytest.mark.parametrize(
    ("typed", "printed"),
    [
        ("y\n", "answered\napproved: paid 90 to Ana\n"),
        ("n\nToo much.\n", "answered\nrejected: The call was not run: Too much.\n"),
        ('what?\ne\n[]\ne\n{"to": "Ana", "amount": 9}\n', "answered\napproved: paid 9 to Ana\n"),
        ("", "awaiting_approval\n"),
    ],
    ids=["yes", "no", "edit", "no terminal"],
)
def test_a_person_in_a_terminal_decides(typed: str, printed: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(code_below("## In a terminal"))
    done = subprocess.run(
        [sys.executable, "-W", "error", str(program)],
        input=typed,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
    )
    assert done.returncode == 0, done.stderr
    first, *_ = done.stdout.splitlines()
    assert first == 'pay {"amount": 90, "to": "Ana"}'
    assert done.stdout.endswith(f" {printed}")
