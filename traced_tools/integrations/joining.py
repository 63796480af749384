"""How an agent of a framework gets its run: its own, or the one around it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final
from weakref import WeakSet

from traced_tools.observe.manual.run import ManualRun, RunSettings, current_manual_run
from traced_tools.observe.manual.run import run as new_run

_DRIVEN: Final[WeakSet[ManualRun]] = WeakSet()
"""The runs in which an agent takes part now."""


def join() -> ManualRun | None:
    """Return the run in whose block an agent begins, for it to take part; `leave` ends that.

    None for an agent that has a run of its own, nested in that run: it begins in a tool or in an iteration of the
    application, or while another agent takes part.
    """
    run = current_manual_run()
    if run is None or run.is_in_tool or run.is_in_iteration or run in _DRIVEN:
        return None
    _DRIVEN.add(run)
    return run


def leave(run: ManualRun) -> None:
    """Let the next agent take part in a run."""
    _DRIVEN.discard(run)


def lasting(settings: RunSettings, agent: str = "assistant") -> RunSettings:
    """Return settings that any number of runs can use, even if the advisors are an iterator.

    Args:
        settings: the settings, as an application passes them.
        agent: the name of the agent.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """
    copy = settings.copy()
    for name in ("advisors", "observers"):
        if isinstance(items := copy.get(name), Iterable):
            copy[name] = tuple(items)
    new_run(agent, **copy)  # raises now, and not when the first agent begins
    return copy
