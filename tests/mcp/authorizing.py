"""A server that wants tokens, and the authorization server that issues them, both on the SDK and in this process."""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any
from urllib.parse import parse_qs

import anyio
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    AuthorizeError,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.markers import MARKER
from tests.mcp.serving import listening

MACHINE, SECRET = "machine", f"secret-{MARKER}"


class Authorization:
    """An authorization server, which lets everyone in at once, and its tokens, all of which have the marker.

    Attributes:
        issuer: its URL.
        lifetimes: the seconds for which the next tokens are valid; further ones are valid for an hour.
        refusal: the error that logins end with, or None.
        redirects: the URLs that browsers were sent to.
        grants: the grants for which tokens were requested.
        headers: the headers of these requests.
        presented: the tokens that the server was sent.
        valid: the tokens that the server accepts.
    """

    def __init__(self, issuer: str) -> None:
        self.issuer = issuer
        self.lifetimes: list[int] = []
        self.refusal: Any = None
        self.redirects: list[str] = []
        self.grants: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.presented: list[str] = []
        self.valid: dict[str, AccessToken] = {}
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._refreshing: dict[str, RefreshToken] = {}
        self._numbers = count(1)

    def app(self) -> Starlette:
        """Return the server as an application."""
        options = ClientRegistrationOptions(enabled=True)
        routes = create_auth_routes(self, AnyHttpUrl(self.issuer), client_registration_options=options)
        issue = next(route.app for route in routes if route.path == "/token")

        async def token(scope: Any, receive: Any, send: Any) -> None:
            request = Request(scope, receive)
            body = await request.body()
            (grant,) = parse_qs(body.decode())["grant_type"]
            self.grants.append(grant)
            self.headers.append(dict(request.headers))
            if grant == "client_credentials":
                await self._issue_to_machine(request)(scope, receive, send)
                return

            async def again() -> dict[str, Any]:
                return {"type": "http.request", "body": body, "more_body": False}

            await issue(scope, again, send)

        class Token:
            __call__ = staticmethod(token)

        others = [route for route in routes if route.path != "/token"]
        return Starlette(routes=[Route("/token", Token(), methods=["POST"]), *others])

    def _issue_to_machine(self, request: Request) -> Response:
        basic = base64.b64encode(f"{MACHINE}:{SECRET}".encode()).decode()
        if request.headers.get("authorization") != f"Basic {basic}":
            return JSONResponse({"error": "invalid_client", "error_description": MARKER}, 401)
        token = self._issue(MACHINE, [], None, refreshing=False)
        return JSONResponse(json.loads(token.model_dump_json(exclude_none=True)))

    def _issue(self, client: str, scopes: list[str], resource: str | None, *, refreshing: bool = True) -> OAuthToken:
        number = next(self._numbers)
        token = OAuthToken(
            access_token=f"access-{number}-{MARKER}",
            expires_in=self.lifetimes.pop(0) if self.lifetimes else 3600,
            refresh_token=f"refresh-{number}-{MARKER}" if refreshing else None,
        )
        self.valid[token.access_token] = AccessToken(token=token.access_token, client_id=client, scopes=scopes)
        if token.refresh_token is not None:
            self._refreshing[token.refresh_token] = RefreshToken(
                token=token.refresh_token, client_id=client, scopes=scopes, resource=resource
            )
        return token

    async def verify_token(self, token: str) -> AccessToken | None:
        self.presented.append(token)
        return self.valid.get(token)

    # What the SDK asks of an authorization server.

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        if self.refusal is not None:
            raise AuthorizeError(self.refusal, MARKER)
        code = f"code-{next(self._numbers)}-{MARKER}"
        self._codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=2**40,
            client_id=client.client_id or "",
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        self.redirects.append(str(params.redirect_uri))
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._issue(authorization_code.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        return self._refreshing.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        if self._refreshing.pop(refresh_token.token, None) is None:
            raise TokenError("invalid_grant", MARKER)
        return self._issue(refresh_token.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.valid.get(token)

    async def revoke_token(self, token: Any) -> None:
        self.valid.pop(token.token, None)

    async def exchange_identity_assertion(self, client: Any, params: Any) -> OAuthToken:
        raise NotImplementedError


class Protected:
    """A server that answers only with tokens of its authorization server.

    Attributes:
        url: its URL.
        authorization: its authorization server.
        cancelled: set when a call of `wait` is cancelled.
    """

    def __init__(self, url: str, authorization: Authorization) -> None:
        self.url = url
        self.authorization = authorization
        self.cancelled = False

    def app(self, *, json_response: bool) -> Starlette:
        """Return the server as an application."""
        settings = AuthSettings(
            issuer_url=AnyHttpUrl(self.authorization.issuer),
            resource_server_url=AnyHttpUrl(self.url),
            validate_token_resource=False,
        )
        server = MCPServer("protected", log_level="CRITICAL", auth=settings, token_verifier=self.authorization)

        @server.tool(structured_output=False)
        def echo(text: str) -> str:
            """Return the text."""
            return text

        @server.tool(structured_output=False)
        async def wait() -> str:
            """Wait until the call is cancelled."""
            try:
                await anyio.sleep_forever()
            finally:
                self.cancelled = True

        return server.streamable_http_app(json_response=json_response)


@contextmanager
def protecting(*, json_response: bool = False) -> Iterator[Protected]:
    """Run a server and its authorization server for a block."""
    authorizing, serving = socket.create_server(("127.0.0.1", 0)), socket.create_server(("127.0.0.1", 0))
    issuer, origin = (f"http://127.0.0.1:{listener.getsockname()[1]}" for listener in (authorizing, serving))
    protected = Protected(f"{origin}/mcp", Authorization(issuer))
    with (
        listening(protected.authorization.app(), authorizing),
        listening(protected.app(json_response=json_response), serving),
    ):
        yield protected
