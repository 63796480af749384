"""A consumer of a stream gets the whole text of the response, whatever advisors withhold, change or answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.sample_tools import add
from tests.waiting import patiently
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ImagePart,
    LoopLimits,
    ModelError,
    TextPart,
    ToolCall,
    tool,
)
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse
from traced_tools.run_handles import AsyncChatStream, ChatStream
from traced_tools.testing import ScriptedChatModel

Read = Callable[[ChatClient], tuple[list[ChatClientResponse], ChatClientResponse]]


def blocking(client: ChatClient) -> tuple[list[ChatClientResponse], ChatClientResponse]:
    stream: ChatStream = client.prompt("?").stream()
    return list(stream), stream.response


def on_asyncio(client: ChatClient) -> tuple[list[ChatClientResponse], ChatClientResponse]:
    async def main() -> tuple[list[ChatClientResponse], ChatClientResponse]:
        stream: AsyncChatStream = client.prompt("?").astream()
        return [chunk async for chunk in stream], stream.response

    return asyncio.run(patiently(main()))


@pytest.fixture(params=[blocking, on_asyncio], ids=["stream", "astream"])
def read(request: pytest.FixtureRequest) -> Read:
    way: Read = request.param
    return way


def text_of(chunks: list[ChatClientResponse], iteration: int | None = None) -> str:
    return "".join(chunk.text for chunk in chunks if iteration in (None, chunk.iteration))


def restarts(chunk: ChatClientResponse) -> bool:
    return chunk.delta is not None and chunk.delta.restarts


SUM = ToolCall("add", {"a": 1, "b": 2})


class Guard(Advisor):
    """Lets `shown` chunks of each pass out, holds the rest back, and hands back what `decide` makes of the answer."""

    name = "guard"

    def __init__(self, order: int = 100, shown: int = 0, decide: Callable[[str], str] = lambda text: text) -> None:
        self.order = order
        self.seen: list[str] = []
        self._shown = shown
        self._decide = decide

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        self.seen.append(chunk.text)
        return chunk if len(self.seen) <= self._shown else None

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = await call_next(request)
        text = self._decide(response.content)
        if text == response.content or response.tool_calls:
            return response
        return response.replace(chat_response=ChatResponse(AssistantMessage(text)))


class Watcher(Advisor):
    """Records the text of each chunk that passes."""

    def __init__(self, name: str, order: int) -> None:
        self.name = name
        self.order = order
        self.text = ""

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        self.text += chunk.text
        return chunk


ORDERS = pytest.mark.parametrize("order", [100, 400], ids=["outside the loop", "inside the loop"])
ANSWER = "It is three, I think."


def refused(text: str) -> str:
    return "I may not say."


@ORDERS
@pytest.mark.parametrize("decide", [str, refused, lambda text: f"{text} Ask again."], ids=["as is", "other", "more"])
@pytest.mark.parametrize("shown", [0, 2, 99])
def test_the_consumer_of_a_guarded_answer_gets_the_text_of_the_response(
    order: int, shown: int, decide: Callable[[str], str], read: Read
) -> None:
    guard, outer, inner = Guard(order, shown, decide), Watcher("outer", order - 1), Watcher("inner", order + 1)
    client = ChatClient(ScriptedChatModel([SUM, ANSWER]), tools=[add], advisors=[guard, outer, inner])
    chunks, response = read(client)
    held_too_late = decide is refused and shown > 0  # what is out stays out; the answer follows it whole
    assert response.content == decide(ANSWER)
    assert text_of(chunks).endswith(response.content)
    assert (text_of(chunks) == response.content) is not held_too_late
    assert [place for place, chunk in enumerate(chunks) if restarts(chunk)] == [len(chunks) - 1] * held_too_late
    assert chunks[-1].text == response.content or not held_too_late
    assert outer.text == text_of(chunks)
    assert inner.text == "".join(guard.seen) == ANSWER  # they see what the model streams and no text twice


@ORDERS
def test_a_guard_withholds_one_iteration_of_several(order: int, read: Read) -> None:
    guard = Guard(order, shown=3)
    client = ChatClient(ScriptedChatModel([["Let me add.", SUM], ANSWER]), tools=[add], advisors=[guard])
    chunks, response = read(client)
    assert guard.seen[:3] == ["Let ", "me ", "add."]
    assert text_of(chunks, 1) == "Let me add."
    assert text_of(chunks, 2) == response.content == ANSWER


def test_guards_around_one_another_release_the_answer_one_after_the_other(read: Read) -> None:
    inner, outer = Guard(400), Guard(100, decide=lambda text: text.upper())
    outer.name = "outer_guard"
    chunks, response = read(ChatClient(ScriptedChatModel([SUM, ANSWER]), tools=[add], advisors=[inner, outer]))
    assert outer.seen == [ANSWER]
    assert [chunk.text for chunk in chunks] == [response.content] == [ANSWER.upper()]


DECISIONS: list[Callable[[str], str]] = [str, refused, lambda text: f"{text} Ask again.", lambda text: text[:5]]
GUARDS = st.lists(
    st.tuples(st.sampled_from([100, 200, 400, 500]), st.integers(0, 7), st.sampled_from(DECISIONS)), max_size=4
)


@example([(100, 0, str), (100, 4, str), (100, 5, DECISIONS[-1])], [["Let me add.", SUM], ANSWER])
@given(GUARDS, st.sampled_from([[ANSWER], [SUM, ANSWER], [["Let me add.", SUM], ANSWER], [["It is", SUM], ANSWER]]))
def test_any_combination_of_guards_streams_the_text_of_the_response(
    made: list[tuple[int, int, Callable[[str], str]]], turns: list[Any]
) -> None:
    guards = [Guard(order, shown, decide) for order, shown, decide in made]
    for number, guard in enumerate(guards):
        guard.name = f"guard_{number}"
    chunks, response = blocking(ChatClient(ScriptedChatModel(turns), tools=[add], advisors=guards))
    text = text_of(chunks, response.iteration)
    assert text.endswith(response.content)
    if all(not shown or decide is str for _, shown, decide in made):
        assert text == response.content


class Filter(Advisor):
    """Changes chunks and hands no answer of its own back."""

    name, order = "filter", 400

    def __init__(self, change: Callable[[str], str]) -> None:
        self._change = change

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        text = self._change(chunk.text)
        return chunk.replace(delta=ChatChunk(text=text)) if text else None


@pytest.mark.parametrize(
    ("change", "out"),
    [
        pytest.param(str.upper, ANSWER.upper(), id="replaced"),
        pytest.param(lambda text: "" if "think" in text else text, "It is three, I ", id="dropped in part"),
        pytest.param(lambda text: "", "", id="dropped"),
    ],
)
@pytest.mark.parametrize("with_guard", [False, True])
def test_a_text_replaced_by_on_chunk_counts_as_the_text(
    change: Callable[[str], str], out: str, with_guard: bool, read: Read
) -> None:
    guards = [Guard(100, shown=99)] if with_guard else []
    chunks, response = read(ChatClient(ScriptedChatModel([ANSWER]), advisors=[Filter(change), *guards]))
    assert text_of(chunks) == out
    assert response.content == ANSWER


class Rewriter(Filter):
    """Rewrites chunks, and has an `advise` that hands back what it gets."""

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        return await call_next(request)


def test_a_text_that_an_advisor_rewrote_is_not_delivered_again(read: Read) -> None:
    shouting = Rewriter(str.upper)
    chunks, _ = read(ChatClient(ScriptedChatModel([ANSWER]), advisors=[shouting, Watcher("outer", 100)]))
    assert text_of(chunks) == ANSWER.upper()


def redacted(text: str) -> str:
    return text.replace("1234", "****")


@pytest.mark.parametrize("more", ["", " Ask again."])
@pytest.mark.parametrize("shown", [0, 2, 99])
@pytest.mark.parametrize("orders", [[200], [100, 200]], ids=str)
def test_a_guard_releases_the_text_of_an_inner_redactor(orders: list[int], shown: int, more: str, read: Read) -> None:
    guards = [Guard(order, shown, lambda text: text if text.endswith(more) else text + more) for order in orders]
    for guard in guards:
        guard.name = f"guard_{guard.order}"
    model = ScriptedChatModel([["1234?", SUM], "the code is 1234 ok"])
    chunks, response = read(ChatClient(model, tools=[add], advisors=[Filter(redacted), *guards]))
    assert text_of(chunks, 2) == "the code is **** ok" + more
    assert "1234" not in text_of(chunks)
    assert response.content == "the code is 1234 ok" + more


def test_a_guard_releases_the_chosen_one_of_two_redacted_answers(read: Read) -> None:
    advisors = [Filter(redacted), Twice(300, -1), Guard(100)]
    chunks, _ = read(ChatClient(ScriptedChatModel(["first", "code 1234"]), advisors=advisors))
    assert text_of(chunks) == "code ****"


class Restarting(ScriptedChatModel):
    """Says "old " and begins its answer again, with nothing but the sign for it."""

    def stream(self, request: ChatRequest) -> Any:
        yield ChatChunk(text="old ")
        yield ChatChunk(restarts=True)
        yield from super().stream(request)

    async def astream(self, request: ChatRequest) -> Any:
        for chunk in self.stream(request):
            yield chunk


class Clearing(Watcher):
    """Records the text, and forgets it when the answer begins again."""

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        if chunk.delta is not None and chunk.delta.restarts:
            self.text = ""
        return super().on_chunk(chunk)


@pytest.mark.parametrize(
    "advisors",
    [
        pytest.param(list, id="none"),
        pytest.param(lambda: [Filter(str)], id="drops chunks without text"),
        pytest.param(lambda: [Filter(lambda text: f"{text} ")], id="replaces chunks"),
        pytest.param(lambda: [Filter(str), Rewriter(str)], id="two"),
        pytest.param(lambda: [Guard(200, shown=1)], id="guard"),
        pytest.param(lambda: [Filter(str), Guard(200, shown=1)], id="drops, then guard"),
        pytest.param(lambda: [Guard(500, shown=1), Filter(str)], id="guard, then drops"),
    ],
)
def test_a_consumer_sees_a_restart_even_if_advisors_drop_the_chunk_that_begins_it(
    advisors: Callable[[], list[Advisor]], read: Read
) -> None:
    used = advisors()
    for number, each in enumerate(used):
        each.name = f"used_{number}"
    outer = Clearing("outer", 10)
    chunks, response = read(ChatClient(Restarting(["new"]), advisors=[*used, outer]))
    assert response.content == "new"
    assert outer.text.strip() == "new"
    assert [chunk.delta is not None and chunk.delta.restarts for chunk in chunks].count(True) == 1
    assert chunks[0].delta is not None and not chunks[0].delta.restarts


def test_a_restart_flag_does_not_carry_over_to_the_next_answer(read: Read) -> None:
    class Once(Restarting):
        def stream(self, request: ChatRequest) -> Any:
            return (super() if len(request.messages) == 1 else super(Restarting, self)).stream(request)

    chunks, _ = read(ChatClient(Once([SUM, "3"]), tools=[add], advisors=[Filter(str)]))
    assert [(chunk.text, chunk.delta and chunk.delta.restarts) for chunk in chunks] == [("old ", False), ("3", False)]


class Answering(Advisor):
    """Answers by itself from its `second` call on, or at once."""

    name = "answering"

    def __init__(self, order: int, kept: ChatClientResponse | None = None, *, first: bool = True) -> None:
        self.order = order
        self._kept = kept
        self._asked = 0 if first else -1

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        self._asked += 1
        if not self._asked:
            return await call_next(request)
        if self._kept is not None:
            return self._kept.replace(run=request.run)
        return ChatClientResponse(request.run, ChatResponse(AssistantMessage("kept")), request.messages)


@pytest.mark.parametrize("order", [100, 400])
def test_an_answer_in_place_of_the_model_passes_only_the_outer_advisors(order: int, read: Read) -> None:
    outer, inner = Watcher("outer", order - 1), Watcher("inner", order + 1)
    chunks, response = read(ChatClient(ScriptedChatModel([]), advisors=[Answering(order), outer, inner]))
    assert [chunk.text for chunk in chunks] == ["kept"] == [response.content]
    assert (outer.text, inner.text) == ("kept", "")


@pytest.mark.parametrize("stale", [False, True])
def test_an_answer_that_replaces_a_later_iteration_is_delivered_in_that_iteration(stale: bool, read: Read) -> None:
    kept = ChatClient(ScriptedChatModel(["kept"])).prompt("?").call() if stale else None
    model = ScriptedChatModel([["Let me add.", SUM]])
    guard, keeper = Guard(100, shown=3), Answering(400, kept, first=False)
    chunks, response = read(ChatClient(model, tools=[add], advisors=[keeper, guard]))
    assert (text_of(chunks, 1), text_of(chunks, 2)) == ("Let me add.", "kept")
    assert (response.content, response.iteration) == ("kept", 2)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_direct_result_is_delivered_as_a_separate_iteration(guarded: bool, read: Read) -> None:
    @tool(return_direct=True)
    def total(a: int, b: int) -> list[TextPart | ImagePart]:
        """Add two numbers."""
        return [TextPart(str(a + b)), ImagePart(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")]

    model = ScriptedChatModel([["3, I guess.", ToolCall("total", {"a": 1, "b": 2})]])
    chunks, response = read(ChatClient(model, tools=[total], advisors=[Guard(100)] if guarded else []))
    assert response.stop_reason == "return_direct"
    assert response.content == text_of(chunks, 2) == "3"
    assert text_of(chunks, 1) == ("" if guarded else "3, I guess.")
    assert any(isinstance(part, ImagePart) for part in response.message.parts)


def test_an_answer_of_images_alone_has_no_closing_chunk(read: Read) -> None:
    picture = ImagePart(data=b"\x89PNG\r\n\x1a\n", media_type="image/png")
    guard = Guard(100)
    chunks, response = read(
        ChatClient(ScriptedChatModel([ChatResponse(AssistantMessage([picture]))]), advisors=[guard])
    )
    assert (chunks, response.message.parts) == ([], (picture,))


class Twice(Advisor):
    """Asks twice and returns the answer at `place`."""

    name = "twice"

    def __init__(self, order: int, place: int) -> None:
        self.order = order
        self._place = place

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        answers = []
        for _ in range(2):
            try:
                answers.append(await call_next(request))
            except ModelError:
                continue
        return answers[self._place]


@ORDERS
@pytest.mark.parametrize(
    ("place", "shown", "text"),
    [(-1, 99, "one two"), (0, 99, "one twoone "), (-1, 0, "two"), (0, 0, "one "), (-1, 1, "one two")],
)
def test_the_chosen_one_of_two_answers_is_delivered_last(
    order: int, place: int, shown: int, text: str, read: Read
) -> None:
    advisors = [Twice(order + 1, place), Guard(order, shown)]
    chunks, response = read(ChatClient(ScriptedChatModel(["one ", "two"]), advisors=advisors))
    assert text_of(chunks) == text
    assert text.endswith(response.content)


class Cut(ScriptedChatModel):
    """Fails in the middle of its first answer."""

    def __init__(self) -> None:
        super().__init__(["whole"])
        self._failed = False

    def stream(self, request: ChatRequest) -> Any:
        if not self._failed:
            self._failed = True
            yield ChatChunk(text="who")
            raise ModelError("cut", provider="tests")
        yield from super().stream(request)

    async def astream(self, request: ChatRequest) -> Any:
        for chunk in self.stream(request):
            yield chunk


@pytest.mark.parametrize("shown", [0, 1, 99])
def test_the_answer_after_one_that_was_cut_off_is_delivered_whole(shown: int, read: Read) -> None:
    chunks, response = read(ChatClient(Cut(), advisors=[Twice(400, -1), Guard(100, shown)]))
    assert response.content == "whole"
    assert text_of(chunks) == ("whowhole" if shown == 99 else "whole")


def test_an_advisors_answer_after_a_failed_stream_completes_the_delivered_text(read: Read) -> None:
    class Sorry(Advisor):
        name, order = "sorry", 400

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            try:
                return await call_next(request)
            except ModelError:
                return ChatClientResponse(request.run, ChatResponse(AssistantMessage("who knows?")))

    chunks, response = read(ChatClient(Cut(), advisors=[Sorry()]))
    assert text_of(chunks) == response.content == "who knows?"


class Concluding(ToolCallingAdvisor):
    """A loop with words of its own at the end."""

    def finalize(self, response: ChatClientResponse) -> ChatClientResponse:
        if response.chat_response is None:
            return response
        message = AssistantMessage(f"{response.content} (checked)")
        return response.replace(chat_response=response.chat_response.replace(message=message))


@pytest.mark.parametrize("on_limit", ["conclude", "stop"])
def test_the_final_answer_of_a_custom_loop_is_delivered(on_limit: Any, read: Read) -> None:
    model = ScriptedChatModel([["Adding.", SUM], "Enough."])
    limits = LoopLimits(max_iterations=1, on_limit=on_limit)
    outer = Watcher("outer", 100)
    chunks, response = read(
        ChatClient(model, tools=[add], advisors=[outer], tool_calling_advisor=Concluding(), limits=limits)
    )
    iteration = 2 if on_limit == "conclude" else 1
    assert text_of(chunks, iteration) == response.content
    assert response.content.endswith(" (checked)")
    assert outer.text == text_of(chunks)


def test_leaving_a_stream_at_its_closing_chunk_ends_the_run_as_cancelled(telemetry: Telemetry) -> None:
    client = ChatClient(ScriptedChatModel([ANSWER]), advisors=[Guard(100)], telemetry=telemetry.options)
    with client.prompt("?").stream() as stream:
        assert next(stream).text == ANSWER
    telemetry.check_cancelled()


def test_an_error_of_on_chunk_at_the_closing_chunk_fails_the_run(read: Read, telemetry: Telemetry) -> None:
    class Broken(Advisor):
        name, order = "broken", 50

        def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse:
            raise LookupError("mine")

    client = ChatClient(ScriptedChatModel([ANSWER]), advisors=[Guard(100), Broken()], telemetry=telemetry.options)
    with pytest.raises(LookupError, match="mine"):
        read(client)
    telemetry.check_each_ended_once()
    telemetry.check_run("error", "LookupError")
