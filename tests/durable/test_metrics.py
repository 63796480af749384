"""The lives of durable runs are metrics, by agent and status."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
from typing import Any

import pytest
from sqlalchemy import update

from tests.captured import Telemetry, total
from tests.markers import MARKER
from tests.waiting import PATIENCE
from traced_tools import Approve, ChatClient, LoopLimits, ToolCall, tool
from traced_tools.approvals import PendingStore
from traced_tools.approvals.pending_schema import DURABLE_RUNS
from traced_tools.errors import LoopLimitExceeded, ModelError, RunTaken
from traced_tools.observe import names
from traced_tools.observe.names.registry_types import Metric
from traced_tools.testing import ScriptedChatModel

POST, PAY = ToolCall("post", {}, id="post"), ToolCall("pay", {}, id="pay")


class Died(BaseException):
    """The process of a run ends."""


def dies() -> None:
    raise Died


def fails(*_: object) -> Any:
    raise ModelError("down")


class Lives:
    """A store, the telemetry of its runs, and clients as of several processes."""

    def __init__(self, store: PendingStore) -> None:
        self.store, self.telemetry = store, Telemetry()

    def client(self, *turns: Any, while_posting: Callable[[], object] = bool, **settings: Any) -> ChatClient:
        @tool
        def post() -> str:
            """Post something."""
            while_posting()
            return "posted"

        @tool(requires_approval=True)
        def pay() -> str:
            """Pay."""
            return "paid"

        settings = {"tools": [post, pay], "telemetry": self.telemetry.options, **settings}
        client = ChatClient(ScriptedChatModel([*turns]), name="desk", pending_store=self.store, **settings)
        client.submit(MARKER, key="k", principal=MARKER)
        return client

    def points(self, metric: Metric) -> dict[object, float]:
        """Return the sum of a metric by status; by None for a metric without one."""
        points = self.telemetry.metric(metric.name)
        assert {point.attributes[names.AGENT_NAME] for point in points} <= {"desk"}
        assert MARKER not in str(points)
        return {point.attributes.get(names.DURABLE_RUN_STATUS): total(point) for point in points}


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    with PendingStore(tmp_path / "runs.db") as store:
        yield Lives(store)


def counts(lives: Lives, metric: Metric) -> dict[object, float]:
    """Return the number of values of a histogram by status."""
    return {
        point.attributes.get(names.DURABLE_RUN_STATUS): point.count for point in lives.telemetry.metric(metric.name)
    }


def test_each_life_tells_how_the_run_was_left_and_the_last_one_how_many_there_were(lives: Lives) -> None:
    with pytest.raises(Died):
        lives.client([POST], while_posting=dies).drive("k")
    with pytest.raises(ModelError):
        lives.client(fails).drive("k")
    assert lives.client("done").drive("k").content == "done"
    assert counts(lives, names.DURABLE_RUN_IDLE) == {"submitted": 1, "running": 1, "interrupted": 1}
    assert lives.points(names.DURABLE_RUN_LIVES) == {"finished": 3}
    assert lives.points(names.DURABLE_RUN_TAKEN) == {}


def test_a_run_whose_process_is_known_to_have_died_was_left_as_running(lives: Lives) -> None:
    with pytest.raises(Died):
        lives.client([POST], while_posting=dies).drive("k")
    with lives.store._database.transaction() as connection:
        connection.execute(update(DURABLE_RUNS).values(status="interrupted"))
    lives.client("done").drive("k")
    assert counts(lives, names.DURABLE_RUN_IDLE) == {"submitted": 1, "running": 1}


def test_the_time_that_a_person_takes_is_no_idle_time(lives: Lives) -> None:
    lives.client([PAY]).drive("k")
    lives.store.decide("pay", Approve())
    lives.client("done").drive("k")
    assert counts(lives, names.DURABLE_RUN_IDLE) == {"submitted": 1}
    assert lives.points(names.DURABLE_RUN_LIVES) == {"finished": 2}


def test_a_run_that_fails_tells_its_lives(lives: Lives) -> None:
    with pytest.raises(LoopLimitExceeded):
        lives.client([POST, PAY], "never", limits=LoopLimits(max_tool_calls=1, on_limit="raise")).drive("k")
    assert lives.points(names.DURABLE_RUN_LIVES) == {"failed": 1}


def test_a_life_that_was_overtaken_and_a_call_that_was_cut_are_counted_once(lives: Lives) -> None:
    both_post, is_overtaken = Barrier(2), Event()

    def overtake() -> None:
        if both_post.wait(PATIENCE) == 0:
            thread = Thread(target=lives.client("second").drive, args=("k",))
            thread.start()
            thread.join()
            is_overtaken.set()
        assert is_overtaken.wait(PATIENCE)

    client = lives.client([POST, ToolCall("post", {}, id="other")], "first", while_posting=overtake)
    with pytest.raises(RunTaken):
        client.drive("k")
    assert lives.points(names.DURABLE_RUN_TAKEN) == {None: 1}
    assert lives.points(names.DURABLE_RUN_UNKNOWN_OUTCOMES) == {None: 2}


def test_each_record_of_a_life_is_measured(lives: Lives) -> None:
    lives.client([PAY]).drive("k")
    lives.store.decide("pay", Approve())
    lives.client("done").drive("k")
    records = lives.store.run_logs.history("k")
    assert counts(lives, names.DURABLE_RUN_RECORD_DURATION) == {None: len(records) - 1}  # submit is no life


def test_a_run_without_telemetry_is_driven_as_well(lives: Lives) -> None:
    client = lives.client("done", telemetry=None)
    assert client.drive("k").content == "done"
