"""The ordered chain of advisors, with the model at its end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from traced_tools.advisors.base import AdviseNext, Advisor, ToolLoopAdvisor
from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.errors import AdvisorChainError, InvalidResponse
from traced_tools.events.stream import Watchers
from traced_tools.models.base import ChatChunk, ChatModel, ChatResponse
from traced_tools.models.step import CallModel
from traced_tools.telemetry.model_calls import chat_scope
from traced_tools.telemetry.spans import hook_scope
from traced_tools.tools.advice import advising_tools, check_advisors, overrides, watching


class AdvisorChain:
    """Advisors in order around a model. Holds no state of a run: it may be entered anywhere, any number of times.

    Args:
        advisors: in any order; sorted by `order`, equal ones as given.
        model: what stands at the end.

    Raises:
        AdvisorChainError: for two tool loops, or an advisor without name or order.
    """

    def __init__(self, advisors: Sequence[Advisor], model: ChatModel) -> None:
        check_advisors(advisors)
        self.model = model
        self.advisors = tuple(sorted(advisors, key=lambda advisor: advisor.order))
        self.tool_advisors = advising_tools(self.advisors)
        self._around = tuple(each for each in self.advisors if overrides(each, Advisor, "advise"))
        self._on_chunk = tuple(
            (each.name, each.on_chunk) for each in reversed(self.advisors) if overrides(each, Advisor, "on_chunk")
        )
        self._entries: tuple[AdviseNext, ...] = (
            *(partial(self._advise, index) for index in range(len(self._around))),
            self._ask,
        )
        loops = [advisor for advisor in self.advisors if isinstance(advisor, ToolLoopAdvisor)]
        place = next((at for at, each in enumerate(self.advisors) if isinstance(each, ToolLoopAdvisor)), 0)
        inside = watching(self.advisors[place:])
        pieces = tuple(each.on_event for each in inside if getattr(each, "watches_deltas", True))
        self.watchers = Watchers(
            tuple(each.on_event for each in inside),
            tuple(each.on_event for each in watching(self.advisors[:place])),
            pieces,
        )
        if len(loops) > 1:
            named = ", ".join(f"{loop.name} (order {loop.order})" for loop in loops)
            raise AdvisorChainError(f"a chain runs tools in one place; it has {len(loops)}: {named}. Keep one of them")

    async def run(self, request: ChatClientRequest) -> ChatClientResponse:
        """Pass `request` through the whole chain."""
        return await self._entries[0](request)

    async def _advise(self, index: int, request: ChatClientRequest) -> ChatClientResponse:
        if not isinstance(request, ChatClientRequest):
            raise self._no_request(index, request)
        advisor, telemetry = self._around[index], request.run.telemetry
        with hook_scope(telemetry, "advise", advisor, request.iteration, clock=telemetry.clock):
            response: Any = advisor.advise(request, self._entries[index + 1])
            if hasattr(response, "__await__"):
                response = await response
        if not isinstance(response, ChatClientResponse):
            raise TypeError(
                f"advise of {advisor.name} must return a ChatClientResponse, not {type(response).__name__}; "
                "return what `await call_next(request)` gave"
            )
        return response

    def _no_request(self, index: int, given: object) -> TypeError:
        """Return the error for what the advisor before `index` has passed on."""
        return TypeError(
            f"advise of {self._around[index - 1].name} must pass a ChatClientRequest to call_next, "
            f"not {type(given).__name__}"
        )

    async def _ask(self, request: ChatClientRequest) -> ChatClientResponse:
        if not isinstance(request, ChatClientRequest):
            raise self._no_request(len(self._around), request)
        run, model = request.run, self.model
        with chat_scope(run.telemetry, model, request) as scope:
            observe = partial(run.events.deltas, request.iteration, request.tools) if run.events.wants_deltas else None
            watch = run.events.of_model_call(model, request, request.iteration)
            step = CallModel(model, request.chat_request(), scope, partial(self.deliver, request), observe)
            run.totals.inference_calls += 1
            response = await step
            scope.answered(response)
            run.totals.usage.add(response.usage)
            watch.answered(response)
            _check_answer(model, response)
        return ChatClientResponse(
            run,
            response,
            (*request.messages, response.message),
            response.usage,
            context=request.context,
            iteration=request.iteration,
            offered=request.tools,
        )

    def deliver(self, request: ChatClientRequest, delta: ChatChunk) -> ChatClientResponse | None:
        """Return what the consumer of a stream sees of `delta`, after each advisor's `on_chunk`, innermost first."""
        chunk = ChatClientResponse(request.run, context=request.context, iteration=request.iteration, delta=delta)
        if delta.visible_text:
            request.run.streamed.add(request.iteration)
        for name, on_chunk in self._on_chunk:
            seen: Any = on_chunk(chunk)
            if seen is None:
                return None
            if not isinstance(seen, ChatClientResponse):
                raise TypeError(
                    f"on_chunk of {name} must return a ChatClientResponse or None, not {type(seen).__name__}"
                )
            chunk = seen
        return chunk


def _check_answer(model: ChatModel, response: ChatResponse) -> None:
    """Calls count more than the finish reason, but a promise of calls without any is no answer."""
    if response.finish_reason == "tool_call" and not response.tool_calls:
        raise InvalidResponse("the answer says that it calls tools and calls none", provider=model.provider)
