"""Content that is never captured: of tools with capture disabled, of unknown tools, and of the tool context."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.contents import quiet, talk
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimits,
    ToolCall,
    ToolMessage,
    ToolResult,
    UserMessage,
    tool,
)
from traced_tools.core import ToolDefinition, ToolMetadata, ToolResultPart
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import OpenAIChatModel
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, ToolInvocation
from traced_tools.tools.invocation import CallNext


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["discreet", "quiet"])
def test_the_content_of_an_uncaptured_tool_is_in_no_signal(mode: str, name: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall(name, {"secret": MARKER}), ToolCall("add", {"a": 1, "b": 2}))
    assert names.TOOL_CALL_ARGUMENTS in (telemetry.one("execute_tool add").attributes or {})
    for span in telemetry.spans:
        assert MARKER not in span.to_json(), span.name
    assert MARKER not in everything([[event.name, event.attributes] for event in telemetry.events])


class Indiscreet(Advisor):
    """Quotes the arguments of a call as it raises."""

    name, order = "indiscreet", 300

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        raise LookupError(call.arguments)


class Wrapping(Advisor):
    """Raises another error from one."""

    name, order = "wrapping", 100

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        try:
            return await call_next(request)
        except LookupError as error:
            raise RuntimeError(f"because: {error}") from error


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("around", [[], [Wrapping()]])
def test_an_advisor_error_around_an_uncaptured_tool_records_only_its_type(mode: str, around: list[Advisor]) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("quiet", {"secret": MARKER}), "x"])
    client = ChatClient(model, tools=[quiet], advisors=[Indiscreet(), *around], telemetry=telemetry.options)
    with pytest.raises(RuntimeError if around else LookupError):
        run(mode, client.prompt("?"))
    (hook,) = telemetry.named("advise_tool indiscreet")
    assert (hook.attributes or {})[names.ERROR_TYPE] == "LookupError"
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


@pytest.mark.parametrize("mode", MODES)
def test_captured_messages_have_only_the_name_of_an_unknown_tool(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    before = [
        UserMessage("hello"),
        AssistantMessage([ToolCall("quiet", {"secret": MARKER}, id="1")]),
        ToolMessage([ToolResultPart(call_id="1", name="quiet", content=MARKER)]),
    ]
    client = ChatClient(ScriptedChatModel(["hi"]), telemetry=telemetry.options)
    run(mode, client.prompt("and now?", messages=before))
    assert "quiet" in str((telemetry.one("chat scripted").attributes or {})[names.INPUT_MESSAGES])
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_context_is_never_captured(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "done"])
    client = ChatClient(model, tools=[add], tool_context={"key": MARKER}, telemetry=telemetry.options)
    run(mode, client.prompt("?", tool_context={MARKER: MARKER}))
    assert MARKER not in "".join(span.to_json() for span in telemetry.spans)
    assert MARKER not in everything([event.attributes for event in telemetry.events])


@pytest.mark.parametrize("mode", ["call", "stream"])
@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_from_an_uncaptured_tool_records_only_its_type(mode: str, error: Any) -> None:
    @tool(capture=False)
    def pay() -> None:
        """Pay."""
        raise error("card 4242")

    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("pay"), "x"])
    with pytest.raises(error):
        run(mode, ChatClient(model, tools=[pay], telemetry=telemetry.options).prompt("?"))
    assert {span.status.description for span in telemetry.spans} <= {None, error.__name__}
    assert [span for span in telemetry.spans if names.EXCEPTION_MESSAGE in (span.attributes or {})] == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Quiet", "quiet ", "invented"])
def test_a_call_of_an_unknown_tool_captures_only_its_name(mode: str, name: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    talk(telemetry, mode, ToolCall(name, {"secret": MARKER}))
    assert (telemetry.one("refuse_tool _unknown").attributes or {})[names.TOOL_REQUESTED_NAME] == name
    assert_not_captured(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_in_a_concluding_answer_captures_nothing_of_an_uncaptured_tool(mode: str) -> None:
    body = {"id": "1", "model": "m"}
    call = {
        "id": "c",
        "type": "function",
        "function": {"name": "bank_pay", "arguments": json.dumps({"secret": MARKER})},
    }
    choice = {"message": {"content": "", "tool_calls": [call]}, "finish_reason": "tool_calls"}
    pay = FunctionToolCallback(quiet, name="bank.pay")
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    with ReplayServer([Reply.json({**body, "choices": [choice]})] * 2) as server:
        with OpenAIChatModel("m", base_url=server.url) as model:
            limits = LoopLimits(max_iterations=1)
            client = ChatClient(model, tools=[pay], limits=limits, telemetry=telemetry.options)
            run("call" if mode == "stream" else "acall" if mode == "astream" else mode, client.prompt("?"))
    assert_not_captured(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_direct_result_of_an_uncaptured_tool_is_in_no_captured_answer_or_later_message(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    direct = FunctionToolCallback(quiet, metadata=ToolMetadata(return_direct=True))
    model = ScriptedChatModel([ToolCall("quiet", {"secret": MARKER}), "and on"])
    client = ChatClient(model, tools=[direct], telemetry=telemetry.options)
    response = run(mode, client.prompt("?"))
    assert response.content == MARKER
    run(mode, client.prompt("and now?", messages=response.messages))
    assert_not_captured(telemetry)


def test_a_copy_of_an_uncaptured_tool_is_uncaptured() -> None:
    made = [
        FunctionToolCallback(quiet, metadata=ToolMetadata(timeout=5)),
        FunctionToolCallback(partial(quiet), name="p"),
        FunctionToolCallback(quiet, name="other"),
    ]
    assert [each.metadata.capture for each in made] == [False, False, False]
    assert made[0].metadata.timeout == 5


class Unspoken:
    """A custom tool whose metadata have no `capture`."""

    definition = ToolDefinition(name="unspoken")
    metadata: Any = SimpleNamespace(
        return_direct=False,
        source="local",
        timeout=None,
        retries=0,
        retry_on=(),
        sequential=False,
        requires_approval=False,
    )

    def call(self, tool_input: str, context: Any = None) -> str:
        return MARKER


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_without_capture_metadata_is_uncaptured(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("unspoken"), "x"])
    assert run(mode, ChatClient(model, tools=[Unspoken()], telemetry=telemetry.options).prompt("?")).content == "x"
    assert_not_captured(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_error_that_quotes_an_uncaptured_tool_records_only_its_type(mode: str) -> None:
    telemetry = Telemetry(capture="SPAN_AND_EVENT")
    model = ScriptedChatModel([ToolCall("quiet", {"secret": MARKER}), RuntimeError(MARKER)])
    with pytest.raises(RuntimeError):
        run(mode, ChatClient(model, tools=[quiet], telemetry=telemetry.options).prompt("?"))
    assert_not_captured(telemetry)


def assert_not_captured(telemetry: Telemetry) -> None:
    for span in telemetry.spans:
        assert MARKER not in span.to_json(), span.name
    assert MARKER not in everything([[event.name, event.attributes] for event in telemetry.events])
