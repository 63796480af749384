"""Deltas: advisors inside the loop receive each part of a streamed answer, including tool calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.captured import Telemetry, context_of
from tests.events.watching import Watching, check_sequence, types
from tests.markers import MARKER
from tests.modes import run
from tests.sample_tools import add
from traced_tools import Advisor, AssistantMessage, ChatClient, ContentCapture, ToolCall, tool
from traced_tools.errors import AdvisorChainError
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse, OpenAIChatModel
from traced_tools.observe import Delta, Event, TextDelta, ToolArgumentsDelta
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

STREAMING = ("stream", "astream")


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
    watching, telemetry = Watching(deltas=True), Telemetry()
    with ReplayServer(replies()) as server, OpenAIChatModel("m", base_url=server.url) as model:
        client = ChatClient(model, tools=[add], advisors=[watching], telemetry=telemetry.options)
        response = run(mode, client.prompt("What is 20 + 22?", conversation_id="talk"))
    assert response.content == "It is 42."
    arguments = [event for event in watching.events if isinstance(event, ToolArgumentsDelta)]
    assert [event.arguments for event in arguments] == ["", '{"a": 20,', ' "b": 22}']
    assert {(event.call_id, event.tool_name, event.iteration) for event in arguments} == {("c1", "add", 1)}
    texts = [event for event in watching.events if isinstance(event, TextDelta)]
    assert [(event.text, event.iteration) for event in texts] == [("Adding. ", 1), ("It is 42.", 2)]
    assert [event.delta_index for event in watching.pieces] == [*range(5)]
    check_sequence(watching.events)


@pytest.mark.parametrize("mode", STREAMING)
@pytest.mark.parametrize("text", ["", "ne"], ids=["on its own", "with text"])
def test_a_delta_reports_that_the_answer_restarts(text: str, mode: str) -> None:
    class Restarting(ScriptedChatModel):
        def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
            yield ChatChunk(text="old")
            yield ChatChunk(text=text, restarts=True)
            yield ChatChunk(text="new")

        async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
            for chunk in self.stream(request):
                yield chunk

    watching = Watching(deltas=True)
    run(mode, ChatClient(Restarting([]), advisors=[watching]).prompt("go"))
    pieces = [event for event in watching.pieces if isinstance(event, TextDelta)]
    assert [(event.text, event.restarts) for event in pieces] == [("old", False), (text, True), ("new", False)]
    assert [event.for_export().restarts for event in pieces] == [False, True, False]


@pytest.mark.parametrize("mode", STREAMING)
def test_an_event_says_which_run_pass_and_span_it_belongs_to(mode: str) -> None:
    watching, telemetry = Watching(deltas=True), Telemetry()
    model = ScriptedChatModel(["one two"])
    client = ChatClient(model, name="planner", advisors=[watching], telemetry=telemetry.options)
    response = run(mode, client.prompt("go", conversation_id="talk"))
    chat = context_of(telemetry.one("chat scripted"))
    for event in watching.pieces:
        assert (event.run_id, event.agent, event.conversation_id) == (response.run_id, "planner", "talk")
        assert (event.trace_id, event.span_id) == (response.trace_id, f"{chat.span_id:016x}")
        assert event.sequence == 2  # that of the event before
    ids = [event.id for event in watching.pieces]
    assert len(ids) == 2
    assert len(set(ids)) == 2


@pytest.mark.parametrize("mode", STREAMING)
def test_a_call_that_comes_whole_and_without_an_id_has_the_id_its_result_has(mode: str) -> None:
    watching = Watching(deltas=True)
    model = ScriptedChatModel([lambda _: ToolCall("add", {"a": 1, "b": 2}), "3"])
    response = run(mode, ChatClient(model, tools=[add], advisors=[watching]).prompt("go"))
    (event,) = [event for event in watching.events if isinstance(event, ToolArgumentsDelta)]
    assert event.arguments == '{"a": 1, "b": 2}'
    assert [event.call_id] == [result.call_id for result in response.tool_results]


@pytest.mark.parametrize("mode", STREAMING)
def test_an_advisor_outside_the_loop_receives_no_deltas(mode: str) -> None:
    outside = Watching(order=200, deltas=True)
    run(mode, ChatClient(ScriptedChatModel(["hi"]), advisors=[outside]).prompt("go"))
    assert outside.types == ["run_started", "run_finished"]


@pytest.mark.parametrize("mode", STREAMING)
def test_without_a_loop_every_advisor_receives_every_event(mode: str) -> None:
    outside = Watching(order=200, deltas=True)
    run(mode, ChatClient(ScriptedChatModel(["hi"]), advisors=[outside]).prompt("go", tool_calling=False))
    assert outside.types == ["run_started", "text_delta", "model_responded", "run_finished"]


@pytest.mark.parametrize("mode", STREAMING)
def test_a_listener_that_ignores_deltas_receives_all_other_events(mode: str) -> None:
    watching, whole = Watching(deltas=True), Watching(deltas=False)
    model = ScriptedChatModel([["Adding.", ToolCall("add", {"a": 1, "b": 2})], "3"])
    run(mode, ChatClient(model, tools=[add], advisors=[whole, watching]).prompt("go"))
    assert watching.pieces and not whole.pieces
    assert whole.events == [event for event in watching.events if not isinstance(event, Delta)]


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_an_answer_that_is_not_streamed_has_no_deltas(mode: str) -> None:
    watching = Watching(deltas=True)
    run(mode, ChatClient(ScriptedChatModel(["hi"]), advisors=[watching]).prompt("go"))
    assert watching.events
    assert watching.pieces == []


@pytest.mark.parametrize("mode", STREAMING)
def test_an_error_of_an_event_listener_passes_through(mode: str) -> None:
    class Broken(Advisor):
        name, order = "broken", 400
        event_errors_end_run = True

        def on_event(self, event: Event) -> None:
            if isinstance(event, Delta):
                raise KeyError("mine")

    watching = Watching(order=500, deltas=True)
    with pytest.raises(KeyError, match="mine"):
        run(mode, ChatClient(ScriptedChatModel(["hi"]), advisors=[Broken(), watching]).prompt("go"))
    assert len(watching.pieces) == 1  # every listener gets it before the error leaves
    assert watching.types[-1] == "run_finished"


@pytest.mark.parametrize("method", ["on_event", "on_chunk"])
def test_an_async_method_where_nothing_is_awaited_is_refused(method: str) -> None:
    async def waits(self: Advisor, item: object) -> None:
        """Never called."""

    advisor = type("Waiting", (Advisor,), {"name": "waiting", "order": 400, method: waits})()
    with pytest.raises(AdvisorChainError, match=f"{method} of Waiting must be a plain method"):
        ChatClient(ScriptedChatModel(["hi"]), advisors=[advisor])


@pytest.mark.parametrize("mode", STREAMING)
def test_a_delta_is_exported_without_its_text_unless_content_is_captured(mode: str) -> None:
    watching = Watching(deltas=True)
    model = ScriptedChatModel([[MARKER, ToolCall("add", {MARKER: 1}), ToolCall(MARKER, {})], "done"])
    run(mode, ChatClient(model, tools=[add], advisors=[watching]).prompt("go"))
    exported = [event.for_export() for event in watching.pieces]
    assert types(exported) == ["text_delta", "tool_arguments_delta", "tool_arguments_delta", "text_delta"]
    assert [event.tool_name for event in exported if isinstance(event, ToolArgumentsDelta)] == ["add", "_unknown"]
    assert [event.size for event in exported] == [event.size for event in watching.pieces]
    assert all(event.size for event in exported)
    assert MARKER in watching.pieces[0].model_dump_json()
    assert not [event for event in exported if MARKER in event.model_dump_json()]
    assert not [event for event in watching.pieces if MARKER in repr(event)]


@tool(capture=False)
def keep(secret: str) -> str:
    """Keep a secret."""
    return "kept"


@pytest.mark.parametrize("mode", STREAMING)
def test_a_captured_delta_is_exported_unless_its_tool_disables_capture(mode: str) -> None:
    watching, telemetry = Watching(deltas=True), Telemetry(capture="EVENT_ONLY")
    calls = [ToolCall("add", {"a": 1, "b": 2}), ToolCall("keep", {"secret": MARKER}), ToolCall(MARKER, {})]
    model = ScriptedChatModel([["Adding.", *calls], "done"])
    run(mode, ChatClient(model, tools=[add, keep], advisors=[watching], telemetry=telemetry.options).prompt("go"))
    exported = [event.for_export() for event in watching.pieces]
    assert [event.text for event in exported if isinstance(event, TextDelta)] == ["Adding.", "done"]
    assert [(event.tool_name, event.arguments) for event in exported if isinstance(event, ToolArgumentsDelta)] == [
        ("add", '{"a": 1, "b": 2}'),
        ("keep", ""),
        ("_unknown", ""),
    ]


@pytest.mark.parametrize(
    "capture",
    [ContentCapture("EVENT_ONLY", redact=lambda name, value: value), ContentCapture("EVENT_ONLY", max_bytes=256)],
    ids=["a redactor sees values whole", "a piece is not cut"],
)
def test_a_delta_is_not_captured_where_a_redactor_or_limit_needs_the_whole_value(capture: ContentCapture) -> None:
    watching, telemetry = Watching(deltas=True), Telemetry(capture=capture)
    model = ScriptedChatModel([ChatResponse(AssistantMessage("x" * 257))])
    run("stream", ChatClient(model, advisors=[watching], telemetry=telemetry.options).prompt("go"))
    (piece,) = watching.pieces
    exported = piece.for_export()
    assert isinstance(exported, TextDelta)
    assert (exported.text, exported.size) == ("", 257)
