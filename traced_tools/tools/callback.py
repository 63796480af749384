"""A tool the loop can run: any object with a definition and a `call`, or one made of a Python function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, Protocol, runtime_checkable

from pydantic import ValidationError

from traced_tools._attempt import Attemptable
from traced_tools._checks import expect, expect_callable
from traced_tools._flow import Step
from traced_tools._steps import Call
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.arguments import Bound, SchemaArguments, bound
from traced_tools.tools.context import ToolContext
from traced_tools.tools.conversion import ResultConverter, ToolContent, content_of, converted
from traced_tools.tools.definition import ToolDefinition, ToolMetadata
from traced_tools.tools.function import CallFunction
from traced_tools.tools.mark import mark_of
from traced_tools.tools.schema import ArgumentSchema, check_input_schema, schema_of, signature_of
from traced_tools.tools.signature import Signature

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")


@runtime_checkable
class ToolCallback(Protocol):
    """What the loop needs of a tool.

    An optional `async acall` of the same shape is used under asyncio, and wherever the tool has a time-out.
    """

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

    def bind(self, arguments: str) -> Bound:
        """Return what `step` needs of the arguments; raises `InvalidArguments`."""

    def step(self, bound: Any, context: ToolContext) -> Attemptable:
        """Return the step that runs the tool."""

    def convert(self, value: Any) -> ToolContent:
        """Return what the model reads of the tool's value."""


class FunctionToolCallback:
    """A tool made of a Python function, blocking or async.

    What a function marked `@tool` says of itself counts wherever an argument below is left out.

    Args:
        function: what to run; its annotations make the schema. The fields of a model, dataclass or typed dictionary
            that is its only parameter are the tool's arguments.
        name: how the model calls it; by default the function's name.
        description: what the model is told; by default the docstring up to its first section, else the name in words.
        input_type: the type of the function's only argument, for a function that is not annotated with it.
        input_schema: JSON Schema of the arguments, instead of the one the annotations make. They are then checked
            strictly by it, and the function is called with them as keyword arguments.
        definition: name, description and, unless it leaves that out, schema at once; instead of the above.
        metadata: what the loop is told.
        result_converter: makes what the model reads of the function's value: a text, or texts and images. By default a
            `str` stays as it is, None of a function annotated `-> None` is `Done`, images go as images, and everything
            else is JSON.

    Raises:
        ToolDefinitionError: for a function that no model can call.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        input_type: Any = None,
        input_schema: Mapping[str, Any] | None = None,
        definition: ToolDefinition | None = None,
        metadata: ToolMetadata | None = None,
        result_converter: ResultConverter | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"function must be callable, not {type(function).__name__}")
        expect("name", name, (str, type(None)), "a str or None")
        expect("description", description, (str, type(None)), "a str or None")
        expect("input_schema", input_schema, (Mapping, type(None)), "a mapping or None")
        expect("metadata", metadata, (ToolMetadata, type(None)), "a ToolMetadata or None")
        expect("definition", definition, (ToolDefinition, type(None)), "a ToolDefinition or None")
        expect_callable("result_converter", result_converter)
        if definition is not None and not (name is description is None):
            raise ToolDefinitionError("definition= says name and description already: leave out name= and description=")
        signature, said = signature_of(function), mark_of(function)
        says_all = definition is not None and "input_schema" in definition.model_fields_set
        if definition is not None and says_all:
            input_schema = definition.input_schema
        elif input_schema is None and input_type is None:
            input_schema = said.input_schema
        self._function = function
        self._context_parameters = signature.context_parameters
        self._check, schema = _arguments(signature, input_type, input_schema)
        self._convert = result_converter or said.result_converter
        self._returns_nothing = signature.returns_nothing
        self.metadata = metadata or said.metadata or ToolMetadata()
        if definition is None:
            name = _first(name, said.name)
            name = _name(function) if name is None else name
            told = _first(description, said.description, signature.description or _in_words(name))
            definition = _definition(name, told or "")
        self.definition = definition if says_all else definition.replace(input_schema=schema)

    def bind(self, arguments: str) -> Bound:
        """Return the function's keyword arguments; raises `InvalidArguments`."""
        return bound(self._check, arguments)

    def step(self, bound: dict[str, Any], context: ToolContext) -> CallFunction:
        """Return the step that calls the function."""
        if self._context_parameters:
            bound = {**bound, **dict.fromkeys(self._context_parameters, context)}
        return CallFunction(self._function, **bound)

    def convert(self, value: Any) -> ToolContent:
        """Return what the model reads of the function's value; raises `TypeError` for what it cannot read."""
        if self._convert is None:
            return content_of(value, returns_nothing=self._returns_nothing)
        return converted(self._convert(value), self.definition.name)

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text, blocking, and return the text the model reads.

        Raises:
            InvalidArguments: for arguments that do not fit; whatever the function raises passes as it is.
        """
        step = self.step(self.bind(tool_input).value, context or ToolContext())
        return self.convert(step.run()).text

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text on asyncio, as `call`; a blocking function runs in a worker thread."""
        step = self.step(self.bind(tool_input).value, context or ToolContext())
        return self.convert(await step.arun()).text

    def __repr__(self) -> str:
        return f"<FunctionToolCallback {self.definition.name}>"


class CustomTool:
    """Runs a `ToolCallback` of the user's own; its arguments are checked strictly by its schema."""

    def __init__(self, tool: ToolCallback) -> None:
        self._tool = tool
        self._arguments = SchemaArguments(tool.definition.input_schema, tool.definition.name)

    def bind(self, arguments: str) -> Bound:
        """Return the JSON text to call the tool with; raises `InvalidArguments`."""
        return bound(self._checked, arguments)

    def _checked(self, text: str) -> str:
        self._arguments.check(text)
        return text

    def step(self, bound: str, context: ToolContext) -> Attemptable:
        """Return the step that calls the tool."""
        return _EitherCall(self._tool, bound, context)

    def convert(self, value: Any) -> ToolContent:
        """Return the tool's text; raises `TypeError` if it is none."""
        if not isinstance(value, str):
            raise TypeError(f"{type(self._tool).__name__}.call must return str, not {type(value).__name__}")
        return ToolContent(value)


class _EitherCall(Step[Any]):
    """Call a tool of the user's own: its `call`, or under asyncio its `acall` if it has one."""

    __slots__ = ("_acall", "_call", "began")

    def __init__(self, tool: ToolCallback, arguments: str, context: ToolContext) -> None:
        self._call = partial(tool.call, arguments, context)
        acall = getattr(tool, "acall", None)
        self._acall = None if acall is None else partial(acall, arguments, context)
        self.began = 0.0

    @property
    def is_async(self) -> bool:
        """Whether the tool has an `acall`."""
        return self._acall is not None

    def run(self) -> Any:
        return Call[Any](self._begin, self._call).run()

    async def arun(self) -> Any:
        if self._acall is None:
            return await Call[Any](self._begin, self._call).arun()
        self.began = perf_counter()
        return await Call[Any](self._acall).arun()

    def _begin(self, function: Callable[[], Any]) -> Any:
        self.began = perf_counter()
        return function()


def invocable(tool: ToolCallback) -> Invocable:
    """Return how the loop runs `tool`."""
    return tool if isinstance(tool, FunctionToolCallback) else CustomTool(tool)


def _arguments(
    signature: Signature, input_type: Any, input_schema: Mapping[str, Any] | None
) -> tuple[Callable[[str], dict[str, Any]], dict[str, Any]]:
    """Return what checks a function's arguments, and their JSON Schema."""
    if input_schema is None:
        schema = schema_of(signature) if input_type is None else ArgumentSchema(signature, input_type)
        return schema.check, schema.json_schema
    given = SchemaArguments(input_schema, signature.name)
    typed = None if signature.takes_anything else ArgumentSchema(signature, input_type)
    check_input_schema(signature.name, input_schema, typed)
    if typed is None:
        return given.check, dict(input_schema)

    def check(text: str) -> dict[str, Any]:
        given.check(text)
        return typed.check(text)

    return check, dict(input_schema)


def _definition(name: str, description: str) -> ToolDefinition:
    try:
        return ToolDefinition(name=name, description=description)
    except ValidationError:
        raise ToolDefinitionError("a tool needs a name: printable text without white space around it") from None


def _first(*texts: str | None) -> str | None:
    """Return the first that is said at all."""
    return next((text for text in texts if text is not None), None)


def _name(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        kind = "lambda" if name else type(function).__name__
        raise ToolDefinitionError(
            f"a tool made of a {kind} needs a name: make it one by FunctionToolCallback(function, name=...)"
        )
    return name


def _in_words(name: str) -> str:
    return _WORD_ENDS.sub(" ", name).strip().lower()
