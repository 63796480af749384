"""The options of the commands that serve MCP clients."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Final

import typer

from traced_tools.cli.exits import FAILED, exit_with
from traced_tools.core.variables import MCP_TOKEN

COMMAND: Final = "mcp"


class ServingTransport(StrEnum):
    """How clients are connected."""

    STDIO = "stdio"
    HTTP = "http"


Transport = Annotated[ServingTransport, typer.Option(help="Standard input and output, or HTTP at /mcp.")]
Host = Annotated[str, typer.Option(help="The address to listen at, with HTTP.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at, with HTTP; 0 for a free one.")]


def read_token(transport: ServingTransport, host: str) -> str | None:
    """Return the token in the environment, or exit with status 2 if other machines could call the tools without one."""
    from traced_tools.mcp.serving import LOOPBACK

    token = os.environ.get(MCP_TOKEN, "").strip() or None  # a token read from a file ends with a line feed
    if transport is ServingTransport.HTTP and token is None and host not in LOOPBACK:
        exit_with(COMMAND, FAILED, f"anybody who reaches {host} could call the tools: set {MCP_TOKEN}")
    return token


def report_url(url: str) -> None:
    """Print the URL at which tools are served."""
    typer.echo(f"{COMMAND}: serving at {url}", err=True)


@contextmanager
def exit_if_not_served(host: str, port: int) -> Iterator[None]:
    """Exit with status 2 if the address cannot be listened at."""
    try:
        yield
    except OSError as error:
        exit_with(COMMAND, FAILED, f"cannot serve at {host}, port {port}: {error.strerror or type(error).__name__}")
