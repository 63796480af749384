"""A pass of a durable run makes the same calls of functions and the same bytes of its log, however long the run."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from sqlalchemy import func, select

from tests.function_calls import calls_of
from tests.sample_tools import add
from traced_tools import ChatClient, LoopLimits, ToolCall
from traced_tools.approvals import PendingStore
from traced_tools.approvals.pending_schema import RUN_RECORDS
from traced_tools.testing import ScriptedChatModel

PASSES = (10, 40, 160)
MOST_GROWTH = 1.05
NO_LIMITS = LoopLimits(None, None, None, None, None, None)


@pytest.mark.parametrize("mode", ["drive", "adrive"])
def test_a_pass_of_a_durable_run_costs_the_same_however_many_there_were_before(tmp_path: Path, mode: str) -> None:
    calls, sizes = [], []
    with PendingStore(tmp_path / "runs.db") as store:
        for passes in (PASSES[0], *PASSES):  # the first run imports what is imported on first use
            numbers = range(1_000, 1_000 + passes)  # all messages have the same length
            turns = [ToolCall("add", {"a": number, "b": 1}, id=f"c{number}") for number in numbers]
            model = ScriptedChatModel([*turns, "Done."])
            client = ChatClient(model, tools=[add], limits=NO_LIMITS, pending_store=store)
            key = f"{len(calls)}"
            client.submit("Go.", key=key)

            def drive(client: ChatClient = client, key: str = key) -> None:
                run = client.drive(key) if mode == "drive" else asyncio.run(client.adrive(key))
                assert run.status == "finished"

            calls.append(calls_of(drive))
            sizes.append(_size(store, key))
    for costs in (calls[1:], sizes[1:]):
        first, second = (cost - before for before, cost in pairwise(costs))
        assert second / (PASSES[2] - PASSES[1]) < MOST_GROWTH * first / (PASSES[1] - PASSES[0])


def _size(store: PendingStore, key: str) -> int:
    """Return the number of characters of a log."""
    query = select(func.sum(func.length(RUN_RECORDS.c.body))).where(RUN_RECORDS.c.key == key)
    with store.due_runs.database.connect() as connection:
        return int(connection.execute(query).scalar_one())
