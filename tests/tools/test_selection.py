"""The values that `tools=` accepts, and when providers are called."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.trace import StatusCode

import traced_tools
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import MODES, run
from tests.sample_tools import add
from traced_tools import Advisor, ChatClient, ToolCall, ToolContext, tool
from traced_tools.core import ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError, ToolNotFoundError
from traced_tools.flow.flow import call
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ExecuteTools, FunctionToolCallback, ToolCallbackProvider, tool_callbacks
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import ToolSet


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
    async def divided_by(self, a: int, b: int) -> float:
        """Divide."""
        return a / b

    def helper(self) -> None:
        """No tool."""


class Provider:
    """Provides tools and counts the calls."""

    def __init__(self, *tools: Any) -> None:
        self.tools = tools
        self.asked = 0

    def tool_callbacks(self) -> Any:
        self.asked += 1
        return self.tools


class AsyncProvider(Provider):
    """Provides them on the event loop."""

    async def tool_callbacks(self) -> Any:
        await asyncio.sleep(0)
        return super().tool_callbacks()


class Failing:
    """Cannot give any."""

    def tool_callbacks(self) -> Any:
        raise OSError(MARKER)


class AsyncFailing:
    """Cannot either."""

    async def tool_callbacks(self) -> Any:
        raise OSError(MARKER)


PROVIDERS: list[Callable[..., Provider]] = [Provider, AsyncProvider]


def names(tools: Any) -> list[str]:
    return [each.definition.name for each in tool_callbacks(tools)]


def offered(model: ScriptedChatModel) -> list[list[str]]:
    return [[each.name for each in request.tools] for request in model.requests]


# What stands for tools.


def test_all_kinds_of_tools_may_be_mixed_and_nested() -> None:
    own = FunctionToolCallback(add, name="own")
    partial = tool(name="part")(functools.partial(add, b=1))
    given = [own, (Calculator(), [subtract, {partial}]), frozenset([add]), Provider(tool(name="given")(lambda: 1)), []]
    assert names(given) == ["own", "multiply", "divide", "subtract", "part", "add", "given"]


def test_an_object_has_one_tool_for_each_marked_method() -> None:
    assert names(Calculator()) == ["multiply", "divide"]
    assert [each.call('{"a": 6, "b": 3}') for each in tool_callbacks(Calculator())] == ["18", "2.0"]


@pytest.mark.parametrize("item", [None, 5, b"add", object(), {"a": add}, SimpleNamespace(), Exception()])
@pytest.mark.parametrize("place", [lambda item: item, lambda item: [add, item], lambda item: [add, [(item,)]]])
def test_an_object_that_is_not_a_tool_is_refused_with_what_to_pass_instead(
    item: Any, place: Callable[[Any], Any]
) -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        tool_callbacks(place(item))
    words = "is not a tool: pass a function, an object with methods marked @tool, or a ToolCallback or"
    assert str(caught.value).startswith(f"{type(item).__name__} {words} ToolCallbackProvider")


@pytest.mark.parametrize("kind", [Calculator, Provider, FunctionToolCallback])
def test_a_class_in_place_of_its_instance_is_named_in_the_error(kind: type) -> None:
    with pytest.raises(
        ToolDefinitionError, match=f"{kind.__name__} is not a tool: .*this is a class, pass an instance"
    ):
        tool_callbacks([kind])
    with pytest.raises(ToolDefinitionError, match=r"ToolCallbackProvider$"):
        tool_callbacks(Advisor)


def test_a_method_of_the_class_in_place_of_an_instances_is_named_in_the_error() -> None:
    with pytest.raises(
        ToolDefinitionError, match=r"Calculator\.multiply is a method of a class: pass the method of an inst"
    ):
        tool_callbacks(Calculator.multiply)


@pytest.mark.parametrize("item", [functools.partial(add, b=1), lambda: 1], ids=["partial", "lambda"])
def test_a_function_without_a_name_is_a_tool_once_it_is_named(item: Any) -> None:
    with pytest.raises(ToolDefinitionError, match="needs a name"):
        tool_callbacks(item)
    assert names(tool(name="it")(item)) == ["it"]


def test_two_tools_with_one_name_are_refused_by_name_wherever_they_come_from() -> None:
    for tools in (
        [Calculator(), Calculator()],
        [Calculator(), Provider(Calculator())],
        Provider(Calculator(), Calculator()),
    ):
        with pytest.raises(ToolDefinitionError, match=r"given more than once: divide, multiply$"):
            tool_callbacks(tools)


def test_two_names_that_are_equal_for_model_providers_are_refused_with_both() -> None:
    dotted = tool(name="file.read")(lambda: 1)
    for tools in ([dotted, tool(name="file_read")(lambda: 2)], [tool(name="file/read")(lambda: 2), Provider(dotted)]):
        with pytest.raises(ToolDefinitionError, match=r"'file[_/.]read' and 'file[_/.]read' have the same name"):
            tool_callbacks(tools)
    assert names([dotted, tool(name="file-read")(lambda: 2)]) == ["file.read", "file-read"]


def test_a_property_of_an_objects_class_is_never_read() -> None:
    class Explosive(Calculator):
        class Loud:
            def __get__(self, instance: object, owner: type) -> Any:
                raise AssertionError("a property was read")

        loud = Loud()

    assert names(Explosive()) == ["multiply", "divide"]


def test_an_override_is_the_same_tool_with_the_same_options() -> None:
    class Careful:
        @tool(name="erase", requires_approval=True, timeout=3)
        def delete(self, name: str) -> str:
            """Delete a file."""
            return "deleted"

    class Bold(Careful):
        def delete(self, name: str) -> str:
            return "gone"

    (erase,) = tool_callbacks(Bold())
    assert (erase.definition.name, erase.definition.description) == ("erase", "Delete a file.")
    assert (erase.metadata.requires_approval, erase.metadata.timeout) == (True, 3)
    assert erase.call('{"name": "a"}') == "gone"
    (alone,) = tool_callbacks(Bold().delete)
    assert (alone.definition, alone.metadata) == (erase.definition, erase.metadata)


def test_a_subclass_removes_a_tool_by_setting_it_to_none() -> None:
    class Small(Calculator):
        divided_by = None  # type: ignore[assignment]

    assert names(Small()) == ["multiply"]


def test_any_collection_or_iterator_of_tools_is_accepted() -> None:
    assert names([(each for each in [add]), {"a": subtract}.values()]) == ["add", "subtract"]


def test_a_module_is_not_a_tool() -> None:
    with pytest.raises(ToolDefinitionError, match="traced_tools is not a tool"):
        tool_callbacks(traced_tools)


def test_an_object_may_have_tool_methods_and_be_a_provider() -> None:
    class Both(Calculator):
        def tool_callbacks(self) -> list[Any]:
            return [add]

    assert names(Both()) == ["add", "multiply", "divide"]


def test_the_error_for_an_incomplete_callback_names_the_missing_part() -> None:
    class Partial:
        definition = ToolDefinition(name="part")

        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return ""

    with pytest.raises(ToolDefinitionError, match="to be a ToolCallback, it needs metadata"):
        tool_callbacks(Partial())


def test_the_result_of_a_function_in_place_of_the_function_is_refused_and_not_quoted() -> None:
    with pytest.raises(ToolNotFoundError, match="pass a function, not its result") as caught:
        tool_callbacks(f"{MARKER}\n" * 1000)
    assert MARKER not in str(caught.value)


def test_the_options_of_tool_apply_wherever_the_function_is_wrapped() -> None:
    @tool(name="inner", description="Pay.", requires_approval=True, result_converter=lambda value: f"<{value}>")
    def pay(amount: int) -> int:
        return amount

    renamed = FunctionToolCallback(pay, name="outer")
    assert (renamed.definition.name, renamed.definition.description) == ("outer", "Pay.")
    assert renamed.metadata.requires_approval
    assert renamed.call('{"amount": 3}') == "<3>"


def test_a_function_is_marked_once() -> None:
    def pay() -> None:
        """Pay."""

    tool(name="one")(pay)
    with pytest.raises(TypeError, match=r"pay is already marked @tool; .* FunctionToolCallback"):
        tool(name="two")(pay)


def test_a_tool_set_takes_callbacks_only() -> None:
    with pytest.raises(TypeError, match="tool_callbacks"):
        ToolSet([add])  # type: ignore[list-item]


# Providers.


@pytest.mark.parametrize("kind", PROVIDERS)
@pytest.mark.parametrize("mode", MODES)
def test_providers_are_called_once_per_run_when_it_starts(mode: str, kind: Callable[..., Provider]) -> None:
    provider = kind(add)
    assert isinstance(provider, ToolCallbackProvider)
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "three"] * 2)
    spec = ChatClient(model).prompt("?", tools=provider)
    repr(spec)
    assert provider.asked == 0
    response = run(mode, spec)
    assert (provider.asked, response.content, response.tool_results[0].content) == (1, "three", "3")
    run(mode, spec)
    assert provider.asked == 2
    assert offered(model) == [["add"]] * 4


@pytest.mark.parametrize("mode", MODES)
def test_a_clients_providers_are_called_for_each_run(mode: str) -> None:
    provider = Provider(add)
    client = ChatClient(ScriptedChatModel(["x"] * 4), tools=[provider])
    unused = client.replace(name="other").prompt("?", tools=[])
    assert provider.asked == 0
    for runs in (1, 2):
        run(mode, client.prompt("?"))
        assert provider.asked == runs
    run(mode, unused)
    assert provider.asked == 2


def test_the_same_tools_of_a_provider_are_the_same_set_of_tools() -> None:
    listed = tool_callbacks(add)
    selection = ToolSelection([SimpleNamespace(tool_callbacks=lambda: listed), subtract])
    first = call(selection.tool_set())
    assert call(selection.tool_set()) is first
    listed = tool_callbacks(add)
    assert call(selection.tool_set()) is not first


@pytest.mark.parametrize("mode", MODES)
def test_several_providers_are_each_called_once_in_a_run(mode: str) -> None:
    providers = [Provider(add), AsyncProvider(subtract), Provider(), Provider(AsyncProvider(Calculator()))]
    model = ScriptedChatModel([ToolCall("divide", {"a": 6, "b": 3}), "x"])
    response = run(mode, ChatClient(model, tools=[providers[0], providers[1:]]).prompt("?"))
    assert [each.asked for each in (*providers, providers[-1].tools[0])] == [1] * 5
    assert offered(model)[0] == ["add", "subtract", "multiply", "divide"]
    assert response.tool_results[0].content == "2.0"


@pytest.mark.parametrize("mode", MODES)
def test_callbacks_and_provided_tools_are_offered_in_order(mode: str) -> None:
    model = ScriptedChatModel(["x"])
    tools = [FunctionToolCallback(add, name="plus"), Provider(subtract), Calculator(), AsyncProvider([add])]
    run(mode, ChatClient(model).prompt("?", tools=tools))
    assert offered(model) == [["plus", "subtract", "multiply", "divide", "add"]]


@pytest.mark.parametrize("provider", [Failing(), AsyncFailing()], ids=["blocking", "async"])
@pytest.mark.parametrize("mode", MODES)
def test_an_exception_of_a_provider_passes_unchanged_and_ends_the_run(mode: str, provider: Any) -> None:
    telemetry, model = Telemetry(), ScriptedChatModel([])
    spec = ChatClient(model, telemetry=telemetry.options).prompt("?", tools=[add, provider])
    with pytest.raises(OSError, match=MARKER):
        run(mode, spec)
    span = telemetry.one("invoke_agent assistant")
    assert (span.status.status_code, model.requests) == (StatusCode.ERROR, [])
    assert span.attributes is not None
    assert span.attributes["error.type"] == "OSError"


@pytest.mark.parametrize("given", [add, Calculator()], ids=["function", "object"])
@pytest.mark.parametrize("mode", MODES)
def test_a_provider_may_return_anything_that_tools_accepts(mode: str, given: Any) -> None:
    model = ScriptedChatModel(["x"])
    run(mode, ChatClient(model, tools=SimpleNamespace(tool_callbacks=lambda: given)).prompt("?"))
    assert offered(model) == [names(given)]


@pytest.mark.parametrize("mode", MODES)
def test_a_provider_that_returns_no_tools_is_refused_when_the_run_starts(mode: str) -> None:
    telemetry = Telemetry()
    client = ChatClient(ScriptedChatModel([]), tools=[add], telemetry=telemetry.options)
    for provider, says in ((Provider(None), "NoneType is not a tool"), (Provider(add), "given more than once: add")):
        with pytest.raises(ToolDefinitionError, match=says):
            run(mode, client.prompt("?", tools=[add, provider]))
    assert [span.status.status_code for span in telemetry.named("invoke_agent assistant")] == [StatusCode.ERROR] * 2


@pytest.mark.parametrize("kind", PROVIDERS)
def test_a_run_in_steps_calls_its_provider_at_the_first_step(kind: Callable[..., Provider]) -> None:
    provider = kind(add)
    model = ScriptedChatModel([ToolCall("add", {"a": 1, "b": 2}), "three"])
    steps = []
    with ChatClient(model).prompt("?", tools=provider).start() as started:
        assert provider.asked == 0
        while step := started.next():
            steps.append(step)
            started.perform(step)
    assert (provider.asked, started.response.content) == (1, "three")
    assert sum(isinstance(step, ExecuteTools) for step in steps) == 1


def test_tool_callbacks_calls_providers_at_once_also_on_a_running_loop() -> None:
    async def within() -> list[str]:
        return names([AsyncProvider(add), Provider(AsyncProvider(subtract))])

    assert (
        names([AsyncProvider(add), Provider(AsyncProvider(subtract))]) == asyncio.run(within()) == ["add", "subtract"]
    )


def test_an_object_that_is_both_a_callback_and_a_provider_is_a_callback() -> None:
    class Both:
        definition, metadata = ToolDefinition(name="both"), ToolMetadata()

        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return ""

        def tool_callbacks(self) -> Any:
            raise AssertionError("it was asked")

    both = Both()
    assert isinstance(both, ToolCallback)
    assert tool_callbacks([both]) == [both]


# Names.


def test_a_name_needs_a_resolver() -> None:
    with pytest.raises(ToolNotFoundError, match="the name 'add', which cannot be resolved: pass resolver="):
        tool_callbacks("add")
    with pytest.raises(ToolNotFoundError, match="'add'"):
        ChatClient(ScriptedChatModel([])).prompt("?", tools=[subtract, ["add"]])
