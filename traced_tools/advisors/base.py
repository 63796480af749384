"""What an advisor is."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from traced_tools.advisors.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.core.enums import Hook
from traced_tools.observe.observations import observe_hook
from traced_tools.run.context import RunContext
from traced_tools.tools.advice import ToolAdvice, overrides

T = TypeVar("T")
AdviseNext = Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]

MEMORY_ORDER = 200
TOOL_LOOP_ORDER = 300


class Advisor(ToolAdvice):
    """Wraps the rest of the chain, each tool call, or both. Written once, it works in all four modes.

    Lower orders are further out. Below `TOOL_LOOP_ORDER` an advisor sees one request and one final response; above it,
    every iteration of the loop. Equal orders keep the order of registration. Only methods that a subclass overrides are
    used.

    What waits (a store, a network) is awaited as `await perform(function, ...)`; under asyncio any awaitable will do.

    Attributes:
        name: set in code and bounded: it is a metric label.
        order: its place in the chain.
    """

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Wrap the rest of the chain. Each await of `call_next` runs the rest of the chain once more."""
        return await call_next(request)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        """Take each chunk of a stream on its way out; return it, another one, or None to hold it back.

        Text of the answer that was held back leaves the advisor when its `advise` returns, as one chunk.
        """
        return chunk


class BaseAdvisor(Advisor):
    """An advisor that only changes the request or the response, in `before` and `after`, each plain or async."""

    def before(self, request: ChatClientRequest) -> Any:
        """Return the request to send on."""
        return request

    def after(self, response: ChatClientResponse) -> Any:
        """Return the response to hand back."""
        return response

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Run `before`, the rest of the chain, `after`."""
        if overrides(self, BaseAdvisor, "before"):
            request = await run_hook(self, "before", request.run, request, request.iteration)
        response = await call_next(request)
        if overrides(self, BaseAdvisor, "after"):
            response = await run_hook(self, "after", request.run, response, request.iteration)
        return response


class ToolLoopAdvisor(Advisor):
    """An advisor that runs tools. A chain holds at most one; its presence keeps the client from adding its own."""


class TranscriptAdvisor(Advisor):
    """The base of advisors that keep the conversation themselves, such as a memory.

    Outside the loop (`MEMORY_ORDER`) it sees a run's question and answer; inside (above `TOOL_LOOP_ORDER`) it keeps
    every message, and the loop's own history is switched off.
    """


def hook_is_implemented(advisor: Advisor, base: type[Advisor], hook: Hook, run: RunContext, iteration: int) -> bool:
    """Whether the advisor implements the hook. The one of `base` returns what it gets, so its span is emitted here."""
    if overrides(advisor, base, hook):
        return True
    if run.telemetry.enabled:
        observe_hook(run.telemetry, hook, advisor.name, advisor.order, iteration).emit_instant()
    return False


async def run_hook(advisor: Advisor, hook: Hook, run: RunContext, value: T, iteration: int) -> T:
    """Run a plain or async hook of `advisor` on `value`, in its span, and return what it returns.

    Raises:
        TypeError: when the hook returns something of another type than it was given.
    """
    with observe_hook(run.telemetry, hook, advisor.name, advisor.order, iteration):
        result = getattr(advisor, hook)(value)
        if hasattr(result, "__await__"):
            result = await result
    if not isinstance(result, type(value)):
        raise TypeError(f"{hook} of {advisor.name} must return a {type(value).__name__}, not {type(result).__name__}")
    return result
