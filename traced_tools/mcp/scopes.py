"""The scopes of requests between an MCP client and a server: this process is one of the two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from opentelemetry.trace import SpanContext, SpanKind

from traced_tools.observe import names
from traced_tools.observe.attributes import Attributes, put
from traced_tools.observe.sanitize import limit_cardinality, safe_identifier
from traced_tools.observe.scopes.scope import Scope

if TYPE_CHECKING:
    from traced_tools.core.enums import McpOmission, McpTransport
    from traced_tools.observe.instruments import Instruments
    from traced_tools.observe.meter import Measurement
    from traced_tools.observe.run_telemetry import RunTelemetry


@dataclass(frozen=True)
class McpEndpoint:
    """An MCP server, as spans name it.

    Args:
        name: the configured name of the server.
        transport: how the server is reached.
        address: the host of a server behind HTTP.
        port: its port.
    """

    name: str
    transport: McpTransport
    address: str | None = None
    port: int | None = None


class McpScope(Scope):
    """One request between an MCP client and a server, on either side."""

    _code: int | None = None

    def refused(self, code: int) -> None:
        """Record the code of the JSON-RPC error that answers the request."""
        self._code = code
        self.error_type = str(code)

    def tool_failed(self) -> None:
        """Record that the result says that the tool failed, or did not run."""
        self.error_type = names.TOOL_ERROR

    def _final_attributes(self) -> Attributes:
        attributes = Attributes()
        put(attributes, names.RPC_STATUS_CODE, None if self._code is None else str(self._code))
        return attributes


class McpRequestScope(McpScope):
    """One request to an MCP server: `tools/call {tool}`, `tools/list`.

    The span has no content: arguments and results are on the span of the tool call, whose tool decides about them.

    Args:
        run: the telemetry of the run that makes the request, or of code outside a run.
        endpoint: the server.
        method: the method of the request.
        tool: the tool that is called, by the name that the server uses; None for other requests.
        request_id: the id of the request.
        protocol_version: the agreed revision of the protocol; None before there is one.
    """

    openinference = names.MCP_REQUEST_SPAN.openinference

    def __init__(
        self,
        run: RunTelemetry,
        endpoint: McpEndpoint,
        method: str,
        tool: str | None,
        request_id: int | str,
        protocol_version: str | None,
    ) -> None:
        self.run = run
        self._endpoint = endpoint
        self._method = method
        self._target = tool
        self._request_id = request_id
        self._protocol_version = protocol_version

    def _opening(self) -> tuple[str, SpanKind, Attributes]:
        endpoint, attributes = self._endpoint, Attributes()
        attributes[names.MCP_METHOD] = self._method
        attributes[names.JSONRPC_REQUEST_ID] = str(self._request_id)
        attributes[names.NETWORK_TRANSPORT] = endpoint.transport
        attributes[names.TOOL_SOURCE] = endpoint.name
        put(attributes, names.MCP_PROTOCOL_VERSION, self._protocol_version)
        put(attributes, names.TOOL_NAME, self._target)
        put(attributes, names.SERVER_ADDRESS, endpoint.address)
        put(attributes, names.SERVER_PORT, endpoint.port)
        put(attributes, names.AGENT_NAME, self.run.agent)
        return self.step(), SpanKind.CLIENT, attributes

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
        server = self._endpoint.name
        labels: Attributes = {**self.run.agent_label, names.MCP_METHOD: self._method}
        labels[names.NETWORK_TRANSPORT] = self._endpoint.transport
        labels[names.TOOL_SOURCE] = server
        put(labels, names.MCP_PROTOCOL_VERSION, self._protocol_version)
        if self._target is not None:
            labels[names.TOOL_NAME] = limit_cardinality(names.TOOL_NAME, server, self._target, names.MAX_MCP_TOOLS)
        if self._code is not None:
            labels[names.RPC_STATUS_CODE] = limit_cardinality(names.RPC_STATUS_CODE, server, str(self._code))
        if self.error_type is not None:
            labels[names.ERROR_TYPE] = self.error_label()
        return [(instruments.mcp_client_duration, self.duration, labels)]

    def _owner(self) -> str:
        return self._endpoint.name

    def step(self) -> str:
        """Return the name of the span."""
        return self._method if self._target is None else names.MCP_CALL_SPAN.named(self._target)


class McpServerScope(McpScope):
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
        attributes = super()._final_attributes()
        put(attributes, names.TOOL_NAME, self._tool)
        return attributes

    def step(self) -> str:
        """Return the name of the span."""
        return self._method if self._tool is None else names.SERVED_CALL_SPAN.named(self._tool)

    def _owner(self) -> str:
        return self._tool or self._method

    def _measurements(self, instruments: Instruments) -> list[Measurement]:
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
        return [(instruments.mcp_server_duration, self.duration, labels)]


def count_omitted_tools(run: RunTelemetry, server: str, omission: McpOmission, tools: int) -> None:
    """Count tools that a server lists and that are not offered."""
    if run.instruments is not None and tools > 0:
        labels: Attributes = {names.TOOL_SOURCE: server, names.MCP_OMISSION: omission}
        run.guarded(run.instruments.mcp_tools_omitted.add, tools, labels)


def count_omitted_server(run: RunTelemetry, server: str) -> None:
    """Count a run that goes on without the tools of a server."""
    if run.instruments is not None:
        labels: Attributes = {**run.agent_label, names.TOOL_SOURCE: server}
        run.guarded(run.instruments.mcp_servers_omitted.add, 1, labels)
