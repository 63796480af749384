"""`Scenario`: plays every outcome again and again, in an order that its seed decides."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count as count_up
from itertools import islice
from random import Random

from traced_tools.core.checks import expect, expect_each, expect_positive, expect_whole
from traced_tools.demo.scenario.outcomes import OUTCOMES, Outcome
from traced_tools.demo.scenario.stage import ScenarioRun, Stage
from traced_tools.observe.run_telemetry import TelemetryOptions

_MOST_RUNS_AT_ONCE = 16


class Scenario:
    """Runs of the real loop with scripted models and tools that produce every outcome, for dashboards and alert rules.

    The runs come in rounds. Each round has every outcome, most of them once, in an order that the seed decides.
    Without an outcome, all other runs stay as they are. Nothing leaves the machine but the telemetry, and the telemetry
    has no content unless its options ask for it.

    Args:
        seed: decides the order of the outcomes, and the mode, latencies, tokens and calls of each run.
        without: the names of the outcomes that are left out; `OUTCOMES` has all names.

    Raises:
        ValueError: `without` has an unknown name, or all names.
    """

    def __init__(self, *, seed: int = 0, without: Iterable[str] = ()) -> None:
        expect_whole("seed", seed, 0)
        if isinstance(without, str):
            raise TypeError("without must be a list of names: Scenario(without=['tool_timeout'])")
        left_out = tuple(without)
        expect_each("without", left_out, str, "a str")
        if unknown := [name for name in left_out if name not in OUTCOMES]:
            raise ValueError(f"without has unknown names: {', '.join(unknown)}; the names are {', '.join(OUTCOMES)}")
        self.seed = seed
        self.outcomes = {name: outcome for name, outcome in OUTCOMES.items() if name not in left_out}
        if not self.outcomes:
            raise ValueError("without has all outcomes: nothing is left to run")

    def __repr__(self) -> str:
        return f"<Scenario {self.seed}: {len(self.outcomes)} of {len(OUTCOMES)} outcomes>"

    @property
    def runs_per_round(self) -> int:
        """The number of runs in a round, after which every outcome has occurred."""
        return sum(outcome.share for outcome in self.outcomes.values())

    def run(
        self,
        *,
        count: int | None = None,
        duration: float | None = None,
        rate: float | None = None,
        telemetry: TelemetryOptions | None = None,
        on_progress: Callable[[Counter[str]], object] = bool,
        on_unexpected: Callable[[Exception], object] | None = None,
    ) -> Counter[str]:
        """Run the scenario in real time, blocking, and return how many runs had each outcome.

        Up to 16 runs are active at once: in threads, on one event loop, or both. With `duration` or `rate`, latencies
        are five times as long and an audit trail cannot be written for one to six seconds, so that a scraper sees
        active runs and the lag of the trail.

        Args:
            count: the number of runs; by default one round, or as many as `duration` has time for.
            duration: seconds after which no run starts.
            rate: runs that start per second; None for as many as possible.
            telemetry: what to emit, and where to; by default the global providers. Without `prices`, the scenario's
                own price table applies.
            on_progress: called with the outcomes so far after each start of a run.
            on_unexpected: called with the error of each run that ends in another way than its outcome says, as can
                happen on an overloaded machine; None to raise it.

        Raises:
            AssertionError: a run ended in another way than its outcome says, and there is no `on_unexpected`.
        """
        if count is not None:
            expect_whole("count", count, 1)
        expect("duration", duration, (int, float, type(None)), "a number of seconds or None")
        expect_positive("duration", duration)
        expect_positive("rate", rate)
        most = self.runs_per_round if count is None and duration is None else count
        is_watched = duration is not None or rate is not None
        with Stage(telemetry or TelemetryOptions(), is_watched=is_watched) as stage:
            runs = islice(self.runs(stage), most)
            return play(runs, duration, rate, on_progress, on_unexpected)

    def runs(self, stage: Stage) -> Iterator[tuple[Outcome, ScenarioRun]]:
        """Yield the runs of one round after the other, without an end."""
        for round_number in count_up():
            shares = [outcome for outcome in OUTCOMES.values() for _ in range(outcome.share)]
            Random(f"{self.seed} {round_number}").shuffle(shares)
            for place, outcome in enumerate(shares):
                key = f"{self.seed} {round_number} {place}"
                if outcome.name in self.outcomes:
                    yield outcome, ScenarioRun(stage, f"{outcome.name} {key}", Random(key))


def play(
    runs: Iterable[tuple[Outcome, ScenarioRun]],
    duration: float | None = None,
    rate: float | None = None,
    on_progress: Callable[[Counter[str]], object] = bool,
    on_unexpected: Callable[[Exception], object] | None = None,
) -> Counter[str]:
    """Play runs, up to 16 at once, and return how many had each outcome; see `Scenario.run`."""
    began, outcomes = time.monotonic(), Counter[str]()
    active: set[Future[None]] = set()

    def report(finished: set[Future[None]]) -> None:
        for future in finished:
            try:
                future.result()
            except Exception as error:
                if on_unexpected is None:
                    raise
                on_unexpected(error)

    with ThreadPoolExecutor(_MOST_RUNS_AT_ONCE, "traced_tools-scenario") as pool:
        for number, (outcome, run) in enumerate(runs):
            if rate is not None:
                time.sleep(max(0.0, began + number / rate - time.monotonic()))
            if len(active) >= _MOST_RUNS_AT_ONCE:
                finished, active = wait(active, return_when="FIRST_COMPLETED")
                report(finished)
            if duration is not None and time.monotonic() - began >= duration:
                break
            active.add(pool.submit(outcome.play, run))
            outcomes[outcome.name] += 1
            on_progress(outcomes)
        report(wait(active).done)
    return outcomes
