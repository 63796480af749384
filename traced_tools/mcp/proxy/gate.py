"""The gate through which calls of tools pass: each is a run, with spans, policies, approvals and the audit trail."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    ElicitRequestFormParams,
    ElicitResult,
)
from opentelemetry import context as otel_context

from traced_tools.core.canonical import canonical_text
from traced_tools.core.conversation import NOT_RUN
from traced_tools.core.enums import McpTransport
from traced_tools.core.messages import ToolCall
from traced_tools.core.state_key import StateKey
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import McpCallLost, McpError, McpRequestError, McpToolError
from traced_tools.mcp.client_approver import ClientApprover, answer_in
from traced_tools.mcp.dispatcher import PROPAGATORS
from traced_tools.mcp.pinning import PinFile
from traced_tools.mcp.proxy.client_message import ClientFacts, ClientMessage
from traced_tools.mcp.proxy.forwarded_tool import RUN
from traced_tools.mcp.proxy.json_text import with_members
from traced_tools.mcp.proxy.server_tools import PinGuard, ServerTools
from traced_tools.mcp.request_states import LIFETIME, RequestStates
from traced_tools.mcp.scopes import McpEndpoint, McpRequestScope, McpServerScope
from traced_tools.mcp.sdk_logs import silence_sdk
from traced_tools.mcp.served_calls import CallRunner, client_actors, continued_trace
from traced_tools.mcp.server import NEEDS_FORMS
from traced_tools.models.base import CallIdAssigner
from traced_tools.observe import names
from traced_tools.observe.failures import error_type
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions
from traced_tools.observe.sanitize import safe_identifier
from traced_tools.tools.advice import ToolAdvice
from traced_tools.tools.toolset import NO_TOOLS

_LOG = logging.getLogger(__name__)
_HAS_MODES: Final = "2025-11-25"
"""The first revision whose elicitations have a mode."""
_MOST_HELD: Final = 1000
"""How many calls that wait for an approval can keep the inputs that they had for the server."""
_UNKNOWN: Final = f"{NOT_RUN}the server lists no tool of that name."
"""What a model reads, as servers tell it: in a result, and not by an error of the protocol."""


class ConnectionLost(Exception):
    """The connection to the server ended before it answered."""


@dataclass(frozen=True)
class ServerAnswer:
    """What a server answers to a request.

    Args:
        data: the message as it came.
        value: its value.
    """

    data: bytes = field(repr=False)
    value: Mapping[str, Any] = field(repr=False)


class Peers(Protocol):
    """The client that makes a call, and the way to the server."""

    facts: ClientFacts
    transport: McpTransport
    """How the client is connected."""
    principal: str | None
    """On whose behalf the calls of the client are."""
    can_be_asked: bool
    """Whether the client can be sent a request while its call waits."""

    async def forward(self, message: ClientMessage, data: bytes) -> ServerAnswer:
        """Send a request of the client to the server, and return the answer; raises `ConnectionLost`."""

    async def list_tools(self, message: ClientMessage) -> Sequence[Any]:
        """Have the server list all of its tools.

        Args:
            message: the request of the client that needs them.

        Raises:
            ConnectionLost, McpError: if it can't.
        """

    async def elicit(self, message: ClientMessage, params: Mapping[str, Any], seconds: float) -> Any:
        """Ask the user of the client, and return the result; raises `MCPError`."""


class Gate:
    """Decides about the calls of all clients of a server.

    Args:
        name: the configured name of the server, which telemetry and the audit trail have as that of the agent as well.
        endpoint: the server.
        advisors: advisors in any order, such as of a policy and the audit trail.
        pins: the file of pinned tools; None to pin none.
        telemetry: which telemetry to emit, and to which providers.
    """

    def __init__(
        self,
        name: str,
        endpoint: McpEndpoint,
        *,
        advisors: Iterable[ToolAdvice] = (),
        pins: PinFile | None = None,
        telemetry: TelemetryOptions | None = None,
    ) -> None:
        self.name = name
        self.tools = ServerTools(name, pins)
        self._endpoint = endpoint
        self._telemetry = telemetry or TelemetryOptions()
        guards = () if pins is None else (PinGuard(self.tools),)
        self._calls = CallRunner(name, (*guards, *advisors), self._telemetry)
        self._states = RequestStates(StateKey.configured(None))
        self._held: dict[str, Mapping[str, str | None]] = {}
        silence_sdk()

    async def answer(self, message: ClientMessage, peers: Peers) -> bytes:
        """Return the answer to a call of a tool: that of the server, or a refusal."""
        facts = peers.facts.of(message)
        request_id = message.value.get("id")
        with continued_trace(message.meta) as ambient:
            run = RunTelemetry(self._telemetry, self.name)
            scope = McpServerScope(run, peers.transport, names.TOOLS_CALL, request_id, facts.version, ambient)
            with scope:
                try:
                    return await _Call(self, message, peers, facts, scope).answer()
                except MCPError as error:
                    scope.refused(error.code)
                    return message.error(error.code, error.message, error.data)
                except McpError as error:  # the tools can't be listed; its text names the server
                    _LOG.error("a call of a tool failed: %s", error)
                except ConnectionLost:
                    pass
                except Exception as error:  # whose text may have content
                    _LOG.error("a call of a tool failed: %s", error_type(error))
                scope.refused(INTERNAL_ERROR)
                return message.error(INTERNAL_ERROR, "the request failed")

    async def listed(self, request: ClientMessage, result: Mapping[str, Any], peers: Peers) -> bytes | None:
        """Learn the tools of a list that the server has sent; return the answer instead, if it must not pass.

        Args:
            request: the client's request for the list.
            result: the server's result.
            peers: the client, and the way to the server.
        """
        tools, descriptions = self.tools, result.get("tools")
        is_whole = request.params.get("cursor") is None and result.get("nextCursor") is None
        if not isinstance(descriptions, list):
            return None
        try:
            if tools.is_pinned and not is_whole:  # a first page alone would be taken for all tools
                await tools.refresh(lambda: peers.list_tools(request))
            if tools.problem is None or is_whole:
                tools.learn(descriptions, is_whole=is_whole)
        except McpError as error:
            return request.error(INTERNAL_ERROR, str(error))
        except ConnectionLost:
            return request.error(INTERNAL_ERROR, "the request failed")
        return None if tools.problem is None else request.error(INTERNAL_ERROR, str(tools.problem))

    def hold(self, state: str, inputs: Mapping[str, str | None]) -> None:
        """Keep the inputs for the server of a call that waits for an approval."""
        if len(self._held) >= _MOST_HELD:
            del self._held[next(iter(self._held))]
        self._held[state] = inputs


class _Call:
    """One call of a tool, from the client's request to the answer."""

    def __init__(
        self, gate: Gate, message: ClientMessage, peers: Peers, facts: ClientFacts, scope: McpServerScope
    ) -> None:
        self._gate = gate
        self._message = message
        self._peers = peers
        self._facts = facts
        self._scope = scope
        self._answer: ServerAnswer | None = None
        self._inputs: Mapping[str, str | None] | None = None

    async def answer(self) -> bytes:
        """Return the answer; raises `MCPError` for an error that answers the call."""
        message, gate, params = self._message, self._gate, self._message.params
        name = params.get("name")
        if message.key is None:
            raise MCPError(INVALID_REQUEST, "Invalid Request: the id of a call must be a text or a number")
        if not isinstance(name, str):
            raise MCPError(INVALID_PARAMS, "the name of the tool must be a text")
        tools = await gate.tools.find(name, self._list_tools)
        self._scope.calls(names.UNKNOWN_TOOL if tools is None else name)
        approver = self._approver()
        token = RUN.set(self._run)
        try:
            result = await gate._calls.run(
                ToolCall(name, message.arguments_text, id=CallIdAssigner().assign(None)),
                NO_TOOLS if tools is None else tools,
                self._peers.principal,
                client_actors(self._facts.name),
                approver,
                names=gate.tools.names,
            )
        finally:
            RUN.reset(token)
        return self._answer_of(result, approver)

    def _answer_of(self, result: ToolResult, approver: ClientApprover) -> bytes:
        message = self._message
        if self._answer is not None:
            return self._record(self._answer)
        if result.outcome is not None:
            raise ConnectionLost
        if result.pending is not None and approver.required is not None:
            required = approver.required
            if required.request_state is not None:
                self._gate.hold(required.request_state, self._server_inputs())
            return message.result(required.model_dump(by_alias=True, mode="json", exclude_none=True))
        if approver.is_state_invalid:
            raise MCPError(INVALID_PARAMS, "Invalid or expired requestState")
        if approver.cannot_ask and self._facts.is_modern:
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, result.content, NEEDS_FORMS)
        self._scope.tool_failed()
        text = _UNKNOWN if result.decision == "unknown_tool" else result.content
        kind = {"resultType": "complete"} if self._facts.is_modern else {}
        return message.result({**kind, "content": [{"type": "text", "text": text}], "isError": True})

    def _record(self, answer: ServerAnswer) -> bytes:
        """Record on the span how the server answered, and return the answer as it came."""
        if (code := _error_code(answer.value)) is not None:
            self._scope.refused(code)
        elif _is_error(answer.value):
            self._scope.tool_failed()
        return answer.data

    # Approvals.

    def _approver(self) -> ClientApprover:
        facts, peers, params = self._facts, self._peers, self._message.params
        states = self._gate._states if facts.can_elicit and facts.is_modern else None
        can_wait = facts.can_elicit and not facts.is_modern and peers.can_be_asked
        state, responses = params.get("requestState"), params.get("inputResponses")
        is_ours = isinstance(state, str) and (
            state in self._gate._held or (states is not None and states.issued(state))
        )
        answer = answer_in(responses) if is_ours and isinstance(responses, dict) else None
        if is_ours and answer is not None:
            self._inputs = self._gate._held.pop(str(state), {})
        return ClientApprover(
            peers.principal,
            elicit=self._elicit if can_wait else None,
            states=states,
            answer=_elicited(answer),
            state=str(state) if is_ours else None,
        )

    def _server_inputs(self) -> Mapping[str, str | None]:
        """Return the texts of the inputs that the client sends to the server with this call, if it does."""
        if self._inputs is not None:
            return self._inputs
        return {key: self._message.params_text(key) for key in ("inputResponses", "requestState")}

    async def _elicit(self, params: ElicitRequestFormParams) -> ElicitResult:
        body = params.model_dump(by_alias=True, mode="json", exclude_none=True)
        if self._facts.version < _HAS_MODES:
            body.pop("mode", None)
        result = await self._peers.elicit(self._message, body, LIFETIME)
        return ElicitResult.model_validate(result, by_name=False)

    # The way to the server.

    async def _list_tools(self) -> Sequence[Any]:
        return await self._peers.list_tools(self._message)

    async def _run(self, arguments: str) -> dict[str, Any]:
        """Pass the call on, and return the server's result; raises `McpError` for any other answer."""
        gate, name = self._gate, self._message.params["name"]
        run = RunTelemetry(gate._telemetry, gate.name)
        request_id = safe_identifier(str(self._message.value["id"]))
        scope = McpRequestScope(run, gate._endpoint, names.TOOLS_CALL, name, request_id, self._facts.version)
        with scope:
            data = self._forwarded_data(arguments)
            try:
                self._answer = answer = await self._peers.forward(self._message, data)
            except ConnectionLost:
                raise McpCallLost(gate.name, f"was lost during a call of {name}, which may have run") from None
            if (code := _error_code(answer.value)) is not None:
                scope.refused(code)
                problem = f"refused a call of its tool {name} with the code {code}"
                raise McpRequestError(gate.name, problem, _error_text(answer.value), code)
            result = answer.value.get("result")
            if not isinstance(result, dict):
                raise McpRequestError(gate.name, f"answered a call of its tool {name} without a result")
            if _is_error(answer.value):
                scope.tool_failed()
                problem = f"reports that its tool {name} failed"
                raise McpToolError(gate.name, problem, _result_text(result) or problem)
            return result

    def _forwarded_data(self, arguments: str) -> bytes:
        """Return the message for the server: with the context of the span, and what else must differ."""
        message = self._message
        changes: dict[str, str | None] = {}
        if self._inputs is not None:  # the approval is the gateway's, and of no use to the server
            changes |= {"inputResponses": None, "requestState": None, **self._inputs}
        text = message.arguments_text
        if arguments != text and canonical_text(json.loads(arguments)) != canonical_text(json.loads(text)):
            changes["arguments"] = arguments
        carrier: dict[str, str] = {}
        for propagator in PROPAGATORS:
            propagator.inject(carrier, otel_context.get_current())
        meta: dict[str, str | None] = {
            key: json.dumps(value) for key, value in carrier.items() if message.meta.get(key) != value
        }
        if not changes and not meta:
            return message.data
        text = with_members(message.text, ("params",), changes)
        if isinstance(message.params.get("_meta", {}), dict):
            text = with_members(text, ("params", "_meta"), meta)
        return text.encode("utf-8", "surrogatepass")


def _error_code(answer: Mapping[str, Any]) -> int | None:
    """Return the code of a JSON-RPC error; None for a result."""
    error = answer.get("error")
    if error is None:
        return None
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) else INTERNAL_ERROR


def _error_text(answer: Mapping[str, Any]) -> str | None:
    error = answer["error"]
    text = error.get("message") if isinstance(error, dict) else None
    return text if isinstance(text, str) else None


def _is_error(answer: Mapping[str, Any]) -> bool:
    result = answer.get("result")
    return isinstance(result, dict) and result.get("isError") is True


def _result_text(result: Mapping[str, Any]) -> str:
    blocks = result.get("content")
    texts = [block.get("text") for block in blocks if isinstance(block, dict)] if isinstance(blocks, list) else []
    return "\n".join(text for text in texts if isinstance(text, str))


def _elicited(answer: object) -> ElicitResult | None:
    try:
        return None if answer is None else ElicitResult.model_validate(answer, by_name=False)
    except ValueError:
        return None
