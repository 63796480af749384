"""Calls a model in a run: observed, added to the totals, and by the route that the model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from traced_tools.errors import InvalidResponse
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.step import CallModel
from traced_tools.observe.observations import observe_model_call

if TYPE_CHECKING:
    from traced_tools.observe.stages.subjects import ModelInput
    from traced_tools.run.context import RunContext


async def call_model(
    run: RunContext,
    model: ChatModel,
    request: ChatRequest,
    observable: ModelInput,
    deliver: Callable[[ChatChunk], Any] | None = None,
) -> ChatResponse:
    """Send `request` to `model`, or to the models that answer instead of it, as a flow; return the answer.

    Each call of a model is observed and counted separately.

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
        with observe_model_call(run, answering, observable) as observed:
            if deliver is None:
                step: CallModel[Any] = CallModel(answering, request, observed.timer, _withhold)
            else:
                step = CallModel(answering, request, observed.timer, deliver, observed.deltas)
            run.totals.inference_calls += 1
            response = await step
            cost = run.cost_of(answering, response)
            run.totals.add(response.usage, cost)
            observed.answered(response, cost)
            if response.finish_reason == "tool_call" and not response.message.tool_calls:
                problem = "the finish reason is tool_call, but there is no tool call"
                raise InvalidResponse(problem, provider=answering.provider, streamed=step.has_streamed)
        return response

    return await model.route(ask)


def _withhold(chunk: ChatChunk) -> None:
    """Keep a chunk from the consumer of a stream, who reads the answer of the run."""
