"""Sends the requests of one session to an MCP server, each with one span."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from typing import Any

from mcp.shared.dispatcher import CallOptions, OnNotify, OnNotifyIntercept, OnRequest
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp.shared.transport_context import TransportContext
from mcp_types import RequestId
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.trace import INVALID_SPAN, Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from traced_tools.mcp.messages import UnreadableMessage
from traced_tools.mcp.results import describe_unreadable_blocks
from traced_tools.mcp.scopes import McpEndpoint, McpRequestScope
from traced_tools.mcp.sdk_functions import with_globals
from traced_tools.observe import names
from traced_tools.observe.run_telemetry import current_telemetry

LISTEN = "subscriptions/listen"
PROPAGATORS = (TraceContextTextMapPropagator(), W3CBaggagePropagator())


def _inject_trace_context(meta: dict[str, Any]) -> None:
    """Add the trace context to the `_meta` of a request, in the W3C formats that the specification names."""
    for propagator in PROPAGATORS:
        propagator.inject(meta)


@contextmanager
def _no_span(*_: object, **__: object) -> Iterator[Span]:
    yield INVALID_SPAN


# The SDK has no setting for its spans, whose status quotes the server.
send_without_span = with_globals(
    JSONRPCDispatcher.send_raw_request, otel_span=_no_span, inject_trace_context=_inject_trace_context
)


class TracedDispatcher(JSONRPCDispatcher[TransportContext]):
    """Sends requests, each with a span of the current run, and reports when the connection has ended.

    The stream of `subscriptions/listen` has no span, because it stays open as long as the session.

    Args:
        read_stream: what the server sends.
        write_stream: takes the messages to the server.
        endpoint: the server.

    Attributes:
        protocol_version: the agreed revision of the protocol; None before there is one.
        has_ended: whether the connection has ended.
        calls: how many calls of tools wait for their answer.
    """

    def __init__(self, read_stream: Any, write_stream: Any, endpoint: McpEndpoint) -> None:
        super().__init__(read_stream, write_stream)
        self._endpoint = endpoint
        self._ids = count(1)
        self.protocol_version: str | None = None
        self.has_ended = False
        self.calls = 0

    async def send_raw_request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        opts: CallOptions | None = None,
        *,
        _related_request_id: int | str | None = None,
    ) -> dict[str, Any]:
        """Send a request and return the result; raises `MCPError`."""
        if method == LISTEN:
            listened: dict[str, Any] = await send_without_span(self, method, params, opts)
            return listened
        tool = str((params or {}).get("name")) if method == names.TOOLS_CALL else None
        request_id, telemetry = next(self._ids), current_telemetry(None)
        scope = McpRequestScope(telemetry, self._endpoint, method, tool, request_id, self.protocol_version)
        options: CallOptions = {**(opts or {}), "request_id": request_id}
        is_call = tool is not None
        self.calls += is_call
        try:
            with scope:
                try:
                    result: dict[str, Any] = await send_without_span(self, method, params, options)
                except MCPError as error:
                    scope.refused(error.code)
                    raise
                if self.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    result.setdefault("resultType", "complete")  # as the specification reads it; the SDK refuses it
                if is_call:
                    describe_unreadable_blocks(result)
                    if result.get("isError") is True:
                        scope.tool_failed()
        finally:
            self.calls -= is_call
        return result

    async def _dispatch(self, item: Any, *arguments: Any) -> None:
        """Route what the server sends, and end the requests whose answer cannot be read."""
        if isinstance(item, UnreadableMessage):
            for request_id in self._unanswered_requests(item):
                self._resolve_pending(request_id, item.error())
        else:
            await super()._dispatch(item, *arguments)

    def _unanswered_requests(self, message: UnreadableMessage) -> Collection[RequestId]:
        """Return the requests that a message answers: without an id, the only one that waits."""
        waiting = [request_id for request_id in self._pending if isinstance(request_id, int)]
        if message.is_answer and not message.ids and len(waiting) == 1:
            return waiting
        return message.ids

    def _dispatch_notification(self, *arguments: Any) -> None:
        """Ignore a progress that is not a float: the SDK would end the session with all of its calls."""
        with suppress(OverflowError):
            super()._dispatch_notification(*arguments)

    async def run(
        self,
        on_request: OnRequest,
        on_notify: OnNotify,
        on_notify_intercept: OnNotifyIntercept | None = None,
        **keywords: Any,
    ) -> None:
        """Read what the server sends until the connection ends."""
        try:
            await super().run(on_request, on_notify, on_notify_intercept, **keywords)
        finally:
            self.has_ended = True
            self.on_ended()

    def on_ended(self) -> None:
        """Called when the connection has ended; the session replaces it."""
