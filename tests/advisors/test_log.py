"""An advisor logs requests and responses, in all four modes."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, arun, run
from tests.sample_tools import add
from traced_tools import (
    ChatClient,
    ContentCapture,
    LoggingAdvisor,
    SafeguardAdvisor,
    TelemetryOptions,
    ToolCall,
    Usage,
    tool,
)
from traced_tools.flow.deferred import run_deferred
from traced_tools.testing import ScriptedChatModel


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Records(logging.Handler):
    """Keeps records."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)

    @property
    def text(self) -> str:
        return "\n".join(f"{each.getMessage()} {each.__dict__}" for each in self.seen)


@pytest.fixture
def records() -> Iterator[Records]:
    logger, handler = logging.getLogger("tests.chat"), Records()
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield handler
    logger.removeHandler(handler)


USAGE = Usage(input_tokens=10, output_tokens=2)


def client(*turns: Any, **settings: Any) -> ChatClient:
    advisors = [LoggingAdvisor("tests.chat"), *settings.pop("advisors", ())]
    return ChatClient(ScriptedChatModel(turns, usage=USAGE), name="travel", advisors=advisors, **settings)


def test_the_request_is_logged_then_the_response(mode: str, records: Records) -> None:
    prompt = client(ToolCall("add", {"a": 1, "b": 2}), "one two three", tools=[add]).prompt("?", conversation_id="c-1")
    response = run(mode, prompt)
    asked, answered = records.seen
    assert asked.getMessage() == "request of travel: messages 1, tools 1"
    said = answered.getMessage()
    assert said.startswith(
        "response of travel: stop_reason answered, finish_reason stop, tool_calls 0, input_tokens 20,"
    )
    for record in (asked, answered):
        facts = vars(record)
        assert (facts["run_id"], facts["agent"], facts["conversation_id"]) == (response.run_id, "travel", "c-1")
        assert record.levelno == logging.INFO
    assert vars(answered)["duration"] >= 0


def test_inside_the_loop_each_iteration_is_logged(mode: str, records: Records) -> None:
    agent = ChatClient(
        ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "3"]),
        tools=[add],
        advisors=[LoggingAdvisor(logging.getLogger("tests.chat"), logging.DEBUG, 400)],
    )
    run(mode, agent.prompt("?"))
    assert [(vars(each)["iteration"], each.levelno) for each in records.seen] == [(1, 10), (1, 10), (2, 10), (2, 10)]


def test_a_failed_run_is_logged_with_the_type_of_its_error(mode: str, records: Records) -> None:
    with pytest.raises(LookupError):
        run(mode, client(LookupError(MARKER)).prompt("?"))
    assert vars(records.seen[1])["error_type"] == "LookupError"
    assert vars(records.seen[1])["stop_reason"] == "error"
    assert MARKER not in records.text


@pytest.mark.parametrize("is_collected", [False, True], ids=["closed", "collected"])
def test_an_abandoned_stream_is_logged_once_with_what_arrived(records: Records, is_collected: bool) -> None:
    agent = client("one two three", telemetry=TelemetryOptions(capture="EVENT_ONLY"))
    stream = agent.prompt("?").stream()
    next(stream)
    next(stream)
    if not is_collected:
        stream.close()
    del stream
    gc.collect()
    run_deferred()
    assert [vars(each).get("stop_reason") for each in records.seen] == [None, "cancelled"]
    assert "one two " in records.seen[1].getMessage()
    assert "three" not in records.text


def test_content_is_logged_only_if_it_is_captured_on_events(mode: str, records: Records) -> None:
    def redacted(name: str, value: Any) -> Any:
        return json.loads(json.dumps(value).replace(MARKER, "…"))

    for capture, is_logged in [
        (None, False),
        ("SPAN_ONLY", False),
        ("EVENT_ONLY", True),
        (ContentCapture("SPAN_AND_EVENT", redact=redacted), False),
    ]:
        for telemetry in (TelemetryOptions(capture=capture), Telemetry(capture).options):
            records.seen.clear()
            run(mode, client(f"said {MARKER}", telemetry=telemetry).prompt(f"asked {MARKER}"))
            assert (MARKER in records.text) is is_logged
            asked, answered = records.seen
            assert (
                hasattr(asked, "input_messages")
                is hasattr(answered, "output_messages")
                is (capture not in (None, "SPAN_ONLY"))
            )
            if is_logged:
                assert f"said {MARKER}" in json.loads(vars(answered)["output_messages"])[0]["parts"][0]["content"]
                assert f"asked {MARKER}" in asked.getMessage()


def test_logged_content_cannot_disguise_the_line(mode: str, records: Records) -> None:
    client_ = client("said \u202e\u200b\x9b", telemetry=TelemetryOptions(capture="EVENT_ONLY"))
    run(mode, client_.prompt("asked"))
    message = records.seen[1].getMessage()
    assert message.isprintable() and r"said \u202e\u200b\u009b" in message


def test_a_tool_that_may_not_be_captured_is_not_logged(mode: str, records: Records) -> None:
    @tool(capture=False, return_direct=True)
    def secret(word: str) -> str:
        """Return a secret."""
        return MARKER

    agent = client(
        ToolCall("secret", {"word": MARKER}), tools=[secret], telemetry=TelemetryOptions(capture="EVENT_ONLY")
    )
    assert run(mode, agent.prompt("?")).content == MARKER
    assert MARKER not in records.text


def test_a_blocked_request_is_logged(mode: str, records: Records) -> None:
    run(mode, client(advisors=[SafeguardAdvisor(["secret"])]).prompt("secret"))
    assert vars(records.seen[1])["finish_reason"] == "content_filter"


def test_nothing_is_made_for_a_logger_that_is_off(mode: str, records: Records) -> None:
    logging.getLogger("tests.chat").setLevel(logging.WARNING)
    run(mode, client("x").prompt("?"))
    assert records.seen == []


def test_a_log_that_raises_does_not_fail_the_run(mode: str, records: Records, telemetry: Telemetry) -> None:
    def broken(record: logging.LogRecord) -> bool:
        raise LookupError

    records.addFilter(broken)
    assert run(mode, client("x", telemetry=telemetry.options).prompt("?")).content == "x"
    (failures,) = telemetry.metric("traced_tools.telemetry.failures")
    assert failures.value == 2


@pytest.mark.parametrize("ending", ["acall", "astream"])
def test_runs_side_by_side_are_logged_with_their_own_ids(ending: str, records: Records) -> None:
    import asyncio

    async def main() -> list[str]:
        agent = client(*["one two three"] * 3)
        return [each.run_id for each in await asyncio.gather(*(arun(ending, agent.prompt("?")) for _ in range(3)))]

    ids = asyncio.run(main())
    assert sorted(vars(each)["run_id"] for each in records.seen) == sorted([*ids, *ids])


def test_an_advisor_keeps_nothing_of_a_run_that_has_ended(mode: str, records: Records) -> None:
    advisor = LoggingAdvisor("tests.chat")
    run(mode, ChatClient(ScriptedChatModel(["a b"]), advisors=[advisor]).prompt("?"))
    assert len(records.seen) == 2
    assert advisor._pieces == {}


_advisor: Any = LoggingAdvisor


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: _advisor(logger=3), "logger must be a Logger or its name, not int"),
        (lambda: _advisor(level="INFO"), "level must be an int, not str"),
        (lambda: _advisor(order=1.5), "order must be an int"),
    ],
)
def test_an_invalid_argument_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        attempt()
