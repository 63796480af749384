"""Running the calls of an answer: in the loop and by hand.

Not applicable: B084 (what a manager is made of: it is made of nothing), B085 (definitions are those of the request's
tools), B088 and B089 (no resolvers yet), B099 and B108 (weaknesses W-08 and W-02: malformed arguments are refused, and
siblings keep their results), B101 (an answer has one message), B104 to B107 (nothing is converted into generations, and
`ToolExecutionResult` is made by the manager).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.trace import StatusCode

from tests.helpers import MARKER, MODES, Telemetry, context_of, relaxed, run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    ToolCall,
    ToolCallingManager,
    ToolContext,
    ToolDefinition,
    ToolDefinitionError,
    ToolErrors,
    ToolExecutionError,
    ToolExecutionResult,
    ToolMessage,
    ToolMetadata,
    ToolNotFoundError,
    UserMessage,
    dump_messages,
    load_messages,
    tool,
)
from traced_tools.models import ChatResponse
from traced_tools.telemetry import names
from traced_tools.testing import ScriptedChatModel

ASKED = (UserMessage("?"),)
HANDS = ("execute_tool_calls", "aexecute_tool_calls")


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def fail(reason: str = "no") -> str:
    """Fail."""
    raise RuntimeError(reason)


def nothing() -> str:
    """Take nothing."""
    return "nothing given"


@tool(return_direct=True)
def direct(text: str) -> str:
    """Answer directly."""
    return text


def whoami(context: ToolContext) -> str:
    """Tell who is asking."""
    return f"{context['user']} {context.tool_name} {context.call_id} {context.iteration}"


class Own:
    """A tool made without the package's help."""

    def __init__(self, name: str = "own", return_direct: bool = False, answer: Any = None) -> None:
        self.definition = ToolDefinition(name=name)
        self.metadata = ToolMetadata(return_direct=return_direct)
        self.inputs: list[tuple[str, ToolContext | None]] = []
        self._answer = answer

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.inputs.append((tool_input, context))
        return tool_input if self._answer is None else self._answer


def answer(*calls: ToolCall) -> ChatResponse:
    return ChatResponse(AssistantMessage(tool_calls=calls), finish_reason="tool_call")


def by_hand(how: str, response: Any, tools: Any, **settings: Any) -> ToolExecutionResult:
    manager = ToolCallingManager()
    if how == "execute_tool_calls":
        return manager.execute_tool_calls(ASKED, response, tools=tools, **settings)
    return asyncio.run(manager.aexecute_tool_calls(ASKED, response, tools=tools, **settings))


def in_loop(mode: str, *calls: ToolCall, tools: Any, **settings: Any) -> list[str]:
    model = ScriptedChatModel([list(calls), "done"])
    return [each.content for each in run(ChatClient(model, tools=tools, **settings).prompt("?"), mode).tool_results]


# By hand.


@pytest.mark.parametrize("how", HANDS)
def test_b090_a_call_gives_one_result_with_its_id_and_name(how: str) -> None:
    response = answer(ToolCall("add", {"a": 1, "b": 2}, id="7"))
    result = by_hand(how, response, [add])
    assert result.conversation_history[:2] == (*ASKED, response.message)
    (message,) = result.conversation_history[2:]
    assert isinstance(message, ToolMessage)
    (part,) = message.results
    assert (part.call_id, part.name, part.content, part.is_error) == ("7", "add", "3", False)
    assert [(each.value, each.outcome, each.decision) for each in result.results] == [(3, "ok", "allowed")]


@pytest.mark.parametrize("how", HANDS)
def test_b087_an_answer_that_asks_for_no_tool_is_refused(how: str) -> None:
    with pytest.raises(ValueError, match="asks for no tool"):
        by_hand(how, ChatResponse(AssistantMessage("hi")), [add])


@pytest.mark.parametrize("how", HANDS)
@pytest.mark.parametrize("response", [None, "add", AssistantMessage("x")])
def test_b086_something_that_is_no_response_is_refused_by_name(how: str, response: Any) -> None:
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
def test_b093_b094_results_are_direct_only_if_every_called_tool_is_and_succeeds(
    how: str, calls: list[ToolCall], expected: bool
) -> None:
    assert by_hand(how, answer(*calls), [direct, add, Own(return_direct=True)]).return_direct is expected


@pytest.mark.parametrize("how", HANDS)
def test_b102_calls_run_by_hand_are_traced_below_the_applications_span(how: str) -> None:
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
def test_b096_a_batch_mixes_tools_with_and_without_context(how: str) -> None:
    calls = answer(ToolCall("whoami", id="1"), ToolCall("nothing", id="2"), ToolCall("own", {"x": 1}, id="3"))
    own = Own()
    result = by_hand(how, calls, [whoami, nothing, own], tool_context={"user": "ann"})
    assert [each.content for each in result.results] == ["ann whoami 1 0", "nothing given", '{"x": 1}']
    (_, context) = own.inputs[0]
    assert context is not None
    assert (dict(context), context.call_id) == ({"user": "ann"}, "3")


# Batches.


@pytest.mark.parametrize("mode", MODES)
def test_b091_results_are_in_call_order_whichever_tool_ends_first(mode: str) -> None:
    last_is_done = threading.Event()

    def slow() -> str:
        """Wait for the other one."""
        assert last_is_done.wait(30)
        return "slow"

    def quick() -> str:
        """Let the other one go on."""
        last_is_done.set()
        return "quick"

    assert in_loop(mode, ToolCall("slow"), ToolCall("quick"), tools=[slow, quick]) == ["slow", "quick"]


@pytest.mark.parametrize("mode", MODES)
def test_b092_two_calls_of_one_tool_are_both_answered(mode: str) -> None:
    calls = [ToolCall("add", {"a": 1, "b": 1}), ToolCall("add", {"a": 2, "b": 2})]
    assert in_loop(mode, *calls, tools=[add]) == ["2", "4"]


@pytest.mark.parametrize("mode", MODES)
def test_async_and_blocking_tools_run_in_one_batch(mode: str) -> None:
    async def later(text: str) -> str:
        """Answer later."""
        await asyncio.sleep(0)
        return text

    calls = [ToolCall("later", {"text": "x"}), ToolCall("add", {"a": 1, "b": 1})]
    assert in_loop(mode, *calls, tools=[later, add]) == ["x", "2"]


@pytest.mark.parametrize("mode", MODES)
def test_every_kind_of_failure_leaves_the_siblings_their_results(mode: str) -> None:
    calls = [
        ToolCall("add", {"a": 1, "b": 1}),
        ToolCall("fail", {"reason": "no disk"}),
        ToolCall("invented"),
        ToolCall("add", "{not json"),
        ToolCall("own", "[]"),
        ToolCall("add", {"a": 2, "b": 2}),
    ]
    contents = in_loop(mode, *calls, tools=[add, fail, Own()])
    assert (contents[0], contents[5]) == ("2", "4")
    assert contents[1] == "The tool fail failed: RuntimeError: no disk"
    assert "no tool of that name" in contents[2]
    assert contents[3].startswith("The arguments are invalid: ")
    assert "must be a JSON object" in contents[4]


@pytest.mark.parametrize("mode", MODES)
def test_with_a_raising_policy_every_sibling_still_runs(mode: str) -> None:
    ran: list[str] = []

    def note(text: str) -> str:
        """Note the text."""
        ran.append(text)
        return text

    model = ScriptedChatModel([[ToolCall("fail"), ToolCall("note", {"text": "b"})]])
    client = ChatClient(model, tools=[fail, note], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError):
        run(client.prompt("?"), mode)
    assert ran == ["b"]


@pytest.mark.parametrize("mode", MODES)
def test_the_first_failure_in_call_order_is_the_one_raised(mode: str) -> None:
    model = ScriptedChatModel([[ToolCall("fail", {"reason": "first"}), ToolCall("fail", {"reason": "second"})]])
    client = ChatClient(model, tools=[fail], tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError) as caught:
        run(client.prompt("?"), mode)
    assert str(caught.value.original) == "first"


@pytest.mark.parametrize("mode", MODES)
def test_tools_run_in_the_callers_context(mode: str) -> None:
    tenant: ContextVar[str] = ContextVar("tenant")

    def who() -> str:
        """Tell the tenant."""
        return tenant.get("nobody")

    token = tenant.set("t1")
    try:
        assert in_loop(mode, ToolCall("who"), ToolCall("who", {}), tools=[who]) == ["t1", "t1"]
    finally:
        tenant.reset(token)


# Arguments.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["", " ", "\n\t", "{}", "null"])
def test_b097_no_arguments_reach_a_tool_as_an_empty_object(mode: str, text: str) -> None:
    own = Own()
    contents = in_loop(mode, ToolCall("nothing", text), ToolCall("own", text), tools=[nothing, own])
    assert contents == ["nothing given", "{}"]


@pytest.mark.parametrize("mode", MODES)
def test_b098_nested_arguments_reach_the_tool_unchanged(mode: str) -> None:
    nested = {"filter": {"tags": ["a", {"deep": None}], "limits": [1, 2.5]}, "text": 'quote " and ünïcode'}

    def find(filter: dict[str, Any], text: str) -> dict[str, Any]:
        """Find."""
        return {"filter": filter, "text": text}

    contents = in_loop(mode, ToolCall("find", nested), ToolCall("own", nested), tools=[find, Own()])
    assert [json.loads(content) for content in contents] == [nested, nested]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{", "arguments: not valid JSON"),
        ("[1, 2]", "arguments: "),
        ('"text"', "arguments: "),
        ("{}", "a: Field required; b: Field required"),
        ('{"a": 1, "b": "many"}', "b: Input should be a valid integer"),
        ('{"a": 1, "b": 2, "c": 3}', "c: is not a known field"),
        ('{"a": 1, "b": null}', "b: Input should be a valid integer"),
    ],
)
def test_b099_invalid_arguments_are_refused_with_what_to_correct(mode: str, arguments: str, problem: str) -> None:
    (content,) = in_loop(mode, ToolCall("add", arguments), tools=[add])
    assert content.startswith(f"The arguments are invalid: {problem}")
    assert content.endswith("Correct them and call the tool again.")


def test_the_values_of_invalid_arguments_are_not_repeated() -> None:
    (content,) = in_loop("call", ToolCall("add", {"a": MARKER, "b": [MARKER]}), tools=[add])
    assert MARKER not in content


@pytest.mark.parametrize("mode", MODES)
def test_a_list_a_tool_changes_is_fresh_for_each_call(mode: str) -> None:
    def pop(items: list[int]) -> int:
        """Take the last one."""
        return items.pop()

    calls = [ToolCall("pop", {"items": [1, 2]}), ToolCall("pop", {"items": [1, 2]})]
    assert in_loop(mode, *calls, tools=[pop]) == ["2", "2"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b", "text"]) | st.text(), inner, max_size=3)
    ),
    max_leaves=10,
)


@relaxed
@given(json_values.map(json.dumps) | st.text())
@pytest.mark.parametrize("mode", ["call", "acall"])
def test_whatever_the_model_writes_as_arguments_it_gets_an_answer(mode: str, text: str) -> None:
    calls = [ToolCall(name, text) for name in ("add", "direct", "nothing", "own", "invented", text)]
    model = ScriptedChatModel([calls, "done"])
    client = ChatClient(model, tools=[add, direct, nothing, Own()])
    response = run(client.prompt("?"), mode)
    assert response.content == "done"
    results = model.requests[1].messages[-1]
    assert isinstance(results, ToolMessage)
    assert len(results.results) == len(calls)
    assert all(isinstance(part.content, str) for part in results.results)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 100_000,
        "1" * 10_000,
        '{"a": ' + "9" * 10_000 + ', "b": 1}',
        '{"a": 1e999, "b": 1}',
        '"\\ud800"',
    ],
    ids=["deep list", "deep object", "long number", "long integer", "infinite", "lone surrogate"],
)
def test_outlandish_arguments_get_an_answer(text: str) -> None:
    assert len(in_loop("call", ToolCall("add", text), ToolCall("own", text), tools=[add, Own()])) == 2


# Results.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, float("-inf")]], ids=str)
def test_a_number_json_does_not_know_still_reaches_the_model_as_json(mode: str, value: Any) -> None:
    def measure() -> Any:
        """Measure."""
        return value

    def refuse(word: str) -> Any:
        raise AssertionError(f"{word} is no JSON")

    (content,) = in_loop(mode, ToolCall("measure"), tools=[measure])
    json.loads(content, parse_constant=refuse)


@pytest.mark.parametrize("mode", MODES)
def test_b100_a_tool_that_returns_none_is_answered(mode: str) -> None:
    def note(text: str) -> None:
        """Note the text."""

    def find(text: str) -> str | None:
        """Find nothing."""
        return None

    calls = [ToolCall("note", {"text": "x"}), ToolCall("find", {"text": "x"})]
    assert in_loop(mode, *calls, tools=[note, find]) == ["Done", "null"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrong", [5, b"x", ["x"], {"a": 1}], ids=str)
def test_a_tool_of_the_users_own_that_returns_no_text_fails(mode: str, wrong: Any) -> None:
    (content,) = in_loop(mode, ToolCall("own"), tools=[Own(answer=wrong)])
    assert content == f"The tool own failed: TypeError: Own.call must return str, not {type(wrong).__name__}"


@pytest.mark.parametrize("mode", MODES)
def test_a_value_that_is_no_json_fails_the_tool_and_not_the_run(mode: str) -> None:
    def odd() -> object:
        """Return something odd."""
        return object()

    (content,) = in_loop(mode, ToolCall("odd"), tools=[odd])
    assert content.startswith("The tool odd failed: ")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["result", "error", "arguments"])
def test_a_text_that_no_encoding_knows_is_sent_stored_and_traced(mode: str, where: str) -> None:
    def path() -> str:
        """Return a file name that is no UTF-8, as `os.fsdecode` gives it."""
        return "file-\udcff"

    def missing() -> str:
        """Raise with such a name."""
        raise FileNotFoundError("file-\udcff")

    turn = {"result": ToolCall("path"), "error": ToolCall("missing"), "arguments": ToolCall("own", '{"a": "\udcff"}')}[
        where
    ]
    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel([turn, "done"]), tools=[path, missing, Own()], telemetry=telemetry.options)
    response = run(client.prompt("?"), mode)
    assert load_messages(dump_messages(response.messages)) == response.messages
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert [point.total for point in telemetry.metric(names.TOOL_DECISIONS.name)] == [1]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_whose_text_cannot_be_made_fails_no_run(mode: str) -> None:
    class UnspeakableError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    def unspeakable() -> str:
        """Raise."""
        raise UnspeakableError

    (content,) = in_loop(mode, ToolCall("unspeakable"), tools=[unspeakable])
    assert content.startswith("The tool unspeakable failed: ")


@pytest.mark.parametrize("mode", MODES)
def test_b095_the_model_reads_the_errors_words_up_to_a_length(mode: str) -> None:
    (content,) = in_loop(mode, ToolCall("fail", {"reason": "x" * 10_000}), tools=[fail])
    assert content == "The tool fail failed: RuntimeError: " + "x" * 2000


@pytest.mark.parametrize("mode", ["call", "stream"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_no_failure_of_a_tool(mode: str, kind: Callable[[], BaseException]) -> None:
    def stop() -> str:
        """Stop everything."""
        raise kind()

    with pytest.raises(BaseException) as caught:
        in_loop(mode, ToolCall("stop"), tools=[stop])
    assert type(caught.value) is kind


@pytest.mark.parametrize("mode", MODES)
def test_an_acall_of_the_users_own_is_used_on_asyncio(mode: str) -> None:
    class Both(Own):
        async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
            return "from acall"

    expected = "from acall" if mode.startswith("a") else "{}"
    assert in_loop(mode, ToolCall("own"), tools=[Both()]) == [expected]
