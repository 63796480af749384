"""A run of a loop that the application, or a framework, drives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import is_
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict
from weakref import WeakValueDictionary

from opentelemetry import context as otel_context

from traced_tools.client_settings import check_agent
from traced_tools.core.approval import Approve, CallDecision, PendingCall, Reject
from traced_tools.core.checks import checked_mapping, expect, expect_each
from traced_tools.core.conversation import with_results
from traced_tools.core.identity import check_principal, checked_actors
from traced_tools.core.limits import DEFAULT_LIMITS, LoopLimits
from traced_tools.core.messages import ANY_MESSAGE, MESSAGE_TYPES, AssistantMessage, Message, ToolCall, Usage
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.core.tool_input import Provide
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import Abandoned, LoopLimitExceeded
from traced_tools.flow.deferred import in_finalizer
from traced_tools.flow.flow import Execution, adrive, call
from traced_tools.observe.agent_version import AgentDigests
from traced_tools.observe.manual.answer_calls import AnswerCalls
from traced_tools.observe.manual.call_times import CallTimes
from traced_tools.observe.manual.iteration import ManualIteration
from traced_tools.observe.manual.model_call import ManualModel, ManualModelCall, ManualQuestion
from traced_tools.observe.manual.place import RunPlace
from traced_tools.observe.observations import observe_run
from traced_tools.observe.run_attributes import check_attributes
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.observe.typed_events.dispatch import EventListeners
from traced_tools.request_spec import instructions_of
from traced_tools.run.context import RunContext, current_call, current_run, leave_ended_runs
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
from traced_tools.tools.approval import check_decision, check_scope
from traced_tools.tools.manager import ToolCallingManager
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.util.types import AttributeValue

    from traced_tools.audit.trail import AuditTrail
    from traced_tools.core.enums import StopReason
    from traced_tools.models.base import ChatResponse

_RUNS: WeakValueDictionary[str, ManualRun] = WeakValueDictionary()
_MANAGER = ToolCallingManager()


def run(
    agent: str = "assistant",
    *,
    model: str = "",
    provider: str = "",
    messages: Iterable[Message] = (),
    audit: AuditTrail | None = None,
    observers: Iterable[ToolAdvice] = (),
    advisors: Iterable[ToolAdvice] = (),
    limits: LoopLimits = DEFAULT_LIMITS,
    tool_errors: ToolErrors = ANSWER_ERRORS,
    tool_context: Mapping[str, Any] | None = None,
    telemetry: TelemetryOptions | None = None,
    conversation_id: str | None = None,
    principal: str | None = None,
    actors: Sequence[str] = (),
    attributes: Mapping[str, AttributeValue] | None = None,
    version: str | None = None,
    agent_id: str | None = None,
) -> ManualRun:
    """Return a run of your own loop, as a `with` block around it, in blocking code and on asyncio alike.

        with observe.run("planner", model="gpt-5", provider="openai") as run:
            with run.iteration():
                with run.model_call() as call:
                    call.answered(...)
                result = run.execute([add, pay], tool_call)

    Spans, metrics, events and audit records are those of a `ChatClient`.

    Args:
        agent: the agent's name in telemetry. It is a metric label, so use a fixed name.
        model: the model that the run calls, as the provider names it.
        provider: the provider, as in `gen_ai.provider.name`, such as `openai`.
        messages: what the run is asked, which is recorded only if content is captured.
        audit: the trail that records each call, before its tool begins.
        observers: what receives the events of the run, such as an `ObserverAdvisor`.
        advisors: what decides about calls, such as a `PolicyAdvisor` and an `ApprovalAdvisor`, in any order.
        limits: how far the run may go. The limit of an iteration is in its `limit`.
        tool_errors: the error policy: what happens when a tool fails.
        tool_context: data about the caller for tools; never recorded.
        telemetry: which telemetry to emit, and to which providers.
        conversation_id: identifies the conversation in telemetry.
        principal: on whose behalf the run is, such as the id of a user.
        actors: which agents and tools stand between the principal and the run, the outermost first.
        attributes: attributes of the run, such as its tenant; see `ChatClient.prompt`.
        version: the version of the agent; it is a metric label.
        agent_id: the stable id of the agent, if a registry knows it.

    Raises:
        TypeError, ValueError: for an invalid argument. The message names the argument and what it accepts.
        AdvisorChainError: if an advisor has no name or no order.
    """
    check_agent("agent", agent, version, agent_id)
    expect("model", model, str, "a str")
    expect("provider", provider, str, "a str")
    expect("messages", messages, Iterable, "a sequence of messages")
    messages = tuple(messages)
    expect_each("messages", messages, MESSAGE_TYPES, ANY_MESSAGE)
    expect("limits", limits, LoopLimits, "a LoopLimits")
    expect("tool_errors", tool_errors, ToolErrors, "a ToolErrors")
    expect("conversation_id", conversation_id, (str, type(None)), "a str or None")
    check_principal("principal", principal)
    sorted_advisors = _sorted_advisors(audit, observers, advisors)
    context = {
        "agent": agent,
        "agent_id": agent_id,
        "conversation_id": conversation_id,
        "principal": principal,
        "actors": checked_actors(actors),
        "tool_context": checked_mapping("tool_context", tool_context),
        "limits": limits,
        "tool_errors": tool_errors,
        "telemetry": telemetry,
        "attributes": check_attributes(attributes),
        "version": version,
        "tool_advisors": advising_tools(sorted_advisors),
        "approvers": approving(sorted_advisors),
        "listeners": EventListeners(
            event_listeners(sorted_advisors),
            (),
            event_listeners(sorted_advisors, deltas=True),
            call_listeners(sorted_advisors),
        ),
    }
    return ManualRun(context, ManualModel(model, provider), messages, sorted_advisors)


class RunSettings(TypedDict, total=False):
    """The keyword arguments of `run` that each integration takes as well; see there."""

    audit: AuditTrail | None
    observers: Iterable[ToolAdvice]
    advisors: Iterable[ToolAdvice]
    limits: LoopLimits
    tool_errors: ToolErrors
    tool_context: Mapping[str, Any] | None
    telemetry: TelemetryOptions | None
    conversation_id: str | None
    principal: str | None
    actors: Sequence[str]
    attributes: Mapping[str, AttributeValue] | None
    version: str | None
    agent_id: str | None


def _sorted_advisors(
    audit: AuditTrail | None, observers: Iterable[ToolAdvice], advisors: Iterable[ToolAdvice]
) -> tuple[ToolAdvice, ...]:
    """Return what decides, listens and records, by order."""
    expect("observers", observers, Iterable, "a sequence of advisors")
    expect("advisors", advisors, Iterable, "a sequence of advisors")
    everyone = (*advisors, *observers)
    if audit is not None:
        from traced_tools.audit.advisor import AuditAdvisor  # the trail's database is not imported for each run

        everyone = (AuditAdvisor(audit), *everyone)
    check_advisors(everyone)
    return sort_advisors(everyone)


@dataclass(frozen=True)
class _RunOutput:
    """What the run answered, and why it ended."""

    message: AssistantMessage
    finish_reason: str | None
    stop_reason: StopReason


class ManualRun:
    """A run of the application's own loop; `observe.run` makes them.

    A `with` block begins and ends it. Code whose beginning and end are in different contexts, such as the callbacks of
    a framework, calls `begin` and `end` instead. Methods may be called from any thread or task.

    Attributes:
        response: the model's last answer; None before that.
    """

    _state: Literal["new", "under way", "ended"] = "new"

    def __init__(
        self,
        context: Mapping[str, Any],
        model: ManualModel,
        messages: tuple[Message, ...],
        advisors: tuple[ToolAdvice, ...],
    ) -> None:
        self.response: ChatResponse | None = None
        self._run = RunContext(**context)
        self._model = model
        self._models = {model: model}
        self._model_calls: set[ManualModelCall] = set()  # those that are open
        self._selected: tuple[tuple[object, ...], ToolSelection] = ((), ToolSelection(()))
        self._messages = messages
        self._advisors = advisors
        self._iteration: ManualIteration | None = None
        self._outside = AnswerCalls()  # the calls of an answer that belongs to no iteration
        self._is_detached = self._is_advancing = self._is_identified = False
        self._limit: StopReason | None = None
        self._pending: dict[str, PendingCall] = {}
        self._times = CallTimes(self._run.telemetry.ledger)

    @property
    def id(self) -> str:
        """The run's id, which its spans, events and audit records have as well."""
        return self._run.id

    @property
    def trace_id(self) -> str | None:
        """The trace id of the run in hex; None if the run is not traced."""
        return self._run.trace_id

    @property
    def content(self) -> str:
        """The text of the last answer."""
        return "" if self.response is None else self.response.message.text

    @property
    def messages(self) -> tuple[Message, ...]:
        """What the run was asked."""
        return self._messages

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """The results of all tool calls of the run so far."""
        return tuple(self._run.results)

    @property
    def usage(self) -> Usage | None:
        """The tokens of the run so far, if they are reported."""
        return self._run.totals.usage.total

    @property
    def pending(self) -> tuple[PendingCall, ...]:
        """The calls of the last answer that wait for approval or input."""
        return tuple(chain.from_iterable(waiting.leaves() for waiting in self._pending.values()))

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The calls of the last answer that the application has neither executed nor answered."""
        return tuple(call for call, _ in self._calls.left())

    @property
    def is_in_iteration(self) -> bool:
        """Whether the application has an iteration open, as a `with` block."""
        return self._iteration is not None and not self._is_advancing

    @property
    def is_calling_model(self) -> bool:
        """Whether a model call of the run is open."""
        return bool(self._model_calls)

    @property
    def is_in_tool(self) -> bool:
        """Whether the current code belongs to a tool that `execute` runs."""
        call = current_call()
        return call is not None and call.run_id == self.id

    @property
    def has_approvers(self) -> bool:
        """Whether an advisor of the run decides about calls that require approval, so that none of them waits."""
        return bool(self._run.approvers)

    @property
    def may_capture(self) -> bool:
        """Whether contents of the run may be captured. If not, nothing reads the messages of a model call."""
        return self._run.telemetry.content is not None

    def telemetry_failed(self, error: Exception, what: str) -> None:
        """Count telemetry that is lost because `what` raised an error."""
        self._run.telemetry.telemetry_failed(error, what)

    def __enter__(self) -> Self:
        if self._state != "new":
            raise RuntimeError("the run has begun before: call observe.run(...) for another one")
        self._state, run = "under way", self._run
        run.around = leave_ended_runs(), otel_context.get_current()
        with ExitStack() as stack:
            stack.enter_context(RunPlace(run, otel_context.get_current()))
            run.begin()
            self._observed = stack.enter_context(observe_run(run, self._model, ManualQuestion(self._messages)))
            self._stack = stack.pop_all()
        self._context = otel_context.get_current()
        run.trace_id = self._observed.trace_id
        _RUNS[run.id] = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._check_is_under_way()
        self._state = "ended"
        try:
            self._leave_model_calls()
            self._end_iteration(error)
            self._leave_calls(self._outside, self._context, 0)
            self._observed.answered(self._output())
            self._run.totals.ended = True
        except BaseException as problem:
            self._run.totals.ended = True
            self._stack.__exit__(type(problem), problem, problem.__traceback__)
            raise
        self._stack.__exit__(kind, error, traceback)

    def begin(self) -> Self:
        """Begin the run without making it current here, for code that calls `end` in another context."""
        self._is_detached = True
        copy_context().run(self.__enter__)
        return self

    def end(self, error: BaseException | None = None) -> None:
        """End a run that `begin` has begun; with an error, as failed."""
        copy_context().run(self.__exit__, None if error is None else type(error), error, None)

    def place(self) -> AbstractContextManager[object]:
        """Return a `with` block whose code belongs to a run that `begin` has begun."""
        return RunPlace(self._run, self._context)

    def __del__(self) -> None:
        if self._state == "under way":  # a framework that is cancelled may call none of its hooks again
            with in_finalizer(), suppress(BaseException):
                self.end(Abandoned())

    def iteration(self) -> ManualIteration:
        """Return the next iteration, as a `with` block around a model call and its tool calls.

        Raises:
            LoopLimitExceeded: if the run has reached a limit, and the iteration that concludes it is over, or the
                limits have another `on_limit` than `conclude`.
        """
        self._check_is_under_way()
        self._end_iteration(None)
        if self._iteration is not None:
            raise RuntimeError(f"the iteration {self._iteration.index} has not ended: leave its block first")
        run, index = self._run, self._run.totals.iterations + 1
        is_over, limit = self._limit is not None, run.tally.limit_before(index, run.spent())
        self._limit = self._limit or limit
        if limit is not None and (is_over or run.limits.on_limit != "conclude"):
            raise LoopLimitExceeded(limit, self, run.tally.broken_by)
        self._leave_calls(self._outside, self._context, 0)
        self._outside = self._outside.following((), NO_TOOLS, None)
        return ManualIteration(run, index, limit, self._place(), self._iteration_began, self._iteration_ended)

    def advance(self) -> ManualIteration:
        """Begin the next iteration, which ends with the next one or with the run, for code that has no block around it.

        Raises:
            LoopLimitExceeded: as `iteration` does.
        """
        iteration = self.iteration()
        self._is_advancing = True
        copy_context().run(iteration.__enter__)
        return iteration

    def model_call(
        self,
        model: str | None = None,
        provider: str | None = None,
        *,
        messages: Iterable[Message] = (),
        tools: object = (),
        options: ChatOptions = NO_OPTIONS,
        server_address: str | None = None,
        server_port: int | None = None,
    ) -> ManualModelCall:
        """Return a call of a model, as a `with` block around it.

        Args:
            model: the model, as the provider names it; None for the model of the run.
            provider: the provider; None for that of the run.
            messages: the conversation that is sent, which is recorded only if content is captured. Its instructions are
                recorded as a digest.
            tools: the tools that the model is offered; accepts what `tools=` of a prompt does, except providers.
            options: how the model is asked.
            server_address: the host that is asked; None for a model in this process.
            server_port: the port that is asked.

        Raises:
            TypeError, ValueError: for an invalid argument.
        """
        self._check_is_under_way()
        expect("model", model, (str, type(None)), "a str or None")
        expect("provider", provider, (str, type(None)), "a str or None")
        expect("options", options, ChatOptions, "a ChatOptions")
        messages = tuple(messages)
        expect_each("messages", messages, MESSAGE_TYPES, ANY_MESSAGE)
        run = self._run
        called = ManualModel(
            self._model.model if model is None else model,
            self._model.provider if provider is None else provider,
            server_address,
            server_port,
        )
        called = self._models.setdefault(called, called)  # one object a model, because telemetry knows it by identity
        index = 0 if self._iteration is None else self._iteration.index
        question = ManualQuestion(with_results(messages), self._tool_set(tools), options, index)
        if not self._is_identified:
            self._is_identified = True
            self._identify(called, question)
        return ManualModelCall(run, called, question, self._place(), self._answered, self._model_calls, self._times)

    def execute(self, tool: object, tool_call: ToolCall, *, decision: CallDecision | None = None) -> ToolResult:
        """Run a call that the model asks for, blocking, as the loop of a `ChatClient` does.

        The call is refused if no tool has its name, its arguments are invalid, a limit is reached, or an advisor or an
        approver refuses it. `content` of the result is what the model reads. A call that nobody has decided about is
        in `pending` of the result and of the run, and its tool has not run.

        Args:
            tool: the tool that the call names, or all tools that it may name; accepts what `tools=` of a prompt does.
            tool_call: the call.
            decision: the decision about a call that requires approval; None if nobody has decided before.

        Raises:
            ResumeError: if the call does not wait for such a decision.
            TypeError, ValueError: for an invalid argument. The call is then not executed, and can be.
            ToolExecutionError: if the tool fails and `tool_errors` raises its error.
            ToolDefinitionError: if `tool` is no tool.
        """
        with self._place() or nullcontext():
            return call(self._execute(tool, tool_call, decision, None))

    async def aexecute(self, tool: object, tool_call: ToolCall, *, decision: CallDecision | None = None) -> ToolResult:
        """Run a call that the model asks for, on asyncio; see `execute`."""
        with self._place() or nullcontext():
            # it copies the context, in which it then runs to its end
            execution = Execution(self._execute(tool, tool_call, decision, None))
        return await adrive(execution)

    def answer(self, tool_call: ToolCall, content: str) -> ToolResult:
        """Record the result of a call that the application has answered without `execute`.

        The call has a span, events and an audit record with the decision `answered`; nothing is known of its tool.

        Args:
            tool_call: the call.
            content: what the model reads, which is recorded only if content is captured.
        """
        expect("content", content, str, "a str: what the model reads")
        with self._place() or nullcontext():
            return call(self._execute((), tool_call, None, content))

    async def _execute(
        self, tool: object, tool_call: ToolCall, decision: CallDecision | None, content: str | None
    ) -> ToolResult:
        expect("tool_call", tool_call, ToolCall, "a ToolCall, such as ToolCall(name, arguments, id=...)")
        run, calls = self._run, self._calls
        index = 0 if self._iteration is None else self._iteration.index
        tools = calls.offered if content is not None else await self._select(tool).tool_set()
        waiting = self._pending.get(tool_call.id or "")
        if decision is not None:  # before the call counts as executed, so that an invalid decision changes nothing
            expect("decision", decision, (Approve, Reject, Provide), "an Approve, a Reject or a Provide")
            requests = None if waiting is None or waiting.input is None else waiting.input.requests
            check_decision(tool_call.id or "", requests, decision)
            check_scope(decision)
        identified, place = calls.begin(tool_call) if waiting is None else (tool_call, calls.add())
        self._times.begin()
        result = await _MANAGER.execute_call(
            run,
            identified,
            tools,
            place=place,
            answer=calls,
            iteration=index,
            spent=calls.spent,
            decision=decision,
            result=content,
            pending=waiting,
            book=partial(self._times.end, "tool"),
        )
        calls.results.append(result)
        if result.pending is not None:
            self._pending[result.call_id] = result.pending
        else:
            run.results.append(result)
            self._pending.pop(result.call_id, None)
        return result

    def answered_by(self, run: ManualRun) -> None:
        """Take the answer of a run to which the agent has handed off, and the calls that wait in it."""
        self.response = run.response or self.response
        self._pending.update(run._pending)

    @property
    def _calls(self) -> AnswerCalls:
        return self._outside if self._iteration is None else self._iteration.calls

    def _check_is_under_way(self) -> None:
        if self._state != "under way":
            problem = "has not begun" if self._state == "new" else "has ended"
            raise RuntimeError(f"the run {problem}: call its methods in the block `with observe.run(...) as run:`")

    def _answered(self, response: ChatResponse, offered: ToolSet) -> None:
        self.response = response
        self._pending.clear()  # the conversation goes on without the results of calls that have waited
        if self._iteration is not None:
            self._iteration.answered(response, offered)
            return
        self._leave_calls(self._outside, self._context, 0)
        spent = self._run.tally.exhausted_budget(self._run.spent())
        self._outside = self._outside.following(response.tool_calls, offered, spent)

    def _iteration_began(self, iteration: ManualIteration) -> None:
        self._run.totals.iterations, self._iteration = iteration.index, iteration

    def _iteration_ended(self, iteration: ManualIteration) -> None:
        """Record the calls of an iteration that the application has left, and whether all calls failed."""
        self._leave_model_calls(iteration.index)
        self._iteration = None
        self._leave_calls(iteration.calls, iteration.context, iteration.index)
        parts = [result.part() for result in iteration.calls.results]
        if parts and not self._pending:
            self._run.tally.record_iteration(all(part.is_error for part in parts))

    def _leave_calls(self, calls: AnswerCalls, context: Context, index: int) -> None:
        """Record the calls of an answer that the application has left."""
        with RunPlace(self._run, context):
            for tool_call, place in calls.left():
                _MANAGER.skip_call(self._run, tool_call, calls.offered, place, index)

    def _leave_model_calls(self, iteration: int | None = None) -> None:
        """End the model calls of an iteration, or of the run, that are still open, such as a stream left by `break`."""
        for model_call in tuple(self._model_calls):
            if iteration is None or model_call.iteration == iteration:
                model_call.leave()

    def _end_iteration(self, error: BaseException | None) -> None:
        """End the iteration that `advance` has begun, if there is one."""
        if self._is_advancing and self._iteration is not None:
            self._is_advancing = False
            copy_context().run(self._iteration.__exit__, None if error is None else type(error), error, None)

    def _place(self) -> RunPlace | None:
        """Return the place of the run, and of its iteration, if they are not current here; else None."""
        self._check_is_under_way()
        is_detached = self._is_detached if self._iteration is None else self._is_advancing
        if current_run() is self._run and not is_detached:
            return None
        return RunPlace(self._run, self._context if self._iteration is None else self._iteration.context)

    def _tool_set(self, tools: object) -> ToolSet:
        """Return tools as a set; raise `TypeError` for a provider, which may have to be awaited."""
        selection = self._select(tools)
        if selection.providers:
            raise TypeError(
                "tools must be tools, not a provider: pass what it provides, such as await toolset.tool_callbacks()"
            )
        return call(selection.tool_set())

    def _select(self, tools: object) -> ToolSelection:
        """Return the selection of tools; a loop passes the same ones again and again."""
        items = tuple(tools) if isinstance(tools, list | tuple) else (tools,)
        last_items, selection = self._selected
        if len(items) != len(last_items) or not all(map(is_, items, last_items)):
            selection = ToolSelection(tools)
            self._selected = items, selection
        return selection

    def _identify(self, model: ManualModel, question: ManualQuestion) -> None:
        """Record what the run is asked, with which tools, when its first model call begins."""
        run, tools = self._run, question.tools
        for advisor in reviewing(self._advisors):
            advisor.review_tools(run, tools.names_by_source)
        self._observed.calls(model)
        self._observed.began(ManualQuestion(question.messages or self._messages, tools))
        if run.telemetry.enabled:
            run.telemetry.guarded(self._identify_agent, question)

    def _identify_agent(self, question: ManualQuestion) -> None:
        tools = question.tools.fingerprint if question.tools else ""
        policies = [advisor.policy_digest for advisor in self._advisors if advisor.policy_digest is not None]
        digests = AgentDigests.of(instructions_of(question.messages), tools, policies)
        self._observed.identified(digests, is_own=False)

    def _output(self) -> _RunOutput:
        """Return the answer of the run, and why the run has ended without an error."""
        response = self.response
        message = AssistantMessage() if response is None else response.message
        return _RunOutput(message, None if response is None else response.finish_reason, self._stop_reason(message))

    def _stop_reason(self, message: AssistantMessage) -> StopReason:
        if self._pending:
            is_for_input = all(waiting.input is not None or waiting.held for waiting in self.pending)
            return "awaiting_input" if is_for_input else "awaiting_approval"
        if self._limit is not None:
            return self._limit
        return "advisor" if message.tool_calls else "answered"

    def __repr__(self) -> str:
        return f"<ManualRun {self._run.id} of {self._run.agent}: {self._state}>"


def current_manual_run() -> ManualRun | None:
    """Return the run by hand that the current code belongs to; None if there is none, or a `ChatClient` has it.

    A run that has ended is none.
    """
    run = leave_ended_runs()
    return None if run is None else _RUNS.get(run.id)
