"""Runs of this checkout that pause for an approval in a pending store and resume from it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.peers.worker import ANSWER, QUESTION, Setup, add, serve
from tests.bench.workload import CountingModel
from traced_tools import Approve, ChatClient, __version__, tool
from traced_tools.approvals import PendingStore


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder, PendingStore(Path(folder) / "pending.db") as store:

        def blocking(passes: int) -> Callable[[], Any]:
            client = ChatClient(
                CountingModel(passes + 1), tools=[tool(requires_approval=True)(add)], pending_store=store
            )

            def run() -> None:
                paused = client.prompt(QUESTION).call()
                assert paused.state is not None
                assert client.resume(paused.state, {"call_0": Approve(by="ana")}).call().text == ANSWER

            return run

        serve(Setup(__version__, {"blocking": blocking}))


if __name__ == "__main__":
    main()
