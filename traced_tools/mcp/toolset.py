"""The tools of one or more MCP servers."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
from collections.abc import Collection, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, get_args

from traced_tools.core.checks import expect, expect_callable, expect_each, expect_positive, expect_whole
from traced_tools.core.enums import LOCAL
from traced_tools.core.part_check import PartCheck
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.errors import ConfigurationError, NeedsEventLoop
from traced_tools.flow.steps import perform
from traced_tools.flow.workers import is_on_portal, run_async
from traced_tools.models.base import ChatModel

try:
    import httpx2

    from traced_tools.mcp.answering import Answering, Elicit, Roots
    from traced_tools.mcp.answering import Sampling as Sampling
    from traced_tools.mcp.connection import MAX_TOOLS
    from traced_tools.mcp.offer import Filter, OfferedServer, Offers
    from traced_tools.mcp.pinning import PinFile
    from traced_tools.mcp.transports import Era, Headers, StdioTransport, StreamableHttpTransport, Transport
except ModuleNotFoundError as missing:
    if missing.name is None or missing.name.partition(".")[0] not in ("mcp", "mcp_types", "httpx2"):
        raise
    raise ConfigurationError("McpToolset needs an extra: pip install 'traced_tools[mcp]'") from None

if TYPE_CHECKING:
    from traced_tools.mcp.pinning import OnChange

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
_RESERVED_KEYS = ("progressToken", "traceparent", "tracestate", "baggage")


class McpToolset:
    """The tools of MCP servers, for `tools=`.

        with McpToolset.stdio("mcp-server-time", name="time") as toolset:
            client.prompt("What time is it in Oslo?", tools=[toolset]).call()

    A toolset is used in a `with` or an `async with` block, and connects to its servers when their tools are first
    needed. After the block, no process and no connection is left. In an `async with` block, runs on its event loop have
    connections of their own, whose calls don't leave the loop. Blocking runs, and runs on other event loops, share
    connections in the background thread of `traced_tools`. While a `with` block is open, all runs share these.

    `McpToolset(files, search)` has the tools of several toolsets. The tools of the first server keep their names, and
    the names of the other tools begin with the names of their servers. So no server changes a name of another one.

    Args:
        toolsets: the toolsets, of different servers.

    Raises:
        ConfigurationError: if two servers have the same name.
    """

    _servers: tuple[OfferedServer, ...]

    def __init__(self, *toolsets: McpToolset) -> None:
        expect_each("toolsets", toolsets, McpToolset, "a McpToolset")
        self._servers = tuple(server for toolset in toolsets for server in toolset._servers)
        names = [server.name for server in self._servers]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ConfigurationError(
                f"each MCP server needs a name of its own; given more than once: {', '.join(twice)}"
            )
        self._offers = Offers(self._servers)

    @classmethod
    def stdio(
        cls,
        command: str,
        *args: str,
        name: str,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        filter: Filter | None = None,
        prefix: bool = False,
        pin: str | os.PathLike[str] | None = None,
        on_change: OnChange = "error",
        context_keys: Collection[str] = (),
        idempotent: Collection[str] = (),
        elicit: Elicit | None = None,
        sample: ChatModel | Sampling | None = None,
        roots: Roots | None = None,
        era: Era = "auto",
        timeout: float | None = 60.0,
        max_tools: int = MAX_TOOLS,
        required: bool = True,
    ) -> Self:
        """Return the tools of a server that is a program; it runs from the first use until the end of the block.

        Args:
            command: the program.
            args: its arguments.
            name: the name of the server in spans, in the audit trail, and before names of tools: up to 32 letters,
                digits, `_` and `-`.
            env: further variables of its environment. It inherits `PATH`, `HOME`, `USER`, `LOGNAME`, `SHELL` and
                `TERM` alone.
            cwd: its working directory; by default that of this process.
            filter: takes the name of the server and a tool as the server describes it (`mcp_types.Tool`), and returns
                whether the tool is offered; by default all are.
            prefix: whether the names of all tools begin with the name of the server, also if it is the only or the
                first one of its toolset.
            pin: a file of the digests of descriptions, schemas and hints. It is written when the server is first seen.
                Later, the tools are compared with it when a run begins.
            on_change: what follows if a tool is new or has changed: `error` raises `McpToolsChanged`; `warn` logs it
                once and offers the tool, and the records of its calls in the audit trail have what differs.
            context_keys: the keys of `tool_context=` that the server gets, in `_meta`. It gets nothing else of it.
            idempotent: the server's names of tools that may be called again if the connection was lost during a call,
                beside those whose hints say that they only read or are idempotent.
            elicit: asks a user what the server wants to know during a call. It takes a message and a JSON Schema, and
                returns what the user has entered, None if the user declines, or `Undecided()` if nobody can answer now.
            sample: the model that answers when the server wants to ask one; a `Sampling` has other limits.
            roots: returns the folders that the server may work in, as paths or `file://` URLs.
            era: `auto` asks the server what it speaks. `handshake` speaks the revisions before 2026-07-28, for a server
                that supports newer ones but whose tools do not, such as those that ask users while a call waits.
            timeout: the seconds that a call, connecting, or listing the tools may take, with the time for answers to
                the server; None for no limit.
            max_tools: how many tools of the server are offered at most, before `filter=` chooses. The log names the
                server if it lists more.
            required: whether a run fails if the tools of the server can't be listed. With False, it goes on without
                them, and the server is tried again in the background.

        Raises:
            ConfigurationError: if `name` is invalid, or a context key has a meaning in the protocol.
        """
        expect("command", command, str, "a str")
        expect_each("args", args, str, "a str")
        expect("cwd", cwd, (str, os.PathLike, type(None)), "a path or None")
        _check_texts("env", env)
        transport = StdioTransport(_checked_name(name), command, args, env, cwd, _checked_era(era))
        answering = Answering(name, elicit, Sampling(sample) if isinstance(sample, ChatModel) else sample, roots)
        return cls._with_server(
            transport, filter, prefix, pin, on_change, context_keys, idempotent, answering, timeout, max_tools, required
        )

    @classmethod
    def http(
        cls,
        url: str,
        *,
        name: str,
        headers: Headers | None = None,
        auth: httpx2.Auth | None = None,
        filter: Filter | None = None,
        prefix: bool = False,
        pin: str | os.PathLike[str] | None = None,
        on_change: OnChange = "error",
        context_keys: Collection[str] = (),
        idempotent: Collection[str] = (),
        elicit: Elicit | None = None,
        sample: ChatModel | Sampling | None = None,
        roots: Roots | None = None,
        era: Era = "auto",
        timeout: float | None = 60.0,
        max_tools: int = MAX_TOOLS,
        required: bool = True,
    ) -> Self:
        """Return the tools of a server at the URL of its streamable HTTP endpoint.

        Args:
            url: the URL, such as `http://127.0.0.1:8000/mcp`.
            name: the name of the server; see `stdio`, also for the arguments after `auth`.
            headers: headers of each request, such as `{"Authorization": f"Bearer {token}"}`, or a function that
                returns them and is called for each request, such as one that renews a token. A plain function runs in
                a thread, an async one on the event loop of the connection.
            auth: authenticates each request: an `httpx2.Auth`, such as an `OAuthClientProvider` of the MCP SDK.
            filter: chooses tools.
            prefix: whether the names of all tools begin with the name of the server, also if it is the only or the
                first one of its toolset.
            pin: a file of digests.
            on_change: what follows if a tool is new or has changed.
            context_keys: the keys of `tool_context=` that the server gets.
            idempotent: the server's names of tools that may be called again.
            elicit: asks a user.
            sample: the model that the server may ask.
            roots: returns folders.
            era: how to speak with the server.
            timeout: the seconds that a call may take.
            max_tools: how many tools are offered at most.
            required: whether a run fails if the tools can't be listed.

        Raises:
            ConfigurationError: if `url` is no URL of HTTP, or a header has characters that no header has, and as
                `stdio` does.
        """
        expect("url", url, str, "a str")
        expect("auth", auth, (httpx2.Auth, type(None)), "an httpx2.Auth or None")
        transport = StreamableHttpTransport(_checked_name(name), url, headers, _checked_era(era), auth)
        answering = Answering(name, elicit, Sampling(sample) if isinstance(sample, ChatModel) else sample, roots)
        return cls._with_server(
            transport, filter, prefix, pin, on_change, context_keys, idempotent, answering, timeout, max_tools, required
        )

    @classmethod
    def _with_server(
        cls,
        transport: Transport,
        chooses: Filter | None,
        prefix: bool,
        pin: str | os.PathLike[str] | None,
        on_change: OnChange,
        context_keys: Collection[str],
        idempotent: Collection[str],
        answering: Answering,
        timeout: float | None,
        max_tools: int,
        required: bool,
    ) -> Self:
        expect_callable("filter", chooses)
        if inspect.iscoroutinefunction(chooses):
            raise TypeError("filter must be a plain function: drop `async`")
        expect("prefix", prefix, bool, "True or False")
        expect_positive("timeout", timeout)
        expect_whole("max_tools", max_tools, 1)
        expect("required", required, bool, "True or False")
        for what, names in (("context_keys", context_keys), ("idempotent", idempotent)):
            if isinstance(names, str):
                raise TypeError(f"{what} must be a collection of str, not one str: pass [text]")
            expect_each(what, names, str, "a str")
        if reserved := [key for key in context_keys if key in _RESERVED_KEYS or "/" in key]:
            keys = ", ".join(reserved)
            raise ConfigurationError(f"context_keys contains {keys}, which has a meaning in the protocol")
        pins = None if pin is None else PinFile(pin, on_change)
        toolset = cls()
        server = OfferedServer(
            transport,
            chooses,
            prefix,
            pins,
            tuple(context_keys),
            frozenset(idempotent),
            answering,
            timeout,
            max_tools,
            required,
        )
        toolset._servers = (server,)
        toolset._offers = Offers(toolset._servers)
        return toolset

    async def tool_callbacks(self) -> list[ToolCallback]:
        """Return the tools, by server and then in the order in which the server lists them.

        Raises:
            ConfigurationError: outside of a `with` block.
            McpError: if a server can't be reached, or has other tools than those that are pinned.
        """
        self._check_open()
        offer = self._offers.here()
        return await offer.run(offer.tools)

    def _check_open(self) -> None:
        if not self._offers.is_open:
            names = ", ".join(server.name for server in self._servers)
            raise ConfigurationError(f"the MCP toolset ({names}) is not open: use it in a `with` or `async with` block")

    def checks(self) -> Iterable[PartCheck]:
        """Return a check of each server, whether it lists its tools, and those that are pinned."""
        for server in self._servers:
            yield PartCheck(f"mcp: {server.name}", partial(perform, self._check, server))

    async def _check(self, server: OfferedServer) -> None:
        self._check_open()
        offer = self._offers.here()
        await offer.run(partial(offer.check, server))

    def refresh(self) -> None:
        """Have the next run list the tools again, for a server that adds or changes tools and does not report it."""
        for offer in self._offers.all():
            offer.forget_tools()

    def __enter__(self) -> Self:
        if is_on_portal():
            raise NeedsEventLoop(
                "an async tool of a blocking run blocks the event loop that the toolset needs: "
                "write `async with` in the tool, instead of `with`"
            )
        self._offers.enter(None)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        run_async(partial(self._leave, None))

    async def __aenter__(self) -> Self:
        self._offers.enter(_own_loop())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._leave(_own_loop())

    async def _leave(self, loop: asyncio.AbstractEventLoop | None) -> None:
        offers = self._offers
        closing = [task for offer in offers.leave(loop) for task in offer.close()]
        if not offers.is_open:
            self._offers = Offers(self._servers)  # the tools of the last block stay closed
        if closing:
            await asyncio.wait(closing)  # which go on if the end of the block is cancelled

    def __repr__(self) -> str:
        return f"<McpToolset {', '.join(server.name for server in self._servers)}>"


def _own_loop() -> asyncio.AbstractEventLoop | None:
    """Return the running event loop; None for the one in the background."""
    return None if is_on_portal() else asyncio.get_running_loop()


def _checked_name(name: str) -> str:
    expect("name", name, str, "a str")
    if not _NAME.fullmatch(name) or name == LOCAL:
        raise ConfigurationError(
            f"the name of an MCP server must have 1 to 32 letters, digits, _ and -, begin with a letter or digit, and "
            f"not be {LOCAL!r}"
        )
    return name


def _checked_era(era: Era) -> Era:
    if era not in get_args(Era):
        raise ValueError(f"era must be one of {', '.join(get_args(Era))}")
    return era


def _check_texts(what: str, texts: Mapping[str, str] | None) -> None:
    expect(what, texts, (Mapping, type(None)), "a mapping of str to str, or None")
    if texts is not None:
        expect_each(what, [*texts, *texts.values()], str, "a str")
