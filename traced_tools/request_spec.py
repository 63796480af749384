"""A request that is ready to run, in any of the modes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Self

from traced_tools.core.approval import CallDecision, Denied, NestedPause
from traced_tools.core.enums import ResumeRefusal
from traced_tools.core.frozen import frozen
from traced_tools.core.messages import Message, SystemMessage, UsageSum
from traced_tools.core.options import ChatOptions
from traced_tools.core.state_key import StateKey
from traced_tools.errors import McpToolsChanged, ResumeError, StateNotKept
from traced_tools.flow.event_loops import warn_if_blocking_loop
from traced_tools.flow.flow import Flow, acall, call
from traced_tools.flow.steps import perform
from traced_tools.loop.chain import AdvisorChain
from traced_tools.loop.exchange import ChatClientRequest, ChatClientResponse, OutputT
from traced_tools.loop.paused_runs import KeepsPausedRuns, RunLife
from traced_tools.observe.agent_version import AgentDigests
from traced_tools.observe.failures import error_type
from traced_tools.observe.observations import observe_changed_tools, observe_missing_results, observe_run
from traced_tools.run.context import RunContext
from traced_tools.run.resumption import Resumption, RunPause
from traced_tools.run_handles import AsyncChatStream, ChatRun, ChatStream
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

if TYPE_CHECKING:
    from traced_tools.loop.state import RunState
    from traced_tools.observe.stages.run import RunObservation

_LOG: Final = logging.getLogger(__name__)


@frozen(repr=False)
class ChatClientRequestSpec(Generic[OutputT]):
    """A request that is ready to run. It can run any number of times; the runs are independent.

    `ChatClient.prompt` and `ChatClient.resume` make requests: an application constructs none itself.
    """

    chain: AdvisorChain
    messages: tuple[Message, ...]
    unanswered: int
    has_own_agent: bool
    tools: ToolSelection
    options: ChatOptions
    context: Mapping[str, Any]
    new_run: Callable[..., RunContext]
    state_key: StateKey | None = None
    pending_store: KeepsPausedRuns | None = None
    resumed: tuple[RunState, Mapping[str, CallDecision | Denied]] | None = None
    resumed_text: str = ""
    life: RunLife | None = None

    def call(self) -> ChatClientResponse[OutputT]:
        """Run the request, blocking, and return the answer. On an event loop, use `acall`.

        Raises:
            ModelError: if the model fails, or a subclass that says why.
            ToolExecutionError: if a tool fails and `tool_errors` says that this fails the run.
            LoopLimitExceeded: if the run reaches a limit and its limits have `on_limit="raise"`.
            TracedToolsError: the base class of these, and of what memories, policies, MCP servers and stores raise.
            NeedsEventLoop: if an advisor awaits an asyncio object directly.
        """
        warn_if_blocking_loop("call", "acall")
        return call(self.begin())

    async def acall(self) -> ChatClientResponse[OutputT]:
        """Run the request on asyncio and return the answer; raises the same errors as `call`."""
        return await acall(self.begin())

    def stream(self) -> ChatStream[OutputT]:
        """Return a stream that runs the request, blocking, and yields chunks as they arrive.

        The run begins when the first chunk is requested, in the context of the code that requests it. Errors of the run
        are those of `call`. They raise where a chunk is requested, after the chunks that arrived before.
        """

        def begin() -> Flow[ChatClientResponse[OutputT]]:
            warn_if_blocking_loop("stream", "astream")
            return self.begin(streaming=True)

        return ChatStream(begin)

    def astream(self) -> AsyncChatStream[OutputT]:
        """Return a stream that runs the request on asyncio and yields chunks as they arrive; see `stream`."""
        return AsyncChatStream(partial(self.begin, streaming=True))

    def start(self) -> ChatRun[OutputT]:
        """Return a run that the caller drives: it goes forward only when the caller performs a step.

        The run begins when the first step is requested, in the context of the code that requests it.
        """
        return ChatRun(self.begin)

    def begin(self, *, streaming: bool = False) -> Flow[ChatClientResponse[OutputT]]:
        """Return the flow of a new run."""
        run = self.new_run()
        run.complete = self.messages
        if streaming:
            run.delivery = self.chain.new_delivery()
        context = copy_containers(self.context) if self.context else {}  # a copy, because advisors may write to it
        return self._run(ChatClientRequest(self.messages, NO_TOOLS, self.options, context, 0, run))

    async def _run(self, request: ChatClientRequest) -> ChatClientResponse[OutputT]:
        run = request.run
        resumes = None if self.resumed is None else self.resumed[0].traceparent
        with run, observe_run(run, self.chain.model, request, resumes=resumes) as observed:
            run.trace_id = observed.trace_id
            if self.life is not None:
                await self.life.began(run, observed.traceparent, partial(self.chain.paused_states, run))
                run.journal, run.check_taken = self.life, self.life.check_taken
            if self.pending_store is not None:
                run.withdraw = partial(_withdraw, self.pending_store)
            request = request.replace(tools=await self._list_tools(run))
            self.chain.review(run, request.tools)
            observed.began(request)
            if run.telemetry.enabled:
                run.telemetry.guarded(self._identify, observed, request.tools)
            if self.resumed is not None:
                self._resume(run, *self.resumed)
            if self.unanswered:
                observe_missing_results(run, not_run=0, unknown=self.unanswered, iteration=0)
            try:
                response = await self.chain.run(request)
            except ResumeError as error:
                is_known = self.pending_store is not None and self.resumed is not None and self.life is None
                if is_known and self.pending_store is not None and error.lasting is not None:
                    await record_refusal(self.pending_store, self.resumed_text, error.lasting)
                raise
            if response.stop_reason == "answered" and not run.totals.inference_calls:
                response = replace(response, stop_reason="advisor")  # no model was called
            if response.pending and run.pause is not None:
                state, text = await self._keep(run, run.pause, observed.traceparent)
                run.report_pause(NestedPause(state, response.pending))
                response = replace(response, state=text)
            elif self.life is not None:
                await self.life.finished(response.content, response.stop_reason)
            observed.answered(response)
        return _with_totals(response, run)

    def _identify(self, observed: RunObservation, tools: ToolSet) -> None:
        """Record the digests of the instructions, the tools and the policies."""
        fingerprint = tools.fingerprint if tools else ""
        digests = AgentDigests.of(instructions_of(self.messages), fingerprint, self.chain.policy_digests())
        observed.identified(digests, is_own=self.has_own_agent)

    async def _list_tools(self, run: RunContext) -> ToolSet:
        """Return the tools of a run, and report those that differ from the pinned ones."""
        try:
            tools = await self.tools.tool_set()
        except McpToolsChanged as error:
            observe_changed_tools(run, error.server, error.changes, refused=True)
            raise
        if self.tools.providers and run.events.wanted:
            for server, changes in tools.pin_changes.items():
                observe_changed_tools(run, server, changes, refused=False)
        return tools

    def _resume(self, run: RunContext, state: RunState, decisions: Mapping[str, CallDecision | Denied]) -> None:
        """Let a run start where the run of a state paused, with the time and nested usage that the state counts."""
        run.report_resumption(state.id)
        run.resumption = Resumption(state, partial(self._claim, state, decisions))
        run.tally.record_seconds(state.seconds)
        self.chain.restore(run, state.advisors)
        if state.nested is not None:
            run.totals.add_nested(state.nested)

    async def _claim(
        self, state: RunState, decisions: Mapping[str, CallDecision | Denied]
    ) -> Mapping[str, CallDecision | Denied]:
        """Return the decisions about the calls of a state; if there is a store, spend the state."""
        if self.pending_store is None:
            return decisions
        keeper = self.pending_store if self.life is None else self.life
        call_decisions = {
            call_id: decision for call_id, decision in decisions.items() if not isinstance(decision, Denied)
        }
        return await keeper.claim(state, call_decisions)

    async def _keep(self, run: RunContext, pause: RunPause, traceparent: str | None) -> tuple[RunState, str]:
        """Return the state of a run that has paused, and its text; if there is a store, keep it there."""
        from traced_tools.loop.state import RunState  # few runs pause

        is_kept = self.pending_store is not None
        advisor_states = self.chain.paused_states(run)
        state = RunState.of(run, pause, self.messages, traceparent, is_kept=is_kept, advisors=advisor_states)
        text = state.to_text(self.state_key)
        if self.pending_store is None:
            return state, text
        if self.life is not None:  # its log has all that it needs, even if the store fails now
            await self.life.pause(state, text)
            return state, text
        try:
            await self.pending_store.keep(state, text)
        except Exception as error:
            failure = error
        else:
            return state, text
        raise StateNotKept(text, failure)  # outside the `except`: a store's text may quote contents

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<ChatClientRequestSpec: {len(self.messages)} messages, {len(self.tools)} tools>"


def _with_totals(response: ChatClientResponse[OutputT], run: RunContext) -> ChatClientResponse[OutputT]:
    """Return the response with the results of all iterations, and with the usage of all runs of a resumed one."""
    results = response.tool_results
    if not results or any(results is earlier for earlier in run.reached):  # unless an advisor replaced the results
        results = run.all_results()
    usage = run.totals.usage.total
    if run.resumption is not None:
        usage_sum = UsageSum()
        usage_sum.add(usage)
        usage_sum.add(run.resumption.paused.usage)
        usage = usage_sum.total
    return replace(response, usage=usage, tool_results=results)


async def record_refusal(store: KeepsPausedRuns, state: str, reason: ResumeRefusal) -> None:
    """Record that a run can't resume, as a flow; if the store fails, a worker tries again."""
    try:
        await perform(store.refuse, state, reason)
    except Exception as error:
        _LOG.warning("a run that can't resume stays ready in the pending store: %s", error_type(error))


async def _withdraw(store: KeepsPausedRuns, run_id: str) -> bool:
    """Withdraw a run that waits, as a flow, and return whether it is certain that it never resumes.

    If the store fails, the failure is logged, and the result is False.
    """
    try:
        return bool(await perform(store.withdraw, run_id) or await perform(store.is_withdrawn, run_id))
    except Exception as error:
        _LOG.warning("a run that can no longer resume stays in the pending store: %s", error_type(error))
        return False


def instructions_of(messages: Sequence[Message]) -> str:
    """Return the instructions with which a conversation begins; empty for none."""
    first = messages[0] if messages else None
    return first.text if isinstance(first, SystemMessage) else ""


def copy_containers(value: Any, copies: dict[int, Any] | None = None) -> Any:
    """Return `value` with each built-in container copied; `copies` maps ids to copies, so that cycles end."""
    copies = {} if copies is None else copies
    if id(value) in copies:
        return copies[id(value)]
    if type(value) is tuple:
        return tuple(copy_containers(item, copies) for item in value)
    if type(value) is set:
        return copies.setdefault(id(value), set(value))
    if type(value) is list:
        elements = copies[id(value)] = []
        elements.extend(copy_containers(item, copies) for item in value)
        return elements
    if type(value) is dict:
        items = copies[id(value)] = {}
        items.update((key, copy_containers(item, copies)) for key, item in value.items())
        return items
    return value
