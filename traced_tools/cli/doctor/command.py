"""`traced-tools doctor` says whether the fast path takes part, and what the servers that agents use speak.

Exit status: 0 if each server answers, 1 if one does not, 2 if the check itself fails.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from traced_tools.cli.audit import options
from traced_tools.cli.audit.formatting import as_text, json_text, make_console
from traced_tools.cli.exits import NEGATIVE, exit_statuses
from traced_tools.errors import ConfigurationError, McpError
from traced_tools.fast_path.known_sdk import RELEASE, is_known_version, unknown_release
from traced_tools.flow.workers import run_async

if TYPE_CHECKING:
    from traced_tools.mcp.connection import ServerDescription

_COMMAND: Final = "doctor"
_NAME: Final = "checked"
_SECONDS: Final = 30.0
_SHOWN_TOOLS: Final = 20


app = typer.Typer(add_completion=False)


@app.command()
def doctor(
    mcp: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL_OR_COMMAND", help="An MCP server to check: its URL, or the command that starts it. Repeatable."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VARIABLE",
            help="A header for the servers at URLs, and the environment variable with its value, such as "
            "Authorization=MCP_AUTHORIZATION. Repeatable.",
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Check whether the fast path knows the OpenTelemetry SDK, and what MCP servers speak and offer.

    Without the fast path, telemetry takes more processor time. With --json, only the servers are printed.

    Exit with status 1 if a server can't be used. A command is split like in a shell, and runs until the server has
    answered. It inherits few variables of the environment.
    """
    with exit_statuses(_COMMAND) as command:
        headers = dict(map(_header, header or ()))
        answers = [(server, _check_server(server, headers)) for server in mcp or ()]
        command.status = NEGATIVE if any(isinstance(answer, McpError) for _, answer in answers) else 0
        if json:
            print(json_text([_json(server, answer) for server, answer in answers]))
        else:
            _print(answers)
            _print_sdk()


def _header(option: str) -> tuple[str, str]:
    """Return a header; its value is in the environment, because everyone on the machine can read the command line."""
    name, _, variable = option.partition("=")
    if not name or not variable:
        raise ConfigurationError("--header must be NAME=VARIABLE, such as Authorization=MCP_AUTHORIZATION")
    if variable not in os.environ:
        raise ConfigurationError(f"--header {name!a}: there is no such environment variable; pass its name, no value")
    return name, os.environ[variable]


def _check_server(server: str, headers: Mapping[str, str]) -> ServerDescription | McpError:
    """Ask a server, and end the connection."""
    try:
        from traced_tools.mcp.answering import Answering
        from traced_tools.mcp.connection import Connection
        from traced_tools.mcp.transports import StdioTransport, StreamableHttpTransport, Transport
    except ModuleNotFoundError:
        raise ConfigurationError("MCP servers need an extra: pip install 'traced_tools[mcp]'") from None
    transport: Transport
    if server.startswith(("http://", "https://")):
        transport = StreamableHttpTransport(_NAME, server, headers)
    else:
        program, *arguments = _split(server)
        transport = StdioTransport(_NAME, program, arguments, None, None)
    connection = Connection(transport, Answering(_NAME, None, None, None), _SECONDS)
    try:
        return run_async(connection.described)
    except McpError as error:
        return error
    finally:
        run_async(connection.close)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigurationError(f"a command of an MCP server can't be split into words: {error}") from None
    if not words:
        raise ConfigurationError("--mcp needs the URL of an MCP server or the command that starts it")
    return words


def _problem(error: McpError) -> str:
    return str(error).removeprefix(f"the MCP server {_NAME!r} ")


def _json(server: str, answer: ServerDescription | McpError) -> dict[str, Any]:
    if isinstance(answer, McpError):
        return {"server": server, "problem": _problem(answer)}
    return {
        "server": server,
        "revision": answer.revision,
        "handshake": answer.has_handshake,
        "software": answer.software,
        "tools": list(answer.tools),
    }


def _print(answers: Sequence[tuple[str, ServerDescription | McpError]]) -> None:
    console = make_console(sys.stdout)
    for server, answer in answers:
        console.print(as_text(server, "bold"))
        if isinstance(answer, McpError):
            console.print(as_text(f"  {_problem(answer)}", "red"))
            continue
        era = "by handshake, an older revision" if answer.has_handshake else "without handshake"
        console.print(as_text(f"  revision  {answer.revision} ({era})"))
        console.print(as_text(f"  software  {answer.software or 'unknown'}"))
        more = "" if len(answer.tools) <= _SHOWN_TOOLS else ", …"
        console.print(as_text(f"  tools     {len(answer.tools)}: {', '.join(answer.tools[:_SHOWN_TOOLS])}{more}"))


def _print_sdk() -> None:
    console = make_console(sys.stdout)
    console.print(as_text("opentelemetry-sdk", "bold"))
    console.print(as_text(f"  release    {RELEASE}"))
    if is_known_version():
        console.print(as_text("  fast path  knows it"))
    else:
        console.print(as_text(f"  fast path  {unknown_release()}", "yellow"))
