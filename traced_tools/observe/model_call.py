"""The observation of a call of a chat model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from traced_tools.observe.dispatch import ModelEventEmitter
from traced_tools.observe.model_calls import ChatScope
from traced_tools.observe.observation import Observation
from traced_tools.observe.scope import OFF
from traced_tools.observe.subjects import ModelAnswer, ModelChunk, ModelInput, ObservedModel, ObservedRun


class ModelCallObservation(Observation):
    """One call of a chat model, from the request to the whole answer.

    Args:
        run: the run.
        model: the model that is called.
        asked: what it is asked.

    Attributes:
        model: that model.
        asked: what it is asked.
        answer: what it answered; None before that.
        timer: told when chunks are asked for, and of each chunk when it arrives.
        deltas: told of each chunk, with the call on each piece of a call; None if nothing listens to deltas.
    """

    __slots__ = ("answer", "asked", "deltas", "model", "timer")

    def __init__(self, run: ObservedRun, model: ObservedModel, asked: ModelInput) -> None:
        events = run.events
        self.model = model
        self.asked = asked
        self.answer: ModelAnswer | None = None
        self._scope = self.timer = ChatScope(run.telemetry, model, asked) if run.telemetry.enabled else OFF
        self._events: Any = ModelEventEmitter(events, self) if events.wanted else OFF
        self.deltas: Callable[[ModelChunk], None] | None = (
            partial(events.deltas, asked.iteration, asked.tools) if events.wants_deltas else None
        )

    def answered(self, answer: ModelAnswer, cost: float | None) -> None:
        """Record the answer.

        Args:
            answer: what the model answered.
            cost: what it cost in US dollars; None if that is not known.
        """
        self.answer = answer
        self._scope.answered(answer, cost)
        self._events.answered()


def observe_model_call(run: ObservedRun, model: ObservedModel, asked: ModelInput) -> ModelCallObservation:
    """Return the observation of a call of `model` in `run`."""
    if run.telemetry.enabled or run.events.wanted:
        return ModelCallObservation(run, model, asked)
    off: ModelCallObservation = OFF
    return off
