"""What may stand in `tools=`, and the tools it stands for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

from traced_tools.core.checks import expect
from traced_tools.core.tool_definition import ToolCallback, ToolCallbackResolver
from traced_tools.errors import ToolDefinitionError, ToolNotFoundError
from traced_tools.flow.flow import call
from traced_tools.flow.steps import perform
from traced_tools.tools.callback import FunctionToolCallback, as_invocable
from traced_tools.tools.tool_options import ToolOptions, tool_methods_of
from traced_tools.tools.toolset import ToolSet

_LONGEST_NAME = 200


@runtime_checkable
class ToolCallbackProvider(Protocol):
    """Gives tools when a run begins; it is asked once per run."""

    def tool_callbacks(self) -> Any:
        """Return the tools: anything that may stand in `tools=`. A plain or an async method, which may wait."""


class ToolSelection:
    """The tools of a client or a request, as far as they are known before a run begins.

    Args:
        tools: functions, objects with `@tool` methods, `ToolCallback`s, `ToolCallbackProvider`s, names, nested at will.
        resolver: finds the tools that are given by name.

    Raises:
        ToolDefinitionError: for an object that holds no tool, and for tools whose names are not apart.
        ToolNotFoundError: for a name that the resolver does not know.
    """

    def __init__(self, tools: object, resolver: ToolCallbackResolver | None = None) -> None:
        self._resolver = resolver
        known = tools._items if isinstance(tools, ToolSelection) else tuple(_items((tools,), resolver))
        self._items: tuple[Any, ...] = known
        self._known = ToolSet(each for each in self._items if not _provides(each))
        self._is_complete = len(self._known) == len(self._items)

    async def tool_set(self) -> ToolSet:
        """Return the tools, as a flow: providers are asked now, each once."""
        if self._is_complete:
            return self._known
        tools: list[ToolCallback] = []
        for item in self._items:
            tools += (await _asked(item, self._resolver)) if _provides(item) else (item,)
        return ToolSet(tools)

    def __len__(self) -> int:
        return len(self._items)


async def _asked(provider: ToolCallbackProvider, resolver: ToolCallbackResolver | None) -> ToolSet:
    given = await perform(provider.tool_callbacks)
    return await ToolSelection(given, resolver).tool_set()


def tool_callbacks(*tools: Any) -> list[ToolCallback]:
    """Return the tools that `tools` stand for: functions, objects with `@tool` methods, callbacks, providers, nested.

    Raises:
        ToolDefinitionError: for an object that holds no tool, and for two tools of one name.
    """
    return list(call(ToolSelection(tools).tool_set()))


def _items(tools: Iterable[Any], resolver: ToolCallbackResolver | None) -> Iterable[Any]:
    """Return each tool and each provider, in order."""
    for item in tools:
        if isinstance(item, str):
            yield _named(item, resolver)
        elif isinstance(item, FunctionToolCallback):
            yield item
        elif isinstance(item, type | ModuleType):
            raise _no_tool(item)
        elif isinstance(item, ToolCallback | ToolCallbackProvider):
            if isinstance(item, ToolCallback):
                as_invocable(item)  # raises for one that cannot be called
            yield item
            yield from _methods(item)
        elif inspect.isroutine(item):
            yield FunctionToolCallback(item)
        elif found := _methods(item):
            yield from found
        elif isinstance(item, Iterator | Collection) and not isinstance(item, Mapping | bytes):
            yield from _items(item, resolver)
        elif callable(item):
            yield FunctionToolCallback(item)
        else:
            raise _no_tool(item)


def _provides(item: Any) -> bool:
    # the class first: Python takes its time to tell whether an object fits a protocol
    return not isinstance(item, FunctionToolCallback | ToolCallback) and isinstance(item, ToolCallbackProvider)


def _named(name: str, resolver: ToolCallbackResolver | None) -> ToolCallback:
    found = None if resolver is None else resolver.resolve(name)
    if found is None:
        if not name.isprintable() or len(name) > _LONGEST_NAME or " " in name.strip():
            raise ToolNotFoundError("tools= holds a text that is no tool's name: was a function called, not passed?")
        why = "there is no resolver=, which says where names are looked up" if resolver is None else "nobody knows it"
        raise ToolNotFoundError(f"tools= names {name!r}, which cannot be resolved: {why}")
    expect(f"what the resolver returns for {name!r}", found, ToolCallback, "a ToolCallback or None")
    if found.definition.name != name:
        raise ToolDefinitionError(
            f"the resolver returns for {name!r} a tool of another name, {found.definition.name!r}"
        )
    return found


def _methods(item: Any) -> list[FunctionToolCallback]:
    """Return the tools among the methods of an object."""
    return [_method(getattr(item, name), said) for name, said in tool_methods_of(type(item)).items()]


def _method(function: Callable[..., Any], said: ToolOptions) -> FunctionToolCallback:
    return FunctionToolCallback(
        function,
        name=said.name,
        description=said.description,
        input_schema=said.input_schema,
        metadata=said.metadata,
        result_converter=said.result_converter,
    )


def _no_tool(item: Any) -> ToolDefinitionError:
    name = item.__name__ if isinstance(item, type | ModuleType) else type(item).__name__
    return ToolDefinitionError(
        f"{name} holds no tool: pass a function, an object with methods marked @tool, or a ToolCallback or "
        f"ToolCallbackProvider{_hint(item)}"
    )


def _hint(item: Any) -> str:
    parts = [part for part in ("definition", "metadata", "call") if hasattr(item, part)]
    if isinstance(item, type):
        is_one = tool_methods_of(item) or hasattr(item, "call") or hasattr(item, "tool_callbacks")
        return "; this is the class, pass an instance of it" if is_one else ""
    missing = {"definition", "metadata", "call"} - {*parts}
    return f"; as a ToolCallback it lacks {', '.join(sorted(missing))}" if parts else ""
