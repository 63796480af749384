"""A process can report the calls that wait in a store as metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.approvals.made import claimed, kept, paused
from tests.captured import Telemetry
from tests.markers import MARKER
from tests.memory.sql_store import execute
from traced_tools import Approve, ChatClient, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.observe import names
from traced_tools.testing import ScriptedChatModel

Waiting = dict[object, tuple[float, float]]


@pytest.fixture
def telemetry() -> Telemetry:
    return Telemetry()


def reported(telemetry: Telemetry) -> Waiting:
    """The number of calls and the age of the oldest, by agent."""
    calls, oldest = (telemetry.metric(each.name) for each in (names.PENDING_STORE_CALLS, names.PENDING_STORE_OLDEST))
    ages = {each.attributes[names.AGENT_NAME]: each.value for each in oldest}
    return {(agent := each.attributes[names.AGENT_NAME]): (each.value, ages[agent]) for each in calls}


def test_the_calls_that_wait_and_the_age_of_the_oldest_are_reported_by_agent(
    store: PendingStore, clock: Callable[[float], None], telemetry: Telemetry
) -> None:
    store.report_metrics(telemetry.options)
    kept(store, paused("a", "b", agent="desk"))
    kept(store, paused("c", run_id="run-2", agent="shop"))
    clock(90)
    assert reported(telemetry) == {"desk": (2, 90), "shop": (1, 90)}


def test_calls_that_are_decided_or_whose_run_goes_on_are_reported_as_0(
    store: PendingStore, clock: Callable[[float], None], telemetry: Telemetry
) -> None:
    store.report_metrics(telemetry.options)
    kept(store, paused("a", agent="desk"))
    state = kept(store, paused("b", run_id="run-2", agent="shop"))
    clock(5)
    assert reported(telemetry) == {"desk": (1, 5), "shop": (1, 5)}
    store.decide("a", Approve(by="ana"))
    claimed(store, state)
    assert reported(telemetry) == {"desk": (0, 0), "shop": (0, 0)}


Durable = dict[tuple[object, object], tuple[float, float]]


def reported_durable(telemetry: Telemetry) -> Durable:
    """The number of durable runs and the age of the oldest, by agent and status."""
    ages = {
        tuple(point.attributes.values()): point.value for point in telemetry.metric(names.PENDING_STORE_OLDEST_RUN.name)
    }
    points = telemetry.metric(names.PENDING_STORE_RUNS.name)
    return {
        (point.attributes[names.AGENT_NAME], point.attributes[names.DURABLE_RUN_STATUS]): (
            point.value,
            ages[tuple(point.attributes.values())],
        )
        for point in points
    }


def test_durable_runs_are_reported_by_agent_and_status_until_they_end(
    store: PendingStore, clock: Callable[[float], None], telemetry: Telemetry
) -> None:
    store.report_metrics(telemetry.options)
    desk = ChatClient(ScriptedChatModel(["done"] * 2), name="desk", pending_store=store)
    shop = desk.replace(name="shop")
    for client, key in ((desk, "d1"), (desk, "d2"), (shop, "s1")):
        client.submit(MARKER, key=key, principal=MARKER)
        clock(30)
    clock(90)
    assert reported_durable(telemetry) == {("desk", "submitted"): (2, 90), ("shop", "submitted"): (1, 60)}
    desk.drive("d1")
    store.run_logs.withdraw("s1")
    assert reported_durable(telemetry) == {("desk", "submitted"): (1, 60), ("shop", "submitted"): (0, 0)}


def test_a_run_that_is_running_is_as_old_as_its_last_record(
    store: PendingStore, clock: Callable[[float], None], telemetry: Telemetry
) -> None:
    @tool
    def look() -> str:
        """Look."""
        clock(130)
        ages.append(reported_durable(telemetry))
        return "seen"

    def answer_late(_: object) -> ToolCall:
        clock(100)
        return ToolCall("look", {}, id="c1")

    ages: list[Durable] = []
    store.report_metrics(telemetry.options)
    client = ChatClient(ScriptedChatModel([answer_late, "done"]), name="desk", tools=[look], pending_store=store)
    client.submit("Go.", key="k")
    client.drive("k")
    assert ages == [{("desk", "running"): (1, 30)}]
    assert reported_durable(telemetry) == {("desk", "running"): (0, 0)}


def test_a_store_that_does_not_report_and_a_closed_store_have_no_metrics(path: Path, telemetry: Telemetry) -> None:
    with PendingStore(path) as store:
        kept(store, paused("a"))
        assert reported(telemetry) == {}
        store.report_metrics(telemetry.options)
    assert reported(telemetry) == {}


def test_a_store_that_fails_is_counted_and_the_collection_goes_on(
    path: Path, telemetry: Telemetry, caplog: pytest.LogCaptureFixture
) -> None:
    with PendingStore(path) as store:
        kept(store, paused("a", principal=MARKER))
        store.report_metrics(telemetry.options)
        execute(f"sqlite:///{path}", "DROP TABLE pending_calls")
        assert reported(telemetry) == {}
        (failures,) = telemetry.metric(names.TELEMETRY_FAILURES.name)
    assert failures.value == 2  # one of each collection
    assert "the gauges of a pending store raised" in caplog.text
    assert MARKER not in caplog.text
