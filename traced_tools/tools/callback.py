"""A tool the loop can run: any object with a definition and a `call`, or one made of a Python function."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.conversion import ResultConverter, ToolContent, content_from_converter, content_of
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import (
    ArgumentReader,
    ToolCallback,
    ToolDefinition,
    ToolMetadata,
    reader_of,
    remember_reader,
)
from traced_tools.errors import ToolDefinitionError
from traced_tools.flow.attempt import Attemptable
from traced_tools.flow.flow import Step
from traced_tools.flow.steps import Call
from traced_tools.tools.schema.arguments import (
    BoundArguments,
    SchemaArguments,
    bind_arguments,
    deduplicate_keys,
    schema_arguments,
)
from traced_tools.tools.schema.callable_schema import (
    ArgumentSchema,
    StrictArguments,
    check_input_schema,
    check_valid_schema,
    schema_of,
    signature_of,
)
from traced_tools.tools.schema.function import CallFunction, Convert, ConvertedValue, convert_value
from traced_tools.tools.schema.signature import Signature
from traced_tools.tools.tool_options import ToolOptions, tool_options_of

Entry = Callable[..., Any]
"""Calls a tool with JSON text and a context."""

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")


class Invocable(Protocol):
    """How the loop runs a tool: bind the arguments, then perform the step, which gives a `ConvertedValue`."""

    def bind(self, arguments: str) -> BoundArguments:
        """Return what `step` needs of the arguments; raises `InvalidArguments`."""

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of bound arguments: what the tool is called with, defaults included."""

    def step(self, bound: Any, context: ToolContext) -> Attemptable:
        """Return the step that runs the tool."""


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
        ToolDefinitionError: for a function that no model can call, and for a subclass whose `call` or `acall` does not
            take the arguments as JSON text.
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
        if definition is not None and (name, description, input_schema) != (None, None, None):
            raise ToolDefinitionError("definition= says it all: leave out name=, description= and input_schema=")
        signature, said = signature_of(function), tool_options_of(function)
        if input_schema is None and input_type is definition is None:
            input_schema = said.input_schema
        self._function = function
        self._context_parameters = signature.context_parameters
        self._convert = result_converter or said.result_converter
        self._returns_nothing = signature.returns_nothing
        self.metadata = _metadata(metadata or said.metadata or ToolMetadata(), function, said)
        if definition is None:
            definition = _definition(
                function, signature, _first(name, said.name), _first(description, said.description)
            )
        self._arguments: ArgumentReader
        if "input_schema" in definition.model_fields_set:
            self._arguments = _arguments_by(definition.input_schema, signature, input_type)
        elif input_schema is not None:
            check_valid_schema(signature, input_schema)
            self._arguments = _arguments_by(input_schema, signature, input_type)
            definition = definition.replace(input_schema=dict(input_schema))
        else:
            self._arguments = typed = (
                schema_of(signature) if input_type is None else ArgumentSchema(signature, input_type)
            )
            definition = definition.replace(input_schema=typed.json_schema)
        # a definition that serves several tools cannot tell their readers apart
        self.definition = definition if reader_of(definition) is None else definition.model_copy()
        remember_reader(self.definition, self._arguments)
        if type(self) is not FunctionToolCallback:
            as_invocable(self)  # raises for an override that cannot be called

    def bind(self, arguments: str) -> BoundArguments:
        """Return the function's keyword arguments; raises `InvalidArguments`."""
        return bind_arguments(self._arguments.check, arguments, self.definition.input_schema)

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of bound arguments, under the names that the schema gives them."""
        return self._arguments.as_json(bound.value, bound.text)

    def step(self, bound: dict[str, Any], context: ToolContext) -> CallFunction:
        """Return the step that calls the function."""
        if self._context_parameters:
            bound = {**bound, **dict.fromkeys(self._context_parameters, context)}
        return CallFunction(self._function, bound, self.convert)

    def convert(self, value: Any) -> ToolContent:
        """Return what the model reads of the function's value; raises `TypeError` for what it cannot read."""
        if self._convert is None:
            return content_of(value, returns_nothing=self._returns_nothing)
        return content_from_converter(self._convert(value), self.definition.name)

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text, blocking, and return the text the model reads.

        Raises:
            InvalidArguments: for arguments that do not fit; whatever the function raises passes as it is.
        """
        expect("tool_input", tool_input, str, "JSON text")
        return self.step(self.bind(tool_input).value, context or ToolContext()).run().text

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text on asyncio, as `call`; a blocking function runs in a worker thread."""
        expect("tool_input", tool_input, str, "JSON text")
        return (await self.step(self.bind(tool_input).value, context or ToolContext()).arun()).text

    def __repr__(self) -> str:
        return f"<FunctionToolCallback {self.definition.name}>"


class CustomTool:
    """Runs a `ToolCallback` of the user's own.

    Its arguments are checked strictly by its schema. A tool that passes on the definition of a typed Python function,
    such as a wrapper, is validated by that function's types.

    Args:
        tool: the tool.

    Raises:
        ToolDefinitionError: when its `call` or `acall` cannot be called with the arguments as JSON text.
    """

    def __init__(self, tool: ToolCallback) -> None:
        self._tool = tool
        definition = tool.definition
        self._arguments: ArgumentReader = reader_of(definition) or schema_arguments(definition)
        runs_by = _runs_by(tool)
        self._call = _entry(tool, "call") if runs_by.call else None
        self._acall = _entry(tool, "acall") if runs_by.acall else None

    def bind(self, arguments: str) -> BoundArguments:
        """Return the JSON text to call the tool with; raises `InvalidArguments`."""
        return bind_arguments(self._checked, arguments, self._tool.definition.input_schema)

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of bound arguments."""
        return self._arguments.as_json(self._arguments.check(bound.value), bound.value)

    def _checked(self, text: str) -> str:
        self._arguments.check(text)
        return deduplicate_keys(text)

    def step(self, bound: str, context: ToolContext) -> Attemptable:
        """Return the step that calls the tool."""
        call = None if self._call is None else partial(self._call, bound, context)
        acall = None if self._acall is None else partial(self._acall, bound, context)
        return _CallCustom(call, acall, self._content)

    def _content(self, value: Any) -> ToolContent:
        if not isinstance(value, str):
            raise TypeError(f"{type(self._tool).__name__}.call must return str, not {type(value).__name__}")
        return ToolContent(value)


class _CallCustom(Step[ConvertedValue]):
    """Call a custom tool: `call`, or `acall` under asyncio; if only one exists, that one."""

    __slots__ = ("_acall", "_call", "_convert", "began")

    def __init__(self, call: Entry | None, acall: Entry | None, convert: Convert) -> None:
        self._call = call
        self._acall = acall
        self._convert = convert
        self.began = 0.0

    @property
    def is_async(self) -> bool:
        """Whether the tool has an `acall`."""
        return self._acall is not None

    def run(self) -> ConvertedValue:
        return convert_value(Call[Any](self._begin, self._call or self._acall).run(), self._convert)

    async def arun(self) -> ConvertedValue:
        if self._acall is None:
            return convert_value(await Call[Any](self._begin, self._call).arun(), self._convert)
        self.began = perf_counter()
        return convert_value(await Call[Any](self._acall).arun(), self._convert)

    def _begin(self, function: Callable[[], Any]) -> Any:
        self.began = perf_counter()
        return function()


class _RunsBy(NamedTuple):
    """Which of a tool's two methods run it."""

    call: bool
    acall: bool


def _runs_by(tool: Any) -> _RunsBy:
    """Return which methods run a tool: both, or the one that is overridden if the other is the original.

    An original method does not know of the override, nor does an `acall` that only `__getattr__` finds.
    """
    if getattr(tool, "acall", None) is None:
        return _RunsBy(call=True, acall=False)
    holders = [getattr(tool, "__dict__", {}), *map(vars, type(tool).__mro__)]
    call, acall = ([up for up, holder in enumerate(holders) if name in holder] for name in ("call", "acall"))
    if not acall or not call:
        return _RunsBy(call=not acall, acall=not call)
    return _RunsBy(
        call=not (acall[0] < call[0] and len(acall) > 1 and len(call) == 1),
        acall=not (call[0] < acall[0] and len(call) > 1 and len(acall) == 1),
    )


def _entry(tool: ToolCallback, name: str) -> Entry:
    """Return what calls a tool's method with the text and, if the method takes it, the context."""
    method: Any = getattr(tool, name)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # Python does not know; the tool does what the protocol says
        return method  # type: ignore[no-any-return]
    if _takes(signature, "", None):
        return method  # type: ignore[no-any-return]
    if _takes(signature, "", context=None):
        return lambda text, context: method(text, context=context)
    if _takes(signature, ""):
        return lambda text, context: method(text)
    raise ToolDefinitionError(
        f"{type(tool).__name__}.{name} must take the arguments as JSON text and, optionally, the context: "
        f"define {name}(self, tool_input, context=None)"
    )


def _takes(signature: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def as_invocable(tool: ToolCallback) -> Invocable:
    """Return how the loop runs `tool`; raises `ToolDefinitionError` for one that cannot be called."""
    return tool if isinstance(tool, FunctionToolCallback) and _overrides_nothing(tool) else CustomTool(tool)


def _overrides_nothing(tool: FunctionToolCallback) -> bool:
    kind, ours = type(tool), FunctionToolCallback
    is_ours = kind.call is ours.call and kind.acall is ours.acall
    return is_ours and "call" not in vars(tool) and "acall" not in vars(tool)


def _arguments_by(schema: Mapping[str, Any], signature: Signature, input_type: Any) -> ArgumentReader:
    """Return how a function reads its arguments by a JSON Schema and, where it has types, by those."""
    given = SchemaArguments(schema, signature.name, signature.reserved)
    typed = None if signature.takes_anything else ArgumentSchema(signature, input_type)
    check_input_schema(signature, schema, typed)
    return given if typed is None else StrictArguments(given, typed)


def _metadata(metadata: ToolMetadata, function: Callable[..., Any], said: ToolOptions) -> ToolMetadata:
    """Return what the loop is told; a function that says it is to be kept out of telemetry is, whatever else is."""
    while isinstance(function, partial):
        function = function.func
        said = tool_options_of(function)
    is_silent = said.metadata is not None and not said.metadata.capture
    return metadata.replace(capture=False) if is_silent and metadata.capture else metadata


def _definition(
    function: Callable[..., Any], signature: Signature, name: str | None, description: str | None
) -> ToolDefinition:
    name = _name(function) if name is None else name
    told = _first(description, signature.description or _in_words(name))
    try:
        return ToolDefinition(name=name, description=told or "")
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
