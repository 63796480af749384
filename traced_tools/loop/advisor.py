"""The base classes of advisors, which wrap model calls and tool calls."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from traced_tools.core.enums import Hook
from traced_tools.core.messages import Message
from traced_tools.core.tool_definition import ToolCallback
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.observe.observations import observe_hook
from traced_tools.run.context import RunContext
from traced_tools.tools.advice import ToolAdvice, overrides

T = TypeVar("T")
AdviseNext = Callable[[ChatClientRequest], Awaitable[ChatClientResponse]]

MEMORY_ORDER = 200
TOOL_LOOP_ORDER = 300


class Advisor(ToolAdvice):
    """Middleware that wraps model calls, tool calls, or both, in all four modes (`call`, `acall`, `stream`, `astream`).

    An advisor with a lower order wraps the advisors with higher orders. Below `TOOL_LOOP_ORDER`, an advisor sees one
    request and one final response of a run. Above it, an advisor sees every iteration of the tool loop. Advisors with
    equal orders keep the order in which they are registered. The chain calls only methods that a subclass overrides.

    Call blocking functions, such as a store or a network client, as `await perform(function, ...)`. In runs on asyncio,
    an advisor may also await anything else.

    Attributes:
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: its position in the chain.
    """

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Wrap the rest of the chain. Each `await call_next(request)` runs the rest of the chain once."""
        return await call_next(request)

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        """Process one chunk of a stream; return it, a changed chunk, or None to hold it back.

        When `advise` returns, text of the answer that was held back is delivered as one chunk.
        """
        return chunk

    def paused_state(self, run: RunContext) -> Mapping[str, Any] | None:
        """Return what the advisor needs when a run that pauses is resumed, as a JSON object; None for nothing.

        It becomes a part of `response.state`, so keep it small. Called once, after `advise` has returned.
        """
        return None

    def restore(self, run: RunContext, state: Mapping[str, Any]) -> None:
        """Take what `paused_state` returned, before a run that resumes begins.

        The advisor of the same name gets it; of several, each gets its own. Raise `ValueError` if it cannot be read.
        """


class BaseAdvisor(Advisor):
    """An advisor that changes requests in `before` and responses in `after`; each may be plain or async."""

    def before(self, request: ChatClientRequest) -> Any:
        """Return the request to pass to the rest of the chain."""
        return request

    def after(self, response: ChatClientResponse) -> Any:
        """Return the response to pass back to the caller."""
        return response

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Run `before`, then the rest of the chain, then `after`."""
        if overrides(self, BaseAdvisor, "before"):
            request = await run_hook(self, "before", request.run, request, request.iteration)
        response = await call_next(request)
        if overrides(self, BaseAdvisor, "after"):
            response = await run_hook(self, "after", request.run, response, request.iteration)
        return response


class ToolLoopAdvisor(Advisor):
    """An advisor that runs tools. A chain has at most one; if it has one, the client adds no default loop.

    Attributes:
        own_tools: the tools that the loop adds to those of a request.
    """

    own_tools: tuple[ToolCallback, ...] = ()


class TranscriptAdvisor(Advisor):
    """The base class of advisors that keep the conversation, such as a memory.

    Outside the tool loop (`MEMORY_ORDER`), the advisor sees a run's question and its final answer. Inside the loop
    (above `TOOL_LOOP_ORDER`), it keeps every message, and the default loop keeps no history.
    """

    async def resume(self, run: RunContext) -> None:
        """Check that a run can be resumed before the calls that waited run.

        The loop calls this on advisors inside it. Raise `ResumeError` if the conversation went on without the calls.
        """

    async def claim(self, run: RunContext) -> None:
        """Record that a run that resumes runs the calls that waited, right before the first of them runs.

        The loop calls this on advisors inside it. Raise `ResumeError` if another run was faster.
        """

    async def complete(self, run: RunContext, messages: Sequence[Message], *, failing: bool) -> None:
        """Keep what the model was not sent anymore, such as the results of the last tools.

        The loop calls this on advisors inside it when it ends, however it ends.

        Args:
            run: the run.
            messages: the conversation of the loop: its first request, and every answer and result since then.
            failing: whether an error or the caller ends the loop. What is raised here is then logged and not raised.
        """


async def run_hook(advisor: Advisor, hook: Hook, run: RunContext, value: T, iteration: int) -> T:
    """Run a plain or async hook of `advisor` on `value` in a span, and return the hook's result.

    Raises:
        TypeError: if the result is not of the type of `value`.
    """
    with observe_hook(run.telemetry, hook, advisor.name, advisor.order, iteration):
        result = getattr(advisor, hook)(value)
        if hasattr(result, "__await__"):
            result = await result
    if not isinstance(result, type(value)):
        raise TypeError(f"{hook} of {advisor.name} must return a {type(value).__name__}, not {type(result).__name__}")
    return result
