"""While an answer is streamed, advisors inside the loop are told of each piece of it, tool calls included."""

from __future__ import annotations

import pytest

from tests.helpers import MARKER, Telemetry, context_of, run
from traced_tools import Advisor, AdvisorChainError, ChatClient, ToolCall
from traced_tools.events import Event, TextDelta, ToolArgumentsDelta
from traced_tools.models import OpenAIChatModel
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

STREAMING = ("stream", "astream")


class Watching(Advisor):
    def __init__(self, order: int = 400) -> None:
        self.name, self.order = "watching", order
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def piece(**fields: object) -> dict[str, object]:
    return {"choices": [{"delta": {"tool_calls": [{"index": 0, **fields}]}}]}


def replies() -> list[Reply]:
    asked = [
        {"choices": [{"delta": {"content": "Adding. "}}]},
        piece(id="c1", function={"name": "add", "arguments": ""}),
        piece(function={"arguments": '{"a": 20,'}),
        piece(function={"arguments": ' "b": 22}'}),
        "[DONE]",
    ]
    closing = [{"choices": [{"delta": {"content": "It is 42."}, "finish_reason": "stop"}]}, "[DONE]"]
    return [Reply.sse(asked), Reply.sse(closing)]


@pytest.mark.parametrize("mode", STREAMING)
def test_the_arguments_of_a_call_arrive_piece_by_piece(mode: str) -> None:
    watching, telemetry = Watching(), Telemetry()
    with ReplayServer(replies()) as server, OpenAIChatModel("m", base_url=server.url) as model:
        client = ChatClient(model, tools=[add], advisors=[watching], telemetry=telemetry.options)
        response = run(client.prompt("What is 20 + 22?", conversation_id="talk"), mode)
    assert response.content == "It is 42."
    arguments = [event for event in watching.events if isinstance(event, ToolArgumentsDelta)]
    assert [event.arguments for event in arguments] == ["", '{"a": 20,', ' "b": 22}']
    assert {(event.call_id, event.tool_name, event.iteration) for event in arguments} == {("c1", "add", 1)}
    texts = [event for event in watching.events if isinstance(event, TextDelta)]
    assert [(event.text, event.iteration) for event in texts] == [("Adding. ", 1), ("It is 42.", 2)]
    assert [event.delta_index for event in watching.events if isinstance(event, TextDelta | ToolArgumentsDelta)] == [
        *range(5)
    ]


@pytest.mark.parametrize("mode", STREAMING)
def test_an_event_says_which_run_pass_and_span_it_belongs_to(mode: str) -> None:
    watching, telemetry = Watching(), Telemetry()
    model = ScriptedChatModel(["one two"])
    client = ChatClient(model, name="planner", advisors=[watching], telemetry=telemetry.options)
    response = run(client.prompt("go", conversation_id="talk"), mode)
    chat = context_of(telemetry.one("chat scripted"))
    for event in watching.events:
        assert (event.run_id, event.agent, event.conversation_id) == (response.run_id, "planner", "talk")
        assert (event.trace_id, event.span_id) == (response.trace_id, f"{chat.span_id:016x}")
        assert event.sequence == 0  # no event came before
    ids = [event.id for event in watching.events]
    assert len(ids) == 2
    assert len(set(ids)) == 2


@pytest.mark.parametrize("mode", STREAMING)
def test_a_call_that_comes_whole_and_without_an_id_has_the_id_its_result_has(mode: str) -> None:
    watching = Watching()
    model = ScriptedChatModel([lambda _: ToolCall("add", {"a": 1, "b": 2}), "3"])
    response = run(ChatClient(model, tools=[add], advisors=[watching]).prompt("go"), mode)
    (event,) = [event for event in watching.events if isinstance(event, ToolArgumentsDelta)]
    assert event.arguments == '{"a": 1, "b": 2}'
    assert [event.call_id] == [result.call_id for result in response.tool_results]


@pytest.mark.parametrize("mode", STREAMING)
def test_an_advisor_outside_the_loop_is_not_told_of_pieces(mode: str) -> None:
    outside = Watching(order=200)
    run(ChatClient(ScriptedChatModel(["hi"]), advisors=[outside]).prompt("go"), mode)
    assert outside.events == []


@pytest.mark.parametrize("mode", STREAMING)
def test_without_a_loop_each_advisor_is_told(mode: str) -> None:
    outside = Watching(order=200)
    run(ChatClient(ScriptedChatModel(["hi"]), advisors=[outside]).prompt("go", tool_calling=False), mode)
    assert [event.type for event in outside.events] == ["text_delta"]


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_a_whole_answer_has_no_pieces(mode: str) -> None:
    watching = Watching()
    run(ChatClient(ScriptedChatModel(["hi"]), advisors=[watching]).prompt("go"), mode)
    assert watching.events == []


@pytest.mark.parametrize("mode", STREAMING)
def test_an_error_of_an_advisor_that_watches_passes_through(mode: str) -> None:
    class Broken(Advisor):
        name, order = "broken", 400

        def on_event(self, event: Event) -> None:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        run(ChatClient(ScriptedChatModel(["hi"]), advisors=[Broken()]).prompt("go"), mode)


@pytest.mark.parametrize("method", ["on_event", "on_chunk"])
def test_an_async_method_where_nothing_is_awaited_is_refused(method: str) -> None:
    async def waits(self: Advisor, told: object) -> None:
        """Never called."""

    advisor = type("Waiting", (Advisor,), {"name": "waiting", "order": 400, method: waits})()
    with pytest.raises(AdvisorChainError, match=f"{method} of Waiting must be a plain method"):
        ChatClient(ScriptedChatModel(["hi"]), advisors=[advisor])


def test_events_are_json_and_back_and_their_repr_shows_no_content() -> None:
    watching = Watching()
    model = ScriptedChatModel([[MARKER, ToolCall("add", f'{{"{MARKER}": 1}}')], "done"])
    run(ChatClient(model, tools=[add], advisors=[watching]).prompt("go"), "stream")
    assert {type(event) for event in watching.events} == {TextDelta, ToolArgumentsDelta}
    for event in watching.events:
        assert type(event).model_validate_json(event.model_dump_json()) == event
        assert MARKER not in repr(event)
    assert MARKER in watching.events[0].model_dump_json()
