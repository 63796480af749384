"""Tools that a program serves: over stdio, and until it is interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mcp.shared.exceptions import MCPError
from mcp_types import JSONRPCNotification

from tests.markers import MARKER
from tests.mcp.servers import is_alive, tools_of
from tests.mcp.serving import SERVED, User, calling, in_each_era, talk, text_of
from tests.waiting import PATIENCE, in_time, patiently, until
from traced_tools.mcp import McpToolset, serving, stdio
from traced_tools.mcp.stdio import encoded

ENVELOPE = {
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}


class Program:
    """The program, as a client that is written by hand sees it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def send(self, *lines: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(line + b"\n" for line in lines))
        self.process.stdin.flush()

    def ask(self, number: int, method: str, version: str = "2026-07-28", **params: Any) -> None:
        """Send a request of the newer era."""
        meta = {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": version}
        body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {**params, "_meta": meta}}
        self.send(json.dumps(body).encode())

    def call(self, number: int, name: str, **arguments: Any) -> None:
        self.ask(number, "tools/call", name=name, arguments=arguments)

    def answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = in_time(self.process.stdout.readline)
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def program(*args: str, stderr: int | None = None) -> Iterator[Program]:
    command = [sys.executable, SERVED, *(args or ("stdio",))]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=stderr) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


@pytest.mark.slow
@in_each_era
def test_what_tools_print_and_read_does_not_disturb_the_protocol(era: str) -> None:
    async def disturbing(client: Any) -> list[str]:
        calls = [("talkative", {"text": MARKER}), ("listen", {}), ("echo", {"text": "a"}), ("pay", {"to": "Ana"})]
        return [text_of(await client.call_tool(*each)) for each in calls]

    assert talk("stdio", era, disturbing, elicitation_callback=User()) == [MARKER, "", "a", "paid 5 to Ana"]


@pytest.mark.slow
def test_our_own_client_leaves_no_process_behind() -> None:
    with McpToolset.stdio(sys.executable, SERVED, "stdio", name="shop", timeout=30) as toolset:
        process_id = int(tools_of(toolset)["process_id"].call("{}"))
        assert is_alive(process_id)
    assert not is_alive(process_id)


@pytest.mark.slow
def test_frames_that_are_no_messages_are_skipped() -> None:
    with program() as shop:
        shop.send(
            b"no json", b"", b"   ", b"[]", b"[1, 2]", b"null", b"\xff\xfe", b'{"jsonrpc": "2.0"}', b"[" * 100_000
        )
        shop.call(1, "echo", text="a")
        answer = shop.answer()
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (1, "a")
    assert answer["result"]["resultType"] == "complete"


@pytest.mark.slow
def test_large_messages_arrive_whole_in_both_directions() -> None:
    text = "x" * 5_000_000
    assert text_of(calling("stdio", "modern", "echo", {"text": text})) == text


@pytest.mark.slow
def test_an_unknown_revision_and_an_initialization_after_the_newer_era_has_begun_are_refused() -> None:
    with program() as shop:
        shop.ask(0, "server/discover", version="2099-01-01")
        refusal = shop.answer()["error"]
        assert (refusal["code"], refusal["data"]["supported"]) == (-32022, ["2026-07-28"])
        shop.call(1, "echo", text="a")
        assert shop.answer()["id"] == 1
        shop.send(json.dumps({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": INITIALIZE}).encode())
        assert shop.answer()["error"]["code"] == -32022


@pytest.mark.slow
def test_a_client_that_disappears_during_a_call_ends_the_call_and_the_program(tmp_path: Path) -> None:
    file = tmp_path / "called"
    with program() as shop:
        shop.call(1, "wait", path=str(file))
        until(file.exists)
        assert shop.process.stdin is not None and shop.process.stdout is not None
        shop.process.stdin.close()
        shop.process.stdout.close()
        assert shop.process.wait(PATIENCE) == 0
    assert Path(f"{file}.cancelled").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_cancels_calls_and_ends_the_program_cleanly(number: signal.Signals, tmp_path: Path) -> None:
    file = tmp_path / "called"
    with program() as shop:
        shop.call(1, "wait", path=str(file))
        until(file.exists)
        shop.process.send_signal(number)
        assert shop.answer()["error"]["message"] == "Connection closed"
        assert shop.process.wait(PATIENCE) == 0
        assert shop.process.stdout is not None and shop.process.stdout.read() == b""
    assert Path(f"{file}.cancelled").exists()


@pytest.mark.slow
def test_a_signal_ends_a_program_that_waits_for_its_first_message() -> None:
    with program() as shop:
        shop.ask(1, "server/discover")
        assert "result" in shop.answer()
        shop.process.terminate()
        assert shop.process.wait(PATIENCE) == 0


@pytest.mark.slow
def test_a_client_that_reads_nothing_does_not_keep_the_program_from_ending() -> None:
    with program() as shop:
        for number in range(3):
            shop.call(number, "echo", text="x" * 1_000_000)
        shop.process.terminate()
        assert shop.process.wait(PATIENCE) == 0


@pytest.mark.slow
@in_each_era
def test_a_signal_ends_a_program_over_http_although_clients_are_connected(era: str) -> None:
    async def interrupting(client: Any) -> str:
        text = text_of(await client.call_tool("echo", {"text": "a"}))
        shop.process.terminate()
        await asyncio.to_thread(shop.process.wait, PATIENCE)
        return text

    with program("http") as shop:
        assert shop.process.stdout is not None
        url = shop.process.stdout.readline().decode().strip()
        assert talk(url, era, interrupting) == "a"
        assert shop.process.returncode == 0


def _is_listening(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0)).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_answers_over_http_are_sent_at_once(host: str) -> None:
    async def delays() -> int:
        accepted = asyncio.get_running_loop().create_future()
        with serving.listening(host, 0) as listener:
            async with await asyncio.start_server(lambda _, writer: accepted.set_result(writer), sock=listener):
                _, client = await asyncio.open_connection(*listener.getsockname()[:2])
                server = await accepted
                no_delay: int = server.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for writer in (client, server):
                    writer.close()
                    await writer.wait_closed()
        return no_delay

    assert asyncio.run(patiently(delays()))


@pytest.mark.slow
@pytest.mark.parametrize("signals", [1, 2])
def test_signals_end_open_http_requests_without_a_traceback_and_a_second_one_at_once(
    signals: int, tmp_path: Path
) -> None:
    file = tmp_path / "called"

    async def interrupting(client: Any) -> str:
        call = asyncio.create_task(client.call_tool("wait", {"path": str(file)}))
        await asyncio.to_thread(until, file.exists)
        for _ in range(signals):
            shop.process.terminate()
            await asyncio.to_thread(until, lambda: not _is_listening(url))  # two signals at the same time are one
        with pytest.raises(MCPError):
            await call
        return await asyncio.to_thread(shop.process.stderr.read)

    with program("http", stderr=subprocess.PIPE) as shop:
        assert shop.process.stdout is not None and shop.process.stderr is not None
        url = shop.process.stdout.readline().decode().strip()
        printed = talk(url, "modern", interrupting)
        assert shop.process.wait(PATIENCE) == 0
    assert b"Traceback" not in printed
    assert (b"graceful shutdown exceeded" in printed) == (signals == 1)


def test_a_message_beyond_the_limit_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_MOST_BYTES", 10)

    class Pipes:
        def __init__(self, *chunks: bytes) -> None:
            self.chunks = list(chunks)

        async def read(self) -> bytes:
            return self.chunks.pop(0) if self.chunks else b""

    async def lines(*chunks: bytes) -> list[bytes]:
        return [line async for line in stdio.lines_of(Pipes(*chunks).read)]

    chunks = (b"a\nb", b"c\n\n d\n", b"x" * 8, b"x" * 8, b"x\ne\n", b"unfinished")
    assert asyncio.run(lines(*chunks)) == [b"a", b"bc", b" d", b"e"]


def test_a_text_that_utf8_cannot_encode_does_not_end_the_program() -> None:
    params = {"progressToken": 1, "progress": 1, "message": "half of a pair: \ud800"}
    message = JSONRPCNotification(jsonrpc="2.0", method="notifications/progress", params=params)
    assert json.loads(encoded(message)) == {
        "jsonrpc": "2.0",
        "method": "notifications/progress",
        "params": {**params, "message": "half of a pair: ?"},
    }
