"""The observation of an iteration of the tool loop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools.observe.stages.observation import Observation

if TYPE_CHECKING:
    from traced_tools.core.enums import IterationOutcome


class IterationObservation(Observation):
    """One iteration of the tool loop.

    Args:
        index: the iteration, from 1; 0 for tool calls that are executed by hand, which have no span of an iteration.

    Attributes:
        index: the iteration.
        tool_calls: how many calls the model asked for.
    """

    __slots__ = ("index", "tool_calls")

    def __init__(self, index: int) -> None:
        self.index = index
        self.tool_calls = 0

    def requested(self, tool_calls: int) -> None:
        """Record how many calls the model asked for."""
        self.tool_calls = tool_calls

    @property
    def outcome(self) -> IterationOutcome:
        """How the iteration ended."""
        if self.error_type is not None:
            return "error"
        return "tool_calls" if self.tool_calls else "answer"
