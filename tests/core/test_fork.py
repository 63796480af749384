"""What objects do in forked children, and what is done when a process ends, whatever kind of process it is."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from tests.otel.processes import in_a_process
from tests.waiting import PATIENCE
from traced_tools.advisors.observer import ObserverAdvisor
from traced_tools.core import fork as _fork
from traced_tools.events import EventFeed

PRELUDE = """
import atexit, multiprocessing, warnings
from traced_tools.core.fork import at_end, on_fork
warnings.simplefilter("ignore")
def say(text):
    os.write(1, f"{text}\\n".encode())
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def said(script: str) -> list[str]:
    done = in_a_process(PRELUDE + script)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_closed_objects_leave_nothing_behind_that_forks_must_call(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **action: registered.append(action))
    ObserverAdvisor([EventFeed()]).close(PATIENCE)  # counts of exporters of one name are kept for good
    gc.collect()
    before = set(_fork._begins)
    observer = ObserverAdvisor([EventFeed()])
    made = _fork._begins.keys() - before
    assert made
    observer.close(PATIENCE)
    del observer
    gc.collect()
    assert not made & _fork._begins.keys()
    assert registered == []


@forks
def test_living_objects_begin_anew_in_their_order_and_none_is_in_the_way_of_others() -> None:
    script = """
logged()
class One:
    def __init__(self, name):
        self.name = name
        on_fork(self.begin)
    def begin(self):
        say(self.name)
        if self.name == "raises":
            raise SystemExit("a secret")
living = [One("first"), One("gone"), One("raises"), One("last")]
del living[1]
if not os.fork():
    os._exit(0)
os.wait()
"""
    logged = "WARNING in a forked child One.begin raised SystemExit"
    assert said(script) == ["first", "raises", logged, "last"]


def test_what_is_asked_for_again_is_done_before_what_was_registered_meanwhile() -> None:
    script = """
def end():
    say("ours")
at_end(end)
atexit.register(say, "telemetry")
at_end(end)
at_end(end)
"""
    assert said(script) == ["ours", "telemetry", "ours"]


def test_what_is_asked_for_again_while_the_process_ends_is_done_all_the_same() -> None:
    script = """
def end():
    say("ours")
at_end(end)
atexit.register(at_end, end)
"""
    assert "ours" in said(script)


@forks
def test_a_child_of_multiprocessing_does_it_when_its_own_children_are_done() -> None:
    script = """
def end():
    say(multiprocessing.current_process().name)
at_end(end)
def work(depth):
    at_end(end)
    at_end(end)
    if depth:
        begin(depth - 1)
def begin(depth):
    child = multiprocessing.get_context("fork").Process(target=work, args=(depth,), name=str(depth))
    child.start()
    return child
begin(1).join()
os._exit(0)
"""
    ended = said(script)
    assert {*ended} == {"0", "1"}
    assert ended[-1] == "1"  # before that as well since Python 3.13, where such a child minds `atexit`
