"""Random conversations and compactions: what is sent is always well formed, and the log keeps everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed, remembering
from tests.modes import MODES, run
from traced_tools import AssistantMessage, LoopLimits, ToolCall, Usage, UserMessage, tool
from traced_tools.memory import (
    CompactingChatMemory,
    CompactionEntry,
    CutToolResults,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MessageEntry,
    Summarize,
    Tokens,
    Turns,
)
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

SMALL = st.integers(0, 4)
TRIGGERS = st.lists(
    st.one_of(st.builds(Tokens, st.integers(1, 400)), st.builds(Turns, st.integers(1, 4))), min_size=1, max_size=2
)
HOW = st.lists(
    st.one_of(
        st.tuples(st.just("keep"), SMALL),
        st.tuples(st.just("cut"), st.integers(0, 60)),
        st.tuples(st.just("summarize"), SMALL),
        st.tuples(st.just("fail"), SMALL),
    ),
    min_size=1,
    max_size=3,
)
ROUND = st.lists(st.integers(0, 300), min_size=1, max_size=3)  # the size of the result of each call
RUN = st.tuples(
    st.just("run"),
    st.sampled_from([OUTSIDE, INSIDE, INSIDE]),
    st.lists(ROUND, max_size=6),
    st.sampled_from(["answer", "answer", "answer", "fail", "stop"]),
    st.booleans(),  # whether the provider reports its tokens
)
PENDING = st.tuples(st.just("pending"), st.booleans())
ADDED = st.tuples(st.just("add"), st.integers(1, 4))
STEPS = st.lists(st.one_of(RUN, RUN, RUN, PENDING, ADDED), min_size=1, max_size=8)


def strategy(kind: str, number: int) -> Any:
    if kind == "keep":
        return KeepTurns(number)
    if kind == "cut":
        return CutToolResults(number)
    answers = [RuntimeError() if kind == "fail" else f"Summary {index}." for index in range(500)]
    return Summarize(ScriptedChatModel(answers), number)


@tool
def look(size: int) -> str:
    """Return something of a size."""
    return "x" * size


def play(
    memory: CompactingChatMemory, number: int, order: int, rounds: list[list[int]], end: str, reports: bool, mode: str
) -> list[ChatRequest]:
    """Run a turn and return the requests of its model."""
    calls = [[ToolCall("look", {"size": size}) for size in sizes] for sizes in rounds]
    last = RuntimeError("down") if end == "fail" else f"Answer {number}."
    limits = LoopLimits(max_repeated_calls=None)
    if end == "stop":
        limits = LoopLimits(max_repeated_calls=None, max_iterations=max(1, len(rounds)), on_limit="stop")
    client, model = remembering([*calls, last], memory=memory, order=order, tools=[look], limits=limits)
    if reports:
        model._usage = Usage(input_tokens=100 * number, output_tokens=1)
    try:
        run(mode, client.prompt(f"Question {number}?", conversation_id="c"))
    except RuntimeError:
        assert end == "fail"
    return model.requests


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(when=TRIGGERS, how=HOW, steps=STEPS, mode=st.sampled_from(MODES))
def test_a_sent_conversation_is_well_formed_and_the_log_keeps_everything(
    when: Any, how: Any, steps: Any, mode: str
) -> None:
    repository = InMemoryChatMemoryRepository()
    memory = CompactingChatMemory(repository, when, [strategy(*each) for each in how])
    before: tuple[Any, ...] = ()
    for number, (kind, *rest) in enumerate(steps, 1):
        if kind == "add":
            pairs = [(UserMessage(f"Added {index}."), AssistantMessage("Yes.")) for index in range(rest[0])]
            memory.add("c", [message for pair in pairs for message in pair])
        elif kind == "pending":  # a run of another process waits for its tool, or died there a day ago
            time = datetime.now(UTC) - timedelta(days=rest[0])
            turn = max((entry.turn for entry in before), default=0) + 1
            called = AssistantMessage(tool_calls=[ToolCall("look", {"size": 1}, id=f"p{number}")])
            entries = [
                MessageEntry(each, turn=turn, run_id=f"r{number}", time=time) for each in (UserMessage("Hm?"), called)
            ]
            repository.append("c", entries, len(before))
        else:
            for request in play(memory, number, *rest, mode):
                assert_well_formed(request.messages)
                questions = [each.text for each in request.messages if isinstance(each, UserMessage)]
                assert questions[-1] == f"Question {number}?"
        log = repository.read("c").entries
        assert log[: len(before)] == before
        before = log
        for entry in log:
            if isinstance(entry, CompactionEntry):
                assert entry.through < (entry.position or 0)
                assert {*entry.cuts} <= {*entry.keeps}
    texts = [each.text for each in repository.read("c").messages if isinstance(each, UserMessage | AssistantMessage)]
    for number, (kind, *rest) in enumerate(steps, 1):
        if kind == "run":
            assert texts.count(f"Question {number}?") == 1
            is_answered = rest[2] == "answer" or (rest[2] == "stop" and not rest[1])
            assert texts.count(f"Answer {number}.") == is_answered
