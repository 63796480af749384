"""The override of a callback's method runs in every mode."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.modes import MODES, run
from traced_tools import Advisor, ChatClient, ToolCall, ToolContext, ToolResult
from traced_tools.core import ToolDefinition, ToolMetadata
from traced_tools.errors import ToolDefinitionError
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import FunctionToolCallback, ToolInvocation
from traced_tools.tools.invocation import CallNext

TIMEOUTS = pytest.mark.parametrize("timeout", [None, 30.0], ids=["no time-out", "time-out"])


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


async def later(number: int) -> int:
    """Double a number later."""
    return 2 * number


class GuardsCall(FunctionToolCallback):
    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise PermissionError


class GuardsAcall(FunctionToolCallback):
    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise PermissionError


class GuardsBoth(GuardsCall):
    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise PermissionError


class LogsAcall(GuardsCall):
    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        return f"logged {await super().acall(tool_input, context)}"


class Own:
    """A tool that implements the protocol itself."""

    definition = ToolDefinition(name="double")
    metadata = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return "call"

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        return "acall"


class OwnGuarded(Own):
    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise PermissionError


class Delegates:
    """Wraps a tool, and delegates unknown attributes, including `acall`, with `__getattr__`."""

    def __init__(self, tool: Any) -> None:
        self._tool = tool
        self.definition, self.metadata = tool.definition, tool.metadata

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        raise PermissionError

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tool, name)


def patched() -> FunctionToolCallback:
    tool = FunctionToolCallback(double)
    tool.call = GuardsCall(double).call  # type: ignore[method-assign]
    return tool


def only_call(mode: str, tool: Any, arguments: Any = None, *advisors: Advisor) -> ToolResult:
    model = ScriptedChatModel([ToolCall(tool.definition.name, arguments or {"number": 2}), "done"])
    (result,) = run(mode, ChatClient(model, tools=[tool], advisors=advisors).prompt("?")).tool_results
    return result


@pytest.mark.parametrize("mode", MODES)
@TIMEOUTS
@pytest.mark.parametrize("function", [double, later])
@pytest.mark.parametrize("kind", [GuardsCall, GuardsAcall, GuardsBoth])
def test_a_function_behind_an_override_does_not_run(
    mode: str, timeout: float | None, function: Any, kind: type[FunctionToolCallback]
) -> None:
    result = only_call(mode, kind(function, metadata=ToolMetadata(timeout=timeout)))
    assert (result.outcome, result.error_type) == ("error", "PermissionError")


@pytest.mark.parametrize("mode", MODES)
def test_of_two_overrides_each_runs_in_its_own_modes(mode: str) -> None:
    result = only_call(mode, LogsAcall(double))
    expected = ("logged 4", None) if mode.startswith("a") else (None, "PermissionError")
    assert (result.content if result.ok else None, result.error_type) == expected


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("made", [OwnGuarded, lambda: Delegates(FunctionToolCallback(double)), patched])
def test_no_inherited_delegated_or_original_method_runs_in_place_of_an_override(mode: str, made: Any) -> None:
    assert only_call(mode, made()).error_type == "PermissionError"


class CountsCalls(FunctionToolCallback):
    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self.calls = 0


class CallsSibling(CountsCalls):
    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.calls += 1
        return self.call(tool_input, context)


class AwaitsSibling(CountsCalls):
    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        self.calls += 1
        return asyncio.run(super().acall(tool_input, context))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [CallsSibling, AwaitsSibling])
def test_an_override_may_run_the_method_that_it_inherits(mode: str, kind: type[CountsCalls]) -> None:
    tool = kind(double)
    assert (only_call(mode, tool).content, tool.calls) == ("4", 1)


@pytest.mark.parametrize("mode", MODES)
def test_an_override_may_run_the_function_once(mode: str) -> None:
    class Counted(FunctionToolCallback):
        calls = 0

        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            type(self).calls += 1
            return super().call(tool_input, context)

    result = only_call(mode, Counted(double), '{"number": "2"}')
    assert (result.content, Counted.calls) == ("4", 1)


# The context.


class TextOnly(FunctionToolCallback):
    def call(self, arguments: str) -> str:  # type: ignore[override]
        return f"text {arguments}"


class ContextByName(FunctionToolCallback):
    def call(self, text: str, *, context: ToolContext) -> str:  # type: ignore[override]
        return f"context of {context.tool}"


class NoText(FunctionToolCallback):
    def call(self) -> str:  # type: ignore[override]
        return ""


@pytest.mark.parametrize("mode", MODES)
def test_a_call_that_takes_no_context_is_run_without(mode: str) -> None:
    assert only_call(mode, TextOnly(double)).content == 'text {"number": 2}'
    assert only_call(mode, ContextByName(double)).content == "context of double"


def test_a_call_without_a_text_parameter_is_refused_when_the_tool_is_created_or_passed() -> None:
    class OwnNoText(Own):
        def call(self) -> str:  # type: ignore[override]
            return ""

    with pytest.raises(ToolDefinitionError, match=r"NoText\.call must take the arguments as JSON text"):
        NoText(double)
    with pytest.raises(ToolDefinitionError, match=r"OwnNoText\.call must take the arguments as JSON text"):
        ChatClient(ScriptedChatModel([]), tools=[OwnNoText()])


# Wrappers.


class Wraps:
    """Passes on a tool's definition and each call."""

    def __init__(self, tool: FunctionToolCallback) -> None:
        self._tool = tool
        self.definition, self.metadata = tool.definition, tool.metadata

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        return self._tool.call(tool_input, context)


@pytest.mark.parametrize("mode", MODES)
def test_a_wrapper_of_a_typed_tool_keeps_its_validation(mode: str) -> None:
    assert only_call(mode, Wraps(FunctionToolCallback(double)), {"number": "7"}).content == "14"
    refused = only_call(mode, Wraps(FunctionToolCallback(double)), {"number": "x"})
    assert (refused.decision, "number: must be an integer" in refused.content) == ("invalid_arguments", True)


@pytest.mark.parametrize("mode", MODES)
def test_a_subclass_or_a_renaming_wrapper_of_a_tool_with_a_schema_keeps_its_types(mode: str) -> None:
    class Logs(FunctionToolCallback):
        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return super().call(tool_input, context)

    schema = {"type": "object", "properties": {"number": {"type": "string"}}}
    renamed = Wraps(FunctionToolCallback(double))
    renamed.definition = renamed.definition.replace(name="twice", description="Double it.")
    for tool, arguments in ((Logs(double, input_schema=schema), {"number": "7"}), (renamed, {"number": "7"})):
        seen: list[Any] = []

        class Watch(Advisor):
            name, order = "watch", 400

            async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
                seen.append(call.args)  # noqa: B023
                return await call_next(call)

        assert only_call(mode, tool, arguments, Watch()).content == "14"
        assert seen == [{"number": 7}]


def test_two_tools_of_one_definition_read_their_arguments_each_in_its_own_way() -> None:
    definition = ToolDefinition(name="double", input_schema={"type": "object", "properties": {"number": {}}})
    first = FunctionToolCallback(double, definition=definition)
    FunctionToolCallback(lambda **given: "", definition=definition)
    assert only_call("call", Wraps(first), {"number": "x"}).decision == "invalid_arguments"


def test_a_wrapper_keeps_the_validation_of_a_tool_that_is_gone() -> None:
    class Remote(Wraps):
        def call(self, tool_input: str, context: ToolContext | None = None) -> str:
            return tool_input

    remote = Remote(FunctionToolCallback(double))
    del remote._tool
    assert only_call("call", remote, {"number": "7"}).content == '{"number": "7"}'
