"""One session with an MCP server: a process or an HTTP client, from its opening to its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from functools import partial
from typing import Any, Final, cast

from mcp.client.session import ClientRequestContext, ClientSession, IncomingMessage
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import x_mcp_header_map
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    UNSUPPORTED_PROTOCOL_VERSION,
    ClientCapabilities,
    CreateMessageRequestParams,
    CreateMessageResult,
    DiscoverResult,
    ElicitationCapability,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    FormElicitationCapability,
    Implementation,
    InputResponse,
    ListRootsResult,
    ListToolsRequest,
    PaginatedRequestParams,
    RequestParams,
    RootsCapability,
    SamplingCapability,
    Tool,
    ToolListChangedNotification,
    UrlElicitationCapability,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry import context as otel_context
from pydantic import ValidationError

from traced_tools._version import __version__
from traced_tools.core.tool_input import InputMethod, InputRequest
from traced_tools.flow.flow import acall
from traced_tools.flow.workers import finished_future, in_thread, release
from traced_tools.mcp.answering import Answering, listed_roots
from traced_tools.mcp.dispatcher import TracedDispatcher
from traced_tools.mcp.listing import ToolPage, read_page
from traced_tools.mcp.questions import Ask, as_json
from traced_tools.mcp.sdk_logs import OURS, silence_sdk
from traced_tools.mcp.transports import Descriptors, Transport
from traced_tools.observe.run_telemetry import current_telemetry, use_telemetry

CLOSED = "Connection closed"
"""The SDK's message for each request when the connection has ended."""
_PROBE_SECONDS = 10.0
"""How long a server may take to answer `server/discover`. Servers of the older era may ignore it."""
_LISTEN_AGAIN = 5.0
"""Seconds between the end of a stream of changes and the next one."""
_LISTEN_FIRST = 1.0
"""Seconds that a list of tools waits for the server's confirmation that it reports changes."""
_CLOSING_SECONDS = 10.0
"""The maximum time that the end of a session may take. Its parts have shorter limits, which may not cover all of it."""
_HANDSHAKE = "handshake"
_UNSUPPORTED: Final = ErrorData(code=INVALID_REQUEST, message="the client does not answer such requests")
_eras: dict[tuple[str, ...], DiscoverResult | str] = {}
"""The agreement of this process with each server: its description, or the handshake of older revisions."""


class EndedByProbe(Exception):
    """The server ended at `server/discover`, as some servers of the older era do."""


class Session:
    """An open session. Its own task opens, holds and ends the connection.

    Args:
        transport: the way to the server.
        answering: answers the questions of the server.
        asks: whether to send `server/discover` to a server that the process doesn't know; otherwise, the session begins
            with the handshake of the older era.

    Attributes:
        client: the session of the SDK, once it is open.
        failure: why the session ended, unless it was closed.
        has_answered: whether the server has answered a request; at first, False for a session that was opened from a
            remembered agreement.
        changes: how often the tools may have changed, as far as the server has reported it.
        reports_changes: whether the server reports when its tools change.
    """

    def __init__(self, transport: Transport, answering: Answering, *, asks: bool = True) -> None:
        self._transport = transport
        self._answering = answering
        self._ask: Ask | None = None
        self._one_call = asyncio.Lock()
        self._asks = asks
        self._dispatcher: TracedDispatcher | None = None
        self._descriptors: Descriptors = tuple
        self._opened = asyncio.Event()
        self._agreed = asyncio.Event()
        self._over = asyncio.Event()
        self._decided_to_listen = asyncio.Event()
        self.client: _Client
        self.failure: BaseException | None = None
        self.changes = 0
        self.reports_changes = False
        self.has_answered = True
        silence_sdk()
        self._task = asyncio.create_task(self._hold(), context=Context())

    async def open(self, seconds: float | None) -> None:
        """Wait until the server has agreed on a revision of the protocol; raises any error, and may be cancelled."""
        # in its own context, because a part of it lasts as long as the session; with the span of the caller
        task = asyncio.create_task(finished_future(lambda: self._agree(seconds)), context=_context_with_span())
        try:
            await asyncio.wait([task], timeout=seconds)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
        if task.cancelled():
            raise TimeoutError("the MCP server did not answer in time")
        task.result().result()

    async def _agree(self, seconds: float | None) -> None:
        await self._opened.wait()
        if self._dispatcher is None:
            assert self.failure is not None
            raise self.failure
        agreement = _eras.pop(self._transport.key, None)  # remembered again only if this session opens
        if isinstance(agreement, DiscoverResult):
            # No request is made here. If the server refuses the first one, `Connection` forgets the agreement.
            self.client.adopt(agreement)
            self.has_answered = False
        elif agreement == _HANDSHAKE or not self._asks:
            await self.client.initialize()
        else:
            await self._negotiate(_PROBE_SECONDS if seconds is None else min(_PROBE_SECONDS, seconds / 2))
        _eras[self._transport.key] = self.client.discover_result or _HANDSHAKE
        self._dispatcher.protocol_version = self.client.protocol_version
        self._agreed.set()

    async def _negotiate(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.client.discover()
        except (MCPError, RuntimeError, ValidationError, TimeoutError) as error:
            if isinstance(error, MCPError) and (error.code, error.message) == (CONNECTION_CLOSED, CLOSED):
                raise EndedByProbe from None
            try:
                await self.client.initialize()
            except MCPError as refusal:
                if refusal.code != UNSUPPORTED_PROTOCOL_VERSION:
                    raise
                # A modern server that was too slow for the first `discover` refuses the handshake.
                await self.client.discover()

    def forget_server(self) -> None:
        """Forget how this process has agreed with the server, so that the next session asks it again."""
        _eras.pop(self._transport.key, None)

    @property
    def is_modern(self) -> bool:
        """Whether the server speaks a revision without handshake."""
        return self.client.protocol_version in MODERN_PROTOCOL_VERSIONS

    @property
    def is_open(self) -> bool:
        """Whether requests can be sent: client and server have agreed, and the connection has not ended."""
        return self._agreed.is_set() and not self._over.is_set()

    @property
    def has_ended(self) -> bool:
        """Whether the connection has ended."""
        return self._over.is_set()

    @property
    def calls(self) -> int:
        """How many calls of tools wait for their answer."""
        return 0 if self._dispatcher is None else self._dispatcher.calls

    async def close(self) -> None:
        """End the session, with the process of its server, and wait until it has ended."""
        self._over.set()
        _, unfinished = await asyncio.wait([self._task], timeout=_CLOSING_SECONDS)
        if unfinished:
            self._task.cancel()

    def leave_to_parent(self) -> None:
        """In a forked child: release the connection, which is the parent's."""
        release(self._descriptors())

    async def _hold(self) -> None:
        OURS.set(True)
        try:
            async with self._transport.open() as (read_stream, write_stream, self._descriptors):
                dispatcher = TracedDispatcher(read_stream, write_stream, self._transport.endpoint)
                dispatcher.on_ended = self._over.set  # type: ignore[method-assign]
                information = Implementation(name="traced_tools", version=__version__)
                async with _Client(
                    self._answering,
                    dispatcher=dispatcher,
                    client_info=information,
                    message_handler=self._on_message,
                    elicitation_callback=self._on_elicitation,
                    sampling_callback=self._on_sampling,
                    list_roots_callback=self._on_roots,
                ) as self.client:
                    self._dispatcher = dispatcher
                    self._opened.set()
                    await self._until_over()
        except BaseException as error:
            self.failure = error
            if not isinstance(error, Exception):
                raise
        finally:
            self._over.set()
            self._opened.set()
            self._decided_to_listen.set()

    async def _until_over(self) -> None:
        # `finished_future` keeps asyncio from logging errors of the task.
        listening = asyncio.create_task(finished_future(self._listen))
        try:
            await self._over.wait()
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def list_tools(self, cursor: str | None) -> ToolPage:
        """Return a page of the server's tools; raise an error if it refuses the request or its answer can't be read."""
        result = await self.client.request_page(cursor)
        if self.is_modern and not self.has_answered and "ttlMs" not in result:
            raise ValueError("the process remembers a server of the newer era, and this is an older one")
        return await in_thread(partial(self._read_page, result))  # a page may have thousands of tools

    def _read_page(self, result: dict[str, Any]) -> ToolPage:
        page = read_page(result, is_modern=self.is_modern)
        if self.is_modern:
            self.client.add_header_marks(page.tools)
        return page

    async def until_listening(self) -> None:
        """Wait a short time until the server confirms that it reports changes of the tools, if it does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LISTEN_FIRST):
                await self._decided_to_listen.wait()

    async def _listen(self) -> None:
        """Subscribe to changes of the tools at a server without handshake; other servers report changes unasked."""
        await self._agreed.wait()
        capabilities = self.client.server_capabilities
        announces = (
            capabilities is not None and capabilities.tools is not None and bool(capabilities.tools.list_changed)
        )
        try:
            if self.is_modern and announces:
                await self._receive_changes()
            else:
                self.reports_changes = announces
        finally:
            self._decided_to_listen.set()

    async def _receive_changes(self) -> None:
        while True:
            try:
                async with listen(self.client, tools_list_changed=True) as changes:
                    self.reports_changes = bool(changes.honored.tools_list_changed)
                    self.changes += 1  # changes before the subscription may have been missed
                    self._decided_to_listen.set()
                    async for _ in changes:
                        self.changes += 1
            except SubscriptionLost:
                pass
            except MCPError:
                return  # the server refuses the subscription, or the connection has ended
            finally:
                self.reports_changes = False
            self._decided_to_listen.set()
            await asyncio.sleep(_LISTEN_AGAIN)

    # Requests of an older server.

    @asynccontextmanager
    async def answering(self, ask: Ask) -> AsyncIterator[None]:
        """Let a call answer the questions of the server in the block.

        Requests of an older server don't name the call that they belong to, so its calls wait for each other.
        """
        if self.is_modern or not self._answering.is_registered:
            yield
            return
        async with self._one_call:
            self._ask = ask
            try:
                yield
            finally:
                self._ask = None

    async def _on_elicitation(self, _: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        if self._answering.elicit is None or not isinstance(params, ElicitRequestFormParams):
            return _UNSUPPORTED
        return cast("ElicitResult | ErrorData", await self._answer("elicitation/create", params))

    async def _on_sampling(
        self, _: ClientRequestContext, params: CreateMessageRequestParams
    ) -> CreateMessageResult | ErrorData:
        if self._answering.sample is None:
            return _UNSUPPORTED
        return cast("CreateMessageResult | ErrorData", await self._answer("sampling/createMessage", params))

    async def _on_roots(self, _: ClientRequestContext) -> ListRootsResult | ErrorData:
        roots = self._answering.roots
        if roots is None:
            return _UNSUPPORTED
        if self._ask is None:  # servers ask for them after the handshake
            return await acall(listed_roots(roots))
        return cast("ListRootsResult | ErrorData", await self._answer("roots/list", None))

    async def _answer(self, method: InputMethod, params: RequestParams | None) -> InputResponse | ErrorData:
        if self._ask is None:
            return ErrorData(code=INVALID_REQUEST, message="no tool is called that this could be for")
        return await self._ask(InputRequest(key=method, method=method, params=as_json(params)))

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.changes += 1


class _Client(ClientSession):
    """Declares to a server which questions the application answers.

    A server without a handshake may always ask for input of a user: if no answer is possible now, the run pauses.
    """

    def __init__(self, answering: Answering, **options: Any) -> None:
        super().__init__(**options)
        self._answering = answering

    async def request_page(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of the server's tools as JSON: the SDK refuses a page if one of its tools can't be read."""
        params = None if cursor is None else PaginatedRequestParams(cursor=cursor)
        request = ListToolsRequest(params=params).model_dump(by_alias=True, mode="json", exclude_none=True)
        options: CallOptions = {}
        self._stamp(request, options)
        return await self._dispatcher.send_raw_request(request["method"], request.get("params"), options)

    def add_header_marks(self, tools: Sequence[Tool]) -> None:
        """Let calls of the tools send the arguments that are marked for headers as headers."""
        self._x_mcp_header_maps |= {tool.name: x_mcp_header_map(tool.input_schema) for tool in tools}

    def _build_capabilities(self, version: str) -> ClientCapabilities:
        forms, pages = FormElicitationCapability(), UrlElicitationCapability()
        elicitation: ElicitationCapability | None = None
        if version in MODERN_PROTOCOL_VERSIONS:
            elicitation = ElicitationCapability(form=forms, url=pages)
        elif self._answering.elicit is not None:
            elicitation = ElicitationCapability(form=forms)
        return ClientCapabilities(
            elicitation=elicitation,
            sampling=None if self._answering.sample is None else SamplingCapability(),
            roots=None if self._answering.roots is None else RootsCapability(),
        )


def _context_with_span() -> Context:
    """Return a context with the span and the run's telemetry of the caller, and without its other variables."""
    telemetry, span = current_telemetry(None), otel_context.get_current()
    context = Context()
    context.run(OURS.set, True)
    context.run(use_telemetry, telemetry)
    context.run(otel_context.attach, span)
    return context


def causes_of(error: BaseException | None) -> list[BaseException]:
    """Return the errors in a group of errors, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for part in error.exceptions for cause in causes_of(part)]
    return [] if error is None else [error]
