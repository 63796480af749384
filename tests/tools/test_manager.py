"""Running the calls of an answer: in the loop and by hand.

Of the reference's statements, the following do not apply here or are deliberately different:

- B087 (an answer without calls is an illegal state): it is a `ValueError`, as the argument is the caller's.
- B099 (malformed arguments reach the tool): the model reads an error and they never reach the tool (W-08, W-10).
- B101 (several generations hold calls): an answer has one message.
- B103, B104 (a generation for each direct result): the results of the last batch are one answer (W-36).
- B105 (empty lists of responses or messages): nothing is converted, and a batch has a result for each call.
- B108 (an aborting call loses its siblings' results): they keep them (W-02).
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

from tests.captured import Telemetry, context_of
from tests.modes import MODES, run
from tests.sample_tools import add, direct, fail
from tests.tools.plain import Own, nothing, whoami
from traced_tools import AssistantMessage, ChatClient, ToolCall, ToolExecutionError, ToolMessage, UserMessage
from traced_tools.core import ToolErrors, ToolExecutionResult
from traced_tools.errors import ToolDefinitionError, ToolNotFoundError
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolCallingManager, tool_callbacks

ASKED = (UserMessage("?"),)
HANDS = ("execute_tool_calls", "aexecute_tool_calls")


def answer(*calls: ToolCall) -> ChatResponse:
    return ChatResponse(AssistantMessage(tool_calls=calls), finish_reason="tool_call")


def by_hand(how: str, response: Any, tools: Any, **settings: Any) -> ToolExecutionResult:
    manager = ToolCallingManager()
    if how == "execute_tool_calls":
        return manager.execute_tool_calls(ASKED, response, tools=tools, **settings)
    return asyncio.run(manager.aexecute_tool_calls(ASKED, response, tools=tools, **settings))


# By hand.


@pytest.mark.parametrize("how", HANDS)
def test_a_call_gives_one_result_with_its_id_and_name(how: str) -> None:
    response = answer(ToolCall("add", {"a": 1, "b": 2}, id="7"))
    result = by_hand(how, response, [add])
    assert result.conversation_history[:2] == (*ASKED, response.message)
    (message,) = result.conversation_history[2:]
    assert isinstance(message, ToolMessage)
    (part,) = message.results
    assert (part.call_id, part.name, part.content, part.is_error) == ("7", "add", "3", False)
    assert [(each.value, each.outcome, each.decision) for each in result.results] == [(3, "ok", "allowed")]


@pytest.mark.parametrize("how", HANDS)
def test_an_answer_without_tool_calls_is_refused(how: str) -> None:
    with pytest.raises(ValueError, match="has no tool call"):
        by_hand(how, ChatResponse(AssistantMessage("hi")), [add])


@pytest.mark.parametrize("how", HANDS)
@pytest.mark.parametrize("response", [None, "add", AssistantMessage("x")])
def test_an_object_that_is_not_a_response_is_refused_by_name(how: str, response: Any) -> None:
    with pytest.raises(TypeError, match="response"):
        by_hand(how, response, [add])
    with pytest.raises(TypeError, match=r"messages\[0\]"):
        ToolCallingManager().execute_tool_calls(["hi"], answer(ToolCall("add", id="1")), tools=[add])  # type: ignore[list-item]
    with pytest.raises(ToolDefinitionError):
        by_hand(how, answer(ToolCall("add", id="1")), [object()])


@pytest.mark.parametrize("how", HANDS)
@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        ([ToolCall("direct", {"text": "x"}, id="1")], True),
        ([ToolCall("direct", {"text": "x"}, id="1"), ToolCall("direct", {"text": "y"}, id="2")], True),
        ([ToolCall("direct", {"text": "x"}, id="1"), ToolCall("add", {"a": 1, "b": 1}, id="2")], False),
        ([ToolCall("own", id="1")], True),
        ([ToolCall("direct", {"nonsense": "x"}, id="1")], False),
        ([ToolCall("invented", id="1")], False),
        ([ToolCall("add", {"a": 1, "b": 1}, id="2")], False),
    ],
)
def test_results_are_direct_only_if_every_called_tool_is_and_succeeds(
    how: str, calls: list[ToolCall], expected: bool
) -> None:
    assert by_hand(how, answer(*calls), [direct, add, Own(return_direct=True)]).return_direct is expected


@pytest.mark.parametrize("how", HANDS)
def test_calls_run_by_hand_are_traced_below_the_applications_span(how: str) -> None:
    telemetry = Telemetry()
    tracer = telemetry.tracer_provider.get_tracer("application")
    calls = answer(ToolCall("add", {"a": 1, "b": 2}, id="1"), ToolCall("fail", id="2"), ToolCall("invented", id="3"))
    with tracer.start_as_current_span("application"):
        by_hand(how, calls, [add, fail], telemetry=telemetry.options)
    (root,) = telemetry.children(None)
    below = telemetry.children(root)
    assert sorted(span.name for span in below) == ["execute_tool add", "execute_tool fail", "refuse_tool _unknown"]
    assert telemetry.one("execute_tool add").status.status_code is StatusCode.UNSET
    assert telemetry.one("execute_tool fail").status.status_code is StatusCode.ERROR
    assert {context_of(span).trace_id for span in below} == {context_of(root).trace_id}
    assert not [span for span in telemetry.spans if "traced_tools.iteration.index" in (span.attributes or {})]


@pytest.mark.parametrize("how", HANDS)
def test_a_response_of_a_run_without_tool_calling_is_run_by_hand(how: str) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "three"])
    client = ChatClient(model, tools=[add])
    first = client.prompt("1+2?", tool_calling=False).call()
    result = ToolCallingManager().execute_tool_calls([UserMessage("1+2?")], first, tools=[add])
    second = client.prompt(messages=result.conversation_history, tool_calling=False).call()
    assert second.content == "three"
    assert model.requests[1].messages == result.conversation_history


@pytest.mark.parametrize("how", HANDS)
def test_the_error_policy_holds_by_hand(how: str) -> None:
    with pytest.raises(ToolExecutionError):
        by_hand(how, answer(ToolCall("fail", id="1")), [fail], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolNotFoundError):
        by_hand(how, answer(ToolCall("invented", id="1")), [fail], tool_errors=ToolErrors(unknown_tool="raise"))


@pytest.mark.parametrize("how", HANDS)
def test_a_batch_mixes_tools_with_and_without_context(how: str) -> None:
    calls = answer(ToolCall("whoami", id="1"), ToolCall("nothing", id="2"), ToolCall("own", {"x": 1}, id="3"))
    own = Own()
    result = by_hand(how, calls, [whoami, nothing, own], tool_context={"user": "ann"})
    assert [each.content for each in result.results] == ["ann whoami 1 0", "nothing given", '{"x": 1}']
    (_, context) = own.inputs[0]
    assert context is not None
    assert (dict(context), context.call_id) == ({"user": "ann"}, "3")


@pytest.mark.parametrize(
    ("setting", "value", "accepted"),
    [
        ("max_concurrency", None, "an int"),
        ("workers", 4, "a WorkerPool or None"),
        ("resolver", {}, "a ToolCallbackResolver or None"),
        ("resolver_fallback", None, "True or False"),
        ("max_result_characters", "all", "an int"),
    ],
)
def test_a_manager_validates_its_arguments(setting: str, value: Any, accepted: str) -> None:
    with pytest.raises(TypeError, match=f"{setting} must be {accepted}"):
        ToolCallingManager(**{setting: value})


def test_the_tools_of_a_request_are_sent_to_the_model_in_order() -> None:
    model = ScriptedChatModel(["done"])
    ChatClient(model, tools=[direct, Own(), add]).prompt("?").call()
    assert [each.name for each in model.requests[0].tools] == ["direct", "own", "add"]
    assert model.requests[0].tools == tuple(each.definition for each in tool_callbacks(direct, Own(), add))


@pytest.mark.parametrize("how", HANDS)
def test_a_conversation_may_be_empty_and_results_are_not_direct_by_themselves(how: str) -> None:
    response = answer(ToolCall("add", {"a": 1, "b": 2}, id="7"))
    execute = getattr(ToolCallingManager(), how)
    result = execute([], response, tools=[add])
    result = asyncio.run(result) if how.startswith("a") else result
    assert [type(message) for message in result.conversation_history] == [AssistantMessage, ToolMessage]
    assert ToolExecutionResult(()).return_direct is False
    with pytest.raises(TypeError, match=r"messages\[1\]"):
        asyncio.run(ToolCallingManager().aexecute_tool_calls([*ASKED, None], response, tools=[add]))  # type: ignore[list-item]


# Direct results.


@pytest.mark.parametrize("mode", MODES)
def test_direct_results_of_the_last_batch_are_one_answer_and_keep_their_ids_and_names(mode: str) -> None:
    calls = [ToolCall("direct", {"text": text}, id=text) for text in ("x", "y")]
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}, id="1"), calls])
    response = run(mode, ChatClient(model, tools=[add, direct]).prompt("?"))
    assert (response.content, response.stop_reason, response.finish_reason) == ("x\ny", "return_direct", "stop")
    assert [(each.call_id, each.tool) for each in response.tool_results] == [
        ("1", "add"),
        ("x", "direct"),
        ("y", "direct"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_a_direct_result_without_text_is_an_empty_answer(mode: str) -> None:
    response = run(mode, ChatClient(ScriptedChatModel([ToolCall("direct", {"text": ""})]), tools=[direct]).prompt("?"))
    assert (response.content, response.stop_reason) == ("", "return_direct")
