"""Compactions by runs that overlap, and what telemetry has of a compaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.memory.conversations import INSIDE, assert_well_formed, remembering, sent, shown
from tests.memory.test_compacting import chat, compactions, long_turn
from tests.modes import MODES
from tests.waiting import patiently
from traced_tools import ToolCall, Usage, tool
from traced_tools.memory import (
    ChatMemoryRepository,
    CompactingChatMemory,
    CompactionEntry,
    InMemoryChatMemoryRepository,
    KeepTurns,
    Summarize,
    Tokens,
    Turns,
)
from traced_tools.models import ChatRequest
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

WAIT = 30


def said(repository: ChatMemoryRepository) -> set[str]:
    return {getattr(each, "text", "") for each in repository.read("c").messages}


def test_of_two_compactions_at_once_one_is_appended_and_nothing_is_lost(
    open_repository: Callable[[], ChatMemoryRepository],
) -> None:
    both = threading.Barrier(2, timeout=WAIT)

    def summarize(request: ChatRequest) -> str:
        both.wait()
        return "They talked."

    with open_repository() as repository:
        chat(CompactingChatMemory(repository, Turns(9), KeepTurns(1)), "a", "b", "c")
        model = ScriptedChatModel([summarize, summarize])
        memory = CompactingChatMemory(repository, Turns(2), Summarize(model, 1))
        clients = [remembering(["Fine."], memory=memory, name=name)[0] for name in ("one", "two")]
        with Telemetry() as telemetry, ThreadPoolExecutor(2) as pool:
            specs = [
                client.replace(telemetry=telemetry.options).prompt(f"I am {client.name}.", conversation_id="c")
                for client in clients
            ]
            assert [each.content for each in pool.map(lambda spec: spec.call(), specs)] == ["Fine.", "Fine."]
        assert len(compactions(repository)) == 1
        ended = [span.attributes[names.COMPACTION_OUTCOME] for span in telemetry.named("compact_memory")]
        assert sorted(ended) == ["compacted", "superseded"]
        later = shown(memory.get("c"))
        assert later[1] == "assistant Summary of turns 1 to 2:\n\nThey talked."
        assert {*later[2:]} >= {"user c", "assistant C", "user I am one.", "user I am two.", "assistant Fine."}
        assert said(repository) >= {"a", "A", "b", "B", "c", "C", "I am one.", "I am two."}


@pytest.mark.parametrize("begins_first", [True, False])
def test_entries_of_a_run_that_is_in_its_tools_are_kept(begins_first: bool) -> None:
    """The other run begins before the view of the compacting run is read, or after that."""
    repository = InMemoryChatMemoryRepository()
    memory = CompactingChatMemory(repository, Tokens(60), KeepTurns(1))
    in_tool, go_on = threading.Event(), threading.Event()

    @tool
    def wait() -> str:
        """Wait."""
        in_tool.set()
        assert go_on.wait(WAIT)
        return "waited"

    other, other_model = remembering([[ToolCall("wait", id="w")], "Done."], memory=memory, order=INSIDE, tools=[wait])

    with ThreadPoolExecutor(1) as pool:
        waiting: list[Any] = []

        @tool
        def look(at: str) -> str:
            """Look at something."""
            if not waiting:
                begin()
            return f"{at} is blue"

        def begin() -> None:
            waiting.append(pool.submit(other.prompt("Wait for it.", conversation_id="c").call))
            assert in_tool.wait(WAIT)

        if begins_first:
            begin()
        calls = [[ToolCall("look", {"at": f"star {number}"})] for number in range(8)]
        client, _ = remembering([*calls, "Stars."], memory=memory, order=INSIDE, tools=[look])
        client.prompt("What is up there?", conversation_id="c").call()
        found = compactions(repository)
        log = repository.read("c").entries
        of_other = [
            entry for entry in log if not isinstance(entry, CompactionEntry) and entry.run_id != found[0].run_id
        ]
        assert [entry.position for entry in of_other] == ([1, 2] if begins_first else [3, 4])
        assert found[-1].through > 4
        assert {entry.id for entry in of_other} <= {*found[-1].keeps}
        go_on.set()
        assert waiting[0].result(WAIT).content == "Done."
    assert sent(other_model) == ["user Wait for it.", "call wait", "tool waited"]
    later = memory.get("c")
    assert_well_formed(later)
    assert {"user Wait for it.", "call wait", "tool waited", "assistant Done."} <= {*shown(later)}


def test_a_conversation_that_was_deleted_meanwhile_does_not_come_back() -> None:
    repository = InMemoryChatMemoryRepository()
    memory = CompactingChatMemory(repository, Tokens(60), KeepTurns(1))

    @tool
    def look(at: str) -> str:
        """Look at something."""
        if at == "star 1":
            repository.delete("c")
        return f"{at} is blue"

    calls = [[ToolCall("look", {"at": f"star {number}"})] for number in range(8)]
    client, _ = remembering([*calls, "Stars."], memory=memory, order=INSIDE, tools=[look])
    assert client.prompt("What is up there?", conversation_id="c").call().content == "Stars."
    assert repository.conversations() == ()


def test_many_runs_that_compact_one_conversation_lose_nothing() -> None:
    repository = InMemoryChatMemoryRepository()
    memory = CompactingChatMemory(repository, Turns(4), KeepTurns(2))
    names_of_runs = [f"run {number}" for number in range(24)]

    async def all_of_them() -> None:
        async def one(name: str) -> None:
            client, model = remembering([[ToolCall("look", id="l")], name.upper()], memory=memory, order=INSIDE)
            await client.prompt(name, tools=[look], conversation_id="c").acall()
            for request in model.requests:
                assert_well_formed(request.messages)

        await asyncio.gather(*map(one, names_of_runs))

    @tool
    async def look() -> str:
        """Look."""
        await asyncio.sleep(0)
        return "seen"

    asyncio.run(patiently(all_of_them()))
    assert said(repository) >= {*names_of_runs, *map(str.upper, names_of_runs)}
    for _ in range(3):
        chat(memory, "more")
    assert_well_formed(memory.get("c"))
    assert len(compactions(repository)) >= 1


@pytest.mark.parametrize("mode", MODES)
def test_the_span_of_a_compaction_has_the_call_of_the_summarizing_model_below_it(mode: str) -> None:
    small = ScriptedChatModel(["Stars are blue."] * 9, usage=Usage(input_tokens=9, output_tokens=3), model="small")
    memory = CompactingChatMemory(InMemoryChatMemoryRepository(), Tokens(90), Summarize(small, 2))
    with Telemetry() as telemetry:
        long_turn(memory, 5, mode, telemetry=telemetry.options)
    telemetry.check_each_ended_once()
    span = telemetry.one("compact_memory")
    below, appended = telemetry.children(span)
    assert (below.name, below.attributes[names.USAGE_INPUT_TOKENS]) == ("chat small", 9)
    assert appended.name == "upsert_memory"
    compacted = [names.CONVERSATION_COMPACTED in chat.attributes for chat in telemetry.named("chat scripted")]
    assert compacted == [False] * 5 + [True]
    assert names.CONVERSATION_COMPACTED not in below.attributes
    assert "blue" not in "".join(span.to_json() for span in telemetry.spans)
    assert telemetry.parent(span) != "chat scripted"
    entry = compactions(memory.repository)[0]
    attributes = dict(span.attributes)
    assert attributes[names.COMPACTION_TRIGGER] == "tokens"
    assert attributes[names.COMPACTION_STRATEGY] == "summarize"
    assert attributes[names.COMPACTION_OUTCOME] == "compacted"
    assert attributes[names.COMPACTION_COVERED] == 6
    assert attributes[names.COMPACTION_TOKENS_BEFORE] == entry.tokens_before
    assert attributes[names.COMPACTION_TOKENS_AFTER] == entry.tokens_after
    assert attributes[names.COMPACTION_TOKENS_ESTIMATED] is True


def test_an_attempt_without_effect_leaves_a_span_that_says_so() -> None:
    memory = CompactingChatMemory(InMemoryChatMemoryRepository(), Tokens(1), KeepTurns(9))
    with Telemetry() as telemetry:
        chat(memory, "a", telemetry=telemetry.options)
    assert telemetry.one("compact_memory").attributes[names.COMPACTION_OUTCOME] == "unchanged"
