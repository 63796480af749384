"""The context of one run, which the advisor chain, the tool loop and the tools share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from opentelemetry import context as otel_context
from opentelemetry.trace import get_current_span

from traced_tools.core.identity import actor, actor_chain
from traced_tools.core.ids import time_ordered_id
from traced_tools.core.limits import DEFAULT_LIMITS, LimitTally, LoopLimits
from traced_tools.core.messages import AssistantMessage, Message, ToolMessage, UsageSum
from traced_tools.core.prices import cost_of
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.core.totals import Totals
from traced_tools.observe.run_attributes import NO_ATTRIBUTES, RunAttributes, merge_attributes
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions, use_telemetry
from traced_tools.observe.sanitize import drop_invalid_counts
from traced_tools.observe.typed_events.dispatch import NO_LISTENERS, EventListeners, RunEventDispatcher

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from traced_tools.core.approval import NestedPause, PendingCall
    from traced_tools.core.conversation import CheckedConversation
    from traced_tools.core.tool_definition import ToolCallbackResolver
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.observe.stages.subjects import ModelAnswer, ObservedModel
    from traced_tools.run.resumption import Resumption, RunPause
    from traced_tools.run.streamed_text import Delivery


class AdvisesTools(Protocol):
    """An advisor that wraps each tool call of a run; see `ToolAdvice`."""

    name: str
    order: int

    def advise_tool(self, call: Any, call_next: Any) -> Any:
        """Wrap one tool call; see `ToolAdvice.advise_tool`."""


class DecidesApprovals(Protocol):
    """An advisor that decides about calls that require approval; see `ToolAdvice`."""

    name: str
    order: int

    def decide_approval(self, request: Any) -> Any:
        """Decide about one call; see `ToolAdvice.decide_approval`."""


class KeepsTranscript(Protocol):
    """An advisor inside the tool loop that keeps every message; see `TranscriptAdvisor`."""

    name: str
    order: int

    def resume(self, run: RunContext) -> Awaitable[None]:
        """Check that a run can be resumed; see `TranscriptAdvisor.resume`."""

    def claim(self, run: RunContext) -> Awaitable[None]:
        """Record that a run that resumes runs the calls that waited; see `TranscriptAdvisor.claim`."""

    def complete(self, run: RunContext, messages: Sequence[Message], *, failing: bool) -> Awaitable[None]:
        """Keep what the model was not sent anymore; see `TranscriptAdvisor.complete`."""


class EnforcesSchema(Protocol):
    """Returns whether the model of a run accepts a schema for its answer; see `ChatModel.enforces_schema`."""

    def __call__(self, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
        """Return whether it accepts `schema`."""


class Journal(Protocol):
    """Records what a run does before the next thing happens. Its methods are flows.

    Each raises `RunTaken` if another process has taken the run over, and an error of the store if nothing was recorded.
    """

    async def answered(
        self, run: RunContext, answer: AssistantMessage, messages: Sequence[Message], iteration: int
    ) -> None:
        """Record an answer that calls tools, before any of them begins.

        Args:
            run: the run.
            answer: the answer.
            messages: what the loop added to its first request before the answer.
            iteration: the iteration of the answer.
        """

    async def call_begins(self, call_id: str, *, repeatable: bool) -> None:
        """Record that the tool of a call begins, right before it does.

        Args:
            call_id: the id of the call.
            repeatable: whether the tool may run again if its outcome is not recorded.
        """

    async def call_ended(self, run: RunContext, result: ToolResult) -> None:
        """Record the result of a call, before the run relies on it."""

    async def call_waits(self, run: RunContext, pending: PendingCall) -> None:
        """Record that a call waits whose tool has begun: it has asked for input, or its agent waits."""


class OpenCall:
    """A tool call whose tool runs, to which the runs that the tool begins report that they wait.

    Attributes:
        run_id: the id of the run that the call belongs to.
        tool: the tool's name.
        paused: the runs that wait.
    """

    __slots__ = ("paused", "run_id", "tool")

    def __init__(self, run_id: str, tool: str) -> None:
        self.run_id = run_id
        self.tool = tool
        self.paused: dict[str, NestedPause] = {}


class RunContext:
    """The identity, settings and totals of one run.

    `copy.deepcopy` returns the context itself. Pickling keeps the ids, attributes and totals, and the client's name.

    Args:
        agent: the client's name.
        agent_id: the client's stable id, if it has one.
        conversation_id: the id of the conversation, if the caller passed one.
        principal: on whose behalf the run is; by default, that of the enclosing run.
        default_principal: on whose behalf the run is if neither the request nor the enclosing run says so.
        actors: the agents and tools between the principal and a run that no run encloses; see the attribute.
        tool_context: data about the caller for tools; never sent to the model.
        limits: the limits of the run, such as iterations, tool calls and time.
        tool_errors: the error policy: what happens when a tool fails.
        telemetry: which telemetry to emit, and to which providers.
        tool_advisors: the advisors that wrap each tool call, the outermost first.
        approvers: the advisors that decide about calls that require approval, the outermost first.
        listeners: the callbacks that receive the events of the run.
        resolver_fallback: finds tools that the model calls and the request does not contain.
        attributes: the application's attributes of the run, merged into the attributes of the enclosing run.
        enforces_schema: returns whether the model accepts a schema for its answer; None if the run has no model.
        transcripts: the advisors inside the tool loop that keep every message.
        context_window: returns the context window of the model in tokens, or None if it is not known; None if the run
            has no model.
        version: the version of the agent, if the application set it.

    Attributes:
        parent_id: the id of the enclosing run; None if there is none.
        actors: which agents and tools stand between the principal and the run, the outermost first, without the run's
            own agent, such as `("agent:planner", "tool:ask_billing")`.
        interrupted: the results, so far, of tools that an error or the caller interrupted; None before that.
        journal: records what the run does, so that another process can go on with it; None if nothing is recorded.
        complete: the last conversation that was found to have a result for each tool call.
        paired: the last conversation in which each result was found to follow its call.
        checked: the last conversations that were checked for both, the newest last.
        results: the results of the tool calls that loops have run so far.
        reached: each tuple of results that `all_results` has returned.
        resumption: what the run starts from, if it resumes a paused one; else None.
        pause: where the run paused, if calls wait for approval; else None.
        first_request: the messages of the first request of the tool loop, without what an advisor that keeps its
            attempts sends again when the run is resumed; None before that.
        discovered_tools: the names of the tools that a tool search has found for the model, in the order of discovery.
        tool_names: the names of the tools that the last answer with calls could call; empty before that.
        read_output: returns the output in the text of an answer, or what is wrong with it; None without `output=`.
        remembered: the messages that a memory adds to what the run is asked; None if no memory keeps the run.
        check_taken: a flow that raises `RunTaken` if another process has taken the run over; None if none can.
        around: the run and the OpenTelemetry context around a run by hand, whose block may end in another context; None
            for other runs.
        withdraw: a flow that withdraws a run that waits from the store of the client, and returns whether the run is
            certain never to resume; None if there is no store.
    """

    __slots__ = (
        "__weakref__",
        "_call",
        "_outer",
        "actors",
        "agent",
        "agent_id",
        "approvers",
        "around",
        "attributes",
        "check_taken",
        "checked",
        "complete",
        "context_window",
        "conversation_id",
        "delivery",
        "discovered_tools",
        "enforces_schema",
        "events",
        "first_request",
        "id",
        "interrupted",
        "journal",
        "limits",
        "paired",
        "parent_id",
        "pause",
        "principal",
        "reached",
        "read_output",
        "remembered",
        "resolver_fallback",
        "results",
        "resumption",
        "tally",
        "telemetry",
        "tool_advisors",
        "tool_context",
        "tool_errors",
        "tool_names",
        "totals",
        "trace_id",
        "transcripts",
        "withdraw",
    )

    def __init__(
        self,
        *,
        agent: str = "assistant",
        agent_id: str | None = None,
        conversation_id: str | None = None,
        principal: str | None = None,
        default_principal: str | None = None,
        actors: tuple[str, ...] = (),
        tool_context: Mapping[str, Any] | None = None,
        limits: LoopLimits = DEFAULT_LIMITS,
        tool_errors: ToolErrors = ANSWER_ERRORS,
        telemetry: TelemetryOptions | None = None,
        tool_advisors: tuple[AdvisesTools, ...] = (),
        approvers: tuple[DecidesApprovals, ...] = (),
        listeners: EventListeners = NO_LISTENERS,
        resolver_fallback: ToolCallbackResolver | None = None,
        attributes: RunAttributes = NO_ATTRIBUTES,
        enforces_schema: EnforcesSchema | None = None,
        transcripts: tuple[KeepsTranscript, ...] = (),
        context_window: Callable[[], int | None] | None = None,
        version: str | None = None,
    ) -> None:
        self.id: str = time_ordered_id()
        self.totals = Totals()
        outer = _CURRENT.get()
        if outer is not None and outer.totals.ended:
            outer = leave_ended_runs()
        self._outer = None if outer is None else outer.totals
        self.parent_id = None if outer is None else outer.id
        call = _CALL.get()
        self._call = call if call is not None and call.run_id == self.parent_id else None
        self.attributes: RunAttributes = attributes if outer is None else merge_attributes(outer.attributes, attributes)
        self.agent = agent
        self.agent_id = agent_id
        self.conversation_id = conversation_id
        if principal is None and outer is not None:  # before the client's default: a nested agent acts for its caller
            principal = outer.principal
        self.principal: str | None = default_principal if principal is None else principal
        self.actors: tuple[str, ...] = actors if outer is None else outer.actors_of_nested(self._call)
        self.tool_context = {**tool_context} if tool_context else {}  # copied: several runs may share one mapping
        self.limits = limits
        self.tool_errors = tool_errors
        self.tool_advisors = tool_advisors
        self.approvers = approvers
        self.resolver_fallback = resolver_fallback
        self.enforces_schema = enforces_schema
        self.transcripts = transcripts
        self.context_window = context_window
        self.telemetry = RunTelemetry(
            telemetry or TelemetryOptions(),
            agent,
            self.id,
            conversation_id,
            has_listeners=any(listeners),
            agent_id=agent_id,
            attributes=self.attributes,
            version=version,
            principal=self.principal,
            actors=self.actors,
        )
        self.events = RunEventDispatcher(self.telemetry, listeners, self.parent_id)
        self.tally = LimitTally(limits)
        self.complete: tuple[Message, ...] | None = None
        self.paired: tuple[Message, ...] | None = None
        self.checked: tuple[CheckedConversation, ...] = ()
        self.results: list[ToolResult] = []
        self.reached: list[tuple[ToolResult, ...]] = []
        self.delivery: Delivery | None = None
        self.trace_id: str | None = None
        self.interrupted: ToolMessage | None = None
        self.journal: Journal | None = None
        self.check_taken: Callable[[], Awaitable[None]] | None = None
        self.resumption: Resumption | None = None
        self.pause: RunPause | None = None
        self.first_request: tuple[Message, ...] | None = None
        self.discovered_tools: tuple[str, ...] = ()
        self.tool_names: Collection[str] = ()
        self.read_output: Callable[[str], object] | None = None
        self.remembered: Sequence[Message] | None = None
        self.around: tuple[RunContext | None, Context] | None = None
        self.withdraw: Callable[[str], Awaitable[bool]] | None = None

    def __enter__(self) -> None:
        """Make this run the parent of runs that begin in the current context; it must belong to the run."""
        make_current(self)
        self.begin()

    def begin(self) -> None:
        """Count this run as nested in the run that encloses it, if there is one."""
        if self._outer is not None and not self._outer.ended:  # otherwise, leftover tools would add to it forever
            self._outer.nested.append(self.totals)

    def __exit__(self, *_: object) -> None:
        self.totals.ended = True

    def open_call(self, tool: str) -> OpenCall:
        """Return a new call of the run, whose tool has this name and begins now in the current context."""
        call = OpenCall(self.id, tool)
        _CALL.set(call)
        return call

    def actors_of_nested(self, call: OpenCall | None) -> tuple[str, ...]:
        """Return the actors of a run that begins in this run, in a tool call of it if there is one."""
        through = () if call is None else (actor("tool", call.tool),)
        return actor_chain(*self.actors, actor("agent", self.agent), *through)

    def report_pause(self, pause: NestedPause) -> None:
        """Report to the call that began the run, if there is one, that the run waits."""
        if self._call is not None:
            self._call.paused[pause.run.id] = pause

    def report_resumption(self, state_id: str) -> None:
        """Report to the call that began the run, if there is one, that the run resumes from a state."""
        if self._call is not None:
            self._call.paused.pop(state_id, None)

    def tool_context_for(self, call_id: str, tool: str, iteration: int) -> ToolContext:
        """Return the context that the tool receives for one call."""
        return ToolContext(
            self.tool_context,
            call_id=call_id,
            tool=tool,
            iteration=iteration,
            conversation_id=self.conversation_id,
            principal=self.principal,
            run_id=self.id,
            deadline=self.tally.deadline,
        )

    def nested(self) -> RunContext:
        """Return the context of a run for calls that a tool of this run makes, which pass the same advisors.

        It must be created, and entered, in the context of the tool.
        """
        return RunContext(
            agent=self.agent,
            agent_id=self.agent_id,
            conversation_id=self.conversation_id,
            tool_context=self.tool_context,
            telemetry=self.telemetry.options,
            tool_advisors=self.tool_advisors,
            approvers=self.approvers,
            listeners=self.events.listeners,
        )

    def spent(self) -> UsageSum:
        """Return the tokens of the run, of all runs nested in it, and of the runs that it resumes."""
        if self.resumption is None:
            return self.totals.spent
        usage = UsageSum()
        usage.add(self.resumption.paused.usage)
        usage.add(self.totals.spent.total)
        return usage

    def next_iteration(self) -> int:
        """Return the number of the next iteration of the tool loop, from 1; the runs that it resumes count."""
        paused_iterations = 0 if self.resumption is None else self.resumption.paused.iteration
        return paused_iterations + self.totals.iterations + 1

    def cost_of(self, model: ObservedModel, response: ModelAnswer) -> float | None:
        """Return the cost of an answer of `model` in US dollars; None if the run has no price for it."""
        prices = self.telemetry.options.prices
        if prices is None or (usage := drop_invalid_counts(response.usage)) is None:
            return None
        return cost_of(prices, model.provider, (response.model, model.model), usage, self.telemetry.telemetry_failed)

    def all_results(self) -> tuple[ToolResult, ...]:
        """Return the results of all tool calls of the run so far."""
        results = tuple(self.results)
        self.reached.append(results)
        return results

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in _PICKLED}
        return _unpickled, (self.agent, self.conversation_id, values)

    def __repr__(self) -> str:
        return f"<RunContext {self.id} of {self.agent}>"


_CURRENT: ContextVar[RunContext | None] = ContextVar("traced_tools_run", default=None)
_CALL: ContextVar[OpenCall | None] = ContextVar("traced_tools_call", default=None)


def current_run() -> RunContext | None:
    """Return the innermost run that the current code belongs to; None outside a run."""
    return _CURRENT.get()


def current_call() -> OpenCall | None:
    """Return the tool call whose tool the current code belongs to; None outside a tool."""
    return _CALL.get()


def leave_ended_runs() -> RunContext | None:
    """Leave the runs by hand that have ended and are current in this context all the same; return the current run.

    A block in a generator may end in another thread or task than it has begun in, or after a block that began later. A
    run that begins then must be neither in the trace of the one that has ended, nor on behalf of its principal.
    """
    run = _CURRENT.get()
    while run is not None and run.totals.ended and run.around is not None:
        outer, context = run.around
        make_current(outer)
        if not get_current_span().is_recording():  # otherwise, the application has begun a span since then
            otel_context.attach(context)
        run = outer
    return run


def make_current(run: RunContext | None) -> None:
    """Make a run the parent of runs that begin in the current context; None for no run."""
    use_telemetry(None if run is None else run.telemetry)
    _CURRENT.set(run)


_PICKLED: Final = ("id", "trace_id", "parent_id", "attributes", "totals")


def _unpickled(agent: str, conversation_id: str | None, values: Mapping[str, Any]) -> RunContext:
    """Return the context of a past run from its pickled values."""
    run = RunContext(agent=agent, conversation_id=conversation_id)
    for name, value in values.items():
        setattr(run, name, value)
    return run
