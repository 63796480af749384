"""Resolves the values of `tools=` into tools."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from operator import is_
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from typing_extensions import TypeIs

from traced_tools.core.checks import expect
from traced_tools.core.enums import LOCAL
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.tool_definition import ToolCallback, ToolCallbackResolver, ToolDefinition, reader_of
from traced_tools.errors import ToolDefinitionError, ToolNotFoundError
from traced_tools.flow.flow import call
from traced_tools.flow.steps import perform
from traced_tools.tools.augmented_tool import AugmentedTool
from traced_tools.tools.callback import FunctionToolCallback, as_invocable
from traced_tools.tools.schema.json_schema import schema_problem
from traced_tools.tools.tool_options import tool_methods_of
from traced_tools.tools.toolset import ToolSet

_MAX_NAME_LENGTH = 200


@runtime_checkable
class ToolCallbackProvider(Protocol):
    """Provides tools when a run begins; called once per run."""

    def tool_callbacks(self) -> Any:
        """Return the tools: anything that `tools=` accepts. A plain or an `async` method; it may block."""


class ToolSelection:
    """The tools and providers of a client or a request.

    Args:
        tools: functions, objects with `@tool` methods, `ToolCallback`s, `ToolCallbackProvider`s, names, and nested
            collections of these.
        resolver: finds the tools that are passed by name.

    Raises:
        ToolDefinitionError: for an object without tools, and for tools with equal names.
        ToolNotFoundError: for a name that the resolver cannot find.
    """

    def __init__(self, tools: object, resolver: ToolCallbackResolver | None = None) -> None:
        self._resolver = resolver
        items = tools._items if isinstance(tools, ToolSelection) else tuple(tools_and_providers((tools,), resolver))
        self._items: tuple[Any, ...] = items
        self._known = ToolSet(item for item in self._items if not is_provider(item))
        self._provided = self._known
        self._is_complete = len(self._known) == len(self._items)

    @property
    def providers(self) -> tuple[ToolCallbackProvider, ...]:
        """The providers, in order."""
        return tuple(item for item in self._items if is_provider(item))

    async def tool_set(self) -> ToolSet:
        """Return the tools, as a flow; it calls each provider once."""
        if self._is_complete:
            return self._known
        tools: list[ToolCallback] = []
        for item in self._items:
            tools += (await _provided_tools(item, self._resolver)) if is_provider(item) else (item,)
        provided = self._provided
        if len(tools) != len(provided) or not all(map(is_, tools, provided)):
            provided = self._provided = ToolSet(tools)
        return provided  # the same object for the same tools, because it keeps what was derived from them

    def __len__(self) -> int:
        return len(self._items)


async def _provided_tools(provider: ToolCallbackProvider, resolver: ToolCallbackResolver | None) -> ToolSet:
    tools = await perform(provider.tool_callbacks)
    return await ToolSelection(tools, resolver).tool_set()


def tool_callbacks(*tools: Any) -> list[ToolCallback]:
    """Return the tools of functions, objects with `@tool` methods, callbacks and providers, which may be nested.

    Raises:
        ToolDefinitionError: for an object without tools, and for two tools with the same name.
    """
    return list(call(ToolSelection(tools).tool_set()))


def tools_and_providers(tools: Iterable[Any], resolver: ToolCallbackResolver | None) -> Iterator[Any]:
    """Yield the tools and providers among `tools`, in order; `resolver` finds the tools that are passed by name."""
    for item in tools:
        if isinstance(item, str):
            yield _resolve(item, resolver)
        elif isinstance(item, FunctionToolCallback | AugmentedTool):
            yield item
        elif isinstance(item, type | ModuleType):
            raise _no_tool(item)
        elif isinstance(item, ToolCallback | ToolCallbackProvider):
            if isinstance(item, ToolCallback):
                as_invocable(item)  # raises if it cannot be called
                _check_schema(item)
            yield item
            yield from _methods(item)
        elif inspect.isroutine(item):
            yield FunctionToolCallback(item)
        elif methods := _methods(item):
            yield from methods
        elif isinstance(item, Iterator | Collection) and not isinstance(item, Mapping | bytes):
            yield from tools_and_providers(item, resolver)
        elif callable(item):
            yield FunctionToolCallback(item)
        else:
            raise _no_tool(item)


def _check_schema(tool: ToolCallback) -> None:
    """Raise `ToolDefinitionError` for an invalid schema of a tool that a developer wrote.

    Tools of other sources, such as MCP servers, are checked where they are listed.
    """
    definition = tool.definition
    if tool.metadata.source == LOCAL and (problem := _schema_problem(definition)) is not None:
        raise ToolDefinitionError(f"the input_schema of the tool {definition.name} cannot be used: {problem}")


_schema_problem: IdentityCache[ToolDefinition, str | None] = IdentityCache(
    lambda definition: None if reader_of(definition) is not None else schema_problem(definition.input_schema)
)


def is_provider(item: ToolCallback | ToolCallbackProvider) -> TypeIs[ToolCallbackProvider]:
    """Return whether an item of `tools_and_providers` is a provider, and not a tool."""
    # the class first: checking an object against a protocol is slow
    is_tool = isinstance(item, FunctionToolCallback | AugmentedTool | ToolCallback)
    return not is_tool and isinstance(item, ToolCallbackProvider)


def _resolve(name: str, resolver: ToolCallbackResolver | None) -> ToolCallback:
    tool = None if resolver is None else resolver.resolve(name)
    if tool is None:
        if not name.isprintable() or len(name) > _MAX_NAME_LENGTH or " " in name.strip():
            raise ToolNotFoundError("tools= contains a text that is not a tool's name; pass a function, not its result")
        reason = "pass resolver= to look up names" if resolver is None else "the resolver does not find it"
        raise ToolNotFoundError(f"tools= contains the name {name!r}, which cannot be resolved: {reason}")
    expect(f"what the resolver returns for {name!r}", tool, ToolCallback, "a ToolCallback or None")
    if tool.definition.name != name:
        raise ToolDefinitionError(
            f"the resolver returns a tool with another name for {name!r}: {tool.definition.name!r}"
        )
    return tool


def _methods(item: Any) -> list[FunctionToolCallback]:
    """Return the tools among the methods of an object."""
    return [
        FunctionToolCallback(
            getattr(item, name),
            name=options.name,
            description=options.description,
            input_schema=options.input_schema,
            metadata=options.metadata,
            result_converter=options.result_converter,
        )
        for name, options in tool_methods_of(type(item)).items()
    ]


def _no_tool(item: Any) -> ToolDefinitionError:
    name = item.__name__ if isinstance(item, type | ModuleType) else type(item).__name__
    return ToolDefinitionError(
        f"{name} is not a tool: pass a function, an object with methods marked @tool, or a ToolCallback or "
        f"ToolCallbackProvider{_hint(item)}"
    )


def _hint(item: Any) -> str:
    parts = [part for part in ("definition", "metadata", "call") if hasattr(item, part)]
    if isinstance(item, type):
        is_tool_class = tool_methods_of(item) or hasattr(item, "call") or hasattr(item, "tool_callbacks")
        return "; this is a class, pass an instance of it" if is_tool_class else ""
    missing = {"definition", "metadata", "call"} - {*parts}
    return f"; to be a ToolCallback, it needs {', '.join(sorted(missing))}" if parts else ""
