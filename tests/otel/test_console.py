"""Finished traces printed to stderr."""

from __future__ import annotations

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from tests.markers import MARKER
from tests.otel.processes import in_a_process
from traced_tools.otel.console import ConsoleProcessor


def test_the_console_shows_each_finished_run_as_a_tree_without_content() -> None:
    done = in_a_process("configure(console=True); run(); print('between', file=sys.stderr); run()")
    first, second = done.stderr.split("between\n")
    for block in (first, second):
        assert [" ".join(line.split()[:3]) for line in block.splitlines() if "fail" in line or "invoke" in line] == [
            "invoke_agent assistant " + block.split()[2],
            "│ └─ execute_tool" if "│  └─ execute_tool" in block else "│ ├─ execute_tool",
        ]
        assert "812 -> 93 tokens" in block and "error  failed: ValueError" in block
    assert MARKER not in done.stderr


@pytest.mark.slow
def test_the_console_waits_for_a_span_of_the_application_around_runs() -> None:
    done = in_a_process(
        """
configure(console=True)
with trace.get_tracer("application").start_as_current_span("job"):
    run(); run()
    print("inside", file=sys.stderr)
"""
    )
    inside, block = done.stderr.split("inside\n")
    assert inside == ""
    assert block.splitlines()[1].startswith("job ")
    assert [line[:16] for line in block.splitlines() if "invoke_agent" in line] == [
        "├─ invoke_agent ",
        "└─ invoke_agent ",
    ]


@pytest.mark.slow
def test_the_console_shows_a_run_that_continues_a_trace_from_elsewhere() -> None:
    done = in_a_process(
        """
from opentelemetry import context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context
configure(console=True)
remote = NonRecordingSpan(SpanContext(1, 2, True, TraceFlags(1)))
context.attach(set_span_in_context(remote))
run()
print("after", file=sys.stderr)
"""
    )
    assert done.stderr.lstrip().startswith("invoke_agent assistant") and done.stderr.endswith("after\n")


@pytest.mark.slow
def test_a_run_is_unaffected_by_a_closed_stderr() -> None:
    done = in_a_process(
        "logged(); configure(console=True); sys.stderr.close(); print(run().stop_reason); sys.stderr = None; run()"
    )
    assert done.stdout.splitlines() == [
        "WARNING configure(console=True) cannot print a trace to stderr: ValueError",
        "answered",
    ]


class Writes(io.StringIO):
    """A stderr that keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def write(self, text: str) -> int:
        self.parts.append(text)
        return len(text)


def printing() -> TracerProvider:
    provider = TracerProvider(ALWAYS_ON, shutdown_on_exit=False)
    provider.add_span_processor(ConsoleProcessor())
    return provider


def test_each_of_many_traces_at_once_is_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes = Writes()
    monkeypatch.setattr(sys, "stderr", writes)
    tracer = printing().get_tracer("test")
    together = threading.Barrier(8)

    def trace(number: int) -> None:
        together.wait(5)
        for _ in range(25):
            with tracer.start_as_current_span(f"outer {number}"):
                with tracer.start_as_current_span(f"inner {number}"):
                    pass

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(trace, range(8)))
    assert len(writes.parts) == 200
    for part in writes.parts:
        first, second = part.strip().splitlines()
        assert first.split()[:2] == ["outer", first.split()[1]]
        assert second.split()[1:3] == ["inner", first.split()[1]]


def test_names_cannot_move_the_cursor_and_a_narrow_encoding_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding="ascii", errors="strict"))
    tracer = printing().get_tracer("test")
    with tracer.start_as_current_span("outer \x1b[2J\r\n\u202e\ud800"):
        with tracer.start_as_current_span("d\u00e9j\u00e0 \u6f22\u5b57"):
            pass
    text = raw.getvalue().decode("ascii")
    assert len(text.strip().splitlines()) == 2
    assert "outer ?[2J????" in text and "d\\xe9j\\xe0" in text


def test_an_unwritable_stderr_is_logged_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(MARKER)

    monkeypatch.setattr(sys, "stderr", Broken())
    tracer = printing().get_tracer("test")
    for _ in range(3):
        tracer.start_span("one").end()
    assert caplog.messages == ["configure(console=True) cannot print a trace to stderr: BrokenPipeError"]
