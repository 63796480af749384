"""The tools of the server behind the gateway, as its lists describe them, compared with those that are pinned."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from mcp_types import Tool
from pydantic import ValidationError

from traced_tools.core.enums import MCP_TOOLS_CHANGED
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ConfigurationError, McpToolsChanged
from traced_tools.loop.advisor import TOOL_LOOP_ORDER
from traced_tools.mcp.pinning import PinFile
from traced_tools.mcp.proxy.forwarded_tool import ForwardedTool
from traced_tools.observe.names import OTHER
from traced_tools.observe.sanitize import safe_identifier
from traced_tools.tools.advice import ToolAdvice
from traced_tools.tools.invocation import CallNext, ToolInvocation
from traced_tools.tools.toolset import SourceNames, ToolSet, names_by_source

List = Callable[[], Awaitable[Sequence[Any]]]
"""Has the server list all of its tools, and returns their descriptions as they came."""
_LOG = logging.getLogger(__name__)


class ServerTools:
    """Learns the tools of a server from its lists, and compares them with the pinned ones.

    Args:
        server: the configured name of the server.
        pins: the file of pinned tools; None to pin none.

    Attributes:
        is_stale: whether the server may have other tools than those that are known.
        problem: how the tools differ from the pinned ones, or why that isn't known; None if calls may run.
    """

    def __init__(self, server: str, pins: PinFile | None) -> None:
        self._server = server
        self._pins = pins
        self._tools: dict[str, ForwardedTool] = {}
        self._sets: dict[str, ToolSet] = {}
        self._listing = asyncio.Lock()
        self._names: Mapping[str, SourceNames] | None = None
        self.is_stale = True
        self.problem: McpToolsChanged | ConfigurationError | None = None

    @property
    def is_pinned(self) -> bool:
        """Whether the tools are compared with a file."""
        return self._pins is not None

    @property
    def names(self) -> Mapping[str, SourceNames]:
        """The names of the tools by source, for advisors."""
        if self._names is None:
            self._names = names_by_source(self._tools.values())
        return self._names

    def schema_of(self, name: str) -> Mapping[str, Any] | None:
        """Return the schema of the arguments of a tool; None if the server has not listed it."""
        return self._tools[name].definition.input_schema if name in self._tools else None

    async def find(self, name: str, list_all: List) -> ToolSet | None:
        """Return a set of the tool with a name; None if the server lists no such tool.

        The server is asked if it was not before, if its tools may have changed, or if it has not listed the tool.
        """
        if self.is_stale or self.problem is not None or name not in self._tools:
            await self.refresh(list_all)
        if name not in self._tools:
            return None
        if name not in self._sets:
            # a set of its own, because two tools may have names that are the same for providers of models
            self._sets[name] = ToolSet([self._tools[name]])
        return self._sets[name]

    async def refresh(self, list_all: List) -> None:
        """Have the server list its tools."""
        async with self._listing:
            self.is_stale = False  # first: a change while the server lists them makes the list old
            self.learn(await list_all(), is_whole=True)

    def learn(self, descriptions: Iterable[Any], *, is_whole: bool) -> None:
        """Take over the tools of a list or of a page of one, and compare them with the pinned ones.

        Args:
            descriptions: the tools, as the server describes them.
            is_whole: whether these are all tools of the server.
        """
        tools, unreadable = _read(descriptions)
        changes = self._compare(tools, unreadable)
        learned = {tool.definition.name: tool for tool in self._forwarded(tools, changes)}
        if is_whole:
            self.is_stale = False
        self._tools = learned if is_whole else {**self._tools, **learned}
        self._sets, self._names = {}, None

    def _compare(self, tools: Sequence[Tool], unreadable: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
        if self._pins is None:
            return {}
        try:
            changes = dict(self._pins.check(self._server, tools))
            if unreadable:
                raise McpToolsChanged(self._server, self._pins.name, [f"{name}: unreadable" for name in unreadable])
        except (McpToolsChanged, ConfigurationError) as problem:
            if str(problem) != str(self.problem):
                _LOG.error("%s", problem)
            self.problem = problem
            return {}
        self.problem = None
        return changes

    def _forwarded(self, tools: Iterable[Tool], changes: Mapping[str, tuple[str, ...]]) -> Iterable[ForwardedTool]:
        for tool in tools:
            try:
                yield ForwardedTool(self._server, tool, changes.get(tool.name, ()))
            except ValueError:  # a name that no tool can have in this process
                continue


def _read(descriptions: Iterable[Any]) -> tuple[list[Tool], list[str]]:
    """Return the tools that can be read, and the names of the others, of which only the name is used."""
    tools: dict[str, Tool] = {}
    unreadable: list[str] = []
    for description in descriptions:
        name = description.get("name") if isinstance(description, dict) else None
        try:
            tool = Tool.model_validate(description, by_name=False)
        except ValidationError:
            unreadable.append(safe_identifier(name) if isinstance(name, str) else OTHER)
            if not isinstance(name, str):
                continue
            tool = Tool(name=name, input_schema={"type": "object"})
        tools.setdefault(tool.name, tool)
    return [*tools.values()], unreadable


class PinGuard(ToolAdvice):
    """Denies all calls while the server has other tools than the pinned ones.

    Args:
        tools: the tools of the server.
    """

    name = "pins"
    order = TOOL_LOOP_ORDER + 105  # inside the audit advisor, and around policies

    def __init__(self, tools: ServerTools) -> None:
        self._tools = tools

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Pass the call on, or deny it."""
        problem = self._tools.problem
        if problem is not None:
            return call.denied(f"{problem}.", code=MCP_TOOLS_CHANGED)
        return await call_next(call)
