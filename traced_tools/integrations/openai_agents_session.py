"""The runs of an agent of the OpenAI Agents SDK, and what has the SDK call them: its models, tools and handoffs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeVar

from agents import (
    Agent,
    AgentOutputSchemaBase,
    FunctionTool,
    Handoff,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelResponse,
    ModelSettings,
    ModelTracing,
    RunConfig,
    RunHooks,
    RunResultStreaming,
    RunState,
    Tool,
    ToolErrorFormatterArgs,
    TResponseInputItem,
    UserError,
)
from agents._function_tool_arguments import PreparedFunctionArguments
from agents.items import ToolApprovalItem, TResponseStreamEvent
from agents.lifecycle import RunHooksBase
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.run_config import RunOptions
from agents.run_context import RunContextWrapper
from agents.tool_context import ToolContext
from openai.types.responses import Response, ResponseCompletedEvent
from pydantic import ValidationError

from traced_tools.core.approval import Approve, Reject
from traced_tools.core.messages import AssistantMessage, Message, ToolCall
from traced_tools.core.options import NO_OPTIONS
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.integrations.framework_tool import FrameworkTool, never_run
from traced_tools.integrations.handled_tools import guarded
from traced_tools.integrations.joining import join, leave
from traced_tools.integrations.openai_agents_messages import (  # it imports the SDK, too
    EventReader,
    definition_of,
    input_of,
    instructions_in,
    messages_of,
    metadata_of,
    offer_of,
    options_of,
    response_of,
    text_of,
)
from traced_tools.models.base import ChatResponse
from traced_tools.observe.manual.iteration import ManualIteration
from traced_tools.observe.manual.model_call import ManualModelCall
from traced_tools.observe.manual.run import ManualRun, RunSettings
from traced_tools.observe.manual.run import run as new_run
from traced_tools.tools.schema.arguments import ArgumentValidationError, read_json
from traced_tools.tools.schema.json_schema import ArgumentProblem
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

T = TypeVar("T")
Handoffs = list[Handoff[Any, Any]]
Context = RunContextWrapper[Any]
Invoke = Callable[[ToolContext[Any], str], Awaitable[Any]]
_OBSERVED: Final = "__traced_tools_observed__"
"""Marks what observes already: tools, models and handoffs are shared by runs."""
NO_ANSWER: Final = ChatResponse(AssistantMessage())
_NOT_APPROVED: Final = "Tool execution was not approved."


class AgentSession:
    """The run of an agent, and the nested ones of the agents that it hands off to.

    Args:
        settings: what observes and decides about each run.
        agent: the agent that begins.
        start: what it is asked, or the state of a run that goes on.
        options: the options of the run of the SDK.
    """

    def __init__(
        self, settings: RunSettings, agent: Agent[Any], start: object = "", options: RunOptions[Any] | None = None
    ) -> None:
        self._settings = settings
        self._options: RunOptions[Any] = options or {}
        if isinstance(start, RunState) and start._current_agent is not None:
            agent = start._current_agent
        run_config = self._options.get("run_config")
        self._config = run_config if isinstance(run_config, RunConfig) else RunConfig(**(run_config or {}))
        self._refused: dict[str, str] = {}
        self._calls: dict[str, ToolCall] = {}
        self._awaiting: set[str] = set()
        self._turn: ManualIteration | None = None
        _observe_agent(agent)
        self._own_runs: list[ManualRun] = []
        self._outer = join()
        self.run = self._outer or self._begin(agent, guarded(None, partial(input_of, start), []))
        if isinstance(start, RunState):
            self._go_on(start)

    def __enter__(self) -> AgentSession:
        self._token = SESSION.set(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        SESSION.reset(self._token)
        self.end(error)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Make the session current; an error that leaves the block ends it."""
        token = SESSION.set(self)
        try:
            yield
        except BaseException as error:
            self.end(error)
            raise
        finally:
            SESSION.reset(token)

    def end(self, error: BaseException | None) -> None:
        """End the runs that the session has begun, the innermost first."""
        runs = self._own_runs if self._outer is None else [self._outer, *self._own_runs]
        for outer, inner in reversed([*pairwise(runs)]):
            inner.end(error)
            outer.answered_by(inner)
        if self._outer is None:
            runs[0].end(error)
        else:
            leave(self._outer)

    def end_with_task(self, result: RunResultStreaming, task: asyncio.Task[Any]) -> None:
        """End the session as the task of a stream has ended."""
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self.record_interruptions(result.interruptions)
        self.end(error)

    @property
    def options(self) -> RunOptions[Any]:
        """The options of the run of the SDK, whose models and refusals are those of the session."""
        config = self._config
        observed_config = replace(
            config,
            model=_observed(config.model) if isinstance(config.model, Model) else config.model,
            model_provider=_SessionProvider(config.model_provider),
            tool_error_formatter=partial(_format_error, config.tool_error_formatter),
        )
        hooks = self._options.get("hooks")
        if hooks is None or isinstance(hooks, RunHooksBase):  # the SDK refuses others
            hooks = _Hooks(hooks)
        return {**self._options, "run_config": observed_config, "hooks": hooks}

    @property
    def decides(self) -> bool:
        """Whether an approver of the run is asked about the calls that require approval."""
        return self.run.has_approvers

    def begin_turn(
        self, tools: list[Tool], handoffs: Handoffs, settings: ModelSettings
    ) -> tuple[list[Tool], Handoffs, ModelSettings]:
        """Begin the iteration of a model call, unless the call repeats one that failed; return what to offer.

        Raises:
            LoopLimitExceeded: if the run has reached a limit, and its last iteration is over.
        """
        for tool in tools:
            if isinstance(tool, FunctionTool):
                _observe_tool(tool)
        for handoff in handoffs:
            _observe_handoff(handoff)
        if self._turn is None or self._turn.response is not None:  # otherwise, the SDK repeats a call that failed
            self._turn = self.run.advance()
        if self._turn.limit is None:
            return tools, handoffs, settings
        return [], [], replace(settings, tool_choice=None, parallel_tool_calls=None)

    def answered(self, call: ManualModelCall, answer: ModelResponse | Response, model: str) -> None:
        """Record the answer of a model."""
        response = call.answered(guarded(self.run, partial(response_of, answer, model), NO_ANSWER))
        self._calls = {requested.name: requested for requested in reversed(response.tool_calls)}

    async def refuse_unknown(self, tools: list[Tool], handoffs: Handoffs) -> None:
        """Refuse the calls of the last answer that name no tool."""
        tool_names = {tool.name for tool in tools} | {handoff.tool_name for handoff in handoffs}
        response = self.run.response
        for call in () if response is None else response.tool_calls:
            if call.name not in tool_names:
                offer = guarded(self.run, partial(offer_of, tools, handoffs), NO_TOOLS)
                result = await self.run.aexecute(offer, call)
                self._refused[str(call.id)] = result.content

    async def invoke(self, tool: FunctionTool, invoke: Invoke, context: ToolContext[Any], arguments: str) -> Any:
        """Decide about a call, and run its tool if it may run."""
        reader = _Arguments(invoke, context.tool_name)

        async def run(text: str) -> Any:
            context._function_tool_arguments = reader.prepared(text)
            if not tool._is_agent_tool:
                return await invoke(context, text)
            with AgentSession(self._settings, tool._agent_instance, options=self._options):
                return await invoke(context, text)

        observed = FrameworkTool(
            definition_of(tool).replace(name=context.tool_name),
            run,
            text_of,
            metadata_of(tool).replace(requires_approval=context.tool_call_id in self._awaiting),
            reader=reader,
        )
        is_approved = context.is_tool_approved(context.tool_name, context.tool_call_id) is True
        call = ToolCall(context.tool_name, arguments, id=context.tool_call_id)
        result = await self.run.aexecute(ToolSet([observed]), call, decision=Approve() if is_approved else None)
        return observed.outcome(result)

    async def hand_off(
        self,
        handoff: Handoff[Any, Any],
        invoke: Callable[..., Awaitable[Any]],
        context: Context,
        text: str,
    ) -> Any:
        """Decide about a handoff, and begin the run of the agent that it goes to."""
        agents: list[Any] = []

        async def run(arguments: str) -> Any:
            agent = await invoke(context, text)
            _observe_agent(agent)
            agents.append(self._begin(agent))
            agents.append(agent)
            return agent

        tool = FrameworkTool(
            definition_of(handoff), run, handoff.get_transfer_message, ToolMetadata(), reader=_AnyArguments()
        )
        call = self._calls.get(handoff.tool_name) or ToolCall(handoff.tool_name, text or "{}")
        result = await self.run.aexecute(ToolSet([tool]), call)
        tool.outcome(result)
        if result.outcome is None:
            raise UserError(f"the handoff {handoff.tool_name} was refused: {result.decision}")
        self.run, agent = agents[-2:]  # those of the last attempt
        self._turn = None
        return agent

    def record_interruptions(self, interruptions: list[ToolApprovalItem]) -> None:
        """Record the calls that the SDK has put aside until somebody approves them."""
        for item in interruptions:
            if not self.decides and _is_function_call(item):
                self.run.execute(_tool_of(item, requires_approval=True), _call_of(item))

    def requires_approval(self, call_id: str) -> None:
        """Record that the SDK would wait for an approval of a call, about which the run decides instead."""
        self._awaiting.add(call_id)

    def _begin(self, agent: Agent[Any], messages: Sequence[Message] = ()) -> ManualRun:
        model, provider = _names_of(self._config.model or agent.model)
        conversation_id = self._options.get("conversation_id") or self._config.group_id
        settings: RunSettings = {"conversation_id": conversation_id, **self._settings}
        run = new_run(agent.name, model=model, provider=provider, messages=messages, **settings).begin()
        self._own_runs.append(run)
        return run

    def _go_on(self, state: RunState[Any]) -> None:
        """Record what was rejected since the run that the state is of."""
        context = state._context
        for item in state.get_interruptions():
            call = _call_of(item)
            if context is None or not _is_function_call(item):
                continue
            if context.is_tool_approved(call.name, str(call.id)) is False:
                reason = context.get_rejection_message(call.name, str(call.id)) or _NOT_APPROVED
                self.run.execute(_tool_of(item), call, decision=Reject(reason))

    def take_refusal(self, call_id: str) -> str | None:
        """Return once what the model reads of a call that names no tool; None for another call."""
        return self._refused.pop(call_id, None)


SESSION: ContextVar[AgentSession | None] = ContextVar("traced_tools_openai_agents", default=None)


class _SessionModel(Model):
    """A model whose calls are those of the current session, if there is one."""

    def __init__(self, wrapped: Model) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # a copy has no attributes yet
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: Handoffs,
        tracing: ModelTracing,
        **conversation: Any,
    ) -> ModelResponse:
        """Record a call of the model and its answer."""
        session = SESSION.get()
        if session is None:
            return await self._wrapped.get_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **conversation
            )
        offered, transfers, settings = session.begin_turn(tools, handoffs, model_settings)
        with self._call(session, (system_instructions, input), settings, offered, transfers) as call:
            response = await self._wrapped.get_response(
                system_instructions, input, settings, offered, output_schema, transfers, tracing, **conversation
            )
            session.answered(call, response, _names_of(self._wrapped)[0])
        await session.refuse_unknown(tools, handoffs)
        return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: str | list[TResponseInputItem],
        model_settings: ModelSettings,
        tools: list[Tool],
        output_schema: AgentOutputSchemaBase | None,
        handoffs: Handoffs,
        tracing: ModelTracing,
        **conversation: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Record a call of the model and its streamed answer."""
        session = SESSION.get()
        if session is None:
            async for event in self._wrapped.stream_response(
                system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **conversation
            ):
                yield event
            return
        offered, transfers, settings = session.begin_turn(tools, handoffs, model_settings)
        with self._call(session, (system_instructions, input), settings, offered, transfers) as call:
            stream = self._wrapped.stream_response(
                system_instructions, input, settings, offered, output_schema, transfers, tracing, **conversation
            )
            async for event in call.achunks(stream, read=EventReader()):
                if isinstance(event, ResponseCompletedEvent):
                    session.answered(call, event.response, _names_of(self._wrapped)[0])
                yield event
        await session.refuse_unknown(tools, handoffs)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        """Return what the model says about a failed request."""
        return self._wrapped.get_retry_advice(request)

    async def close(self) -> None:
        """Close the model."""
        await self._wrapped.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._wrapped._cleanup_on_run_end(owner)

    def _call(
        self,
        session: AgentSession,
        question: tuple[str | None, str | list[TResponseInputItem]],
        settings: ModelSettings,
        tools: list[Tool],
        handoffs: Handoffs,
    ) -> ManualModelCall:
        run, (instructions, items) = session.run, question
        if not run.may_capture:
            items = instructions_in(items)
        return run.model_call(
            *_names_of(self._wrapped),
            messages=guarded(run, partial(messages_of, instructions, items), []),
            tools=guarded(run, partial(offer_of, tools, handoffs), NO_TOOLS),
            options=guarded(run, partial(options_of, settings), NO_OPTIONS),
        )


class _SessionProvider(ModelProvider):
    """A provider of models that record their calls; one object a model, because the SDK knows models by identity."""

    def __init__(self, wrapped: ModelProvider) -> None:
        self._wrapped = wrapped
        self._models: dict[int, Model] = {}

    def get_model(self, model_name: str | None) -> Model:
        """Return a model that records its calls."""
        model = self._wrapped.get_model(model_name)
        return self._models.setdefault(id(model), _observed(model))

    async def aclose(self) -> None:
        """Close the provider."""
        await self._wrapped.aclose()


class _Hooks(RunHooks[Any]):
    """The hooks of the application, and those that wrap what an agent brings before the SDK calls it."""

    def __init__(self, hooks: RunHooks[Any] | None) -> None:
        self._hooks = RunHooks[Any]() if hooks is None else hooks

    async def on_agent_start(self, context: Any, agent: Any) -> None:
        """Observe the model of an agent."""
        await self._hooks.on_agent_start(context, agent)
        _observe_agent(agent)

    async def on_tool_start(self, context: Any, agent: Any, tool: Tool) -> None:
        """Observe a tool whose call a person has approved since the run before, in which the SDK has not listed it."""
        await self._hooks.on_tool_start(context, agent, tool)
        if isinstance(tool, FunctionTool):
            _observe_tool(tool)

    async def on_agent_end(self, context: Any, agent: Any, output: Any) -> None:
        """Call the application's hook."""
        await self._hooks.on_agent_end(context, agent, output)

    async def on_handoff(self, context: Any, from_agent: Any, to_agent: Any) -> None:
        """Call the application's hook."""
        await self._hooks.on_handoff(context, from_agent, to_agent)

    async def on_tool_end(self, context: Any, agent: Any, tool: Tool, result: object) -> None:
        """Call the application's hook."""
        await self._hooks.on_tool_end(context, agent, tool, result)

    async def on_llm_start(
        self, context: Any, agent: Any, system_prompt: str | None, input_items: list[TResponseInputItem]
    ) -> None:
        """Call the application's hook."""
        await self._hooks.on_llm_start(context, agent, system_prompt, input_items)

    async def on_llm_end(self, context: Any, agent: Any, response: ModelResponse) -> None:
        """Call the application's hook."""
        await self._hooks.on_llm_end(context, agent, response)


class _Arguments:
    """Validates the arguments of a call as the tool of the SDK does, once for each time that it runs."""

    def __init__(self, invoke: Invoke, tool: str) -> None:
        self._prepare = getattr(invoke, "__agents_prepare_arguments__", None)
        self._tool = tool
        self._prepared: dict[str, PreparedFunctionArguments] = {}

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments in JSON text; raise `ArgumentValidationError` if they are invalid."""
        value = read_json(text)
        if not isinstance(value, dict):
            raise ArgumentValidationError([ArgumentProblem((), "must be a JSON object", None)])
        if self._prepare is not None:
            try:
                validate: Any = self._prepare(text, self._tool).owner
                self._prepared[text] = validate(text, self._tool)
            except ModelBehaviorError as error:
                if isinstance(error.__cause__, ValidationError):
                    raise ArgumentValidationError.from_pydantic_error(error.__cause__, text) from None
                raise ArgumentValidationError([ArgumentProblem((), "must fit the schema of the tool", None)]) from None
        return value

    def prepared(self, text: str) -> PreparedFunctionArguments | None:
        """Return what the SDK has validated; None if it has to do so."""
        return self._prepared.pop(text, None)

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the arguments, which are JSON."""
        return value


class _AnyArguments:
    """The arguments of a handoff, which the SDK validates."""

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments in JSON text, or none."""
        with suppress(ArgumentValidationError):
            value = read_json(text)
            return value if isinstance(value, dict) else {}
        return {}

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the arguments, which are JSON."""
        return value


def _names_of(model: str | Model | None) -> tuple[str, str]:
    """Return the names of a model and of its provider, as far as the SDK says them."""
    if not isinstance(model, Model):
        return model or "", "openai"
    name = getattr(model, "model", "")
    name = name if isinstance(name, str) else ""
    provider = getattr(model, "provider", None)
    if isinstance(provider, str):
        return name, provider
    is_openai = type(model).__module__.startswith("agents.models.")
    return name, "openai" if is_openai else name.rpartition("/")[0].partition("/")[0]


def _observe_agent(agent: Agent[Any]) -> None:
    """Wrap the model of an agent in place."""
    if isinstance(agent.model, Model):
        agent.model = _observed(agent.model)


def _observed(model: Model) -> Model:
    return model if isinstance(model, _SessionModel) else _SessionModel(model)


def _observe_tool(tool: FunctionTool) -> None:
    """Wrap a tool in place, inside what the SDK makes of its errors, so that an error is an error."""
    invoker = tool.on_invoke_tool
    wrapped: Any = getattr(invoker, "_invoke_tool_impl", invoker)
    if getattr(wrapped, _OBSERVED, False):
        return

    async def invoke(context: ToolContext[Any], arguments: str) -> Any:
        session = SESSION.get()
        if session is None:
            return await wrapped(context, arguments)
        return await session.invoke(tool, wrapped, context, arguments)

    invoke.__dict__.update(getattr(wrapped, "__dict__", {}), **{_OBSERVED: True})
    if wrapped is invoker:
        tool.on_invoke_tool = invoke
    else:
        invoker._invoke_tool_impl = invoke  # type: ignore[attr-defined]  # the SDK's invoker of decorated functions
    if tool.needs_approval is not False:
        tool.needs_approval = partial(_needs_approval, tool.needs_approval)


async def _format_error(formatter: Any, details: ToolErrorFormatterArgs[Any]) -> str | None:
    """Have the model read why a call of an unknown tool was refused; the application formats other errors."""
    session = SESSION.get()
    if details.kind == "tool_not_found" and session is not None:
        refusal = session.take_refusal(details.call_id)
        if refusal is not None:
            return refusal
    text = None if formatter is None else formatter(details)
    return await text if isinstance(text, Awaitable) else text


async def _needs_approval(wrapped: Any, context: Context, arguments: dict[str, Any], call_id: str) -> bool:
    """Return whether the SDK waits for an approval; it does not if an approver of the run decides."""
    needs = wrapped if isinstance(wrapped, bool) else await wrapped(context, arguments, call_id)
    session = SESSION.get()
    if needs and session is not None and session.decides:
        session.requires_approval(call_id)
        return False
    return needs


def _observe_handoff(handoff: Handoff[Any, Any]) -> None:
    """Wrap a handoff in place."""
    wrapped = handoff.on_invoke_handoff
    if getattr(wrapped, _OBSERVED, False):
        return

    async def invoke(context: Context, arguments: str) -> Any:
        session = SESSION.get()
        if session is None:
            return await wrapped(context, arguments)
        return await session.hand_off(handoff, wrapped, context, arguments)

    setattr(invoke, _OBSERVED, True)
    handoff.on_invoke_handoff = invoke


def _tool_of(item: ToolApprovalItem, *, requires_approval: bool = False) -> ToolSet:
    """Return the tool of a call that waits, which does not run here."""
    metadata = ToolMetadata(requires_approval=requires_approval)
    return ToolSet([FrameworkTool(ToolDefinition(name=_call_of(item).name), never_run, text_of, metadata)])


def _is_function_call(item: ToolApprovalItem) -> bool:
    """Return whether a function of this process waits, and not a tool of the provider."""
    return bool(item.tool_name) and _fields_of(item).get("type") == "function_call"


def _fields_of(item: ToolApprovalItem) -> dict[str, Any]:
    raw: Any = item.raw_item
    fields: dict[str, Any] = raw if isinstance(raw, dict) else raw.model_dump()
    return fields


def _call_of(item: ToolApprovalItem) -> ToolCall:
    """Return the call that waits for approval."""
    fields = _fields_of(item)
    call_id = fields.get("call_id") or fields.get("id")
    return ToolCall(item.tool_name or "", fields.get("arguments") or "{}", id=call_id)
