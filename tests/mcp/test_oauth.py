"""Toolsets whose requests are authenticated by an `httpx2.Auth`, such as the SDK's for OAuth."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl

from tests.captured import Telemetry
from tests.markers import MARKER, everything
from tests.mcp.authorizing import MACHINE, SECRET, Protected, protecting
from tests.mcp.fake_http import faking
from tests.mcp.portal_tasks import tasks_left
from tests.mcp.servers import tools_of
from tests.mcp.test_failures import result_of
from tests.modes import MODES
from tests.waiting import patiently, until
from traced_tools import ToolCall
from traced_tools.errors import McpUnavailable
from traced_tools.mcp import McpToolset

in_each_era = pytest.mark.parametrize("era", ["auto", "handshake"])
REDIRECT = "http://127.0.0.1:1/callback"


class Memory:
    """Keeps the tokens of a test."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


def login(server: Protected) -> OAuthClientProvider:
    """Return the SDK's authentication by authorization code; in place of a browser, it follows the redirect itself."""
    answers: list[dict[str, str]] = []

    async def browse(url: str) -> None:
        async with httpx2.AsyncClient() as browser:
            response = await browser.get(url)
        answers.append(dict(parse_qsl(urlsplit(response.headers["location"]).query)))

    async def answer() -> AuthorizationCodeResult:
        return AuthorizationCodeResult(code=answers[-1]["code"], state=answers[-1]["state"])

    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl(REDIRECT)], client_name="tests")
    return OAuthClientProvider(server.url, metadata, Memory(), browse, answer)


def machine(server: Protected, secret: str = SECRET) -> OAuthClientProvider:
    """Return the SDK's authentication by client credentials."""
    issuer = f"{server.authorization.issuer}/"
    return ClientCredentialsOAuthProvider(server.url, Memory(), MACHINE, secret, issuer=issuer)


def tools(server: Protected, auth: httpx2.Auth, **options: Any) -> McpToolset:
    return McpToolset.http(server.url, name="protected", auth=auth, timeout=30, **options)


@pytest.fixture
def server() -> Iterator[Protected]:
    with protecting() as protected:
        yield protected


@in_each_era
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("authentication", [login, machine])
def test_a_toolset_gets_a_token_and_renews_it(mode: str, era: Any, authentication: Any, server: Protected) -> None:
    with tools(server, authentication(server), era=era) as toolset:
        assert result_of(mode, toolset, ToolCall("echo", {"text": "one"})).content == "one"
        server.authorization.valid.clear()
        assert result_of(mode, toolset, ToolCall("echo", {"text": "two"})).content == "two"
    grant = "client_credentials" if authentication is machine else "authorization_code"
    assert server.authorization.grants == [grant, grant]
    assert tasks_left() == []


@in_each_era
def test_a_toolset_gets_a_token_on_asyncio(era: Any, server: Protected) -> None:
    async def talk() -> str:
        async with tools(server, login(server), era=era) as toolset:
            (echo, _) = await toolset.tool_callbacks()
            return await echo.acall('{"text": "one"}')

    assert "one" in asyncio.run(patiently(talk()))


def test_an_expired_token_is_refreshed(server: Protected) -> None:
    server.authorization.lifetimes = [0]
    with tools(server, login(server)) as toolset:
        assert result_of("call", toolset, ToolCall("echo", {"text": "one"})).content == "one"
    assert server.authorization.grants == ["authorization_code", "refresh_token"]


@pytest.mark.parametrize("mode", MODES)
def test_a_refused_token_request_is_an_error_without_its_text(mode: str, server: Protected) -> None:
    with tools(server, machine(server, "wrong")) as toolset, pytest.raises(McpUnavailable) as caught:
        result_of(mode, toolset, ToolCall("echo", {"text": "one"}))
    place = server.url.removeprefix("http://").removesuffix("/mcp")
    problem = "authentication failed with mcp.client.auth.exceptions.OAuthTokenError"
    assert str(caught.value) == f"the MCP server 'protected' cannot be reached: {problem} ({place})"
    assert caught.value.__cause__ is None and tasks_left() == []


def test_authentication_that_fails_costs_its_call_and_not_the_session() -> None:
    class Fails(httpx2.Auth):
        is_broken = False

        def auth_flow(self, request: httpx2.Request) -> Any:
            if self.is_broken:
                raise RuntimeError(MARKER)
            request.headers["Authorization"] = "Bearer token"
            yield request

    auth = Fails()
    with faking() as fake, fake.tools(auth=auth) as toolset:
        tools_of(toolset)
        auth.is_broken = True
        result = result_of("call", toolset, ToolCall("echo"))
        text = "the MCP server 'fake' was not sent the request: authentication failed with RuntimeError"
        assert str(result.error) == text and MARKER not in result.content + repr(result.error)
        auth.is_broken = False
        assert result_of("call", toolset, ToolCall("echo")).content == "fine"
        assert len(fake.sent("initialize")) == 1 and len(fake.sent("tools/call")) == 1
    assert {request.headers["authorization"] for request in fake.server.requests} == {"Bearer token"}


def test_no_token_is_in_spans_logs_or_texts(server: Protected, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    authorization = server.authorization
    authorization.lifetimes = [0]
    with Telemetry() as telemetry, tools(server, login(server)) as toolset:
        assert MARKER not in repr(toolset) + repr(toolset._servers)
        assert (
            result_of("call", toolset, ToolCall("echo", {"text": "one"}), telemetry=telemetry.options).content == "one"
        )
        authorization.valid.clear()
        authorization.refusal = "access_denied"
        error = result_of("call", toolset, ToolCall("echo", {"text": "two"}), telemetry=telemetry.options).error
    assert isinstance(error, McpUnavailable) and MARKER not in everything(error)
    assert telemetry.spans
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("mcp.server", "uvicorn"))]
    assert MARKER not in everything([span.to_json() for span in telemetry.spans]) + everything(ours)


def test_headers_of_a_function_are_for_the_server_alone(server: Protected) -> None:
    headers = {"X-Of-Server": MARKER}
    with tools(server, machine(server), headers=lambda: headers) as toolset:
        assert result_of("call", toolset, ToolCall("echo", {"text": "one"})).content == "one"
    assert server.authorization.headers and all("x-of-server" not in sent for sent in server.authorization.headers)


def test_calls_with_a_token_run_at_once_and_can_be_cancelled() -> None:
    async def talk(server: Protected) -> None:
        async with tools(server, machine(server), era="handshake") as toolset:
            echo, wait = await toolset.tool_callbacks()
            waiting = asyncio.create_task(wait.acall("{}"))
            assert "one" in await echo.acall('{"text": "one"}')
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with protecting(json_response=True) as server:
        asyncio.run(patiently(talk(server)))
        until(lambda: server.cancelled)


def test_what_is_no_authentication_is_an_error() -> None:
    for wrong in ("token", ("user", "password"), 5):
        with pytest.raises(TypeError, match=r"auth must be an httpx2\.Auth or None"):
            McpToolset.http("http://127.0.0.1/mcp", name="x", auth=wrong)  # type: ignore[arg-type]
