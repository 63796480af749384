"""Runs of LangChain's `create_agent` that pause for an approval and resume, with LangGraph's checkpointer in SQLite."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.metadata import version
from itertools import count
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.types import Command

from tests.bench.peers.langchain.loop import INPUT, ScriptedModel
from tests.bench.peers.worker import ANSWER, Setup, add, serve

APPROVE: Command[Any] = Command(resume={"decisions": [{"type": "approve"}]})


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder, SqliteSaver.from_conn_string(f"{folder}/memory.db") as saver:
        conversations = count()

        def blocking(passes: int) -> Callable[[], Any]:
            approval = HumanInTheLoopMiddleware({"add": True})
            agent = create_agent(ScriptedModel(passes=passes), [add], middleware=[approval], checkpointer=saver)

            def run() -> None:
                config: Any = {"configurable": {"thread_id": f"c-{next(conversations)}"}}
                assert "__interrupt__" in agent.invoke(INPUT, config)
                assert agent.invoke(APPROVE, config)["messages"][-1].content == ANSWER

            return run

        serve(Setup(version("langchain"), {"blocking": blocking}))


if __name__ == "__main__":
    main()
