"""The command `traced-tools mcp proxy`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from traced_tools.cli.exits import FAILED, exit_statuses, exit_with
from traced_tools.cli.headers import read_header
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
from traced_tools.core.variables import DEV, MCP_CLIENT_SECRET

if TYPE_CHECKING:
    import httpx2

    from traced_tools.mcp.pinning import PinFile
    from traced_tools.mcp.proxy.gate import Gate
    from traced_tools.mcp.transports import StreamableHttpTransport
    from traced_tools.tools.advice import ToolAdvice

_SIGNALLED: Final = 128
"""The exit status of a process that a signal has ended is this and the number of the signal, as in a shell."""
_OF_TELEMETRY: Final = ("OTEL_", DEV)
_NAMING: Final = frozenset(("OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES", "OTEL_CONFIG_FILE"))
"""The variables that may name the service."""


class OnChange(StrEnum):
    """What follows if a tool differs from the pinned one."""

    ERROR = "error"
    WARN = "warn"


def proxy(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND", help="The server: a program and its arguments, after --.", show_default=False
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The server, at a URL of streamable HTTP.", show_default=False),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VARIABLE",
            help="A header for the server at a URL, and the environment variable with its value, such as "
            "Authorization=MCP_AUTHORIZATION.",
            show_default=False,
        ),
    ] = None,
    oauth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Log in at the server with a browser, and keep the tokens in this file.",
            show_default=False,
        ),
    ] = None,
    oauth_client_id: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help=f"Get tokens for the server without a person: the client id, whose secret is in {MCP_CLIENT_SECRET}.",
            show_default=False,
        ),
    ] = None,
    oauth_issuer: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="The authorization server of the client id; no other one gets the secret.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str,
        typer.Option(
            help="The name of the server: the source of its tools in policies, pins, telemetry and the trail."
        ),
    ] = "gateway",
    policy: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The policy that decides about calls, a YAML file.", show_default=False),
    ] = None,
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="PATH_OR_URL",
            help="The audit trail: an SQLite file or a database URL. A call that cannot be recorded is refused.",
            show_default=False,
        ),
    ] = None,
    pins: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The file of pinned tools. The tools are added to it when the server is first seen.",
            show_default=False,
        ),
    ] = None,
    on_change: Annotated[
        OnChange, typer.Option(help="Whether calls are refused if a tool is new or differs from the pinned one.")
    ] = OnChange.ERROR,
    transport: Transport = ServingTransport.STDIO,
    host: Host = "127.0.0.1",
    port: Port = 8000,
) -> None:
    """Stand between an MCP client and a server, and decide about the calls of its tools.

    Each call has its spans and metrics, and as many of a policy, an approval and an audited intent as you pass options
    for. Everything else passes through unchanged. Telemetry goes where the OTEL_* variables say.

    With --transport http, the server must be at a URL, and clients must send the token in the variable
    TRACED_TOOLS_MCP_TOKEN, if it is set.
    """
    with exit_statuses(COMMAND, printing=False) as exit_status:
        if bool(command) == (url is not None):
            exit_with(COMMAND, FAILED, "pass the server: either --url URL, or -- COMMAND ARGS...")
        if transport is ServingTransport.HTTP and url is None:
            exit_with(COMMAND, FAILED, "a server that is a program is for one client: pass --url, or drop --transport")
        from traced_tools.mcp.proxy.gate import Gate
        from traced_tools.mcp.scopes import McpEndpoint

        auth = _authentication(url, oauth, oauth_client_id, oauth_issuer)
        target = _url_transport(name, url, header or (), auth) if url is not None else None
        endpoint = McpEndpoint(name, "pipe") if target is None else target.endpoint
        token = read_token(transport, host)
        with _telemetry(name), _advisors(policy, audit) as advisors:
            gate = Gate(name, endpoint, advisors=advisors, pins=_pin_file(pins, on_change))
            if target is not None and auth is not None:
                _log_in(target)
            if transport is ServingTransport.HTTP and target is not None:
                _serve_http(gate, target, token, host, port)
            else:
                exit_status.status = _serve_stdio(gate, target, command or ())


def _authentication(
    url: str | None, tokens: Path | None, client_id: str | None, issuer: str | None
) -> httpx2.Auth | None:
    """Return what authenticates requests to the server, or exit with status 2 if the options don't fit."""
    if tokens is None and client_id is None and issuer is None:
        return None
    if url is None:
        exit_with(COMMAND, FAILED, "--oauth... is for a server at a URL: pass --url")
    if (client_id is None) != (issuer is None) or (tokens is None) == (client_id is None):
        exit_with(COMMAND, FAILED, "pass either --oauth FILE, or --oauth-client-id ID --oauth-issuer URL")
    from traced_tools.mcp.proxy.login import BrowserLogin, client_credentials

    if tokens is not None:
        return BrowserLogin(url, tokens, lambda address: typer.echo(f"{COMMAND}: log in at {address}", err=True))
    secret = os.environ.get(MCP_CLIENT_SECRET, "").strip()
    if not secret:
        exit_with(COMMAND, FAILED, f"there is no secret of the client id: set {MCP_CLIENT_SECRET}")
    return client_credentials(url, str(client_id), secret, str(issuer))


def _log_in(target: StreamableHttpTransport) -> None:
    from traced_tools.mcp.proxy.login import log_in

    asyncio.run(log_in(target))


def _url_transport(name: str, url: str, headers: Sequence[str], auth: httpx2.Auth | None) -> StreamableHttpTransport:
    from traced_tools.mcp.transports import StreamableHttpTransport

    return StreamableHttpTransport(name, url, dict(map(read_header, headers)), auth=auth)


def _serve_http(gate: Gate, target: StreamableHttpTransport, token: str | None, host: str, port: int) -> None:
    from traced_tools.mcp.proxy.http_front import ProxyApp
    from traced_tools.mcp.serving import serve_app

    with exit_if_not_served(host, port):
        serve_app(ProxyApp(gate, target, token=token), host, port, report_url)


def _serve_stdio(gate: Gate, target: StreamableHttpTransport | None, command: Sequence[str]) -> int:
    """Serve the client on standard input and output, and return the exit status."""
    from traced_tools.mcp.proxy.program import ProgramServer
    from traced_tools.mcp.proxy.proxying import proxy_stdio
    from traced_tools.mcp.proxy.url_server import UrlServer

    try:
        status = proxy_stdio(gate, ProgramServer(command) if target is None else UrlServer(target))
    except OSError as error:
        problem = error.strerror or type(error).__name__
        exit_with(COMMAND, FAILED, f"the program {command[0]!a} cannot be started: {problem}")
    return 0 if status is None else _SIGNALLED - status if status < 0 else status


def _pin_file(path: Path | None, on_change: OnChange) -> PinFile | None:
    from traced_tools.mcp.pinning import PinFile

    return None if path is None else PinFile(path, on_change.value)


@contextmanager
def _telemetry(name: str) -> Iterator[None]:
    """Export telemetry until the block ends, if the environment says anything about it."""
    variables = [variable for variable in os.environ if variable.startswith(_OF_TELEMETRY)]
    if not variables:
        yield
        return
    from traced_tools.otel.configure import configure

    with configure(service_name=None if _NAMING.intersection(variables) else name):
        yield


@contextmanager
def _advisors(policy: Path | None, audit: str | None) -> Iterator[list[ToolAdvice]]:
    """Open what decides about calls and records them, until the block ends."""
    advisors: list[ToolAdvice] = []
    if policy is not None:
        from traced_tools.policy.advisor import PolicyAdvisor
        from traced_tools.policy.policy import Policy

        advisors.append(PolicyAdvisor(Policy.load(policy)))
    if audit is None:
        yield advisors
        return
    from traced_tools.audit.advisor import AuditAdvisor
    from traced_tools.audit.trail import AuditTrail

    with AuditTrail(audit) as trail:
        yield [AuditAdvisor(trail), *advisors]
