"""The connection to one MCP server: it opens a session when a request needs one, and a new session after a loss.

All of it runs on one event loop: that of an `async with` block, or that in the background. See `offer.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, TypeVar, cast

import httpx2
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    InputRequiredResult,
    InputResponses,
    RequestParamsMeta,
    Tool,
)
from pydantic import TypeAdapter

from traced_tools.core.fork import on_fork
from traced_tools.core.messages import encodable_json
from traced_tools.core.tool_context import OnProgress
from traced_tools.errors import McpCallLost, McpError, McpRequestError, McpUnavailable
from traced_tools.flow.workers import finished_future
from traced_tools.mcp.answering import Answering
from traced_tools.mcp.authentication import RequestNotSent
from traced_tools.mcp.listing import OmittedTool
from traced_tools.mcp.messages import UnreadableMessage
from traced_tools.mcp.questions import Ask
from traced_tools.mcp.scopes import count_omitted_server, count_omitted_tools
from traced_tools.mcp.sdk_logs import OURS, OurCode
from traced_tools.mcp.session import CLOSED, EndedByProbe, Session, causes_of
from traced_tools.mcp.transports import Transport
from traced_tools.observe.failures import error_type
from traced_tools.observe.run_telemetry import current_telemetry

T = TypeVar("T")
_LOG = logging.getLogger(__name__)
MAX_TOOLS = 10_000
"""The default maximum number of tools of a server that are offered."""
_MOST_PAGES = 200
_KEPT_SECONDS = 300.0
"""How long tools are kept of a server that neither reports changes nor states a time."""
_SHOWN_OMITTED = 10
_PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Seconds after each failure in a row in which no further connection is tried."""
_EXPIRED = ("Session terminated", "Session not found")
"""The messages of the SDK's client and servers if the server has ended the session, so that it ignored the request."""
_OF_STATUS = ("Server returned an error response", "Not Found")
"""The messages of the SDK's client for a response with an HTTP error status, unless the server sent a message."""
_OF_ANSWERS = {
    "Unexpected content type": "something that is no message of MCP",  # such as a page for people
    "Redirect to ": "a redirect to another server, which is not followed",
}
"""Descriptions of the answers of servers, by the beginning of the message of the SDK's client."""
_NOT_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout)
_RESULT: TypeAdapter[CallToolResult | InputRequiredResult] = TypeAdapter(CallToolResult | InputRequiredResult)


class _Lost(Exception):
    """The session ended before the answer to a request."""

    def __init__(self, *, was_sent: bool) -> None:
        self.was_sent = was_sent


@dataclass(frozen=True)
class ServerDescription:
    """The description of a server that has listed its tools.

    Args:
        revision: the revision of the protocol that client and server agreed on.
        has_handshake: whether it is one of the older revisions, which agree by a handshake.
        software: the name and the version that the server states, if it does.
        tools: the names of its tools.
    """

    revision: str
    has_handshake: bool
    software: str | None
    tools: tuple[str, ...]


class Connection:
    """The connection to one MCP server.

    Args:
        transport: the way to the server.
        answering: answers the questions of the server.
        timeout: the seconds that the server has for connecting, and for listing its tools; None for no limit.
        max_tools: how many of its tools are offered.
        required: whether `tools` raises an error if the server can't be reached.
    """

    def __init__(
        self,
        transport: Transport,
        answering: Answering,
        timeout: float | None,
        *,
        max_tools: int = MAX_TOOLS,
        required: bool = True,
    ) -> None:
        self.name = transport.endpoint.name
        self.answering = answering
        self._transport = transport
        self._timeout = timeout
        self._max_tools = max_tools
        self._required = required
        self._tools: tuple[Tool, ...] | None = None
        self._problems: list[str] = []
        self._tools_source: tuple[Session, int] | None = None  # the session that listed the tools, and its changes then
        self._listed_at = 0.0
        self._lifetime: float | None = None
        self._failed_lists = 0
        self._next_list = 0.0
        self._failures = 0
        self._next_try = 0.0
        self._why = "cannot be reached"
        self._is_closed = False
        self._reset()
        on_fork(self._leave_to_parent)

    def _leave_to_parent(self) -> None:
        """In a forked child: forget the session, which belongs to an event loop of the parent."""
        if self._session is not None:
            self._session.leave_to_parent()
        self._reset()

    def _reset(self) -> None:
        self._session: Session | None = None
        self._opening = asyncio.Lock()
        self._listing = asyncio.Lock()
        self._listing_task: asyncio.Task[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    # Tools.

    async def tools(self) -> tuple[Tool, ...] | None:
        """Return the tools of the server, in the order in which it lists them; None if a run goes on without them.

        The tools are listed again after a change that the server reports, after their lifetime, and after a new
        connection. If the server can't be reached then, the tools of the list before are returned. While a server that
        is not required can't be reached, it is tried in the background.

        Raises:
            McpError: if the server is required, and its tools were never listed and can't be listed now.
        """
        with OurCode():
            async with self._listing:
                if self.knows_tools:
                    return self._tools
                if self._required or not self._failed_lists:
                    await self._list_in_time()
                elif (self._listing_task is None or self._listing_task.done()) and time.monotonic() >= self._next_list:
                    self._listing_task = self._begin(self._list_in_time, Context())
                if self._tools is None:
                    count_omitted_server(current_telemetry(None), self.name)
                return self._tools

    async def listed_now(self) -> tuple[Tool, ...]:
        """List the tools, even if they are known; raises `McpError`, also for a server that is not required."""
        with OurCode():
            async with self._listing:
                try:
                    async with asyncio.timeout(self._timeout):
                        self._tools = await self._repeat(self._list)
                except TimeoutError as error:
                    failure = self._unavailable(error)
                else:
                    return self._tools
        raise failure

    @property
    def knows_tools(self) -> bool:
        """Whether `tools` needs no request."""
        session = self._session
        if (
            self._tools is None
            or session is None
            or session.has_ended
            or self._tools_source != (session, session.changes)
        ):
            return False
        age = time.monotonic() - self._listed_at
        if self._lifetime is not None:
            return age < self._lifetime
        return session.reports_changes or age < _KEPT_SECONDS

    def forget_tools(self) -> None:
        """Have the tools listed again when they are next needed."""
        if (session := self._session) is not None:
            session.changes += 1  # a list that is being read counts as outdated, too

    async def _list_in_time(self) -> None:
        """List the tools. If that fails, raise if runs need them; otherwise log the failure once per outage."""
        OURS.set(True)
        try:
            async with asyncio.timeout(self._timeout):
                tools = await self._repeat(self._list)
        except (McpError, TimeoutError) as error:
            failure = error if isinstance(error, McpError) else self._unavailable(error)
            if self._tools is None and self._required:
                raise failure from None
            if not self._failed_lists:
                instead = "runs go on without its tools" if self._tools is None else "its tools are those of before"
                _LOG.warning("%s; %s until it lists them; logged once per outage", failure, instead)
            self._next_list = time.monotonic() + _PAUSES[min(self._failed_lists, len(_PAUSES) - 1)]
            self._failed_lists += 1
            return
        self._failed_lists = 0
        if tools != self._tools:  # equal tools keep their object, so that the toolset compares them by identity
            self._tools = tools

    async def _list(self, session: Session) -> tuple[Tool, ...]:
        await session.until_listening()  # else, a change between the list and the subscription would be missed
        began, changes = time.monotonic(), session.changes  # before the request: a change during the list outdates it
        tools: dict[str, Tool] = {}
        omitted: list[OmittedTool] = []
        lifetimes: list[float] = []
        cursor: str | None = None
        cursors: set[str | None] = set()
        while cursor not in cursors and len(tools) <= self._max_tools:
            if len(cursors) == _MOST_PAGES:
                raise McpRequestError(self.name, f"lists its tools on more than {_MOST_PAGES} pages")
            cursors.add(cursor)
            page = await self._request(session, partial(session.list_tools, cursor))
            tools |= {tool.name: tool for tool in page.tools}
            omitted += page.omitted
            lifetimes += [] if page.lifetime is None else [page.lifetime]
            if page.next_cursor is None:
                break
            cursor = page.next_cursor
        self._report_omitted(
            omitted, len(tools) - self._max_tools, repeats=cursor in cursors and page.next_cursor is not None
        )
        self._tools_source, self._listed_at, self._lifetime = (session, changes), began, min(lifetimes, default=None)
        return tuple(islice(tools.values(), self._max_tools))

    def _report_omitted(self, omitted: Sequence[OmittedTool], beyond: int, *, repeats: bool) -> None:
        """Count the tools that are not offered, and log them unless the list before had the same problems."""
        problems = []
        if omitted:
            more = ", …" if len(omitted) > _SHOWN_OMITTED else ""
            first = ", ".join(map(str, omitted[:_SHOWN_OMITTED]))
            problems.append(f"left out, because they cannot be used: {first}{more}")
        if beyond > 0:
            problems.append(f"only the first {self._max_tools} are offered: set max_tools= for more, or filter=")
        if repeats:
            problems.append("the list ends at a cursor that the server repeats")
        telemetry = current_telemetry(None)
        count_omitted_tools(telemetry, self.name, "invalid", len(omitted))
        count_omitted_tools(telemetry, self.name, "limit", beyond)
        if problems and problems != self._problems:
            _LOG.warning("tools of the MCP server %r: %s", self.name, "; ".join(problems))
        self._problems = problems

    async def described(self) -> ServerDescription:
        """Return the description of the server; raises `McpError` if it can't be reached or lists no tools."""
        tools = await self.tools() or ()
        session = await self._ensure_session()
        info, revision = session.client.server_info, session.client.protocol_version
        software = None if info is None else f"{info.name} {info.version}".strip()
        return ServerDescription(str(revision), not session.is_modern, software, tuple(tool.name for tool in tools))

    # Calls.

    async def call(
        self, request: CallToolRequest, *, repeatable: bool, ask: Ask, on_progress: OnProgress | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool and return its result, which may say that the tool failed or asks for input.

        Args:
            request: the request.
            repeatable: whether the call may be repeated if its answer was lost.
            ask: answers the questions of the server during the call.
            on_progress: receives the progress that the server reports; None requests no reports.

        Raises:
            McpUnavailable: if there is no connection.
            McpCallLost: if the connection was lost during the call.
            McpRequestError: if the server refuses the call, or its answer can't be read.
        """

        async def report(progress: float, total: float | None, message: str | None) -> None:
            assert on_progress is not None
            on_progress(progress, total, message)

        progress_callback = None if on_progress is None else report

        async def send(session: Session) -> CallToolResult | InputRequiredResult:
            call = partial(session.client.send_request, request, _RESULT, progress_callback=progress_callback)
            async with session.answering(ask):
                return await self._request(session, call)

        with OurCode():
            return await self._repeat(send, repeatable=repeatable)

    async def _repeat(self, request: Callable[[Session], Awaitable[T]], *, repeatable: bool = True) -> T:
        """Make a request. Make a lost request once more if it was not sent, or if it may be repeated."""
        for is_last in (False, True):
            session = await self._ensure_session()
            try:
                return await request(session)
            except _Lost as loss:
                was_sent = loss.was_sent
            if was_sent and (is_last or not repeatable):
                what = "was lost twice during the call of a tool" if is_last else "was lost during the call of a tool"
                raise McpCallLost(self.name, f"{what}; the call is not repeated")
        raise McpUnavailable(self.name, "cannot be reached")

    async def _request(self, session: Session, send: Callable[[], Awaitable[T]]) -> T:
        try:
            result = await send()
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                raise await self._loss(session, is_over=error.message == CLOSED) from None
            if error.code == INVALID_REQUEST and error.message in _EXPIRED:
                await self._end(session)
                raise _Lost(was_sent=False) from None
            if isinstance(error.data, RequestNotSent):
                raise McpUnavailable(self.name, f"was not sent the request: {error.data}") from None
            await self._doubt(session)
            if isinstance(error.data, UnreadableMessage):
                raise self._unreadable() from None
            answer = self._refusal_text(error)
            raise McpRequestError(
                self.name,
                f"refused a request with {answer}",
                f"{error.message} ({answer.removeprefix('the ')})",
                error.code,
            ) from None
        except (ValueError, RuntimeError):  # raised outside of this block, because their texts quote the answer
            result = None
        if result is None or (session.is_modern and not _has_expected_type(result)):
            await self._doubt(session)
            raise self._unreadable()
        self._failures, session.has_answered = 0, True
        return result

    def _unreadable(self) -> McpRequestError:
        return McpRequestError(self.name, "gave an answer that cannot be read")

    async def _doubt(self, session: Session) -> None:
        """Forget a remembered agreement with the server, and end the session, if its first request has failed."""
        if not session.has_answered:
            session.forget_server()
            await self._end(session)
        self._failures = 0

    async def _loss(self, session: Session, *, is_over: bool) -> _Lost:
        """Return the loss of an answer, and end the session if the connection is over.

        A connection error belongs to one request, and with several requests at once it is unknown to which.
        """
        is_alone = session.calls == 0
        if is_over or session.has_ended:
            await self._end(session)
        causes = causes_of(session.failure)
        never_connected = bool(causes) and all(isinstance(cause, _NOT_SENT) for cause in causes)
        if never_connected:
            self._record_failure()
        return _Lost(was_sent=not (never_connected and is_alone))

    # Sessions.

    async def _ensure_session(self) -> Session:
        if self._session is not None and self._session.is_open:
            return self._session
        opening = self._begin(self._replace_session)
        try:
            await asyncio.wait([opening])
        except BaseException:
            opening.cancel()  # without a wait, because the program of a server may take seconds to end
            raise
        return opening.result().result()

    def _begin(self, begin: Callable[[], Awaitable[T]], context: Context | None = None) -> asyncio.Task[Future[T]]:
        """Begin a task that lasts until `close` at most."""
        task = asyncio.create_task(finished_future(begin), context=context)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _replace_session(self) -> Session:
        async with self._opening:
            if self._session is not None and not self._session.has_ended:
                return self._session
            if self._session is not None:
                await self._end(self._session)
            if self._is_closed:
                raise McpUnavailable(self.name, "is not connected: its toolset is closed")
            seconds = self._next_try - time.monotonic()
            if seconds > 0:
                raise McpUnavailable(self.name, f"{self._why}; the next connection is tried in {seconds:.1f} s")
            try:
                return await self._open_session(asks=self._transport.era == "auto")
            except EndedByProbe:
                return await self._open_session(asks=False)

    async def _open_session(self, *, asks: bool) -> Session:
        # assigned before it is open, so that `close` can end it
        self._session = session = Session(self._transport, self.answering, asks=asks)
        try:
            await session.open(self._timeout)
        except BaseException as error:
            await self._end(session)
            if isinstance(error, EndedByProbe) or not isinstance(error, Exception):
                raise
            self._record_failure()
            raise self._unavailable(error, *causes_of(session.failure)) from None
        if session.has_answered:
            self._failures = 0
        return session

    def _record_failure(self) -> None:
        """Record that the server could not be reached; for some time, no further connection is tried."""
        self._next_try = time.monotonic() + _PAUSES[min(self._failures, len(_PAUSES) - 1)]
        self._failures += 1

    def _unavailable(self, *errors: BaseException) -> McpUnavailable:
        """Return the error for a connection that fails with `errors`, the innermost last."""
        innermost = errors[-1]
        if not isinstance(innermost, MCPError):
            why = error_type(innermost)
        elif isinstance(innermost.data, RequestNotSent):
            why = str(innermost.data)
        elif isinstance(innermost.data, UnreadableMessage):
            why = "it answers with something that cannot be read"
        elif innermost.code == CONNECTION_CLOSED:
            why = _end_of_program(self._transport.exit_status) or "it closed the connection"
        elif self._transport.refusal is not None:
            why = f"it answers with the HTTP status {self._transport.refusal}"
        else:
            why = f"it answers with {self._refusal_text(innermost)}"
        self._why = f"cannot be reached: {why} ({self._transport.place})"
        return McpUnavailable(self.name, self._why)

    def _refusal_text(self, error: MCPError) -> str:
        """Return a description of the server's error that quotes no text of the server."""
        if self._transport.refusal is not None and error.message in _OF_STATUS:
            return f"the HTTP status {self._transport.refusal}"
        if error.code == INVALID_REQUEST:
            for beginning, answer in _OF_ANSWERS.items():
                if error.message.startswith(beginning):
                    return answer
        return f"the error {error.code}"

    async def _end(self, session: Session) -> None:
        if self._session is session:
            self._session = None
        await session.close()

    async def close(self) -> None:
        """End the session and the process of the server; later calls fail."""
        self._is_closed = True
        if self._tasks:
            for task in self._tasks:
                if not task.cancelling():  # a second time, it would not wait for the end of the session
                    task.cancel()
            await asyncio.wait(self._tasks)
        if self._session is not None:
            await self._end(self._session)


def _end_of_program(exit_status: int | None) -> str | None:
    """Return a description of how a program ended by itself; None if it did not."""
    if exit_status is None:
        return None
    return f"it ended with the exit status {exit_status}" if exit_status >= 0 else f"the signal {-exit_status} ended it"


def _has_expected_type(result: Any) -> bool:
    """Return whether the `resultType` of a result is that of the parsed type, and not another one, such as `task`."""
    expected = "input_required" if isinstance(result, InputRequiredResult) else "complete"
    return bool(result.result_type == expected)


def call_request(
    tool: str,
    arguments: dict[str, Any],
    meta: dict[str, Any],
    responses: InputResponses | None = None,
    state: str | None = None,
) -> CallToolRequest:
    """Return the request that calls a tool.

    Args:
        tool: the name that the server uses.
        arguments: the arguments.
        meta: the values of `_meta` in the request.
        responses: the answers to the questions that the server returned before.
        state: the state that the server returned with the questions.
    """
    params = CallToolRequestParams(
        name=tool,
        arguments=encodable_json(arguments),
        _meta=cast("RequestParamsMeta", encodable_json(meta)) if meta else None,
        input_responses=responses,
        request_state=state,
    )
    return CallToolRequest(params=params)
