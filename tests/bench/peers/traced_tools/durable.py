"""Drives durable runs of this checkout, whose log is in SQLite: a pass has three records."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from tests.bench.peers.worker import ANSWER, QUESTION, Setup, add, serve
from tests.bench.workload import NO_LIMITS, CountingModel
from traced_tools import ChatClient, __version__
from traced_tools.approvals import PendingStore


def main() -> None:
    """Serve the runs while the folder of the database exists."""
    with tempfile.TemporaryDirectory() as folder, PendingStore(Path(folder) / "runs.db") as store:
        numbers = count()

        def blocking(passes: int) -> Callable[[], Any]:
            client = ChatClient(CountingModel(passes + 1), tools=[add], limits=NO_LIMITS, pending_store=store)

            def run() -> None:
                key = f"run-{next(numbers)}"
                client.submit(QUESTION, key=key)
                assert client.drive(key).content == ANSWER

            return run

        serve(Setup(__version__, {"blocking": blocking}))


if __name__ == "__main__":
    main()
