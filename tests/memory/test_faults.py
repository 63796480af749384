"""What a run keeps when an append fails or is interrupted, and when advisors change or repeat answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed, logged, remembering, sent
from tests.modes import MODES, run
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClientRequest,
    ChatClientResponse,
    ContentCapture,
    LoopLimits,
    StructuredOutputAdvisor,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
    tool,
)
from traced_tools.core import ReasoningPart, ToolResultPart
from traced_tools.errors import ChatMemoryUnavailable
from traced_tools.loop.advisor import AdviseNext
from traced_tools.memory import (
    CompactingChatMemory,
    Conversation,
    InMemoryChatMemoryRepository,
    KeepTurns,
    MessageEntry,
    MessageWindowChatMemory,
    Summarize,
    Turns,
    recall_tool,
)
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel

LOOK = ToolCall("look", {"at": "the sky"})
ROUND = ["call look", "tool the sky is blue"]


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=[OUTSIDE, INSIDE], ids=["outside", "inside"])
def order(request: pytest.FixtureRequest) -> int:
    place: int = request.param
    return place


@tool
def look(at: str) -> str:
    """Look at something."""
    return f"{at} is blue"


class _Store(InMemoryChatMemoryRepository):
    """A store in which something happens at a commit: before it, or after it was stored."""

    def __init__(self, at: int, before: Callable[[], object] = bool, after: Callable[[], object] = bool) -> None:
        super().__init__()
        self.at, self.before, self.after, self.commits = at, before, after, 0

    def commit(self, before: Conversation | None, after: Conversation, entries: Any) -> bool:
        self.commits += 1
        happens = self.commits == self.at
        if happens:
            self.before()
        stored = super().commit(before, after, entries)
        if happens:
            self.after()
        return stored


def unavailable() -> None:
    raise ChatMemoryUnavailable("the store is down")


def interrupt() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("at", range(1, 5))
def test_an_append_of_unknown_outcome_is_kept_once(mode: str, at: int) -> None:
    repository = _Store(at, after=unavailable)
    client, _ = remembering([[LOOK], "Blue."], repository, order=INSIDE, tools=[look], on_failure="warn")
    assert run(mode, client.prompt("The sky?", conversation_id="c")).content == "Blue."
    assert logged(repository) == ["user The sky?", *ROUND, "assistant Blue."]


@pytest.mark.parametrize("at", range(2, 5))
@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize("failure", [unavailable, interrupt])
def test_what_is_known_when_an_append_fails_is_kept(
    mode: str, at: int, is_stored: bool, failure: Callable[[], None]
) -> None:
    repository = _Store(at, **{"after" if is_stored else "before": failure})
    client, model = remembering([[LOOK], "Blue.", "Yes."], repository, order=INSIDE, tools=[look])
    with pytest.raises((ChatMemoryUnavailable, KeyboardInterrupt)):
        run(mode, client.prompt("The sky?", conversation_id="c"))
    known = ["user The sky?", *ROUND, "assistant Blue."][:at]
    assert logged(repository)[: len(known)] == known
    client.prompt("Sure?", conversation_id="c").call()
    assert_well_formed(model.requests[-1].messages)


def test_a_conversation_that_is_deleted_during_a_run_does_not_come_back(mode: str, order: int) -> None:
    @tool
    def wipe() -> str:
        """Wipe."""
        repository.delete("c", principal="ana")
        return "wiped"

    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["Hi.", [ToolCall("wipe")], "Bye.", "Yes."], repository, order=order, tools=[wipe])
    for text in ("Hello.", "Forget me."):
        run(mode, client.prompt(text, conversation_id="c", principal="ana"))
    assert repository.conversations() == ()
    run(mode, client.prompt("Hello?", conversation_id="c", principal="ana"))
    assert sent(model) == ["user Hello?"]


class _Signing(Advisor):
    """Changes the text of each answer."""

    name, order = "signing", 350

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = await call_next(request)
        assert response.chat_response is not None
        message = response.message.replace(parts=(*response.message.parts, TextPart("Yours.")))
        return response.replace(chat_response=response.chat_response.replace(message=message))


def test_results_are_kept_although_an_advisor_changes_the_answer(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    limits = LoopLimits(max_iterations=1, on_limit="stop")
    client, _ = remembering([[LOOK]], repository, order=INSIDE, tools=[look], advisors=[_Signing()], limits=limits)
    run(mode, client.prompt("The sky?", conversation_id="c"))
    assert logged(repository) == ["user The sky?", *ROUND]


def test_a_blank_answer_that_is_asked_for_again_repeats_nothing(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering(
        [[LOOK], " ", "5"], repository, order=INSIDE, tools=[look], advisors=[StructuredOutputAdvisor(int)]
    )
    assert run(mode, client.prompt("How many?", conversation_id="c")).output == 5
    kept = logged(repository)
    assert kept.count("user How many?") == kept.count(ROUND[1]) == 1


class _Twice(Advisor):
    """Sends each request of a run twice, and returns the second answer."""

    name, order = "twice", 150

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)


def test_a_request_that_is_sent_twice_keeps_its_question_once(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["One.", "Two.", "Three."], repository, order=order, advisors=[_Twice()])
    run(mode, client.prompt("1?", conversation_id="c"))
    assert sent(model) == ["user 1?"]
    remembered, model = remembering(["Three."], repository, order=order)
    run(mode, remembered.prompt("2?", conversation_id="c"))
    assert sent(model) == ["user 1?", "assistant Two.", "user 2?"]


def test_the_answer_to_a_question_that_is_asked_again_belongs_to_its_turn(mode: str, order: int) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=4)
    client, model = remembering(["One.", RuntimeError("down"), "Two.", "Three.", "Four."], memory=memory, order=order)
    for text in ("1?", "2?", "2?", "3?", "4?"):
        try:
            run(mode, client.prompt(text, conversation_id="c"))
        except RuntimeError:
            assert text == "2?"
    assert sent(model) == ["user 3?", "assistant Three.", "user 4?"]


def test_an_inner_agent_keeps_a_question_that_the_outer_agent_was_asked_as_well(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    inner, _ = remembering(["Because."], repository, order=order, name="inner")

    @tool
    def ask() -> str:
        """Ask."""
        return inner.prompt("Why?", conversation_id="c").call().content

    client, _ = remembering([[ToolCall("ask")], "So."], repository, order=order, tools=[ask])
    run(mode, client.prompt("Why?", conversation_id="c"))
    assert logged(repository, branches=["inner"]) == ["user Why?", "assistant Because."]


def test_a_history_of_texts_is_not_sent_beside_answers_with_reasoning(mode: str, order: int) -> None:
    answers = [ChatResponse(AssistantMessage([ReasoningPart("Hm."), TextPart(f"{number}!")])) for number in range(1, 4)]
    client, model = remembering(answers, order=order)
    history: list[Any] = []
    for number in range(1, 4):
        response = run(mode, client.prompt(f"{number}?", messages=history, conversation_id="c"))
        history += [UserMessage(f"{number}?"), AssistantMessage(response.content)]
    assert sent(model) == ["user 1?", "assistant 1!", "user 2?", "assistant 2!", "user 3?"]


def test_a_result_whose_call_is_missing_is_not_sent(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    stray = ToolMessage([ToolResultPart(call_id="1", name="look", content="blue")])
    repository.append("c", [MessageEntry(stray, turn=1, run_id="gone")], 0)
    client, model = remembering(["Hello."], repository, order=order)
    run(mode, client.prompt("Hi.", conversation_id="c"))
    assert sent(model) == ["user Hi."]


class _Broken(InMemoryChatMemoryRepository):
    """Fails in a way that no repository should, at each commit after the first."""

    commits = 0

    def commit(self, before: Conversation | None, after: Conversation, entries: Any) -> bool:
        self.commits += 1
        if self.commits > 1:
            raise ZeroDivisionError
        return super().commit(before, after, entries)


@pytest.mark.parametrize("streamed", ["", "Some text."])
def test_an_error_of_the_repository_does_not_hide_the_error_of_the_run(mode: str, order: int, streamed: str) -> None:
    def fail(_: object) -> Any:
        raise RuntimeError("the model is down")

    client, _ = remembering([fail], _Broken(), order=order)
    with pytest.raises(RuntimeError, match="the model is down"):
        run(mode, client.prompt("Hi.", conversation_id="c"))


def test_results_that_may_not_be_captured_are_in_no_summary_and_no_recall(mode: str) -> None:
    secret = "HUSH-4711"

    @tool(capture=False)
    def reveal(what: str) -> str:
        """Reveal."""
        return secret

    repository = InMemoryChatMemoryRepository()
    memory = CompactingChatMemory(repository, Turns(1), Summarize(ScriptedChatModel(["They talked."] * 5), 1))
    calls = [[ToolCall("reveal", {"what": secret})], "Done."]
    recalls = [[ToolCall("recall", {"words": "HUSH"})], "Done."]
    tools = [reveal, recall_tool(memory)]
    with Telemetry(ContentCapture("SPAN_AND_EVENT")) as telemetry:
        client, _ = remembering(
            [*calls * 3, *recalls], memory=memory, order=INSIDE, tools=tools, telemetry=telemetry.options
        )
        for number in range(4):
            run(mode, client.prompt(f"{number}?", conversation_id="c"))
    assert telemetry.named("compact_memory")
    left = [each.to_json() for each in (*telemetry.spans, *telemetry.records)]
    assert not any(secret in each for each in left)


def test_keeping_turns_is_no_failure(mode: str) -> None:
    memory = CompactingChatMemory(InMemoryChatMemoryRepository(), Turns(1), KeepTurns(1))
    client, model = remembering(["One.", "Two.", "Three.", "Four."], memory=memory)
    for number in range(4):
        run(mode, client.prompt(f"{number}?", conversation_id="c"))
    assert sent(model) == ["user 2?", "assistant Three.", "user 3?"]
