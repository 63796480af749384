"""A gateway that is killed: no call has reached the server without its intent in the trail."""

from __future__ import annotations

import json
import random
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mcp.proxied import Proxied, proxied
from traced_tools.audit import AuditReader
from traced_tools.audit.keys import load_key

ROUNDS = 12


@pytest.mark.slow
def test_a_killed_gateway_leaves_no_started_call_without_its_intent(tmp_path: Path) -> None:
    store, chance = tmp_path / "audit.db", random.Random(20)
    calls: list[dict[str, object]] = []
    for number in range(ROUNDS):
        folder = tmp_path / str(number)
        folder.mkdir()
        with proxied(folder, "--audit", str(store)) as gateway:
            gateway.begin()
            client = threading.Thread(target=call_until_the_end, args=[gateway, number])
            client.start()
            for _ in range(chance.randrange(40)):
                gateway.line()
            gateway.process.kill()
            client.join()
        calls += complete_calls(gateway)
    key = load_key(None, store)
    intents = {call.fields("intent")["arguments"]["digest"] for call in AuditReader(store).calls()}
    digests = {key.content(json.dumps(call["arguments"]), is_json=True)["digest"] for call in calls}
    assert len(digests) == len(calls) > ROUNDS
    assert digests <= intents


def call_until_the_end(gateway: Proxied, number: int) -> None:
    """Send calls without waiting for their answers until the gateway is gone."""
    with suppress(OSError):
        for call in range(200):
            gateway.call(call, "echo", f"{number}.{call}")


def complete_calls(gateway: Proxied) -> list[dict[str, object]]:
    """Return the parameters of the calls whose lines the server has got as a whole."""
    lines = gateway.ledger.read_bytes().splitlines(keepends=True)
    messages = [json.loads(line) for line in lines if line.endswith(b"\n")]
    return [message["params"] for message in messages if message.get("method") == "tools/call"]
