"""Flows of one step that wait for each other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traced_tools.flow.flow import Flow, acall, call
from traced_tools.flow.steps import AwaitOthers, ParallelFlows, perform

WAVES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=3)
"""How often each flow of each group waits."""


class Waves(ParallelFlows[int]):
    """Flows in groups."""

    def __init__(self, waves: Sequence[Sequence[Flow[int]]], limit: int) -> None:
        super().__init__([], limit)
        self._waves = waves

    def waves(self) -> Sequence[Sequence[Flow[int]]]:
        return self._waves


@pytest.mark.parametrize("how", [call, lambda flow: asyncio.run(acall(flow))])
@given(
    waves=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=3), limit=st.integers(1, 5)
)
def test_no_flow_goes_on_before_each_other_one_has_ended_or_waits(
    how: object, waves: list[list[int]], limit: int
) -> None:
    """0 ends without waiting, 1 waits, 2 waits twice."""
    log: list[str] = []

    async def one(number: int, waits: int) -> int:
        await perform(log.append, "before")
        for _ in range(waits):
            await AwaitOthers()
        if waits:
            await perform(log.append, "after")
        return number

    async def whole() -> list[int]:
        numbers = iter(range(100))
        return await Waves([[one(next(numbers), waits) for waits in wave] for wave in waves], limit)

    assert how(whole()) == list(range(sum(map(len, waves))))
    flat = [waits for wave in waves for waits in wave]
    assert log == ["before"] * len(flat) + ["after"] * sum(waits > 0 for waits in flat)
