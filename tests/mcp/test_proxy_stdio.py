"""The gateway over standard input and output: what passes as it came, and what ends with what."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from tests.markers import MARKER
from tests.mcp.proxied import proxied
from tests.mcp.servers import is_alive
from tests.waiting import PATIENCE, in_time, until

LINES = [
    b'{"jsonrpc": "2.0", "id": 1.50, "method": "future/method", "params": {"b": 1e2, "n": 12345678901234567890}}',
    '{"id":"é\\u00e9","method":"resources/read","jsonrpc":"2.0","params":{"uri":"x://\\/ü 😀"}}'.encode(),
    b'  {"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"p","progress":0.10}}',
    b'{"jsonrpc":"2.0","method":"print","params":{"line":""}}\r',
    b'{"jsonrpc":"2.0","id":3,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":99,"result":{"roots":[],"_meta":{"x":1}}}',
]
"""Messages of a client that the gateway has nothing to do with, in spellings of their own."""


def test_other_messages_than_calls_reach_the_server_byte_for_byte(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.send(*LINES)
        until(lambda: len(gateway.lines()) == len(LINES))
        assert gateway.ledger.read_bytes().split(b"\n")[:-1] == LINES


@pytest.mark.parametrize(
    "line",
    [
        '{"method":"notifications/message", "jsonrpc":"2.0","params":{"data":1.0,"é":"\\u00e9 \\/"}}',
        '{"jsonrpc":"2.0","id":"other","result":{"x":12345678901234567890123,"y":1E5}}',
        '{"jsonrpc":"2.0","id":5,"method":"elicitation/create","params":{"message":"?"}}',
        '{"jsonrpc":"2.0","id":null,"error":{"code":-1,"message":"' + "x" * 3_000_000 + '"}}',
        "a line that is no message",
    ],
    ids=["notification", "answer", "request", "big", "print"],
)
def test_messages_of_the_server_reach_the_client_byte_for_byte(line: str, tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.send(json.dumps({"jsonrpc": "2.0", "method": "print", "params": {"line": line}}).encode())
        assert gateway.line() == line.encode() + b"\n"


def test_a_call_and_its_answer_pass_as_they_came_without_telemetry(tmp_path: Path) -> None:
    line = b'{"params": {"arguments":{"text" : "\\u00e9", "n":1.0},"name":"echo","_meta":{"x":[1]}},"id":1,'
    line += b'"method":"tools\\/call","jsonrpc":"2.0", "later":{}}'
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.send(line)
        answer = gateway.line()
        assert gateway.lines()[-1] == line
        assert json.loads(answer)["result"] == {"content": [{"type": "text", "text": "é"}], "isError": False}


def test_what_the_server_asks_during_a_call_reaches_the_client_and_the_answer_the_server(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "ask")
        question = gateway.message()
        assert question["method"] == "sampling/createMessage"
        answer = b'{"jsonrpc":"2.0", "id":7,"result":{"role":"assistant"}}'
        gateway.send(answer)
        assert gateway.message()["result"]["content"][0]["text"] == answer.decode() + "\n"


def test_progress_passes_before_the_answer(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "work", _meta={"progressToken": "t"})
        messages = [gateway.message() for _ in range(4)]
        assert [message["params"]["progress"] for message in messages[:3]] == [0, 1, 2]
        assert messages[3]["id"] == 1


def test_a_cancellation_reaches_the_server_and_other_calls_go_on(tmp_path: Path) -> None:
    cancellation = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"x"}}'
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "wait")
        until(lambda: len(gateway.calls()) == 1)
        gateway.send(cancellation)
        until(lambda: gateway.lines()[-1] == cancellation)
        gateway.call(1, "echo", "again, with the same id")
        assert gateway.message()["result"]["content"][0]["text"] == "again, with the same id"


def test_a_call_with_the_id_of_one_that_waits_is_refused(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "wait")
        gateway.call("1", "echo", "x")
        assert gateway.message()["error"]["code"] == -32600


def test_a_call_that_waits_does_not_hold_up_others(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "wait")
        gateway.call(2, "echo", "x")
        gateway.ask(3, "ping")
        assert {gateway.message()["id"], gateway.message()["id"]} == {2, 3}


def test_a_big_call_passes(tmp_path: Path) -> None:
    text = "é" * 3_000_000
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "echo", text)
        assert gateway.message()["result"]["content"][0]["text"] == text


def test_a_tool_that_the_server_does_not_list_is_refused(tmp_path: Path) -> None:
    with proxied(tmp_path, stderr=subprocess.PIPE) as gateway:
        gateway.begin()
        gateway.call(1, MARKER)
        result = gateway.message()["result"]
        assert result["isError"] is True
        assert "the server lists no tool of that name" in result["content"][0]["text"]
        assert gateway.calls() == []
        gateway.leave()
        assert gateway.process.stderr is not None
        assert MARKER.encode() not in gateway.process.stderr.read()


def test_the_exit_status_of_a_server_that_ends_is_that_of_the_gateway(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        gateway.call(1, "exit", "5")
        assert gateway.line() == b""
        assert gateway.process.wait(PATIENCE) == 5


def test_the_server_ends_with_the_client_and_its_log_passes_through(tmp_path: Path) -> None:
    with proxied(tmp_path, stderr=subprocess.PIPE) as gateway:
        gateway.begin()
        gateway.call(1, "wait")
        until(lambda: len(gateway.calls()) == 1)
        assert gateway.leave() == 0
        assert gateway.process.stderr is not None
        assert gateway.process.stderr.read() == b"the server begins\n"


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
def test_no_server_is_left_when_the_gateway_is_ended_by_a_signal(signum: signal.Signals, tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.begin()
        children = Path(f"/proc/{gateway.process.pid}/task/{gateway.process.pid}/children")
        (child,) = map(int, children.read_text().split())
        gateway.process.send_signal(signum)
        assert gateway.process.wait(PATIENCE) == (0 if signum == signal.SIGTERM else -9)
        until(lambda: not is_alive(child))


def test_the_server_gets_the_environment_without_the_variables_of_this_package(tmp_path: Path) -> None:
    with proxied(tmp_path, env={"TRACED_TOOLS_AUDIT_KEY": MARKER, "OF_THE_SERVER": "1"}) as gateway:
        gateway.begin()
        gateway.call(1, "environment")
        environment = json.loads(gateway.message()["result"]["content"][0]["text"])
        assert environment["OF_THE_SERVER"] == "1"
        assert MARKER not in environment.values()


def test_a_program_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with proxied(tmp_path, "--", "no-such-program", stderr=subprocess.PIPE) as gateway:
        assert gateway.process.stderr is not None
        assert b"no-such-program" in in_time(gateway.process.stderr.readline)
        assert gateway.process.wait(PATIENCE) == 2
