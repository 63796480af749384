"""Runs passes of this checkout with a memory in SQLite inside the loop, which appends each message."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.bench.peers.worker import QUESTION, Setup, add, serve
from tests.bench.workload import NO_LIMITS, CountingModel
from traced_tools import ChatClient, MemoryAdvisor, __version__
from traced_tools.memory import MessageWindowChatMemory, SqlChatMemoryRepository


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder, SqlChatMemoryRepository(Path(folder) / "memory.db") as repository:
        memory = MemoryAdvisor(MessageWindowChatMemory(repository), order=400)
        conversations = count()

        def blocking(passes: int) -> Callable[[], Any]:
            client = ChatClient(CountingModel(passes + 1), tools=[add], limits=NO_LIMITS, advisors=[memory])
            return lambda: client.prompt(QUESTION, conversation_id=f"c-{next(conversations)}").call()

        serve(Setup(__version__, {"blocking": blocking}))


if __name__ == "__main__":
    main()
