"""A stream that the garbage collector ends may be ended anywhere, also where a lock of the SDK is held."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterable
from typing import Any

import pytest

from tests.helpers import Telemetry
from traced_tools import ChatClient
from traced_tools.telemetry import names
from traced_tools.telemetry import run as telemetry_run
from traced_tools.testing import ScriptedChatModel


def abandon(telemetry: Telemetry) -> None:
    """Leave a stream behind that only the garbage collector finds."""
    stream = ChatClient(ScriptedChatModel(["one two three"]), telemetry=telemetry.options).prompt("?").stream()
    next(stream)
    cycle: list[Any] = [stream]
    cycle.append(cycle)


@pytest.fixture
def telemetry() -> Iterable[Telemetry]:
    gc.disable()
    yield Telemetry()
    gc.enable()


def test_its_span_ends_at_once_and_its_metrics_are_counted_with_the_next_run(telemetry: Telemetry) -> None:
    abandon(telemetry)
    gc.collect()
    (span,) = telemetry.named("invoke_agent assistant")
    assert (span.attributes or {})[names.ERROR_TYPE] == names.CANCELLED
    assert [point.total for point in telemetry.metric(names.RUN_ACTIVE.name)] == [0]
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    counted = {point.labels.get(names.ERROR_TYPE) for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)}
    assert counted == {names.CANCELLED, None}


class Locked:
    """An instrument with a lock, as the SDK's have, that says so instead of waiting for ever."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.recorded = 0

    def record(self, *arguments: Any) -> None:
        if not self.lock.acquire(blocking=False):
            raise RuntimeError("this thread would wait for itself")
        self.recorded += 1
        self.lock.release()


def test_nobody_waits_for_a_lock_that_is_held_where_the_collector_strikes(telemetry: Telemetry) -> None:
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    instruments, locked = telemetry_run._INSTRUMENTS[telemetry.meter_provider], Locked()
    assert instruments is not None
    instruments.invoke_agent_duration = locked  # type: ignore[assignment]
    abandon(telemetry)
    with locked.lock:
        gc.collect()
    assert len(telemetry.named("invoke_agent assistant")) == 2
    ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?").call()
    assert locked.recorded == 2
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
