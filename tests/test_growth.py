"""What a pass of the loop costs, counted in calls of functions: the same in a long run and after a long history.

`tests/memory/test_growth.py` does the same for a memory inside the loop.
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.function_calls import calls_of
from tests.modes import ALL_MODES, run
from tests.sample_tools import add
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ContentCapture,
    LoopLimits,
    Message,
    ToolCall,
    Usage,
    UserMessage,
)
from traced_tools.testing import ScriptedChatModel

PASSES = (20, 80, 320)
MOST_GROWTH = 1.04
"""A call for each message of the conversation would add 10 % to the last passes, or more."""
MOST_CAPTURED = 1_000
"""Bytes of a conversation that a span gets: fewer than those of the first passes."""
NO_LIMITS = LoopLimits(None, None, None, None, None, None)
HISTORY: list[Message] = [UserMessage("Hello."), AssistantMessage("Hi.")] * 500


def calls_of_a_pass(mode: str, history: list[Message], capture: Any = None) -> tuple[float, float]:
    """Return the calls of each of the first passes of a long run, and of each of the last passes."""
    counts = []
    for passes in PASSES:
        numbers = range(1_000, 1_000 + passes)  # all messages have the same length
        turns = [ToolCall("add", {"a": number, "b": 1}, id=f"c{number}") for number in numbers]
        model = ScriptedChatModel([*turns, "Done."], usage=Usage(input_tokens=10, output_tokens=1))
        telemetry = Telemetry(capture=capture)
        client = ChatClient(model, tools=[add], limits=NO_LIMITS, telemetry=telemetry.options)
        counts.append(calls_of(partial(run, mode, client.prompt("Go.", messages=history))))
    first, second = (count - before for before, count in pairwise(counts))
    return first / (PASSES[1] - PASSES[0]), second / (PASSES[2] - PASSES[1])


def unchanged(name: str, value: object) -> object:
    return value


CAPTURES = {
    "none": None,
    "content": ContentCapture("SPAN_ONLY", max_bytes=MOST_CAPTURED),
    "redacted": ContentCapture("SPAN_ONLY", unchanged, max_bytes=MOST_CAPTURED, per_message=True),
}


@pytest.fixture(scope="module", autouse=True)
def warm_up() -> None:
    """Import what is imported on first use."""
    for mode in ALL_MODES:
        run(mode, ChatClient(ScriptedChatModel(["Done."]), telemetry=Telemetry("SPAN_ONLY").options).prompt("Go."))


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("capture", CAPTURES)
def test_a_pass_costs_the_same_however_many_there_were_before(mode: str, capture: str) -> None:
    early, late = calls_of_a_pass(mode, [], CAPTURES[capture])
    assert late < MOST_GROWTH * early


@pytest.mark.parametrize("capture", CAPTURES)
def test_a_pass_costs_the_same_after_a_long_history(capture: str) -> None:
    early, _ = calls_of_a_pass("call", [], CAPTURES[capture])
    _, late = calls_of_a_pass("call", HISTORY, CAPTURES[capture])
    assert late < MOST_GROWTH * early
