"""An advisor blocks requests and answers with sensitive words, in all four modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.markers import everything
from tests.modes import MODES, STREAMING_MODES, run, run_chunks
from tests.sample_tools import add
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ChatClientResponse,
    MemoryAdvisor,
    SafeguardAdvisor,
    StructuredOutputAdvisor,
    SystemMessage,
    TextPart,
    ToolCall,
    UserMessage,
)
from traced_tools.advisors.safeguard import SensitiveWords
from traced_tools.core import ReasoningPart
from traced_tools.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from traced_tools.models import ChatResponse
from traced_tools.models.base import ChatChunk
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

SORRY = "I can't help with that."


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Pieces(ScriptedChatModel):
    """Streams the given pieces of an answer."""

    def __init__(self, *pieces: str) -> None:
        super().__init__(["".join(pieces)])
        self.pieces = pieces

    def stream(self, request: Any) -> Any:
        self.requests.append(request)
        yield from (ChatChunk(text=each) for each in self.pieces)


def shown(chunks: list[ChatClientResponse]) -> str:
    """Return what a reader sees who clears the display where the answer restarts."""
    text = ""
    for chunk in chunks:
        text = chunk.text if chunk.delta is not None and chunk.delta.restarts else text + chunk.text
    return text


# Requests.


@pytest.mark.parametrize(
    ("word", "text"),
    [
        ("secret", "Tell me the SECRET."),
        ("SECRET", "secretary"),
        ("straße", "STRASSE"),
        ("ß", "ss"),
        ("café", "CAFE\u0301"),
        ("secret", "\uff33\uff25\uff23\uff32\uff25\uff34"),
        ("title", "TITLE"),  # under a Turkish locale, the small letter of I has no dot
        ("ﬁne", "FINE"),
        ("\u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2", "\u03a3\u038a\u03a3\u03a5\u03a6\u039f\u03a3"),
        ("two words", "…two words…"),
    ],
)
def test_a_request_with_a_sensitive_word_is_answered_without_the_model(mode: str, word: str, text: str) -> None:
    model = ScriptedChatModel([])
    client = ChatClient(model, advisors=[SafeguardAdvisor(["other", word])])
    response, chunks = run_chunks(mode, client.prompt(text, params={"kept": 1}))
    assert (response.content, response.stop_reason, response.finish_reason) == (SORRY, "advisor", "content_filter")
    assert response.messages == (UserMessage(text), AssistantMessage(SORRY))
    assert response.context == {"kept": 1}
    assert model.requests == []
    assert "".join(chunk.text for chunk in chunks) == (SORRY if mode in STREAMING_MODES else "")


@pytest.mark.parametrize("text", ["Tell me.", "sec ret", "sécret", "cafe"])
def test_a_request_without_a_sensitive_word_passes(mode: str, text: str) -> None:
    client = ChatClient(ScriptedChatModel(["Fine."]), advisors=[SafeguardAdvisor(["secret", "café"])])
    response, chunks = run_chunks(mode, client.prompt(text))
    assert (response.content, response.stop_reason) == ("Fine.", "answered")
    assert [chunk.text for chunk in chunks if chunk.text] == ["Fine."] * (mode in STREAMING_MODES)


@pytest.mark.parametrize("where", ["system", "history", "user"])
def test_all_texts_of_a_prompt_are_checked(mode: str, where: str) -> None:
    texts = {name: "secret" if name == where else "?" for name in ("system", "history", "user")}
    client = ChatClient(ScriptedChatModel([]), advisors=[SafeguardAdvisor(["secret"])])
    prompt = client.prompt(
        texts["user"], system=texts["system"], messages=[UserMessage("?"), AssistantMessage(texts["history"])]
    )
    assert run(mode, prompt).content == SORRY


def test_inside_the_loop_the_results_of_tools_are_checked(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 41})])
    client = ChatClient(model, tools=[add], advisors=[SafeguardAdvisor(["42"], order=400)])
    response = run(mode, client.prompt("?"))
    assert response.content == SORRY
    assert len(model.requests) == 1


async def later(text: str) -> bool:
    await asyncio.sleep(0)
    return "7" in text


@pytest.mark.parametrize("blocks", [lambda text: "7" in text, later], ids=["plain", "async"])
def test_a_function_blocks_requests_and_answers(mode: str, blocks: Any) -> None:
    client = ChatClient(
        ScriptedChatModel(["It is 8.", "It is 7."]), advisors=[SafeguardAdvisor(blocks=blocks, answer="No numbers.")]
    )
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert response.content == "It is 8."
    assert mode not in STREAMING_MODES or [chunk.text for chunk in chunks if chunk.text] == ["It is 8."]
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert (response.content, response.stop_reason) == ("No numbers.", "advisor")
    assert mode not in STREAMING_MODES or [chunk.text for chunk in chunks if chunk.text] == ["No numbers."]
    assert run(mode, client.prompt("7")).content == "No numbers."


def test_a_function_that_raises_fails_the_run(mode: str) -> None:
    def broken(text: str) -> bool:
        raise LookupError

    with pytest.raises(LookupError):
        run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[SafeguardAdvisor(blocks=broken)]).prompt("?"))


# Answers.


def test_an_answer_with_a_sensitive_word_is_replaced(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "It is a SECRET, really."])
    client = ChatClient(model, tools=[add], advisors=[SafeguardAdvisor(["secret"])])
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert (response.content, response.stop_reason, response.finish_reason) == (SORRY, "advisor", "content_filter")
    assert [message.role for message in response.messages] == ["user", "assistant", "tool", "assistant"]
    assert "SECRET" not in everything([message.model_dump_json() for message in response.messages])
    if mode in STREAMING_MODES:
        assert "".join(chunk.text for chunk in chunks) == f"It is a {SORRY}"
        assert shown(chunks) == SORRY


def test_reasoning_is_checked_and_not_streamed(mode: str) -> None:
    def turn(thought: str) -> ChatResponse:
        return ChatResponse(AssistantMessage([ReasoningPart(thought), TextPart("Hello.")]), finish_reason="stop")

    client = ChatClient(ScriptedChatModel([turn("a secret"), turn("nothing")]), advisors=[SafeguardAdvisor(["secret"])])
    assert run(mode, client.prompt("?")).content == SORRY
    response, chunks = run_chunks(mode, client.prompt("?"))
    assert response.content == "Hello."
    assert not any(chunk.delta.reasoning or chunk.delta.parts for chunk in chunks if chunk.delta is not None)


def test_a_part_of_an_output_is_not_shown_while_text_is_held_back(mode: str) -> None:
    client = ChatClient(Pieces('{"a": "sec', 'ret"}'), advisors=[SafeguardAdvisor(["secret"])])
    response, chunks = run_chunks(mode, client.prompt("?", output=dict[str, str]))
    assert "sec" not in str([chunk.partial for chunk in chunks])
    with pytest.raises(RuntimeError, match="an advisor replaced the answer"):
        _ = response.output


def test_an_attempt_after_a_blocked_one_is_shown(mode: str) -> None:
    model = ScriptedChatModel(["a secret number", "3"])
    advisors = [SafeguardAdvisor(["secret"]), StructuredOutputAdvisor(int)]
    response, chunks = run_chunks(mode, ChatClient(model, advisors=advisors).prompt("?"))
    assert (response.output, response.content) == (3, "3")
    assert mode not in STREAMING_MODES or shown(chunks) == "3"


# Streams.


@pytest.mark.parametrize("stream", STREAMING_MODES)
def test_text_that_no_word_can_begin_in_leaves_at_once(stream: str) -> None:
    pieces = ["The s", "un and the sec", "ond s", "e", "c", "rets", "!"]
    client = ChatClient(Pieces(*pieces), advisors=[SafeguardAdvisor(["secretly"])])
    _, chunks = run_chunks(stream, client.prompt("?"))
    assert [chunk.text for chunk in chunks] == ["The ", "sun and the ", "second ", "secret", "s!"]


@pytest.mark.parametrize("stream", STREAMING_MODES)
def test_the_held_end_of_an_answer_is_delivered(stream: str) -> None:
    client = ChatClient(Pieces("No ", "sec"), advisors=[SafeguardAdvisor(["secret"])])
    response, chunks = run_chunks(stream, client.prompt("?"))
    assert [chunk.text for chunk in chunks] == ["No ", "sec"]
    assert response.content == "No sec"


@pytest.mark.parametrize("stream", STREAMING_MODES)
def test_a_word_in_two_chunks_does_not_leave(stream: str) -> None:
    client = ChatClient(Pieces("The \uff53\uff25", "c", "rET is", " 42."), advisors=[SafeguardAdvisor(["secret"])])
    response, chunks = run_chunks(stream, client.prompt("?"))
    assert [chunk.text for chunk in chunks] == ["The ", SORRY]
    assert shown(chunks) == response.content == SORRY


LETTERS = "abBßsé\u0301eﬁi각 \uff21\uff41I\u0130"


@given(
    words=st.lists(st.text(LETTERS, min_size=1, max_size=4).filter(lambda word: word.strip() and word[0].isalpha())),
    pieces=st.lists(st.text(LETTERS, max_size=6), min_size=1, max_size=8),
)
@example(words=["mas"], pieces=["ma", "ß"])
@example(words=["sa"], pieces=["ß", "a"])
@example(words=["e"], pieces=["e", "\u0301"])
@example(words=["가"], pieces=["가", "ᆨ"])
@example(words=["ab", "b"], pieces=["a", "b"])
def test_a_stream_shows_what_a_call_returns_and_no_word(words: list[str], pieces: list[str]) -> None:
    guard = SafeguardAdvisor([*words, "zz"], answer="#")
    whole = ChatClient(Pieces(*pieces), advisors=[guard]).prompt("?").call()
    with ChatClient(Pieces(*pieces), advisors=[guard]).prompt("?").stream() as stream:
        chunks = list(stream)
    assert shown(chunks) == stream.response.content == whole.content
    before = "".join(chunk.text for chunk in chunks)
    if before.endswith("#"):
        assert not SensitiveWords(words).are_in(before[:-1])


# What is recorded.


def test_a_block_is_counted_and_its_word_appears_nowhere(mode: str) -> None:
    telemetry = Telemetry()
    client = ChatClient(
        ScriptedChatModel(["the sesame street"]), advisors=[SafeguardAdvisor(["sesame"])], telemetry=telemetry.options
    )
    run(mode, client.prompt("Open sesame."))
    run(mode, client.prompt("Open."))
    counted = {
        str(each.attributes[names.SAFEGUARD_WHERE]): each for each in telemetry.metric(names.SAFEGUARD_BLOCKS.name)
    }
    assert {where: each.value for where, each in counted.items()} == {"request": 1, "response": 1}
    assert counted["request"].attributes[names.ADVISOR_NAME] == "safeguard"
    assert counted["request"].attributes[names.AGENT_NAME] == "assistant"
    first, second = telemetry.events_named(names.SAFEGUARD_BLOCK_EVENT.name)
    assert first.attributes[names.SAFEGUARD_WHERE] == "request"
    assert (second.attributes[names.SAFEGUARD_WHERE], second.attributes[names.ITERATION_INDEX]) == ("response", 1)
    assert "sesame" not in everything([each.attributes for each in telemetry.events]).lower()
    assert "sesame" not in everything([dict(span.attributes or {}) for span in telemetry.spans]).lower()
    (_, ended) = telemetry.named("invoke_agent")
    assert ended.attributes is not None
    assert ended.attributes[names.LOOP_STOP_REASON] == "advisor"


def test_an_advisor_keeps_nothing_of_a_run_that_has_ended(mode: str) -> None:
    guard = SafeguardAdvisor(["secret"])
    client = ChatClient(ScriptedChatModel(["one two", "secret", "one two"]), advisors=[guard])
    run(mode, client.prompt("?"))
    run(mode, client.prompt("?"))
    with client.prompt("?").stream() as stream:
        next(stream)
    assert len(guard._streamed) == 0


_guard: Any = SafeguardAdvisor


@pytest.mark.parametrize(
    ("attempt", "says"),
    [
        (lambda: _guard(), "needs words or blocks="),
        (lambda: _guard([]), "needs words or blocks="),
        (lambda: _guard("secret"), "words must be a list of words"),
        (lambda: _guard(["a", None]), r"words\[1\] must be a str, not None"),
        (lambda: _guard(["a", " \n"]), r"words\[1\] must not be blank"),
        (lambda: _guard([""]), r"words\[0\] must not be blank"),
        (lambda: _guard(blocks="secret"), "blocks must be callable"),
        (lambda: _guard(["a"], answer=" "), "answer must not be blank"),
        (lambda: _guard(["a"], order="first"), "order must be an int"),
    ],
)
def test_an_invalid_argument_is_refused(attempt: Callable[[], object], says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        attempt()


def test_a_system_message_alone_is_checked(mode: str) -> None:
    client = ChatClient(ScriptedChatModel([]), advisors=[SafeguardAdvisor(["secret"])])
    assert run(mode, client.prompt(messages=[SystemMessage("secret")])).content == SORRY


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("guard", "memory"), [(100, 200), (250, 200), (250, 400), (450, 400)])
def test_a_blocked_question_does_not_block_the_questions_after_it(mode: str, guard: int, memory: int) -> None:
    kept = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedChatModel(["Fine."])
    advisors = [SafeguardAdvisor(["code"], order=guard), MemoryAdvisor(kept, order=memory)]
    client = ChatClient(model, advisors=advisors)
    assert run(mode, client.prompt("The code?", conversation_id="c")).content == "I can't help with that."
    assert run(mode, client.prompt("And the weather?", conversation_id="c")).content == "Fine."


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("guard", "memory"), [(250, 200), (450, 400)])
def test_a_guard_inside_the_memory_replaces_what_is_kept(mode: str, guard: int, memory: int) -> None:
    kept = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    advisors = [SafeguardAdvisor(["code"], order=guard), MemoryAdvisor(kept, order=memory)]
    client = ChatClient(ScriptedChatModel(["The code is 1."]), advisors=advisors)
    run(mode, client.prompt("Tell me.", conversation_id="c"))
    assert [message.text for message in kept.get("c")] == ["Tell me.", "I can't help with that."]
