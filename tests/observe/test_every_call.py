"""Every requested call leaves one span, one decision and one event, however it ends."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from tests.observe.closed_list import assert_consistent, word_of
from tests.observe.runs import USAGE, Guard, adds
from tests.sample_tools import add, direct, fail
from tests.waiting import PATIENCE
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimits,
    ToolCall,
    ToolExecutionError,
    tool,
)
from traced_tools.core import ToolErrors
from traced_tools.errors import ToolNotFoundError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools.execution import ToolExecution


@tool(requires_approval=True)
def approved() -> str:
    """Never run."""
    return ""


KINDS: dict[str, ToolCall] = {
    "ran": adds(1, 2),
    "failed": ToolCall("crash"),
    "denied": ToolCall("fail"),
    "answered": ToolCall("direct", {"text": "x"}),
    "unapproved": ToolCall("approved"),
    "unknown": ToolCall("invented"),
    "invalid": ToolCall("add", {"a": "one"}),
    "no JSON": ToolCall("add", "{"),
}
CALLS = st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5)
LIMITS = st.builds(
    LoopLimits,
    max_iterations=st.one_of(st.none(), st.integers(1, 3)),
    max_tool_calls=st.one_of(st.none(), st.integers(1, 6)),
    max_calls_per_tool=st.one_of(st.none(), st.integers(1, 3)),
    max_repeated_calls=st.one_of(st.none(), st.integers(1, 2)),
    max_tokens=st.one_of(st.none(), st.integers(10, 60)),
    on_limit=st.sampled_from(["conclude", "stop"]),
)


def crash() -> str:
    """Fail."""
    raise RuntimeError("no")


def asked_in(telemetry: Telemetry) -> int:
    """The number of requested calls according to the run span."""
    (root,) = telemetry.children(None)
    return int((root.attributes or {})[names.LOOP_TOOL_CALLS])  # type: ignore[arg-type]


def assert_each_left_a_trace(telemetry: Telemetry) -> None:
    spans = [span for span in telemetry.spans if word_of(span) in ("execute_tool", "refuse_tool")]
    assert len(spans) == asked_in(telemetry)
    decided = Counter(str((span.attributes or {})[names.TOOL_DECISION]) for span in spans)
    counted: Counter[str] = Counter()
    for point in telemetry.metric(names.TOOL_DECISIONS.name):
        counted[point.attributes[names.TOOL_DECISION]] += int(total(point))
    assert counted == decided
    emitted = Counter(
        str(event.attributes[names.TOOL_DECISION]) for event in telemetry.events_named(names.TOOL_DECISION_EVENT.name)
    )
    assert emitted == decided
    assert len(telemetry.events_named(names.TOOL_INTENT_EVENT.name)) == len(spans)
    ran = [span for span in spans if word_of(span) == "execute_tool"]
    assert len(telemetry.events_named(names.TOOL_OUTCOME_EVENT.name)) == len(ran)
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
@given(turns=st.lists(CALLS, min_size=1, max_size=4), limits=LIMITS, guarded=st.booleans())
def test_each_call_leaves_one_span_one_decision_and_one_intent(
    mode: str, turns: list[list[str]], limits: LoopLimits, guarded: bool
) -> None:
    telemetry = Telemetry()
    script: list[Any] = [[KINDS[kind] for kind in turn] for turn in turns]
    client = ChatClient(
        ScriptedChatModel([*script, "done", "done"], usage=USAGE),
        tools=[add, crash, fail, direct, approved],
        advisors=[Guard()] if guarded else [],
        limits=limits,
        telemetry=telemetry.options,
    )
    run(mode, client.prompt("?"))
    assert_each_left_a_trace(telemetry)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_call_that_fails_the_run_leaves_its_span_as_well(mode: str, kind: str) -> None:
    telemetry = Telemetry()
    client = ChatClient(
        ScriptedChatModel([KINDS[kind], "done"]),
        tools=[add, crash, fail, direct, approved],
        advisors=[Guard()],
        tool_errors=ToolErrors(always_raise=True, unknown_tool="raise"),
        telemetry=telemetry.options,
    )
    if kind in ("failed", "unknown", "invalid", "no JSON"):
        with pytest.raises((ToolExecutionError, ToolNotFoundError)):
            run(mode, client.prompt("?"))
    else:
        run(mode, client.prompt("?"))
    assert_each_left_a_trace(telemetry)
    assert asked_in(telemetry) == 1


def test_a_call_that_is_cut_before_its_tool_starts_is_an_execution_that_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    attempt = ToolExecution._attempt

    def cut(self: ToolExecution, *arguments: Any) -> Any:
        self.cancel()  # as a batch does when a tool beside this one is interrupted
        return attempt(self, *arguments)

    monkeypatch.setattr(ToolExecution, "_attempt", cut)
    telemetry = Telemetry()
    with pytest.raises(BaseException):  # noqa: B017
        run(
            "call",
            ChatClient(ScriptedChatModel([adds(1, 1)]), tools=[add], telemetry=telemetry.options).prompt("?"),
        )
    attributes = telemetry.one("execute_tool add").attributes or {}
    assert (attributes[names.TOOL_OUTCOME], attributes[names.TOOL_ATTEMPTS]) == ("cancelled", 0)
    assert_consistent(telemetry)


class Interrupting(Advisor):
    """Has tools that run one after the other, of which the first ends the run."""

    name, order = "interrupting", 100

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        with suppress(RuntimeError):  # there is no loop
            self.task = asyncio.current_task()
        return await call_next(request)

    @tool(sequential=True)
    def interrupted(self) -> None:
        """End a blocking run."""
        raise KeyboardInterrupt

    @tool(sequential=True)
    async def cancelled(self) -> None:
        """End a run on asyncio."""
        assert self.task is not None
        self.task.cancel()
        await asyncio.sleep(PATIENCE)

    @tool(sequential=True)
    def second(self) -> None:
        """Never run."""


@pytest.mark.parametrize("mode", MODES)
def test_calls_that_never_started_leave_spans_when_the_run_ends_early(mode: str) -> None:
    telemetry, interrupting = Telemetry(), Interrupting()
    first = "cancelled" if mode in ("acall", "astream") else "interrupted"
    calls = [ToolCall(first), ToolCall("second"), ToolCall("invented")]
    client = ChatClient(
        ScriptedChatModel([calls]), tools=[interrupting], advisors=[interrupting], telemetry=telemetry.options
    )
    with pytest.raises((KeyboardInterrupt, asyncio.CancelledError)):
        run(mode, client.prompt("?"))
    assert telemetry.one(f"execute_tool {first}")
    for name in ("refuse_tool second", "refuse_tool _unknown"):
        attributes = telemetry.one(name).attributes or {}
        assert attributes[names.ERROR_TYPE] == names.CANCELLED
        assert names.TOOL_DECISION not in attributes
    assert len(telemetry.events_named(names.TOOL_INTENT_EVENT.name)) == 3
    assert_consistent(telemetry)
