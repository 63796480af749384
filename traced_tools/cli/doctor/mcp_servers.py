"""The checks of MCP servers: what they speak and offer."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from traced_tools.cli.doctor.result import Check, Result, State, plain_url
from traced_tools.errors import ConfigurationError, McpError
from traced_tools.flow.workers import run_async

if TYPE_CHECKING:
    from traced_tools.mcp.transports import Transport

GROUP: Final = "mcp"
_NAME: Final = "checked"
_SHOWN_TOOLS: Final = 20
_OPTION: Final = re.compile(r"-\w|--[a-z][a-z-]*")


def mcp_checks(servers: Sequence[str], headers: Mapping[str, str], timeout: float) -> Iterator[Check]:
    """Yield the checks of servers, by their URLs or commands.

    Args:
        servers: the URLs and commands.
        headers: the headers for the servers at URLs.
        timeout: seconds.

    Raises:
        ConfigurationError: for a server that is neither, or if the extra is not installed.
    """
    for server in servers:
        is_url = server.startswith(("http://", "https://"))
        subject = plain_url(server) if is_url else _shown_command(_split(server))
        transport = _transport(server, headers)
        yield Check(GROUP, subject, partial(_describe, subject, transport, timeout))


def _transport(server: str, headers: Mapping[str, str]) -> Transport:
    try:
        from traced_tools.mcp.transports import StdioTransport, StreamableHttpTransport
    except ModuleNotFoundError:
        raise ConfigurationError("MCP servers need an extra: pip install 'traced_tools[mcp]'") from None
    if server.startswith(("http://", "https://")):
        return StreamableHttpTransport(_NAME, server, headers)
    program, *arguments = _split(server)
    return StdioTransport(_NAME, program, arguments, None, None)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"a command of an MCP server can't be split into words: {error}") from None
    if not words:
        raise ConfigurationError("--mcp needs the URL of an MCP server or the command that starts it")
    return words


def _shown_command(words: Sequence[str]) -> str:
    """Return the program of a command and the names of its options. Any other word may be a key, so none is shown."""
    program, *others = words
    return shlex.join([program, *(word if _OPTION.fullmatch(word) else "..." for word in others)])


def _describe(subject: str, transport: Transport, timeout: float) -> Iterator[Result]:
    """Ask a server, and end the connection."""
    from traced_tools.mcp.answering import Answering
    from traced_tools.mcp.connection import Connection

    connection = Connection(transport, Answering(_NAME, None, None, None), timeout)
    try:
        answer = run_async(connection.described)
    except McpError as error:
        problem = str(error).removeprefix(f"the MCP server {_NAME!r} ")
        yield Result(GROUP, subject, State.PROBLEM, problem, "start the server, or correct --mcp and --header")
        return
    finally:
        run_async(connection.close)
    era = "by handshake, an older revision" if answer.has_handshake else "without handshake"
    more = "" if len(answer.tools) <= _SHOWN_TOOLS else ", …"
    lines = (
        f"revision  {answer.revision} ({era})",
        f"software  {answer.software or 'unknown'}",
        f"tools     {len(answer.tools)}: {', '.join(answer.tools[:_SHOWN_TOOLS])}{more}",
    )
    details = {
        "revision": answer.revision,
        "handshake": answer.has_handshake,
        "software": answer.software,
        "tools": list(answer.tools),
    }
    yield Result(GROUP, subject, State.OK, "\n".join(lines), details=details)
