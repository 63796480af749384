"""Tools keep their names, whichever names a provider accepts."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures import bfcl_queries, bfcl_tools
from tests.models.loops import replies
from tests.modes import run
from traced_tools import AssistantMessage, ChatClient, ChatOptions, TextPart, ToolCall, ToolMessage, UserMessage
from traced_tools.core import ToolDefinition, ToolResultPart
from traced_tools.core.tool_naming import wire_name
from traced_tools.models import ChatChunk, ChatRequest, ChatResponse, OpenAIChatModel, ToolCallDelta
from traced_tools.models.wire_names import WireNames
from traced_tools.testing import ReplayServer
from traced_tools.tools import FunctionToolCallback

FACTORIAL = ToolDefinition(name="math.factorial")
WEATHER = ToolDefinition(name="weather")
OWN_NAMES = st.lists(st.text(st.characters(categories=["L", "P"]), min_size=1, max_size=12), unique_by=wire_name)


def asked(*messages: Any, tools: tuple[ToolDefinition, ...] = (), choice: str | None = None) -> WireNames:
    return WireNames(ChatRequest((UserMessage("hi"), *messages), tools, ChatOptions(tool_choice=choice)))


def exchanged(name: str) -> tuple[AssistantMessage, ToolMessage]:
    """A call, and its result."""
    return (
        AssistantMessage("Let me see.", tool_calls=[ToolCall(name, {"number": 5}, "c1")]),
        ToolMessage([ToolResultPart(call_id="c1", name=name, content="120")]),
    )


def answer(*names: str) -> ChatResponse:
    return ChatResponse(AssistantMessage("I call.", tool_calls=[ToolCall(name) for name in names]), id="r1")


# What is sent.


def test_the_tools_are_offered_under_names_that_providers_accept() -> None:
    sent = asked(tools=(FACTORIAL, WEATHER)).request
    assert [tool.name for tool in sent.tools] == ["math_factorial", "weather"]
    assert sent.tools[1] is WEATHER
    assert sent.tools[0] == FACTORIAL.replace(name="math_factorial")


def test_calls_and_results_of_the_conversation_are_sent_under_the_same_names() -> None:
    said, done = exchanged("math.factorial")
    sent = asked(said, done, tools=(FACTORIAL,)).request
    assert sent.messages[1] == AssistantMessage(
        "Let me see.", tool_calls=[ToolCall("math_factorial", {"number": 5}, "c1")]
    )
    assert sent.messages[2] == ToolMessage([ToolResultPart(call_id="c1", name="math_factorial", content="120")])
    assert sent.messages[0].role == "user"


def test_calls_of_a_tool_that_is_no_longer_offered_are_sent_under_its_wire_name() -> None:
    sent = asked(*exchanged("math.factorial"), tools=(WEATHER,)).request
    assert isinstance(sent.messages[1], AssistantMessage)
    assert sent.messages[1].tool_calls[0].name == "math_factorial"


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("math.factorial", "math_factorial"), ("required", "required"), ("auto", "auto"), ("none", "none"), (None, None)],
)
def test_the_tool_to_call_is_chosen_by_its_wire_name(choice: str | None, sent: str | None) -> None:
    assert asked(tools=(FACTORIAL,), choice=choice).request.options.tool_choice == sent


def test_the_request_itself_is_not_changed() -> None:
    said, done = exchanged("math.factorial")
    request = ChatRequest((said, done), (FACTORIAL,), ChatOptions(tool_choice="math.factorial"))
    assert WireNames(request).request != request
    assert request == ChatRequest(exchanged("math.factorial"), (FACTORIAL,), ChatOptions(tool_choice="math.factorial"))


def test_nothing_is_copied_when_all_names_are_accepted() -> None:
    request = ChatRequest((UserMessage("hi"), *exchanged("weather")), (WEATHER,), ChatOptions(tool_choice="weather"))
    names = WireNames(request)
    response, chunk = answer("weather"), ChatChunk(tool_calls=(ToolCallDelta(0, "c1", "weather"),))
    assert names.request is request
    assert names.response(response) is response
    assert names.chunk(chunk) is chunk


def test_a_tool_is_renamed_once_and_not_for_each_request() -> None:
    assert asked(tools=(FACTORIAL,)).request.tools[0] is asked(tools=(FACTORIAL,)).request.tools[0]


# What comes back.


def test_a_call_in_the_answer_gets_the_tools_own_name() -> None:
    names = asked(tools=(FACTORIAL, WEATHER))
    response = names.response(answer("math_factorial", "weather"))
    assert [call.name for call in response.tool_calls] == ["math.factorial", "weather"]
    assert (response.message.text, response.id) == ("I call.", "r1")


def test_an_unknown_name_stays_as_the_model_wrote_it() -> None:
    names = asked(tools=(FACTORIAL,))
    response = answer("math_sqrt", "math.factorial")
    assert names.response(response) is response
    assert names.chunk(ChatChunk(tool_calls=(ToolCallDelta(0, None, "math_sqrt"),))).calls()[0].name == "math_sqrt"


def test_a_call_of_a_tool_that_is_no_longer_offered_gets_the_name_it_had() -> None:
    names = asked(*exchanged("math.factorial"), tools=(WEATHER,))
    assert names.response(answer("math_factorial")).tool_calls[0].name == "math.factorial"


def test_an_offered_tool_takes_precedence_over_an_earlier_one() -> None:
    names = asked(*exchanged("math/factorial"), tools=(FACTORIAL,))
    assert names.response(answer("math_factorial")).tool_calls[0].name == "math.factorial"
    names = asked(*exchanged("math/factorial"), tools=(ToolDefinition(name="math_factorial"),))
    assert names.response(answer("math_factorial")).tool_calls[0].name == "math_factorial"


def test_each_kind_of_chunk_gets_the_tools_own_names() -> None:
    names = asked(tools=(FACTORIAL,))
    begun = names.chunk(ChatChunk(text="so", tool_calls=(ToolCallDelta(0, "c1", "math_factorial", '{"'),)))
    assert begun == ChatChunk(text="so", tool_calls=(ToolCallDelta(0, "c1", "math.factorial", '{"'),))
    more = ChatChunk(tool_calls=(ToolCallDelta(0, None, None, "number"),))
    assert names.chunk(more) == more
    whole = names.chunk(ChatChunk.whole(answer("math_factorial")))
    assert whole.parts == (TextPart("I call."), ToolCall("math.factorial"))
    text = ChatChunk(text="done")
    assert names.chunk(text) is text


@given(OWN_NAMES)
def test_whatever_tools_are_called_the_model_can_call_each_of_them(own: list[str]) -> None:
    names = asked(tools=tuple(ToolDefinition(name=name) for name in own))
    response = names.response(answer(*(tool.name for tool in names.request.tools)))
    assert [call.name for call in response.tool_calls] == own
    chunk = ChatChunk(tool_calls=tuple(ToolCallDelta(0, None, tool.name) for tool in names.request.tools))
    assert [delta.name for delta in names.chunk(chunk).tool_calls] == own


def test_the_published_tools_that_are_offered_together_are_called_by_their_own_names() -> None:
    own = {tool["id"]: tool["name"] for tool in bfcl_tools()}
    for query in bfcl_queries():
        offered = list(dict.fromkeys(own[each] for each in query["offered"]))
        names = asked(tools=tuple(ToolDefinition(name=name) for name in offered))
        response = names.response(answer(*(tool.name for tool in names.request.tools)))
        assert [call.name for call in response.tool_calls] == offered


# The whole loop, over HTTP.


def test_a_tool_with_a_dotted_name_is_offered_called_run_and_answered(mode: str) -> None:
    def factorial(number: int) -> int:
        return 120 if number == 5 else 0

    tool = FunctionToolCallback(factorial, name="math.factorial")
    options = ChatOptions(tool_choice="math.factorial")
    with ReplayServer(replies(mode, "math_factorial", '{"number": 5}', "It is 120.")) as server:
        model = OpenAIChatModel("m", base_url=server.url, retries=0)
        response = run(mode, ChatClient(model, tools=[tool], options=options).prompt("5!"), model)
        first, second = (request.json() for request in server.requests)
    assert response.content == "It is 120."
    assert [(result.tool, result.content) for result in response.tool_results] == [("math.factorial", "120")]
    assert first["tools"][0]["function"]["name"] == "math_factorial"
    assert first["tool_choice"] == {"type": "function", "function": {"name": "math_factorial"}}
    assert second["messages"][1]["tool_calls"][0]["function"] == {
        "name": "math_factorial",
        "arguments": '{"number": 5}',
    }
    assert second["messages"][2]["content"] == "120"
    assert "math.factorial" not in json.dumps([first, second])
