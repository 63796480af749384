"""The gateway before a server that wants tokens: a program in place of a browser follows the redirects."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import StdioServerParameters
from typer.testing import CliRunner

from tests.markers import MARKER
from tests.mcp.authorizing import MACHINE, SECRET, Protected, protecting
from tests.mcp.serving import calling, in_each_era, listening, text_of
from tests.mcp.test_proxy_eras import printing_url
from tests.waiting import PATIENCE, patiently
from traced_tools.cli.app import app
from traced_tools.errors import ConfigurationError, McpUnavailable
from traced_tools.mcp.proxy import login
from traced_tools.mcp.proxy.gate import Gate
from traced_tools.mcp.proxy.http_front import ProxyApp
from traced_tools.mcp.proxy.login import BrowserLogin, log_in
from traced_tools.mcp.transports import StreamableHttpTransport

GATEWAY = ("-m", "traced_tools", "mcp", "proxy", "--name", "protected")
SECRET_VARIABLE = "TRACED_TOOLS_MCP_CLIENT_SECRET"


class Place:
    """A folder with the file of tokens, and the server.

    Args:
        folder: the folder.
        server: the server.
    """

    def __init__(self, folder: Path, server: Protected) -> None:
        self.server = server
        self.authorization = server.authorization
        self.tokens = folder / "tokens.json"
        browser = folder / "browser.py"
        browser.write_text("import sys, urllib.request\nurllib.request.urlopen(sys.argv[1]).read()\n")
        self.environment = {"BROWSER": f"{sys.executable} {browser} %s"}
        self.login = ("--url", server.url, "--oauth", str(self.tokens))
        issuer = f"{self.authorization.issuer}/"
        self.machine = ("--url", server.url, "--oauth-client-id", MACHINE, "--oauth-issuer", issuer)

    def call(self, era: str, *options: str, **environment: str) -> str:
        """Start a gateway for one call, and return the text of its result."""
        args, env = [*GATEWAY, *options], {**self.environment, **environment}
        program = StdioServerParameters(command=sys.executable, args=args, env=env)
        return text_of(calling(program, era, "echo", {"text": "one"}))

    def run(self, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a gateway for a client that leaves at once."""
        env = {**os.environ, **self.environment, **environment}
        command = [sys.executable, *GATEWAY, *options]
        return subprocess.run(command, input="", capture_output=True, text=True, env=env, timeout=PATIENCE, check=False)

    def saved(self) -> Any:
        return json.loads(self.tokens.read_text())

    def change(self, **changes: Any) -> None:
        self.tokens.write_text(json.dumps({**self.saved(), **changes}))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with protecting() as server:
        yield Place(tmp_path, server)


@in_each_era
def test_a_person_logs_in_once(era: str, place: Place) -> None:
    assert place.call(era, *place.login) == place.call(era, *place.login) == "one"
    assert place.authorization.grants == ["authorization_code"] and len(place.authorization.clients) == 1
    assert place.tokens.stat().st_mode & 0o777 == 0o600
    (redirect,) = place.authorization.redirects
    assert redirect == place.saved()["redirect"] and redirect.startswith("http://127.0.0.1:")


@pytest.mark.usefixtures("without_browser")
def test_an_expired_token_is_refreshed_where_it_was_issued(place: Place) -> None:
    log_in_here(place, visit)
    tokens = place.saved()["tokens"]
    place.change(expires_at=1)
    log_in_here(place, visit)
    assert place.authorization.grants == ["authorization_code", "refresh_token"]
    assert place.saved()["expires_at"] > 1 and place.saved()["tokens"] != tokens
    log_in_here(place, visit)
    assert len(place.authorization.grants) == 2


@pytest.mark.usefixtures("without_browser")
def test_a_gateway_uses_the_tokens_that_another_one_has_refreshed(place: Place) -> None:
    log_in_here(place, visit)
    place.change(expires_at=1)
    auth = BrowserLogin(place.server.url, place.tokens, visit)
    log_in_here(place, visit)
    transport = StreamableHttpTransport("protected", place.server.url, None, auth=auth)
    asyncio.run(patiently(log_in(transport)))
    assert place.authorization.grants == ["authorization_code", "refresh_token"]


@pytest.mark.usefixtures("without_browser")
def test_a_person_logs_in_again_if_the_refresh_token_is_refused(place: Place) -> None:
    log_in_here(place, visit)
    place.change(expires_at=1, tokens={**place.saved()["tokens"], "refresh_token": "old"})
    log_in_here(place, visit)
    assert place.authorization.grants == ["authorization_code", "refresh_token", "authorization_code"]
    assert len(place.authorization.clients) == 1


def test_a_login_shows_its_address_and_nothing_of_the_tokens(place: Place) -> None:
    finished = place.run(*place.login, TRACED_TOOLS_DEBUG="1")
    assert (finished.returncode, finished.stdout) == (0, "")
    assert f"mcp: log in at {place.authorization.issuer}/authorize?" in finished.stderr
    assert MARKER not in finished.stderr and MARKER in place.tokens.read_text()


def test_a_refused_login_ends_the_gateway(place: Place) -> None:
    place.authorization.refusal = "access_denied"
    finished = place.run(*place.login)
    text = "authentication failed: the authorization server refused the login: access_denied"
    assert finished.stderr.splitlines()[-1] == f"mcp: the MCP server 'protected' cannot be used: {text}"
    assert (finished.returncode, finished.stdout) == (2, "") and MARKER not in finished.stderr
    place.authorization.refusal = None
    assert place.run(*place.login).returncode == 0 and len(place.authorization.clients) == 1


@in_each_era
def test_a_machine_gets_its_tokens_without_a_person(era: str, place: Place) -> None:
    place.authorization.lifetimes = [0]
    assert place.call(era, *place.machine, **{SECRET_VARIABLE: f"{SECRET}\n"}) == "one"
    assert set(place.authorization.grants) == {"client_credentials"} and not place.tokens.exists()


def test_a_refused_secret_ends_the_gateway(place: Place) -> None:
    finished = place.run(*place.machine, **{SECRET_VARIABLE: f"wrong-{MARKER}"})
    text = "authentication failed with mcp.client.auth.exceptions.OAuthTokenError"
    assert finished.stderr == f"mcp: the MCP server 'protected' cannot be used: {text}\n"
    assert (finished.returncode, finished.stdout) == (2, "")


def test_a_secret_goes_to_its_issuer_alone(place: Place) -> None:
    options = [*place.machine[:-1], "https://login.example.com/"]
    finished = place.run(*options, **{SECRET_VARIABLE: SECRET})
    assert finished.returncode == 2 and place.authorization.grants == [] and MARKER not in finished.stderr


def test_over_http_the_token_of_the_gateway_takes_the_place_of_that_of_the_client(place: Place) -> None:
    command = [sys.executable, *GATEWAY, *place.machine, "--transport", "http", "--port", "0"]
    with printing_url(command, {SECRET_VARIABLE: SECRET, **place.environment}) as url:
        assert text_of(calling(url, "modern", "echo", {"text": "one"}, token="of-the-client")) == "one"
    assert place.authorization.grants == ["client_credentials"]
    assert set(place.authorization.presented) == {*place.authorization.valid}


def test_a_request_without_a_token_is_not_sent_and_the_log_says_why(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    auth = login.client_credentials(place.server.url, MACHINE, f"wrong-{MARKER}", f"{place.authorization.issuer}/")
    transport = StreamableHttpTransport("protected", place.server.url, None, auth=auth)
    with listening(ProxyApp(Gate("protected", transport.endpoint), transport)) as url:
        response = httpx.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "ping"})
    assert (response.status_code, response.text) == (502, "the server cannot be reached")
    problem = "authentication failed with mcp.client.auth.exceptions.OAuthTokenError"
    assert [record.getMessage() for record in caplog.records if record.name.startswith("traced_tools")] == [
        f"the MCP server was not sent a request: {problem}"
    ]


def test_a_server_that_refuses_a_new_token_ends_the_gateway(place: Place) -> None:
    place.authorization.valid = Forgetful()
    finished = place.run(*place.machine, **{SECRET_VARIABLE: SECRET})
    text = "refuses the token: it answers with the HTTP status 401"
    assert (finished.returncode, finished.stderr) == (2, f"mcp: the MCP server 'protected' {text}\n")


class Forgetful(dict[str, Any]):
    """Tokens that a server never accepts."""

    def get(self, key: str, default: Any = None) -> Any:
        return None


def visit(address: str) -> None:
    """Visit the address of a login, in place of a browser."""
    threading.Thread(target=httpx.get, args=[address], kwargs={"follow_redirects": True}, daemon=True).start()


def log_in_here(place: Place, show: Callable[[str], None]) -> None:
    """Log in, in this process and without a browser."""
    auth = BrowserLogin(place.server.url, place.tokens, show)
    asyncio.run(patiently(log_in(StreamableHttpTransport("protected", place.server.url, None, auth=auth))))


@pytest.fixture
def without_browser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWSER", "true %s")


@pytest.mark.usefixtures("without_browser")
def test_a_login_that_nobody_ends_is_given_up(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOGIN_SECONDS", 0.1)
    shown: list[str] = []
    with pytest.raises(McpUnavailable, match="nobody logged in within 0 seconds"):
        log_in_here(place, shown.append)
    assert len(shown) == 1


@pytest.mark.usefixtures("without_browser")
def test_a_port_in_use_is_an_error(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        redirect = f"http://127.0.0.1:{port}/callback"
        place.tokens.write_text(json.dumps({"server": place.server.url, "redirect": redirect}))
        place.tokens.chmod(0o600)
        with pytest.raises(McpUnavailable, match=rf"port {port} of 127\.0\.0\.1 cannot be listened at"):
            log_in_here(place, [].append)


@pytest.mark.usefixtures("without_browser")
def test_no_browser_is_opened_soon_after_a_login_that_failed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_LOGIN_SECONDS", 0.1)
    shown: list[str] = []
    auth = BrowserLogin(place.server.url, place.tokens, shown.append)
    transport = StreamableHttpTransport("protected", place.server.url, None, auth=auth)
    with pytest.raises(McpUnavailable, match="nobody logged in"):
        asyncio.run(patiently(log_in(transport)))
    with pytest.raises(McpUnavailable, match="authentication failed: the last login failed"):
        asyncio.run(patiently(log_in(transport)))
    assert len(shown) == 1


def test_only_a_request_with_the_state_of_the_login_is_an_answer() -> None:
    async def ask() -> tuple[int, int, Mapping[str, str]]:
        port = login._free_port()
        async with login._answer_at(port, "right") as answer, httpx.AsyncClient() as browser:
            wrong = await browser.get(f"http://127.0.0.1:{port}/callback?code=1&state=wrong")
            assert not answer.done()
            right = await browser.get(f"http://127.0.0.1:{port}/callback?code=2&state=right")
            return wrong.status_code, right.status_code, await answer

    assert asyncio.run(patiently(ask())) == (404, 200, {"code": "2", "state": "right"})


def test_a_file_that_is_of_no_use_is_an_error(tmp_path: Path) -> None:
    url, path = "https://mcp.example.com/mcp", tmp_path / "tokens.json"
    cases = {
        "[]": (0o600, "is not a file of tokens"),
        json.dumps({"server": "https://other.example.com/mcp"}): (0o600, "are for another server"),
        json.dumps({"server": url, "tokens": {"access_token": 5, "x": MARKER}}): (0o600, "is not a file of tokens"),
        json.dumps({"server": url}): (0o640, r"may be read by others \(mode 640\): chmod 600 it"),
    }
    for text, (mode, problem) in cases.items():
        path.write_text(text)
        path.chmod(mode)
        with pytest.raises(ConfigurationError, match=problem) as caught:
            BrowserLogin(url, path, print)
        assert MARKER not in repr(caught.value) and caught.value.__cause__ is None


@pytest.mark.usefixtures("without_browser")
def test_a_file_that_cannot_be_written_is_an_error_before_the_login(place: Place) -> None:
    place.tokens = place.tokens.parent / "missing" / "tokens.json"
    shown: list[str] = []
    with pytest.raises(McpUnavailable, match=r"authentication failed: .*tokens\.json cannot be written"):
        log_in_here(place, shown.append)
    assert shown == []


def test_a_server_that_cannot_be_reached_is_an_error(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{login._free_port()}/mcp"
    result = CliRunner().invoke(app, ["mcp", "proxy", "--url", url, "--oauth", str(tmp_path / "tokens.json")])
    assert result.exit_code == 2
    assert "the MCP server 'gateway' cannot be reached: httpx2.ConnectError (127.0.0.1:" in result.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--oauth", "x", "--", "true"], "pass --url"),
        (["--url", "http://x/mcp", "--oauth-client-id", "x"], "pass either --oauth FILE, or"),
        (["--url", "http://x/mcp", "--oauth-issuer", "http://x"], "pass either --oauth FILE, or"),
        (["--url", "http://x/mcp", "--oauth", "x", "--oauth-client-id", "x", "--oauth-issuer", "x"], "pass either"),
        (["--url", "http://x/mcp", "--oauth-client-id", "x", "--oauth-issuer", "http://x"], f"set {SECRET_VARIABLE}"),
        (["--url", "http://x/mcp", "--oauth-client-id", "x", "--oauth-issuer", "x"], "must begin with http"),
    ],
)
def test_options_that_do_not_fit_end_the_gateway(
    options: list[str], problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    if problem == "must begin with http":
        monkeypatch.setenv(SECRET_VARIABLE, SECRET)
    result = CliRunner().invoke(app, ["mcp", "proxy", *options])
    assert (result.exit_code, result.stdout) == (2, "") and problem in result.stderr
