"""Runs passes of LangChain's `create_agent` with LangGraph's checkpointer in SQLite, which saves each step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from typing import Any

from langchain.agents import create_agent
from langgraph.checkpoint.sqlite import SqliteSaver

from tests.bench.peers.langchain.loop import INPUT, ScriptedModel
from tests.bench.peers.worker import ANSWER, Setup, add, serve


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder, SqliteSaver.from_conn_string(f"{folder}/memory.db") as saver:
        conversations = count()

        def blocking(passes: int) -> Callable[[], Any]:
            agent = create_agent(ScriptedModel(passes=passes), [add], checkpointer=saver)

            def run() -> None:
                conversation = {"thread_id": f"c-{next(conversations)}"}
                config: Any = {"recursion_limit": 2 * passes + 2, "configurable": conversation}
                assert agent.invoke(INPUT, config)["messages"][-1].content == ANSWER

            return run

        serve(Setup(version("langchain"), {"blocking": blocking}))


if __name__ == "__main__":
    main()
