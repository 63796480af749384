"""Runs the conversation with each strategy, and counts the facts that survive its compactions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.bench.memory.facts import TURNS, Fact, Plan, plan
from traced_tools import ChatClient, MemoryAdvisor, Message, ToolCall, tool
from traced_tools.core import dump_messages
from traced_tools.memory import (
    ChatMemory,
    CompactingChatMemory,
    CompactionTrigger,
    CutToolResults,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MemorySession,
    MemoryView,
    MessageWindowChatMemory,
    Summarize,
)
from traced_tools.memory.tokens import estimate_tokens
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel

COMPACTED_IN = (13, 19, 25, 31, 37)
"""The turns that begin with a compaction."""
MEASURED = {1: 13, 2: 19, 5: 37}
"""After how many compactions the facts are counted, and after which turn."""
ENOUGH_TOKENS = 4_000
KEPT_TURNS = 4
SHOWN_CHARACTERS = 400
SUMMARY_CHARACTERS = 6_000
_MESSAGES_IN_A_TURN = 6


class InTurns(CompactionTrigger):
    """Fires in fixed turns, if a view has enough tokens, so that all strategies are compared at the same points."""

    name = "in_turns"

    def fires(self, view: MemoryView, session: MemorySession) -> bool:
        """Return whether it is time, and the view is long enough."""
        is_first_round = not view.running.rounds
        return session.turn in COMPACTED_IN and is_first_round and view.tokens().tokens > ENOUGH_TOKENS


@dataclass(frozen=True)
class Survival:
    """What a view holds after some compactions.

    Attributes:
        strategy: the strategy.
        compactions: how many compactions there were.
        tokens: the estimated tokens of the view.
        saved: the share of the whole conversation's tokens that the view does without.
        facts: how many facts hold.
        in_view: how many of them the view holds.
        of_messages, of_results: those among them that a message of the user or a result stated last, and all of these.
        with_recall: how many the view holds or a search finds.
    """

    strategy: str
    compactions: int
    tokens: int
    saved: float
    facts: int
    in_view: int
    of_messages: tuple[int, int]
    of_results: tuple[int, int]
    with_recall: int


def first_sentences(request: ChatRequest) -> str:
    """Summarize like a model that reads only beginnings: a scripted, deterministic stand-in.

    It repeats the earlier summary within half of the budget. The rest is shared equally by the texts: of each, it keeps
    whole sentences from the beginning, the facts among them or not.
    """
    *_, asked = request.messages
    assert hasattr(asked, "text")
    lines = asked.text.splitlines()
    earlier = json.loads(lines[1]) if lines[0] == "The earlier summary:" else ""
    texts = [json.loads(line).get("text", "") for line in lines if line.startswith('{"turn"')]
    kept = _beginning(earlier, SUMMARY_CHARACTERS // 2)
    share = (SUMMARY_CHARACTERS - len(kept)) // max(1, len(texts))
    return " ".join(filter(None, [kept, *(_beginning(text, share) for text in texts)]))


def _beginning(text: str, most: int) -> str:
    """Return as many whole sentences as there is room for."""
    kept = ""
    for sentence in re.findall(r"[^.]+\.", text):
        if len(kept) + len(sentence) > most:
            break
        kept += sentence
    return kept.strip()


def _memories() -> dict[str, Callable[[InMemoryChatMemoryRepository], ChatMemory]]:
    cut, keep = CutToolResults(SHOWN_CHARACTERS), KeepTurns(KEPT_TURNS)

    def summarize() -> Summarize:
        return Summarize(ScriptedChatModel([first_sentences] * 99), KEPT_TURNS)

    return {
        "KeepTurns": lambda repository: CompactingChatMemory(repository, InTurns(), keep),
        "CutToolResults": lambda repository: CompactingChatMemory(repository, InTurns(), cut),
        "Summarize": lambda repository: CompactingChatMemory(repository, InTurns(), summarize()),
        "CutToolResults, Summarize": lambda repository: CompactingChatMemory(repository, InTurns(), [cut, summarize()]),
        "window": lambda repository: MessageWindowChatMemory(repository, _MESSAGES_IN_A_TURN * KEPT_TURNS),
    }


def survivals(planned: Plan | None = None) -> list[Survival]:
    """Run the conversation with each strategy; return what survived, by strategy and number of compactions."""
    planned = planned or plan()
    return [found for name, memory in _memories().items() for found in _survivals(name, memory, planned)]


def _survivals(name: str, make: Callable[[InMemoryChatMemoryRepository], ChatMemory], planned: Plan) -> list[Survival]:
    repository = InMemoryChatMemoryRepository()
    memory = make(repository)
    results = iter([result for turn in planned.turns for result in turn.results])

    @tool
    def look_up() -> str:
        """Look something up."""
        return next(results)

    script = [each for turn in planned.turns for each in (*[[ToolCall("look_up")]] * len(turn.results), "Noted.")]
    client = ChatClient(ScriptedChatModel(script), tools=[look_up], advisors=[MemoryAdvisor(memory, order=400)])
    points = {turn: count for count, turn in MEASURED.items()}
    found = []
    for number, turn in enumerate(planned.turns[:TURNS], 1):
        client.prompt(turn.question, conversation_id="c").call()
        if number in points:
            found.append(_measured(name, points[number], number, memory, planned))
    return found


def _measured(name: str, compactions: int, turn: int, memory: ChatMemory, planned: Plan) -> Survival:
    view, log = memory.get("c"), memory.repository.read("c").messages
    text, facts = dump_messages(view), planned.true_after(turn)
    held = [fact for fact in facts if fact.value in text]
    tokens = estimate_tokens(view)
    return Survival(
        strategy=name,
        compactions=compactions,
        tokens=tokens,
        saved=1 - tokens / estimate_tokens(log),
        facts=len(facts),
        in_view=len(held),
        of_messages=_of("user", held, facts),
        of_results=_of("tool", held, facts),
        with_recall=sum(fact in held or _is_found(fact, memory) for fact in facts),
    )


def _of(origin: str, held: Sequence[Fact], facts: Sequence[Fact]) -> tuple[int, int]:
    return sum(fact.origin == origin for fact in held), sum(fact.origin == origin for fact in facts)


def _is_found(fact: Fact, memory: ChatMemory) -> bool:
    """Return whether the newest messages about the subject and the attribute of a fact state it."""
    found: Sequence[Message] = [
        entry.message for entry in memory.repository.search("c", [fact.attribute, fact.subject], limit=3)
    ]
    return fact.value in dump_messages(found)
