"""One requested tool call, from the model's words to a result; never an exception unless the error policy says so.

resolve the name -> count against the limits -> check the arguments -> advice, outermost first -> the tool
|                   |                          |                     |
unknown_tool        limited, repeated          invalid_arguments     denied, answered      refused before it ran
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from traced_tools._checks import expect
from traced_tools._flow import Flow
from traced_tools.errors import InvalidArguments, ToolExecutionError, ToolNotFoundError
from traced_tools.messages import ToolCall
from traced_tools.telemetry.calls import ToolScope
from traced_tools.telemetry.names import Decision
from traced_tools.telemetry.scope import OFF, SelfClock, error_type
from traced_tools.telemetry.spans import hook_scope
from traced_tools.tools.callback import invocable
from traced_tools.tools.context import ToolContext
from traced_tools.tools.result import ToolResult

if TYPE_CHECKING:
    from traced_tools.tools.definition import ToolDefinition
    from traced_tools.tools.run import RunContext
    from traced_tools.tools.toolset import ToolSet


@dataclass(frozen=True, slots=True)
class ToolInvocation:
    """A tool call about to run, as `advise_tool` sees it.

    Attributes:
        name: the tool's name.
        arguments: JSON text; an advisor may `replace(arguments=...)`, which is then checked again.
        id: the call's id.
        iteration: the pass of the loop, from 1; 0 outside a loop.
        definition: what the model was told of the tool.
        context: what the tool will know of its call.
    """

    name: str
    arguments: str = field(repr=False)
    id: str
    iteration: int
    definition: ToolDefinition = field(repr=False)
    context: ToolContext

    def replace(self, *, arguments: str | Mapping[str, Any]) -> ToolInvocation:
        """Return this call with other arguments: JSON text, or a mapping."""
        return replace(self, arguments=ToolCall(self.name, arguments).arguments)

    def denied(self, reason: str) -> ToolResult:
        """Return the result of a call that may not run; the model reads `reason`."""
        return ToolResult(self.id, self.name, f"The call was not run: {reason}", decision="denied")

    def answered(self, content: str, value: Any = None) -> ToolResult:
        """Return a result given in place of the tool's own, such as a cached one; the model reads `content`."""
        expect("content", content, str, "a str")
        return ToolResult(self.id, self.name, content, value=value, decision="answered")


CallNext = Callable[[ToolInvocation], Awaitable[ToolResult]]


class ToolExecution:
    """One requested call under way; `result` is the flow that performs it.

    Args:
        run: the run it belongs to.
        tools: the tools of the request.
        call: what the model asked for.
        place: position in the batch from 0, and the batch's size.
        iteration: the pass of the loop.
        refusal: a result decided before, such as a broken limit.
        queued_at: when it was ready to run, on the clock of `time.perf_counter()`.
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
    ) -> None:
        self._run = run
        self._tools = tools
        self._call = call
        self._id = call.id or ""
        self._place = place
        self._iteration = iteration
        self._refusal = refusal
        self._queued_at = queued_at
        self._tool = tools.by_name.get(call.name)
        self._bound: Any = None
        self._clock = SelfClock() if run.tool_advisors else None

    async def result(self) -> ToolResult:
        """Perform the call and return its result.

        Raises:
            ToolExecutionError: when the tool raised and the error policy says that the run must fail.
            ToolNotFoundError: when there is no such tool and the error policy says so.
        """
        refusal = self._refusal or self._unfit()
        if refusal is not None:
            return self._refuse(refusal)
        with self._scope(may_refuse=self._clock is not None) as scope:
            result = await self._advised(scope)
            scope.decided(result)
        if result.error is not None and self._run.tool_errors.raises(result.error):
            raise ToolExecutionError(result.name, result.error_type or "", result.error) from None
        return result

    def _unfit(self) -> ToolResult | None:
        """Return the refusal of a call that names no tool or whose arguments do not fit, else None."""
        if self._tool is None:
            known = ", ".join(self._tools.by_name) or "none"
            text = f"There is no tool of that name. Tools you can call: {known}."
            return self._refusing("unknown_tool", text, "unknown_tool")
        try:
            self._bound = invocable(self._tool).bind(self._call.arguments)
        except InvalidArguments as problem:
            return self._invalid(problem)
        return None

    def _invalid(self, problem: InvalidArguments) -> ToolResult:
        text = f"The arguments are invalid: {problem}. Correct them and call the tool again."
        return self._refusing("invalid_arguments", text, "invalid_arguments")

    def _refusing(self, decision: Decision, text: str, error: str | None = None) -> ToolResult:
        return ToolResult(self._id, self._call.name, text, decision=decision, error_type=error)

    def _refuse(self, result: ToolResult) -> ToolResult:
        with self._scope(refused=True) as scope:
            scope.decided(result)
        if result.decision == "unknown_tool" and self._run.tool_errors.unknown_tool == "raise":
            raise ToolNotFoundError("the model called a tool that the request does not carry")
        return result

    def _scope(self, *, may_refuse: bool = False, refused: bool = False) -> ToolScope:
        run, queued = self._run.telemetry, perf_counter() - self._queued_at
        here = (self._iteration, self._place)
        return ToolScope(run, self._call, self._tool, here, queued, may_refuse, refused) if run.enabled else OFF

    def _advised(self, scope: ToolScope) -> Flow[ToolResult]:
        """Return the flow that runs the tool, with what advice there is around it."""
        assert self._tool is not None
        call, definition = self._call, self._tool.definition
        context = self._run.tool_context_for(self._id, call.name, self._iteration)
        if self._clock is None:
            return self._invoke(call.arguments, context, scope)
        invocation = ToolInvocation(call.name, call.arguments, self._id, self._iteration, definition, context)
        return self._advise(0, invocation, scope)

    async def _advise(self, index: int, invocation: ToolInvocation, scope: ToolScope) -> ToolResult:
        advisors = self._run.tool_advisors
        if index == len(advisors):
            return await self._invoke(invocation.arguments, invocation.context, scope)
        advisor = advisors[index]

        async def call_next(invocation: ToolInvocation) -> ToolResult:
            return await self._advise(index + 1, invocation, scope)

        with hook_scope(self._run.telemetry, "advise_tool", advisor, self._iteration, clock=self._clock):
            result: Any = advisor.advise_tool(invocation, call_next)
            if hasattr(result, "__await__"):
                result = await result
        if not isinstance(result, ToolResult):
            raise TypeError(f"advise_tool of {advisor.name} must return a ToolResult, not {type(result).__name__}")
        if result.call_id != self._id:
            raise ValueError(f"advise_tool of {advisor.name} must return the result of the call it was given")
        is_own = result.advisor is None and result.decision in ("denied", "answered")
        return replace(result, advisor=advisor.name) if is_own else result

    async def _invoke(self, arguments: str, context: ToolContext, scope: ToolScope) -> ToolResult:
        assert self._tool is not None
        tool = invocable(self._tool)
        bound, self._bound = self._bound, None  # good for one attempt: a tool may change what it is given
        if bound is None or arguments != self._call.arguments:
            try:
                bound = tool.bind(arguments)
            except InvalidArguments as problem:
                return self._invalid(problem)
        began, failure = perf_counter_ns(), None
        scope.started()
        try:
            value = await tool.step(bound, context)
            content = tool.convert(value)
        except Exception as error:
            failure = error
        finally:
            scope.stopped()
            if self._clock is not None:
                self._clock.elsewhere += perf_counter_ns() - began
        # not inside the `except`: whatever goes wrong from here on would carry the tool's error, and its text, along
        if failure is None:
            result = ToolResult(self._id, self._call.name, content, value=value, outcome="ok")
        else:
            result = self._failed(failure)
        scope.ran(result)
        return result

    def _failed(self, error: Exception) -> ToolResult:
        text = self._run.tool_errors.text(self._call.name, error)
        return ToolResult(self._id, self._call.name, text, outcome="error", error_type=error_type(error), error=error)
