"""Tools that the loop can run: custom `ToolCallback` objects, and tools made from Python functions."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import cached_property, partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

from pydantic import ValidationError

from traced_tools.core.canonical import canonical_text
from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.result_conversion import ResultConverter, ToolContent, content_from_converter, content_of
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
from traced_tools.flow.steps import Call, InlineCall
from traced_tools.tools.function import CallFunction, Convert, ConvertedValue, convert_value, runs_on_event_loop
from traced_tools.tools.schema.arguments import (
    ArgumentValidationError,
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
from traced_tools.tools.schema.returned import ReturnedSchema, returned_schema
from traced_tools.tools.schema.signature import Signature
from traced_tools.tools.tool_options import ToolOptions, tool_options_of

ToolMethod = Callable[..., Any]
"""A tool's `call` or `acall`, with the JSON text and the context as positional arguments."""

_WORD_ENDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[\W_]+")


class Invocable(Protocol):
    """How the loop runs a tool: it binds the arguments, then performs the step, which returns a `ConvertedValue`."""

    def bind(self, arguments: str) -> BoundArguments:
        """Validate JSON text and return the arguments for `step`; raise `InvalidArguments` if it is invalid."""

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of the arguments that the tool is called with, including defaults."""

    def step(self, arguments: Any, context: ToolContext) -> Attemptable:
        """Return the step that runs the tool with the `value` of bound arguments."""


class FunctionToolCallback:
    """A tool made from a blocking or async Python function.

    The options of `@tool` are the defaults of the arguments below.

    Args:
        function: the function to call. Its annotations define the schema. If its only parameter is a pydantic model, a
            dataclass or a typed dictionary, the fields of that are the tool's arguments.
        name: the name that the model uses; by default the function's name.
        description: the description that the model reads; by default the docstring up to its first section, or else
            the words of the name.
        input_type: the type of the function's only argument, if the function is not annotated with it.
        input_schema: JSON Schema of the arguments, instead of the one from the annotations. It validates the arguments
            strictly, and the function is called with them as keyword arguments.
        definition: a definition instead of `name`, `description` and `input_schema`. If it has no schema, the schema
            comes from the annotations.
        metadata: the settings for the loop.
        result_converter: converts the function's value into what the model reads: a text, or texts and images. By
            default, a `str` stays as it is, None from a function annotated `-> None` becomes `Done`, images stay
            images, and everything else becomes JSON.

    Raises:
        ToolDefinitionError: for a function that a model cannot call, for an async function that is to run inline, and
            for a subclass whose `call` or `acall` does not take the arguments as JSON text.
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
            raise ToolDefinitionError("definition= cannot be combined with name=, description= or input_schema=")
        signature, options = signature_of(function), tool_options_of(function)
        if input_schema is None and input_type is definition is None:
            input_schema = options.input_schema
        self._function = function
        self._is_async = runs_on_event_loop(function)
        self._context_parameters = signature.context_parameters
        self._convert = result_converter or options.result_converter
        self._returns_nothing = signature.returns_nothing
        self.metadata = _metadata(metadata or options.metadata or ToolMetadata(), function, options)
        if definition is None:
            definition = _definition(
                function, signature, _first(name, options.name), _first(description, options.description)
            )
        self._arguments: ArgumentReader
        if "input_schema" in definition.model_fields_set:
            self._arguments = _argument_reader(definition.input_schema, definition.name, signature, input_type)
        elif input_schema is not None:
            check_valid_schema(signature, input_schema)
            self._arguments = _argument_reader(input_schema, definition.name, signature, input_type)
            definition = definition.replace(input_schema=dict(input_schema))
        else:
            self._arguments = typed = (
                schema_of(signature) if input_type is None else ArgumentSchema(signature, input_type)
            )
            definition = definition.replace(input_schema=typed.json_schema)
        if self._is_async and self.metadata.inline:
            raise ToolDefinitionError(
                f"the function of {definition.name!r} is async and runs on the event loop anyway: drop inline=True"
            )
        # copied if it already has a reader: tools that share a definition would share its reader
        self.definition = definition if reader_of(definition) is None else definition.model_copy()
        remember_reader(self.definition, self._arguments)
        if type(self) is not FunctionToolCallback:
            as_invocable(self)  # raises for an override that cannot be called

    @cached_property
    def returned(self) -> ReturnedSchema | None:
        """The schema of what the function returns; None if that is text, or if a converter changes it."""
        return returned_schema(self._function) if self._convert is None else None

    def bind(self, arguments: str) -> BoundArguments:
        """Validate JSON text and return the function's keyword arguments; raise `InvalidArguments` if it is invalid."""
        return bind_arguments(self._arguments.check, arguments, self.definition.input_schema)

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of bound arguments, under their names in the schema."""
        return self._arguments.as_json(bound.value, bound.text)

    def step(self, arguments: dict[str, Any], context: ToolContext) -> CallFunction:
        """Return the step that calls the function."""
        if self._context_parameters:
            arguments = {**arguments, **dict.fromkeys(self._context_parameters, context)}
        return CallFunction(self._function, arguments, self.convert, self._is_async or self.metadata.inline)

    def convert(self, value: Any) -> ToolContent:
        """Return what the model reads of the function's value; raise `TypeError` if it cannot be converted."""
        if self._convert is None:
            return content_of(value, returns_nothing=self._returns_nothing)
        return content_from_converter(self._convert(value), self.definition.name)

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool with JSON text, blocking, and return the text that the model reads.

        Raises:
            InvalidArguments: if the arguments are invalid. Exceptions of the function are raised unchanged.
        """
        expect("tool_input", tool_input, str, "JSON text")
        return self.step(self.bind(tool_input).value, context or ToolContext()).run().text

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool under asyncio, like `call`; a blocking function that is not `inline` runs in a worker thread."""
        expect("tool_input", tool_input, str, "JSON text")
        return (await self.step(self.bind(tool_input).value, context or ToolContext()).arun()).text

    def __repr__(self) -> str:
        return f"<FunctionToolCallback {self.definition.name}>"


_MAY_BE_ROUNDED = re.compile(r"[\d.]{16}|\d[eE]")
"""Finds numbers that may have more digits than a double."""


def _exact(text: str) -> Any:
    """Return the value of JSON text with all digits of its numbers."""
    return json.loads(text, parse_float=Decimal, parse_int=Decimal)


class CustomTool:
    """Runs a custom `ToolCallback`.

    The tool's schema validates its arguments strictly. If the tool reuses the definition of a typed Python function, as
    a wrapper does, the function's types validate them.

    Args:
        tool: the tool.

    Raises:
        ToolDefinitionError: if its `call` or `acall` does not take the arguments as JSON text.
    """

    def __init__(self, tool: ToolCallback) -> None:
        self._tool = tool
        definition = tool.definition
        self._arguments: ArgumentReader = reader_of(definition) or schema_arguments(definition)
        methods = _running_methods(tool)
        self._call = _tool_method(tool, "call") if methods.call else None
        self._acall = _tool_method(tool, "acall") if methods.acall else None

    def bind(self, arguments: str) -> BoundArguments:
        """Validate JSON text and return the text for the tool; raise `InvalidArguments` if it is invalid."""
        return bind_arguments(self._check, arguments, self._tool.definition.input_schema)

    def as_json(self, bound: BoundArguments) -> dict[str, Any]:
        """Return the JSON form of bound arguments."""
        return self._arguments.as_json(self._arguments.check(bound.value), bound.value)

    def _check(self, text: str) -> str:
        """Return the text for the tool: that of the model, unless it has a number that advisors see rounded."""
        checked, own = self._arguments.check(text), deduplicate_keys(text)
        if _MAY_BE_ROUNDED.search(own) is None:
            return own
        canonical = canonical_text(self._arguments.as_json(checked, text))
        if _exact(own) == _exact(canonical):
            return own
        with suppress(ArgumentValidationError):
            if canonical_text(self._arguments.as_json(self._arguments.check(canonical), canonical)) == canonical:
                return canonical
        return own  # a tool that reuses the definition of a function reads the text as that does

    def step(self, arguments: str, context: ToolContext) -> Attemptable:
        """Return the step that calls the tool."""
        call = None if self._call is None else partial(self._call, arguments, context)
        acall = None if self._acall is None else partial(self._acall, arguments, context)
        # the metadata's class may be the application's, and lack the setting
        kind = InlineCall if getattr(self._tool.metadata, "inline", False) is True else Call
        return _CallCustomTool(call, acall, self._content, kind)

    def _content(self, value: Any) -> ToolContent:
        if not isinstance(value, str):
            raise TypeError(f"{type(self._tool).__name__}.call must return str, not {type(value).__name__}")
        return ToolContent(value)


class _CallCustomTool(Step[ConvertedValue]):
    """Calls a custom tool: by `call`, or by `acall` under asyncio. If there is only one of them, both use it."""

    __slots__ = ("_acall", "_call", "_convert", "_kind", "began")

    def __init__(
        self, call: ToolMethod | None, acall: ToolMethod | None, convert: Convert, kind: type[Call[Any]]
    ) -> None:
        self._call = call
        self._acall = acall
        self._convert = convert
        self._kind = kind  # where `call` runs on asyncio
        self.began = 0.0

    @property
    def is_async(self) -> bool:
        """Whether the tool has an `acall`."""
        return self._acall is not None

    def run(self) -> ConvertedValue:
        return convert_value(Call[Any](self._begin, self._call or self._acall).run(), self._convert)

    async def arun(self) -> ConvertedValue:
        if self._acall is None:
            return convert_value(await self._kind(self._begin, self._call).arun(), self._convert)
        self.began = perf_counter()
        return convert_value(await Call[Any](self._acall).arun(), self._convert)

    def _begin(self, function: Callable[[], Any]) -> Any:
        self.began = perf_counter()
        return function()


class _RunningMethods(NamedTuple):
    """Which of a tool's two methods run it."""

    call: bool
    acall: bool


def _running_methods(tool: Any) -> _RunningMethods:
    """Return which methods run a tool: both, or only the overridden one if the other is inherited from the original.

    An inherited method would bypass the override, and so would an `acall` that only `__getattr__` finds.
    """
    if getattr(tool, "acall", None) is None:
        return _RunningMethods(call=True, acall=False)
    holders = [getattr(tool, "__dict__", {}), *map(vars, type(tool).__mro__)]
    call, acall = ([depth for depth, holder in enumerate(holders) if name in holder] for name in ("call", "acall"))
    if not acall or not call:
        return _RunningMethods(call=not acall, acall=not call)
    return _RunningMethods(
        call=not (acall[0] < call[0] and len(acall) > 1 and len(call) == 1),
        acall=not (call[0] < acall[0] and len(call) > 1 and len(acall) == 1),
    )


def _tool_method(tool: ToolCallback, name: str) -> ToolMethod:
    """Return a tool's method, adapted so that it can be called with the text and the context."""
    method: Any = getattr(tool, name)
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # no readable signature: assume the protocol's
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


def running_parts(tool: ToolCallback) -> tuple[object, ...]:
    """Return the objects that run a tool: two tools run the same if these are the same objects."""
    if type(tool) is not FunctionToolCallback:
        return (tool,)
    function = tool._function
    return getattr(function, "__self__", None), getattr(function, "__func__", function), tool._convert


def as_invocable(tool: ToolCallback) -> Invocable:
    """Return how the loop runs `tool`; raise `ToolDefinitionError` if it cannot be called."""
    return tool if isinstance(tool, FunctionToolCallback) and _overrides_nothing(tool) else CustomTool(tool)


def _overrides_nothing(tool: FunctionToolCallback) -> bool:
    kind, ours = type(tool), FunctionToolCallback
    is_ours = kind.call is ours.call and kind.acall is ours.acall
    return is_ours and "call" not in vars(tool) and "acall" not in vars(tool)


def _argument_reader(schema: Mapping[str, Any], tool: str, signature: Signature, input_type: Any) -> ArgumentReader:
    """Return the reader of a function's arguments for a developer's schema and, if it has types, for those."""
    declared = SchemaArguments(schema, tool, signature.reserved)
    typed = None if signature.takes_anything else ArgumentSchema(signature, input_type)
    check_input_schema(signature, schema, typed)
    return declared if typed is None else StrictArguments(declared, typed)


def _metadata(metadata: ToolMetadata, function: Callable[..., Any], options: ToolOptions) -> ToolMetadata:
    """Return the metadata; `@tool(capture=False)` on the function, also inside a partial, disables capture for good."""
    while isinstance(function, partial):
        function = function.func
        options = tool_options_of(function)
    disables_capture = options.metadata is not None and not options.metadata.capture
    return metadata.replace(capture=False) if disables_capture and metadata.capture else metadata


def _definition(
    function: Callable[..., Any], signature: Signature, name: str | None, description: str | None
) -> ToolDefinition:
    name = _name(function) if name is None else name
    if description is None:
        description = signature.description or _WORD_ENDS.sub(" ", name).strip().lower()
    try:
        return ToolDefinition(name=name, description=description)
    except ValidationError:
        raise ToolDefinitionError("a tool needs a name: printable text without surrounding white space") from None


def _first(*texts: str | None) -> str | None:
    """Return the first text that is not None."""
    return next((text for text in texts if text is not None), None)


def _name(function: Callable[..., Any]) -> str:
    name: str | None = getattr(function, "__name__", None)
    if name is None or name == "<lambda>":
        kind = "lambda" if name else type(function).__name__
        raise ToolDefinitionError(
            f"a tool made from a {kind} needs a name: pass FunctionToolCallback(function, name=...)"
        )
    return name
