"""Runs the tool calls of a model's answer in parallel and returns the results in call order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from time import perf_counter_ns, time
from types import MappingProxyType
from typing import Any, Final, Protocol

from traced_tools.core.approval import Approve, CallDecision, Denied, PendingCall, Reject
from traced_tools.core.checks import checked_mapping, expect, expect_each, expect_whole
from traced_tools.core.conversation import NOT_RUN, with_results
from traced_tools.core.enums import Decision, StopReason
from traced_tools.core.identity import check_principal, checked_actors
from traced_tools.core.limits import DEFAULT_LIMITS, LoopLimits
from traced_tools.core.messages import (
    ANY_MESSAGE,
    MESSAGE_TYPES,
    AssistantMessage,
    Message,
    ToolCall,
    Usage,
    UsageSum,
    tool_message_of,
)
from traced_tools.core.tool_definition import ToolCallback, ToolCallbackResolver
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.core.tool_input import Provide
from traced_tools.core.tool_naming import wire_name
from traced_tools.core.tool_result import ToolExecutionResult, ToolResult
from traced_tools.errors import LoopLimitExceeded
from traced_tools.flow.flow import Flow, acall, call
from traced_tools.flow.steps import perform
from traced_tools.flow.workers import UsePool, WorkerPool
from traced_tools.models.base import ChatResponse
from traced_tools.observe.observations import observe_decided_wait, observe_iteration
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.observe.time_ledger import TimeLedger
from traced_tools.observe.typed_events.dispatch import EventListeners
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import RunPause
from traced_tools.tools.advice import (
    ToolAdvice,
    advising_tools,
    approving,
    call_listeners,
    check_advisors,
    event_listeners,
    reviewing,
    sort_advisors,
)
from traced_tools.tools.augmented_tool import AugmentedTool
from traced_tools.tools.batch import ExecuteTools, Hold
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import ToolSet

Decisions = Mapping[str, CallDecision | Denied]
"""Decisions about calls that wait, or that require approval, by the call's id."""
_NONE_DECIDED: Final[Decisions] = MappingProxyType({})
_CURRENT_POOL: Final = nullcontext()
_LIMIT_TEXT = {
    "max_tool_calls": "this conversation's limit of tool calls is reached",
    "max_calls_per_tool": "the limit of calls to this tool is reached",
    "repeated_call": "the same call was made before, and its result has not changed since",
    "max_iterations": "the limit of rounds is reached",
    "token_budget": "the token budget is used up",
    "deadline": "the time is over",
    "consecutive_errors": "the calls of several rounds in a row have failed",
}


class Answer(Protocol):
    """A model's or a client's response."""

    @property
    def message(self) -> AssistantMessage:
        """The model's message."""


class ToolCallingManager:
    """Runs the tool calls of a model's answer. The tool loop uses a manager; `execute_tool_calls` works without a loop.

    Args:
        max_concurrency: how many tools of one answer may run at once.
        workers: the pool of threads for blocking tools, used if several run in parallel or the run is on asyncio. By
            default, all managers share a pool of 64 threads.
        max_result_characters: how many characters of one result the model reads. A longer result is truncated, with a
            notice. None for no limit. A result that is the run's answer is never truncated.
        resolver: finds tools by the names in `tools=` of `execute_tool_calls`.
        resolver_fallback: whether to ask the resolver for a tool that the model calls and the request does not contain.
        hold: what waits while a call waits for approval. `call`: that call, and the others of the answer run. `batch`:
            all calls of the answer, so that none runs until each is decided.
    """

    def __init__(
        self,
        *,
        max_concurrency: int = 64,
        workers: WorkerPool | None = None,
        max_result_characters: int | None = 100_000,
        resolver: ToolCallbackResolver | None = None,
        resolver_fallback: bool = False,
        hold: Hold = "call",
    ) -> None:
        expect_whole("max_concurrency", max_concurrency, 1)
        if hold not in ("call", "batch"):
            raise ValueError("hold must be 'call' or 'batch'")
        self._hold: Final = hold
        expect("workers", workers, (WorkerPool, type(None)), "a WorkerPool or None")
        expect("resolver", resolver, (ToolCallbackResolver, type(None)), "a ToolCallbackResolver or None")
        expect("resolver_fallback", resolver_fallback, bool, "True or False")
        if resolver_fallback and resolver is None:
            raise ValueError("resolver_fallback=True needs a resolver=")
        if max_result_characters is not None:
            expect_whole("max_result_characters", max_result_characters, 1)
        self._max_concurrency = max_concurrency
        self._workers = workers
        self._max_result_characters = max_result_characters
        self._resolver = resolver
        self._fallback = resolver if resolver_fallback else None

    async def execute(
        self,
        run: RunContext,
        messages: Sequence[Message],
        response: Answer,
        tools: ToolSet,
        *,
        iteration: int = 0,
        spent: StopReason | None = None,
        decisions: Decisions = _NONE_DECIDED,
        earlier: ToolExecutionResult | None = None,
        cut_ids: Set[str] = frozenset(),
        limits: Mapping[int, StopReason] | None = None,
    ) -> ToolExecutionResult:
        """Run the tool calls of `response`, as a flow.

        Args:
            run: the run that the calls belong to and whose limits count them.
            messages: the whole conversation that was sent, without the answer.
            response: the answer with the tool calls.
            tools: the tools of the request.
            iteration: the iteration of the loop; 0 outside a loop.
            spent: the limit that is used up; all calls are then refused. None if there is none.
            decisions: the decisions about calls that require approval.
            earlier: the result of an earlier execution of this answer. Only the calls that waited for approval then are
                run now, and those that had not begun; the others keep their results.
            cut_ids: the ids of the calls whose tools had begun when their process ended. They don't run again.
            limits: what `count_earlier` has returned; None without it.

        Raises:
            ValueError: if the answer has no tool call.
            ToolExecutionError: if a tool failed and the error policy makes the run fail.
        """
        message = response.message
        calls = message.tool_calls
        if not calls:
            raise ValueError("the response has no tool call: check response.tool_calls before you execute them")
        if earlier is not None or not spent:  # a call that was admitted before runs even if a limit is used up now
            tools = await self.completed(run, tools, calls)
        run.tool_names = tools.by_name
        may_be_direct = all(map(_returns_directly, [tools.by_name.get(tool_call.name) for tool_call in calls]))
        most_characters = None if may_be_direct else self._max_result_characters
        step = self._step(run, calls, tools, iteration, most_characters, earlier, cut_ids)
        for call_id, decision in decisions.items():
            step.decide(call_id, decision)
        admitted = frozenset() if earlier is None else _admitted_places(step.places, earlier, cut_ids)
        ledger = run.telemetry.ledger if run.telemetry.enabled else None
        began, mark = perf_counter_ns(), None if ledger is None else ledger.mark()
        try:
            with _CURRENT_POOL if self._workers is None else UsePool(self._workers):
                self._admit(step, run, tools, spent, admitted, limits)
                results = await step
        except BaseException:
            run.interrupted = tool_message_of(step.results_so_far())
            raise
        finally:  # a model that a tool has called in this run has booked its time here, and it is the tool's time
            if ledger is not None and mark is not None:
                ledger.return_to(mark)
                step.book(ledger, perf_counter_ns() - began)
        _record_results(run, step, results)
        if earlier is not None:
            results = _merge_earlier(run, earlier, dict(zip(step.places, results, strict=False)), decisions)
        return self._conclude(run, messages, message, results, may_be_direct=may_be_direct)

    async def execute_call(
        self,
        run: RunContext,
        call: ToolCall,
        tools: ToolSet,
        *,
        place: tuple[int, int],
        answer: object,
        iteration: int,
        spent: StopReason | None,
        decision: CallDecision | None,
        result: str | None,
        pending: PendingCall | None,
        book: Callable[[Sequence[TimeLedger]], None],
    ) -> ToolResult:
        """Run one call of an answer whose calls the application runs one by one, as a flow.

        Args:
            run: the run that the call belongs to and whose limits count it.
            call: the call.
            tools: the tools that it can name.
            place: its position in the answer, from 0, and the number of calls of the answer.
            answer: identifies the answer by identity.
            iteration: the iteration of the loop; 0 outside a loop.
            spent: the limit that is used up; the call is then refused. None if there is none.
            decision: the decision about the call if it requires approval; None if there is none.
            result: the result that the application has for the call; None if its tool is to run.
            pending: the call as it has waited, if it has; the limits have counted it then.
            book: called at the end with the ledgers of the call.

        Raises:
            ToolExecutionError: if the tool failed and the error policy makes the run fail.
        """
        if not spent and result is None:
            tools = await self.completed(run, tools, [call])
        most_characters = None if _returns_directly(tools.by_name.get(call.name)) else self._max_result_characters
        waiting = {} if pending is None else {pending.call_id: pending}
        step = ExecuteTools(
            run, (call,), tools, iteration, most_characters=most_characters, places=[place], pending=waiting
        )
        try:
            if decision is not None:
                step.decide(call.id, decision)
            if result is not None:
                step.answer(call.id, result)
            if pending is None:
                self._admit(step, run, tools, spent, frozenset(), None, answer)
            results = await step
        finally:
            book(step.ledgers)
        _record_results(run, step, results)
        if pending is not None and decision is not None:
            _observe_decided(run, pending, results[0], decision)
        return _keep_wait_time(results[0], pending)

    def skip_call(
        self, run: RunContext, call: ToolCall, tools: ToolSet, place: tuple[int, int], iteration: int
    ) -> None:
        """Emit the span of a call that never began because the application left it; the arguments are as above."""
        ExecuteTools(run, (call,), tools, iteration, places=[place]).skip()

    def _step(
        self,
        run: RunContext,
        calls: tuple[ToolCall, ...],
        tools: ToolSet,
        iteration: int,
        most_characters: int | None,
        earlier: ToolExecutionResult | None,
        cut_ids: Set[str],
    ) -> ExecuteTools:
        """Return the step that runs the calls of an answer; after a pause, those of them that have no result."""
        places = [(index, len(calls)) for index in range(len(calls))]
        pending: dict[str, PendingCall] = {}
        if earlier is not None:
            pending = {call.call_id: call for call in earlier.waiting}
            results = earlier.results
            places = [place for place in places if calls[place[0]].id in pending or _is_open(results[place[0]])]
            calls = tuple(calls[index] for index, _ in places)
        return ExecuteTools(
            run,
            calls,
            tools,
            iteration,
            max_concurrency=self._max_concurrency,
            most_characters=most_characters,
            hold=self._hold,
            places=places,
            pending=pending,
            cut_ids=cut_ids,
        )

    def _conclude(
        self,
        run: RunContext,
        messages: Sequence[Message],
        message: AssistantMessage,
        results: Sequence[ToolResult],
        *,
        may_be_direct: bool,
    ) -> ToolExecutionResult:
        """Return the results of an answer as the loop goes on with them, with the conversation up to them."""
        is_direct = may_be_direct and all(map(_is_answer, results))
        if may_be_direct and not is_direct:
            results = _limited(results, self._max_result_characters)
        ended_by = next((result for result in results if result.ends_run), None)
        # if an advisor ended the run, nobody decides about the calls that wait
        pending = () if ended_by else _waiting_calls(results)
        parts = [result.part() for result in results if ended_by or result.pending is None]
        if run.limits.max_consecutive_errors is not None and not pending:
            run.tally.record_iteration(all(part.is_error for part in parts))
        tool_messages = (tool_message_of(parts),) if parts else ()
        history = (*messages, message, *tool_messages)
        if not pending:
            _extend_complete(run, messages, history)
        return ToolExecutionResult(history, is_direct, results, ended_by, pending)

    async def completed(self, run: RunContext, tools: ToolSet, calls: Iterable[ToolCall]) -> ToolSet:
        """Return the tools, and the called tools that only a resolver of the run or the manager knows, as a flow."""
        if (resolver := run.resolver_fallback or self._fallback) is None:
            return tools
        wire_names = {wire_name(name) for name in tools.by_name}
        all_tools = list(tools)
        for name in dict.fromkeys(tool_call.name for tool_call in calls):
            if wire_name(name) in wire_names:  # the request has the tool, or one whose wire name is the same
                continue
            tool = await perform(resolver.resolve, name)
            expect("what the resolver returns", tool, (ToolCallback, type(None)), "a ToolCallback or None")
            if tool is not None and tool.definition.name == name:
                wire_names.add(wire_name(name))
                all_tools.append(tool)
        return ToolSet(all_tools)

    def _admit(
        self,
        step: ExecuteTools,
        run: RunContext,
        tools: ToolSet,
        run_limit: StopReason | None,
        admitted: Set[int],
        limits: Mapping[int, StopReason] | None,
        answer: object = None,
    ) -> None:
        """Refuse the calls of `step` that break a limit, in call order, so that the result never depends on timing.

        `admitted` has the places, in `step`, of the calls that the paused run has admitted: they cannot be refused now.
        `limits` has the limits that the others break, by their places in the answer, if they are counted already.
        `answer` identifies the answer by identity if `step` has only some of its calls.
        """
        nested = run.totals.nested_tool_calls
        run.totals.tool_calls += len(step.calls)
        for index, tool_call in enumerate(step.calls):
            if index in admitted:
                continue
            tool = tools.by_name.get(tool_call.name)
            if limits is not None:
                limit = run_limit or limits.get(step.places[index])
            else:
                limit = run_limit or run.tally.admit(
                    tool_call,
                    answer=answer or step.calls,
                    repeatable=_is_repeatable(tool),
                    additional=_additional_names(tool),
                    nested=nested,
                )
            if limit is not None:
                decision: Decision = "repeated" if limit == "repeated_call" else "limited"
                text = f"{NOT_RUN}{_LIMIT_TEXT[limit]}. Answer with what you have."
                step.refuse(index, decision, text, code=limit)

    def count_earlier(
        self, run: RunContext, messages: Sequence[Message], pause: RunPause, tools: ToolSet
    ) -> Mapping[int, StopReason]:
        """Count the calls of a conversation against the limits of a run that resumes, and those of the last answer.

        The calls of the answer count in their order, whichever of them have a result.

        Args:
            run: the run that resumes.
            messages: the conversation up to the answer of the pause.
            pause: where the run paused.
            tools: the tools of the request.

        Returns:
            The limits that calls break which were not admitted before, by their places.
        """
        _count_conversation(run, messages, tools)
        calls, limits, nested = pause.answer.tool_calls, dict[int, StopReason](), run.totals.nested_tool_calls
        for place, (tool_call, earlier) in enumerate(zip(calls, pause.result.results, strict=True)):
            tool, is_new = tools.by_name.get(tool_call.name), _is_open(earlier, pause.cut_ids)
            limit = run.tally.admit(
                tool_call,
                answer=calls,
                repeatable=_is_repeatable(tool),
                additional=_additional_names(tool),
                # what nested runs have called since a call was admitted does not refuse it now
                nested=nested if is_new or earlier.decision == "limited" else 0,
            )
            if is_new and limit is not None:
                limits[place] = limit
        for tool_call, earlier in zip(calls, pause.result.results, strict=True):
            _record_result(run, tool_call, earlier)
        return limits

    def execute_tool_calls(
        self,
        messages: Iterable[Message],
        response: Answer,
        *,
        tools: object,
        tool_context: Mapping[str, Any] | None = None,
        limits: LoopLimits = DEFAULT_LIMITS,
        tool_errors: ToolErrors = ANSWER_ERRORS,
        telemetry: TelemetryOptions | None = None,
        advisors: Iterable[ToolAdvice] = (),
        decisions: Decisions = _NONE_DECIDED,
        earlier: ToolExecutionResult | None = None,
        agent: str = "assistant",
        principal: str | None = None,
        actors: Sequence[str] = (),
    ) -> ToolExecutionResult:
        """Run the tool calls of `response`, blocking, without a tool loop.

        Calls without an id get one, as in the loop; `conversation_history` of the result has the ids.

        Args:
            messages: the conversation that was sent, without the answer.
            response: the model's or the client's response.
            tools: the tools; accepts the same values as `tools=` of a prompt.
            tool_context: data about the caller for tools.
            limits: the limits of the calls. Iterations and calls since the last user message in `messages` count. The
                tokens are those of `response`; the time begins with this call. Calls beyond a limit are refused. With
                `on_limit="raise"`, an error is raised after the other calls have run.
            tool_errors: the error policy: what happens when a tool fails.
            telemetry: which telemetry to emit, and to which providers.
            advisors: advisors in any order. Only their `advise_tool`, `decide_approval`, `review_tools` and
            `on_event` are called.
            decisions: the decisions about calls that require approval, such as `{"call_1": Approve(by="ana")}`. Without
                one, such a call is in `pending` of the result and does not run.
            earlier: the result of an earlier execution of this response. Only its pending calls are then decided; the
                others keep their results.
            agent: the name under which the calls are recorded.
            principal: on whose behalf the calls are; None for the principal of the enclosing run, if there is one.
            actors: which agents and tools stand between the principal and the calls, the outermost first, such as
                `["agent:planner", "tool:ask_billing"]`. Inside a run, its actors count instead.

        Raises:
            TypeError, ValueError: for an invalid argument, or a response without tool calls.
            KeyError: if no call to run has an id in `decisions`.
            ResumeError: if a call of `earlier` is approved whose tool has another definition or source now.
            LoopLimitExceeded: if a limit is reached with `on_limit="raise"`; `.result` has the results of the calls.
            ToolExecutionError: if a tool failed and the error policy raises its error.
        """
        settings: dict[str, Any] = {"tool_context": tool_context, "limits": limits, "tool_errors": tool_errors}
        settings |= {"telemetry": telemetry, "agent": agent, "principal": principal, "actors": checked_actors(actors)}
        return call(self._prepare_by_hand(messages, response, tools, advisors, decisions, earlier, settings))

    async def aexecute_tool_calls(
        self,
        messages: Iterable[Message],
        response: Answer,
        *,
        tools: object,
        tool_context: Mapping[str, Any] | None = None,
        limits: LoopLimits = DEFAULT_LIMITS,
        tool_errors: ToolErrors = ANSWER_ERRORS,
        telemetry: TelemetryOptions | None = None,
        advisors: Iterable[ToolAdvice] = (),
        decisions: Decisions = _NONE_DECIDED,
        earlier: ToolExecutionResult | None = None,
        agent: str = "assistant",
        principal: str | None = None,
        actors: Sequence[str] = (),
    ) -> ToolExecutionResult:
        """Run the tool calls of `response` on asyncio, without a tool loop; see `execute_tool_calls`."""
        settings: dict[str, Any] = {"tool_context": tool_context, "limits": limits, "tool_errors": tool_errors}
        settings |= {"telemetry": telemetry, "agent": agent, "principal": principal, "actors": checked_actors(actors)}
        return await acall(self._prepare_by_hand(messages, response, tools, advisors, decisions, earlier, settings))

    def _prepare_by_hand(
        self,
        messages: Iterable[Message],
        response: Answer,
        tools: object,
        advisors: Iterable[ToolAdvice],
        decisions: Decisions,
        earlier: ToolExecutionResult | None,
        settings: Mapping[str, Any],
    ) -> Flow[ToolExecutionResult]:
        expect("agent", settings["agent"], str, "a str")
        check_principal("principal", settings["principal"])
        expect("tool_errors", settings["tool_errors"], ToolErrors, "a ToolErrors")
        expect("limits", settings["limits"], LoopLimits, "a LoopLimits")
        expect("messages", messages, Iterable, "a sequence of messages")
        messages = tuple(messages)
        expect_each("messages", messages, MESSAGE_TYPES, ANY_MESSAGE)
        expect("response.message", getattr(response, "message", None), AssistantMessage, "an AssistantMessage")
        if messages[-1:] == (response.message,):  # `response.messages`, which end with the answer
            messages = messages[:-1]
        expect("advisors", advisors, Iterable, "a sequence of Advisor objects")
        advisors = tuple(advisors)
        check_advisors(advisors)
        advisors = sort_advisors(advisors)
        run = RunContext(
            **{**settings, "tool_context": checked_mapping("tool_context", settings["tool_context"])},
            tool_advisors=advising_tools(advisors),
            approvers=approving(advisors),
            listeners=EventListeners(event_listeners(advisors), calls=call_listeners(advisors)),
        )
        expect("earlier", earlier, (ToolExecutionResult, type(None)), "a ToolExecutionResult or None")
        expect("decisions", decisions, Mapping, "a mapping of ids of calls to Approve, Reject or Provide")
        for call_id, decision in decisions.items():
            expect(f"decisions[{call_id!r}]", decision, (Approve, Reject, Provide), "an Approve, a Reject or a Provide")
        if earlier is not None and _call_texts(response.message) != _call_texts(_executed_message(earlier)):
            raise ValueError("earlier is the result of another response: pass the response that it is the result of")
        selection = ToolSelection(tools, self._resolver)
        reviewers = reviewing(advisors)
        messages = with_results(messages)
        return self._execute_by_hand(run, messages, response, selection, reviewers, dict(decisions), earlier)

    async def _execute_by_hand(
        self,
        run: RunContext,
        messages: tuple[Message, ...],
        response: Answer,
        selection: ToolSelection,
        reviewers: Iterable[ToolAdvice],
        decisions: Decisions,
        earlier: ToolExecutionResult | None,
    ) -> ToolExecutionResult:
        with run:
            tools = await selection.tool_set()
            for advisor in reviewers:
                advisor.review_tools(run, tools.names_by_source)
            run.totals.iterations = _count_conversation(run, messages, tools) + 1
            usage, tokens = getattr(response, "usage", None), UsageSum()
            # not added to the totals, because the run that called the model has counted it
            tokens.add(usage if isinstance(usage, Usage) else None)
            # the earlier message has the ids that its calls got then
            message = response.message if earlier is None else _executed_message(earlier)
            answer = ChatResponse(message).with_call_ids()
            limit = run.tally.limit_before(run.totals.iterations, tokens)
            with observe_iteration(run, 0) as observed:
                observed.requested(len(answer.tool_calls))
                result = await self.execute(
                    run, messages, answer, tools, spent=limit, decisions=decisions, earlier=earlier
                )
            if run.tally.broken is not None and run.limits.on_limit == "raise":
                last_response: Any = response
                raise LoopLimitExceeded(run.tally.broken, last_response, run.tally.broken_by, result)
            return result


def _record_results(run: RunContext, step: ExecuteTools, results: Sequence[ToolResult]) -> None:
    """Count the results for the limit of equal calls."""
    for tool_call, result in zip(step.calls, results, strict=False):  # a driver may resume the step with any list
        _record_result(run, tool_call, result)


def _record_result(run: RunContext, tool_call: ToolCall, result: ToolResult) -> None:
    """Count the result of a call for the limit of equal calls."""
    # a refusal doesn't count: it would differ from the tool's last result and reset the count of equal calls
    if result.pending is None and (result.outcome is not None or result.decision == "answered"):
        run.tally.record_result(tool_call, result)


def _admitted_places(places: Sequence[int], earlier: ToolExecutionResult, cut_ids: Set[str]) -> Set[int]:
    """Return which of the calls that a run goes on with were admitted before it paused or was interrupted.

    Args:
        places: the places of the calls in their answer.
        earlier: the results so far of all calls of the answer.
        cut_ids: the ids of the calls whose tools had begun when their process ended.
    """
    return {index for index, place in enumerate(places) if not _is_open(earlier.results[place], cut_ids)}


def _is_open(earlier: ToolResult, cut_ids: Set[str] = frozenset()) -> bool:
    """Return whether a call of an answer neither waited nor has a result, apart from those in `cut_ids`."""
    return earlier.decision == "pending" and earlier.pending is None and earlier.call_id not in cut_ids


def _is_answer(result: ToolResult) -> bool:
    """Return whether the result of a tool that returns directly can be the answer of the run."""
    return result.ok or result.decision == "answered"


def _limited(results: Sequence[ToolResult], most_characters: int | None) -> Sequence[ToolResult]:
    """Return results that the model reads, each truncated to `most_characters`; None for no limit."""
    return results if most_characters is None else [result.limited(most_characters) for result in results]


def _waiting_calls(results: Sequence[ToolResult]) -> tuple[PendingCall, ...]:
    """Return the calls that wait, with those of nested runs in place of the calls that began these runs."""
    waiting = [result.pending for result in results if result.pending is not None]
    return tuple(chain.from_iterable(call.leaves() for call in waiting)) if waiting else ()


def _extend_complete(run: RunContext, messages: Sequence[Message], history: tuple[Message, ...]) -> None:
    """Record that a history is complete if its beginning `messages` is, so that it isn't scanned again."""
    if messages is run.complete:
        run.complete = history
        if messages is run.paired:
            run.paired = history


def _executed_message(executed: ToolExecutionResult) -> AssistantMessage:
    """Return the message whose calls were executed."""
    history = executed.conversation_history
    return next(message for message in reversed(history) if isinstance(message, AssistantMessage))


def _call_texts(message: AssistantMessage) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in message.tool_calls]


def _merge_earlier(
    run: RunContext, earlier: ToolExecutionResult, new_results: Mapping[int, ToolResult], decisions: Decisions
) -> list[ToolResult]:
    """Return the results of all calls of an answer: those of the calls that waited, and the earlier ones.

    Args:
        run: the run that resumes.
        earlier: the earlier results of the answer.
        new_results: the results of the calls that waited, by their place among all calls.
        decisions: the decisions about the calls that waited.
    """
    results = list(earlier.results)
    for index, result in new_results.items():
        pending = results[index].pending
        if pending is not None and result.call_id in decisions:
            _observe_decided(run, pending, result, decisions[result.call_id])
        results[index] = _keep_wait_time(result, pending)
    return results


def _observe_decided(
    run: RunContext, pending: PendingCall, result: ToolResult, decision: CallDecision | Denied
) -> None:
    """Report how long a call has waited for its decision, unless it has waited for input or waits still."""
    if pending.input is None and result.pending is None:
        decided_at = decision.decided_at or time()
        observe_decided_wait(run, result.tool, result.decision, pending.requested_at, decided_at)


def _keep_wait_time(result: ToolResult, earlier: PendingCall | None) -> ToolResult:
    """Return the result of a call that waited; if it still waits for the same, with the time when it began to wait."""
    pending = result.pending
    if earlier is None or pending is None or (pending.arguments, pending.input) != (earlier.arguments, earlier.input):
        return result
    return replace(result, pending=replace(pending, requested_at=earlier.requested_at))


def _count_conversation(run: RunContext, messages: Sequence[Message], tools: ToolSet) -> int:
    """Count the calls of a conversation against the limits of a run; return its number of iterations."""
    repeatable = {tool.definition.name for tool in tools if _is_repeatable(tool)}
    additional = {tool.definition.name: names for tool in tools if (names := _additional_names(tool))}
    return run.tally.record_conversation(messages, repeatable, additional)


def _additional_names(tool: ToolCallback | None) -> Collection[str]:
    """Return the names of the arguments that do not make a call another one."""
    return tool.additional_names if isinstance(tool, AugmentedTool) else ()


def _is_repeatable(tool: ToolCallback | None) -> bool:
    # a custom metadata class may lack the field
    return tool is not None and getattr(tool.metadata, "repeatable", False) is True


def _returns_directly(tool: ToolCallback | None) -> bool:
    return tool is not None and tool.metadata.return_direct
