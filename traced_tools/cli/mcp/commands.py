"""The commands of `traced-tools mcp`.

Exit status: 0 if the client leaves or the process is interrupted, 2 if the tools cannot be served. That of `proxy` is
that of the server, if the server ends by itself.
"""

from __future__ import annotations

from typing import Annotated

import typer

from traced_tools.cli.exits import exit_statuses
from traced_tools.cli.loading import load_object, printing_to_stderr
from traced_tools.cli.mcp.proxy_command import proxy
from traced_tools.cli.mcp.serving_options import (
    COMMAND,
    Host,
    Port,
    ServingTransport,
    Transport,
    exit_if_not_served,
    read_token,
    report_url,
)

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Serve tools to MCP clients, or decide about calls of a server."
)
app.command()(proxy)


@app.callback()
def mcp() -> None:
    """Serve tools to MCP clients, or decide about calls of a server."""


@app.command()
def serve(
    tools: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:OBJECT",
            help="What is served: an object of a Python module, such as a list of functions, or an `McpServer`.",
        ),
    ],
    transport: Transport = ServingTransport.STDIO,
    host: Host = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Serve tools to MCP clients, until the client leaves or the process is interrupted.

    With HTTP, clients must send the token in the variable TRACED_TOOLS_MCP_TOKEN, if it is set. Set it to serve at an
    address that other machines reach.
    """
    with exit_statuses(COMMAND, printing=False):
        from traced_tools.mcp import serving

        token = read_token(transport, host)
        with printing_to_stderr():  # standard output is for the protocol
            served = load_object(tools, COMMAND, example="shop.tools:tools")
        with exit_if_not_served(host, port):
            serving.serve(served, transport=transport.value, host=host, port=port, token=token, on_ready=report_url)
