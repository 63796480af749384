"""A tool the loop can run: any object with a definition and a `call`, or one made of a Python function."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from pydantic_core import to_json

from traced_tools._checks import expect, expect_callable
from traced_tools._flow import Step
from traced_tools._steps import Call
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.tools.context import ToolContext
from traced_tools.tools.definition import ToolDefinition, ToolMetadata
from traced_tools.tools.schema import argument_schema, given

ResultConverter = Callable[[Any], str]


@runtime_checkable
class ToolCallback(Protocol):
    """What the loop needs of a tool. An optional `async acall` of the same shape is used under asyncio."""

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""

    @property
    def metadata(self) -> ToolMetadata:
        """What the loop is told."""

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text and return what the model reads."""


class Invocable(Protocol):
    """How the loop runs a tool: bind the arguments, perform the step, convert the value."""

    def bind(self, arguments: str) -> Any:
        """Return what `step` needs of the arguments; raises `InvalidArguments`."""

    def step(self, bound: Any, context: ToolContext) -> Step[Any]:
        """Return the step that runs the tool."""

    def convert(self, value: Any) -> str:
        """Return what the model reads of the tool's value."""


class FunctionToolCallback:
    """A tool made of a Python function, blocking or async.

    Args:
        function: what to run; its annotations make the schema.
        name: how the model calls it; by default the function's name.
        description: what the model is told; by default the first paragraph of the docstring.
        definition: name, description and schema at once, instead of the above.
        metadata: what the loop is told.
        result_converter: makes the text the model reads of the function's value; by default a `str` stays as it is,
            None of a function annotated `-> None` is `Done`, and everything else is JSON.

    Raises:
        ToolDefinitionError: for a function that no model can call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        definition: ToolDefinition | None = None,
        metadata: ToolMetadata | None = None,
        result_converter: ResultConverter | None = None,
    ) -> None:
        expect_callable("function", function)
        expect("name", name, (str, type(None)), "a str or None")
        expect("description", description, (str, type(None)), "a str or None")
        expect("metadata", metadata, (ToolMetadata, type(None)), "a ToolMetadata or None")
        expect("definition", definition, (ToolDefinition, type(None)), "a ToolDefinition or None")
        expect_callable("result_converter", result_converter)
        self._function = function
        self._schema = argument_schema(function)
        self._convert = result_converter or self._to_text
        self.metadata = metadata or ToolMetadata()
        if name is not None and not name.strip():
            raise ToolDefinitionError("a tool needs a name that is not blank")
        self.definition = definition or ToolDefinition(
            name=_name(function) if name is None else name,
            description=_summary(function) if description is None else description,
            input_schema=self._schema.json_schema,
        )

    def bind(self, arguments: str) -> dict[str, Any]:
        """Return the function's keyword arguments; raises `InvalidArguments`."""
        return self._schema.bind(arguments)

    def step(self, bound: dict[str, Any], context: ToolContext) -> Step[Any]:
        """Return the step that calls the function."""
        if self._schema.context_parameter is not None:
            bound = {**bound, self._schema.context_parameter: context}
        return Call(self._function, **bound)

    def convert(self, value: Any) -> str:
        """Return what the model reads of the function's value; raises `TypeError` if that is no text."""
        text = self._convert(value)
        if not isinstance(text, str):
            raise TypeError(
                f"the result converter of {self.definition.name} must return str, not {type(text).__name__}"
            )
        return text

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text, blocking; raises `InvalidArguments`, and whatever the function raises."""
        return self.convert(self.step(self.bind(tool_input), context or ToolContext()).run())

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text on asyncio; a blocking function runs in a worker thread."""
        return self.convert(await self.step(self.bind(tool_input), context or ToolContext()).arun())

    def _to_text(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        if value is None and self._schema.returns_nothing:
            return "Done"
        return to_json(value, inf_nan_mode="null").decode()

    def __repr__(self) -> str:
        return f"<FunctionToolCallback {self.definition.name}>"


class CustomTool:
    """Runs a `ToolCallback` of the user's own; its arguments need only be a JSON object."""

    def __init__(self, tool: ToolCallback) -> None:
        self._tool = tool

    def bind(self, arguments: str) -> str:
        """Return the arguments unchanged if they are a JSON object."""
        text = given(arguments)
        try:
            is_object = isinstance(json.loads(text), dict)
        except (ValueError, RecursionError):
            raise InvalidArguments("arguments: not valid JSON") from None
        if not is_object:
            raise InvalidArguments("arguments: must be a JSON object")
        return text

    def step(self, bound: str, context: ToolContext) -> Step[Any]:
        """Return the step that calls the tool: its `acall` under asyncio if it has one."""
        return _EitherCall(self._tool, bound, context)

    def convert(self, value: Any) -> str:
        """Return the tool's text; raises `TypeError` if it is none."""
        if not isinstance(value, str):
            raise TypeError(f"{type(self._tool).__name__}.call must return str, not {type(value).__name__}")
        return value


class _EitherCall(Step[Any]):
    __slots__ = ("_arguments", "_context", "_tool")

    def __init__(self, tool: ToolCallback, arguments: str, context: ToolContext) -> None:
        self._tool = tool
        self._arguments = arguments
        self._context = context

    def run(self) -> Any:
        return Call[Any](self._tool.call, self._arguments, self._context).run()

    async def arun(self) -> Any:
        function = getattr(self._tool, "acall", self._tool.call)
        return await Call[Any](function, self._arguments, self._context).arun()


def invocable(tool: ToolCallback) -> Invocable:
    """Return how the loop runs `tool`."""
    return tool if isinstance(tool, FunctionToolCallback) else CustomTool(tool)


def _name(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None:
        raise ToolDefinitionError(f"a tool made of a {type(function).__name__} needs a name: give name=")
    return name


def _summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of the docstring, on one line."""
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n", 1)[0].split())
