"""Python's own log records have the ids of the run that logs them."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Iterator
from logging.handlers import QueueHandler
from typing import Any

import pytest
from opentelemetry import trace

from tests.captured import Telemetry, span_id
from tests.modes import MODES, run
from traced_tools import ChatClient, LoggingAdvisor, ToolCall
from traced_tools.run import RunIdFilter
from traced_tools.testing import ScriptedChatModel

IDS = ("trace_id", "span_id", "run_id", "conversation_id", "agent")
LOG = logging.getLogger("tests.application")


class Records(logging.Handler):
    """Keeps the ids of each record by its message."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, dict[str, Any]] = {}
        self.addFilter(RunIdFilter())

    def emit(self, record: logging.LogRecord) -> None:
        self.seen[record.getMessage()] = {name: getattr(record, name) for name in IDS}


@pytest.fixture
def records() -> Iterator[Records]:
    handler = Records()
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    yield handler
    LOG.removeHandler(handler)


def note() -> str:
    """Log from a tool."""
    LOG.info("in a tool")
    return "done"


async def note_later() -> str:
    """Log from a task of an async tool."""

    async def task() -> None:
        LOG.info("in a task")

    await asyncio.create_task(task())
    return "done"


@pytest.mark.parametrize("mode", MODES)
def test_tools_in_threads_and_tasks_log_the_ids_of_their_run(mode: str, records: Records, telemetry: Telemetry) -> None:
    calls = [ToolCall("note"), ToolCall("note_later")]
    client = ChatClient(
        ScriptedChatModel([calls, "x"]), name="travel", tools=[note, note_later], telemetry=telemetry.options
    )
    response = run(mode, client.prompt("?", conversation_id="c-1"))
    for text, tool in (("in a tool", "note"), ("in a task", "note_later")):
        assert records.seen[text] == {
            "trace_id": response.trace_id,
            "span_id": f"{span_id(telemetry.one(f'execute_tool {tool}')):016x}",
            "run_id": response.run_id,
            "conversation_id": "c-1",
            "agent": "travel",
        }


@pytest.mark.parametrize("mode", MODES)
def test_a_nested_run_logs_its_own_ids_and_the_outer_run_its_own_again(mode: str, records: Records) -> None:
    inner = ChatClient(ScriptedChatModel([ToolCall("note"), "x"]), name="inner", tools=[note])
    ids = []

    def ask() -> str:
        """Ask another agent."""
        LOG.info("before")
        ids.append(inner.prompt("?").call().run_id)
        LOG.info("after")
        return "done"

    client = ChatClient(ScriptedChatModel([ToolCall("ask"), "x"]), name="outer", tools=[ask])
    response = run(mode, client.prompt("?"))
    assert (records.seen["in a tool"]["run_id"], records.seen["in a tool"]["agent"]) == (ids[0], "inner")
    for text in ("before", "after"):
        assert (records.seen[text]["run_id"], records.seen[text]["agent"]) == (response.run_id, "outer")


def test_the_ids_are_empty_outside_a_run_even_between_two_chunks(records: Records, telemetry: Telemetry) -> None:
    with telemetry.tracer.start_as_current_span("request"):
        LOG.info("outside")
    with ChatClient(ScriptedChatModel(["one two"]), telemetry=telemetry.options).prompt("?").stream() as stream:
        next(stream)
        LOG.info("between")
    assert records.seen["outside"] == records.seen["between"] == dict.fromkeys(IDS, "")


def test_without_telemetry_a_run_has_its_id_and_no_trace(records: Records) -> None:
    response = ChatClient(ScriptedChatModel([ToolCall("note"), "x"]), tools=[note]).prompt("?").call()
    assert records.seen["in a tool"] == {
        "trace_id": "",
        "span_id": "",
        "run_id": response.run_id,
        "conversation_id": "",
        "agent": "assistant",
    }


def test_attributes_that_a_record_has_are_kept(records: Records) -> None:
    LOG.info("mine", extra={"agent": "an agent of mine"})
    assert records.seen["mine"]["agent"] == "an agent of mine"
    advisors = [LoggingAdvisor(LOG)]
    response = ChatClient(ScriptedChatModel(["x"]), advisors=advisors).prompt("?").call()
    assert {each["run_id"] for text, each in records.seen.items() if text != "mine"} == {response.run_id}


def test_a_format_with_the_ids_of_opentelemetry_beside_them_works(telemetry: Telemetry) -> None:
    """OpenTelemetry's own instrumentation sets other attributes, with a record factory."""
    made = logging.getLogRecordFactory()

    def with_otel_ids(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = made(*args, **kwargs)
        record.otelTraceID = trace.format_trace_id(trace.get_current_span().get_span_context().trace_id)
        return record

    lines: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    handler = QueueHandler(lines)  # type: ignore[arg-type]  # it only puts
    handler.addFilter(RunIdFilter())
    handler.setFormatter(logging.Formatter("%(otelTraceID)s %(trace_id)s %(run_id)s"))
    logging.setLogRecordFactory(with_otel_ids)
    LOG.addHandler(handler)
    LOG.setLevel(logging.INFO)
    try:
        client = ChatClient(ScriptedChatModel([ToolCall("note"), "x"]), tools=[note], telemetry=telemetry.options)
        response = client.prompt("?").call()
    finally:
        LOG.removeHandler(handler)
        logging.setLogRecordFactory(made)
    assert lines.get().getMessage() == f"{response.trace_id} {response.trace_id} {response.run_id}"


def test_a_thread_of_the_tools_own_has_no_ids_without_a_copied_context(records: Records) -> None:
    def start() -> str:
        """Start a thread."""
        thread = threading.Thread(target=LOG.info, args=("alone",))
        thread.start()
        thread.join()
        return "done"

    ChatClient(ScriptedChatModel([ToolCall("start"), "x"]), tools=[start]).prompt("?").call()
    assert records.seen["alone"] == dict.fromkeys(IDS, "")
