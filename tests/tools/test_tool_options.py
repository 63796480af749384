"""The options of `@tool`, and what all tools of one function share."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from pydantic import BaseModel

from tests.captured import Telemetry
from tests.modes import MODES, run
from traced_tools import (
    AssistantMessage,
    ChatClient,
    LoopLimits,
    ToolCall,
    ToolContext,
    ToolExecutionError,
    UserMessage,
    tool,
)
from traced_tools.core import ToolErrors, ToolMetadata
from traced_tools.models import ChatResponse
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolCallingManager, tool_callbacks
from traced_tools.tools.schema import callable_schema as schema
from traced_tools.tools.schema.callable_schema import ArgumentSchema
from traced_tools.tools.schema.signature import Signature


class Place(BaseModel):
    city: str


def now() -> str:
    """Return the time."""
    return "now"


WRONG: list[tuple[str, Any]] = [
    ("name", 5),
    ("description", 5),
    ("result_converter", "json"),
    ("input_schema", "{}"),
    ("return_direct", 1),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", float("inf")),
    ("timeout", float("nan")),
    ("timeout", "5"),
    ("timeout", True),
    ("retries", -1),
    ("retries", 1.5),
    ("retries", True),
    ("retries", None),
    ("retry_on", 5),
    ("retry_on", (5,)),
    ("retry_on", (KeyboardInterrupt,)),
    ("retry_on", int),
    ("retry_on", ValueError("x")),
    ("sequential", "yes"),
    ("requires_approval", 1),
    ("requires_approval", "yes"),
    ("capture", None),
    ("annotations", None),
    ("annotations", {"readOnlyHint": True}),
]


@pytest.mark.parametrize(("argument", "value"), WRONG)
def test_the_decorator_refuses_an_argument_of_the_wrong_kind_by_name(argument: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"\b{argument}\b"):
        tool(**{argument: value})


def test_retry_on_may_be_a_plain_function_and_no_async_one() -> None:
    async def is_busy(error: Exception) -> bool:
        return True

    attempts: list[int] = []

    @tool(retries=2, retry_on=lambda error: "busy" in str(error))
    def search() -> str:
        attempts.append(1)
        raise OSError("busy" if len(attempts) < 3 else "gone")

    client = ChatClient(ScriptedChatModel([ToolCall("search"), "gone"]), tools=[search])
    [result] = client.prompt("?").call().tool_results
    assert (result.outcome, len(attempts)) == ("error", 3)
    with pytest.raises(ValueError, match="retry_on must be a plain function"):
        tool(retry_on=is_busy)


@pytest.mark.parametrize("retry_on", [ValueError, (ValueError,)], ids=["one", "several"])
def test_retry_on_may_be_a_single_class(retry_on: Any) -> None:
    assert ToolMetadata(retry_on=retry_on).retry_on == (ValueError,)
    marked = tool(name="it", retry_on=retry_on, retries=1)(lambda: 1)
    assert tool_callbacks(marked)[0].metadata == ToolMetadata(retry_on=(ValueError,), retries=1)


def test_all_options_of_the_decorator_are_on_the_tool() -> None:
    own = {"type": "object", "properties": {"a": {"type": "integer"}}}

    @tool(timeout=2, retries=3, retry_on=(OSError,), sequential=True, requires_approval=True, capture=False)
    def strict() -> str:
        """Be strict."""
        return ""

    assert tool_callbacks(strict)[0].metadata == ToolMetadata(
        timeout=2.0, retries=3, retry_on=(OSError,), sequential=True, requires_approval=True, capture=False
    )
    assert tool_callbacks(tool(name="it", input_schema=own)(lambda a: a))[0].definition.input_schema == own


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_the_required_approval_does_not_run_and_waits(mode: str) -> None:
    ran: list[str] = []

    @tool(requires_approval=True)
    def delete(name: str) -> str:
        """Delete."""
        ran.append(name)
        return "deleted"

    calls = [ToolCall("delete", {"name": "a"}), ToolCall("delete", {"wrong": 1}), ToolCall("now")]
    model = ScriptedChatModel([calls, "x"])
    response = run(mode, ChatClient(model, tools=[delete, now]).prompt("?"))
    assert [each.decision for each in response.tool_results] == ["invalid_arguments", "allowed"]
    assert (response.stop_reason, [each.tool for each in response.pending]) == ("awaiting_approval", ["delete"])
    assert ran == []
    assert len(model.requests) == 1
    hands = ToolCallingManager().execute_tool_calls(
        [UserMessage("?")], ChatResponse(AssistantMessage(tool_calls=calls[:1])), tools=delete
    )
    assert [each.decision for each in hands.results] == ["pending"]
    assert ran == []


def test_an_option_of_the_wrong_kind_raises_a_type_error_of_one_line() -> None:
    with pytest.raises(TypeError) as caught:
        tool(requires_approval="yes")  # type: ignore[arg-type]
    assert str(caught.value) == "requires_approval must be True, False or a function of the arguments, not str"


DECISIONS: dict[str, Callable[[ExecuteTools], None]] = {
    "approved": lambda step: step.approve("1", by="ana"),
    "denied": lambda step: step.deny("1", "no", by="bob"),
    "answered": lambda step: step.answer("1", "done"),
}


@pytest.mark.parametrize("last", DECISIONS)
@pytest.mark.parametrize("first", DECISIONS)
def test_the_last_decision_of_the_driver_about_a_call_counts(first: str, last: str) -> None:
    @tool(requires_approval=True)
    def delete(name: str) -> str:
        """Delete."""
        return f"deleted {name}"

    driven = ChatClient(ScriptedChatModel([ToolCall("delete", {"name": "a"}, id="1"), "x"]), tools=[delete]).prompt("?")
    with driven.start() as going:
        while step := going.next():
            if isinstance(step, ExecuteTools):
                DECISIONS[first](step)
                DECISIONS[last](step)
            going.perform(step)
    [result] = going.response.tool_results
    assert (result.decision, result.by) == (last, {"approved": "ana", "denied": "bob", "answered": None}[last])


def test_an_approval_of_the_driver_lifts_no_limit() -> None:
    @tool(requires_approval=True)
    def delete(name: str) -> str:
        """Delete."""
        return f"deleted {name}"

    calls = [ToolCall("delete", {"name": "a"}, id="1"), ToolCall("delete", {"name": "b"}, id="2")]
    limits = LoopLimits(max_tool_calls=1)
    with ChatClient(ScriptedChatModel([calls, "x"]), tools=[delete], limits=limits).prompt("?").start() as going:
        while step := going.next():
            if isinstance(step, ExecuteTools):
                step.approve("1")
                step.approve("2")
            going.perform(step)
    assert [each.decision for each in going.response.tool_results] == ["approved", "limited"]


@pytest.mark.parametrize("how", ["perform", "aperform"])
def test_the_driver_of_a_run_may_approve_a_call(how: str) -> None:
    @tool(requires_approval=True)
    def delete(name: str) -> str:
        """Delete."""
        return f"deleted {name}"

    telemetry = Telemetry()
    calls = [ToolCall("delete", {"name": "a"}, id="1"), ToolCall("delete", {"name": "b"}, id="2")]
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=[delete], telemetry=telemetry.options)
    driven = client.prompt("?").start()
    while step := driven.next():
        if isinstance(step, ExecuteTools):
            step.approve("2")
            with pytest.raises(KeyError):
                step.approve("3")
        if how == "perform":
            driven.perform(step)
        else:
            asyncio.run(driven.aperform(step))
    assert [(each.decision, each.outcome) for each in driven.response.tool_results] == [("approved", "ok")]
    assert [each.call_id for each in driven.response.pending] == ["1"]
    assert sorted(span.name for span in telemetry.spans if "delete" in span.name) == [
        "execute_tool delete",
        "refuse_tool delete",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_an_error_that_is_wrapped_already_is_not_wrapped_again(mode: str) -> None:
    def inner() -> str:
        raise OSError("no")

    def outer() -> str:
        model = ScriptedChatModel([ToolCall("inner")])
        return ChatClient(model, tools=inner, tool_errors=ToolErrors(always_raise=True)).prompt("?").call().content

    client = ChatClient(ScriptedChatModel([ToolCall("outer")]), tools=outer, tool_errors=ToolErrors(always_raise=True))
    with pytest.raises(ToolExecutionError, match="the tool outer failed with") as caught:
        run(mode, client.prompt("?"))
    assert isinstance(caught.value.original, OSError)


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_a_tool_is_wrapped_with_the_tools_name(mode: str) -> None:
    def fail() -> str:
        raise OSError("no")

    errors = ToolErrors(always_raise=True)
    client = ChatClient(ScriptedChatModel([ToolCall("fail")]), tools=fail, tool_errors=errors)
    with pytest.raises(ToolExecutionError) as caught:
        run(mode, client.prompt("?"))
    assert (caught.value.tool, caught.value.error_type) == ("fail", "OSError")
    assert isinstance(caught.value.original, OSError)
    with pytest.raises(OSError, match="no"):
        FunctionToolCallback(fail).call("{}")


# Made once.


def test_many_threads_share_one_schema() -> None:
    start = Barrier(50)

    class Desk:
        @tool
        def book(self, place: Place, days: int = 3) -> str:
            """Book."""
            return place.city

    def make(_: int) -> Any:
        start.wait(10)
        return tool_callbacks(Desk())[0].definition

    with ThreadPoolExecutor(50) as pool:
        definitions = list(pool.map(make, range(50)))
    assert all(each == definitions[0] for each in definitions)
    assert list(definitions[0].input_schema["properties"]) == ["place", "days"]


@pytest.mark.parametrize("function", [None, 5, "x"], ids=repr)
def test_none_is_not_a_function(function: Any) -> None:
    with pytest.raises(TypeError, match="function must be callable"):
        FunctionToolCallback(function)


def test_a_schema_is_built_once_for_all_objects_of_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class Counting(ArgumentSchema):
        def __init__(self, signature: Signature) -> None:
            made.append(signature.name.rpartition(".")[2])
            super().__init__(signature)

    class Desk:
        @tool
        def book(self, days: int) -> str:
            """Book."""
            return f"{days} at {id(self)}"

    class Bureau(Desk):
        """Inherits it."""

    monkeypatch.setattr(schema, "ArgumentSchema", Counting)
    desks = [Desk() for _ in range(999)] + [Bureau()]
    texts = {tool_callbacks(desk)[0].call('{"days": 3}') for desk in desks}
    assert (made, texts) == (["book"], {f"3 at {id(desk)}" for desk in desks})


def test_the_cache_of_a_function_is_dropped_with_it() -> None:
    def build() -> weakref.ref[Any]:
        def book(place: Place) -> str:
            return place.city

        FunctionToolCallback(book).call('{"city": "Bonn"}')
        return weakref.ref(book)

    gone = build()
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_has_run_is_not_run_again_because_its_result_cannot_be_read(mode: str) -> None:
    ran: list[int] = []

    def unreadable(value: object) -> str:
        raise ConnectionError("no converter")

    @tool(retries=2, result_converter=unreadable)
    def charge() -> int:
        """Charge."""
        ran.append(1)
        return 1

    client = ChatClient(ScriptedChatModel([ToolCall("charge"), "x"]), tools=[charge])
    (result,) = run(mode, client.prompt("?")).tool_results
    assert (result.outcome, result.error_type, len(ran)) == ("error", "ConnectionError", 1)


def test_methods_can_be_marked_and_classes_cannot() -> None:
    with pytest.raises(TypeError, match="mark the methods of Place"):
        tool(Place)


def test_a_subclass_may_override_how_it_runs() -> None:
    class Loud(FunctionToolCallback):
        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return super().call(tool_input, context).upper()

    (result,) = ChatClient(ScriptedChatModel([ToolCall("now"), "x"]), tools=[Loud(now)]).prompt("?").call().tool_results
    assert result.content == "NOW"


def test_a_replaced_client_keeps_tools_that_were_passed_as_an_iterator() -> None:
    model = ScriptedChatModel(["x"])
    ChatClient(model, tools=(each for each in [now])).replace(name="other").prompt("?").call()
    assert [each.name for each in model.requests[0].tools] == ["now"]
