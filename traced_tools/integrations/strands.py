"""Agents of strands: a plugin whose model calls and tool calls are those of a run."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, TypeAlias, Unpack

from opentelemetry import context as otel_context
from opentelemetry.context import Context

from traced_tools.core.approval import Approve, PendingCall, Reject
from traced_tools.core.messages import AssistantMessage
from traced_tools.core.tool_input import InputRequest, PendingInput
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ConfigurationError, InputRequired
from traced_tools.integrations.handled_tools import HandledCall, HandledTool, guarded
from traced_tools.integrations.joining import lasting
from traced_tools.integrations.strands_messages import (
    call_of,
    chunk_of,
    conversation_of,
    definition_of,
    model_of,
    response_of,
    text_of,
)
from traced_tools.models.base import ChatResponse
from traced_tools.observe.manual.iteration import ManualIteration
from traced_tools.observe.manual.run import ManualRun, RunSettings, current_manual_run
from traced_tools.observe.manual.run import run as new_run

try:
    from strands.hooks import AfterInvocationEvent, BeforeInvocationEvent, HookOrder
    from strands.interrupt import InterruptException
    from strands.interventions.actions import default_evaluate
    from strands.middleware import ExecuteToolStage, InvokeModelStage, ModelStopReason, ToolResultEvent
    from strands.plugins import Plugin
except ImportError:
    raise ConfigurationError("agents of strands need an extra: pip install 'traced_tools[strands]'") from None

Emit: TypeAlias = Callable[[Any], None]
Next: TypeAlias = Callable[[Any], AsyncGenerator[Any, None]]

_APPROVAL: Final = "traced_tools.approval"
"""The name of the interrupt of a call that waits for approval."""


class TracedToolsPlugin(Plugin):  # type: ignore[misc]  # strands is not installed where types are checked
    """A plugin for agents of strands, which then have the spans, metrics, events and records of a `ChatClient`.

        agent = Agent(model, tools=[...], plugins=[TracedToolsPlugin("planner", audit=trail)])

    Each invocation is a run; within a `with observe.run(...)` block, the agent takes part in that run. A call that
    waits for approval interrupts the agent; resume it with the response `y` or `n`.

    Args:
        agent: the agent's name in telemetry. It is a metric label, so use a fixed name.
        settings: those of `observe.run`.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """

    name = "traced-tools"

    def __init__(self, agent: str = "assistant", **settings: Unpack[RunSettings]) -> None:
        super().__init__()
        self._agent = agent
        self._settings = lasting(settings, agent)
        self._lock = threading.Lock()
        self._invocations: dict[tuple[int, int], _Invocation | None] = {}
        self._tools: dict[str, tuple[Any, HandledTool]] = {}

    def init_agent(self, agent: Any) -> None:
        """Wrap the model calls and the tool calls of an agent."""
        agent.add_middleware(InvokeModelStage, self._invoke_model)
        agent.add_middleware(ExecuteToolStage, self._execute_tool)
        # the one is called if no other hook has failed, so that the other one, which other hooks can't prevent, follows
        agent.add_hook(self._invoked, BeforeInvocationEvent, order=HookOrder.SDK_LAST + 1)
        agent.add_hook(self._end, AfterInvocationEvent, order=HookOrder.SDK_FIRST - 1)

    async def _invoke_model(self, context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
        """Call the model in an iteration of the run, and yield its events."""
        invocation = self._invocation(context)
        limit = invocation.next_iteration(context).limit
        if limit is not None:
            context = context.replace(tool_specs=[], tool_choice=None)
        invocation.tools = [self._tool(spec) for spec in context.tool_specs]
        model = model_of(context.model)
        call = invocation.run.model_call(
            model.model,
            model.provider,
            messages=guarded(invocation.run, partial(conversation_of, context.system_prompt, context.messages), []),
            tools=invocation.tools,
        )

        async def work(emit: Emit) -> None:
            stop: Any = None
            with call:
                call.streaming()
                async for event in call_next(context):
                    if isinstance(event, ModelStopReason):
                        stop = event
                    elif "event" in event:
                        call.arrived(partial(guarded, invocation.run, partial(chunk_of, event["event"]), None))
                        call.delivered()
                    emit(event)
                if stop is not None:
                    call.answered(guarded(invocation.run, partial(response_of, stop), ChatResponse(AssistantMessage())))

        async for event in _events(work):
            yield event

    async def _execute_tool(self, context: Any, call_next: Next) -> AsyncGenerator[Any, None]:
        """Decide about a call and, if it may run, have strands run its tool; yield its events."""
        invocation = self._invocation(context)
        tools, requested = invocation.tools, call_of(context.tool_use)
        if context.tool is not None and all(tool.definition.name != requested.name for tool in tools):
            tools = [*tools, self._tool({**context.tool.tool_spec, "name": requested.name})]
        decision = _decision_of(context)

        async def work(emit: Emit) -> None:
            call = _StrandsCall(context, call_next, emit)
            try:
                with call:
                    result = await invocation.run.aexecute(tools, requested, decision=decision)
            finally:
                if invocation.is_alone:
                    invocation.run.end(sys.exception())
            call.reply(result)

        async for event in _events(work):
            yield event

    def _invoked(self, event: Any) -> None:
        """Take note of an invocation, whose run begins with its first call."""
        self._invocations[_key(event)] = None

    def _invocation(self, context: Any) -> _Invocation:
        """Return the invocation of a model call or a tool call, and begin its run if it has none.

        A call outside any invocation, such as one in the background or of the application, has a run of its own.
        """
        key = _key(context)
        with self._lock:  # calls of an answer come at once
            if key not in self._invocations:
                return self._begin(context, is_alone=True)
            invocation = self._invocations[key]
            if invocation is None:
                invocation = self._invocations[key] = self._begin(context)
            return invocation

    def _begin(self, context: Any, *, is_alone: bool = False) -> _Invocation:
        run, state = current_manual_run(), context.invocation_state
        is_driven = any(other is not None and other.run is run for other in self._invocations.values())
        if run is not None and not (run.is_in_tool or run.is_in_iteration or is_driven):
            return _Invocation(run, state, is_own=False)
        model = model_of(context.agent.model)
        conversation = partial(conversation_of, context.agent.system_prompt, context.agent.messages)
        own_run = new_run(
            self._agent,
            model=model.model,
            provider=model.provider,
            messages=guarded(None, conversation, []),
            **self._settings,
        )
        with _place_of_tool() if run is not None and run.is_in_tool else nullcontext():
            own_run.begin()
        return _Invocation(own_run, state, is_own=True, is_alone=is_alone)

    def _end(self, event: Any) -> None:
        """End the run of an invocation, as failed if an exception ends it."""
        invocation = self._invocations.pop(_key(event), None)
        if invocation is not None and invocation.is_own:
            invocation.run.end(sys.exception())

    def _tool(self, spec: Any) -> HandledTool:
        """Return a tool of strands as a run executes it; the same object for the same tool."""
        known_spec, tool = self._tools.get(spec["name"], (None, None))
        if tool is None or known_spec != spec:
            tool = HandledTool(definition_of(spec))
            self._tools[spec["name"]] = spec, tool
        return tool


def _key(context: Any) -> tuple[int, int]:
    """Return what identifies an invocation: agents of a graph may share a state, and an agent has several."""
    return id(context.agent), id(context.invocation_state)


class _Invocation:
    """The run of one invocation of an agent.

    Args:
        run: the run.
        state: the state of the invocation, whose identity identifies the invocation.
        is_own: whether the run ends with the invocation.
        is_alone: whether it ends with its only call.

    Attributes:
        tools: the tools that the model was offered last.
    """

    def __init__(self, run: ManualRun, state: dict[str, Any], *, is_own: bool, is_alone: bool = False) -> None:
        self.run: Final = run
        self.is_own: Final = is_own
        self.is_alone: Final = is_alone
        self.tools: list[HandledTool] = []
        self._state = state
        self._iteration: ManualIteration | None = None
        self._cycle_id: object = None

    def next_iteration(self, context: Any) -> ManualIteration:
        """Return the iteration of a model call; another attempt in the same cycle belongs to the same iteration."""
        cycle_id = self._state.get("event_loop_cycle_id")
        if self._iteration is None or cycle_id != self._cycle_id:
            self._record_results(context.messages)
            self._iteration, self._cycle_id = self.run.advance(), cycle_id
        return self._iteration

    def _record_results(self, messages: Iterable[Any]) -> None:
        """Record the calls of the last answer that the framework has answered without their tools."""
        calls = self.run.open_calls if self._iteration is not None else ()
        if calls:
            blocks = [block for message in messages for block in message["content"] if "toolResult" in block]
            results = {block["toolResult"]["toolUseId"]: block["toolResult"] for block in blocks}
            for call in calls:
                if call.id in results:
                    self.run.answer(call, text_of(results[call.id]["content"]))


class _StrandsCall(HandledCall):
    """One call whose tool strands runs.

    Args:
        context: the call, as strands passes it.
        call_next: runs its tool.
        emit: takes the events for strands.
    """

    def __init__(self, context: Any, call_next: Next, emit: Emit) -> None:
        self._context = context
        self._call_next = call_next
        self._emit = emit
        self._result: Any = None
        self._text = ""
        self._interrupt: Any = None

    def run(self, arguments: str) -> str:
        """Raise `RuntimeError`: strands runs tools on asyncio."""
        raise RuntimeError("tools of strands run on asyncio: use arun")

    async def arun(self, arguments: str) -> str:
        """Have strands run the tool, and return what the model reads."""
        _PLACE.set(otel_context.get_current())  # strands sets spans of its own as current
        try:
            async for event in self._call_next(self._context_with(arguments)):
                if isinstance(event, ToolResultEvent):
                    self._result = event
                elif "tool_interrupt_event" in event:
                    self._interrupt = event
                else:
                    self._emit(event)
        except InterruptException as interrupt:
            self._interrupt = interrupt
        if self._interrupt is not None:
            question = InputRequest(key="interrupt", method="elicitation/create", params={})
            raise InputRequired(PendingInput(requests=(question,)))
        result = self._result.tool_result
        self._text = text_of(result["content"])
        if result["status"] == "error":
            raise self._result.exception or ToolFailed(self._text)
        return self._text

    def reply(self, result: ToolResult) -> None:
        """Emit the result for strands: what its tool returned, or why the call was refused.

        Raises:
            InterruptException: if the call waits for approval, or its tool has interrupted the agent so.
        """
        if result.pending is not None:
            self._wait(result.pending)
            return
        part = result.part()
        has_failed = result.error is not None and result.outcome is not None
        is_own = result.ok and result.edited is None and (result.cut or result.content == self._text)
        if self._result is not None and (has_failed or is_own):
            self._emit(self._result)
            return
        reply = {
            "toolUseId": self._context.tool_use["toolUseId"],
            "status": "error" if part.is_error else "success",
            "content": [{"text": part.content}],
        }
        self._emit(ToolResultEvent(reply))

    def _wait(self, pending: PendingCall) -> None:
        if self._interrupt is None:
            reason = {"tool": pending.tool, "arguments": pending.args, "reason": pending.reason}
            self._context.interrupt(_APPROVAL, reason=reason)
        elif isinstance(self._interrupt, InterruptException):
            raise self._interrupt
        else:
            self._emit(self._interrupt)

    def _context_with(self, text: str) -> Any:
        use, arguments = self._context.tool_use, json.loads(text)
        return (
            self._context if arguments == use["input"] else self._context.replace(tool_use={**use, "input": arguments})
        )


class ToolFailed(Exception):
    """A tool of strands has returned an error."""


_PLACE: ContextVar[Context | None] = ContextVar("traced_tools_strands_place", default=None)


@contextmanager
def _place_of_tool() -> Iterator[None]:
    """Make the span of the tool that runs here current, in place of a span of strands."""
    outer = otel_context.get_current()
    if (place := _PLACE.get()) is not None:
        otel_context.attach(place)
    try:
        yield
    finally:
        otel_context.attach(outer)


def _decision_of(context: Any) -> Approve | Reject | None:
    """Return what a person has decided about a call that waited; None if nobody has."""
    try:
        response = context.interrupt(_APPROVAL).response
    except InterruptException:
        return None
    return Approve() if default_evaluate(response) else Reject("A person has rejected the call.")


async def _events(work: Callable[[Emit], Awaitable[None]]) -> AsyncGenerator[Any, None]:
    """Yield what `work` emits while it runs in a task, so that what it makes current is not current for the reader."""
    queue: asyncio.Queue[Any] = asyncio.Queue()
    end = object()

    async def produce() -> None:
        try:
            await work(queue.put_nowait)
        finally:
            queue.put_nowait(end)

    task = asyncio.create_task(produce())
    try:
        while (event := await queue.get()) is not end:
            yield event
        await task
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
