"""Adds arguments to tools: the model states them, the application receives them, and the tool does not get them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel

from traced_tools.core.checks import expect, expect_callable
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.errors import ToolNotFoundError
from traced_tools.tools.augmented_tool import Augmentation, AugmentedArguments, AugmentedTool
from traced_tools.tools.schema.additional import AdditionalArguments
from traced_tools.tools.selection import ToolCallbackProvider, is_provider, tools_and_providers

M = TypeVar("M", bound=BaseModel)


def augmented(
    tools: object,
    *,
    arguments: type[M],
    on_arguments: Callable[[AugmentedArguments[M]], Any] | None = None,
    keep: bool = False,
) -> list[ToolCallback | ToolCallbackProvider]:
    """Return tools for which the model must also state additional arguments, such as its reason for the call.

    The additional arguments come first in the tool's schema. They are validated like any argument. The first field of
    type `str` is the reason of the call (`ToolInvocation.intent`); if there is none, all of them as JSON are.

    Args:
        tools: anything that `tools=` accepts, except names. Providers are called when a run begins.
        arguments: a pydantic model whose fields are the additional arguments.
        on_arguments: a blocking or async function that receives an `AugmentedArguments` once per call, right before
            the tool first starts. It is not called for a call that is refused or answered without the tool. If it
            raises an exception, the tool does not run, and the run fails with that exception.
        keep: whether the tool receives the additional arguments, too. Its input schema must allow additional
            properties.

    Raises:
        TypeError: for an invalid argument, or a model without fields.
        ToolDefinitionError: for an object without tools, for a tool that has an argument of the same name, and with
            `keep` for a tool that accepts no other arguments. For the tools of a provider, the run raises it.
        ToolNotFoundError: for a name of a tool.
    """
    expect_callable("on_arguments", on_arguments)
    expect("keep", keep, bool, "True or False")
    augmentation = Augmentation(AdditionalArguments(arguments), on_arguments, keep)
    return [_augment(item, augmentation) for item in tools_and_providers((tools,), _NoNames())]


def _augment(
    item: ToolCallback | ToolCallbackProvider, augmentation: Augmentation
) -> ToolCallback | ToolCallbackProvider:
    return _AugmentedProvider(item, augmentation) if is_provider(item) else AugmentedTool(item, augmentation)


class _NoNames:
    """A resolver that refuses every name."""

    def resolve(self, name: str) -> NoReturn:
        raise ToolNotFoundError("augmented() takes no names of tools: pass the tools, such as resolver.resolve(name)")


class _AugmentedProvider:
    """Augments the tools of a provider when a run begins."""

    def __init__(self, provider: ToolCallbackProvider, augmentation: Augmentation) -> None:
        self._provider = provider
        self._augmentation = augmentation
        self._known: dict[int, tuple[object, ToolCallback | ToolCallbackProvider]] = {}

    def tool_callbacks(self) -> Any:
        """Return the augmented tools of the provider, or an awaitable if its method is `async`."""
        tools = self._provider.tool_callbacks()
        return self._await_and_augment(tools) if hasattr(tools, "__await__") else self._augment(tools)

    async def _await_and_augment(self, tools: Any) -> list[ToolCallback | ToolCallbackProvider]:
        return self._augment(await tools)

    def _augment(self, tools: object) -> list[ToolCallback | ToolCallbackProvider]:
        # a provider usually returns the same tools for each run, whose schemas are then merged once
        items, previous = [*tools_and_providers((tools,), _NoNames())], self._known
        entries = {id(item): previous.get(id(item)) or (item, _augment(item, self._augmentation)) for item in items}
        self._known = entries  # it keeps the tools alive, so that no other object gets the id of one
        return [entries[id(item)][1] for item in items]

    def __repr__(self) -> str:
        return f"<augmented {self._provider!r}>"
