"""`augmented` has the model state additional arguments: the application receives them, the tool does not get them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from threading import Lock, get_ident
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field, RootModel, field_validator

from tests.captured import Telemetry
from tests.modes import ASYNC_MODES, MODES, run
from traced_tools import ChatClient, ChatClientResponse, ToolCall, ToolContext, tool
from traced_tools.core import ToolAnnotations, ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.errors import InvalidArguments, ToolDefinitionError, ToolNotFoundError
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import (
    AugmentedArguments,
    FunctionToolCallback,
    StaticToolCallbackResolver,
    augmented,
    tool_callbacks,
)


class Thinking(BaseModel):
    """Why the model calls a tool."""

    inner_thought: str = Field(description="Your reasoning for calling this tool")
    confidence: Literal["low", "high"] = "high"


class Plan(BaseModel):
    steps: list[str] = Field(min_length=1)


WHY = {"inner_thought": "the user asked"}
GOT: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_got() -> None:
    GOT.clear()


def look(place: str, days: int = 1) -> str:
    """Look at a place."""
    GOT.append((place, days))
    return f"seen {place}"


@tool(name="look")
def marked(place: str, days: int = 1) -> str:
    """Look at a place."""
    return look(place, days)


async def alook(place: str, days: int = 1) -> str:
    """Look at a place."""
    await asyncio.sleep(0)
    return look(place, days)


class Looking:
    @tool(name="look")
    def method(self, place: str, days: int = 1) -> str:
        """Look at a place."""
        return look(place, days)


class Remote:
    """A tool that has only a schema."""

    definition = ToolDefinition(
        name="look",
        description="Look at a place.",
        input_schema={
            "type": "object",
            "properties": {"place": {"type": "string"}},
            "required": ["place"],
            "title": "L",
        },
    )
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        GOT.append(json.loads(tool_input))
        return "seen Oslo"


class AsyncRemote(Remote):
    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        await asyncio.sleep(0)
        return self.call(tool_input, context)


class Provider:
    """Counts how often it is asked for its tools."""

    def __init__(self, *tools: Any) -> None:
        self.tools = tools
        self.asked = 0

    def tool_callbacks(self) -> Any:
        self.asked += 1
        return self.tools


class AsyncProvider(Provider):
    async def tool_callbacks(self) -> Any:
        await asyncio.sleep(0)
        self.asked += 1
        return self.tools


KINDS: dict[str, Callable[[], Any]] = {
    "function": lambda: look,
    "marked function": lambda: marked,
    "async function": lambda: FunctionToolCallback(alook, name="look"),
    "object": Looking,
    "callback": lambda: FunctionToolCallback(look),
    "schema only": Remote,
    "async schema only": AsyncRemote,
    "provider": lambda: Provider(look),
    "async provider": lambda: AsyncProvider(look),
    "provider of a provider": lambda: Provider([AsyncProvider(Looking())]),
    "nested lists": lambda: [[(look,)]],
    "iterator": lambda: iter([look]),
}


def client(tools: Any, *turns: Any, **settings: Any) -> ChatClient:
    return ChatClient(ScriptedChatModel([*turns, "done"]), tools=tools, **settings)


def called(mode: str, tools: Any, arguments: Any, name: str = "look", **settings: Any) -> ChatClientResponse:
    return run(
        mode, client(tools, ToolCall(name, arguments, id="c"), **settings).prompt("?", tool_context={"user": "ana"})
    )


# Which tools.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_tool_gets_its_own_arguments_and_the_application_the_others(mode: str, kind: str) -> None:
    received: list[AugmentedArguments[Thinking]] = []
    tools = augmented(KINDS[kind](), arguments=Thinking, on_arguments=received.append)
    written = {"place": "Oslo", **WHY, "confidence": "low"}
    (result,) = called(mode, tools, written).tool_results
    assert (result.content, result.decision, result.outcome) == ("seen Oslo", "allowed", "ok")
    assert GOT == [{"place": "Oslo"}] if "schema only" in kind else [("Oslo", 1)]
    (event,) = received
    assert event.arguments == Thinking(inner_thought="the user asked", confidence="low")
    assert (event.definition.name, event.context.call_id, event.context["user"]) == ("look", "c", "ana")
    assert json.loads(event.tool_input) == written
    assert event.definition.input_schema["required"] == ["place", "inner_thought"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tool_keeps_its_name_and_description_and_its_schema_gets_the_fields(kind: str) -> None:
    own = tool_callbacks(KINDS[kind]())[0].definition
    (found,) = tool_callbacks(augmented(KINDS[kind](), arguments=Thinking))
    assert (found.definition.name, found.definition.description) == (own.name, own.description)
    schema = found.definition.input_schema
    assert [*schema["properties"]] == ["inner_thought", "confidence", *own.input_schema["properties"]]
    assert schema["properties"]["inner_thought"] == {
        "type": "string",
        "description": "Your reasoning for calling this tool",
    }
    assert schema["properties"]["confidence"] == {"type": "string", "enum": ["low", "high"], "default": "high"}
    others = ("properties", "required")
    assert {key: value for key, value in schema.items() if key not in others} == {
        key: value for key, value in own.input_schema.items() if key not in others
    }


def test_mixed_tools_keep_their_order_and_augmented_ones_mix_with_others() -> None:
    def first(a: int) -> str:
        """First."""
        return ""

    def last(z: int) -> str:
        """Last."""
        return ""

    tools = [augmented([first, Provider(Looking())], arguments=Thinking), last]
    offered = {each.definition.name: each.definition.input_schema for each in tool_callbacks(tools)}
    assert [(name, "inner_thought" in schema["properties"]) for name, schema in offered.items()] == [
        ("first", True),
        ("look", True),
        ("last", False),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Provider, AsyncProvider])
def test_a_provider_is_asked_once_per_run_and_not_before(mode: str, kind: type[Provider]) -> None:
    provider = kind(look)
    asking = ChatClient(ScriptedChatModel(["a", "b"]), tools=augmented(provider, arguments=Thinking))
    assert provider.asked == 0
    run(mode, asking.prompt("?"))
    assert provider.asked == 1
    run(mode, asking.prompt("?"))
    assert provider.asked == 2


def test_the_schema_of_a_tool_that_a_provider_returns_again_is_merged_once() -> None:
    tools = augmented(Provider(Remote(), FunctionToolCallback(look, name="other")), arguments=Thinking)
    first, again = tool_callbacks(tools), tool_callbacks(tools)
    assert all(one is other for one, other in zip(first, again, strict=True))


def test_a_provider_that_returns_other_tools_has_those_augmented() -> None:
    provider = Provider(FunctionToolCallback(look, name="first"))
    tools = augmented(provider, arguments=Thinking)
    assert [each.definition.name for each in tool_callbacks(tools)] == ["first"]
    provider.tools = (FunctionToolCallback(look, name="second"), *provider.tools)
    assert [each.definition.name for each in tool_callbacks(tools)] == ["second", "first"]


def test_names_of_tools_are_refused_because_only_the_client_looks_them_up() -> None:
    for given in ("look", [look, "look"], Provider("look")):
        with pytest.raises(ToolNotFoundError, match="takes no names of tools: pass the tools"):
            tool_callbacks(augmented(given, arguments=Thinking))
    assert tool_callbacks(augmented(StaticToolCallbackResolver(look).resolve("look"), arguments=Thinking))


@pytest.mark.parametrize("kind", ["function", "schema only", "provider"])
def test_the_metadata_of_the_tool_survives(kind: str) -> None:
    metadata = ToolMetadata(
        return_direct=True,
        source="elsewhere",
        timeout=3.0,
        retries=2,
        retry_on=(KeyError,),
        sequential=True,
        requires_approval=lambda args: args["place"] == "Oslo",
        repeatable=True,
        capture=False,
        annotations=ToolAnnotations(read_only=True),
    )
    remote = Remote()
    remote.metadata = metadata
    function = FunctionToolCallback(look, metadata=metadata)
    given = {"function": function, "schema only": remote, "provider": Provider(function)}[kind]
    (found,) = tool_callbacks(augmented(given, arguments=Thinking))
    assert found.metadata is metadata


@pytest.mark.parametrize("mode", MODES)
def test_the_result_of_a_return_direct_tool_is_the_answer(mode: str) -> None:
    @tool(name="look", return_direct=True)
    def direct(place: str) -> str:
        """Look."""
        return f"directly {place}"

    response = called(mode, augmented(direct, arguments=Thinking), {"place": "Oslo", **WHY})
    assert (response.content, response.stop_reason) == ("directly Oslo", "return_direct")


@pytest.mark.parametrize("mode", MODES)
def test_the_tool_gets_its_context(mode: str) -> None:
    def whoami(context: ToolContext) -> str:
        """Say who asks."""
        return f"{context['user']} {context.call_id}"

    (result,) = called(mode, augmented(whoami, arguments=Thinking), WHY, "whoami").tool_results
    assert result.content == "ana c"


@pytest.mark.parametrize("mode", ASYNC_MODES)
def test_an_async_tool_runs_on_the_event_loop_and_a_blocking_tool_does_not(mode: str) -> None:
    threads: dict[str, int] = {}

    async def on_loop() -> str:
        """Run on the loop."""
        threads["loop"] = get_ident()
        return ""

    def in_thread() -> str:
        """Run in a thread."""
        threads["thread"] = get_ident()
        return ""

    tools = augmented([on_loop, in_thread], arguments=Thinking)
    run(mode, client(tools, [ToolCall("on_loop", WHY), ToolCall("in_thread", WHY)]).prompt("?"))
    assert threads["loop"] == get_ident() != threads["thread"]


@pytest.mark.parametrize("mode", MODES)
def test_a_time_out_and_retries_apply_to_the_tool_and_the_application_hears_once(mode: str) -> None:
    @tool(name="look", retries=2, retry_on=KeyError)
    def flaky(place: str) -> str:
        """Look."""
        GOT.append(place)
        if len(GOT) < 3:
            raise KeyError
        return "at last"

    received: list[Any] = []
    tools = augmented(flaky, arguments=Thinking, on_arguments=received.append)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("traced_tools.tools.retries.FIRST_PAUSE", 0.0)
        (result,) = called(mode, tools, {"place": "Oslo", **WHY}).tool_results
    assert (result.content, GOT, len(received)) == ("at last", ["Oslo"] * 3, 1)


# What the application receives.


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_async", [False, True])
def test_the_application_receives_the_arguments_before_the_tool_runs(mode: str, is_async: bool) -> None:
    def receive(event: AugmentedArguments[Thinking]) -> None:
        GOT.append(event.arguments.inner_thought)

    async def areceive(event: AugmentedArguments[Thinking]) -> None:
        await asyncio.sleep(0)
        receive(event)

    tools = augmented(look, arguments=Thinking, on_arguments=areceive if is_async else receive)
    called(mode, tools, {"place": "Oslo", **WHY})
    assert GOT == ["the user asked", ("Oslo", 1)]


@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_the_application_ends_the_run_unchanged_and_the_tool_does_not_run(mode: str) -> None:
    problem = LookupError("no")

    def receive(event: AugmentedArguments[Thinking]) -> None:
        raise problem

    with pytest.raises(LookupError) as raised:
        called(mode, augmented(look, arguments=Thinking, on_arguments=receive), {"place": "Oslo", **WHY})
    assert raised.value is problem
    assert GOT == []


@pytest.mark.parametrize("mode", MODES)
def test_without_on_arguments_the_tool_runs(mode: str) -> None:
    assert called(mode, augmented(look, arguments=Thinking), {"place": "Oslo", **WHY}).tool_results[0].ok
    assert GOT == [("Oslo", 1)]


@pytest.mark.parametrize("mode", MODES)
def test_the_model_reads_what_is_wrong_with_all_arguments_and_nobody_gets_them(mode: str) -> None:
    received: list[Any] = []
    tools = augmented(look, arguments=Thinking, on_arguments=received.append)
    (result,) = called(mode, tools, {"days": "soon", "confidence": "some", "more": 1}).tool_results
    assert result.decision == "invalid_arguments"
    for problem in (
        "inner_thought: is required",
        'confidence: must be one of: "low", "high"',
        "place: is required",
        "days: must be an integer",
        "more: is not a known field",
    ):
        assert problem in result.content
    assert (received, GOT) == ([], [])


@pytest.mark.parametrize("mode", MODES)
def test_invalid_arguments_of_the_tool_alone_are_answered_as_ever(mode: str) -> None:
    received: list[Any] = []
    tools = augmented(look, arguments=Thinking, on_arguments=received.append)
    (result,) = called(mode, tools, {"days": "soon", **WHY}).tool_results
    (without,) = called(mode, look, {"days": "soon"}).tool_results
    assert (result.decision, result.content, received) == ("invalid_arguments", without.content, [])


@pytest.mark.parametrize("text", ["[1]", "5", "not JSON", '{"place": "Oslo"', '"text"'])
def test_a_text_that_is_no_object_is_answered_like_any_invalid_argument(text: str) -> None:
    (result,) = called("call", augmented(Remote(), arguments=Thinking), text).tool_results
    (without,) = called("call", Remote(), text).tool_results
    assert (result.decision, result.content) == ("invalid_arguments", without.content)


class Careful(BaseModel):
    """Whose validators raise."""

    thought: str

    @field_validator("thought")
    @classmethod
    def _is_plain(cls, thought: str) -> str:
        if thought == "invalid":
            raise ValueError("must be plain")
        if thought == "broken":
            raise LookupError("a bug")
        return thought.upper()


@pytest.mark.parametrize("mode", MODES)
def test_a_validator_of_the_model_decides_what_the_application_receives(mode: str) -> None:
    received: list[AugmentedArguments[Careful]] = []
    tools = augmented(look, arguments=Careful, on_arguments=received.append)
    assert called(mode, tools, {"place": "Oslo", "thought": "so"}).tool_results[0].ok
    assert [event.arguments.thought for event in received] == ["SO"]
    (result,) = called(mode, tools, {"place": "Oslo", "thought": "invalid"}).tool_results
    assert (result.decision, "thought: must be plain" in result.content) == ("invalid_arguments", True)
    with pytest.raises(LookupError, match="a bug"):  # the application's own code has failed
        called(mode, tools, {"place": "Oslo", "thought": "broken"})
    assert len(GOT) == 1


@pytest.mark.parametrize(
    ("text", "place", "repairs"),
    [
        ('{"place": "Oslo", "inner_thought": "why"}', "Oslo", ()),
        ('```json\n{"place": "Oslo", "inner_thought": "why"}\n```', "Oslo", ("code_fence",)),
        (json.dumps('{"place": "Oslo", "inner_thought": "why"}'), "Oslo", ("string",)),
        ('{"place": 1.10, "inner_thought": "why"}', "1.10", ("number_as_string",)),
        ('{"place": "Oslo", "inner_thought": 1.10}', "Oslo", ("number_as_string",)),
        ('{"place": "Oslo", "days": null, "inner_thought": "why"}', "Oslo", ("null_fields",)),
        ('{"place": "Oslo", "confidence": null, "inner_thought": "why"}', "Oslo", ("null_fields",)),
        ('{"inner_thought": "a", "place": "Rome", "inner_thought": "why", "place": "Oslo"}', "Oslo", ()),
        ('{ "pl\\u0061ce"\n:\t"Oslo" ,"inner_thought":"wh\\u0079"} ', "Oslo", ()),
    ],
)
def test_arguments_are_repaired_and_divided_however_they_are_written(
    text: str, place: str, repairs: tuple[str, ...]
) -> None:
    received: list[AugmentedArguments[Thinking]] = []
    tools = augmented(look, arguments=Thinking, on_arguments=received.append)
    telemetry = Telemetry()
    assert called("call", tools, text, telemetry=telemetry.options).tool_results[0].ok
    assert [(place, 1)] == GOT
    assert received[0].arguments.inner_thought in ("why", "1.10")
    assert received[0].tool_input == text
    span = telemetry.one("execute_tool look").attributes or {}
    assert span.get(names.TOOL_ARGUMENTS_REPAIRS, ()) == repairs


@pytest.mark.parametrize("number", ["12345678901234567890123", "0.1234567890123456789", "1.50"])
def test_no_digit_of_a_number_is_lost(number: str) -> None:
    def pay(amount: Decimal) -> str:
        """Pay."""
        return str(amount)

    tools = augmented(pay, arguments=Thinking)
    text = f'{{"amount": {number}, "inner_thought": "why"}}'
    (result,) = called("call", tools, text, "pay").tool_results
    (without,) = called("call", pay, f'{{"amount": {number}}}', "pay").tool_results
    assert result.content == without.content


@pytest.mark.parametrize("text", ["", "null", "{}"])
def test_a_call_without_arguments_gets_the_defaults(text: str) -> None:
    class Level(BaseModel):
        level: int = 3

    def ping() -> str:
        """Ping."""
        return "pong"

    received: list[AugmentedArguments[Level]] = []
    (result,) = called(
        "call", augmented(ping, arguments=Level, on_arguments=received.append), text, "ping"
    ).tool_results
    assert (result.content, received[0].arguments.level) == ("pong", 3)


# Tools that are called directly, and tools around them.


@pytest.mark.parametrize("kind", ["function", "async function", "schema only", "async schema only"])
def test_an_augmented_tool_can_be_called_directly(kind: str) -> None:
    received: list[AugmentedArguments[Thinking]] = []
    (found,) = tool_callbacks(augmented(KINDS[kind](), arguments=Thinking, on_arguments=received.append))
    text = json.dumps({"place": "Oslo", **WHY})
    context = ToolContext({"user": "bob"})
    assert found.call(text, context) == "seen Oslo"
    assert asyncio.run(found.acall(text)) == "seen Oslo"  # type: ignore[attr-defined]
    assert [(event.arguments.inner_thought, dict(event.context)) for event in received] == [
        ("the user asked", {"user": "bob"}),
        ("the user asked", {}),
    ]
    with pytest.raises(InvalidArguments):
        found.call("{}")
    assert len(received) == 2


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_around_an_augmented_tool_passes_all_arguments_on(mode: str) -> None:
    class Loud:
        def __init__(self, tool: ToolCallback) -> None:
            self._tool = tool
            self.definition, self.metadata = tool.definition, tool.metadata

        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return self._tool.call(tool_input, context).upper()

    received: list[AugmentedArguments[Thinking]] = []
    (found,) = tool_callbacks(augmented(look, arguments=Thinking, on_arguments=received.append))
    (result,) = called(mode, Loud(found), {"place": "Oslo", **WHY}).tool_results
    assert (result.content, len(received), received[0].context["user"]) == ("SEEN OSLO", 1, "ana")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["function", "schema only", "async provider"])
def test_a_tool_can_be_augmented_twice(mode: str, kind: str) -> None:
    received: list[Any] = []
    inner = augmented(KINDS[kind](), arguments=Thinking, on_arguments=received.append)
    tools = augmented(inner, arguments=Plan, on_arguments=received.append)
    (result,) = called(mode, tools, {"place": "Oslo", "steps": ["go"], **WHY}).tool_results
    assert (result.content, [event.arguments for event in received]) == (
        "seen Oslo",
        [Plan(steps=["go"]), Thinking(inner_thought="the user asked")],
    )
    assert GOT == [{"place": "Oslo"}] if kind == "schema only" else [("Oslo", 1)]
    (result,) = called(mode, tools, {"place": "Oslo"}).tool_results
    assert "steps: is required" in result.content
    assert "inner_thought: is required" in result.content


def test_one_tool_with_and_without_augmentation_are_two_tools() -> None:
    plain = FunctionToolCallback(look)
    (found,) = tool_callbacks(augmented(plain, arguments=Thinking))
    assert "inner_thought" not in plain.definition.input_schema["properties"]
    assert plain.call('{"place": "Rome"}') == "seen Rome"
    assert "AugmentedTool look" in repr(found)


# `keep`.


@pytest.mark.parametrize("mode", MODES)
def test_a_tool_that_keeps_the_additional_arguments_gets_them_with_its_own(mode: str) -> None:
    received: list[Any] = []
    tools = augmented(Remote(), arguments=Thinking, on_arguments=received.append, keep=True)
    assert called(mode, tools, {"place": "Oslo", **WHY}).tool_results[0].ok
    assert GOT == [{"place": "Oslo", **WHY}]
    assert len(received) == 1


def test_a_function_that_takes_any_keyword_can_keep_them() -> None:
    @tool(input_schema={"type": "object", "properties": {"place": {"type": "string"}}})
    def anything(**arguments: Any) -> str:
        """Take anything."""
        GOT.append(arguments)
        return ""

    called("call", augmented(anything, arguments=Thinking, keep=True), {"place": "Oslo", **WHY}, "anything")
    called("call", augmented(anything, arguments=Thinking), {"place": "Oslo", **WHY}, "anything")
    assert GOT == [{"place": "Oslo", **WHY}, {"place": "Oslo"}]


def test_of_two_augmentations_only_the_one_with_keep_is_kept() -> None:
    tools = augmented(augmented(Remote(), arguments=Thinking), arguments=Plan, keep=True)
    called("call", tools, {"place": "Oslo", "steps": ["go"], **WHY})
    assert GOT == [{"place": "Oslo", "steps": ["go"]}]


def closed(place: str) -> str:
    """Take one argument."""
    return place


OPEN_SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]}


class ClosedRemote(Remote):
    definition = ToolDefinition(name="look", input_schema={**OPEN_SCHEMA, "additionalProperties": False})


class TypedRemote(Remote):
    definition = ToolDefinition(name="look", input_schema={**OPEN_SCHEMA, "additionalProperties": {"type": "integer"}})


@pytest.mark.parametrize(
    "given",
    [closed, tool(name="closed", input_schema=OPEN_SCHEMA)(lambda place: place), ClosedRemote(), TypedRemote()],
    ids=["typed", "typed with a schema", "closed schema", "other fields of a type"],
)
def test_keep_is_refused_for_a_tool_that_accepts_only_its_own_arguments(given: Any) -> None:
    assert augmented(given, arguments=Thinking)
    with pytest.raises(ToolDefinitionError, match="accepts only its own arguments: drop keep=True"):
        augmented(given, arguments=Thinking, keep=True)
    with pytest.raises(ToolDefinitionError, match="accepts only its own arguments: drop keep=True"):
        tool_callbacks(augmented(Provider(given), arguments=Thinking, keep=True))


# What is refused at the definition.


@pytest.mark.parametrize("tools", [5, None, object(), Looking, {"a": look}])
def test_what_is_no_tool_is_refused(tools: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="is not a tool"):
        augmented(tools, arguments=Thinking)


class NoFields(BaseModel):
    pass


class Listed(RootModel[list[int]]):
    pass


@pytest.mark.parametrize("model", [None, dict, "Thinking", NoFields, Listed, Thinking(inner_thought="x"), list[int]])
def test_what_is_no_model_with_fields_is_refused(model: Any) -> None:
    with pytest.raises(TypeError, match="arguments must be a pydantic model with fields"):
        augmented(look, arguments=model)


def test_a_field_that_json_cannot_represent_is_refused() -> None:
    class Odd(BaseModel, arbitrary_types_allowed=True):
        lock: type(Lock())  # type: ignore[valid-type]

    with pytest.raises(ToolDefinitionError, match="Odd cannot augment tools: its fields must be of types"):
        augmented(look, arguments=Odd)


def test_other_arguments_of_a_wrong_type_are_refused() -> None:
    wrong: Any = "x"
    with pytest.raises(TypeError, match="on_arguments must be callable, not str"):
        augmented(look, arguments=Thinking, on_arguments=wrong)
    with pytest.raises(TypeError, match="keep must be True or False, not str"):
        augmented(look, arguments=Thinking, keep=wrong)


class Clashing(BaseModel):
    place: str


@pytest.mark.parametrize("kind", [each for each in KINDS if "provider" not in each])
def test_an_argument_that_the_tool_has_itself_is_refused_with_both_names(kind: str) -> None:
    with pytest.raises(ToolDefinitionError, match="the tool 'look' and Clashing both have the argument 'place'"):
        augmented(KINDS[kind](), arguments=Clashing)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["provider", "async provider"])
def test_an_argument_that_a_provided_tool_has_is_refused_when_the_run_begins(mode: str, kind: str) -> None:
    asking = client(augmented(KINDS[kind](), arguments=Clashing))
    with pytest.raises(ToolDefinitionError, match="the tool 'look' and Clashing both have the argument 'place'"):
        run(mode, asking.prompt("?"))


def test_an_argument_of_another_augmentation_is_refused() -> None:
    with pytest.raises(ToolDefinitionError, match="both have the argument 'confidence'"):
        augmented(augmented(look, arguments=Thinking), arguments=Thinking)
