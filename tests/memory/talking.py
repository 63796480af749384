"""A process that talks with an agent that remembers, until a test kills it.

    python -m tests.memory.talking URL ORDER

It prints a line for each step of the tool loop: what the model is sent, and each tool that runs.
"""

from __future__ import annotations

import itertools
import sys

from tests.memory.conversations import assert_well_formed, remembering
from traced_tools import ToolCall, tool
from traced_tools.memory import SqlChatMemoryRepository
from traced_tools.models import ChatRequest


@tool
def work(step: int) -> str:
    """Work."""
    print(f"working on {step}", flush=True)
    return f"done {step}" * 1_000


def answer(request: ChatRequest) -> list[str | ToolCall]:
    assert_well_formed(request.messages)
    print(f"sent {len(request.messages)}", flush=True)
    last = request.messages[-1]
    return ["Done."] if last.role == "tool" else [ToolCall("work", {"step": step}) for step in range(2)]


def main() -> None:
    client, _ = remembering([answer] * 10_000, SqlChatMemoryRepository(sys.argv[1]), order=int(sys.argv[2]))
    for number in itertools.count():
        client.prompt(f"Work on {number}.", conversation_id="c", tools=[work]).call()


if __name__ == "__main__":
    main()
