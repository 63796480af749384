"""What a pass of the loop costs with a memory inside, counted in calls of functions: the same in a long turn."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.function_calls import calls_of
from tests.memory.conversations import INSIDE
from tests.modes import ALL_MODES, run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    LoopLimits,
    MemoryAdvisor,
    Message,
    ToolCall,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.loop.advisor import AdviseNext, Advisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.memory import (
    ChatMemory,
    CompactingChatMemory,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MemorySession,
    MemoryView,
    MessageWindowChatMemory,
    SqlChatMemoryRepository,
    Tokens,
)
from traced_tools.testing import ScriptedChatModel

PASSES = (10, 40, 160)
MOST_GROWTH = 1.08
"""A call for each message of the conversation would add 15 % to the last passes; asyncio varies by 3 %."""
NO_LIMITS = LoopLimits(None, None, None, None, None, None)


@tool
def look(at: int) -> str:
    """Look."""
    return f"seen {at}"


class Reminding(Advisor):
    """Adds a message to the end of each request, inside the memory."""

    name = "reminding"
    order = INSIDE + 1

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Add the message."""
        return await call_next(request.replace(messages=(*request.messages, UserMessage("Be brief."))))


class Copying(MessageWindowChatMemory):
    """Makes a new view before each call of the model, as a memory of an application may."""

    async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return a copy."""
        return replace(await super().fit(view, session), left_out=view.left_out)


MEMORIES: dict[str, Callable[[Any], ChatMemory]] = {
    "window": lambda repository: MessageWindowChatMemory(repository),
    "compacting": lambda repository: CompactingChatMemory(repository, Tokens(1_000_000), KeepTurns(1)),
    "copying": Copying,
}


def calls_of_a_pass(mode: str, memory: ChatMemory, *advisors: Advisor) -> tuple[float, float]:
    """Return the calls of each of the first passes of a long turn, and of each of the last ones."""
    counts = []
    for passes in PASSES:
        turns = [ToolCall("look", {"at": index}, id=f"c{index}") for index in range(passes)]
        model = ScriptedChatModel([*turns, "Done."], usage=Usage(input_tokens=10, output_tokens=1))
        client = ChatClient(
            model, tools=[look], limits=NO_LIMITS, advisors=[MemoryAdvisor(memory, order=INSIDE), *advisors]
        )
        spec = client.prompt("Go.", conversation_id=f"of {passes}")
        counts.append(calls_of(partial(run, mode, spec)))
    first, second = (count - before for before, count in pairwise(counts))
    return first / (PASSES[1] - PASSES[0]), second / (PASSES[2] - PASSES[1])


@pytest.mark.parametrize("mode", ALL_MODES)
@pytest.mark.parametrize("memory", MEMORIES)
def test_a_pass_costs_the_same_however_many_there_were_before(mode: str, memory: str) -> None:
    repository = InMemoryChatMemoryRepository()
    early, late = calls_of_a_pass(mode, MEMORIES[memory](repository))
    assert late < MOST_GROWTH * early


def test_a_pass_costs_the_same_if_an_advisor_adds_a_message_to_each_request() -> None:
    early, late = calls_of_a_pass("call", MEMORIES["window"](InMemoryChatMemoryRepository()), Reminding())
    assert late < MOST_GROWTH * early


def test_a_pass_costs_the_same_after_a_long_conversation(tmp_path: Path) -> None:
    repository = SqlChatMemoryRepository(tmp_path / "memory.db")
    memory = MEMORIES["compacting"](repository)
    for passes in PASSES:
        messages: list[Message] = [UserMessage("Hello."), AssistantMessage("Hi.")] * 100
        memory.add(f"of {passes}", messages)
    early, late = calls_of_a_pass("call", memory)
    assert late < MOST_GROWTH * early


def test_a_store_in_the_process_needs_no_thread_and_methods_of_a_subclass_get_one() -> None:
    threads: dict[str, int] = {}

    class Own(InMemoryChatMemoryRepository):
        def _is_current(self, *arguments: Any) -> bool:
            threads["own"] = threading.get_ident()
            return super()._is_current(*arguments)

    class Waiting(InMemoryChatMemoryRepository):
        def commit(self, *arguments: Any) -> bool:
            threads["waiting"] = threading.get_ident()
            return super().commit(*arguments)

    for repository in (Own(), Waiting()):
        memory = MessageWindowChatMemory(repository)
        client = ChatClient(ScriptedChatModel(["Hi."]), advisors=[MemoryAdvisor(memory)])
        run("acall", client.prompt("Hello.", conversation_id="c"))
    assert threads["own"] == threading.get_ident() != threads["waiting"]
