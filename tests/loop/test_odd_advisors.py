"""An advisor that passes on or returns something else than its hook must is named, with what is accepted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.modes import MODES, run
from tests.observe.runs import adds
from tests.recorder import Recorder
from tests.sample_tools import add
from traced_tools import Advisor, ChatClient, ChatClientRequest, ChatClientResponse, Message, UserMessage
from traced_tools.loop import ToolCallingAdvisor
from traced_tools.loop.advisor import AdviseNext
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

pytestmark = pytest.mark.parametrize("mode", MODES)
STREAMING = ("stream", "astream")


class Odd(Advisor):
    """Does one thing that it must not."""

    name = "odd"

    def __init__(self, order: int = 400) -> None:
        self.order = order


def ask(mode: str, *advisors: Advisor, turns: Any = (), **settings: Any) -> ChatClientResponse:
    model = ScriptedChatModel([*turns, "one two three"])
    return run(mode, ChatClient(model, tools=[add], advisors=advisors, **settings).prompt("?"))


@pytest.mark.parametrize("order", [100, 400])
@pytest.mark.parametrize("beside", [[], [Recorder(order=150)], [Recorder(order=500)]], ids=["alone", "150", "500"])
@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), ("hi", "str"), (ChatClientRequest, "type")])
def test_a_request_that_is_none_is_named_with_the_advisor_that_passed_it_on(
    mode: str, order: int, beside: list[Advisor], given: Any, kind: str
) -> None:
    class Asking(Odd):
        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(given)

    with pytest.raises(TypeError, match=f"advise of odd must pass a ChatClientRequest to call_next, not {kind}$"):
        ask(mode, Asking(order), *beside)


@pytest.mark.parametrize("given", [None, "hi", 3])
def test_a_message_that_is_none_is_refused_where_an_advisor_puts_it_in(mode: str, given: Any) -> None:
    class Putting(Odd):
        async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
            return await call_next(request.replace(messages=[*request.messages, given]))

    with pytest.raises(TypeError, match=r"messages\[1\] must be a SystemMessage, UserMessage, AssistantMessage or"):
        ask(mode, Putting())


@pytest.mark.parametrize(("given", "kind"), [(None, "NoneType"), ({"a": 1}, "dict"), ("{}", "str")])
def test_a_call_that_is_none_is_named_with_the_advisor_that_passed_it_on(mode: str, given: Any, kind: str) -> None:
    class Calling(Odd):
        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> Any:
            return await call_next(given)

    with pytest.raises(TypeError, match=f"advise_tool of odd must pass a ToolInvocation to call_next, not {kind}"):
        ask(mode, Calling(), turns=[adds(1, 1)])


def test_another_call_than_the_one_given_is_not_run(mode: str) -> None:
    first: list[ToolInvocation] = []

    class Swapping(Odd):
        async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> Any:
            first.append(call)
            return await call_next(first[0])

    with pytest.raises(ValueError, match="advise_tool of odd must pass on the call it was given"):
        ask(mode, Swapping(), turns=[adds(1, 1), adds(2, 2)])


@pytest.mark.parametrize("order", [100, 250, 400])
@pytest.mark.parametrize(("given", "kind"), [(5, "int"), ("text", "str"), (False, "bool")])
def test_a_chunk_that_is_none_never_reaches_the_consumer(mode: str, order: int, given: Any, kind: str) -> None:
    class Chunking(Odd):
        def on_chunk(self, chunk: ChatClientResponse) -> Any:
            return given

    if mode in STREAMING:
        with pytest.raises(TypeError, match=f"on_chunk of odd must return a ChatClientResponse or None, not {kind}"):
            ask(mode, Chunking(order))
    else:
        assert ask(mode, Chunking(order)).content == "one two three"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: None, ", not NoneType"),
        (lambda: 5, ", not int"),
        (lambda: "go on", ", not str"),
        (lambda: UserMessage("go on"), ", not UserMessage"),
        (lambda: [UserMessage("go on"), "and on"], "; item 1 is of type str"),
        (lambda: [None], "; item 0 is of type NoneType"),
    ],
    ids=["none", "number", "text", "one message", "a text among them", "none among them"],
)
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
def test_messages_that_are_none_are_named_with_the_loop(
    mode: str, given: Callable[[], Any], says: str, is_async: bool
) -> None:
    class Loop(ToolCallingAdvisor):
        def next_instructions(self, request: Any, response: Any, result: Any) -> Any:
            return self._later() if is_async else given()

        async def _later(self) -> Any:
            return given()

    with pytest.raises(TypeError) as caught:
        ask(mode, turns=[adds(1, 1)], tool_calling_advisor=Loop())
    assert str(caught.value) == f"next_instructions of tool_calling must return a sequence of messages{says}"


def test_messages_may_come_from_a_generator(mode: str) -> None:
    class Loop(ToolCallingAdvisor):
        def next_instructions(self, request: Any, response: Any, result: Any) -> Any:
            messages: tuple[Message, ...] = result.conversation_history
            return (each for each in messages)

    assert ask(mode, turns=[adds(1, 1), adds(2, 2)], tool_calling_advisor=Loop()).content == "one two three"


@pytest.mark.parametrize("hook", ["initialize", "before", "after", "finalize"])
def test_a_hook_of_the_loop_that_returns_none_is_named(mode: str, hook: str) -> None:
    loop = type("Loop", (ToolCallingAdvisor,), {hook: lambda self, value: None})()
    with pytest.raises(TypeError, match=f"{hook} of tool_calling must return a ChatClientRe"):
        ask(mode, tool_calling_advisor=loop)


def test_a_checker_that_would_have_to_be_awaited_is_refused(mode: str) -> None:
    async def is_tool_call(response: ChatClientResponse) -> bool:
        return False

    wrong: Any = is_tool_call
    with pytest.raises(TypeError, match="is_tool_call must be a plain function"):
        ask(mode, tool_calling_advisor=ToolCallingAdvisor(is_tool_call=wrong))
