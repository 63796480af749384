"""A model that lets the next model answer if one fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from traced_tools.errors import ContextOverflow, InvalidRequest, ModelError
from traced_tools.models.base import AskModel, ChatModel, ChatResponse
from traced_tools.models.refusals import status_of_code
from traced_tools.models.routing import RoutingModel

_ABOUT_THE_MODEL: Final = (402, 404)
"""The HTTP statuses of an invalid request that another model can answer: no credit is left, the model doesn't exist."""


class FallbackModel(RoutingModel):
    """Asks its models in order until one answers.

    The next model is asked after a `ModelError` that another model may not have: a failure of the provider or of the
    connection, a time-out, a rate limit, a refused key, an invalid answer, a request that is longer than the model
    accepts (`ContextOverflow`). It is not asked after the provider refused the request as invalid for another reason
    (`InvalidRequest`), unless the status is 402 or 404, and not after a part of the answer was streamed. Other
    exceptions are raised immediately, so a model of your own raises a `ModelError` for what another model may not have.

    If no model answers, the error of the last one asked is raised, with the earlier errors as its notes.

    Args:
        models: two or more models, the preferred one first. They can have different providers: reasoning that a
            provider has signed is sent back to the same provider only.

    Raises:
        TypeError: if `models` is not a sequence of `ChatModel`s.
        ValueError: if there are fewer than two models.
    """

    def __init__(self, models: Sequence[ChatModel]) -> None:
        super().__init__(models)
        if len(self.models) < 2:
            raise ValueError("models must have at least two ChatModels: add one that answers if the first one fails")

    async def route(self, ask: AskModel) -> ChatResponse:
        """Return the first answer of a model."""
        notes: list[str] = []
        for place, model in enumerate(self.models, 1):
            try:
                return await model.route(ask)
            except ModelError as error:
                if place == len(self.models) or error.streamed or not _may_another_answer(error):
                    for note in notes:
                        if note not in getattr(error, "__notes__", ()):  # a model may raise one object again
                            error.add_note(note)
                    raise
                notes.append(f"{model.model} failed first: {type(error).__name__}: {error}")
        raise AssertionError("the last model answers or raises")


def _may_another_answer(error: ModelError) -> bool:
    if not isinstance(error, InvalidRequest) or isinstance(error, ContextOverflow):
        return True
    return (error.status_code or status_of_code(error.code)) in _ABOUT_THE_MODEL
