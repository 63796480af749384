"""The ordered chain of advisors that ends with the model."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from traced_tools.core.enums import TimeKind
from traced_tools.errors import AdvisorChainError, ResumeError
from traced_tools.loop.advisor import AdviseNext, Advisor, ToolLoopAdvisor, TranscriptAdvisor
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.models.base import ChatChunk, ChatModel
from traced_tools.models.model_call import call_model
from traced_tools.observe.observations import observe_failed_chunk, observe_hook
from traced_tools.observe.typed_events.dispatch import EventListeners
from traced_tools.run.context import RunContext
from traced_tools.run.streamed_text import Delivery, Release
from traced_tools.tools.advice import (
    advising_tools,
    approving,
    call_listeners,
    check_advisors,
    event_listeners,
    overrides,
    reviewing,
    sort_advisors,
)
from traced_tools.tools.toolset import NO_TOOLS, ToolSet, names_by_source

if TYPE_CHECKING:
    from traced_tools.loop.state import KeptByAdvisor


class AdvisorChain:
    """A chain of advisors, sorted by `order`, that ends with a model. It keeps no state of runs.

    Args:
        advisors: the advisors in any order; advisors with equal orders keep the order given.
        model: the model at the end of the chain.

    Raises:
        AdvisorChainError: if there are two tool loops, or an advisor has no name or no order.
    """

    def __init__(self, advisors: Sequence[Advisor], model: ChatModel) -> None:
        check_advisors(advisors)
        self.model = model
        self.advisors = sort_advisors(advisors)
        self.tool_advisors = advising_tools(self.advisors)
        self.approvers = approving(self.advisors)
        self._reviewers = reviewing(self.advisors)
        self._around = _overriding(self.advisors, "advise")
        self._on_chunk = tuple(
            (advisor, advisor.on_chunk) for advisor in reversed(_overriding(self.advisors, "on_chunk"))
        )
        self._keeping = _index_advisors(_overriding(self.advisors, "paused_state"))
        self._entries: tuple[AdviseNext, ...] = (
            *(partial(self._advise, index) for index in range(len(self._around))),
            self._ask,
        )
        self._stages = self._entry_stages()
        self._loop = _only_loop(self.advisors)
        self.own_tools = () if self._loop is None else self._loop.own_tools
        place = 0 if self._loop is None else self.advisors.index(self._loop)
        outer, inner = self.advisors[:place], self.advisors[place:]
        self.transcripts = tuple(advisor for advisor in inner if isinstance(advisor, TranscriptAdvisor))
        self.listeners = EventListeners(
            event_listeners(inner), event_listeners(outer), event_listeners(inner, deltas=True), call_listeners(inner)
        )

    def review(self, run: RunContext, tools: ToolSet) -> None:
        """Have the advisors review the tools of a run that begins, and those that the tool loop adds to them."""
        if self._reviewers:
            own_tools = self.own_tools
            names = names_by_source((*tools, *own_tools)) if own_tools else tools.names_by_source
            for advisor in self._reviewers:
                advisor.review_tools(run, names)

    def policy_digests(self) -> tuple[str, ...]:
        """Return the digests of the policies that decide about tool calls."""
        return tuple(digest for advisor in self.advisors if (digest := advisor.policy_digest) is not None)

    def run(self, request: ChatClientRequest) -> Awaitable[ChatClientResponse]:
        """Pass `request` through the whole chain."""
        return self._entries[0](request)

    def _entry_stages(self) -> tuple[tuple[int, int], ...]:
        """Return the stages where text reaches and leaves each entry, as numbers of `on_chunk` methods passed."""
        stages, passed = [(0, 0)], 0
        for advisor in reversed(self.advisors):
            entry_stage = passed
            passed += overrides(advisor, Advisor, "on_chunk")
            if overrides(advisor, Advisor, "advise"):
                stages.insert(0, (entry_stage, passed))
        return tuple(stages)

    def new_delivery(self) -> Delivery:
        """Return a new record of the text that a streamed run delivers."""
        return Delivery(self._stages)

    def paused_states(self, run: RunContext) -> list[KeptByAdvisor]:
        """Return the states of the advisors for a run that pauses."""
        from traced_tools.loop.state import KeptByAdvisor  # few runs pause

        states = [(name, place, advisor.paused_state(run)) for (name, place), advisor in self._keeping.items()]
        return [
            KeptByAdvisor(name=name, place=place, state=json.dumps(dict(state)))
            for name, place, state in states
            if state is not None
        ]

    def restore(self, run: RunContext, states: Sequence[KeptByAdvisor]) -> None:
        """Pass to each advisor the state that it kept of the run that `run` resumes.

        Raises:
            ResumeError: if an advisor cannot read its state.
        """
        for advisor_state in states:
            advisor = self._keeping.get((advisor_state.name, advisor_state.place))
            if advisor is None:  # the client that resumes the run lacks the advisor
                continue
            try:
                advisor.restore(run, json.loads(advisor_state.state))
                continue
            except ValueError:
                pass  # its text may quote the state
            raise ResumeError(f"the advisor {advisor.name!r} cannot read what it has kept of the run that waits")

    async def _advise(self, index: int, request: ChatClientRequest) -> ChatClientResponse:
        if not isinstance(request, ChatClientRequest):
            raise self._invalid_request_error(index, request)
        advisor, telemetry, delivery = self._around[index], request.run.telemetry, request.run.delivery
        if delivery is not None:
            delivery.entered(index)
        kind: TimeKind = "own" if isinstance(advisor, ToolLoopAdvisor) else "hook"
        with observe_hook(telemetry, "advise", advisor.name, advisor.order, request.iteration, kind=kind):
            response: Any = advisor.advise(request, self._entries[index + 1])
            if hasattr(response, "__await__"):
                response = await response
        if not isinstance(response, ChatClientResponse):
            raise TypeError(
                f"advise of {advisor.name} must return a ChatClientResponse, not {type(response).__name__}; "
                "return the result of `await call_next(request)`"
            )
        if request.iteration and response.iteration != request.iteration:  # such as a response cached from another run
            response = response.replace(iteration=request.iteration)
        answer: ChatClientResponse = response
        if delivery is not None:
            await self._complete(delivery, index, request, answer)
        return answer

    async def _complete(
        self, delivery: Delivery, index: int, request: ChatClientRequest, response: ChatClientResponse
    ) -> None:
        """Deliver the text of an entry's answer that no chunk contained to the outer advisors and the consumer."""
        if text := delivery.answered(index, response):
            delivery.passed.append(response.iteration)
            last = request.replace(iteration=response.iteration, context=response.context)
            ledger = request.run.telemetry.ledger
            began, downstream = perf_counter_ns(), ledger.downstream_ns
            try:
                delta = ChatChunk(text=text, restarts=delivery.replaces)
                await Release(partial(self._deliver_closing, last, delta, self._stages[index][1]))
            finally:  # the consumer's time doesn't count as the advisors' own time
                ledger.book_since("reader", began, downstream)

    def _deliver_closing(self, request: ChatClientRequest, delta: ChatChunk, stage: int) -> ChatClientResponse | None:
        """Return the chunk that the consumer receives for a text of an advisor; the hooks on its way take its time."""
        began = perf_counter_ns()
        try:
            return self.deliver(request, delta, stage, closing=True)
        finally:
            request.run.telemetry.ledger.book_downstream("chunk", perf_counter_ns() - began)

    def _invalid_request_error(self, index: int, value: object) -> TypeError:
        """Return the error for an invalid value that the advisor before `index` passed to `call_next`."""
        return TypeError(
            f"advise of {self._around[index - 1].name} must pass a ChatClientRequest to call_next, "
            f"not {type(value).__name__}"
        )

    async def _ask(self, request: ChatClientRequest) -> ChatClientResponse:
        if not isinstance(request, ChatClientRequest):
            raise self._invalid_request_error(len(self._around), request)
        run = request.run
        if run.delivery is not None:
            run.delivery.entered(len(self._around))
            run.delivery.passed.append(request.iteration)
        response = await call_model(run, self.model, request.chat_request(), request, partial(self.deliver, request))
        answer = ChatClientResponse(
            run,
            response,
            request.messages + (response.message,),  # noqa: RUF005  # it copies once, not twice
            response.usage,
            "answered",
            (),
            request.context,
            request.iteration,
            request.tools,
        )
        if run.delivery is not None:
            await self._complete(run.delivery, len(self._around), request, answer)
        return answer

    def deliver(
        self, request: ChatClientRequest, delta: ChatChunk, stage: int = 0, *, closing: bool = False
    ) -> ChatClientResponse | None:
        """Return the chunk that the consumer of a stream receives for `delta`, or None if an advisor drops it.

        The chunk passes each advisor's `on_chunk`, the innermost first.

        Args:
            request: the request that the chunk answers.
            delta: the piece of the answer that arrived.
            stage: how many of the innermost `on_chunk` methods to skip, because the chunk comes from an outer advisor.
            closing: whether the chunk comes from an advisor and not from the model.
        """
        # by position, because a class that is called with names makes a dictionary of them first
        chunk: ChatClientResponse = ChatClientResponse(
            request.run, None, (), None, "answered", (), request.context, request.iteration, NO_TOOLS, delta
        )
        delivery, text = request.run.delivery, delta.visible_text
        if delta.restarts and delivery is not None and not closing:
            delivery.restarted()
        restart = 0 if delivery is None else delivery.restart
        # a chunk that announces a restart of the answer was dropped: the next chunk that leaves its stage announces it
        if stage and 0 < restart <= stage:
            chunk, restart = _mark_restart(chunk), 0
        delivered: ChatClientResponse | None = chunk
        changes: tuple[tuple[int, str], ...] = ()
        if self._on_chunk:
            delivered, restart, changes = self._pass_hooks(request, chunk, stage, restart)
        if delivery is not None:
            delivery.restart = restart
            if text or changes:
                # a plain str for the common chunk, so that the text of an answer is one `"".join`
                delivery.passed.append((stage, text, changes) if changes or stage else text)
        return delivered

    def _pass_hooks(
        self, request: ChatClientRequest, chunk: ChatClientResponse, stage: int, restart: int
    ) -> tuple[ChatClientResponse | None, int, tuple[tuple[int, str], ...]]:
        """Pass a chunk through the `on_chunk` methods after `stage`, and return what leaves them.

        `restart` is the position of the method that dropped the announcement of a restart; 0 if none has.

        Returns:
            The chunk, or None if a method drops it; the position as in `restart` after the chunk; and the texts that
            methods have changed, with their positions.
        """
        telemetry = request.run.telemetry
        changes: tuple[tuple[int, str], ...] = ()
        for position, (advisor, on_chunk) in enumerate(self._on_chunk[stage:] if stage else self._on_chunk, stage + 1):
            began = 0 if advisor is self._loop else perf_counter_ns()  # the time of the loop is the package's own
            try:
                result: Any = on_chunk(chunk)
            except Exception as error:
                began = began or perf_counter_ns()
                observe_failed_chunk(telemetry, advisor.name, advisor.order, request.iteration, error, began)
                raise
            if began:
                telemetry.listened("on_chunk", advisor.name, perf_counter_ns() - began)
            if result is None:
                return None, position if _restarts(chunk) else restart, (*changes, (position, ""))
            if result is not chunk:
                if not isinstance(result, ChatClientResponse):
                    must = f"on_chunk of {advisor.name} must return a ChatClientResponse or None"
                    raise TypeError(f"{must}, not {type(result).__name__}")
                changes = (*changes, (position, result.text))
                chunk = _mark_restart(result) if _restarts(chunk) else result
            if position == restart:
                chunk, restart = _mark_restart(chunk), 0
        return chunk, restart, changes


def _overriding(advisors: Sequence[Advisor], method: str) -> tuple[Advisor, ...]:
    """Return the advisors that have a method of their own of this name."""
    return tuple(advisor for advisor in advisors if overrides(advisor, Advisor, method))


def _only_loop(advisors: Sequence[Advisor]) -> ToolLoopAdvisor | None:
    """Return the tool loop, if there is one; raise `AdvisorChainError` if there are several."""
    loops = [advisor for advisor in advisors if isinstance(advisor, ToolLoopAdvisor)]
    if len(loops) > 1:
        loop_names = ", ".join(f"{loop.name} (order {loop.order})" for loop in loops)
        raise AdvisorChainError(f"a chain can have one tool loop; it has {len(loops)}: {loop_names}. Keep one of them")
    return loops[0] if loops else None


def _index_advisors(advisors: Iterable[Advisor]) -> dict[tuple[str, int], Advisor]:
    """Return the advisors by their names and their places among those of the same name."""
    places: dict[tuple[str, int], Advisor] = {}
    for advisor in advisors:
        place = next(place for place in count() if (advisor.name, place) not in places)
        places[advisor.name, place] = advisor
    return places


def _restarts(chunk: ChatClientResponse) -> bool:
    return chunk.delta is not None and chunk.delta.restarts


def _mark_restart(chunk: ChatClientResponse) -> ChatClientResponse:
    """Return `chunk` marked as a restart of the answer, because an `on_chunk` dropped the marked chunk."""
    delta = chunk.delta or ChatChunk(text=chunk.text)
    return chunk if delta.restarts else chunk.replace(delta=replace(delta, restarts=True))
