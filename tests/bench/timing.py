"""Interleaved timing: each case once a round, the thread's own CPU time beside wall time, garbage collector off."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """Something to time: `function` does it `number` times."""

    function: Callable[[], None]
    number: int = 1


class Series:
    """The microseconds of each round, by the thread's CPU clock and on the wall.

    `fastest` is the best round's; of a slope it is the slope between the best rounds, not the best of the slopes, which
    would be that of the round whose shorter run was disturbed.
    """

    def __init__(self, cpu: list[float], wall: list[float], fastest: float | None = None) -> None:
        self.cpu = cpu
        self.wall = wall
        self._fastest = fastest

    @property
    def fastest(self) -> float:
        """The best round by CPU time."""
        return min(self.cpu) if self._fastest is None else self._fastest

    def slope(self, shorter: Series, passes: int) -> Series:
        """Return microseconds a pass, given that this series has so many more passes than `shorter`, round by round."""
        cpu, wall = _differences(self.cpu, shorter.cpu, passes), _differences(self.wall, shorter.wall, passes)
        return Series(cpu, wall, (self.fastest - shorter.fastest) / passes)

    def per(self, passes: int) -> Series:
        """Return microseconds a pass for a series of so many."""
        return Series([each / passes for each in self.cpu], [each / passes for each in self.wall])

    def ratio(self, other: Series) -> float:
        """Return the median of the rounds' ratios: what disturbs a round disturbs both."""
        return statistics.median(own / floor for own, floor in zip(self.cpu, other.cpu, strict=True))


def _differences(longer: list[float], shorter: list[float], passes: int) -> list[float]:
    return [(long - short) / passes for long, short in zip(longer, shorter, strict=True)]


def sample(cases: Mapping[str, Case], rounds: int, settle: Callable[[], None]) -> dict[str, Series]:
    """Time each case once a round, beginning with another one each round; `settle` runs before each, untimed."""
    names = list(cases)
    series = {name: Series([], []) for name in names}
    for case in cases.values():
        case.function()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for turn in range(rounds):
            start = turn % len(names)
            for name in names[start:] + names[:start]:
                settle()
                _time(cases[name], series[name])
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    return series


def _time(case: Case, series: Series) -> None:
    wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
    case.function()
    used, passed = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
    series.cpu.append(used / case.number / 1000)
    series.wall.append(passed / case.number / 1000)
