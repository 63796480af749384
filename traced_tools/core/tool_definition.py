"""What a tool is to the model, and what it is to the loop."""

from __future__ import annotations

from typing import Any, Protocol, Self, runtime_checkable
from weakref import ref

from pydantic import ConfigDict, Field, field_validator

from traced_tools.core.enums import LOCAL
from traced_tools.core.messages import Value
from traced_tools.core.tool_context import ToolContext


class ToolDefinition(Value):
    """What the model is told of a tool.

    Args:
        name: how the model calls it; any printable text. A provider that accepts less is sent a name it accepts.
        description: what it does and when to use it, in words for the model.
        input_schema: JSON Schema (draft 2020-12) of its arguments, an object.
    """

    name: str = Field(min_length=1)
    description: str = Field(default="", repr=False)
    input_schema: dict[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}}, repr=False)

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, name: str) -> str:
        if not name.isprintable() or name != name.strip():
            raise ValueError("a tool's name must be printable, without white space around it")
        return name

    def replace(self, **changes: Any) -> Self:
        """Return a copy with `changes`, validated like a new one. Without another schema, arguments are read alike."""
        return self._read_alike(super().replace(**changes), "input_schema" in changes)

    def __copy__(self) -> Self:
        """Return a copy whose arguments are read alike."""
        return self._read_alike(super().__copy__(), False)

    def _read_alike(self, copy: Self, has_other_schema: bool) -> Self:
        if not has_other_schema and (reader := reader_of(self)) is not None:
            remember_reader(copy, reader)
        return copy


class ArgumentReader(Protocol):
    """How the function behind a definition reads its arguments."""

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments that JSON text stands for; raises an error for those that do not fit."""

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of what `check` makes of `text`, under the names that the model uses."""


_READERS: dict[int, tuple[ref[ToolDefinition], ArgumentReader]] = {}
"""By the id of a definition, as long as it lives: definitions have no hash, and their readers are no part of them."""


def remember_reader(definition: ToolDefinition, reader: ArgumentReader) -> None:
    """Note how the arguments of a tool with this definition are read; a wrapper hands on the definition alone."""
    key = id(definition)
    _READERS[key] = (ref(definition, lambda _: _READERS.pop(key, None)), reader)


def reader_of(definition: ToolDefinition) -> ArgumentReader | None:
    """Return how the arguments of a tool with this definition are read, if its function is known."""
    known = _READERS.get(id(definition))
    return None if known is None else known[1]


class ToolMetadata(Value):
    """What the loop knows of a tool and the model does not.

    Args:
        return_direct: the tool's result is the run's answer, without another word of the model.
        source: where the tool comes from; `local`, or the configured name of an MCP server.
        timeout: seconds one attempt may take; None for no limit. The call is then answered with a time-out. An async
            tool is cancelled; a blocking one cannot be stopped, so its thread goes on and its result is dropped.
        retries: further attempts after a failure of the classes `retry_on`, with growing pauses between them.
        retry_on: the exception classes, or the one, worth another attempt; a time-out is a `TimeoutError`. As expected
            failures, they are not logged.
        sequential: the tool runs alone: calls asked for before it end first, those after it wait.
        requires_approval: the tool may not run until somebody approves of the call, as the driver of a run can
            (`ExecuteTools.approve`); a call that nobody has approved is denied.
        repeatable: the tool may be called with the same arguments any number of times, as one that waits for something
            to happen; `LoopLimits(max_repeated_calls=...)` does not count its calls.
        capture: False keeps arguments, results, reasons and exception texts out of captured content.
    """

    model_config = ConfigDict(strict=True)

    return_direct: bool = False
    source: str = LOCAL
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    retries: int = Field(default=0, ge=0)
    retry_on: tuple[type[Exception], ...] = (ConnectionError, TimeoutError)
    sequential: bool = False
    requires_approval: bool = False
    repeatable: bool = False
    capture: bool = True

    @field_validator("retry_on", mode="before")
    @classmethod
    def _are_classes(cls, retry_on: Any) -> Any:
        return (retry_on,) if isinstance(retry_on, type) else retry_on


@runtime_checkable
class ToolCallback(Protocol):
    """What the loop needs of a tool.

    An optional `async acall` of the same shape is used under asyncio, and wherever the tool has a time-out. If a class
    overrides one of the two and the other is still the original, every mode runs the override.
    """

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""

    @property
    def metadata(self) -> ToolMetadata:
        """What the loop is told."""

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Run the tool on JSON text and return what the model reads."""


@runtime_checkable
class ToolCallbackResolver(Protocol):
    """Finds tools by name."""

    def resolve(self, name: str) -> ToolCallback | None:
        """Return the tool of that name, None if it is not known here."""
