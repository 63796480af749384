"""The observation of one hook of an advisor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe.scope import OFF, SelfClock
from traced_tools.observe.spans import HookScope

if TYPE_CHECKING:
    from traced_tools.core.enums import Hook
    from traced_tools.observe.run_telemetry import RunTelemetry


def observe_hook(
    run: RunTelemetry, hook: Hook, name: str, order: int, iteration: int, *, clock: SelfClock | None = None
) -> HookScope:
    """Return the observation of one hook, which is its scope: hooks have no typed events.

    Args:
        run: the run's telemetry.
        hook: which hook.
        name: the advisor's name.
        order: the advisor's order.
        iteration: the iteration of the loop, from 1; 0 outside the iterations.
        clock: measures the advisor's own time, without what is downstream; None for a hook with nothing downstream.
    """
    return HookScope(run, hook, name, order, iteration, clock) if run.enabled else OFF
