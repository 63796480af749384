"""Tools whose calls have additional arguments, such as the model's reason, beside those that the tool takes itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, Generic, NamedTuple, TypeVar

from pydantic import BaseModel

from traced_tools.core.checks import expect
from traced_tools.core.enums import Repair
from traced_tools.core.frozen import frozen
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition, ToolMetadata, reader_of
from traced_tools.errors import InvalidArguments, ToolDefinitionError
from traced_tools.flow.flow import acall, call
from traced_tools.flow.steps import perform
from traced_tools.tools.callback import as_invocable
from traced_tools.tools.function import ConvertedValue
from traced_tools.tools.schema.additional import AdditionalArguments, Member, members_of, object_of
from traced_tools.tools.schema.arguments import bind_arguments
from traced_tools.tools.schema.callable_schema import StrictArguments
from traced_tools.tools.schema.fields import forbids_others

M = TypeVar("M", bound=BaseModel)


@frozen
class AugmentedArguments(Generic[M]):
    """The additional arguments of one tool call, as `on_arguments` receives them before the tool runs.

    Attributes:
        arguments: the validated additional arguments: an instance of the model that was passed to `augmented`.
        definition: the tool as the model sees it, with the additional arguments in its schema.
        tool_input: all arguments of the call as the model wrote them, which may not be a plain JSON object.
        context: the context that the tool receives: what the caller passed as `tool_context=`, and the ids of the call.
    """

    arguments: M = field(repr=False)
    definition: ToolDefinition
    tool_input: str = field(repr=False)
    context: ToolContext


OnArguments = Callable[[AugmentedArguments[Any]], Any]


class Augmentation(NamedTuple):
    """What `augmented` adds to tools.

    Attributes:
        additional: the additional arguments.
        on_arguments: a plain or async function that receives them before a tool runs; None for none.
        keep: whether the tool receives them, too.
    """

    additional: AdditionalArguments
    on_arguments: OnArguments | None
    keep: bool


@frozen
class SeparatedArguments:
    """The arguments of a call, separated into those of the tool and the validated additional ones.

    Attributes:
        own: JSON text of the arguments that the tool takes, which are not validated yet.
        intent: the model's reason for the call, if it stated one.
        repairs: the repairs that were made to separate the arguments and to validate the additional ones.
        additional: the additional arguments of each augmentation, with its `on_arguments`.
        definition: the tool as the model sees it.
        tool_input: all arguments, as the model wrote them.
    """

    own: str = field(repr=False)
    intent: str | None = field(repr=False)
    repairs: tuple[Repair, ...]
    additional: tuple[tuple[OnArguments | None, BaseModel], ...] = field(repr=False)
    definition: ToolDefinition
    tool_input: str = field(repr=False)

    async def deliver(self, context: ToolContext) -> None:
        """Call each `on_arguments`, as a flow; raises what it raises."""
        for on_arguments, arguments in self.additional:
            if on_arguments is not None:
                await perform(on_arguments, AugmentedArguments(arguments, self.definition, self.tool_input, context))


class AugmentedTool:
    """A tool with additional arguments in its schema, which its own function does not get unless they are kept.

    Args:
        tool: the tool; it may be augmented itself.
        augmentation: the additional arguments.

    Attributes:
        own: the tool without additional arguments.
        additional_names: the names of the additional arguments.

    Raises:
        ToolDefinitionError: if the tool has an argument of the same name, or cannot get additional arguments.
    """

    def __init__(self, tool: ToolCallback, augmentation: Augmentation) -> None:
        if isinstance(tool, AugmentedTool):
            self.own: ToolCallback = tool.own
            self._augmentations: tuple[Augmentation, ...] = (augmentation, *tool._augmentations)
        else:
            self.own, self._augmentations = tool, (augmentation,)
        self._invocable = as_invocable(self.own)
        self.additional_names = frozenset[str]().union(*(layer.additional.names for layer in self._augmentations))
        if augmentation.keep:
            _check_open(self.own.definition)
        schema = augmentation.additional.merged_into(tool.definition)
        self.definition = tool.definition.replace(input_schema=schema)

    @property
    def metadata(self) -> ToolMetadata:
        """The settings of the tool itself."""
        return self.own.metadata

    def separate(self, arguments: str) -> SeparatedArguments:
        """Separate the arguments that the model wrote, and validate the additional ones.

        Raises:
            InvalidArguments: if they are not a JSON object, or an additional argument is invalid. It then also names
                what is wrong with the tool's own arguments. A validator's other exceptions are raised unchanged.
        """
        read = bind_arguments(members_of, arguments, {})
        own: list[Member] = read.value
        intent, repairs, problems = None, read.repairs, []
        additional: list[tuple[OnArguments | None, BaseModel]] = []
        for layer in self._augmentations:
            names = layer.additional.names
            try:
                bound = layer.additional.bind(object_of(member for member in read.value if member.name in names))
            except InvalidArguments as invalid:
                problems.append(invalid.problems)
            else:
                additional.append((layer.on_arguments, bound.value))
                intent = intent or layer.additional.reason(bound)
                repairs += tuple(repair for repair in bound.repairs if repair not in repairs)
            if not layer.keep:
                own = [member for member in own if member.name not in names]
        text = object_of(own)
        if problems:
            raise InvalidArguments("; ".join([*problems, *self._problems_of_own(text)]))
        return SeparatedArguments(text, intent, repairs, tuple(additional), self.definition, arguments)

    def _problems_of_own(self, text: str) -> list[str]:
        try:
            self._invocable.bind(text)
        except InvalidArguments as invalid:
            return [invalid.problems]
        except Exception:  # of a validator: it counts as the tool's error when the tool would run
            return []
        return []

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Call `on_arguments`, run the tool with JSON text, blocking, and return the text that the model reads.

        Raises:
            InvalidArguments: if the arguments are invalid. Other exceptions are raised unchanged.
        """
        expect("tool_input", tool_input, str, "JSON text")
        return call(self._result(tool_input, context or ToolContext())).text

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool under asyncio, like `call`."""
        expect("tool_input", tool_input, str, "JSON text")
        return (await acall(self._result(tool_input, context or ToolContext()))).text

    async def _result(self, tool_input: str, context: ToolContext) -> ConvertedValue:
        separated = self.separate(tool_input)
        bound = self._invocable.bind(separated.own)
        await separated.deliver(context)
        converted: ConvertedValue = await self._invocable.step(bound.value, context)
        return converted

    def __repr__(self) -> str:
        return f"<AugmentedTool {self.definition.name}>"


def own_tool(tool: ToolCallback | None) -> ToolCallback | None:
    """Return a tool without the arguments that `augmented` has added, if it has any."""
    return tool.own if isinstance(tool, AugmentedTool) else tool


def _check_open(tool: ToolDefinition) -> None:
    """Raise `ToolDefinitionError` unless what validates a tool's arguments allows others than those in its schema."""
    reader = reader_of(tool)
    schemas = [tool.input_schema, *([reader.typed.json_schema] if isinstance(reader, StrictArguments) else [])]
    if any(map(forbids_others, schemas)):
        raise ToolDefinitionError(
            f"the tool {tool.name!r} accepts only its own arguments: drop keep=True, or allow additional properties in "
            "its input schema"
        )
