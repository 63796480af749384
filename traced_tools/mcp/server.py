"""Tools as a server of the Model Context Protocol: each call runs like a call in a model's answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar, copy_context
from functools import partial
from typing import Any, Final, TypedDict, TypeVar

import anyio
from mcp.server.caching import CacheHint
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.direct_dispatcher import DIRECT_TRANSPORT_KIND
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolRequestParams,
    CallToolResult,
    ClientCapabilities,
    ElicitationCapability,
    ElicitRequestFormParams,
    ElicitResult,
    FormElicitationCapability,
    InputRequiredResult,
    ListToolsResult,
    MissingRequiredClientCapabilityErrorData,
    PaginatedRequestParams,
)
from mcp_types.methods import SPEC_CLIENT_METHODS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.trace import SpanContext
from pydantic import ValidationError

from traced_tools._version import __version__
from traced_tools.core.checks import expect, expect_positive
from traced_tools.core.enums import McpTransport
from traced_tools.core.messages import ToolCall
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.errors import (
    ConfigurationError,
    McpError,
    ToolDefinitionError,
)
from traced_tools.flow.flow import acall, call
from traced_tools.flow.workers import finished_future
from traced_tools.mcp.client_approver import ClientApprover, answer_in
from traced_tools.mcp.dispatcher import send_without_span
from traced_tools.mcp.progress import ProgressSender
from traced_tools.mcp.request_states import LIFETIME, RequestStates
from traced_tools.mcp.scopes import McpServerScope
from traced_tools.mcp.sdk_logs import OURS, silence_sdk
from traced_tools.mcp.served_calls import CallRunner, client_actors, continued_trace
from traced_tools.mcp.served_tool import ServedTool
from traced_tools.mcp.toolset import McpToolset
from traced_tools.models.base import CallIdAssigner
from traced_tools.observe import names
from traced_tools.observe.failures import error_type
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions
from traced_tools.tools.advice import (
    ToolAdvice,
)
from traced_tools.tools.selection import ToolSelection
from traced_tools.tools.toolset import ToolSet

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
_CLEAN_UP = 5.0
"""Seconds that a cancelled call has to end."""
_OF_TOOLSETS = (McpError, ToolDefinitionError, ConfigurationError)
"""Errors of listing the tools. Their texts have no content, and name the server that is the cause."""
_REQUEST = ServerRequestContext[Any, Any]
_SCOPE: ContextVar[McpServerScope] = ContextVar("traced_tools_mcp_request")
_HAS_MODES = "2025-11-25"
"""The first revision whose elicitations have a mode."""
NEEDS_FORMS = MissingRequiredClientCapabilityErrorData(
    required_capabilities=ClientCapabilities(elicitation=ElicitationCapability(form=FormElicitationCapability()))
).model_dump(by_alias=True, mode="json", exclude_none=True)
"""The data of the error for a client that can't ask its user."""


class ServerSettings(TypedDict, total=False):
    """The settings of an `McpServer`, which describes them."""

    name: str
    instructions: str | None
    advisors: Iterable[ToolAdvice]
    tool_errors: ToolErrors
    tool_context: Mapping[str, Any] | None
    telemetry: TelemetryOptions | None
    ttl: float


class McpServer:
    """Tools as a server of the Model Context Protocol, for clients of all revisions.

    Each call runs as `ToolCallingManager.execute_tool_calls` runs it, so advisors, time-outs, retries, spans, events
    and the audit trail are those of a call of a model.

    Args:
        tools: what `tools=` of a client accepts, also toolsets of other MCP servers, which are open while the server
            runs.
        name: the name of the server, for clients, and for telemetry and the audit trail as that of the agent.
        instructions: how to use the tools, for the model of the client.
        advisors: advisors in any order. Only their `advise_tool`, `decide_approval`, `review_tools` and
            `on_event` are called.
        tool_errors: the error policy: what clients read when a tool fails.
        tool_context: data for tools.
        telemetry: which telemetry to emit, and to which providers.
        ttl: the seconds for which clients of newer revisions may keep the list of tools.

    Attributes:
        sdk: the server of the SDK, for a transport of your own, or for a client of the SDK in the same process.

    Raises:
        TypeError, ValueError: for an invalid argument.
        ToolDefinitionError: for an object without tools, and for tools with equal names.
    """

    def __init__(
        self,
        tools: object,
        *,
        name: str = "traced_tools",
        instructions: str | None = None,
        advisors: Iterable[ToolAdvice] = (),
        tool_errors: ToolErrors = ANSWER_ERRORS,
        tool_context: Mapping[str, Any] | None = None,
        telemetry: TelemetryOptions | None = None,
        ttl: float = 60.0,
    ) -> None:
        expect("name", name, str, "a str")
        expect("instructions", instructions, (str, type(None)), "a str or None")
        expect("tool_errors", tool_errors, ToolErrors, "a ToolErrors")
        expect("telemetry", telemetry, (TelemetryOptions, type(None)), "a TelemetryOptions or None")
        expect_positive("ttl", ttl)
        self.name = name
        self._selection = ToolSelection(tools)
        self._telemetry = telemetry or TelemetryOptions()
        self._calls = CallRunner(name, advisors, self._telemetry, tool_errors, tool_context)
        self._states = RequestStates(StateKey.configured(None))
        self._served_of = ToolSet()
        self._served: dict[str, ServedTool] = {}
        self._has_providers = bool(self._selection.providers)
        if not self._has_providers:
            self._serve(call(self._selection.tool_set()))
        lifetime = CacheHint(ttl_ms=int(ttl * 1000))
        self.sdk: Server[Any] = Server(
            name,
            version=__version__,
            instructions=instructions,
            cache_hints={"tools/list": lifetime, "server/discover": lifetime},
            lifespan=self._lifespan,
            get_tool_input_schema=self._input_schema,  # else, the SDK lists the tools before each call over HTTP
            on_list_tools=self._list,
            on_call_tool=self._call,
        )
        # replaces the middleware that makes the SDK's spans, because their status quotes errors
        self.sdk.middleware = [self._observe]
        silence_sdk()

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncIterator[None]:
        """Keep the toolsets of other servers open while the server runs."""
        async with AsyncExitStack() as stack:
            for provider in self._selection.providers:
                if isinstance(provider, McpToolset):
                    await stack.enter_async_context(provider)
            yield

    async def _tools(self) -> ToolSet:
        """Return the tools, in order."""
        tools = await acall(self._selection.tool_set())
        self._serve(tools)
        return tools

    def _serve(self, tools: ToolSet) -> None:
        if self._served_of is not tools:  # the selection returns the same object for the same tools
            self._served_of, self._served = tools, {tool.name: tool for tool in map(ServedTool, tools)}

    def _input_schema(self, name: str) -> Mapping[str, Any] | None:
        return self._served[name].input_schema if name in self._served else None

    # Requests.

    async def _observe(self, ctx: _REQUEST, call_next: CallNext) -> HandlerResult:
        """Answer a request in a span. No text of an unexpected error reaches the client or the log."""
        if ctx.request_id is None:  # a notification
            return await call_next(ctx)
        OURS.set(True)
        with continued_trace(ctx.meta) as ambient, self._scope(ctx, ctx.request_id, ambient) as scope:
            _SCOPE.set(scope)  # `_call` reads it there, because the SDK passes handlers the request alone
            try:
                result = await call_next(ctx)
            except MCPError as error:
                scope.refused(error.code)
                raise
            except ValidationError:
                scope.refused(INVALID_PARAMS)
                raise
            except Exception as error:  # its text may have content, and the SDK would send and log it
                problem = error if isinstance(error, _OF_TOOLSETS) else error_type(error)
                _LOG.error("a request of an MCP client failed: %s", problem)
                scope.refused(INTERNAL_ERROR)
            else:
                if isinstance(result, dict) and result.get("isError") is True:
                    scope.tool_failed()
                return result
            raise MCPError(INTERNAL_ERROR, "the request failed")

    def _scope(self, request: _REQUEST, request_id: int | str, ambient: SpanContext | None) -> McpServerScope:
        method = request.method if request.method in SPEC_CLIENT_METHODS else names.OTHER
        transport: McpTransport = "pipe" if request.request is None else "tcp"
        run = RunTelemetry(self._telemetry, self.name)
        scope = McpServerScope(run, transport, method, request_id, request.protocol_version, ambient)
        if method == names.TOOLS_CALL and (name := str((request.params or {}).get("name"))) in self._served:
            scope.calls(self._served[name].original)
        return scope

    async def _list(self, request: _REQUEST, params: PaginatedRequestParams | None) -> ListToolsResult:
        if params is not None and params.cursor is not None:  # the list has one page, so this server sends no cursor
            raise MCPError(INVALID_PARAMS, "Invalid cursor")
        await _run_in_task(self._tools)
        return ListToolsResult(tools=[tool.described() for tool in self._served.values()])

    async def _call(self, request: _REQUEST, params: CallToolRequestParams) -> CallToolResult | InputRequiredResult:
        is_modern = request.protocol_version in MODERN_PROTOCOL_VERSIONS
        principal, can_elicit = principal_of(request.request), _can_elicit(request)
        approver = ClientApprover(
            principal,
            elicit=_Elicitation(request) if can_elicit and not is_modern else None,
            states=self._states if can_elicit and is_modern else None,
            answer=answer_in(params.input_responses),
            state=params.request_state,
        )
        tools = await _run_in_task(self._tools) if self._has_providers else self._served_of
        tool = self._served.get(params.name)
        _SCOPE.get().calls(names.UNKNOWN_TOOL if tool is None else tool.original)
        name = params.name if tool is None else tool.original
        tool_call = ToolCall(name, params.arguments or {}, id=CallIdAssigner().assign(None))
        execute = partial(self._calls.run, tool_call, tools, principal, _client_actors(request), approver)
        if not _wants_progress(request):
            result = await _run_in_task(execute)
        else:
            async with ProgressSender(request.session).sending() as progress:
                result = await _run_in_task(partial(execute, progress))
        if result.pending is not None and approver.required is not None:
            return approver.required
        if approver.is_state_invalid:
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
        if approver.cannot_ask and is_modern:  # the error names the missing capability, which a result cannot
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, result.content, NEEDS_FORMS)
        if tool is None:
            raise MCPError(INVALID_PARAMS, result.content)
        return tool.result(result, only_objects=not is_modern)


async def _run_in_task(begin: Callable[[], Awaitable[T]]) -> T:
    """Await `begin()` in its own task, outside of the SDK's cancel scopes.

    A cancelled scope of the SDK would also cancel each `await` in the clean-up of the call.
    """
    context = copy_context()
    context.run(OURS.set, False)  # tools may use the SDK themselves, and its log lines are theirs then
    task = asyncio.create_task(finished_future(begin), context=context)
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            # Shielded, because the cancelled scope around the request would end this wait, too.
            with anyio.move_on_after(_CLEAN_UP, shield=True):
                await asyncio.wait([task])
    return task.result().result()


# Callers.

PRINCIPAL: Final = "traced_tools.principal"
"""The key of the caller's name in the scope of an HTTP request."""


def principal_of(request: Any) -> str | None:
    """Return the name of the caller of an HTTP request; None if it has none, or for a request over stdio."""
    return None if request is None else principal_of_scope(request.scope)


def principal_of_scope(scope: Mapping[str, Any]) -> str | None:
    """Return the name of the caller in the scope of an HTTP request; None if it has none."""
    return scope.get(PRINCIPAL)


def _client_actors(request: _REQUEST) -> tuple[str, ...]:
    """Return the client as an actor, by the name that it states; an empty tuple if it states none."""
    params = request.session.client_params
    return client_actors("" if params is None else params.client_info.name)


def _can_elicit(request: _REQUEST) -> bool:
    """Return whether the client can ask its user with a form."""
    capabilities, is_modern = request.session.client_capabilities, request.protocol_version in MODERN_PROTOCOL_VERSIONS
    elicitation = None if capabilities is None else capabilities.elicitation
    if elicitation is None or (elicitation.form is None and elicitation.url is not None):
        return False
    return is_modern or request.session.can_send_request


def _wants_progress(request: _REQUEST) -> bool:
    """Return whether the client has asked for progress, or may have: a client in the same process sends no token."""
    outbound: Any = request.session._request_outbound
    return "progress_token" in (request.meta or {}) or outbound.transport.kind == DIRECT_TRANSPORT_KIND


class _Elicitation:
    """Asks a client of an older revision while its request waits."""

    def __init__(self, request: _REQUEST) -> None:
        self._request = request

    async def __call__(self, params: ElicitRequestFormParams) -> ElicitResult:
        """Return the answer; raises `MCPError`."""
        request = self._request
        outbound: Any = request.session._request_outbound  # to send the request without a span of the SDK
        body = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        if request.protocol_version < _HAS_MODES:
            body.pop("mode")
        answer = await send_without_span(
            outbound._dispatcher,
            "elicitation/create",
            body,
            {"timeout": LIFETIME},
            _related_request_id=request.request_id,
        )
        return ElicitResult.model_validate(answer, by_name=False)
