"""The memory advisor around the tool loop and in it, in all four modes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed, logged, remembering, sent, shown
from tests.modes import ALL_MODES, ASYNC_MODES, MODES, STREAMING_MODES, arun, run
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ImagePart,
    LoopLimits,
    MemoryAdvisor,
    Message,
    StructuredOutputAdvisor,
    TextPart,
    ToolCall,
    ToolExecutionError,
    ToolMessage,
    UserMessage,
    tool,
)
from traced_tools.core import ReasoningPart, ToolErrors, ToolResultPart
from traced_tools.errors import AdvisorChainError, ChatMemoryUnavailable, ConversationDenied, ToolNotFoundError
from traced_tools.loop.advisor import AdviseNext
from traced_tools.memory import (
    ChatMemoryRepository,
    Conversation,
    EntrySelection,
    InMemoryChatMemoryRepository,
    MemorySession,
    MemoryView,
    MessageEntry,
    MessageWindowChatMemory,
)
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools

LOOK = ToolCall("look", {"at": "the sky"})


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


@tool(return_direct=True)
def recite() -> str:
    """Recite a poem."""
    return "Roses are red."


def test_a_run_is_sent_what_earlier_runs_said(mode: str, order: int) -> None:
    client, model = remembering(["Hello, Ana.", [LOOK], "Blue.", "Ana."], order=order, system="Be kind.", tools=[look])
    run(mode, client.prompt("I am Ana.", conversation_id="c"))
    run(mode, client.prompt("What color is the sky?", conversation_id="c"))
    assert run(mode, client.prompt("Who am I?", conversation_id="c")).content == "Ana."
    rounds = ["call look", "tool the sky is blue"] if order == INSIDE else []
    assert sent(model) == [
        "system Be kind.",
        "user I am Ana.",
        "assistant Hello, Ana.",
        "user What color is the sky?",
        *rounds,
        "assistant Blue.",
        "user Who am I?",
    ]


def test_the_loop_is_sent_the_rounds_of_the_run(mode: str, order: int) -> None:
    client, model = remembering([[LOOK], [LOOK], "Blue."], order=order, system="Be kind.", tools=[look])
    run(mode, client.prompt("What color is the sky?", conversation_id="c"))
    rounds = ["call look", "tool the sky is blue"] * 2
    assert sent(model) == ["system Be kind.", "user What color is the sky?", *rounds]


def test_the_log_has_the_run_and_the_agent_and_the_turn_of_each_message(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering(["One.", [LOOK], "Two."], repository, order=order, name="guide", tools=[look])
    runs = [run(mode, client.prompt(text, conversation_id="c")).run_id for text in ("1?", "2?")]
    entries = repository.read("c").entries
    whole = order == INSIDE
    assert [entry.turn for entry in entries] == [1, 1, 2, 2, *([2, 2] if whole else [])]
    assert [entry.run_id for entry in entries] == [runs[0]] * 2 + [runs[1]] * (4 if whole else 2)
    assert {entry.agent for entry in entries} == {"guide"}
    assert {entry.branch for entry in entries} == {""}


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_a_message_is_kept_with_reasoning_images_and_signatures(mode: str, order: int) -> None:
    answer = AssistantMessage([ReasoningPart("It is Ana.", signature="s"), TextPart("Ana.", signature="t")])
    asked = UserMessage([TextPart("Who is this?"), ImagePart(data=b"\x89PNG")])
    client, model = remembering([ChatResponse(answer), "Yes."], order=order)
    run(mode, client.prompt(asked, conversation_id="c"))
    run(mode, client.prompt("Sure?", conversation_id="c"))
    first, second = model.requests[-1].messages[:2]
    assert (first, second) == (asked, answer.replace(provider="scripted"))


def test_a_memory_is_outside_the_loop_unless_it_is_given_another_order() -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    assert [MemoryAdvisor(memory).order, MemoryAdvisor(memory, order=INSIDE).order] == [OUTSIDE, INSIDE]


def test_a_request_without_a_conversation_id_is_not_kept(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering([[LOOK], "Blue."], repository, order=order, tools=[look])
    run(mode, client.prompt("What color is the sky?"))
    assert repository.conversations() == ()
    assert sent(model) == ["user What color is the sky?", "call look", "tool the sky is blue"]


def test_instructions_come_first_and_are_not_kept(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["One.", "Two."], repository, order=order, system="Be brief.")
    run(mode, client.prompt("1?", conversation_id="c"))
    run(mode, client.prompt("2?", conversation_id="c", system="Be kind."))
    assert sent(model) == ["system Be kind.", "user 1?", "assistant One.", "user 2?"]
    assert logged(repository) == ["user 1?", "assistant One.", "user 2?", "assistant Two."]


def test_a_conversation_that_the_caller_passes_as_well_is_not_sent_twice(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["One.", [LOOK], "Two.", "Three."], repository, order=order, system="Hi.", tools=[look])
    history: list[Message] = []
    for text in ("1?", "2?", "3?"):
        response = run(mode, client.prompt(text, messages=history, conversation_id="c"))
        new = response.messages[1:] if order == OUTSIDE else response.messages[len(history) + 1 :]
        history = [*history, *new] if order == INSIDE else list(new)
    kept = logged(repository)
    assert sent(model) == ["system Hi.", *kept[:-1]]
    assert kept.count("user 1?") == kept.count("user 2?") == 1


@pytest.mark.parametrize("size", [2, 4])
def test_a_whole_conversation_that_the_caller_passes_is_not_sent_beside_a_shorter_view(mode: str, size: int) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=size + 1)
    client, model = remembering(["One.", [LOOK], "Two.", "Three."], memory=memory, tools=[look])
    history: list[Message] = []
    for text in ("1?", "2?", "3?"):
        whole = run(mode, client.prompt(text, messages=history, conversation_id="c"))
        calls = [each for each in whole.messages if shown([each])[0][:4] in ("call", "tool")]
        history += [UserMessage(text), *calls, whole.message]
    assert sent(model) == [*["user 1?", "assistant One."][: size - 2], "user 2?", "assistant Two.", "user 3?"]


def test_the_end_of_a_conversation_that_the_caller_passes_is_not_sent_twice(mode: str, order: int) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository(), max_messages=3)
    client, model = remembering(["One.", "Two.", "Three."], memory=memory, order=order)
    history: list[Any] = []
    for text in ("1?", "2?", "3?"):
        response = run(mode, client.prompt(text, messages=history, conversation_id="c"))
        history += [UserMessage(text), response.message]
    assert sent(model) == ["user 2?", "assistant Two.", "user 3?"]


def test_messages_that_precede_what_is_kept_are_sent_before_it(mode: str, order: int) -> None:
    client, model = remembering(["One.", "Two."], order=order)
    history: list[Message] = [UserMessage("0?"), AssistantMessage("Zero.")]
    for text in ("1?", "2?"):
        response = run(mode, client.prompt(text, messages=history, conversation_id="c"))
        history += [UserMessage(text), response.message]
    assert sent(model) == ["user 0?", "assistant Zero.", "user 1?", "assistant One.", "user 2?"]


def test_messages_that_do_not_continue_the_conversation_are_sent_and_not_kept(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    examples = [UserMessage("2 + 2?"), AssistantMessage("4")]
    client, model = remembering(["One.", [LOOK], "Two."], repository, order=order, tools=[look])
    run(mode, client.prompt("1?", messages=examples, conversation_id="c"))
    run(mode, client.prompt("2?", messages=examples, conversation_id="c"))
    assert sent(model, 1) == ["user 1?", "assistant One.", "user 2 + 2?", "assistant 4", "user 2?"]
    assert sent(model)[:5] == sent(model, 1)
    assert not {"user 2 + 2?", "assistant 4"} & {*logged(repository)}


def test_results_of_a_tool_that_answers_directly_are_kept(mode: str, order: int) -> None:
    client, model = remembering([[ToolCall("recite")], "You are welcome."], order=order, tools=[recite])
    assert run(mode, client.prompt("A poem, please.", conversation_id="c")).stop_reason == "return_direct"
    run(mode, client.prompt("Thanks!", conversation_id="c"))
    rounds = ["call recite", "tool Roses are red."] if order == INSIDE else []
    assert sent(model) == ["user A poem, please.", *rounds, "assistant Roses are red.", "user Thanks!"]


def test_a_run_that_reaches_a_limit_leaves_no_call_without_a_result(mode: str, order: int) -> None:
    limits = LoopLimits(max_iterations=1, on_limit="stop")
    client, model = remembering([[LOOK], "Blue."], order=order, tools=[look])
    assert run(mode, client.prompt("The sky?", conversation_id="c", limits=limits)).stop_reason == "max_iterations"
    run(mode, client.prompt("And now?", conversation_id="c"))
    rounds = ["call look", "tool the sky is blue"] if order == INSIDE else []
    assert sent(model) == ["user The sky?", *rounds, "user And now?"]
    assert_well_formed(model.requests[-1].messages)


def test_an_answer_with_text_beside_its_calls_is_kept_when_a_limit_ends_the_run(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering(
        [["Let me look.", LOOK]], repository, tools=[look], limits=LoopLimits(max_iterations=1, on_limit="stop")
    )
    run(mode, client.prompt("The sky?", conversation_id="c"))
    assert logged(repository) == ["user The sky?", "assistant Let me look."]


@pytest.mark.parametrize(("name", "error"), [("fail", ToolExecutionError), ("invented", ToolNotFoundError)])
def test_a_tool_that_ends_the_run_leaves_what_is_known_of_each_call(
    mode: str, name: str, error: type[Exception]
) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise ValueError("broken")

    repository = InMemoryChatMemoryRepository()
    calls = [LOOK.replace(id="1"), ToolCall(name, id="2")]
    errors = ToolErrors(always_raise=True, unknown_tool="raise")
    client, model = remembering([calls, "Sorry."], repository, order=INSIDE, tools=[look, fail], tool_errors=errors)
    with pytest.raises(error):
        run(mode, client.prompt("Go.", conversation_id="c"))
    run(mode, client.prompt("What happened?", conversation_id="c"))
    assert_well_formed(model.requests[-1].messages)
    assert sent(model)[2].startswith("tool the sky is blue, ")
    assert sent(model) == logged(repository)[:-1]


def test_a_failed_model_call_leaves_the_question(mode: str, order: int) -> None:
    client, model = remembering([RuntimeError("down"), "Hello."], order=order)
    with pytest.raises(RuntimeError):
        run(mode, client.prompt("Hi.", conversation_id="c"))
    run(mode, client.prompt("Hello?", conversation_id="c"))
    assert sent(model) == ["user Hi.", "user Hello?"]


def test_a_question_that_is_asked_again_is_kept_once(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering([RuntimeError("down"), "Hello."], repository, order=order)
    with pytest.raises(RuntimeError):
        run(mode, client.prompt("Hi.", conversation_id="c"))
    run(mode, client.prompt("Hi.", conversation_id="c"))
    assert sent(model) == ["user Hi."]
    assert logged(repository) == ["user Hi.", "assistant Hello."]


class _Again(Advisor):
    """Sends each request twice, as a retry does."""

    name, order = "again", 350

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            return await call_next(request)
        except RuntimeError:
            return await call_next(request)


def test_a_retried_model_call_keeps_its_question_once(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering([RuntimeError("down"), "Hello."], repository, order=INSIDE, advisors=[_Again()])
    run(mode, client.prompt("Hi.", conversation_id="c"))
    assert sent(model) == ["user Hi."]
    assert logged(repository) == ["user Hi.", "assistant Hello."]


def test_an_answer_that_is_asked_for_again_is_kept_by_a_memory_inside_with_its_correction(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["one", "two", "3"], repository, order=INSIDE, advisors=[StructuredOutputAdvisor(int)])
    assert run(mode, client.prompt("How many?", conversation_id="c")).output == 3
    roles = [message.role for message in repository.read("c").messages]
    assert roles == ["user", "assistant", "user", "assistant", "user", "assistant"]
    assert_well_formed(model.requests[-1].messages)


def test_a_memory_outside_keeps_only_the_valid_answer(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering(["one", "2"], repository, advisors=[StructuredOutputAdvisor(int)])
    assert run(mode, client.prompt("How many?", conversation_id="c")).output == 2
    assert logged(repository) == ["user How many?", "assistant 2"]


@pytest.mark.parametrize("streaming", STREAMING_MODES)
def test_an_abandoned_stream_keeps_what_was_streamed(streaming: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering(["One two three.", "Yes."], repository, order=order)
    spec = client.prompt("Count.", conversation_id="c")
    if streaming == "stream":
        with spec.stream() as stream:
            next(stream), next(stream)
    else:

        async def leave() -> None:
            async with spec.astream() as astream:
                await anext(astream), await anext(astream)

        asyncio.run(leave())
    assert logged(repository) == ["user Count.", "assistant One two "]
    client.prompt("Go on.", conversation_id="c").call()
    assert sent(model) == ["user Count.", "assistant One two ", "user Go on."]


def test_a_run_that_is_closed_before_its_tools_leaves_calls_that_were_not_run() -> None:
    client, model = remembering([[LOOK], "Blue."], order=INSIDE, tools=[look])
    with client.prompt("The sky?", conversation_id="c").start() as steps:
        while not isinstance(step := steps.next(), ExecuteTools):
            assert step is not None
            steps.perform(step)
        steps.cancel()
        while (step := steps.next()) is not None:
            steps.perform(step)
    client.prompt("And?", conversation_id="c").call()
    assert_well_formed(model.requests[-1].messages)
    assert sent(model)[2].startswith("tool The call was not run: ")


@pytest.mark.parametrize("mode", ALL_MODES)
def test_an_interrupt_in_a_tool_leaves_an_unknown_outcome(mode: str) -> None:
    @tool
    async def pay() -> str:
        """Pay."""
        raise KeyboardInterrupt

    calls = [LOOK.replace(id="1"), ToolCall("pay", id="2")] if mode in ASYNC_MODES else [ToolCall("pay", id="2")]
    client, model = remembering([calls, "Sorry."], order=INSIDE, tools=[pay, look])
    with pytest.raises(KeyboardInterrupt):
        run(mode, client.prompt("Pay.", conversation_id="c"))
    client.prompt("Did you?", conversation_id="c").call()
    assert_well_formed(model.requests[-1].messages)
    assert "The outcome of the call is unknown, and it may have run: the run was interrupted." in sent(model)[2]


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_a_cancelled_task_leaves_an_unknown_outcome(mode: str) -> None:
    async def cancel_in_tool() -> None:
        begun = asyncio.Event()

        @tool
        async def pay() -> str:
            """Pay."""
            begun.set()
            return await asyncio.Future()

        task = asyncio.ensure_future(arun(mode, client.prompt("Pay.", conversation_id="c", tools=[pay])))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    client, model = remembering([[ToolCall("pay")], "Sorry."], order=INSIDE)
    asyncio.run(cancel_in_tool())
    client.prompt("Did you?", conversation_id="c").call()
    assert_well_formed(model.requests[-1].messages)
    assert sent(model)[2].startswith("tool The outcome of the call is unknown")


def test_a_call_that_a_dead_process_left_gets_one_placeholder(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    call = AssistantMessage(tool_calls=[LOOK.replace(id="1")])
    dead = [MessageEntry(message, turn=1, run_id="dead") for message in (UserMessage("The sky?"), call)]
    repository.append("c", dead, 0)
    client, model = remembering(["Maybe.", "Maybe."], repository, order=order)
    for _ in range(2):
        run(mode, client.prompt("And?", conversation_id="c"))
        assert_well_formed(model.requests[-1].messages)
    placeholders = [entry for entry in repository.read("c").entries if entry.kind == "message" and entry.placeholder]
    assert [(entry.turn, entry.run_id) for entry in placeholders] == [(1, "dead")]
    assert sent(model)[2].startswith("tool The outcome of the call is unknown")


def test_results_that_arrive_after_all_replace_a_placeholder(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    call = AssistantMessage(tool_calls=[LOOK.replace(id="1")])
    late = ToolMessage([ToolResultPart(call_id="1", name="look", content="blue")])
    repository.append("c", [MessageEntry(each, turn=1, run_id="far") for each in (UserMessage("The sky?"), call)], 0)
    client, model = remembering(["Hm.", "Blue."], repository, order=order)
    run(mode, client.prompt("And?", conversation_id="c"))
    far = [MessageEntry(each, turn=1, run_id="far") for each in (late, AssistantMessage("It is blue."))]
    repository.append("c", far, repository.version("c"))
    run(mode, client.prompt("So?", conversation_id="c"))
    answered = ["user The sky?", "call look", "tool blue", "assistant It is blue."]
    assert sent(model) == [*answered, "user And?", "assistant Hm.", "user So?"]


def test_a_loop_of_the_caller_goes_on_in_the_same_turn(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, model = remembering([[LOOK], "Blue.", "Yes."], repository, tools=[look])
    asked = run(mode, client.prompt("The sky?", conversation_id="c", tool_calling=False))
    result = ToolMessage([ToolResultPart(call_id=asked.tool_calls[0].id or "", name="look", content="blue")])
    run(mode, client.prompt(messages=[*asked.messages, result], conversation_id="c", tool_calling=False))
    assert sent(model) == ["user The sky?", "call look", "tool blue"]
    run(mode, client.prompt("Sure?", conversation_id="c"))
    assert sent(model) == ["user The sky?", "call look", "tool blue", "assistant Blue.", "user Sure?"]
    assert [entry.turn for entry in repository.read("c").entries] == [1, 1, 1, 1, 2, 2]


def test_an_answer_that_says_nothing_is_not_kept(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering([" "], repository, order=order)
    run(mode, client.prompt("Hi.", conversation_id="c"))
    assert logged(repository) == ["user Hi."]


def test_the_question_is_kept_before_the_model_is_called(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    seen: list[list[str]] = []

    def answer(_: object) -> str | ToolCall:
        seen.append(logged(repository))
        return LOOK if len(seen) == 1 else "Blue."

    client, _ = remembering([answer, answer], repository, order=order, tools=[look])
    run(mode, client.prompt("The sky?", conversation_id="c"))
    rounds = ["call look", "tool the sky is blue"] if order == INSIDE else []
    assert seen == [["user The sky?"], ["user The sky?", *rounds]]


def test_two_memories_of_one_repository_are_refused(mode: str) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    advisors = [MemoryAdvisor(memory), MemoryAdvisor(memory, order=INSIDE)]
    with pytest.raises(AdvisorChainError, match="keep one of them"):
        run(mode, ChatClient(ScriptedChatModel(["Hi."]), advisors=advisors).prompt("Hi.", conversation_id="c"))


@pytest.mark.parametrize(
    ("argument", "value"), [("memory", None), ("order", "first"), ("on_failure", "ignore"), ("name", 1)]
)
def test_an_invalid_argument_is_named(argument: str, value: Any) -> None:
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    with pytest.raises((TypeError, ValueError), match=argument):
        MemoryAdvisor(**{"memory": memory, argument: value})


# Owners and stores.


def test_another_principals_conversation_is_refused_before_the_model_is_called(mode: str, order: int) -> None:
    client, model = remembering(["Hello.", "Never."], order=order)
    run(mode, client.prompt("I am Ana.", conversation_id="c", principal="ana"))
    for principal in ("bob", None):
        with pytest.raises(ConversationDenied):
            run(mode, client.prompt("Who am I?", conversation_id="c", principal=principal))
    assert len(model.requests) == 1


def test_attributes_of_the_run_find_its_conversations(mode: str) -> None:
    repository = InMemoryChatMemoryRepository()
    client, _ = remembering(["Hello."], repository)
    attributes = {"tenant": "acme", "tries": 3, "note": ""}
    run(mode, client.prompt("Hi.", conversation_id="c", principal="ana", attributes=attributes))
    (found,) = repository.conversations(attributes={"tenant": "acme"})
    assert (found.id, found.principal, dict(found.attributes)) == ("c", "ana", {"tenant": "acme"})


class _Flaky(InMemoryChatMemoryRepository):
    """A store that is down for the calls whose numbers are in `down`, from 1."""

    def __init__(self, down: Callable[[int], bool]) -> None:
        super().__init__()
        self.down = down
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        if self.down(self.calls):
            raise ChatMemoryUnavailable("the store is down")

    def find_conversation(self, conversation_id: str) -> Conversation | None:
        self._call()
        return super().find_conversation(conversation_id)

    def commit(self, before: Conversation | None, after: Conversation, entries: Any) -> bool:
        self._call()
        return super().commit(before, after, entries)

    def fetch_entries(self, conversation: Conversation, selection: EntrySelection) -> Any:
        self._call()
        return super().fetch_entries(conversation, selection)


def test_a_store_that_is_down_fails_the_run_before_the_model_is_called(mode: str, order: int) -> None:
    client, model = remembering(["Never."], _Flaky(lambda call: True), order=order)
    with pytest.raises(ChatMemoryUnavailable):
        run(mode, client.prompt("Hi.", conversation_id="c"))
    assert model.requests == []


def test_with_warn_a_run_goes_on_without_a_store(mode: str, order: int, caplog: pytest.LogCaptureFixture) -> None:
    repository = _Flaky(lambda call: True)
    client, model = remembering([[LOOK], "Blue."], repository, order=order, tools=[look], on_failure="warn")
    assert run(mode, client.prompt("The sky?", conversation_id="c")).content == "Blue."
    assert sent(model) == ["user The sky?", "call look", "tool the sky is blue"]
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ChatMemoryUnavailable" in caplog.text


@pytest.mark.parametrize("first", range(1, 8))
@pytest.mark.parametrize("begins", [True, False], ids=["new", "continued"])
def test_with_warn_a_store_that_comes_back_gets_what_the_run_added(
    mode: str, order: int, first: int, begins: bool
) -> None:
    repository = _Flaky(lambda call: False)
    if not begins:
        MessageWindowChatMemory(repository).add("c", [UserMessage("Hi."), AssistantMessage("Hello.")])
    repository.calls, repository.down = 0, lambda call: call == first
    client, model = remembering([[LOOK], [LOOK], "Blue."], repository, order=order, tools=[look], on_failure="warn")
    assert run(mode, client.prompt("The sky?", conversation_id="c")).content == "Blue."
    rounds = ["call look", "tool the sky is blue"] * 2
    assert sent(model)[-5:] == ["user The sky?", *rounds]
    repository.down = lambda call: False
    earlier = [] if begins else ["user Hi.", "assistant Hello."]
    assert logged(repository) == [*earlier, "user The sky?", *(rounds if order == INSIDE else []), "assistant Blue."]
    turn = 1 if begins else 2
    assert {entry.turn for entry in repository.read("c").entries[len(earlier) :]} == {turn}


def test_with_warn_another_principals_conversation_is_refused_nevertheless(mode: str) -> None:
    client, _ = remembering(["Hello.", "Never."], on_failure="warn")
    run(mode, client.prompt("I am Ana.", conversation_id="c", principal="ana"))
    with pytest.raises(ConversationDenied):
        run(mode, client.prompt("Who am I?", conversation_id="c"))


@pytest.mark.parametrize("returned", [None, "view", MemoryView()])
def test_a_memory_that_returns_the_wrong_view_is_named(returned: Any, mode: str) -> None:
    class Odd(MessageWindowChatMemory):
        async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
            view = returned
            return view

    client, model = remembering(["Never."], memory=Odd(InMemoryChatMemoryRepository()))
    with pytest.raises((TypeError, ValueError), match="fit of Odd must"):
        run(mode, client.prompt("Hi.", conversation_id="c"))
    assert model.requests == []


# Runs at once.


def test_twenty_runs_of_a_conversation_at_once_lose_nothing_and_repeat_nothing(
    open_repository: Callable[[], ChatMemoryRepository], order: int
) -> None:
    together = threading.Barrier(20)

    def answer(request: Any) -> str:
        assert_well_formed(request.messages)
        together.wait(60)
        return f"Answer to {request.messages[-1].text}"

    with open_repository() as repository:
        client, _ = remembering([answer] * 20, repository, order=order)
        with ThreadPoolExecutor(20) as threads:
            list(threads.map(lambda number: client.prompt(f"{number}?", conversation_id="c").call(), range(20)))
        kept = logged(repository)
        assert sorted(kept) == sorted(text for n in range(20) for text in (f"user {n}?", f"assistant Answer to {n}?"))
        assert sorted({entry.turn for entry in repository.read("c").entries}) == list(range(1, 21))
        view = shown(MessageWindowChatMemory(repository, max_messages=100).get("c"))
    assert [text.replace("user ", "assistant Answer to ") for text in view[::2]] == view[1::2]


def test_a_run_does_not_see_the_turn_of_a_run_that_has_not_ended(mode: str, order: int) -> None:
    repository = InMemoryChatMemoryRepository()
    other: list[list[str]] = []

    @tool
    def meanwhile() -> str:
        """Let another run of the conversation go by."""
        client, model = remembering(["Two."], repository, order=order)
        threading.Thread(target=lambda: client.prompt("2?", conversation_id="c").call()).run()
        other.append(sent(model))
        return "done"

    client, model = remembering([[ToolCall("meanwhile")], "One.", "Three."], repository, order=order, tools=[meanwhile])
    context: list[Any] = []
    worker = threading.Thread(target=lambda: context.append(run(mode, client.prompt("1?", conversation_id="c"))))
    worker.start()
    worker.join()
    run(mode, client.prompt("3?", conversation_id="c"))
    assert_well_formed(model.requests[-1].messages)
    assert other == [["user 1?", "user 2?"]]


@pytest.mark.parametrize("mode", MODES)
def test_calls_with_the_ids_and_results_of_earlier_ones_are_kept(mode: str) -> None:
    """Some servers number the calls of each answer from 0."""

    @tool
    def poll() -> str:
        """Ask whether it is done."""
        return "not yet"

    client, model = remembering([*[ToolCall("poll", id="call_0")] * 3, "Done."], order=INSIDE, tools=[poll])
    run(mode, client.prompt("Wait.", conversation_id="c"))
    assert sent(model) == ["user Wait.", *["call poll", "tool not yet"] * 3]
