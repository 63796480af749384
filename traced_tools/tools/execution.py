"""Runs one tool call of a model's answer and returns a result; raises only if the error policy requires it.

admit: limits, the name, arguments -> advise, outermost first -> approve -> attempt -> convert
|                                     |                          |
limited, repeated, unknown_tool,      denied, answered           rejected, denied, pending
invalid_arguments                                                                 refused before the tool ran

A tool that asks for input, or whose agent waits, pauses its run as a call does that waits for approval. The outcome is
`input_required`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any, Final

from traced_tools.core.approval import Approve, DecidedPause, NestedPause
from traced_tools.core.conversation import NOT_RUN, UNKNOWN_OUTCOME
from traced_tools.core.enums import Decision, Repair, ToolOutcome
from traced_tools.core.messages import ToolCall, ToolResultPart
from traced_tools.core.result_conversion import Collected
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_input import GivenInput, PendingInput
from traced_tools.core.tool_result import ToolResult
from traced_tools.core.tracebacks import shorten_traceback
from traced_tools.errors import (
    Abandoned,
    InputRequired,
    InvalidArguments,
    McpError,
    NestedRunWaits,
    ToolExecutionError,
    ToolNotFoundError,
    ToolOutcomeUnknown,
    ToolTimeout,
)
from traced_tools.flow.attempt import Attempt
from traced_tools.flow.flow import unwrap_stop_iteration
from traced_tools.flow.steps import Pause
from traced_tools.observe.content import may_capture_in_log
from traced_tools.observe.failures import error_type
from traced_tools.observe.names import TIMEOUT
from traced_tools.observe.observations import observe_hook, observe_tool_call
from traced_tools.observe.stages.tool_call import ToolCallObservation
from traced_tools.observe.time_ledger import TimeLedger
from traced_tools.tools.approval import Approval
from traced_tools.tools.augmented_tool import AugmentedTool, SeparatedArguments, own_tool
from traced_tools.tools.binding import ArgumentBinding
from traced_tools.tools.call_approval import CallApproval
from traced_tools.tools.failure_log import log_failure
from traced_tools.tools.flow_tool import AgentToolCallback
from traced_tools.tools.invocation import ToolInvocation
from traced_tools.tools.refusals import interrupted_result
from traced_tools.tools.retries import Retries, is_expected

if TYPE_CHECKING:
    from traced_tools.core.policy_verdict import PolicyVerdict
    from traced_tools.run.context import AdvisesTools, Journal, RunContext
    from traced_tools.tools.function import ConvertedValue
    from traced_tools.tools.toolset import ToolSet


_MOST_NAMED = 50
_LOG = logging.getLogger(__name__)


class ToolExecution:
    """The execution of one tool call; the flow `result` performs it in five stages.

    Admit: a limit, an unknown tool name or invalid arguments refuse the call. Advise: the advisors wrap the tool, the
    outermost first. Approve: a call that requires approval is decided, or waits. Attempt: the tool runs, with retries
    after failures that its metadata names. Convert: the tool's return value or exception becomes the result.

    Args:
        run: the run that the call belongs to.
        tools: the tools of the request.
        call: the tool call in the model's answer.
        place: the position in the batch, from 0, and the size of the batch.
        iteration: the iteration of the loop.
        refusal: the result if the call is already refused or answered, such as by a limit; else None.
        queued_at: the time when the call was ready to run, on the clock of `time.perf_counter()`.
        approved: the approval of the call; None if there is none.
        most_characters: how many characters of the result the model reads; None for all.
        may_run: for a call that waits until all calls of the answer are decided, returns whether they are; else None.
        bound: the arguments that an approver or a driver has seen, before any advisor changed them; None if neither has
            seen them.
        continuation: the input, or the nested run, with which the call goes on; None for a call that begins.
        is_cut: whether the tool had begun when its process ended, so that it does not run, and its outcome is unknown.
    """

    # What few calls need is set on the class: a call is made for each tool of each answer.
    _approval: CallApproval | None = None
    _additional: SeparatedArguments | None = None
    _decided_pause: DecidedPause | None = None
    _advised: ToolInvocation | None = None
    _context: ToolContext | None = None
    _repairs: tuple[Repair, ...] = ()
    _cancelled = _has_run = _has_begun = _is_cut = False
    _result: ToolResult | None = None
    _binding: ArgumentBinding

    def __init__(
        self,
        run: RunContext,
        tools: ToolSet,
        call: ToolCall,
        place: tuple[int, int],
        iteration: int,
        refusal: ToolResult | None,
        queued_at: float,
        approved: Approval | None = None,
        most_characters: int | None = None,
        may_run: Callable[[], bool] | None = None,
        bound: str | None = None,
        continuation: GivenInput | DecidedPause | None = None,
        is_cut: bool = False,
    ) -> None:
        if is_cut:
            self._is_cut = True
        self._run = run
        self._tools = tools
        self._call = call
        self._id = call.id or ""
        self._place = place
        self._iteration = iteration
        self._refusal = refusal
        self._queued_at = queued_at
        self._most_characters = most_characters
        self._tool = tools.by_name.get(call.name)
        self._is_delivered = continuation is not None  # when the call began
        self._source = call.arguments
        self._bound = bound
        self._continuation = continuation
        needs_none = self._tool is None or self._tool.metadata.requires_approval is False
        has_edit = approved is not None and approved.instead is not None
        is_plain = not run.tool_advisors and needs_none and not has_edit and may_run is None
        # the application may raise an error when it receives additional arguments, so that the tool does not run
        self._is_plain = is_plain and not isinstance(self._tool, AugmentedTool)
        # a single call without advisors and listeners has nothing to separate: all its time is the tool's
        separates = not self._is_plain or place[1] > 1 or run.events.wanted
        self.ledger: Final = TimeLedger() if separates and run.telemetry.enabled else None
        if not self._is_plain or approved is not None:
            self._approval = CallApproval(run, self._tool, self.ledger, approved, may_run)

    async def result(self) -> ToolResult:
        """Perform the call and return its result.

        Raises:
            ToolExecutionError: if the call failed and the error policy makes the run fail.
            ToolNotFoundError: if the tool does not exist and the error policy makes the run fail.
        """
        refusal = None if self._is_cut else self._admit()
        with self._observe(refused=refusal is not None) as observed:
            self._report_start(observed)
            if isinstance(refusal, InvalidArguments):
                result = self._invalid_result(refusal, observed)
            elif isinstance(refusal, Exception):  # of a validator of additional arguments
                raise refusal
            elif refusal is not None:
                result = refusal
            elif self._is_cut:
                result = self._cut_result(observed)
            else:
                context = self._run.tool_context_for(self._id, self._call.name, self._iteration)
                if self._run.events.wanted:
                    context.on_progress = observed.progressed
                try:
                    if self._is_plain:
                        result = self._record_permission(await self._attempt(self._source, context, observed))
                    else:
                        result = await self._advise(self._run.tool_advisors, self._invocation(context), observed)
                finally:
                    # a tool may still run, such as after its time-out, and its observation ends here
                    for tool_context in (context, self._context):
                        if tool_context is not None:
                            tool_context.on_progress = None
            if self._most_characters is not None and not result.ends_run:
                result = result.limited(self._most_characters)
            self._result = result  # first, because a listener may interrupt the run, which then needs the result
            observed.decided(result)
            if (error := self._error_for_run(result)) is not None:
                observed.fails_run(error)
        if error is not None:  # outside the block, which would record the error as one of its own
            raise error from None
        if self._run.journal is not None:
            await self._record_result(self._run.journal, result)
        return result

    async def _record_result(self, journal: Journal, result: ToolResult) -> None:
        """Record the result of the call, or that its tool has begun and waits, before the run relies on it."""
        if result.pending is None:
            await journal.call_ended(self._run, result)
        elif self._has_begun:
            await journal.call_waits(self._run, result.pending)

    def _report_start(self, observed: ToolCallObservation) -> None:
        """Report what is known of the call before its tool begins: its intent, its repairs and its approval."""
        if self._additional is not None:
            observed.stated(self._additional.intent)
            observed.repaired(self._additional.repairs)
        observed.repaired(self._repairs)
        if self._approval is not None and (granted := self._approval.granted) is not None:
            observed.approved(granted.by, granted.code)

    @property
    def is_decided(self) -> bool:
        """Whether the call is decided: it has a result, or its tool may run and waits for the other calls."""
        is_held = self._approval is not None and self._approval.is_held
        return is_held or (self._result is not None and self._result.pending is None)

    def result_so_far(self) -> ToolResultPart:
        """Return the present result of the call for the model, for a run that is interrupted."""
        if self._result is not None:
            return self._result.part()
        return interrupted_result(self._call, has_begun=self._has_begun)

    def emit_skipped_span(self) -> None:
        """Emit the span of a call that never started because the run ended first."""
        with suppress(Abandoned), self._observe(refused=True, skipped=True):
            raise Abandoned

    def cancel(self) -> None:
        """Start no further attempt, and set `ToolContext.cancelled` for a running tool."""
        self._cancelled = True
        if self._context is not None:
            self._context.cancelled = True

    def _observe(self, *, refused: bool, skipped: bool = False) -> ToolCallObservation:
        queued = perf_counter() - self._queued_at
        if self.ledger is not None:
            self.ledger.book("queue", int(queued * 1_000_000_000))
        return observe_tool_call(
            self._run,
            self._call,
            self._tool,
            self._iteration,
            self._place,
            queued=queued,
            may_refuse=not self._is_plain and not refused,
            refused=refused,
            skipped=skipped,
            ledger=self.ledger,
        )

    # Admit.

    def _admit(self) -> ToolResult | Exception | None:
        """Return the result of a call that may not run, or what is wrong with its arguments; None if it may run."""
        if self._refusal is not None:
            with suppress(Exception):  # invalid arguments state no reason
                self._separate()
            return self._refusal
        if self._tool is None:
            names = ", ".join([*self._tools.by_name][:_MOST_NAMED]) or "none"
            text = f"There is no tool of that name. Tools you can call: {names}."
            return ToolResult(self._id, self._call.name, text, decision="unknown_tool", error_type="unknown_tool")
        self._binding = ArgumentBinding(self._tools.invocable(self._call.name))
        try:
            self._separate()
            self._repairs = self._binding.bind(self._source, self._bound)
        except InvalidArguments as problem:
            edit = None if self._approval is None else self._approval.take_edit()
            return problem if edit is None else self._admit_edited(edit)
        except Exception as problem:  # of a validator of additional arguments
            return problem
        return None

    def _separate(self) -> None:
        """Separate the additional arguments of an augmented tool; raises what `AugmentedTool.separate` raises."""
        if isinstance(self._tool, AugmentedTool):
            self._additional = self._tool.separate(self._call.arguments)
            self._source = self._additional.own

    def _admit_edited(self, arguments: str) -> InvalidArguments | None:
        """Bind the arguments that an approver set instead of those of the model, which are invalid."""
        self._source = arguments
        try:
            self._repairs = self._binding.bind(arguments)
        except InvalidArguments as problem:
            return problem
        return None

    def _invalid_result(self, problem: InvalidArguments, observed: ToolCallObservation) -> ToolResult:
        decision: Decision = "invalid_arguments"
        result = ToolResult(self._id, self._call.name, "", decision=decision, error_type=decision, error=problem)
        granted = None if self._approval is None else self._approval.granted
        if granted is not None and granted.instead is not None:  # not the model's mistake
            text = f"{NOT_RUN}the arguments that were approved instead of its own are invalid."
            result = replace(result, content=text, by=granted.by)
            observed.invalid(result)
            return result
        observed.invalid(result)  # before the text is made, because the application's `message` function may fail
        return replace(result, content=self._run.tool_errors.text(self._call.name, problem))

    # Advise.

    def _invocation(self, context: ToolContext) -> ToolInvocation:
        """Return the call as the outermost advisor sees it."""
        assert self._tool is not None and self._approval is not None
        name, (arguments, values), definition = self._call.name, self._binding.shown(), self._tool.definition
        metadata, index = self._tool.metadata, self._place[0]
        self._approval.begin(arguments)
        return ToolInvocation(
            name,
            arguments,
            self._id,
            self._iteration,
            definition,
            context,
            metadata,
            index,
            None if self._additional is None else self._additional.intent,
            self._approval.covers(arguments),
            callback=own_tool(self._tool),
        )._holding(values)

    async def _advise(
        self,
        advisors: tuple[AdvisesTools, ...],
        invocation: ToolInvocation,
        observed: ToolCallObservation,
        checking: tuple[AdvisesTools, ...] = (),
    ) -> ToolResult:
        """Run the first of `advisors` around the others and the tool.

        Args:
            advisors: the advisors that the call has not passed yet, the outermost first.
            invocation: the call.
            observed: the observation of the call.
            checking: the advisors that the call has passed and must pass again if its arguments change.
        """
        if not advisors and (ledger := self.ledger) is not None:
            began, downstream = perf_counter_ns(), ledger.downstream_ns
            try:
                return await self._approve_and_name_policy(invocation, observed, checking)
            finally:  # the waiting for approval and the tool's time don't count as the advisors' own time
                ledger.book_since("tool", began, downstream)
        if not advisors:
            return await self._approve_and_name_policy(invocation, observed, checking)
        advisor, inner = advisors[0], advisors[1:]
        checks = (advisor,) if getattr(advisor, "checks_changes", False) else ()

        async def call_next(call: ToolInvocation) -> ToolResult:
            if not isinstance(call, ToolInvocation):
                kind = type(call).__name__
                raise TypeError(f"advise_tool of {advisor.name} must pass a ToolInvocation to call_next, not {kind}")
            if (call.id, call.name) != (self._id, self._call.name):
                raise ValueError(f"advise_tool of {advisor.name} must pass on the call it was given")
            if call.evaluated is not invocation.evaluated:
                observed.evaluated(call.evaluated)
            if call.arguments != invocation.arguments:
                validated = self._validate(call, observed)
                if isinstance(validated, ToolResult):
                    return validated
                return await self._advise((*checking, *inner), validated, observed, checks)
            return await self._advise(inner, call, observed, (*checking, *checks))

        telemetry = self._run.telemetry
        with observe_hook(telemetry, "advise_tool", advisor.name, advisor.order, self._iteration, ledger=self.ledger):
            result: Any = advisor.advise_tool(invocation, call_next)
            if hasattr(result, "__await__"):
                result = await result
        if not isinstance(result, ToolResult):
            raise TypeError(f"advise_tool of {advisor.name} must return a ToolResult, not {type(result).__name__}")
        if (result.call_id, result.tool) != (self._id, self._call.name):
            raise ValueError(f"advise_tool of {advisor.name} must return the result of the call it was given")
        is_own = result.advisor is None and result.decision in ("denied", "answered")
        return replace(result, advisor=advisor.name) if is_own else result

    def _validate(self, call: ToolInvocation, observed: ToolCallObservation) -> ToolInvocation | ToolResult:
        """Return a call with its changed arguments as the tool gets them; if they are invalid, return the result."""
        try:
            observed.repaired(self._binding.bind(call.arguments))
        except InvalidArguments as problem:
            observed.advised(call, is_changed=True)
            return self._invalid_result(problem, observed)
        assert self._approval is not None
        arguments, values = self._binding.shown()
        return replace(call, arguments=arguments, approved=self._approval.covers(arguments))._holding(values)

    # Approve.

    async def _approve_and_name_policy(
        self, call: ToolInvocation, observed: ToolCallObservation, checking: tuple[AdvisesTools, ...]
    ) -> ToolResult:
        """Call `_approve`, and add the verdict of the policy that has let the call pass."""
        result = await self._approve(call, observed, checking)
        # if an approver changed the arguments, the result has the verdict about the changed ones
        is_complete = call.policy is None or result.policy is not None
        return result if is_complete else replace(result, policy=call.policy)

    async def _approve(
        self, call: ToolInvocation, observed: ToolCallObservation, checking: tuple[AdvisesTools, ...]
    ) -> ToolResult:
        """Run the tool if the call needs no approval or has one; otherwise ask for one.

        Args:
            call: the call as it has passed the advisors.
            observed: the observation of the call.
            checking: the advisors that the call must pass again if the approver changes its arguments.
        """
        approval = self._approval
        assert approval is not None  # only a plain call has none
        decision = await approval.decide(call)
        if isinstance(decision, ToolResult):
            return decision
        if decision is not None:
            observed.approved(decision.by, decision.code)
            if decision.instead is not None:
                edited = self._validate(call.replace(arguments=decision.instead), observed)
                if isinstance(edited, ToolResult):
                    return edited
                approval.granted = replace(decision, arguments=edited.arguments)
                return await self._advise(checking, replace(edited, approved=True)._holding(edited._values), observed)
        # a call with a continuation has begun, so it goes on without the rest of a held batch
        if approval.may_run is not None and self._continuation is None:
            waiting = await approval.wait_for_others(call)
            if waiting is not None:
                return waiting
        observed.advised(call, is_changed=call.arguments != approval.bound)
        self._advised = call
        result = await self._attempt(call.arguments, call.context, observed)
        return self._record_permission(result, call.code, call.rule, call.policy)

    def _record_permission(
        self,
        result: ToolResult,
        code: str | None = None,
        rule: str | None = None,
        policy: PolicyVerdict | None = None,
    ) -> ToolResult:
        """Return the result of a call that ran, with why advisors, policies and approvers permitted it."""
        if result.decision != "allowed":
            return result
        if self._approval is not None and (granted := self._approval.granted) is not None:
            edited = self._approval.edited_arguments(self._source)
            reasons: dict[str, Any] = {"reason_code": granted.code or code, "rule": rule, "policy": policy}
            return replace(result, decision="approved", by=granted.by, edited=edited, **reasons)
        by = self._continuation.provided.by if isinstance(self._continuation, GivenInput) else None
        if code is rule is by is None and policy is None:
            return result
        return replace(result, reason_code=code, rule=rule, policy=policy, by=by)

    # Attempt.

    async def _attempt(self, arguments: str, context: ToolContext, observed: ToolCallObservation) -> ToolResult:
        """Run the tool, and retry it after failures that its metadata names."""
        assert self._tool is not None
        # the input answers a question about certain arguments: with others, the tool begins anew and may ask again
        if self._continuation is not None and self._continuation.arguments == self._binding.shown()[0]:
            if isinstance(self._continuation, DecidedPause):
                self._decided_pause = self._continuation
            else:
                context.input = self._continuation
                observed.provided(self._continuation.provided.by)
        if self._additional is not None and not self._is_delivered:
            self._is_delivered = True  # an advisor may run the tool again
            await self._additional.deliver(context)
        result = await self._attempt_once(arguments, context, observed)
        if not self._has_run:  # a tool that returned is not run again if converting its return value failed
            retries = Retries(self._tool.metadata, context.deadline)
            while not self._has_run and (pause := retries.pause_after(result.error)) is not None:
                observed.retrying(result.error_type or "")
                await Pause(pause)
                result = await self._attempt_once(arguments, context, observed)
        if result.outcome is not None:
            observed.finished(result)
            if result.error is not None and self._may_be_bug(result, result.error):
                may_quote = may_capture_in_log(self._tool, self._run.telemetry.content)
                log_failure(result, observed.captured_traceback, may_quote=may_quote)
        return result

    async def _attempt_once(self, arguments: str, context: ToolContext, observed: ToolCallObservation) -> ToolResult:
        assert self._tool is not None
        tool, timeout = self._tools.invocable(self._call.name), self._tool.metadata.timeout
        returned: ConvertedValue | None = None
        failure: Exception | None = None
        try:
            bound = self._binding.take(arguments, as_shown=not self._is_plain)
            observed.repaired(bound.repairs)
        except InvalidArguments as problem:
            return self._invalid_result(problem, observed)
        except Exception as error:  # of a custom validator, which is a part of the tool
            failure = error
        # `Attempt` sets the deadline and `cancelled` of its context, which another attempt must not see
        self._context = context = context if timeout is None else context.copy()
        if self._run.journal is not None and not self._has_begun:
            annotations = getattr(
                self._tool.metadata, "annotations", None
            )  # a custom metadata class may lack the field
            repeatable = annotations is not None and annotations.may_run_again
            await self._run.journal.call_begins(self._id, repeatable=repeatable)
        if self._cancelled:  # checked after the context is set, so that a concurrent `cancel` is not missed
            raise Abandoned
        self._has_begun, call = True, self._run.open_call(self._call.name)
        observed.started()
        try:
            if failure is None:
                requested_at = perf_counter()
                step = tool.step(bound.value, context)
                if self._decided_pause is not None and isinstance(agent := own_tool(self._tool), AgentToolCallback):
                    step = agent.step_of_pause(self._decided_pause, context)
                try:
                    returned = await (step if timeout is None else Attempt(step, context, timeout, observed.late))
                    failure = returned.failure
                finally:  # a step that never began has no `began`, or 0.0
                    observed.waited(max(0.0, getattr(step, "began", requested_at) - requested_at))
        except Exception as error:
            failure = unwrap_stop_iteration(error)
        except BaseException:
            self.cancel()  # the run ends, but the tool may go on in its thread, and reads `cancelled`
            raise
        finally:
            observed.stopped()
        # not inside the `except`: later errors would have the tool's error, and its text, as their context
        self._has_run = returned is not None
        return self._attempt_result(context, call.paused, returned, failure)

    def _attempt_result(
        self,
        context: ToolContext,
        paused: Mapping[str, NestedPause],
        returned: ConvertedValue | None,
        failure: Exception | None,
    ) -> ToolResult:
        """Return the result of an attempt that has ended, with what its tool returned or raised.

        `paused` has the nested runs that wait for a decision, by the ids of their states.
        """
        if failure is None and paused:
            *_, pause = paused.values()
            waiting = ", ".join(dict.fromkeys(pending.tool for pending in pause.calls))
            if isinstance(own_tool(self._tool), AgentToolCallback):
                reason = f"the agent {pause.run.agent!r} waits for a decision about its call of {waiting}."
                return self._waiting_result(context, reason, nested=pause)
            failure = NestedRunWaits(pause.run.agent, waiting, is_kept=pause.run.is_kept)
        if failure is None:
            assert returned is not None
            return self._success_result(returned)
        if self._cancelled:
            raise Abandoned
        if isinstance(failure, InputRequired):
            return self._waiting_result(context, "it waits for input.", input=failure.pending)
        shorten_traceback(failure)
        # a tool may raise `ToolTimeout` itself: only `Attempt` also sets `cancelled`
        return self._failure_result(failure, timed_out=isinstance(failure, ToolTimeout) and context.cancelled)

    def _cut_result(self, observed: ToolCallObservation) -> ToolResult:
        """Return the result of a call whose run was cut off while its tool ran, and tell it once."""
        observed.cut_off()
        observed.started()
        observed.stopped()
        result = self._failure_result(ToolOutcomeUnknown("its run was cut off while the tool ran"), timed_out=False)
        observed.finished(result)
        return self._record_permission(result)

    def _may_be_bug(self, result: ToolResult, error: Exception) -> bool:
        """Return whether the tool failed unexpectedly, and only the model would learn of the failure."""
        assert self._tool is not None
        if result.outcome != "error" or self._run.tool_errors.raises(error):
            return False
        return not isinstance(error, InvalidArguments | McpError) and not is_expected(error, self._tool.metadata)

    # Convert.

    def _success_result(self, returned: ConvertedValue) -> ToolResult:
        cut = isinstance(returned.value, Collected) and returned.value.cut
        text, images = returned.content
        return ToolResult(self._id, self._call.name, text, images, cut, returned.value, "allowed", "ok")

    def _failure_result(self, error: Exception, *, timed_out: bool) -> ToolResult:
        outcome: ToolOutcome = "unknown" if isinstance(error, ToolOutcomeUnknown) else "error"
        return ToolResult(
            self._id,
            self._call.name,
            self._run.tool_errors.text(self._call.name, error),
            outcome="timeout" if timed_out else outcome,
            error_type=TIMEOUT if timed_out else error_type(error),
            error=error,
        )

    def _waiting_result(
        self,
        context: ToolContext,
        reason: str,
        *,
        input: PendingInput | None = None,
        nested: NestedPause | None = None,
    ) -> ToolResult:
        """Return the result of a call whose tool has begun, and waits for input or for an agent."""
        if self._approval is None:  # a plain call had no use for one before
            self._approval = CallApproval(self._run, self._tool, self.ledger)
        request = self._approval.request(self._advised or self._invocation(context))
        granted = self._approval.granted
        approval = None if granted is None else Approve(by=granted.by, code=granted.code)
        pending = replace(request.pending(), held=False, input=input, nested=nested, approval=approval)
        text = f"{UNKNOWN_OUTCOME}{reason}"
        return ToolResult(self._id, self._call.name, text, outcome="input_required", pending=pending)

    def _error_for_run(self, result: ToolResult) -> Exception | None:
        """Return the error that makes the run fail, as the error policy specifies; None if the run goes on."""
        policy = self._run.tool_errors
        if result.error is not None and policy.raises(result.error):
            return ToolExecutionError(result.tool, result.error_type or "", _innermost(result.error))
        if result.decision == "unknown_tool" and policy.unknown_tool == "raise":
            return ToolNotFoundError("the model called a tool that the request does not contain")
        return None


def _innermost(error: Exception) -> BaseException:
    """Return the original exception if a run nested in the tool wrapped it in `error`; else `error`."""
    is_wrapped = type(error) is ToolExecutionError and error.original is not None
    return error.original if is_wrapped else error  # type: ignore[attr-defined]  # mypy: it is one
