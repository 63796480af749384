"""Runs passes of the OpenAI Agents SDK with a session in SQLite, which saves the items of each pass."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

from agents import Runner, SQLiteSession

from tests.bench.peers.openai_agents.loop import agent_with, turn_telemetry_off
from tests.bench.peers.worker import ANSWER, QUESTION, Setup, add, serve


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder:
        conversations = count()

        def blocking(passes: int) -> Callable[[], Any]:
            agent = agent_with(add, passes)

            def run() -> None:
                session = SQLiteSession(f"c-{next(conversations)}", Path(folder) / "memory.db")
                result = Runner.run_sync(agent, QUESTION, max_turns=passes + 1, session=session)
                session.close()
                assert result.final_output == ANSWER

            return run

        serve(Setup(version("openai-agents"), {"blocking": blocking}, turn_telemetry_off=turn_telemetry_off))


if __name__ == "__main__":
    main()
