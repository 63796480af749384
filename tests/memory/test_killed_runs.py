"""A process that is killed while its agent works leaves a conversation that goes on in another process."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from tests.memory.conversations import INSIDE, OUTSIDE, assert_well_formed, remembering
from traced_tools import AssistantMessage, ToolMessage
from traced_tools.memory import MessageEntry, SqlChatMemoryRepository

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("order", [OUTSIDE, INSIDE])
def test_a_conversation_goes_on_after_its_process_is_killed(url: str, order: int) -> None:
    chance = random.Random(order)
    for kill in range(1, 5):
        command = [sys.executable, "-m", "tests.memory.talking", url, str(order)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(chance.randint(1, 12)):
                line = process.stdout.readline()
                assert line, process.stderr.read()
            process.kill()
        with SqlChatMemoryRepository(url) as repository:
            client, model = remembering(["Where were we?"], repository, order=order)
            client.prompt(f"Kill {kill}.", conversation_id="c").call()
            assert_well_formed(model.requests[-1].messages)
            entries = [entry for entry in repository.read("c").entries if isinstance(entry, MessageEntry)]
    asked = [call for entry in entries for call in _calls(entry)]
    answered = [
        part.call_id for entry in entries if isinstance(entry.message, ToolMessage) for part in entry.message.results
    ]
    assert len(asked) == len(answered) or order == OUTSIDE
    assert (order == INSIDE) is any(entry.placeholder for entry in entries)


def _calls(entry: MessageEntry) -> tuple[object, ...]:
    return entry.message.tool_calls if isinstance(entry.message, AssistantMessage) else ()
