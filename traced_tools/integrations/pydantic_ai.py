"""Runs of pydantic-ai's agents, with the spans, events, policies and audit records of a `ChatClient`'s runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Final, Self, Unpack
from urllib.parse import urlsplit

from pydantic import ValidationError
from pydantic_core import to_jsonable_python

from traced_tools.core.approval import Approve, Reject
from traced_tools.core.messages import AssistantMessage
from traced_tools.core.options import NO_OPTIONS
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata
from traced_tools.core.tool_input import InputRequest, PendingInput
from traced_tools.errors import ConfigurationError, InputRequired
from traced_tools.integrations.framework_tool import FrameworkTool, never_run
from traced_tools.integrations.handled_tools import guarded
from traced_tools.integrations.joining import join, lasting, leave
from traced_tools.models.base import ChatResponse
from traced_tools.observe.manual.model_call import ManualModelCall
from traced_tools.observe.manual.run import ManualRun, RunSettings
from traced_tools.observe.manual.run import run as new_run
from traced_tools.tools.schema.arguments import ArgumentValidationError
from traced_tools.tools.toolset import NO_TOOLS, ToolSet

try:
    from pydantic_ai import (
        AgentRunResult,
        ApprovalRequired,
        CallDeferred,
        CallToolsNode,
        ModelRequestNode,
        ModelRetry,
        RunContext,
        ToolApproved,
        ToolDenied,
        ToolFailed,
    )
    from pydantic_ai.capabilities import AbstractCapability
    from pydantic_ai.capabilities.abstract import AgentNode, NodeResult
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart, ToolReturnPart
    from pydantic_ai.models import Model, ModelRequestContext, ModelRequestParameters, StreamedResponse
    from pydantic_ai.models.wrapper import WrapperModel
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import ToolDefinition as AgentTool
except ImportError:
    raise ConfigurationError("agents of pydantic-ai need an extra: pip install 'traced_tools[pydantic-ai]'") from None

from traced_tools.integrations.pydantic_ai_messages import (  # it imports pydantic-ai, too
    PieceReader,
    call_of,
    definition_of,
    input_of,
    messages_of,
    metadata_of,
    offer_of,
    options_of,
    response_of,
    text_of,
)

NO_ANSWER: Final = ChatResponse(AssistantMessage())
_QUESTION: Final = InputRequest(key="deferral", method="elicitation/create", params={})
"""Stands for what a tool waits for that defers its call itself."""


class TracedRuns(AbstractCapability[Any]):
    """A capability that observes each run of an agent of pydantic-ai, and decides about its tool calls.

        agent = Agent("openai:gpt-5", capabilities=[TracedRuns(audit=trail, advisors=[policy])])

    That of a single run, `agent.run(..., capabilities=[...])`, takes the place of the agent's.

    An agent that begins in the block of `observe.run` takes part in that run, with the settings of the run. An agent
    that a tool begins has a run of its own, nested in that of the tool.

    Args:
        settings: what observes and decides about each run; see `observe.run`.
    """

    id: str | None = "traced_tools"

    def __init__(self, **settings: Unpack[RunSettings]) -> None:
        self._settings = lasting(settings)
        self._under_way: ManualRun | None = None
        self._refused: dict[str, str] = {}
        self._awaiting: set[str] = set()

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[Any]]) -> AbstractCapability[Any]:
        """Return the last of several capabilities of an agent, since a call has one record."""
        return capabilities[-1]

    async def for_run(self, ctx: RunContext[Any]) -> Self:
        """Return the capability of one run."""
        capability = copy(self)
        capability._refused, capability._awaiting = {}, set()
        return capability

    async def wrap_run(
        self, ctx: RunContext[Any], *, handler: Callable[[], Awaitable[AgentRunResult[Any]]]
    ) -> AgentRunResult[Any]:
        """Begin and end the run, or take part in the one around it."""
        if (outer := join()) is not None:
            self._under_way = outer
            try:
                return await handler()
            finally:
                leave(outer)
        name = None if ctx.agent is None else ctx.agent.name
        settings: RunSettings = {"conversation_id": ctx.conversation_id, **self._settings}
        run = new_run(
            name or "assistant",
            model=ctx.model.model_name if ctx.model else "",
            provider=ctx.model.system if ctx.model else "",
            messages=guarded(None, partial(input_of, ctx.messages, ctx.prompt), []),
            **settings,
        ).begin()
        self._under_way = run
        try:
            result = await handler()
        except BaseException as error:
            run.end(error)
            raise
        run.end()
        return result

    async def prepare_tools(self, ctx: RunContext[Any], tool_defs: list[AgentTool]) -> list[AgentTool]:
        """Take over the calls that wait for approval, which pydantic-ai would put aside before any hook sees them."""
        self._awaiting |= {tool.name for tool in tool_defs if tool.kind == "unapproved"}
        return [replace(tool, kind="function") if tool.kind == "unapproved" else tool for tool in tool_defs]

    def get_wrapper_model(self, model: Model[Any]) -> Model[Any] | None:
        """Return the model with a record of each request."""
        return None if self._under_way is None else _ObservedModel(model, self._under_way)

    async def wrap_model_request(
        self,
        ctx: RunContext[Any],
        *,
        request_context: ModelRequestContext,
        handler: Callable[[ModelRequestContext], Awaitable[ModelResponse]],
    ) -> ModelResponse:
        """Begin the iteration of a request, and refuse calls of tools that don't exist."""
        if self._run.advance().limit is not None:
            parameters = request_context.model_request_parameters
            request_context.model_request_parameters = replace(parameters, function_tools=[])
            if request_context.model_settings is not None:
                request_context.model_settings = {**request_context.model_settings, "tool_choice": None}
        response = await handler(request_context)
        await self._refuse_unknown(ctx, response)
        return response

    async def wrap_node_run(
        self,
        ctx: RunContext[Any],
        *,
        node: AgentNode[Any],
        handler: Callable[[AgentNode[Any]], Awaitable[NodeResult[Any]]],
    ) -> NodeResult[Any]:
        """Record what was decided about calls between two runs, and have the model read why a call was refused."""
        if isinstance(node, CallToolsNode):
            await self._record_decisions(node)
        following = await handler(node)
        if isinstance(following, ModelRequestNode):
            for part in following.request.parts:
                if isinstance(part, ToolReturnPart) and part.tool_call_id in self._refused:
                    part.content = self._refused.pop(part.tool_call_id)
        return following

    async def wrap_tool_validate(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: AgentTool,
        args: str | dict[str, Any],
        handler: Callable[[str | dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> dict[str, Any]:
        """Refuse a call with invalid arguments, and decide about a call that another program runs."""
        try:
            validated = await handler(args)
        except (ValidationError, ModelRetry) as failure:
            requested = call_of(call)
            tool = FrameworkTool(
                definition_of(tool_def),
                never_run,
                text_of,
                metadata_of(tool_def),
                reader=_RefusedArguments(requested.arguments, failure),
            )
            result = await self._run.aexecute(ToolSet([tool]), requested)
            if result.decision != "invalid_arguments":
                raise
            raise ModelRetry(result.content) from None
        if tool_def.kind == "external":
            await self._decide_external(ctx, call, tool_def, validated)
        return validated

    async def wrap_tool_execute(
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: AgentTool,
        args: dict[str, Any],
        handler: Callable[[dict[str, Any]], Awaitable[Any]],
    ) -> Any:
        """Decide about a call, and run its tool if it may run."""
        requested = call_of(call)
        reader = _ValidatedArguments(ctx, tool_def.name, requested.arguments, args)
        deferrals: list[ApprovalRequired | CallDeferred] = []

        async def run(arguments: str) -> Any:
            try:
                return await handler(reader.check(arguments))
            except (ApprovalRequired, CallDeferred) as deferral:
                deferrals.append(deferral)
            return await _wait(arguments)

        tool = FrameworkTool(
            definition_of(tool_def),
            run,
            text_of,
            metadata_of(tool_def).replace(requires_approval=tool_def.name in self._awaiting),
            reader=reader,
        )
        decision = Approve() if ctx.tool_call_approved else None
        result = await self._run.aexecute(ToolSet([tool]), requested, decision=decision)
        if result.pending is not None:
            raise deferrals[-1] if deferrals else ApprovalRequired()
        if result.outcome is None and result.decision != "answered":
            return ToolDenied(result.content)
        return tool.outcome(result)

    @property
    def _run(self) -> ManualRun:
        if self._under_way is None:
            raise RuntimeError("the run has not begun: TracedRuns needs an agent that calls wrap_run")
        return self._under_way

    async def _decide_external(
        self, ctx: RunContext[Any], call: ToolCallPart, tool_def: AgentTool, arguments: dict[str, Any]
    ) -> None:
        """Record that a call waits for the program that runs it, or refuse the call."""
        requested = call_of(call)
        reader = _ValidatedArguments(ctx, tool_def.name, requested.arguments, arguments)
        tool = FrameworkTool(definition_of(tool_def), _wait, text_of, metadata_of(tool_def), reader=reader)
        result = await self._run.aexecute(ToolSet([tool]), requested)
        if result.pending is None or not result.pending.has_begun:  # pydantic-ai has no approval of such a call
            raise ToolFailed(result.content)

    async def _refuse_unknown(self, ctx: RunContext[Any], response: ModelResponse) -> None:
        tools = {} if ctx.tool_manager is None else ctx.tool_manager.tools or {}
        for part in response.tool_calls:
            if part.tool_name not in tools:
                functions = [tool.tool_def for tool in tools.values() if tool.tool_def.kind != "output"]
                offer = guarded(self._run, partial(offer_of, functions), NO_TOOLS)
                result = await self._run.aexecute(offer, call_of(part))
                self._refused[part.tool_call_id] = result.content

    async def _record_decisions(self, node: CallToolsNode[Any, Any]) -> None:
        """Record the calls that the application has rejected, or answered, since the run that they waited in."""
        for part in node.model_response.tool_calls:
            decision = (node.tool_call_results or {}).get(part.tool_call_id, "skip")
            if isinstance(decision, ToolDenied):
                tool = FrameworkTool(ToolDefinition(name=part.tool_name), never_run, text_of, ToolMetadata())
                await self._run.aexecute(ToolSet([tool]), call_of(part), decision=Reject(decision.message))
            elif decision != "skip" and not isinstance(decision, ToolApproved):
                self._run.answer(call_of(part), text_of(decision))


class _ObservedModel(WrapperModel):
    """A model whose requests are those of a run."""

    def __init__(self, wrapped: Model[Any], run: ManualRun) -> None:
        super().__init__(wrapped)
        self._run = run

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Record a request and its answer."""
        with self._call(messages, model_settings, model_request_parameters) as call:
            response = await super().request(messages, model_settings, model_request_parameters)
            self._answered(call, response, model_request_parameters)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Record a request and its streamed answer."""
        with self._call(messages, model_settings, model_request_parameters) as call:
            async with super().request_stream(
                messages, model_settings, model_request_parameters, run_context
            ) as response:
                _observe_events(response, call)
                yield response
                self._answered(call, response.get(), model_request_parameters)

    def _call(
        self, messages: list[ModelMessage], settings: ModelSettings | None, parameters: ModelRequestParameters
    ) -> ManualModelCall:
        url = urlsplit(self.base_url or "")
        sent_messages = messages if self._run.may_capture else messages[:1]  # the first one has the instructions
        return self._run.model_call(
            self.model_name,
            self.system,
            messages=guarded(self._run, partial(messages_of, sent_messages, parameters), []),
            tools=guarded(self._run, partial(offer_of, parameters.function_tools), NO_TOOLS),
            options=guarded(self._run, partial(options_of, settings), NO_OPTIONS),
            server_address=url.hostname,
            server_port=url.port or {"https": 443, "http": 80}.get(url.scheme),
        )

    def _answered(self, call: ManualModelCall, response: ModelResponse, parameters: ModelRequestParameters) -> None:
        call.answered(guarded(self._run, partial(response_of, response, parameters), NO_ANSWER))


def _observe_events(response: StreamedResponse, call: ManualModelCall) -> None:
    """Record when each event of a stream arrives."""
    stream = response._get_event_iterator
    response._get_event_iterator = lambda: call.achunks(stream(), read=PieceReader())  # type: ignore[method-assign]


class _ValidatedArguments:
    """The arguments of a call, which pydantic-ai has validated; others, such as an approver's, are validated here."""

    def __init__(self, ctx: RunContext[Any], tool: str, text: str, arguments: dict[str, Any]) -> None:
        self._context = ctx
        self._tool = tool
        self._text = text
        self._arguments = arguments

    def check(self, text: str) -> dict[str, Any]:
        """Return the arguments in JSON text; raise `ArgumentValidationError` if they are invalid."""
        if text == self._text:
            return dict(self._arguments)
        manager = self._context.tool_manager
        tool = None if manager is None or manager.tools is None else manager.tools.get(self._tool)
        if tool is None:
            raise RuntimeError(f"no validator of {self._tool} is known for changed arguments")
        try:
            arguments: dict[str, Any] = tool.args_validator.validate_json(
                text, context=self._context.validation_context
            )
        except ValidationError as error:
            raise ArgumentValidationError.from_pydantic_error(error, text) from None
        return arguments

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the JSON form of the arguments."""
        json_object: dict[str, Any] = to_jsonable_python(value, by_alias=True, serialize_unknown=True)
        return json_object


class _RefusedArguments:
    """The arguments of a call that pydantic-ai has refused."""

    def __init__(self, text: str, failure: ValidationError | ModelRetry) -> None:
        self._text = text
        self._failure = failure

    def check(self, text: str) -> dict[str, Any]:
        """Raise what is wrong with the arguments."""
        if isinstance(self._failure, ValidationError):
            raise ArgumentValidationError.from_pydantic_error(self._failure, self._text)
        raise self._failure

    def as_json(self, value: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the arguments, which nothing has read."""
        return value


async def _wait(arguments: str) -> Any:
    raise InputRequired(PendingInput(requests=(_QUESTION,)))
