"""Agents of Microsoft Agent Framework whose runs, model calls and tool calls are observed and decided about.

The framework has hooks for agents, chats and functions. The hook for agents begins a run, the hook for chats begins an
iteration with its model call, and the hook for functions executes a call, whose tool the framework runs.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack

from traced_tools.core.approval import Approve
from traced_tools.core.messages import (
    AssistantMessage,
    FinishReason,
    Message,
    ReasoningPart,
    SystemMessage,
    TextPart,
    ToolCall,
    Usage,
    UserMessage,
)
from traced_tools.core.options import NO_OPTIONS, ChatOptions
from traced_tools.core.tool_definition import ToolDefinition, ToolMetadata, remember_reader
from traced_tools.errors import ConfigurationError, ToolExecutionError
from traced_tools.integrations.joining import lasting
from traced_tools.integrations.model_arguments import ModelArguments
from traced_tools.integrations.sdk_messages import RequestMessages, image_of, user_message
from traced_tools.models.base import ChatChunk, ChatResponse, ToolCallDelta
from traced_tools.models.folding import ChunkFold
from traced_tools.models.parsing import to_json
from traced_tools.observe.manual.run import ManualRun, RunSettings, current_manual_run, run
from traced_tools.tools.toolset import ToolSet

try:
    import agent_framework as maf
except ImportError as error:
    raise ConfigurationError(
        "the integration needs Microsoft Agent Framework: pip install 'traced_tools[agent-framework]'"
    ) from error

if TYPE_CHECKING:
    from traced_tools.core.tool_context import ToolContext
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.observe.manual.model_call import ManualModelCall

Next = Callable[[], Awaitable[None]]
_WHAT: Final = "the integration of Microsoft Agent Framework"
_FINISH_REASONS: Final[Mapping[str, FinishReason]] = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "content_filter": "content_filter",
}
_OPTIONS: Final = ("temperature", "top_p", "max_tokens", "seed", "stop")
_TOOL_OPTIONS: Final = ("tools", "tool_choice", "allow_multiple_tool_calls")


def traced(**settings: Unpack[RunSettings]) -> list[maf.MiddlewareTypes]:
    """Return middleware that makes each run of an agent a run of this package: `Agent(..., middleware=traced())`.

    Each model call is an iteration, and each call of a function is executed as by our own loop: with limits, policies,
    approvals and the audit trail, before the framework runs its tool. Inside `with observe.run(...)`, the agent takes
    part in that run. An agent that is a tool of another agent has a nested run, if both have the middleware.

    Args:
        **settings: the settings of runs, as for `observe.run`.

    Raises:
        TypeError, ValueError: for an invalid setting.
    """
    return [_AgentRuns(lasting(settings)), _ModelCalls(), _FunctionCalls()]


class _AgentRuns(maf.AgentMiddleware):
    """Begins a run around a run of an agent, unless the application has one."""

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings

    async def process(self, context: maf.AgentContext, call_next: Next) -> None:
        outer = current_manual_run()
        if outer is not None and not outer.is_in_tool:
            await call_next()
            return
        agent_run = self._new_run(context)
        if not context.stream:
            with agent_run:
                await call_next()
            return
        agent_run.begin()
        try:
            with agent_run.place():
                await call_next()
        except BaseException as error:
            agent_run.end(error)
            raise
        if isinstance(context.result, maf.ResponseStream):
            _observe_stream(context.result, agent_run, agent_run.end)
        else:
            agent_run.end()

    def _new_run(self, context: maf.AgentContext) -> ManualRun:
        client, options = getattr(context.agent, "client", None), getattr(context.agent, "default_options", {})
        name, model, provider = context.agent.name or "assistant", _model_of(client, options), _provider_of(client)
        settings = self._settings.copy()
        if context.session is not None and settings.get("conversation_id") is None:
            settings["conversation_id"] = context.session.session_id
        new_run = run(name, model=model, provider=provider, **settings)
        if new_run.may_capture:
            try:
                messages = _messages(context.messages, options)
            except Exception as error:
                new_run.telemetry_failed(error, _WHAT)
            else:
                new_run = run(name, model=model, provider=provider, messages=messages, **settings)
        return new_run


class _StreamPlace:
    """The place of the code that makes the next piece of a stream, which ends what is observed with the stream."""

    def __init__(self, place: AbstractContextManager[object], end: Callable[[BaseException | None], object]) -> None:
        self._place = place
        self._end = end

    def __enter__(self) -> Self:
        self._place.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._place.__exit__(kind, error, traceback)
        if error is not None:
            self._end(None if isinstance(error, StopAsyncIteration) else error)


def _observe_stream(
    stream: Any, observed: ManualRun | ManualModelCall, end: Callable[[BaseException | None], object]
) -> None:
    """Run the code of a stream in the place of a run or a model call, which `end` ends once."""
    has_ended = False

    def end_once(error: BaseException | None) -> None:
        nonlocal has_ended
        if not has_ended:
            has_ended = True
            end(error)

    stream.with_pull_context_manager(lambda: _StreamPlace(observed.place(), end_once))
    stream.with_cleanup_hook(lambda: end_once(GeneratorExit()))  # of a stream that the application leaves


class _ModelCalls(maf.ChatMiddleware):
    """Begins an iteration with a model call."""

    async def process(self, context: maf.ChatContext, call_next: Next) -> None:
        of_run = current_manual_run()
        if of_run is None:
            await call_next()
            return
        _answer_calls(of_run, context.messages)
        # also after a limit, when the model is not offered them: the framework still knows them
        tools = [tool for tool in _function_tools(context.options) if not tool.declaration_only]
        if not of_run.is_in_iteration and of_run.advance().limit is not None:
            options = (context.options or {}).items()
            context.options = {name: value for name, value in options if name not in _TOOL_OPTIONS}
        model_call = _model_call(of_run, context)
        if not context.stream:
            with model_call:
                await call_next()
                if isinstance(context.result, maf.ChatResponse):
                    _report(of_run, model_call, context.result)
            await _record_unhooked(of_run, model_call, tools)
            return
        answer = _StreamedAnswer(of_run, model_call.begin(), tools)
        context.stream_transform_hooks.append(answer.arrived)
        try:
            model_call.streaming()
            with model_call.place():
                await call_next()
        except BaseException as error:
            model_call.end(error)
            raise
        if isinstance(context.result, maf.ResponseStream):
            _observe_stream(context.result, model_call, answer.end)
            context.stream_result_hooks.append(answer.record_unhooked)
        else:
            model_call.end()


class _StreamedAnswer:
    """The streamed answer of a model."""

    def __init__(self, of_run: ManualRun, model_call: ManualModelCall, tools: Sequence[maf.FunctionTool]) -> None:
        self._run = of_run
        self._call = model_call
        self._tools = tools
        self._fold = ChunkFold()
        self._updates: list[maf.ChatResponseUpdate] = []
        self._is_read = False

    def arrived(self, update: maf.ChatResponseUpdate) -> maf.ChatResponseUpdate:
        """Record a piece of the answer."""
        try:
            if self._is_read:
                self._call.delivered()
            self._is_read = True
            self._updates.append(update)
            chunk = _chunk(update)
            self._fold.add(chunk)
            self._call.arrived(lambda: self._fold.with_call_identity(chunk))
        except Exception as error:
            self._run.telemetry_failed(error, _WHAT)
        return update

    def end(self, error: BaseException | None) -> None:
        """End the model call, with the answer if it is whole."""
        try:
            if self._is_read:
                self._call.delivered()
            if error is None:
                _report(self._run, self._call, maf.ChatResponse.from_updates(self._updates))
        finally:
            self._call.end(error)

    async def record_unhooked(self, response: maf.ChatResponse[Any]) -> maf.ChatResponse[Any]:
        """Record the calls that reach no hook."""
        await _record_unhooked(self._run, self._call, self._tools)
        return response


class _FunctionCalls(maf.FunctionMiddleware):
    """Executes the calls of functions."""

    async def process(self, context: maf.FunctionInvocationContext, call_next: Next) -> None:
        of_run = current_manual_run()
        if of_run is None:
            await call_next()
            return
        call_id = context.metadata.get("call_id")
        requested = {call.id: call for call in of_run.open_calls}
        call = requested.get(call_id) or ToolCall(context.function.name, _json_of(context.arguments), id=call_id)
        tool = _FunctionOfFramework(context, call_next, call)
        decision = Approve() if "approval_response" in context.metadata else None
        try:
            result = await of_run.aexecute([tool], call, decision=decision)
        except Exception as error:
            if tool.failure is not None and not isinstance(error, ToolExecutionError):
                raise tool.failure from None
            raise maf.MiddlewareFailure("the call could not be executed") from error  # the framework ends its run
        tool.deliver(result)


class _FunctionOfFramework:
    """The tool of one call, which the framework runs.

    Attributes:
        failure: what the framework's tool raised; None if nothing.
    """

    def __init__(self, context: maf.FunctionInvocationContext, call_next: Next, call: ToolCall) -> None:
        is_approved = "approval_response" in context.metadata
        self.definition = _definition(context.function)
        self.metadata = ToolMetadata(requires_approval=is_approved)
        self.failure: Exception | None = None
        self._context = context
        self._call_next = call_next
        self._call = call
        self._content: str | None = None

    async def acall(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Let the framework run the tool, and return what the model reads."""
        arguments = json.loads(tool_input)
        if arguments != _object_in(self._call.arguments):  # an advisor or an approver has changed them
            self._context.arguments = arguments
        self.failure = self._content = None
        try:
            await self._call_next()
        except Exception as failure:
            self.failure = failure
            raise
        self._content = _text_of_result(self._context.result)
        return self._content

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Raise `RuntimeError`: the framework is on asyncio."""
        raise RuntimeError(f"the tool {self.definition.name} runs on asyncio: use acall")

    def deliver(self, result: ToolResult) -> None:
        """Give the framework the result of the call: the tool's own, or the text that stands for it.

        Raises:
            Exception: what the tool raised, if the call has failed.
        """
        if self.failure is not None and result.outcome != "ok":
            raise self.failure
        if result.pending is not None:  # the framework asks the application
            self._context.result = self._approval_request()
        elif result.outcome != "ok" or result.edited is not None or result.content != self._content:
            self._context.result = [maf.Content.from_text(result.part().content)]

    def _approval_request(self) -> maf.Content:
        call_id = self._call.id or ""
        occurrence = self._context.metadata.get("function_call_occurrence_id")
        requested = maf.Content.from_function_call(
            call_id=call_id, name=self._call.name, arguments=self._call.arguments, id=occurrence
        )
        return maf.Content.from_function_approval_request(id=occurrence or call_id, function_call=requested)


def _model_call(of_run: ManualRun, context: maf.ChatContext) -> ManualModelCall:
    options = context.options or {}
    try:
        messages = _messages(context.messages if of_run.may_capture else _first_instructions(context.messages), options)
        tools = ToolSet([_Declared(tool) for tool in _function_tools(options)])
        settings = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
        chat_options = ChatOptions(**settings) if settings else NO_OPTIONS
    except Exception as error:
        of_run.telemetry_failed(error, _WHAT)
        messages, tools, chat_options = [], ToolSet(), NO_OPTIONS
    return of_run.model_call(
        _model_of(context.client, options),
        _provider_of(context.client),
        messages=messages,
        tools=tools,
        options=chat_options,
    )


def _report(of_run: ManualRun, model_call: ManualModelCall, answer: maf.ChatResponse[Any]) -> None:
    """Record an answer; one that can't be read is lost for telemetry, not for the framework."""
    try:
        response = _response(answer)
    except Exception as error:
        of_run.telemetry_failed(error, _WHAT)
    else:
        model_call.answered(response)


def _answer_calls(of_run: ManualRun, messages: Iterable[maf.Message]) -> None:
    """Record the calls of the last answer that the framework has answered itself."""
    open_calls = {call.id: call for call in of_run.open_calls}
    for content in [content for message in messages for content in message.contents] if open_calls else ():
        if content.type == "function_result" and (call := open_calls.pop(content.call_id, None)) is not None:
            of_run.answer(call, _text_of_result(content.result))


async def _record_unhooked(of_run: ManualRun, model_call: ManualModelCall, tools: Sequence[maf.FunctionTool]) -> None:
    """Record the calls that reach no hook: those of unknown functions, and those that the framework lets wait.

    If the run has an approver, such a call is left: the tool of the framework could not run here if it was approved.
    """
    if model_call.response is None:
        return
    by_name = {tool.name: _Declared(tool) for tool in tools}
    for call in model_call.response.tool_calls:
        tool = by_name.get(call.name)
        waits = tool is not None and tool.metadata.requires_approval is True and not of_run.has_approvers
        if (tool is None or waits) and call in of_run.open_calls:
            await of_run.aexecute([*by_name.values()], call)


class _Declared:
    """A function as the model is offered it."""

    def __init__(self, tool: maf.FunctionTool) -> None:
        self.definition = _definition(tool)
        self.metadata = ToolMetadata(requires_approval=tool.approval_mode == "always_require")

    def call(self, tool_input: str, context: ToolContext | None = None) -> str:
        """Raise `RuntimeError`: the framework runs the function."""
        raise RuntimeError(f"the framework runs {self.definition.name}")


def _function_tools(options: Mapping[str, Any] | None) -> list[maf.FunctionTool]:
    tools = (options or {}).get("tools") or ()
    tools = tools if isinstance(tools, list | tuple) else [tools]
    return [tool for tool in tools if isinstance(tool, maf.FunctionTool)]


def _definition(tool: maf.FunctionTool) -> ToolDefinition:
    definition = ToolDefinition(name=tool.name, description=tool.description or "", input_schema=tool.parameters())
    if tool.input_model is not None and not getattr(tool, "_schema_supplied", False):  # the framework has the same rule
        remember_reader(definition, ModelArguments(tool.input_model))
    return definition


def _model_of(client: object, options: Mapping[str, Any] | None) -> str:
    model = (options or {}).get("model") or getattr(client, "model", None)
    return model if isinstance(model, str) else ""


def _provider_of(client: object) -> str:
    provider = getattr(client, "OTEL_PROVIDER_NAME", "")
    return provider if isinstance(provider, str) and provider != "unknown" else ""


def _first_instructions(messages: Sequence[maf.Message]) -> Sequence[maf.Message]:
    """Return the first message if it is of the system: a digest of it is recorded without its content."""
    return [message for message in messages[:1] if message.role == "system"]


def _instructions(options: Mapping[str, Any]) -> list[Message]:
    instructions = options.get("instructions")
    return [SystemMessage(instructions)] if isinstance(instructions, str) and instructions else []


def _messages(messages: Iterable[maf.Message], options: Mapping[str, Any] | None) -> list[Message]:
    """Return the conversation that a model is sent."""
    conversation = RequestMessages()
    conversation.add(*_instructions(options or {}))
    for message in messages:
        match message.role:
            case "system":
                conversation.add(SystemMessage(message.text))
            case "assistant":
                conversation.add(AssistantMessage(_parts([message])))
            case "tool":
                for content in message.contents:
                    if content.type == "function_result":
                        text, is_error = _text_of_result(content.result), content.exception is not None
                        conversation.add_result(content.call_id, text, is_error=is_error)
            case _:
                conversation.add(_user_message(message))
    return conversation.messages


def _user_message(message: maf.Message) -> UserMessage:
    if all(content.type == "text" for content in message.contents):
        return UserMessage(message.text)
    parts = [
        TextPart(content.text or "") if content.type == "text" else image_of(content.uri)
        for content in message.contents
        if content.type == "text" or (content.uri and (content.media_type or "").startswith("image/"))
    ]
    return user_message(parts)


def _parts(messages: Iterable[maf.Message]) -> list[Any]:
    """Return the parts of an answer; the calls are those that the framework executes."""
    parts: list[Any] = []
    for content in [content for message in messages for content in message.contents]:
        match content.type:
            case "text" if content.text:
                parts.append(TextPart(content.text))
            case "text_reasoning" if content.text:
                parts.append(ReasoningPart(content.text))
            case "function_call" if not content.informational_only:
                parts.append(ToolCall(content.name or "", _json_of(content.arguments), id=content.call_id))
    return parts


def _response(response: maf.ChatResponse[Any]) -> ChatResponse:
    reason = response.finish_reason
    return ChatResponse(
        AssistantMessage(_parts(response.messages)),
        usage=_usage(response.usage_details),
        finish_reason=None if reason is None else _FINISH_REASONS.get(reason, "other"),
        id=response.response_id,
        model=response.model,
    )


def _usage(details: Mapping[str, Any] | None) -> Usage | None:
    if not details:
        return None
    return Usage(
        input_tokens=details.get("input_token_count"),
        output_tokens=details.get("output_token_count"),
        cache_read_tokens=details.get("cache_read_input_token_count"),
        cache_write_tokens=details.get("cache_creation_input_token_count"),
        reasoning_tokens=details.get("reasoning_output_token_count"),
    )


def _chunk(update: maf.ChatResponseUpdate) -> ChatChunk:
    contents = update.contents
    calls = [content for content in contents if content.type == "function_call" and not content.informational_only]
    return ChatChunk(
        text="".join([content.text or "" for content in contents if content.type == "text"]),
        reasoning="".join([content.text or "" for content in contents if content.type == "text_reasoning"]),
        tool_calls=tuple([_delta(call) for call in calls]),
    )


def _delta(call: maf.Content) -> ToolCallDelta:
    return ToolCallDelta(id=call.call_id or None, name=call.name or None, arguments=_json_piece(call.arguments))


def _json_piece(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else "" if arguments is None else to_json(arguments)


def _json_of(arguments: object) -> str:
    """Return arguments as JSON text."""
    if isinstance(arguments, str):
        return arguments or "{}"
    if hasattr(arguments, "model_dump"):
        arguments = arguments.model_dump(mode="json")
    return json.dumps(arguments or {}, default=str)


def _object_in(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _text_of_result(result: object) -> str:
    """Return what a model reads of a result of the framework."""
    if isinstance(result, list):
        return "\n".join([content.text or "" for content in result if getattr(content, "type", "") == "text"])
    return result if isinstance(result, str) else "" if result is None else json.dumps(result, default=str)
