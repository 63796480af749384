"""Objects in forked children, and exit handlers in every kind of process."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest

from tests.otel.processes import in_a_process
from tests.waiting import PATIENCE
from traced_tools.core import fork as _fork
from traced_tools.events import EventFeed
from traced_tools.events.observer import ObserverAdvisor

PRELUDE = """
import atexit, multiprocessing, warnings
from traced_tools.core.fork import on_fork, register_exit_handler
warnings.simplefilter("ignore")
def say(text):
    os.write(1, f"{text}\\n".encode())
"""
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")


def said(script: str) -> list[str]:
    done = in_a_process(PRELUDE + script)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_closed_objects_leave_no_fork_handlers_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(os, "register_at_fork", lambda **action: registered.append(action))
    ObserverAdvisor([EventFeed()]).close(PATIENCE)  # counts of exporters of one name are kept for good
    gc.collect()
    before = set(_fork._in_child)
    observer = ObserverAdvisor([EventFeed()])
    made = _fork._in_child.keys() - before
    assert made
    observer.close(PATIENCE)
    del observer
    gc.collect()
    assert not made & _fork._in_child.keys()
    assert registered == []


@forks
def test_live_objects_are_reset_in_order_and_a_failure_stops_no_other() -> None:
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
    logged = "WARNING at a fork One.begin raised SystemExit"
    assert said(script) == ["first", "raises", logged, "last"]


def test_a_handler_registered_again_runs_before_handlers_registered_meanwhile() -> None:
    script = """
def end():
    say("ours")
register_exit_handler(end)
atexit.register(say, "telemetry")
register_exit_handler(end)
register_exit_handler(end)
"""
    assert said(script) == ["ours", "telemetry", "ours"]


def test_a_handler_registered_again_while_the_process_exits_still_runs() -> None:
    script = """
def end():
    say("ours")
register_exit_handler(end)
atexit.register(register_exit_handler, end)
"""
    assert "ours" in said(script)


@forks
def test_a_multiprocessing_child_runs_exit_handlers_after_its_own_children_are_done() -> None:
    script = """
def end():
    say(multiprocessing.current_process().name)
register_exit_handler(end)
def work(depth):
    register_exit_handler(end)
    register_exit_handler(end)
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


@forks
def test_functions_are_called_before_a_fork_in_the_parent_and_in_the_child() -> None:
    script = """
on_fork(lambda: say("child"), before=lambda: say("before"), in_parent=lambda: say("parent"))
child = os.fork()
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""
    first, *others = said(script)
    assert first == "before"
    assert sorted(others) == ["child", "parent"]
