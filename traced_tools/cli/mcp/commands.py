"""The commands of `traced-tools mcp`.

Exit status: 0 if the client leaves or the process is interrupted, 2 if the tools cannot be served. That of `proxy` is
that of the server, if the server ends by itself.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Final

import typer

from traced_tools.cli.exits import FAILED, exit_statuses, exit_with
from traced_tools.cli.loading import load_object, printing_to_stderr
from traced_tools.cli.mcp.proxy_command import proxy
from traced_tools.core.variables import MCP_TOKEN as TOKEN_VARIABLE

_COMMAND: Final = "mcp"

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Serve tools to MCP clients.")
app.command()(proxy)


class ServingTransport(StrEnum):
    """How clients are connected."""

    STDIO = "stdio"
    HTTP = "http"


@app.callback()
def mcp() -> None:
    """Serve tools to MCP clients."""


@app.command()
def serve(
    tools: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="What is served: an object of a Python module, such as a list of functions, or an `McpServer`.",
        ),
    ],
    transport: Annotated[
        ServingTransport, typer.Option(help="Standard input and output, or HTTP at /mcp.")
    ] = ServingTransport.STDIO,
    host: Annotated[str, typer.Option(help="The address to listen at, with HTTP.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen at, with HTTP; 0 for a free one.")
    ] = 8000,
) -> None:
    """Serve tools to MCP clients, until the client leaves or the process is interrupted.

    With HTTP, clients must send the token in the variable TRACED_TOOLS_MCP_TOKEN, if it is set. Set it to serve at an
    address that other machines reach.
    """
    with exit_statuses(_COMMAND, printing=False):
        from traced_tools.mcp import serving

        token = os.environ.get(TOKEN_VARIABLE, "").strip() or None  # a token read from a file ends with a line feed
        with printing_to_stderr():  # standard output is for the protocol
            served = load_object(tools, _COMMAND, example="shop.tools:tools")
        if transport is ServingTransport.HTTP and token is None and host not in serving.LOOPBACK:
            exit_with(_COMMAND, FAILED, f"anybody who reaches {host} could call the tools: set {TOKEN_VARIABLE}")
        try:
            serving.serve(
                served,
                transport=transport.value,
                host=host,
                port=port,
                token=token,
                on_ready=lambda url: typer.echo(f"{_COMMAND}: serving at {url}", err=True),
            )
        except OSError as error:
            exit_with(
                _COMMAND, FAILED, f"cannot serve at {host}, port {port}: {error.strerror or type(error).__name__}"
            )
