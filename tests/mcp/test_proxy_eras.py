"""The gateway between the client of the SDK and a served program, in both eras: over stdio, at a URL, and over HTTP."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters

from tests.mcp.serving import SERVED, User, audited, in_each_era, talk, text_of
from tests.waiting import in_time, patiently

POLICY = """
default: allow
rules:
  - id: ask-first
    tool: echo
    where: {text: {in: [ask]}}
    then: require_approval
    reason: somebody must see it
  - id: no-secrets
    tool: echo
    where: {text: {in: [secret]}}
    then: deny
    reason: secrets stay here
"""
TOKEN = "0c5d5bb7a0d14d1c"


@contextmanager
def printing_url(words: list[str], environment: dict[str, str]) -> Iterator[str]:
    """Run a program that prints its URL at the end of a line, to standard output or error."""
    env = {**os.environ, **environment}
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env) as process:
        try:
            assert process.stdout is not None
            lines = iter(lambda: in_time(process.stdout.readline), "")  # type: ignore[union-attr]
            yield next(word for line in lines for word in line.split() if word.startswith("http://127"))
        finally:
            process.terminate()


@contextmanager
def gateway(way: str, folder: Path, *options: str) -> Iterator[Any]:
    """Return how to reach the served program through the gateway, which is reached and reaches it in a way."""
    command = [sys.executable, "-m", "traced_tools", "mcp", "proxy", *options]
    if way == "stdio":
        yield StdioServerParameters(command=command[0], args=[*command[1:], "--", sys.executable, SERVED, "stdio"])
        return
    with printing_url([sys.executable, SERVED, "http"], {}) as url:
        command += ["--url", url]
        if way == "url":
            yield StdioServerParameters(command=command[0], args=command[1:])
            return
        with printing_url([*command, "--transport", "http", "--port", "0"], {"TRACED_TOOLS_MCP_TOKEN": TOKEN}) as front:
            yield front


def through(server: Any, era: str, what: Any, **options: Any) -> Any:
    if isinstance(server, str):
        return talk(server, era, what, token=TOKEN, **options)
    return talk_stdio(server, era, what, **options)


def talk_stdio(server: StdioServerParameters, era: str, what: Any, **options: Any) -> Any:
    async def talking() -> Any:
        async with Client(server, mode="legacy" if era == "handshake" else "auto", **options) as client:
            return await what(client)

    return asyncio.run(patiently(talking()))


@pytest.fixture
def options(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "policy.yaml").write_text(POLICY)
    pins, audit = tmp_path / "pins.json", tmp_path / "audit.db"
    return "--policy", str(tmp_path / "policy.yaml"), "--audit", str(audit), "--pins", str(pins), "--name", "shop"


@in_each_era
@pytest.mark.parametrize("way", ["stdio", pytest.param("url", marks=pytest.mark.slow), "http"])
def test_calls_are_decided_in_each_era_and_way(way: str, era: str, options: tuple[str, ...], tmp_path: Path) -> None:
    user = User()

    async def calls(client: Client) -> list[str]:
        assert {"echo", "pay"} <= {tool.name for tool in (await client.list_tools()).tools}
        texts = [text_of(await client.call_tool("echo", {"text": text})) for text in ("a", "secret", "ask")]
        # the program itself asks for approval of this one, which passes through the gateway
        return [*texts, text_of(await client.call_tool("pay", {"to": "Ana"}))]

    with gateway(way, tmp_path, *options) as server:
        texts = through(server, era, calls, elicitation_callback=user)
    assert texts[0] == "a" and "secrets stay here" in texts[1]
    assert texts[2:] == ["ask", "paid 5 to Ana"]
    assert ["somebody must see it" in question.message for question in user.asked] == [True, False]
    calls_by_time = audited(tmp_path / "audit.db")
    assert [(call.fields("intent")["tool"], call.fields("decision")["decision"]) for call in calls_by_time[:3]] == [
        ("echo", "allowed"),
        ("echo", "denied"),
        ("echo", "pending" if era == "modern" else "approved"),
    ]


@in_each_era
def test_an_approval_of_the_gateway_comes_before_that_of_the_server(era: str, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: require_approval\nrules:\n  - {id: reads, tool: echo, then: allow}\n")
    user = User()

    async def pay(client: Client) -> str:
        return text_of(await client.call_tool("pay", {"to": "Ana"}))

    with gateway("stdio", tmp_path, "--policy", str(policy)) as server:
        assert through(server, era, pay, elicitation_callback=user) == "paid 5 to Ana"
    assert len(user.asked) == (2 if era == "handshake" else 3)  # the second leg of the call is a call, too


def test_a_client_without_the_token_is_refused(tmp_path: Path) -> None:
    with gateway("http", tmp_path) as url:
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        assert httpx.post(url, json=body).status_code == 401
        assert httpx.get(url).status_code == 401


def test_the_gateway_over_http_needs_a_server_at_a_url(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "traced_tools", "mcp", "proxy", "--transport", "http", "--", "program"]
    process = subprocess.run(words, capture_output=True, text=True)
    assert process.returncode == 2
    assert "pass --url" in process.stderr
