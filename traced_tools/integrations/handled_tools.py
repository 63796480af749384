"""Tools that a framework runs, each call by a handler that the framework passes for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextvars import ContextVar
from typing import Final, Self, TypeVar

from traced_tools.core.approval import Approve, PendingCall, Reject
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.observe.manual.run import ManualRun
from traced_tools.observe.run_telemetry import current_telemetry

V = TypeVar("V")


class HandledCall(ABC):
    """One call whose tool a framework runs, as a `with` block around its execution."""

    def __enter__(self) -> Self:
        self._token = _CALL.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _CALL.reset(self._token)

    @abstractmethod
    def run(self, arguments: str) -> str:
        """Have the framework run the tool with JSON text, and return what the model reads."""

    @abstractmethod
    async def arun(self, arguments: str) -> str:
        """Have the framework run the tool on asyncio; see `run`."""

    def framework_decision(self, pending: PendingCall) -> Approve | Reject | None:
        """Return what a person has decided about the call, if the framework has asked one; None if nobody has."""
        return None


_CALL: ContextVar[HandledCall] = ContextVar("traced_tools_handled_call")


class HandledTool:
    """A tool of a framework as a run executes it, in the block of a `HandledCall`.

    Args:
        definition: the tool as the model sees it.
    """

    def __init__(self, definition: ToolDefinition) -> None:
        self.definition: Final = definition
        self.metadata: Final = ToolMetadata()

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Have the framework run the tool."""
        return _CALL.get().run(tool_input)

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Have the framework run the tool on asyncio."""
        return await _CALL.get().arun(tool_input)

    def framework_decision(self, pending: PendingCall) -> Approve | Reject | None:
        """Return the decision that the framework has about a call that waits; None if it has none."""
        return _CALL.get().framework_decision(pending)

    def __repr__(self) -> str:
        return f"<HandledTool {self.definition.name}>"


def guarded(run: ManualRun | None, convert: Callable[[], V], otherwise: V) -> V:
    """Return a framework's object as telemetry has it; if the conversion fails, return `otherwise`.

    Args:
        run: counts the failure; None for a run that is about to begin, so that the code around it counts.
        convert: converts the object.
        otherwise: what takes its place.
    """
    try:
        return convert()
    except Exception as error:
        counting = current_telemetry(None) if run is None else run
        counting.telemetry_failed(error, "a conversion of an integration")
        return otherwise
