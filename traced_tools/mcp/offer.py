"""The connections of an open toolset to its servers, and the tools that it offers over them.

Each connection works on one event loop. An event loop that has entered an `async with` block has connections of its
own, whose calls don't leave the loop. All other code shares the connections in the background: blocking runs, and runs
on other event loops. So code that blocks an event loop never waits for a connection of that loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from traced_tools.core.checks import expect
from traced_tools.core.fork import on_fork
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.core.tool_input import INPUT_METHODS
from traced_tools.errors import McpUnavailable, ToolDefinitionError
from traced_tools.flow.workers import finished_future, in_thread, join_portal
from traced_tools.mcp.answering import Answering
from traced_tools.mcp.connection import Connection
from traced_tools.mcp.naming import McpToolNames
from traced_tools.mcp.pinning import PinFile
from traced_tools.mcp.scopes import count_omitted_tools
from traced_tools.mcp.tool import make_tool
from traced_tools.mcp.transports import Transport
from traced_tools.observe.run_telemetry import current_telemetry

if TYPE_CHECKING:
    from mcp_types import CallToolResult, InputRequiredResult, Tool

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_QUESTIONS = tuple(f"{method.partition('/')[0]}/" for method in INPUT_METHODS)

Filter = Callable[[str, "Tool"], bool]
"""Takes the name of a server and a tool, as the server describes it, and returns whether the tool is offered."""


@dataclass(frozen=True, eq=False)
class OfferedServer:
    """One server of a toolset, and which of its tools are offered, and how."""

    transport: Transport
    chooses: Filter | None
    prefix: bool
    pins: PinFile | None
    context_keys: tuple[str, ...]
    idempotent: frozenset[str]
    answering: Answering
    timeout: float | None
    max_tools: int
    required: bool

    @property
    def name(self) -> str:
        """The configured name of the server."""
        return self.transport.endpoint.name

    def offers(self, tool: Tool) -> bool:
        """Return whether the application offers a tool of the server."""
        is_offered = self.chooses is None or self.chooses(self.name, tool)
        expect("what filter returns", is_offered, bool, "True or False")
        return is_offered


class Offers:
    """What a toolset offers from the beginning of its first block to the end of its last one.

    Args:
        servers: the servers of the toolset.
    """

    def __init__(self, servers: Sequence[OfferedServer]) -> None:
        self._servers = servers
        self._background = Offer(servers, self.call, None)
        self._of_loops: dict[asyncio.AbstractEventLoop, Offer] = {}
        on_fork(self._leave_loops)

    @property
    def is_open(self) -> bool:
        """Whether a block is open."""
        return bool(self._background.uses or self._of_loops)

    def here(self) -> Offer:
        """Return the offer for code on the running event loop."""
        return self._of_loops.get(asyncio.get_running_loop(), self._background)

    def all(self) -> list[Offer]:
        """Return the offer in the background, and those of event loops."""
        return [self._background, *self._of_loops.values()]

    async def call(self, server: OfferedServer, request: Any, **options: Any) -> CallToolResult | InputRequiredResult:
        """Call a tool of a server over the connection for the running event loop; see `Connection.call`."""
        offer = self.here()
        return await offer.run(partial(offer.call, server, request, **options))

    def enter(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Begin a block.

        Args:
            loop: the event loop of an `async with` block; None for a `with` block. If a `with` block is open, the
                event loop shares the connections in the background.
        """
        offer = self._background if loop is None else self._of_loops.get(loop, self._background)
        if loop is not None and not offer.uses:
            self._of_loops[loop] = offer = Offer(self._servers, self.call, loop)
        offer.uses += 1

    def leave(self, loop: asyncio.AbstractEventLoop | None) -> list[Offer]:
        """End a block, and return the offers that no open block uses any more."""
        offer = self._background if loop is None else self._of_loops.get(loop, self._background)
        if not offer.uses:  # the block was entered on another event loop
            offer = next(iter(self._of_loops.values()))
        offer.uses -= 1
        ended = []
        if not offer.uses and offer.loop is not None:
            del self._of_loops[offer.loop]
            ended.append(offer)
        return ended if self.is_open else [*ended, self._background]

    def _leave_loops(self) -> None:
        """In a forked child: leave the connections of event loops to the parent, where these loops run."""
        self._of_parent, self._of_loops = self._of_loops, {}
        self._background.uses += sum(offer.uses for offer in self._of_parent.values())


class Offer:
    """The connections of a toolset on one event loop, and the tools that it offers over them.

    Args:
        servers: the servers of the toolset.
        call: calls a tool of a server, for the code that runs the tool; see `Offers.call`.
        loop: the event loop; None for the one in the background.

    Attributes:
        uses: how many open blocks use the connections.
    """

    def __init__(
        self,
        servers: Sequence[OfferedServer],
        call: Callable[..., Awaitable[Any]],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.loop = loop
        self.uses = 0
        self._servers = servers
        self._call = call
        self._connections: dict[str, Connection] = {}
        self._is_closed = False
        self._tools: tuple[list[tuple[Tool, ...] | None], list[ToolCallback]] | None = None

    async def run(self, begin: Callable[[], Awaitable[T]]) -> T:
        """Await `begin()`, which uses the connections, on their event loop: the running one, or the background."""
        return await (begin() if self.loop is not None else join_portal(begin))

    async def call(self, server: OfferedServer, request: Any, **options: Any) -> Any:
        """Call a tool of a server; see `Connection.call`."""
        return await self.connection(server).call(request, **options)

    def connection(self, server: OfferedServer) -> Connection:
        """Return the connection to a server; raise `McpUnavailable` if the blocks that use it have ended."""
        if self._is_closed:
            raise McpUnavailable(server.name, "is not connected: its toolset is closed")
        if server.name not in self._connections:
            self._connections[server.name] = Connection(
                server.transport,
                server.answering,
                server.timeout,
                max_tools=server.max_tools,
                required=server.required,
            )
        return self._connections[server.name]

    def forget_tools(self) -> None:
        """Have the tools listed again when they are next needed."""
        for connection in self._connections.values():
            connection.forget_tools()

    async def tools(self) -> list[ToolCallback]:
        """Return the tools, by server and then in the order in which the server lists them."""
        tools_by_server = await self._list_tools()
        if self._tools is None or self._tools[0] != tools_by_server:
            # In a thread, because servers may have thousands of tools.
            callbacks = await in_thread(partial(self._make_callbacks, tools_by_server))
            self._tools = (tools_by_server, callbacks)
        return self._tools[1]

    async def check(self, server: OfferedServer) -> None:
        """List the tools of a server, even if they are known, and compare them with those that are pinned."""
        tools = await self.connection(server).listed_now()
        if server.pins is not None:
            server.pins.check(server.name, [tool for tool in tools if server.offers(tool)])

    async def _list_tools(self) -> list[tuple[Tool, ...] | None]:
        """Return the tools of each server, None for one that is missing, and list those of several servers at once."""
        connections = [self.connection(server) for server in self._servers]
        if all(connection.knows_tools for connection in connections):
            return [await connection.tools() for connection in connections]
        results = await asyncio.gather(*(connection.tools() for connection in connections), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for other in failures[1:]:
            _LOG.warning("%s", other)
            failures[0].add_note(f"also: {other}")
        if failures:
            raise failures[0]
        return [result for result in results if not isinstance(result, BaseException)]

    def _make_callbacks(self, tools_by_server: Sequence[tuple[Tool, ...] | None]) -> list[ToolCallback]:
        unprefixed = next((server.name for server in self._servers[:1] if not server.prefix), None)
        names = McpToolNames((server.name for server in self._servers), unprefixed)
        offered: dict[str, ToolCallback] = {}
        for server, tools in zip(self._servers, tools_by_server, strict=True):
            if tools is None:  # which pins nothing
                continue
            selected = [tool for tool in tools if server.offers(tool)]
            changes = {} if server.pins is None else server.pins.check(server.name, selected)
            for tool in selected:
                name = names.offered(server.name, tool.name)
                callback = self._make_callback(server, tool, name, changes.get(tool.name, ()), is_taken=name in offered)
                if callback is not None:
                    offered[name] = callback
        return [*offered.values()]

    def _make_callback(
        self, server: OfferedServer, tool: Tool, name: str, pin_changes: tuple[str, ...], *, is_taken: bool
    ) -> ToolCallback | None:
        """Return a tool for the loop; None if it cannot be offered, which the log says."""
        if tool.name.startswith(_QUESTIONS):  # a rule that allows the questions of a server must not allow a tool
            problem = "it has the name of a question of servers"
        elif is_taken:  # the server has found a name with the same hash
            problem = "another tool of the server has its name"
        else:
            try:
                return make_tool(
                    partial(self._call, server),
                    server.name,
                    server.answering,
                    tool,
                    name,
                    timeout=server.timeout,
                    context_keys=server.context_keys,
                    idempotent=server.idempotent,
                    pin_changes=pin_changes,
                )
            except ToolDefinitionError:
                problem = "it has no valid schema"
        _LOG.warning("the tool %s of the MCP server %s cannot be offered: %s", name, server.name, problem)
        count_omitted_tools(current_telemetry(None), server.name, "invalid", 1)
        return None

    def close(self) -> list[asyncio.Task[Any]]:
        """Begin to close the connections, and return the task that closes them, if the running event loop has one.

        The connections of another event loop are closed there, without a task to wait for.
        """
        self._is_closed = True
        if not self._connections:
            return []
        if self.loop in (None, asyncio.get_running_loop()):
            return [self._begin_to_close()]
        with suppress(RuntimeError):  # the loop is closed, and has cancelled the sessions
            self.loop.call_soon_threadsafe(self._begin_to_close)
        return []

    def _begin_to_close(self) -> asyncio.Task[Any]:
        self._closing = asyncio.create_task(finished_future(partial(self.run, self._close_connections)))
        return self._closing

    async def _close_connections(self) -> None:
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))
