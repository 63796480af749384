"""Runs workflows of DBOS in SQLite, with a step where a run of traced_tools makes a record."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from dbos import DBOS

from tests.bench.peers.worker import Setup, add, serve


@DBOS.step()
def answer(iteration: int) -> str:
    """Return the answer that asks for the tool, as JSON."""
    return json.dumps({"id": f"call_{iteration}", "name": "add", "arguments": {"a": 41, "b": 1}})


@DBOS.step()
def begin(call_id: str) -> str:
    """Return the id of the call that begins."""
    return call_id


@DBOS.step()
def perform(a: int, b: int) -> int:
    """Run the tool."""
    return add(a, b)


@DBOS.workflow()
def agent(passes: int) -> None:
    """Make the passes of a run."""
    for iteration in range(passes):
        call = json.loads(answer(iteration))
        begin(call["id"])
        perform(**call["arguments"])


def main() -> None:
    """Serve the workflows while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder:
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{folder}/dbos.db"})
        DBOS.launch()

        def blocking(passes: int) -> Callable[[], Any]:
            return lambda: agent(passes)

        serve(Setup(version("dbos"), {"blocking": blocking}))
        DBOS.destroy()


if __name__ == "__main__":
    main()
