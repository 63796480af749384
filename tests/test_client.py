"""The client: how it assembles a request, and what it refuses.

Providers and names in `tools=` have separate tests. B079 speaks of tools that options carry; here they never do,
and B080, B081 and B083 are what is left without. B075 in part: None is a value like any other in a tool context.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import pytest

from tests.markers import MARKER
from tests.modes import MODES, run
from tests.recorder import Recorder
from tests.sample_tools import add
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ImagePart,
    LoopLimits,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolContext,
    ToolMessage,
    Usage,
    UserMessage,
    tool,
)
from traced_tools.core import ToolErrors, ToolResultPart
from traced_tools.errors import ToolDefinitionError
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatChunk, ChatRequest
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback


def subtract(a: int, b: int) -> int:
    """Subtract."""
    return a - b


class Calculator:
    """Two tools and a method that is not a tool."""

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply."""
        return a * b

    @tool(name="divide")
    def divided_by(self, a: int, b: int) -> float:
        """Divide."""
        return a / b

    def helper(self) -> None:
        """No tool."""


def whoami(context: ToolContext) -> str:
    """Return who is asking."""
    return ",".join(f"{key}={value}" for key, value in sorted(context.items()))


def sent(model: ScriptedChatModel) -> ChatRequest:
    return model.requests[-1]


# What is sent.


@pytest.mark.parametrize("mode", MODES)
def test_messages_are_sent_as_system_then_conversation_then_user(mode: str) -> None:
    model = ScriptedChatModel(["x"])
    conversation: list[Message] = [
        UserMessage("one"),
        AssistantMessage("two", tool_calls=[ToolCall("add", id="1")]),
        ToolMessage([ToolResultPart(call_id="1", name="add", content="3")]),
    ]
    run(mode, ChatClient(model).prompt("last", messages=conversation, system="first"))
    assert sent(model).messages == (SystemMessage("first"), *conversation, UserMessage("last"))


@pytest.mark.parametrize("mode", MODES)
def test_a_continued_conversation_has_the_system_message_once(mode: str) -> None:
    model = ScriptedChatModel(["one", "two", "three"])
    client = ChatClient(model, system="be brief")
    first = run(mode, client.prompt("1"))
    second = run(mode, client.prompt("2", messages=first.messages))
    run(mode, client.prompt("3", messages=second.messages))
    roles = [message.role for message in model.requests[-1].messages]
    assert roles == ["system", "user", "assistant", "user", "assistant", "user"]


def test_the_system_message_of_a_request_replaces_the_clients() -> None:
    model = ScriptedChatModel(["x"] * 3)
    client = ChatClient(model, system="the client's")
    client.prompt("?").call()
    assert sent(model).messages[0] == SystemMessage("the client's")
    client.prompt("?", system="the request's").call()
    assert sent(model).messages == (SystemMessage("the request's"), UserMessage("?"))


@pytest.mark.parametrize(
    ("user", "expected"),
    [
        ("hi", UserMessage("hi")),
        (UserMessage("hi"), UserMessage("hi")),
        ([TextPart("look"), ImagePart(data=b"x")], UserMessage([TextPart("look"), ImagePart(data=b"x")])),
        ((TextPart("look"),), UserMessage("look")),
    ],
)
def test_the_user_message_may_be_text_parts_or_a_message(user: Any, expected: UserMessage) -> None:
    model = ScriptedChatModel(["x"])
    ChatClient(model).prompt(user).call()
    assert sent(model).messages == (expected,)


def test_messages_may_come_from_any_iterable_and_are_read_once() -> None:
    model = ScriptedChatModel(["x", "y"])
    spec = ChatClient(model).prompt(messages=(UserMessage(text) for text in ("a", "b")))
    for _ in range(2):
        spec.call()
        assert sent(model).messages == (UserMessage("a"), UserMessage("b"))


def test_a_request_with_nothing_to_send_is_refused() -> None:
    with pytest.raises(ValueError, match="user=, messages= or system="):
        ChatClient(ScriptedChatModel([])).prompt()
    ChatClient(ScriptedChatModel(["x"]), system="be brief").prompt().call()


@pytest.mark.parametrize("mode", MODES)
def test_tools_of_a_request_replace_the_clients(mode: str) -> None:
    model = ScriptedChatModel(["x"] * 3)
    client = ChatClient(model, tools=[add])
    for tools, expected in ((None, ["add"]), ([subtract], ["subtract"]), ([], [])):
        run(mode, client.prompt("?", tools=tools))
        assert [each.name for each in sent(model).tools] == expected


@pytest.mark.parametrize("mode", MODES)
def test_tool_context_is_merged_and_the_request_wins(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("whoami"), "x"])
    client = ChatClient(model, tools=[whoami], tool_context={"user": "ann", "tenant": "t1"})
    response = run(mode, client.prompt("?", tool_context={"user": "bob", "role": None}))
    assert response.tool_results[0].content == "role=None,tenant=t1,user=bob"
    again = ScriptedChatModel([ToolCall("whoami"), "x"])
    assert run(mode, client.replace(model=again).prompt("?")).tool_results[0].content == "tenant=t1,user=ann"


@pytest.mark.parametrize("mode", MODES)
def test_params_become_the_context_of_request_and_response(mode: str) -> None:
    recorder = Recorder()
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[recorder])
    response = run(mode, client.prompt("?", params=MappingProxyType({"session_id": "s"})))
    assert dict(recorder.requests[0].context) == {"session_id": "s"}
    assert dict(response.context) == {"session_id": "s"}


def test_later_changes_by_the_caller_do_not_change_a_request() -> None:
    params, context, messages = {"a": 1}, {"user": "ann"}, [UserMessage("x")]
    model = ScriptedChatModel([ToolCall("whoami"), "x"])
    recorder = Recorder()
    spec = ChatClient(model, tools=[whoami], advisors=[recorder]).prompt(
        messages=messages, params=params, tool_context=context
    )
    params["b"] = 2
    context["user"] = "eve"
    messages.append(UserMessage("y"))
    response = spec.call()
    assert dict(recorder.requests[0].context) == {"a": 1}
    assert response.tool_results[0].content == "user=ann"
    assert model.requests[0].messages == (UserMessage("x"),)


@pytest.mark.parametrize("mode", MODES)
def test_options_are_merged_and_the_request_wins(mode: str) -> None:
    model = ScriptedChatModel(["x"] * 2)
    client = ChatClient(model, options=ChatOptions(temperature=0.1, max_tokens=5, extra={"a": 1}))
    run(mode, client.prompt("?", options=ChatOptions(temperature=0.9, extra={"b": 2})))
    assert sent(model).options == ChatOptions(temperature=0.9, max_tokens=5, extra={"a": 1, "b": 2})
    run(mode, client.prompt("?"))
    assert sent(model).options == ChatOptions(temperature=0.1, max_tokens=5, extra={"a": 1})


@pytest.mark.parametrize("mode", MODES)
def test_advisors_of_a_request_are_added_to_the_clients(mode: str) -> None:
    first, second = Recorder("first"), Recorder("second")
    client = ChatClient(ScriptedChatModel(["x"] * 2), advisors=[first])
    run(mode, client.prompt("?", advisors=[second]))
    run(mode, client.prompt("?"))
    assert (len(first.requests), len(second.requests)) == (2, 1)


@pytest.mark.parametrize("mode", MODES)
def test_advisors_tools_and_the_caller_see_the_conversation_id(mode: str) -> None:
    seen: list[str | None] = []

    def remember(context: ToolContext) -> str:
        """Note the conversation."""
        seen.append(context.conversation_id)
        return "noted"

    recorder = Recorder()
    client = ChatClient(ScriptedChatModel([ToolCall("remember"), "x"]), tools=[remember], advisors=[recorder])
    response = run(mode, client.prompt("?", conversation_id="c-1"))
    assert {response.conversation_id, recorder.requests[0].conversation_id, *seen} == {"c-1"}
    assert run(mode, ChatClient(ScriptedChatModel(["x"])).prompt("?")).conversation_id is None


# Tools.


def test_tools_may_be_mixed_and_nested() -> None:
    model = ScriptedChatModel(["x"])
    callback = FunctionToolCallback(add, name="plus")
    ChatClient(model, tools=[callback, [Calculator(), (subtract,)], whoami]).prompt("?").call()
    assert [each.name for each in sent(model).tools] == ["plus", "multiply", "divide", "subtract", "whoami"]


@pytest.mark.parametrize(
    "tools", [add, Calculator(), FunctionToolCallback(add)], ids=["function", "object", "callback"]
)
def test_a_single_tool_needs_no_list(tools: Any) -> None:
    model = ScriptedChatModel(["x"])
    ChatClient(model).prompt("?", tools=tools).call()
    assert sent(model).tools


@pytest.mark.parametrize("tools", [None, [None], [[add, None]], 5, object(), {"add": add}, Calculator, [Advisor]])
def test_an_object_that_is_not_a_tool_is_refused_with_what_to_pass_instead(tools: Any) -> None:
    with pytest.raises(
        ToolDefinitionError, match="pass a function, an object with methods marked @tool, or a ToolCallback"
    ):
        ChatClient(ScriptedChatModel([]), tools=tools)
    if tools is not None:
        with pytest.raises(ToolDefinitionError, match="is not a tool"):
            ChatClient(ScriptedChatModel([])).prompt("?", tools=tools)


def test_a_class_in_place_of_its_instance_is_named_in_the_error() -> None:
    with pytest.raises(ToolDefinitionError, match="this is a class, pass an instance"):
        ChatClient(ScriptedChatModel([]), tools=[Calculator])


@pytest.mark.parametrize(
    "tools",
    [[add, add], [add, FunctionToolCallback(subtract, name="add")], [Calculator(), [Calculator()]]],
    ids=["twice", "renamed", "two objects"],
)
def test_two_tools_with_one_name_are_refused_by_name(tools: Any) -> None:
    expected = "divide, multiply" if isinstance(tools[0], Calculator) else "add"
    with pytest.raises(ToolDefinitionError, match=f"given more than once: {expected}$"):
        ChatClient(ScriptedChatModel([]), tools=tools)
    with pytest.raises(ToolDefinitionError, match=expected):
        ChatClient(ScriptedChatModel([])).prompt("?", tools=tools)


@pytest.mark.parametrize("mode", MODES)
def test_tools_with_one_name_that_an_advisor_adds_are_refused(mode: str) -> None:
    class Double(Advisor):
        name, order = "double", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request.replace(tools=[*request.tools, *request.tools]))

    with pytest.raises(ToolDefinitionError, match="add"):
        run(mode, ChatClient(ScriptedChatModel([]), tools=[add], advisors=[Double()]).prompt("?"))


# Running more than once, changing a client.


@pytest.mark.parametrize("mode", MODES)
def test_a_request_runs_many_times_and_each_run_is_complete(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "two"] * 3, usage=Usage(input_tokens=1))
    recorder = Recorder(order=100)
    spec = ChatClient(model, tools=[add], advisors=[recorder]).prompt("?", params={"a": 1})
    responses = [run(mode, spec) for _ in range(3)]
    assert [response.content for response in responses] == ["two"] * 3
    assert [response.usage for response in responses] == [Usage(input_tokens=2)] * 3
    assert len({response.run_id for response in responses}) == 3
    assert [len(response.messages) for response in responses] == [4] * 3
    assert len(recorder.requests) == 3


@pytest.mark.parametrize("mode", MODES)
def test_one_request_runs_in_every_mode(mode: str) -> None:
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "two"] * 2)
    spec = ChatClient(model, tools=[add]).prompt("?")
    assert run(mode, spec).content == run("call", spec).content == "two"


@pytest.mark.parametrize("mode", MODES)
def test_an_advisors_changes_of_the_context_stay_in_its_run(mode: str) -> None:
    seen: list[dict[str, Any]] = []

    class Scribble(Advisor):
        name, order = "scribble", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            seen.append(dict(request.context))
            context: Any = request.context
            with suppress(TypeError):  # a context that cannot be changed is as good
                context["scribbled"] = True
            return await call_next(request)

    spec = ChatClient(ScriptedChatModel(["x", "y"]), advisors=[Scribble()]).prompt("?", params={"a": 1})
    run(mode, spec)
    run(mode, spec)
    assert seen == [{"a": 1}, {"a": 1}]


def test_requests_and_responses_created_by_hand_have_separate_contexts() -> None:
    one, other = (ChatClientRequest([UserMessage("?")]) for _ in range(2))
    assert one.context is not other.context
    assert ChatClientResponse(one.run).context is not ChatClientResponse(one.run).context


class Remembering(Advisor):
    """Answers itself from the context of the request, and stores what it learned in the response's context."""

    name, order = "remembering", 100

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response = ChatClientResponse(request.run)
        self.seen.append(dict(response.context))
        context: Any = response.context
        context["user"] = "ann"
        return response


@pytest.mark.parametrize("mode", MODES)
def test_the_context_of_a_response_is_empty_in_the_next_run(mode: str) -> None:
    advisor = Remembering()
    client = ChatClient(ScriptedChatModel([]), advisors=[advisor])
    responses = [run(mode, client.prompt("?")) for _ in range(2)]
    assert advisor.seen == [{}, {}]
    assert [dict(response.context) for response in responses] == [{"user": "ann"}] * 2


@pytest.mark.parametrize("mode", MODES)
def test_an_advisors_nested_changes_of_the_params_stay_in_its_run(mode: str) -> None:
    seen: list[str] = []

    class Scribble(Advisor):
        name, order = "scribble", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            context: Any = request.context
            seen.append(repr(context["notes"]))
            context["notes"]["list"][0].append("scribbled")
            context["notes"]["pair"][0].add("scribbled")
            return await call_next(request)

    notes: dict[str, Any] = {"list": [[]], "pair": (set(), 1)}
    notes["itself"] = notes
    client, own = ChatClient(ScriptedChatModel(["x", "y"]), advisors=[Scribble()]), object()
    spec = client.prompt("?", params={"notes": notes, "own": own})
    responses = [run(mode, spec) for _ in range(2)]
    assert seen == ["{'list': [[]], 'pair': (set(), 1), 'itself': {...}}"] * 2
    assert notes["list"] == [[]]
    assert all(response.context["own"] is own for response in responses)  # what is no container is not copied


@pytest.mark.parametrize("mode", MODES)
def test_an_advisors_additions_to_the_tool_context_stay_in_its_run(mode: str) -> None:
    class Scribble(Advisor):
        name, order = "scribble", 100

        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            context: Any = request.run.tool_context
            context[f"run{len(context)}"] = True
            return await call_next(request)

    def known(context: ToolContext) -> str:
        """Say what is known."""
        return ",".join(context)

    model = ScriptedChatModel([ToolCall("known"), "x"] * 2)
    spec = ChatClient(model, tools=[known], advisors=[Scribble()]).prompt("?", tool_context={"user": "ann"})
    assert [run(mode, spec).tool_results[0].content for _ in range(2)] == ["user,run1"] * 2


def test_nothing_is_sent_before_a_request_is_run() -> None:
    model = ScriptedChatModel(["x"])
    spec = ChatClient(model).prompt("?")
    stream, started = spec.stream(), spec.start()
    assert model.requests == []
    stream.close()
    started.close()
    assert model.requests == []


def test_a_request_cannot_be_changed() -> None:
    spec: Any = ChatClient(ScriptedChatModel([])).prompt("?")
    with pytest.raises(AttributeError):
        spec.messages = ()


@pytest.mark.parametrize("mode", MODES)
def test_a_changed_copy_of_a_client_keeps_the_rest(mode: str) -> None:
    model, recorder = ScriptedChatModel([ToolCall("whoami"), "x"]), Recorder()
    loop = ToolCallingAdvisor(order=350)
    client = ChatClient(
        ScriptedChatModel([]),
        name="travel",
        system="brief",
        tools=[whoami],
        advisors=[recorder],
        options=ChatOptions(seed=1),
        tool_context={"user": "ann"},
        tool_calling_advisor=loop,
        limits=LoopLimits(max_iterations=9),
        tool_errors=ToolErrors(always_raise=True),
    )
    changed = client.replace(model=model)
    response = run(mode, changed.prompt("?"))
    assert changed.name == "travel"
    assert response.tool_results[0].content == "user=ann"
    assert sent(model).messages[0] == SystemMessage("brief")
    assert sent(model).options == ChatOptions(seed=1)
    request = recorder.requests[0]
    assert (request.run.limits.max_iterations, request.run.tool_errors.always_raise) == (9, True)
    assert any(each is loop for each in changed.prompt("?").chain.advisors)
    assert client.prompt("?").chain.model is not model


def test_a_changed_copy_is_checked_like_a_new_client() -> None:
    client = ChatClient(ScriptedChatModel([]))
    with pytest.raises(TypeError, match="limits"):
        client.replace(limits=5)
    with pytest.raises(TypeError, match="invented"):
        client.replace(invented=1)


# What is refused.

WRONG_FOR_BOTH: list[tuple[str, Any]] = [
    ("system", 5),
    ("system", SystemMessage("x")),
    ("advisors", None),
    ("advisors", 5),
    ("advisors", [None]),
    ("advisors", ["memory"]),
    ("advisors", Recorder()),
    ("options", {"temperature": 1}),
    ("tool_context", 5),
    ("tool_context", [("a", 1)]),
    ("tool_context", {1: "x"}),
    ("tool_context", {None: "x"}),
    ("tool_context", {"": "x"}),
    ("tool_context", {"  ": "x"}),
    ("limits", 5),
    ("limits", {"max_iterations": 1}),
    ("tool_errors", True),
]
WRONG_FOR_CLIENT: list[tuple[str, Any]] = [
    ("name", 5),
    ("name", None),
    ("agent_id", 5),
    ("agent_id", ""),
    ("agent_id", "x" * 129),
    ("agent_id", "two\nlines"),
    ("tool_calling_advisor", 5),
    ("tool_calling_advisor", Recorder()),
    ("tool_calling_advisor", ToolCallingAdvisor),
    ("telemetry", 5),
]
WRONG_FOR_PROMPT: list[tuple[str, Any]] = [
    ("user", 5),
    ("user", b"hi"),
    ("user", ["hi"]),
    ("user", [None]),
    ("user", SystemMessage("x")),
    ("messages", None),
    ("messages", 5),
    ("messages", ["hi"]),
    ("messages", "hi"),
    ("messages", [{"role": "user"}]),
    ("conversation_id", 5),
    ("tool_calling", "no"),
    ("tool_calling", 0),
    ("params", 5),
    ("params", {5: 1}),
    ("params", {" ": 1}),
]


@pytest.mark.parametrize(("argument", "value"), [*WRONG_FOR_BOTH, *WRONG_FOR_CLIENT])
def test_a_client_refuses_an_argument_of_the_wrong_kind_by_name(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {argument: value}
    with pytest.raises((TypeError, ValueError), match=argument):
        ChatClient(ScriptedChatModel([]), **arguments)


@pytest.mark.parametrize("model", [None, "gpt-5-mini", ScriptedChatModel])
def test_a_client_needs_a_model(model: Any) -> None:
    with pytest.raises(TypeError, match="model must be a ChatModel"):
        ChatClient(model)


@pytest.mark.parametrize(("argument", "value"), [*WRONG_FOR_BOTH, *WRONG_FOR_PROMPT])
def test_a_prompt_refuses_an_argument_of_the_wrong_kind_by_name(argument: str, value: Any) -> None:
    arguments: dict[str, Any] = {"user": "?", argument: value}
    with pytest.raises((TypeError, ValueError), match=argument):
        ChatClient(ScriptedChatModel([])).prompt(**arguments)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("user", [MARKER]),
        ("messages", [MARKER]),
        ("system", [MARKER]),
        ("params", MARKER),
        ("tool_context", {5: MARKER}),
        ("conversation_id", [MARKER]),
        ("options", MARKER),
    ],
)
def test_a_refusal_never_quotes_the_value(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        ChatClient(ScriptedChatModel([])).prompt(**{"user": "?", argument: value})
    assert MARKER not in str(caught.value)


def test_a_repr_shows_sizes_and_no_content() -> None:
    client = ChatClient(ScriptedChatModel([]), name="travel", system=MARKER, tools=[add], tool_context={MARKER: MARKER})
    spec = client.prompt(MARKER, params={MARKER: MARKER})
    assert MARKER not in repr(client) + repr(spec) + repr(spec.stream()) + repr(spec.start())
    assert "travel" in repr(client)


# The scripted model of these tests.


def chunks_of(chunks: Iterable[ChatChunk]) -> list[str]:
    return [chunk.text for chunk in chunks]


def test_a_scripted_model_answers_from_its_script_and_records_its_requests() -> None:
    request = ChatRequest((UserMessage("?"),))
    model = ScriptedChatModel(
        ["a b", ToolCall("t"), ["x", ToolCall("t", id="own")], lambda asked: "made", OSError("no")]
    )
    assert model.call(request).message.text == "a b"
    assert [call.id for call in model.call(request).tool_calls] == ["call_2_1"]
    assert [call.id for call in model.call(request).tool_calls] == ["own"]
    assert chunks_of(model.stream(request)) == ["made", ""]
    with pytest.raises(OSError, match="no"):
        model.call(request)
    with pytest.raises(AssertionError, match="5 turns"):
        model.call(request)
    assert model.requests == [request] * 6


def test_a_scripted_model_gives_each_call_a_unique_id() -> None:
    model = ScriptedChatModel([[ToolCall("t"), ToolCall("t")]])
    ids = [call.id for call in model.call(ChatRequest((UserMessage("?"),))).tool_calls]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_client_without_a_loop_returns_calls_and_a_request_overrides_it(mode: str) -> None:
    def asked(client: ChatClient, **settings: Any) -> tuple[int, int]:
        response = run(mode, client.prompt("1 + 1?", **settings))
        return len(response.tool_calls), len(response.tool_results)

    def client(**settings: Any) -> ChatClient:
        return ChatClient(ScriptedChatModel([ToolCall("add", {"a": 1, "b": 1}), "2"]), tools=[add], **settings)

    left, ran = (1, 0), (0, 1)
    assert asked(client(tool_calling=False)) == left
    assert asked(client().replace(tool_calling=False)) == left
    assert asked(client(tool_calling=False, advisors=[ToolCallingAdvisor()])) == left
    assert asked(client(tool_calling=False), advisors=[Recorder()]) == left
    assert asked(client(tool_calling=False), tool_calling=True) == ran
    assert asked(client(tool_calling=True), tool_calling=False) == left
    assert asked(client(), tool_calling=None) == ran
    with pytest.raises(TypeError, match="tool_calling must be True or False"):
        client(tool_calling=None)


@pytest.mark.parametrize("mode", MODES)
def test_a_scripted_model_answers_with_the_same_text_in_every_mode(mode: str) -> None:
    texts = ["an\0swer", "\0", "a \0 b", " a  b ", "a\tb\nc"]
    client = ChatClient(ScriptedChatModel(texts))
    assert [run(mode, client.prompt("?")).content for _ in texts] == texts
