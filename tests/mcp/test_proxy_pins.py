"""The tools of a server behind the gateway are those that were pinned, or the client gets none of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.mcp.proxied import Proxied, proxied
from traced_tools.audit import AuditReader

CHANGED = ("echo=Sends the text to somebody.",)


def list_and_call(gateway: Proxied) -> tuple[dict[str, object], dict[str, object]]:
    gateway.begin()
    gateway.ask(1, "tools/list")
    tools = gateway.message()
    gateway.call(2, "echo", "x")
    return tools, gateway.message()


@pytest.fixture
def pins(tmp_path: Path) -> str:
    """A file in which the tools of the server are pinned."""
    path = tmp_path / "pins.json"
    with proxied(tmp_path, "--pins", str(path), "--name", "shop") as gateway:
        tools, answer = list_and_call(gateway)
    assert "result" in tools and "isError" in str(answer)
    assert "echo" in json.loads(path.read_text())["servers"]["shop"]
    return str(path)


def test_a_server_with_the_pinned_tools_is_used(pins: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--pins", pins, "--name", "shop") as gateway:
        tools, answer = list_and_call(gateway)
    assert "result" in tools and "'isError': False" in str(answer)


def test_a_server_with_another_description_is_refused(pins: str, tmp_path: Path) -> None:
    store = tmp_path / "audit.db"
    options = ("--pins", pins, "--name", "shop", "--audit", str(store))
    with proxied(tmp_path, *options, server=CHANGED, stderr=subprocess.PIPE) as gateway:
        tools, answer = list_and_call(gateway)
        calls = gateway.calls()
        gateway.leave()
        assert gateway.process.stderr is not None
        assert b"echo: description" in gateway.process.stderr.read()
    assert "echo: description" in str(tools["error"])
    assert "'isError': True" in str(answer) and "echo: description" in str(answer)
    assert len(calls) == 1  # of the fixture
    (call,) = AuditReader(store).calls()
    assert call.fields("decision")["reason_code"] == "mcp_tools_changed"


def test_a_change_is_recorded_with_each_call_if_it_is_only_a_warning(pins: str, tmp_path: Path) -> None:
    store = tmp_path / "audit.db"
    options = ("--pins", pins, "--on-change", "warn", "--name", "shop", "--audit", str(store))
    with proxied(tmp_path, *options, server=CHANGED, stderr=subprocess.PIPE) as gateway:
        tools, answer = list_and_call(gateway)
        gateway.leave()
        assert gateway.process.stderr is not None
        assert b"echo: description" in gateway.process.stderr.read()
    assert "result" in tools and "'isError': False" in str(answer)
    (call,) = AuditReader(store).calls()
    assert call.fields("intent")["pin_changes"] == ["description"]


def test_a_server_that_is_called_before_its_tools_are_listed_is_compared_as_well(pins: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--pins", pins, "--name", "shop", server=CHANGED, stderr=subprocess.DEVNULL) as gateway:
        gateway.begin()
        gateway.call(1, "fail", "x")
        assert "echo: description" in str(gateway.message()["result"])


def test_a_list_of_tools_in_a_message_that_is_no_json_does_not_pass(pins: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--pins", pins, "--name", "shop") as gateway:
        gateway.begin()
        line = '{"jsonrpc":"2.0","id":1,"result":{"tools":[]},}'
        gateway.send(json.dumps({"jsonrpc": "2.0", "method": "print", "params": {"line": line}}).encode())
        gateway.ask(1, "ping")
        assert gateway.message()["result"] == {}
