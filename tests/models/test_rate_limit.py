"""`RateLimitedModel` sends no more requests in any minute than its limits allow, in whatever threads and modes."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captured import Telemetry
from tests.modes import ALL_MODES, arun, run
from tests.otel.processes import in_a_process
from tests.waiting import in_time, patiently, until
from traced_tools import ChatClient, ConfigurationError, LoopLimits, ModelError, RateLimited, Usage
from traced_tools.flow.steps import Pause
from traced_tools.models import FallbackModel, RateLimitedModel
from traced_tools.models import rate_limit as module
from traced_tools.models.rate_limit import RateLimit
from traced_tools.testing import ScriptedChatModel

WAITS = "traced_tools.model.rate_limit_wait"


class Clock:
    """A clock that pauses advance."""

    def __init__(self) -> None:
        self.now = math.floor(time.monotonic())  # deadlines of runs are on the real clock
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    """A clock for rate limits and their pauses, which take no time."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)

    async def arun(self: Pause) -> None:
        clock.pass_by(self._seconds)

    monkeypatch.setattr(Pause, "run", lambda self: clock.pass_by(self._seconds))
    monkeypatch.setattr(Pause, "arun", arun)
    yield clock


def asking(model: RateLimitedModel, telemetry: Telemetry, **settings: Any) -> Any:
    return ChatClient(model, telemetry=telemetry.options, **settings).prompt("?")


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_request_beyond_the_limit_waits_until_the_oldest_is_a_minute_old(
    mode: str, clock: Clock, telemetry: Telemetry
) -> None:
    model = RateLimitedModel(ScriptedChatModel(["x"] * 5), requests_per_minute=2)
    for passed, pauses in [(0, []), (20, []), (10, [30]), (0, [20]), (70, [])]:
        clock.now += passed
        clock.pauses.clear()
        assert run(mode, asking(model, telemetry)).content == "x"
        assert clock.pauses == pauses
    (point,) = telemetry.metric(WAITS)
    assert (point.count, point.sum) == (5, 50.0)
    assert point.attributes["gen_ai.request.model"] == "scripted"
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_request_waits_while_the_tokens_of_a_minute_are_spent(mode: str, clock: Clock, telemetry: Telemetry) -> None:
    usage = [Usage(input_tokens=tokens, output_tokens=0) for tokens in (60, 60, 10, 1000, 1)]
    model = RateLimitedModel(ScriptedChatModel(["x"] * 5, usage=usage), tokens_per_minute=100)
    # spent before each request: 0, 60, 120 (60 once the first has expired), 70, 1010 (10 s ago)
    for passed, pauses in [(0, []), (20, []), (10, [30]), (0, []), (10, [50])]:
        clock.now += passed
        clock.pauses.clear()
        run(mode, asking(model, telemetry))
        assert clock.pauses == pauses


def test_answers_without_usable_token_counts_count_none(clock: Clock, telemetry: Telemetry) -> None:
    usage = Usage(input_tokens=-5, output_tokens=2**60)
    model = RateLimitedModel(ScriptedChatModel([*["x"] * 3], usage=usage), tokens_per_minute=1)
    for _ in range(3):
        run("call", asking(model, telemetry))
    assert clock.pauses == []


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_failed_request_counts_as_a_request(mode: str, clock: Clock, telemetry: Telemetry) -> None:
    model = RateLimitedModel(ScriptedChatModel([ModelError("down"), "x"]), requests_per_minute=1)
    with pytest.raises(ModelError):
        run(mode, asking(model, telemetry))
    run(mode, asking(model, telemetry))
    assert clock.pauses == [60]


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_request_that_would_wait_past_the_deadline_fails_at_once(
    mode: str, clock: Clock, telemetry: Telemetry
) -> None:
    inner = ScriptedChatModel(["x", "y"])
    model = RateLimitedModel(inner, requests_per_minute=1)
    run(mode, asking(model, telemetry))
    spec = ChatClient(model, telemetry=telemetry.options).prompt("?", limits=LoopLimits(max_seconds=30))
    with pytest.raises(RateLimited) as raised:
        run(mode, spec)
    assert clock.pauses == []
    assert (raised.value.retryable, raised.value.retry_after, len(inner.requests)) == (True, 60.0, 1)
    assert "60 s" in str(raised.value)
    telemetry.check_each_ended_once()


@pytest.mark.parametrize("mode", ALL_MODES)
def test_another_model_answers_if_the_wait_is_too_long(mode: str, clock: Clock) -> None:
    limited = RateLimitedModel(ScriptedChatModel(["first"]), requests_per_minute=1)
    model = FallbackModel([limited, ScriptedChatModel(["second"])])
    client = ChatClient(model, limits=LoopLimits(max_seconds=30))
    assert [run(mode, client.prompt("?")).content for _ in range(2)] == ["first", "second"]
    assert clock.pauses == []


def test_a_run_that_is_cancelled_during_a_wait_sends_nothing_and_takes_no_turn(
    async_mode: str, telemetry: Telemetry
) -> None:
    inner = ScriptedChatModel(["x", "y"])
    model = RateLimitedModel(inner, requests_per_minute=1)
    waiting = threading.Event()

    class Begun(RateLimit):
        def begin(self) -> float | None:
            seconds = super().begin()
            if seconds is not None:
                waiting.set()
            return seconds

    model._limit = limit = Begun(1, None)

    async def main() -> None:
        await arun(async_mode, asking(model, telemetry))
        task = asyncio.create_task(arun(async_mode, asking(model, telemetry)))
        await asyncio.to_thread(until, waiting.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(main()))
    assert (len(inner.requests), len(limit._begun)) == (1, 1)
    telemetry.check_each_ended_once()


# The limit itself.

STEPS = st.lists(st.tuples(st.floats(0, 90), st.integers(0, 50)), max_size=40)


@given(STEPS, st.none() | st.integers(1, 4), st.none() | st.integers(1, 100))
def test_no_minute_has_more_requests_than_the_limit_and_none_begins_while_the_tokens_are_spent(
    steps: list[tuple[float, int]], requests: int | None, tokens: int | None
) -> None:
    clock, begun, spent = Clock(), list[float](), list[tuple[float, int]]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "time", clock)
        limit = RateLimit(requests, tokens)
        for passed, used in steps:
            clock.now += passed
            if (seconds := limit.begin()) is not None:
                assert seconds > 0
                clock.now += seconds
                while (rest := limit.begin()) is not None:  # rounding, or tokens
                    assert 0 < rest <= 60
                    clock.now += rest
            begun.append(clock.now)
            recent = sum(count for when, count in spent if when + 60 > clock.now)
            assert tokens is None or recent < tokens
            limit.spend(used)
            spent.append((clock.now, used))
    if requests is not None:
        for first, later in zip(begun, begun[requests:], strict=False):
            assert first + 60 <= later


def test_threads_share_a_limit(clock: Clock) -> None:
    model = RateLimitedModel(ScriptedChatModel(["x"] * 40), requests_per_minute=40)
    client = ChatClient(model)
    threads = [threading.Thread(target=lambda: [client.prompt("?").call() for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        in_time(thread.join)
    assert clock.pauses == []
    assert model._limit.begin() == 60


def test_a_forked_child_begins_anew_even_if_a_thread_holds_the_lock() -> None:
    done = in_a_process(
        """
import signal
from traced_tools.models.rate_limit import RateLimit
limit = RateLimit(1, None)
assert limit.begin() is None and limit.begin() is not None
with limit._lock:
    if not (child := os.fork()):
        signal.alarm(20)
        os._exit(limit.begin() is not None)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert (done.stdout, done.stderr) == ("0\n", "")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({}, ConfigurationError),
        ({"requests_per_minute": 0}, ValueError),
        ({"requests_per_minute": 1.5}, TypeError),
        ({"tokens_per_minute": -1}, ValueError),
    ],
    ids=repr,
)
def test_wrong_limits_are_refused(settings: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        RateLimitedModel(ScriptedChatModel([]), **settings)
