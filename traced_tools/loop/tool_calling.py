"""The tool-calling loop: an advisor that calls the model and runs tools until the model requests no more tools."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Any, Final, TypeVar

from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.enums import Hook, StopReason
from traced_tools.core.messages import (
    MESSAGE_TYPES,
    AssistantMessage,
    Message,
    SystemMessage,
    TextPart,
    UsageSum,
    tool_message_of,
)
from traced_tools.core.tool_result import ToolExecutionResult, ToolResult
from traced_tools.errors import LoopLimitExceeded, RunTaken
from traced_tools.flow.steps import is_async
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, AdviseNext, ToolLoopAdvisor, run_hook
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse
from traced_tools.models.base import ChatChunk, ChatResponse
from traced_tools.observe.failures import error_type, stop_reason_of
from traced_tools.observe.observations import observe_hook, observe_idle_hook, observe_iteration
from traced_tools.observe.saved_context import Place
from traced_tools.run.resumption import Resumption, RunPause
from traced_tools.tools.advice import overrides
from traced_tools.tools.flow_tool import check_nested
from traced_tools.tools.manager import ToolCallingManager
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

T = TypeVar("T")
_LOG: Final = logging.getLogger(__name__)
_HOOKS: Final[tuple[Hook, ...]] = ("initialize", "before", "after", "next_instructions", "finalize")


class ToolCallingAdvisor(ToolLoopAdvisor):
    """Runs the tools that the model calls and sends it the results, until the model answers or a limit ends the run.

    To change a step, override `initialize`, `before`, `after`, `next_instructions` or `finalize`, each as a plain or an
    async method. They run in this order:

        initialize; in each iteration: before, the rest of the chain, after, the tools, next_instructions; then finalize

    Args:
        manager: runs the tools. Pass one to change the threads of tools, how many run at once, or how long a result
            may be.
        order: the position in the chain. Advisors with higher orders run in every iteration.
        keep_history: whether each iteration sends the whole conversation. If False, it sends only the first system
            message and the last message, for an advisor inside the loop that adds the others. A client sets it to False
            by itself if such an advisor is a `TranscriptAdvisor`, such as a `MemoryAdvisor`.
        is_tool_call: a plain function that takes the response of an iteration and returns whether the loop runs its
            calls. If it returns False, the run ends with the response, whose `tool_calls` are left to the caller. By
            default, the loop runs the calls of every response that has some.

    Raises `TypeError` or `ValueError` for an invalid argument.
    """

    name = "tool_calling"
    order = TOOL_LOOP_ORDER

    def __init__(
        self,
        manager: ToolCallingManager | None = None,
        order: int = TOOL_LOOP_ORDER,
        keep_history: bool = True,
        is_tool_call: Callable[[ChatClientResponse], bool] | None = None,
    ) -> None:
        expect("manager", manager, (ToolCallingManager, type(None)), "a ToolCallingManager or None")
        expect_whole("order", order, -sys.maxsize)
        expect("keep_history", keep_history, bool, "True or False")
        expect_callable("is_tool_call", is_tool_call)
        if is_tool_call is not None and is_async(is_tool_call):
            raise TypeError("is_tool_call must be a plain function, because it is not awaited: drop `async`")
        self.manager = ToolCallingManager() if manager is None else manager
        self.order = order
        self.keep_history = keep_history
        self.is_tool_call = is_tool_call or _has_tool_calls

    def initialize(self, request: ChatClientRequest) -> Any:
        """Return the first request; called once, before the first iteration."""
        return request

    def before(self, request: ChatClientRequest) -> Any:
        """Return the request to send; called before each model call. Changes carry over to later iterations."""
        return request

    def after(self, response: ChatClientResponse) -> Any:
        """Return the response to continue with; called after each model call, before tools run."""
        return response

    def next_instructions(
        self, request: ChatClientRequest, response: ChatClientResponse, result: ToolExecutionResult
    ) -> Any:
        """Return the messages of the next iteration."""
        history = result.conversation_history
        if self.keep_history:
            return history
        return (*[message for message in request.messages if isinstance(message, SystemMessage)][:1], history[-1])

    def finalize(self, response: ChatClientResponse) -> Any:
        """Return the final response; called once, however the run ends.

        If the run fails or is cancelled, `response` is the partial state and the return value is ignored.
        """
        return response

    def on_chunk(self, chunk: ChatClientResponse) -> ChatClientResponse | None:
        """Remove tool calls from the chunk; return None if neither text nor reasoning is left."""
        delta = chunk.delta
        if delta is None or not self._ends_or_holds_calls(chunk, delta):
            return chunk
        return chunk.replace(delta=delta.without_calls()) if chunk.text or delta.reasoning else None

    def _ends_or_holds_calls(self, chunk: ChatClientResponse, delta: ChatChunk) -> bool:
        """Return whether a chunk belongs to calls the loop will run; a custom `is_tool_call` gets it as a response."""
        if self.is_tool_call is _has_tool_calls:
            return delta.has_calls or delta.finish_reason == "tool_call"
        calls = delta.calls()
        whole = ChatResponse(AssistantMessage(chunk.text, tool_calls=calls), finish_reason=chunk.finish_reason)
        return bool(calls) and self.is_tool_call(chunk.replace(delta=None, chat_response=whole))

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        """Run the loop."""
        loop, place = _Loop(self, request), Place()
        try:
            response = await loop.run(call_next)
            await loop.complete_transcripts(failing=False)
        except BaseException as error:
            with place:  # closing a coroutine of the loop may have left another span current
                if not isinstance(error, RunTaken):  # the process that has taken it over keeps the conversation
                    await loop.complete_transcripts(failing=True)
                await loop.hook("finalize", loop.reached(stop_reason_of(error)))
            raise
        return await loop.hook("finalize", response)


class _Loop:
    """State of one run of the loop: the current request, and the history and usage of the iterations so far."""

    def __init__(self, advisor: ToolCallingAdvisor, request: ChatClientRequest) -> None:
        self._advisor = advisor
        self._request = request
        self._run = request.run
        self._history: tuple[Message, ...] = request.messages
        self._messages: tuple[Message, ...] = request.messages
        self._response: ChatClientResponse | None = None
        self._usage = UsageSum()
        self._implemented = tuple(hook for hook in _HOOKS if overrides(advisor, ToolCallingAdvisor, hook))

    async def hook(self, name: Hook, value: T) -> T:
        """Run one of the advisor's hooks outside an iteration."""
        if self._has(name):
            return await run_hook(self._advisor, name, self._run, value, 0)
        return value

    def _has(self, hook: Hook, iteration: int = 0) -> bool:
        """Return whether the advisor overrides a hook; if it does not, emit the hook's span here."""
        if hook in self._implemented:
            return True
        observe_idle_hook(self._run.telemetry, hook, self._advisor.name, self._advisor.order, iteration)
        return False

    async def complete_transcripts(self, *, failing: bool) -> None:
        """Pass the conversation to the advisors that keep it, because they have not seen the last results."""
        for advisor in self._run.transcripts:
            try:
                with observe_hook(self._run.telemetry, "complete", advisor.name, advisor.order, 0):
                    await advisor.complete(self._run, self._conversation(), failing=failing)
            except Exception as error:  # the error on its way is the one to raise
                if not failing:
                    raise
                _LOG.warning("complete of an advisor failed (%s), after the run had failed", error_type(error))

    async def run(self, call_next: AdviseNext) -> ChatClientResponse:
        self._request = await self.hook("initialize", self._request)
        self._history = self._messages = self._request.messages
        if self._run.first_request is None:  # otherwise, an outer advisor has the loop run again
            self._run.first_request = self._request.messages
        resumption = self._run.resumption
        answer = None if resumption is None or resumption.has_begun else resumption.paused.answer
        if resumption is not None and answer is not None:
            ended = self._final_response(await self._resume(resumption, answer))
            if ended is not None:
                return ended
        while True:
            iteration = self._run.next_iteration()
            if limit := self._run.tally.limit_before(iteration, self._run.spent()):
                return await self._end_at_limit(limit, iteration, call_next)
            ended = self._final_response(await self._iterate(iteration, call_next))
            if ended is not None:
                return ended

    def _final_response(self, result: ToolExecutionResult | None) -> ChatClientResponse | None:
        """Return the response if the results of an iteration, or their absence, end the run; else None."""
        if result is None:
            return self.reached("answered")
        if result.pending:
            is_for_input = all(call.input is not None or call.held for call in result.pending)
            paused = self.reached("awaiting_input" if is_for_input else "awaiting_approval")
            return paused.replace(pending=result.pending)
        if result.ended_by is not None:
            return self._end_with_results([result.ended_by], "advisor")
        return self._end_with_results(result.results, "return_direct") if result.return_direct else None

    async def _resume(self, resumption: Resumption, answer: AssistantMessage) -> ToolExecutionResult:
        """Run the calls that waited, with the decisions about them, and those that had not begun.

        The decisions are claimed last: until then, another run can resume the paused one if this run fails.
        """
        run, advisor, request = self._run, self._advisor, self._request
        for transcript in run.transcripts:
            with observe_hook(run.telemetry, "resume", transcript.name, transcript.order, 0):
                await transcript.resume(run)
        tools = await advisor.manager.completed(run, request.tools, answer.tool_calls)
        pause = resumption.paused.pause(tools.by_name)
        await check_nested(resumption.paused.nested_runs(), tools.by_name)
        decisions = await resumption.claim()
        for transcript in run.transcripts:
            await transcript.claim(run)
        # set before the calls run: an outer advisor that runs the loop again must not run them twice
        run.resumption = replace(resumption, has_begun=True)
        self._history = (*request.messages, *pause.added)
        limits = advisor.manager.count_earlier(run, self._history, pause, request.tools)
        self._response = response = ChatClientResponse(
            run,
            ChatResponse(pause.answer, finish_reason="tool_call"),
            (*self._history, pause.answer),
            context=request.context,
            iteration=pause.iteration,
            offered=request.tools,
        )
        with observe_iteration(run, pause.iteration) as observed:
            observed.requested(sum(earlier.decision == "pending" for earlier in pause.result.results))
            result = await self._execute(
                response,
                tools,
                pause.iteration,
                decisions=decisions,
                earlier=pause.result,
                cut_ids=pause.cut_ids,
                limits=limits,
            )
            return await self._go_on(response, result, pause.new_ids)

    async def _iterate(
        self, iteration: int, call_next: AdviseNext, broken: StopReason | None = None
    ) -> ToolExecutionResult | None:
        """Call the model once and run the tools that it calls; return None if the model answered.

        If `broken` is a limit, the request offers no tools, and any calls of the model are refused.
        """
        run, advisor, tools = self._run, self._advisor, self._request.tools
        run.totals.iterations += 1
        self._request = self._next_request(iteration, withheld=broken is not None)
        with observe_iteration(run, iteration) as observed:
            response = await self._ask(call_next)
            observed.requested(len(response.tool_calls))
            if not advisor.is_tool_call(response):
                return None
            # an inner advisor may have sent the model other tools than the loop's request has
            offered = tools if broken else response.offered or self._request.tools
            if run.journal is not None:
                messages = _messages_after(run.first_request or (), self._history)
                await run.journal.answered(run, response.message, messages, iteration)
            result = await self._execute(response, offered, iteration, limit=broken)
            return await self._go_on(response, result)

    async def _execute(
        self,
        response: ChatClientResponse,
        tools: ToolSet,
        iteration: int,
        *,
        limit: StopReason | None = None,
        **approvals: Any,
    ) -> ToolExecutionResult:
        """Run the calls of an answer; `approvals` are `decisions`, `earlier`, `cut_ids` and `limits`."""
        run = self._run
        try:
            return await self._advisor.manager.execute(
                run,
                self._history,
                response,
                tools,
                iteration=iteration,
                spent=limit or run.tally.exhausted_budget(run.spent()),
                **approvals,
            )
        except BaseException:
            # so that `complete_transcripts` passes on which tools have begun; a run with a journal goes on with them
            if run.interrupted is not None and run.journal is None:
                self._history = (*self._history, response.message, run.interrupted)
            raise

    async def _go_on(
        self, response: ChatClientResponse, result: ToolExecutionResult, new_ids: Set[str] | None = None
    ) -> ToolExecutionResult:
        """Take the results of an answer, and prepare the next request unless calls wait for approval.

        Args:
            response: the answer.
            result: the results of its calls.
            new_ids: the ids of the calls whose results the conversation does not have; None for all.
        """
        run, advisor, history = self._run, self._advisor, self._history
        self._history = result.conversation_history
        results = result.results
        if new_ids is not None:
            results = [item for item in results if item.call_id in new_ids]
        if result.pending:
            # a result that still waits is none yet, unless an advisor ends the run with it
            run.results.extend(item for item in results if result.ended_by or item.pending is None)
            messages = _messages_after(run.first_request or (), history)
            run.pause = RunPause(messages, response.message, result, response.iteration)
            return result
        run.results.extend(results)
        if new_ids is not None and results and not advisor.keep_history:
            parts = [item.part() for item in results]
            result = replace(result, conversation_history=(*self._history[:-1], tool_message_of(parts)))
        if "next_instructions" not in self._implemented:
            self._messages = advisor.next_instructions(self._request, response, result)
            return result
        with observe_hook(run.telemetry, "next_instructions", advisor.name, advisor.order, response.iteration):
            messages = advisor.next_instructions(self._request, response, result)
            if hasattr(messages, "__await__"):
                messages = await messages
        self._messages = messages if messages is self._history else _checked_messages(messages, advisor.name)
        return result

    def _next_request(self, iteration: int, *, withheld: bool) -> ChatClientRequest:
        last, tools, options = self._request, self._request.tools, self._request.options
        if withheld:
            tools, options = NO_TOOLS, options.replace(tool_choice=None, parallel_tool_calls=None)
        return ChatClientRequest(self._messages, tools, options, last.context, iteration, last.run)

    async def _ask(self, call_next: AdviseNext) -> ChatClientResponse:
        """Call the rest of the chain, with the hooks `before` and `after`."""
        iteration = self._request.iteration
        if self._has("before", iteration):
            self._request = await run_hook(self._advisor, "before", self._run, self._request, iteration)
        if self._advisor.keep_history:
            self._history = self._request.messages
        response = await call_next(self._request)
        if self._has("after", iteration):
            response = await run_hook(self._advisor, "after", self._run, response, iteration)
        self._response = response
        self._usage.add(response.usage)
        return response

    async def _end_at_limit(self, limit: StopReason, iteration: int, call_next: AdviseNext) -> ChatClientResponse:
        """End a run that reached `limit`, as `on_limit` of its limits specifies."""
        if self._run.limits.on_limit == "raise":
            raise LoopLimitExceeded(limit, self.reached(limit), self._run.tally.broken_by)
        if self._run.limits.on_limit == "conclude":
            self._run.journal = None  # no tool runs any more: another life concludes again, and asks anew
            await self._iterate(iteration, call_next, limit)
        return self.reached(limit)

    def _end_with_results(self, results: Sequence[ToolResult], reason: StopReason) -> ChatClientResponse:
        """Return results as the answer, with the number of the next iteration, because no chunk contains it yet."""
        text = "\n".join(result.content for result in results)
        images = [image for result in results for image in result.images]
        message = AssistantMessage([TextPart(text), *images] if images else text)
        self._history = (*self._history, message)
        ended = self.reached(reason)
        last = ended.chat_response or ChatResponse(message)
        return ended.replace(
            chat_response=last.replace(message=message, finish_reason="stop"),
            messages=self._history,
            iteration=ended.iteration + 1,
        )

    def reached(self, stop_reason: StopReason) -> ChatClientResponse:
        """Return the response so far, with `stop_reason` as the reason for the end."""
        base = self._response or ChatClientResponse(self._run, context=self._request.context)
        return base.replace(
            messages=self._conversation(),
            usage=self._usage.total,
            stop_reason=stop_reason,
            tool_results=self._run.all_results(),
        )

    def _conversation(self) -> tuple[Message, ...]:
        """Return the history, with the last answer at its end unless its tools have run."""
        response = self._response
        if response is None or response.chat_response is None:
            return self._history
        answer = response.chat_response.message
        # at most two messages follow it: the results of its calls, and the text of results that end the run
        return self._history if any(message is answer for message in self._history[-3:]) else (*self._history, answer)


def _checked_messages(messages: Any, advisor: str) -> tuple[Message, ...]:
    """Return the result of `next_instructions` as messages; raise `TypeError` for anything else."""
    must = f"next_instructions of {advisor} must return a sequence of messages"
    if not isinstance(messages, Iterable) or isinstance(messages, (str, *MESSAGE_TYPES)):
        raise TypeError(f"{must}, not {type(messages).__name__}")
    conversation = tuple(messages)
    for index, message in enumerate(conversation):
        if not isinstance(message, MESSAGE_TYPES):
            raise TypeError(f"{must}; item {index} is of type {type(message).__name__}")
    return conversation


def _messages_after(first: tuple[Message, ...], history: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages after the first request in the history; a hook may have put messages before the request."""
    for index in reversed(range(len(history))):
        if first and history[index] is first[-1]:
            return history[index + 1 :]
    return history[len(first) :]


def _has_tool_calls(response: ChatClientResponse) -> bool:
    return bool(response.tool_calls)
