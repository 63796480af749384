"""The reference server answers through the gateway as if the gateway were not there: each method, asked both ways."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import Client, StdioServerParameters
from mcp.shared.exceptions import MCPError
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent
from pydantic import FileUrl

from tests.dashboards.node import PACKAGES
from tests.judges.programs import free_port, missing, program
from tests.waiting import in_time, patiently, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning"),  # of methods of the older era
]
ENTRY = PACKAGES / "@modelcontextprotocol" / "server-everything" / "dist/index.js"
GATEWAY = (sys.executable, "-m", "traced_tools", "mcp", "proxy")
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("echo", {"message": "é 😀"}),
    ("echo", {}),
    ("echo", {"message": 5, "more": None}),
    ("no-such-tool", {}),
    ("get-sum", {"a": 1.0, "b": 2}),
    ("get-structured-content", {"location": "Chicago"}),
    ("get-annotated-message", {"messageType": "error", "includeImage": True}),
    ("get-tiny-image", {}),
    ("get-resource-links", {"count": 2}),
    ("get-resource-reference", {"resourceType": "Text", "resourceId": 1}),
    ("get-roots-list", {}),
    ("trigger-sampling-request", {"prompt": "hello", "maxTokens": 5}),
    ("trigger-elicitation-request", {}),
    ("trigger-long-running-operation", {"duration": 0.2, "steps": 2}),
    ("toggle-simulated-logging", {}),
    ("toggle-subscriber-updates", {}),
)
CHANGING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|\d{4}-\d\d-\d\dT[\d:.]+Z|\d{1,2}:\d\d:\d\d( [AP]M)?|Progress notification .*"
)


class Tour:
    """Asks a server everything, and writes down what it answers and what it asks itself."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.questions: list[str] = []

    async def ask(self, name: str, answer: Awaitable[Any]) -> Any:
        try:
            value = await answer
        except MCPError as error:
            self.answers.append(f"{name}: error {error.code} {error.message} {error.data}")
            return None
        dumped = (
            value.model_dump_json(by_alias=True, exclude_unset=True) if hasattr(value, "model_dump_json") else value
        )
        self.answers.append(CHANGING.sub("...", f"{name}: {dumped}"))
        return value

    async def sample(self, context: Any, params: Any) -> CreateMessageResult:
        self.questions.append(f"sampling: {params.model_dump_json(by_alias=True, exclude={'meta'})}")
        return CreateMessageResult(role="assistant", content=TextContent(text="hi"), model="m")

    async def elicit(self, context: Any, params: Any) -> ElicitResult:
        self.questions.append(f"elicitation: {params.message}")
        return ElicitResult(action="accept", content={"name": "Ana", "check": True})

    async def roots(self, context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[Root(uri=FileUrl("file:///tmp/x"))])

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.questions.append(f"progress: {progress} {total} {message}")

    async def run(self, server: Any) -> Tour:
        client = Client(
            server,
            mode="legacy",
            sampling_callback=self.sample,
            elicitation_callback=self.elicit,
            list_roots_callback=self.roots,
        )
        async with client:
            await self.see(client)
        return self

    async def see(self, client: Client) -> None:
        self.answers += [str(client.server_info), str(client.server_capabilities), str(client.instructions)]
        await self.ask("ping", client.send_ping())
        await self.ask("tools", client.list_tools())
        for name, arguments in CALLS:
            await self.ask(name, client.call_tool(name, arguments, progress_callback=self.progress))
        resources = await self.ask("resources", client.list_resources())
        await self.ask("templates", client.list_resource_templates())
        uri = str(resources.resources[0].uri)
        for address in (uri, "demo://resource/dynamic/text/3", "demo://no/such"):
            await self.ask("read", client.read_resource(address))
        await self.ask("subscribe", client.subscribe_resource(uri))
        await self.ask("unsubscribe", client.unsubscribe_resource(uri))
        prompts = await self.ask("prompts", client.list_prompts())
        for prompt in prompts.prompts:
            arguments = {argument.name: "1" for argument in prompt.arguments or ()}
            await self.ask(f"prompt {prompt.name}", client.get_prompt(prompt.name, arguments))
        await self.ask("no prompt", client.get_prompt("none", {}))
        await self.ask("level", client.set_logging_level("error"))


def tour(server: Any) -> Tour:
    seen = asyncio.run(patiently(Tour().run(server)))
    (unknown,) = [answer for answer in seen.answers if answer.startswith("no-such-tool")]
    assert "isError" in unknown  # with a text of its own
    seen.answers.remove(unknown)
    return seen


def command(*options: str) -> StdioServerParameters:
    """Return how to run a program of the reference server, behind the gateway if there are options."""
    node = program("node", "install Node 20.15 or newer")
    if not ENTRY.is_file():
        missing("server-everything is not here: npm ci --prefix tests/npm")
    words = [*options, node, str(ENTRY), "stdio"]
    return StdioServerParameters(command=words[0], args=words[1:])


def test_the_reference_server_is_the_same_through_the_gateway_over_stdio(tmp_path: Path) -> None:
    direct, audited = tour(command()), tour(command(*GATEWAY, "--audit", str(tmp_path / "audit.db"), "--"))
    assert audited.answers == direct.answers
    assert audited.questions == direct.questions
    assert len(direct.questions) > 3


@contextmanager
def everything_over_http() -> Iterator[str]:
    command()
    port = free_port()
    environment = {**os.environ, "PORT": str(port)}
    node = program("node", "install Node 20.15 or newer")
    with subprocess.Popen(
        [node, str(ENTRY), "streamableHttp"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        url = f"http://127.0.0.1:{port}/mcp"
        until(lambda: answers(url))
        try:
            yield url
        finally:
            process.kill()


def answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=1)
    except httpx.TransportError:
        return False
    return True


def test_the_reference_server_is_the_same_through_the_gateway_at_a_url() -> None:
    with everything_over_http() as url:
        direct = tour(url)
        words = [*GATEWAY, "--url", url]
        bridged = tour(StdioServerParameters(command=words[0], args=words[1:]))
    assert bridged.answers == direct.answers
    assert bridged.questions == direct.questions


@contextmanager
def gateway_over_http(url: str, *options: str) -> Iterator[str]:
    """Serve the gateway before a server at a URL, and return the URL of the gateway."""
    words = [*GATEWAY, "--url", url, "--transport", "http", "--port", "0", *options]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            lines = iter(lambda: in_time(process.stderr.readline), "")  # type: ignore[union-attr]
            yield next(line.split()[-1] for line in lines if "serving at" in line)
        finally:
            process.terminate()


def test_the_reference_server_is_the_same_through_the_gateway_over_http() -> None:
    with everything_over_http() as url:
        direct = tour(url)
        with gateway_over_http(url) as gateway:
            proxied = tour(gateway)
    assert proxied.answers == direct.answers
    assert proxied.questions == direct.questions
