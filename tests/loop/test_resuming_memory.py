"""A resumed run and its conversation: what the model is sent of the run's own turn, and what the log gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.loop.test_resuming import DONE, PLACES, client, looks, pays, results_in, state_of
from tests.memory.conversations import assert_well_formed
from tests.modes import MODES, run
from traced_tools import ApprovalAdvisor, Approve, MemoryAdvisor, Message, tool
from traced_tools.core import ToolErrors
from traced_tools.errors import ToolExecutionError
from traced_tools.memory import (
    ChatMemory,
    CompactingChatMemory,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MessageWindowChatMemory,
    Tokens,
    Turns,
)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    DONE.clear()


MEMORIES: dict[str, Callable[[InMemoryChatMemoryRepository], ChatMemory]] = {
    "a window": lambda repository: MessageWindowChatMemory(repository, max_messages=3),
    "the smallest window": lambda repository: MessageWindowChatMemory(repository, max_messages=1),
    "a compaction": lambda repository: CompactingChatMemory(repository, when=Turns(1), how=KeepTurns(1)),
    "a compaction of the turn": lambda repository: CompactingChatMemory(repository, when=Tokens(1), how=KeepTurns(1)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("mode", MODES)
def test_a_resumed_run_sends_its_turn_as_the_run_that_paused_would_have(mode: str, memory: str, place: str) -> None:
    def last_request(*, pauses: bool) -> Sequence[Message]:
        keeping = MemoryAdvisor(MEMORIES[memory](InMemoryChatMemoryRepository()), order=PLACES[place])
        advisors = [keeping] if pauses else [keeping, ApprovalAdvisor(lambda request: Approve())]
        asking, model = client(
            "hello", [looks("a", what="a")], [looks("b", what="b")], [pays()], "done", advisors=advisors
        )
        run(mode, asking.prompt("hi", conversation_id="c"))
        response = run(mode, asking.prompt("buy", conversation_id="c"))
        if pauses:
            response = run(mode, asking.resume(state_of(response), {"p": Approve()}))
        assert response.content == "done"
        return model.requests[-1].messages

    sent = last_request(pauses=True)
    assert_well_formed(sent)
    assert sent == last_request(pauses=False)
    assert results_in(sent)[-1] == ("p", "paid 5")


@pytest.mark.parametrize("mode", MODES)
def test_the_log_has_what_an_interrupted_run_knows_of_an_approved_call(mode: str) -> None:
    @tool(name="pay", requires_approval=True)
    def fails(amount: int) -> str:
        """Pay."""
        raise ConnectionError("lost")

    memory = MemoryAdvisor(MessageWindowChatMemory(InMemoryChatMemoryRepository()), order=PLACES["inside"])
    settings: dict[str, Any] = {"advisors": [memory], "tools": [fails], "tool_errors": ToolErrors(always_raise=True)}
    asking, _ = client([pays()], **settings)
    response = run(mode, asking.prompt("buy", conversation_id="c"))
    with pytest.raises(ToolExecutionError):
        run(mode, asking.resume(state_of(response), {"p": Approve()}))
    later, model = client("sorry", **settings)
    run(mode, later.prompt("and?", conversation_id="c"))
    [(_, content)] = results_in(model.requests[0].messages)
    assert "waited for approval" not in content


@pytest.mark.parametrize("conversation", [None, "c"])
@pytest.mark.parametrize("mode", MODES)
def test_a_run_inside_whose_loop_a_memory_is_goes_on_with_what_it_was_sent(mode: str, conversation: str | None) -> None:
    def last_request(*, pauses: bool) -> Sequence[Message]:
        memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
        approving = [] if pauses else [ApprovalAdvisor(lambda request: Approve())]
        advisors = [MemoryAdvisor(memory, order=PLACES["inside"]), *approving]
        asking, model = client([looks("a", what="a")], [pays(), looks("b")], [pays(7, "q")], "done", advisors=advisors)
        response = run(mode, asking.prompt("buy", system="Be brief.", conversation_id=conversation))
        while response.pending:
            response = run(mode, asking.resume(state_of(response), {response.pending[0].call_id: Approve()}))
        return model.requests[-1].messages

    assert last_request(pauses=True) == last_request(pauses=False)
