"""The tools of one request."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple, Self

from traced_tools.core.enums import LOCAL
from traced_tools.core.tool_definition import ToolCallback, ToolDefinition, definition_digest, own_name_of
from traced_tools.core.tool_naming import wire_name
from traced_tools.errors import ToolDefinitionError
from traced_tools.tools.augmented_tool import AugmentedTool
from traced_tools.tools.callback import Invocable, as_invocable


class SourceNames(NamedTuple):
    """The names of the tools of a source.

    Attributes:
        offered: the names under which they are offered.
        own: the names by which the source itself knows them, if it has such names.
    """

    offered: frozenset[str]
    own: frozenset[str]


class ToolSet(tuple[ToolCallback, ...]):
    """The tools of a request with unique names, in order and by name.

    Copying returns the same object. Pickling produces an empty set, because tools refer to functions of this process.

    Raises:
        ToolDefinitionError: for two tools with the same name, or with names that are equal for providers.
    """

    by_name: dict[str, ToolCallback]
    definitions: tuple[ToolDefinition, ...]
    _invocables: dict[str, Invocable]

    def __new__(cls, tools: Iterable[ToolCallback] = ()) -> ToolSet:
        """Check the tools and index them by name."""
        self = super().__new__(cls, tools)
        try:
            self.definitions = tuple(tool.definition for tool in self)
        except AttributeError:
            raise TypeError("a ToolSet takes ToolCallback objects: create them with tool_callbacks(...)") from None
        self.by_name = {tool.definition.name: tool for tool in self}
        if len(self.by_name) < len(self):
            names = [definition.name for definition in self.definitions]
            repeated_names = sorted({name for name in names if names.count(name) > 1})
            duplicates = ", ".join(_name_and_sources(name, self) for name in repeated_names)
            raise ToolDefinitionError(f"each tool needs a unique name; given more than once: {duplicates}")
        _check_wire_names(self.by_name)
        self._invocables = {}
        return self

    def invocable(self, name: str) -> Invocable:
        """Return how the loop runs the tool with this name, without arguments that `augmented` has added."""
        invocable = self._invocables.get(name)
        if invocable is None:
            tool = self.by_name[name]
            invocable = self._invocables[name] = as_invocable(tool.own if isinstance(tool, AugmentedTool) else tool)
        return invocable

    @cached_property
    def names_by_source(self) -> Mapping[str, SourceNames]:
        """The names of the tools of each source."""
        return names_by_source(self)

    @cached_property
    def digests(self) -> Mapping[str, bytes]:
        """The SHA-256 of each tool's name, description and schema, by the tool's name."""
        return {definition.name: bytes.fromhex(definition_digest(definition)) for definition in self.definitions}

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256, in hex, of the definitions of the tools, in any order."""
        return hashlib.sha256(b"".join(sorted(self.digests.values()))).hexdigest()

    @cached_property
    def pin_changes(self) -> Mapping[str, Sequence[str]]:
        """What differs from the pinned tools, such as `search: description`, by the tools' source."""
        changes: dict[str, list[str]] = {}
        for tool in self:
            for change in tool.metadata.pin_changes:
                changes.setdefault(tool.metadata.source, []).append(f"{tool.definition.name}: {change}")
        return changes

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[type[ToolSet], tuple[()]]:
        return ToolSet, ()

    def __repr__(self) -> str:
        return f"ToolSet({', '.join(self.by_name)})"


def names_by_source(tools: Iterable[ToolCallback]) -> Mapping[str, SourceNames]:
    """Return the names of the tools of each source."""
    names: dict[str, tuple[list[str], list[str]]] = {}
    for tool in tools:
        offered, own = names.setdefault(tool.metadata.source, ([], []))
        offered.append(tool.definition.name)
        if (own_name := own_name_of(tool.metadata)) is not None:
            own.append(own_name)
    return {source: SourceNames(frozenset(offered), frozenset(own)) for source, (offered, own) in names.items()}


def _name_and_sources(name: str, tools: Iterable[ToolCallback]) -> str:
    """Return a name with the sources of its tools, unless all of them are local."""
    sources = [tool.metadata.source for tool in tools if tool.definition.name == name]
    return name if {*sources} == {LOCAL} else f"{name} ({' and '.join(sources)})"


def _check_wire_names(names: Iterable[str]) -> None:
    """Raise `ToolDefinitionError` for names that are sent to providers as the same name."""
    own_names: dict[str, str] = {}
    for name in names:
        first = own_names.setdefault(wire_name(name), name)
        if first != name:
            raise ToolDefinitionError(
                f"the tools {first!r} and {name!r} have the same name for providers, {wire_name(name)!r}: rename one"
            )


NO_TOOLS = ToolSet()
