"""Calls a model in a run: observed, added to the totals, and by the route that the model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from traced_tools.core.messages import ImagePart, TextPart, ToolCall
from traced_tools.errors import InvalidResponse, ModelError
from traced_tools.models.base import PAUSE, ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.step import CallModel
from traced_tools.observe.observations import observe_model_call

if TYPE_CHECKING:
    from traced_tools.observe.stages.subjects import ModelInput
    from traced_tools.run.context import RunContext


_MOST_PAUSES: Final = 20
"""How often a model may pause one turn, so that a run ends whose model never finishes."""
_DOUBTFUL: Final = ("tool_call", "error", "other")
"""The finish reasons of states that may be no answer."""


async def call_model(
    run: RunContext,
    model: ChatModel,
    request: ChatRequest,
    observable: ModelInput,
    deliver: Callable[[ChatChunk], Any] | None = None,
) -> ChatResponse:
    """Send `request` to `model`, or to the models that answer instead of it, as a flow; return the answer.

    If a model pauses its turn, it is sent what it has written, and continues; the pieces are joined to one answer. Each
    call of a model is observed and counted separately.

    Args:
        run: the run that the call belongs to.
        model: the model.
        request: the request to send.
        observable: the request as telemetry may capture it.
        deliver: returns the chunk that the consumer of a stream receives for a chunk of the answer, or None to withhold
            it. Without it, neither the consumer nor listeners receive the chunks.

    Raises:
        ModelError: if there is no answer.
    """

    async def ask(answering: ChatModel) -> ChatResponse:
        next_request, beginning, has_streamed, pauses = request, None, False, 0
        while pauses <= _MOST_PAUSES:
            with observe_model_call(run, answering, observable) as observed:
                if deliver is None:
                    step: CallModel[Any] = CallModel(answering, next_request, observed.timer, _withhold)
                else:
                    step = CallModel(answering, next_request, observed.timer, deliver, observed.deltas)
                run.totals.inference_calls += 1
                try:
                    response = await step
                except ModelError as error:
                    error.streamed = error.streamed or has_streamed
                    raise
                cost = run.cost_of(answering, response)
                run.totals.add(response.usage, cost)
                observed.answered(response, cost)
                has_streamed = has_streamed or step.has_streamed
                if response.finish_reason in _DOUBTFUL:
                    _check_is_answer(response, answering.provider, has_streamed)
            whole = response if beginning is None else response.continuing(beginning)
            if whole.finish_reason != PAUSE or whole.tool_calls:
                return whole
            beginning, pauses = whole, pauses + 1
            next_request = ChatRequest((*request.messages, whole.message), request.tools, request.options)
        problem = f"the model paused its turn more than {_MOST_PAUSES} times"
        raise InvalidResponse(problem, provider=answering.provider, streamed=has_streamed)

    return await model.route(ask)


def _check_is_answer(response: ChatResponse, provider: str, has_streamed: bool) -> None:
    """Raise an `InvalidResponse` for a state that is no answer.

    The provider reports that the answer failed, or gives an unknown reason for an empty one, or announces a tool call
    that is missing.
    """
    reason, message = response.finish_reason, response.message
    if reason == "error":
        problem = "the provider reports that the answer failed"
    elif reason == "other" and not any(isinstance(part, TextPart | ImagePart | ToolCall) for part in message.parts):
        problem = "the answer is empty, and its finish reason is unknown"
    elif reason == "tool_call" and not message.tool_calls:
        problem = "the finish reason is tool_call, but there is no tool call"
    else:
        return
    raise InvalidResponse(
        problem,
        provider=provider,
        code=response.provider_reason,
        retryable=reason != "tool_call",
        streamed=has_streamed,
    )


def _withhold(chunk: ChatChunk) -> None:
    """Withhold a chunk from the consumer of a stream, which reads the answer of the run."""
