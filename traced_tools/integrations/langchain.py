"""Agents of LangChain and LangGraph: a middleware whose model calls and tool calls are those of a run."""

from __future__ import annotations

import json
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias, Unpack
from uuid import UUID

from traced_tools.core.approval import Approve, PendingCall, Reject
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.messages import AssistantMessage, Message, ToolCall
from traced_tools.core.tool_input import InputRequest, PendingInput
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ConfigurationError, InputRequired
from traced_tools.integrations.handled_tools import HandledCall, HandledTool, guarded
from traced_tools.integrations.joining import lasting
from traced_tools.models.base import ChatChunk, ChatResponse
from traced_tools.observe.manual.iteration import ManualIteration
from traced_tools.observe.manual.model_call import ManualModel, ManualModelCall
from traced_tools.observe.manual.run import ManualRun, RunSettings, current_manual_run
from traced_tools.observe.manual.run import run as new_run

try:
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse
    from langchain.agents.middleware.human_in_the_loop import ActionRequest, HITLRequest, HITLResponse, ReviewConfig
    from langchain.agents.middleware.types import ToolCallRequest
    from langchain_core.callbacks import BaseCallbackHandler
    from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
    from langchain_core.tools import BaseTool, ToolException
    from langchain_core.tracers.context import register_configure_hook
    from langgraph.config import get_config
    from langgraph.errors import GraphBubbleUp, GraphInterrupt
    from langgraph.types import Command, TracePolicy, interrupt, omit_payload
except ImportError:
    raise ConfigurationError("agents of LangChain need an extra: pip install 'traced_tools[langchain]'") from None

from traced_tools.integrations.langchain_messages import (
    chunk_of,
    definition_of,
    messages_of,
    model_of,
    options_of,
    response_of,
    text_of,
)

Reply: TypeAlias = ToolMessage | Command[Any]


class TracedToolsMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """A middleware for `create_agent`, whose agent then has the spans, metrics, events and records of a `ChatClient`.

        agent = create_agent(model, tools=[...], middleware=[..., TracedToolsMiddleware("planner", audit=trail)])

    Put it last, so that it sees each call as other middlewares have changed it. Each invocation is a run; within a
    `with observe.run(...)` block, the agent takes part in that run. A call that waits for approval interrupts the graph
    as `HumanInTheLoopMiddleware` does, and takes the same decisions. The methods `wrap_tool_call` and `awrap_tool_call`
    are also for the `ToolNode` of a graph of your own.

    Args:
        agent: the agent's name in telemetry. It is a metric label, so use a fixed name.
        settings: those of `observe.run`. The conversation's id is the thread's id by default.

    Raises:
        TypeError, ValueError: for an invalid argument.
    """

    trace_policy = TracePolicy(process_inputs=omit_payload)  # a tracer has the conversation from the model's call

    def __init__(self, agent: str = "assistant", **settings: Unpack[RunSettings]) -> None:
        super().__init__()
        self.tools = []
        self._agent = agent
        self._settings = lasting(settings, agent)
        self._tools = IdentityCache(_handled)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Call the model in an iteration of the run.

        Raises:
            LoopLimitExceeded: if the run has reached a limit, and its last iteration is over.
        """
        graph = self._graph_run(request)
        with graph.model_call(request) as (call, limited_request):
            return graph.answered(call, handler(limited_request))

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """Call the model on asyncio; see `wrap_model_call`."""
        graph = self._graph_run(request)
        with graph.model_call(request) as (call, limited_request):
            return graph.answered(call, await handler(limited_request))

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Reply]) -> Reply:
        """Decide about a call and, if it may run, have the framework run its tool.

        Raises:
            Exception: what the tool raises, unchanged.
        """
        graph, call = self._graph_run(request), _FrameworkCall(request, handler)
        tools = graph.tools_of(request)
        with call:
            result = graph.run.execute(tools, call.requested)
        return call.reply(result)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Reply]]
    ) -> Reply:
        """Decide about a call on asyncio; see `wrap_tool_call`."""
        graph, call = self._graph_run(request), _FrameworkCall(request, handler)
        tools = graph.tools_of(request)
        with call:
            result = await graph.run.aexecute(tools, call.requested)
        return call.reply(result)

    def _graph_run(self, request: ModelRequest[Any] | ToolCallRequest) -> _GraphRun:
        return _GRAPHS.current(partial(self._begin, request))

    def _begin(self, request: ModelRequest[Any] | ToolCallRequest) -> _GraphRun:
        """Return a run for the graph that runs here, or the run by hand in which it takes part."""
        run = current_manual_run()
        if run is not None and not (run.is_in_tool or run.is_in_iteration or _GRAPHS.drive(run)):
            return _GraphRun(run, self._tools, is_own=False)
        settings, info = self._settings, request.runtime.execution_info
        if settings.get("conversation_id") is None and info is not None:
            settings = {**settings, "conversation_id": info.thread_id}
        model = ManualModel()
        messages: list[Message] = []
        if isinstance(request, ModelRequest):
            model, messages = model_of(request.model), guarded(None, partial(_asked, request), [])
        run = new_run(self._agent, model=model.model, provider=model.provider, messages=messages, **settings)
        return _GraphRun(run.begin(), self._tools, is_own=True)


class _GraphRun:
    """The run of one invocation of a graph.

    Args:
        run: the run.
        tools: returns a tool of the framework as the run executes it.
        is_own: whether the run ends with the invocation.
    """

    def __init__(self, run: ManualRun, tools: IdentityCache[BaseTool, HandledTool], *, is_own: bool) -> None:
        self.run: Final = run
        self.is_own: Final = is_own
        self._call: ManualModelCall | None = None
        self._is_streaming = False
        self._tools = tools
        self._offered: list[HandledTool] = []
        self._iteration: ManualIteration | None = None
        self._task_id: str | None = None

    @contextmanager
    def model_call(self, request: ModelRequest[Any]) -> Iterator[tuple[ManualModelCall, ModelRequest[Any]]]:
        """Observe a call of the model; return it with the request, without tools if the run has reached a limit."""
        if self._next_iteration(request).limit is not None:
            request = request.override(tools=[], tool_choice=None)
        tools = {tool.name: tool for tool in request.tools if isinstance(tool, BaseTool)}
        self._offered = [self._tools(tool) for tool in tools.values()]
        model = model_of(request.model)
        with self.run.model_call(
            model.model,
            model.provider,
            messages=guarded(self.run, partial(_asked, request), []),
            tools=self._offered,
            options=options_of(request),
        ) as call:
            self._call, self._is_streaming = call, False
            token = _STREAM.set(self)
            try:
                yield call, request
            finally:
                _STREAM.reset(token)
                self._call = None

    def answered(self, call: ManualModelCall, response: ModelResponse[Any]) -> ModelResponse[Any]:
        """Record and return the answer of the model, with the results that the framework has for its calls."""
        for message in response.result:
            if isinstance(message, AIMessage):
                call.answered(guarded(self.run, partial(response_of, message), ChatResponse(AssistantMessage())))
        self._record_results(response.result)
        return response

    def chunk_arrived(self, read: Callable[[], ChatChunk]) -> None:
        """Record that a chunk of the answer has arrived."""
        if self._call is not None:
            if not self._is_streaming:
                self._is_streaming = True
                self._call.streaming()
            self._call.arrived(read)
            self._call.delivered()

    def tools_of(self, request: ToolCallRequest) -> list[HandledTool]:
        """Return the tools that a call may name: those that the model was offered, and the one that the call names."""
        tools, name = self._offered or [self._tools(tool) for tool in request.runtime.tools], request.tool_call["name"]
        if request.tool is None or any(tool.definition.name == name for tool in tools):
            return tools
        return [*tools, HandledTool(definition_of(request.tool).replace(name=name))]

    def _next_iteration(self, request: ModelRequest[Any]) -> ManualIteration:
        """Return the iteration of a request; another attempt in the same task belongs to the same iteration."""
        info = request.runtime.execution_info
        task_id = None if info is None else info.task_id
        if self._iteration is None or task_id != self._task_id:
            self._record_results(request.messages)
            self._iteration, self._task_id = self.run.advance(), task_id
        return self._iteration

    def _record_results(self, messages: Iterable[BaseMessage]) -> None:
        """Record the calls of the last answer that the framework has answered without their tools."""
        if self._iteration is None or not (calls := self.run.open_calls):
            return
        results = {message.tool_call_id: message for message in messages if isinstance(message, ToolMessage)}
        for call in calls:
            if call.id in results:
                self.run.answer(call, text_of(results[call.id]))


class _GraphRuns(BaseCallbackHandler):
    """The runs of the graphs that run now, which end with them: also if the graph fails or is cancelled anywhere."""

    run_inline = True
    ignore_agent = ignore_chat_model = ignore_custom_event = ignore_retriever = ignore_retry = True

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._runs: dict[UUID, _GraphRun] = {}
        self._parents: dict[UUID, UUID] = {}

    def current(self, begin: Callable[[], _GraphRun]) -> _GraphRun:
        """Return the run of the graph to which the current node belongs, and begin it if there is none."""
        callbacks: Any = get_config()["callbacks"]
        graph_id = self._graph_of(callbacks.parent_run_id)
        with self._lock:  # calls of an answer come at once
            run = self._runs.get(graph_id)
            if run is None:
                run = self._runs[graph_id] = begin()
            return run

    def drive(self, run: ManualRun) -> bool:
        """Return whether a graph drives the run."""
        return any(graph.run is run for graph in self._runs.values())

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """Take note of the graph of a node."""
        if parent_run_id is not None:
            self._parents[run_id] = parent_run_id

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """End the run of a graph."""
        self._end(run_id, None)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """End the run of a graph that has failed, or that was interrupted inside another graph."""
        self._end(run_id, None if isinstance(error, GraphBubbleUp) else error)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        """Record when a chunk of a streamed answer arrives, in the context of the call of the model."""
        graph = _STREAM.get()
        if graph is not None:
            graph.chunk_arrived(partial(chunk_of, chunk, token))

    def _graph_of(self, node_id: UUID) -> UUID:
        return self._parents.get(node_id, node_id)

    def _end(self, run_id: UUID, error: BaseException | None) -> None:
        self._parents.pop(run_id, None)
        graph = self._runs.pop(run_id, None)
        if graph is not None and graph.is_own:
            graph.run.end(error)


_GRAPHS: Final = _GraphRuns()
_STREAM: ContextVar[_GraphRun | None] = ContextVar("traced_tools_stream", default=None)
"""The run whose model is called in the current context."""
_HANDLER: ContextVar[_GraphRuns | None] = ContextVar("traced_tools_graphs", default=_GRAPHS)
register_configure_hook(_HANDLER, inheritable=True)


class _FrameworkCall(HandledCall):
    """One call whose tool LangGraph runs.

    Args:
        request: the call, as the framework passes it.
        handler: runs its tool.

    Attributes:
        requested: the call, as the run executes it.
    """

    def __init__(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> None:
        call = request.tool_call
        self.requested = ToolCall(call["name"], call["args"], call["id"])
        self._request = request
        self._handler = handler
        self._value: Reply | None = None
        self._text = ""
        self._failed: ToolMessage | None = None
        self._signal: Exception | None = None

    def run(self, arguments: str) -> str:
        """Have the framework run the tool with JSON text, and return what the model reads."""
        try:
            return self._text_of(self._handler(self._request_with(arguments)))
        except GraphBubbleUp as signal:
            self._signal = signal
        return self._signalled()

    async def arun(self, arguments: str) -> str:
        """Have the framework run the tool on asyncio; see `run`."""
        try:
            return self._text_of(await self._handler(self._request_with(arguments)))
        except GraphBubbleUp as signal:
            self._signal = signal
        return self._signalled()

    def framework_decision(self, pending: PendingCall) -> Approve | Reject | None:
        """Return the decision with which the graph is resumed; None if the graph is to be interrupted for one."""
        try:
            return ask(pending)
        except Exception as signal:  # an answer that can't be read leaves the call undecided, too
            self._signal = signal
        return None

    def reply(self, result: ToolResult) -> Reply:
        """Return the result to the framework: what its tool returned or raised, or why the call was refused."""
        if self._signal is not None and (result.ok or result.pending is not None):
            raise self._signal
        if result.error is not None and result.outcome is not None:
            if self._failed is not None:
                return self._failed
            raise result.error
        part = result.part()
        if result.ok and self._value is not None:
            is_own = result.edited is None and (result.cut or result.content == self._text)
            return self._value if is_own else with_text(self._value, part.content)
        status: Any = "error" if part.is_error else "success"
        return ToolMessage(part.content, name=result.tool, tool_call_id=self._request.tool_call["id"], status=status)

    def _request_with(self, text: str) -> ToolCallRequest:
        call, arguments = self._request.tool_call, json.loads(text)
        if arguments == call["args"]:
            return self._request
        return self._request.override(tool_call={**call, "args": arguments})

    def _text_of(self, value: Reply) -> str:
        """Return what the model reads of the value; raise an exception if it is the message of a failed tool."""
        self._value, self._text = value, read_of(value)
        self._failed = value if isinstance(value, ToolMessage) and value.status == "error" else None
        if self._failed is not None:
            raise ToolException(self._text)
        return self._text

    def _signalled(self) -> str:
        """Raise what makes the run wait if the tool has interrupted the graph; another signal ends the tool."""
        if isinstance(self._signal, GraphInterrupt):
            question = InputRequest(key="interrupt", method="elicitation/create", params={})
            raise InputRequired(PendingInput(requests=(question,)))
        return ""


def _handled(tool: BaseTool) -> HandledTool:
    return HandledTool(definition_of(tool))


def read_of(value: Any) -> str:
    """Return the text that the model reads of what the framework returned for a call."""
    if isinstance(value, ToolMessage):
        return text_of(value)
    if isinstance(value, Command):
        messages = value.update.get("messages", ()) if isinstance(value.update, Mapping) else ()
        return "\n".join(text_of(message) for message in messages if isinstance(message, ToolMessage))
    return "\n".join(map(read_of, value)) if isinstance(value, list) else ""


def with_text(value: Reply, text: str) -> Reply:
    """Return what the framework returned for a call, with another text for the model."""
    if isinstance(value, ToolMessage):
        return value.model_copy(update={"content": text})
    if isinstance(value, Command) and isinstance(value.update, Mapping):
        messages = [
            with_text(message, text) if isinstance(message, ToolMessage) else message
            for message in value.update.get("messages", ())
        ]
        return replace(value, update={**value.update, "messages": messages})
    return value


def ask(pending: PendingCall) -> Approve | Reject:
    """Interrupt the graph until a person has decided about a call, and return the decision."""
    review: ReviewConfig = {"action_name": pending.tool, "allowed_decisions": ["approve", "edit", "reject"]}
    action: ActionRequest = {"name": pending.tool, "args": pending.args, "description": pending.reason or ""}
    response: HITLResponse = interrupt(HITLRequest(action_requests=[action], review_configs=[review]))
    (decision,) = response["decisions"]
    match decision["type"]:
        case "approve":
            return Approve()
        case "edit":
            return Approve(arguments=decision["edited_action"]["args"])
        case "reject":
            return Reject(decision.get("message") or "A person has rejected the call.")
    raise ValueError("the decision must be 'approve', 'edit' or 'reject'")


def _asked(request: ModelRequest[Any]) -> list[Message]:
    """Return what the model is asked, with its instructions."""
    system = () if request.system_message is None else (request.system_message,)
    return messages_of([*system, *request.messages])
