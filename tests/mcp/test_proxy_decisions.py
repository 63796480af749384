"""What the gateway decides about calls, what it records of them, and what no client can pass by it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.mcp.proxied import proxied
from tests.waiting import patiently, turns, until
from traced_tools import Policy, PolicyAdvisor
from traced_tools.audit import AuditAdvisor, AuditReader, AuditTrail
from traced_tools.mcp.proxy.gate import Gate
from traced_tools.mcp.proxy.relay import Relay
from traced_tools.mcp.scopes import McpEndpoint

POLICY = """
default: allow
rules:
  - id: no-secrets
    tool: echo
    where: {text: {in: [secret]}}
    then: deny
    reason: secrets stay here
  - id: ask-first
    tool: fail
    then: require_approval
    reason: it fails
"""


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def text_of(message: dict[str, Any]) -> str:
    text: str = message["result"]["content"][0]["text"]
    return text


# Policies.


def test_a_denied_call_is_answered_for_the_model_and_never_reaches_the_server(policy: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--policy", policy) as gateway:
        gateway.begin()
        gateway.call(1, "echo", "secret")
        answer = gateway.message()
        assert answer["result"]["isError"] is True
        assert "secrets stay here" in text_of(answer)
        gateway.call(2, "echo", "other")
        assert text_of(gateway.message()) == "other"
        assert [params["arguments"] for params in gateway.calls()] == [{"text": "other"}]


def test_a_policy_decides_on_the_arguments_as_they_came(policy: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--policy", policy) as gateway:
        gateway.begin()
        gateway.ask(1, "tools/call", name="echo", arguments={"text": 5, "unknown": None})  # the schema wants a text
        assert gateway.message()["result"]["content"][0]["text"] == 5
        gateway.ask(2, "tools/call", name="echo", arguments=["secret"])
        refusal = gateway.message()
        assert refusal["result"]["isError"] is True
        assert [params["arguments"] for params in gateway.calls()] == [{"text": 5, "unknown": None}]


HEAD = b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":'
SMUGGLED = {
    "key twice": b'{"jsonrpc":"2.0","id":9,"method":"ping","method":"tools/call","params":CALL}',
    "key in another case": b'{"jsonrpc":"2.0","id":9,"method":"ping","Method":"tools/call","params":CALL}',
    "long s": '{"jsonrpc":"2.0","id":9,"method":"tools/call","param\u017f":CALL}'.encode(),
    "argument twice": HEAD + b'{"name":"echo","arguments":{"text":"secret","text":"x"}}}',
    "arguments in another case": HEAD + b'{"name":"echo","Arguments":{"text":"secret"}}}',
    "batch": b'[{"jsonrpc":"2.0","id":9,"method":"tools/call","params":CALL}]',
    "no id": b'{"jsonrpc":"2.0","method":"tools/call","params":CALL}',
    "null as id": b'{"jsonrpc":"2.0","id":null,"method":"tools/call","params":CALL}',
    "object as id": b'{"jsonrpc":"2.0","id":{},"method":"tools/call","params":CALL}',
    "no JSON": b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":CALL,}',
    "a number that is not JSON": b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":CALL,"x":NaN}',
    "name that is no text": b'{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":["echo"]}}',
    "escaped": b'{"jsonrpc":"2.0","id":9,"method":"tools\\/c\\u0061ll","params":CALL}',
}


@pytest.mark.parametrize("line", SMUGGLED.values(), ids=SMUGGLED)
def test_no_spelling_of_a_call_passes_by_the_policy(line: bytes, policy: str) -> None:
    received: list[bytes] = []
    answers: list[bytes] = []

    async def pass_on() -> None:
        async def to_client(data: bytes) -> None:
            answers.append(data)

        async def to_server(data: bytes) -> None:
            received.append(data)
            tools = [{"name": "echo", "inputSchema": {"type": "object"}}]
            reply = {"jsonrpc": "2.0", "id": json.loads(data)["id"], "result": {"tools": tools}}
            await relay.from_server(json.dumps(reply).encode())

        gate = Gate("shop", McpEndpoint("shop", "pipe"), advisors=[PolicyAdvisor(Policy.load(policy))])
        relay = Relay(gate, to_client, to_server, to_server)
        await relay.from_client(line.replace(b"CALL", b'{"name":"echo","arguments":{"text":"secret"}}'))
        await asyncio.gather(*(call.task for call in relay._calls.values()))

    asyncio.run(patiently(pass_on()))
    assert all(json.loads(data)["method"] == "tools/list" for data in received)
    assert not any(b"result" in answer and b"isError" not in answer for answer in answers)


def test_a_cancelled_call_is_recorded_so_even_if_the_server_answers_it_at_once(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.db", key=b"a key for the tests, long enough")

    async def pass_on() -> None:
        async def to_client(data: bytes) -> None:
            pass

        async def to_server(data: bytes) -> None:
            request = json.loads(data)
            if request["method"] == "tools/list":
                tools = [{"name": "echo", "inputSchema": {"type": "object"}}]
                await answer(request["id"], result={"tools": tools})
            elif request["method"] == "tools/call":
                is_forwarded.set()
            else:
                await answer(1, error={"code": 0, "message": "cancelled"})
                await turns()

        async def answer(number: Any, **members: Any) -> None:
            await relay.from_server(json.dumps({"jsonrpc": "2.0", "id": number, **members}).encode())

        is_forwarded = asyncio.Event()
        gate = Gate("shop", McpEndpoint("shop", "pipe"), advisors=[AuditAdvisor(trail)])
        relay = Relay(gate, to_client, to_server, to_server)
        await relay.from_client(
            b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{}}}'
        )
        tasks = [call.task for call in relay._calls.values()]
        await is_forwarded.wait()
        await relay.from_client(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        await asyncio.wait(tasks)

    with trail:
        asyncio.run(patiently(pass_on()))
    (recorded,) = AuditReader(tmp_path / "audit.db").calls()
    assert recorded.fields("outcome")["outcome"] == "cancelled"


def test_a_call_on_a_line_within_a_message_stays_a_part_of_the_message(tmp_path: Path) -> None:
    with proxied(tmp_path) as gateway:
        gateway.send(b'{"a":\r{"jsonrpc":"2.0","id":9,"method":"tools/call"}\r}')
        until(lambda: gateway.ledger.read_bytes() != b"")
        assert gateway.ledger.read_bytes() == b'{"a": {"jsonrpc":"2.0","id":9,"method":"tools/call"} }\n'


# Approvals.


def test_a_call_that_requires_approval_asks_the_user_of_the_client(policy: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--policy", policy) as gateway:
        gateway.begin()
        gateway.call(1, "fail", "x")
        question = gateway.message()
        assert question["method"] == "elicitation/create"
        assert "May the tool fail run" in question["params"]["message"]
        assert gateway.calls() == []
        answer = {"action": "accept", "content": {"approve": True}}
        gateway.send(json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": answer}).encode())
        assert text_of(gateway.message()) == "failed: x"
        assert len(gateway.calls()) == 1
        assert b"approve" not in gateway.ledger.read_bytes()


def test_a_call_that_is_cancelled_while_it_waits_for_approval_never_reaches_the_server(
    policy: str, tmp_path: Path
) -> None:
    with proxied(tmp_path, "--policy", policy) as gateway:
        gateway.begin()
        gateway.call(1, "fail", "x")
        question = gateway.message()
        gateway.send(b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}')
        assert gateway.message()["params"] == {"requestId": question["id"]}
        gateway.call(2, "echo", "next")
        assert text_of(gateway.message()) == "next"
        assert [params["name"] for params in gateway.calls()] == ["echo"]
        assert b"cancelled" not in gateway.ledger.read_bytes()


def test_a_client_that_cannot_ask_its_user_gets_a_refusal(policy: str, tmp_path: Path) -> None:
    with proxied(tmp_path, "--policy", policy) as gateway:
        gateway.begin(capabilities={})
        gateway.call(1, "fail", "x")
        assert "cannot ask its user" in text_of(gateway.message())
        assert gateway.calls() == []


# The audit trail.


def test_the_trail_has_each_call_with_its_decision_and_outcome(policy: str, tmp_path: Path) -> None:
    store = tmp_path / "audit.db"
    with proxied(tmp_path, "--policy", policy, "--audit", str(store), "--name", "shop") as gateway:
        gateway.begin()
        for number, text in enumerate(["a", "secret"]):
            gateway.call(number, "echo", text)
            gateway.message()
        gateway.call(2, "refuse", "a")
        assert gateway.message()["error"]["message"] == "refused: a"
        gateway.call(3, "wait", "a")
        until(lambda: len(gateway.calls()) == 3)
        assert gateway.leave() == 0
    calls = sorted(AuditReader(store).calls(), key=lambda call: call.run_id)
    summaries = [
        (call.fields("intent")["tool"], call.fields("decision").get("decision"), call.fields("outcome").get("outcome"))
        for call in calls
    ]
    assert summaries == [
        ("echo", "allowed", "ok"),
        ("echo", "denied", None),
        ("refuse", "allowed", "error"),
        ("wait", "allowed", "unknown"),
    ]
    intent = calls[0].fields("intent")
    assert (intent["agent"], intent["source"], intent["actors"]) == ("shop", "shop", ["client:me"])
    assert calls[1].fields("decision")["reason_code"] == "no-secrets"


def test_a_call_whose_intent_cannot_be_recorded_does_not_reach_the_server(tmp_path: Path) -> None:
    store = tmp_path / "no-folder" / "audit.db"
    with proxied(tmp_path, "--audit", str(store), stderr=subprocess.DEVNULL) as gateway:
        gateway.begin()
        gateway.call(1, "echo", "a")
        answer = gateway.message()
        assert answer["result"]["isError"] is True
        assert gateway.calls() == []
        gateway.ask(2, "ping")
        assert gateway.message()["id"] == 2
