"""One requested tool call, from the model's words to a result; never an exception unless the error policy says so.

resolve the name -> count against the limits -> check the arguments -> advice, outermost first -> the tool
|                   |                          |                     |
unknown_tool        limited, repeated          invalid_arguments     denied, answered      refused before it ran
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from traced_tools.core.canonical import canonical_text
from traced_tools.core.checks import expect
from traced_tools.core.conversation import NOT_RUN
from traced_tools.core.conversion import Collected
from traced_tools.core.enums import Decision
from traced_tools.core.messages import ToolCall
from traced_tools.core.quick_init import quick_init
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.core.tool_result import ToolResult
from traced_tools.core.tracebacks import shorten_traceback
from traced_tools.errors import Abandoned, InvalidArguments, ToolExecutionError, ToolNotFoundError, ToolTimeout
from traced_tools.flow.attempt import Attempt
from traced_tools.flow.flow import Flow, as_raised
from traced_tools.flow.steps import Pause
from traced_tools.observe.call_events import CallWatch
from traced_tools.observe.content import may_capture
from traced_tools.observe.dispatch import UNWATCHED
from traced_tools.observe.names import TIMEOUT
from traced_tools.observe.scope import OFF, SelfClock, error_type
from traced_tools.observe.spans import observe_hook
from traced_tools.observe.tool_calls import ToolScope
from traced_tools.tools.failure_log import log_failure
from traced_tools.tools.retries import Retries
from traced_tools.tools.schema.arguments import unwrapped
from traced_tools.tools.schema.values import read_only

if TYPE_CHECKING:
    from traced_tools.run.context import RunContext
    from traced_tools.tools.callback import Invocable
    from traced_tools.tools.schema.arguments import Bound
    from traced_tools.tools.schema.function import Returned
    from traced_tools.tools.toolset import ToolSet


@quick_init
@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A tool call about to run, as `advise_tool` sees it.

    Attributes:
        name: the tool's name.
        arguments: the arguments as canonical JSON (RFC 8785): validated, repaired, defaults included, whatever way the
            model wrote them. An advisor may `replace(arguments=...)`, which is then validated again.
        id: the call's id.
        iteration: the pass of the loop, from 1; 0 outside a loop.
        definition: what the model was told of the tool.
        context: what the tool will know of its call.
        metadata: what the loop knows of the tool.
        batch_index: its place among the calls of the same answer, from 0.
        intent: the reason the model gave for the call, where one is known; told only where content is captured.
    """

    name: str
    arguments: str = field(repr=False)
    id: str
    iteration: int
    definition: ToolDefinition = field(repr=False)
    context: ToolContext
    metadata: ToolMetadata = field(default_factory=ToolMetadata, repr=False)
    batch_index: int = 0
    intent: str | None = field(default=None, repr=False)
    _args: Mapping[str, Any] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def args(self) -> Mapping[str, Any]:
        """What the tool will be called with, as a read-only JSON object: the value of `arguments`.

        Raises:
            ValueError: for arguments that an advisor replaced by a text that is no JSON object.
        """
        if self._args is None:
            value = json.loads(self.arguments)
            if not isinstance(value, dict):
                raise ValueError("the arguments that an advisor set are not a JSON object")
            object.__setattr__(self, "_args", read_only(value))
        return self._args  # type: ignore[return-value]  # it was set just now

    def replace(self, *, arguments: str | Mapping[str, Any] | None = None, intent: str | None = None) -> ToolInvocation:
        """Return this call with other arguments (JSON text, or a mapping), or with a reason.

        The arguments are validated when they are passed to `call_next`. Advisors further in get them as validated; if
        they do not fit, `call_next` returns the result `invalid_arguments`.
        """
        expect("intent", intent, (str, type(None)), "a str or None")
        own = self.arguments if arguments is None else ToolCall(self.name, arguments).arguments
        return replace(self, arguments=own, intent=self.intent if intent is None else intent)

    def denied(self, reason: str, *, code: str | None = None, by: str | None = None) -> ToolResult:
        """Return the result of a call that may not run.

        Args:
            reason: what the model reads.
            code: the reason code, set in code, such as the name of a rule. Spans, events, the decisions metric and the
                audit trail record it.
            by: the person or service that refused the call. Spans, events and the audit trail record it.
        """
        return denied_result(self.id, self.name, reason, code, by)

    def answered(self, content: str, value: Any = None) -> ToolResult:
        """Return a result given in place of the tool's own, such as a cached one; the model reads `content`."""
        expect("content", content, str, "a str")
        return ToolResult(self.id, self.name, content, value=value, decision="answered")

    def end(self, result: ToolResult | str) -> ToolResult:
        """Return a result that ends the run: it is the run's answer, and the model is not asked again.

        The other calls of the same answer run as usual before; of several results that end the run, the first in call
        order is the answer. The response's `stop_reason` is `advisor`.

        Args:
            result: a result of this call, such as `call_next` or `denied` returned; a str stands for `answered(...)`.
        """
        expect("result", result, (str, ToolResult), "a str or a ToolResult")
        return replace(self.answered(result) if isinstance(result, str) else result, ends_run=True)


def denied_result(call_id: str, name: str, reason: str, code: str | None, by: str | None) -> ToolResult:
    """Return the result of a call that may not run; raises `TypeError` or `ValueError` for a wrong argument."""
    expect("reason", reason, str, "a str")
    expect("code", code, (str, type(None)), "a str or None")
    check_by(by)
    text = f"{NOT_RUN}{reason}"
    return ToolResult(call_id, name, text, decision="denied", reason_code=code, by=by)


def check_by(by: object) -> None:
    """Raise `TypeError` or `ValueError` unless `by` is None or can name a person or service."""
    expect("by", by, (str, type(None)), "a str or None")
    if isinstance(by, str) and not by.strip():
        raise ValueError("by must not be blank: it names the person or service that decided; pass None for nobody")


CallNext = Callable[[ToolInvocation], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class Approval:
    """The approval of a call; `by` names the person or service that gave it, if the application named one."""

    by: str | None = None


_MOST_NAMED = 50


class ToolExecution:
    """One requested call under way; `result` is the flow that performs it.

    Args:
        run: the run it belongs to.
        tools: the tools of the request.
        call: what the model asked for.
        place: position in the batch from 0, and the batch's size.
        iteration: the pass of the loop.
        refusal: a result decided before, such as a broken limit.
        approved: the approval of the call; None if there is none.
        queued_at: when it was ready to run, on the clock of `time.perf_counter()`.
        most_characters: how much of the result the model reads; None for all.
    """

    def __init__(
        self,
        run: RunContext,
        tools: ToolSet,
        call: ToolCall,
        *,
        place: tuple[int, int],
        iteration: int,
        refusal: ToolResult | None,
        queued_at: float,
        approved: Approval | None = None,
        most_characters: int | None = None,
    ) -> None:
        self._run = run
        self._tools = tools
        self._call = call
        self._id = call.id or ""
        self._place = place
        self._iteration = iteration
        self._refusal = refusal
        self._queued_at = queued_at
        self._approved = approved
        self._most_characters = most_characters
        self._tool = tools.by_name.get(call.name)
        self._bound: Bound | None = None
        self._bound_for = call.arguments
        self._sources: dict[str, str] = {}
        self._unbound: Exception | None = None
        self._context: ToolContext | None = None
        self._cancelled = False
        self._has_run = False
        self._clock = SelfClock() if run.tool_advisors else None
        self._watch = CallWatch(run.events, call, self._tool, iteration, place) if run.events.wanted else UNWATCHED

    async def result(self) -> ToolResult:
        """Perform the call and return its result.

        Raises:
            ToolExecutionError: when the call failed and the error policy says that the run must fail.
            ToolNotFoundError: when there is no such tool and the error policy says so.
        """
        refusal = self._refusal or self._unfit()
        with self._scope(refused=refusal is not None) as scope, self._watch:
            if self._bound is not None:
                scope.repaired(self._bound.repairs)
            if self._approved is not None:
                scope.approved(self._approved.by)
                self._watch.approved(self._approved.by)
            if isinstance(refusal, InvalidArguments):
                refusal = self._invalid(refusal, scope)
            result = refusal or await self._advised(scope)
            if self._approved is not None and result.decision == "allowed":
                result = replace(result, decision="approved", by=self._approved.by)
            if self._most_characters is not None and not result.ends_run:
                result = result.limited(self._most_characters)
            scope.decided(result)
            self._watch.decided(result)
        if result.error is not None and self._run.tool_errors.raises(result.error):
            error = ToolExecutionError(result.name, result.error_type or "", _innermost(result.error))
            scope.fails_run(error)
            raise error from None
        if result.decision == "unknown_tool" and self._run.tool_errors.unknown_tool == "raise":
            missing = ToolNotFoundError("the model called a tool that the request does not carry")
            scope.fails_run(missing)
            raise missing
        return result

    def leave_out(self) -> None:
        """Leave the span of a call that nobody came to: the run was cancelled, or failed, before."""
        with suppress(Abandoned), self._scope(refused=True):
            self._watch.left_out()
            raise Abandoned

    def cancel(self) -> None:
        """Start no further attempt, and tell the tool, if it runs, that nobody waits for it any more."""
        self._cancelled = True
        if self._context is not None:
            self._context.cancelled = True

    def _unfit(self) -> ToolResult | InvalidArguments | None:
        """Return what refuses a call that names no tool, may not run or has arguments that do not fit, else None."""
        if self._tool is None:
            known = ", ".join([*self._tools.by_name][:_MOST_NAMED]) or "none"
            text = f"There is no tool of that name. Tools you can call: {known}."
            return ToolResult(self._id, self._call.name, text, decision="unknown_tool", error_type="unknown_tool")
        if self._tool.metadata.requires_approval and self._approved is None:
            text = f"{NOT_RUN}it requires approval, and none was given."
            return ToolResult(self._id, self._call.name, text, decision="denied", reason_code="approval_required")
        try:
            self._bind(self._call.arguments)
        except InvalidArguments as problem:
            return problem
        return None

    def _bind(self, source: str) -> None:
        """Bind arguments for the next attempt; raises `InvalidArguments`."""
        self._bound, self._bound_for = None, source
        try:
            self._bound = self._tools.invocable(self._call.name).bind(source)
        except InvalidArguments:
            raise
        except (
            Exception
        ) as error:  # raised by a developer's validator: counted as the tool's error when the tool would run
            self._unbound = error

    def _invalid(self, problem: InvalidArguments, scope: ToolScope) -> ToolResult:
        decision: Decision = "invalid_arguments"
        result = ToolResult(self._id, self._call.name, "", decision=decision, error_type=decision, error=problem)
        scope.decided(result)  # before the words are asked for: a `message` of the application's may fail
        return replace(result, content=self._run.tool_errors.text(self._call.name, problem))

    def _scope(self, *, refused: bool) -> ToolScope:
        run, queued = self._run.telemetry, perf_counter() - self._queued_at
        here, may_refuse = (self._iteration, self._place), self._clock is not None and not refused
        return ToolScope(run, self._call, self._tool, here, queued, may_refuse, refused) if run.enabled else OFF

    def _advised(self, scope: ToolScope) -> Flow[ToolResult]:
        """Return the flow that runs the tool, with what advice there is around it."""
        assert self._tool is not None
        call, definition = self._call, self._tool.definition
        context = self._run.tool_context_for(self._id, call.name, self._iteration)
        if self._clock is None:
            return self._invoke(call.arguments, context, scope)
        invocation = ToolInvocation(
            call.name,
            self._advisable(),
            self._id,
            self._iteration,
            definition,
            context,
            self._tool.metadata,
            self._place[0],
        )
        return self._advise(0, invocation, scope)

    def _advisable(self) -> str:
        """Return the bound arguments as advisors see them: the canonical form of what the tool will get."""
        source = self._bound_for
        if self._bound is not None:
            text = canonical_text(self._tools.invocable(self._call.name).as_json(self._bound))
        else:
            text, _ = unwrapped(source)
            with suppress(ValueError, RecursionError):
                text = canonical_text(json.loads(text))
        # a further attempt binds the source again: validating what a validator returned might change it once more
        self._sources[text], self._bound_for = source, text
        return text

    async def _advise(self, index: int, invocation: ToolInvocation, scope: ToolScope) -> ToolResult:
        advisors = self._run.tool_advisors
        if index == len(advisors):
            return await self._invoke_beside_advice(invocation, scope)
        advisor = advisors[index]

        async def call_next(given: ToolInvocation) -> ToolResult:
            if not isinstance(given, ToolInvocation):
                kind = type(given).__name__
                raise TypeError(f"advise_tool of {advisor.name} must pass a ToolInvocation to call_next, not {kind}")
            if (given.id, given.name) != (self._id, self._call.name):
                raise ValueError(f"advise_tool of {advisor.name} must pass on the call it was given")
            if given.arguments != invocation.arguments:
                try:
                    given = self._validated(given, scope)
                except InvalidArguments as problem:
                    self._advised_with(given, scope)
                    return self._invalid(problem, scope)
            return await self._advise(index + 1, given, scope)

        with observe_hook(
            self._run.telemetry, "advise_tool", advisor.name, advisor.order, self._iteration, clock=self._clock
        ):
            result: Any = advisor.advise_tool(invocation, call_next)
            if hasattr(result, "__await__"):
                result = await result
        if not isinstance(result, ToolResult):
            raise TypeError(f"advise_tool of {advisor.name} must return a ToolResult, not {type(result).__name__}")
        if (result.call_id, result.name) != (self._id, self._call.name):
            raise ValueError(f"advise_tool of {advisor.name} must return the result of the call it was given")
        is_own = result.advisor is None and result.decision in ("denied", "answered")
        return replace(result, advisor=advisor.name) if is_own else result

    def _validated(self, invocation: ToolInvocation, scope: ToolScope) -> ToolInvocation:
        """Return a call with the arguments that an advisor gave it as the tool will get them."""
        self._bind(invocation.arguments)
        if self._bound is not None:
            scope.repaired(self._bound.repairs)
        return replace(invocation, arguments=self._advisable())

    async def _invoke_beside_advice(self, invocation: ToolInvocation, scope: ToolScope) -> ToolResult:
        """Run the tool; its time is none of the advisors' around it."""
        assert self._clock is not None
        self._advised_with(invocation, scope)
        began = perf_counter_ns()
        try:
            return await self._invoke(invocation.arguments, invocation.context, scope)
        finally:
            self._clock.elsewhere += perf_counter_ns() - began

    def _advised_with(self, invocation: ToolInvocation, scope: ToolScope) -> None:
        """Observe what advice let through: the reason, and the arguments."""
        scope.intended(invocation.intent)
        self._watch.advised(invocation.intent, invocation.arguments)

    async def _invoke(self, arguments: str, context: ToolContext, scope: ToolScope) -> ToolResult:
        """Run the tool, again if it fails in a way that its metadata says is worth it."""
        assert self._tool is not None
        retries = Retries(self._tool.metadata, context.deadline)
        result = await self._attempt(arguments, context, scope)
        # what has run is not run again because nobody can read what it returned
        while not self._has_run and (pause := retries.pause_after(result.error)) is not None:
            scope.retrying(result.error_type or "")
            await Pause(pause)
            result = await self._attempt(arguments, context, scope)
        if result.outcome is not None:
            scope.ran(result)
            self._watch.ran(result)
            if result.error is not None and self._may_be_bug(result, result.error):
                may_quote = may_capture(self._tool) and self._run.telemetry.content is None  # or a redactor decides
                log_failure(result, scope.captured_traceback, may_quote=may_quote)
        return result

    def _may_be_bug(self, result: ToolResult, error: Exception) -> bool:
        """Whether the tool failed in a way that nobody expects, and nobody but the model would learn of it."""
        assert self._tool is not None
        if result.outcome != "error" or self._run.tool_errors.raises(error):
            return False
        return not isinstance(error, (InvalidArguments, *self._tool.metadata.retry_on))

    async def _attempt(self, arguments: str, context: ToolContext, scope: ToolScope) -> ToolResult:
        tool, ran = self._tools.invocable(self._call.name), None
        failure: Exception | None = None
        try:
            bound = self._bound_to(tool, arguments, scope)
        except InvalidArguments as problem:
            return self._invalid(problem, scope)
        except Exception as error:  # of a validator of the developer's: a part of the tool
            failure = error
        context = self._context_of_attempt(context)
        self._watch.started()  # first, since what a watcher raises here keeps the tool from running
        scope.started()
        try:
            if failure is None:
                ran = await self._run_once(tool, bound.value, context, scope)
                failure = ran.failure
        except Exception as error:
            failure = as_raised(error)
        except BaseException:
            self.cancel()
            raise
        finally:
            scope.stopped()
        # not inside the `except`: whatever goes wrong from here on would carry the tool's error, and its text, along
        self._has_run = ran is not None
        if ran is not None and failure is None:
            return self._succeeded(ran)
        if self._cancelled:
            raise Abandoned
        assert failure is not None
        shorten_traceback(failure)
        return self._failed(failure, timed_out=isinstance(failure, ToolTimeout) and context.cancelled)

    def _bound_to(self, tool: Invocable, arguments: str, scope: ToolScope) -> Bound:
        """Return the arguments as the tool takes them; made anew for each attempt, as a tool may change them."""
        bound, self._bound = self._bound, None
        if bound is not None and arguments == self._bound_for:
            return bound
        bound = tool.bind(self._sources.get(arguments, arguments))
        scope.repaired(bound.repairs)
        if self._clock is None or canonical_text(tool.as_json(bound)) == arguments:
            return bound
        bound = tool.bind(arguments)  # such as a default that is made anew: what the advisors saw counts
        if canonical_text(tool.as_json(bound)) == arguments:
            return bound
        raise self._unbound or RuntimeError("validating the arguments again gives other values than the advisors saw")

    def _succeeded(self, ran: Returned) -> ToolResult:
        cut = isinstance(ran.value, Collected) and ran.value.cut
        text, images = ran.content
        return ToolResult(self._id, self._call.name, text, images, cut, ran.value, outcome="ok")

    def _context_of_attempt(self, context: ToolContext) -> ToolContext:
        """Return what the tool may know of this attempt; raises `Abandoned` when there is to be none any more."""
        assert self._tool is not None
        self._context = context if self._tool.metadata.timeout is None else context.copy()
        if self._cancelled:  # asked after the context is set: `cancel` comes either before or to this context
            raise Abandoned
        return self._context

    async def _run_once(self, tool: Invocable, bound: Any, context: ToolContext, scope: ToolScope) -> Returned:
        assert self._tool is not None
        timeout, asked = self._tool.metadata.timeout, perf_counter()
        step = tool.step(bound, context)
        attempt = step if timeout is None else Attempt(step, context, timeout, scope.late)
        try:
            ran: Returned = await attempt
            return ran
        finally:
            scope.waited(max(0.0, getattr(step, "began", asked) - asked))

    def _failed(self, error: Exception, *, timed_out: bool) -> ToolResult:
        return ToolResult(
            self._id,
            self._call.name,
            self._run.tool_errors.text(self._call.name, error),
            outcome="timeout" if timed_out else "error",
            error_type=TIMEOUT if timed_out else error_type(error),
            error=error,
        )


def _innermost(error: Exception) -> BaseException:
    """Return the tool's own exception, if `error` is what a run within the tool made of it."""
    is_wrapped = type(error) is ToolExecutionError and error.original is not None
    return error.original if is_wrapped else error  # type: ignore[attr-defined]  # mypy: it is one
