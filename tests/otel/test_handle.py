"""The handle stops telemetry once and in time, and logs what is left."""

from __future__ import annotations

import threading

import pytest

from tests.markers import MARKER
from tests.otel.collector import collecting, hang
from tests.otel.pipelines import Pipelines, pipelines
from tests.waiting import PATIENCE
from traced_tools import ChatClient
from traced_tools.otel import handle
from traced_tools.testing import ScriptedChatModel


def ask(sending: Pipelines) -> None:
    ChatClient(ScriptedChatModel(["x"]), telemetry=sending.options).prompt("?").call()


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 10**400, -1])
def test_a_timeout_may_be_any_number_of_seconds(timeout: float) -> None:
    with collecting() as collector, pipelines(collector.url) as sending:
        ask(sending)
        sending.handle.force_flush(timeout)
        sending.handle.shutdown(timeout)
        assert sending.handle.stopped


class Failing:
    """A provider that raises, at once or when its time is over."""

    def __init__(self, *, in_time: bool) -> None:
        self._in_time = in_time
        self.raised = threading.Event()

    def force_flush(self, timeout_millis: int = 0) -> bool:
        if not self._in_time:
            threading.Event().wait(timeout_millis / 1000 + 0.01)
        self.raised.set()
        raise ConnectionError(MARKER)

    def shutdown(self) -> None:
        pass


@pytest.mark.parametrize("in_time", [True, False])
def test_an_error_of_a_flush_is_logged_unless_the_time_is_over(in_time: bool, caplog: pytest.LogCaptureFixture) -> None:
    provider = Failing(in_time=in_time)
    with handle.Telemetry([provider]) as telemetry:
        assert not telemetry.force_flush(PATIENCE if in_time else 0.1)
        assert provider.raised.wait(PATIENCE)
    logged = ["telemetry: Failing.force_flush raised ConnectionError"]
    assert [text for text in caplog.messages if "Failing" in text] == (logged if in_time else [])


def test_an_interrupted_shutdown_counts_unsent_items_as_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with collecting(hang) as collector, pipelines(collector.url) as sending:
        ask(sending)
        monkeypatch.setattr(handle, "_do", interrupt)
        with pytest.raises(KeyboardInterrupt):
            sending.handle.shutdown(1)
        assert sending.spans.lost["shutdown"] > 0


def test_a_second_shutdown_waits_for_the_first() -> None:
    with collecting(hang) as collector, pipelines(collector.url) as sending:
        ask(sending)
        first = threading.Thread(target=sending.handle.shutdown, args=(0.5,))
        first.start()
        while not sending.handle.stopped:
            pass
        sending.handle.shutdown(PATIENCE)
        assert sending.spans.lost["shutdown"] > 0
        first.join(PATIENCE)
