"""The observation of a call of a chat model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traced_tools.observe.stages.observation import Observation
from traced_tools.observe.stages.subjects import ModelAnswer, ModelChunk, ModelInput, ObservedModel


class ModelCallObservation(Observation):
    """One call of a chat model, from the request to the whole answer.

    Args:
        model: the model that is called.
        asked: what it is asked.

    Attributes:
        model: that model.
        asked: what it is asked.
        answer: what it answered; None before that.
        deltas: called with each chunk, with the call on each piece of a call; None if nothing listens to deltas.
    """

    __slots__ = ("answer", "asked", "deltas", "model")

    def __init__(self, model: ObservedModel, model_input: ModelInput) -> None:
        self.model = model
        self.asked = model_input
        self.answer: ModelAnswer | None = None
        self.deltas: Callable[[ModelChunk], None] | None = None

    @property
    def timer(self) -> Any:
        """What is notified when chunks are requested, and of each chunk when it arrives."""
        return self._scope

    def answered(self, answer: ModelAnswer, cost: float | None) -> None:
        """Record the answer.

        Args:
            answer: what the model answered.
            cost: what it cost in US dollars; None if that is not known.
        """
        self.answer = answer
        self._scope.answered(answer, cost)
        self._events.answered()
