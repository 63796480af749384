"""`traced-tools demo`, and the scenario that plays every kind of telemetry that runs emit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.demo.scenario.outcomes import OUTCOMES as OUTCOMES
    from traced_tools.demo.scenario.scenario import Scenario as Scenario

_EXPORTS = {
    "OUTCOMES": "traced_tools.demo.scenario.outcomes",
    "Scenario": "traced_tools.demo.scenario.scenario",
}

__all__ = [
    "OUTCOMES",
    "Scenario",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
