"""One tool for each way to create a tool; it takes a required text and a count."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict

from traced_tools import ToolContext
from traced_tools.core import ToolCallback, ToolDefinition, ToolMetadata
from traced_tools.tools import FunctionToolCallback

SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}, "count": {"type": "integer"}, "tag": {"type": ["string", "null"]}},
    "required": ["text"],
    "additionalProperties": False,
}

Act = Callable[[Any], Any]
"""What a tool does with what it is called with."""


class Note(BaseModel):
    """The arguments as a model."""

    model_config = ConfigDict(extra="forbid")

    text: str
    count: int = 1
    tag: str | None = None


class Box:
    """Holds the tool as a method."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def note(self, text: str, count: int = 1, tag: str | None = None) -> Any:
        return self._act({"text": text, "count": count, "tag": tag})

    async def anote(self, text: str, count: int = 1, tag: str | None = None) -> Any:
        return await self._act({"text": text, "count": count, "tag": tag})


class Own:
    """A tool that implements the protocol itself."""

    def __init__(self, act: Act, metadata: ToolMetadata, schema: dict[str, Any] = SCHEMA) -> None:
        self.definition = ToolDefinition(name="note", input_schema=schema)
        self.metadata = metadata
        self._act = act

    def call(self, tool_input: str, context: ToolContext | None = None) -> Any:
        return self._act(tool_input)


class OwnAsync(Own):
    """The same with an `acall`."""

    def call(self, tool_input: str, context: ToolContext | None = None) -> Any:
        return asyncio.run(self._act(tool_input))

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> Any:
        return await self._act(tool_input)


def _function(act: Act, metadata: ToolMetadata) -> ToolCallback:
    def note(text: str, count: int = 1, tag: str | None = None) -> Any:
        return act({"text": text, "count": count, "tag": tag})

    return FunctionToolCallback(note, metadata=metadata)


def _async_function(act: Act, metadata: ToolMetadata) -> ToolCallback:
    async def note(text: str, count: int = 1, tag: str | None = None) -> Any:
        return await act({"text": text, "count": count, "tag": tag})

    return FunctionToolCallback(note, metadata=metadata)


def _single_model(act: Act, metadata: ToolMetadata) -> ToolCallback:
    def note(note: Note) -> Any:
        return act(note)

    return FunctionToolCallback(note, metadata=metadata)


def _input_schema(act: Act, metadata: ToolMetadata) -> ToolCallback:
    def note(**given: Any) -> Any:
        return act(given)

    return FunctionToolCallback(note, input_schema=SCHEMA, metadata=metadata)


def _method(act: Act, metadata: ToolMetadata) -> ToolCallback:
    return FunctionToolCallback(Box(act).note, metadata=metadata)


def _async_method(act: Act, metadata: ToolMetadata) -> ToolCallback:
    return FunctionToolCallback(Box(act).anote, name="note", metadata=metadata)


_KINDS: dict[str, Callable[[Act, ToolMetadata], ToolCallback]] = {
    "function": _function,
    "async function": _async_function,
    "method": _method,
    "async method": _async_method,
    "single model": _single_model,
    "input schema": _input_schema,
    "own": Own,
    "own async": OwnAsync,
}
KINDS = tuple(_KINDS)
TYPED_KINDS = ("function", "async function", "method", "async method", "single model")
ASYNC_KINDS = ("async function", "async method", "own async")
BLOCKING_KINDS = tuple(kind for kind in KINDS if kind not in ASYNC_KINDS)


def noting(kind: str, act: Act, metadata: ToolMetadata | None = None) -> ToolCallback:
    """Return the tool `note`, created in one of the `KINDS`; `act` is a coroutine function for the async ones."""
    return _KINDS[kind](act, metadata or ToolMetadata())


def acting(kind: str, function: Callable[[Any], Any]) -> Act:
    """Return `function` in the form that a tool of that kind calls."""

    async def act(given: Any) -> Any:
        return function(given)

    return act if kind in ASYNC_KINDS else function


def given(value: Any) -> dict[str, Any]:
    """Return the arguments of a tool as a mapping, in whichever form it received them."""
    if isinstance(value, str):
        return dict(json.loads(value))
    return value.model_dump() if isinstance(value, Note) else dict(value)
