"""The scope of a request of an MCP client to the tools that this process serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from opentelemetry.trace import SpanContext, SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.sanitize import safe_identifier
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import McpTransport
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.run_telemetry import RunTelemetry


class McpServerScope(Scope):
    """One request of an MCP client: `tools/call {tool}`, `tools/list`.

    The span has no content: arguments and results are on the span of the tool call.

    Args:
        run: the telemetry of the server, whose `agent` is the server's name.
        transport: how the client is connected.
        method: the method of the request, one of the protocol.
        request_id: the id of the request, which the client chooses.
        protocol_version: the revision of the protocol.
        ambient: the span that is current although it isn't the parent; None if there is none.
    """

    openinference = names.SERVED_REQUEST_SPAN.openinference

    def __init__(
        self,
        run: RunTelemetry,
        transport: McpTransport,
        method: str,
        request_id: int | str,
        protocol_version: str,
        ambient: SpanContext | None = None,
    ) -> None:
        self.run = run
        self._transport = transport
        self._method = method
        self._request_id = request_id
        self._protocol_version = protocol_version
        self._ambient = ambient
        self._tool: str | None = None
        self._code: int | None = None

    def __enter__(self) -> Self:
        super().__enter__()
        if self._ambient is not None and self._span is not None:
            self.run.guarded(self._span.add_link, self._ambient)
        return self

    def calls(self, tool: str) -> None:
        """Record which tool is called: one that is served, or `_unknown`. May be called before the scope is entered."""
        self._tool = tool
        if self._span is not None:
            self.run.guarded(self._span.update_name, self.step())

    def refused(self, code: int) -> None:
        """Record the code of the JSON-RPC error with which the request is answered."""
        self._code = code
        self.error_type = str(code)

    def tool_failed(self) -> None:
        """Record that the result says that the tool failed, or did not run."""
        self.error_type = names.TOOL_ERROR

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        attributes: Attributes = {
            names.MCP_METHOD: self._method,
            names.MCP_PROTOCOL_VERSION: self._protocol_version,
            names.JSONRPC_REQUEST_ID: safe_identifier(str(self._request_id)),
            names.NETWORK_TRANSPORT: self._transport,
        }
        put(attributes, names.TOOL_NAME, self._tool)
        put(attributes, names.AGENT_NAME, self.run.agent)
        return self.step(), SpanKind.SERVER, attributes

    def _final_attributes(self) -> Attributes:
        attributes = Attributes()
        put(attributes, names.TOOL_NAME, self._tool)
        put(attributes, names.RPC_STATUS_CODE, None if self._code is None else str(self._code))
        return attributes

    def step(self) -> str:
        """Return the name of the span."""
        return self._method if self._tool is None else names.SERVED_CALL_SPAN.named(self._tool)

    def _owner(self) -> str:
        return self._tool or self._method

    def _record(self, instruments: Instruments) -> None:
        labels: Attributes = {
            names.MCP_METHOD: self._method,
            names.MCP_PROTOCOL_VERSION: self._protocol_version,
            names.NETWORK_TRANSPORT: self._transport,
            **self.run.agent_label,
        }
        put(labels, names.TOOL_NAME, self._tool)
        put(labels, names.RPC_STATUS_CODE, None if self._code is None else str(self._code))
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        instruments.mcp_server_duration.record(self.duration, labels, self._context)
