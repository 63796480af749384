"""Stopping what was set up: once, in time, and with a word about what is left."""

from __future__ import annotations

import threading

import pytest

from tests.support import PATIENCE
from tests.telemetry.collector import collecting, hang
from tests.telemetry.pipelines import Pipelines, pipelines
from traced_tools import ChatClient
from traced_tools.telemetry.setup import handle
from traced_tools.testing import ScriptedChatModel


def ask(sending: Pipelines) -> None:
    ChatClient(ScriptedChatModel(["x"]), telemetry=sending.options).prompt("?").call()


@pytest.mark.parametrize("timeout", [float("inf"), float("nan"), 10**400, -1])
def test_any_number_of_seconds_will_do(timeout: float) -> None:
    with collecting() as collector, pipelines(collector.url) as sending:
        ask(sending)
        sending.handle.force_flush(timeout)
        sending.handle.shutdown(timeout)
        assert sending.handle.stopped


def test_an_interrupted_shutdown_counts_what_it_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with collecting(hang) as collector, pipelines(collector.url) as sending:
        ask(sending)
        monkeypatch.setattr(handle, "_went_well", interrupt)
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
