"""Runs the calls of MCP clients as the loop runs the calls of a model; each is a run of its own."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanContext, get_current_span

from traced_tools.core.checks import checked_mapping
from traced_tools.core.identity import actor
from traced_tools.core.messages import ToolCall
from traced_tools.core.tool_errors import ANSWER_ERRORS, ToolErrors
from traced_tools.core.tool_result import ToolResult
from traced_tools.errors import ToolExecutionError, ToolNotFoundError
from traced_tools.flow.flow import acall
from traced_tools.mcp.dispatcher import PROPAGATORS
from traced_tools.observe.observations import observe_iteration
from traced_tools.observe.run_telemetry import TelemetryOptions
from traced_tools.observe.typed_events.dispatch import EventListeners
from traced_tools.run.context import RunContext
from traced_tools.tools.advice import (
    ToolAdvice,
    advising_tools,
    approving,
    call_listeners,
    check_advisors,
    event_listeners,
    reviewing,
    sort_advisors,
)
from traced_tools.tools.batch import ExecuteTools
from traced_tools.tools.toolset import SourceNames, ToolSet

_LOG = logging.getLogger(__name__)


class CallRunner:
    """Runs calls with advisors, spans, events and the audit trail.

    Args:
        name: the name of the server, which telemetry and the audit trail have as that of the agent.
        advisors: advisors in any order.
        telemetry: which telemetry to emit, and to which providers.
        tool_errors: the error policy: what clients read when a tool fails.
        tool_context: data for tools.
    """

    def __init__(
        self,
        name: str,
        advisors: Iterable[ToolAdvice],
        telemetry: TelemetryOptions,
        tool_errors: ToolErrors = ANSWER_ERRORS,
        tool_context: Mapping[str, Any] | None = None,
    ) -> None:
        self._advisors = tuple(advisors)
        check_advisors(self._advisors)
        self._name = name
        self._telemetry = telemetry
        self._tool_errors = tool_errors
        self._tool_context = checked_mapping("tool_context", tool_context)

    async def run(
        self,
        tool_call: ToolCall,
        tools: ToolSet,
        principal: str | None,
        actors: tuple[str, ...],
        *call_advisors: ToolAdvice,
        names: Mapping[str, SourceNames] | None = None,
    ) -> ToolResult:
        """Run a call and return its result.

        Args:
            tool_call: the call.
            tools: the tools.
            principal: on whose behalf the call is.
            actors: who makes the call for the principal.
            call_advisors: advisors of this call alone.
            names: the names of all tools by source, if there are more than `tools`.

        Raises:
            MCPError: if the error policy makes the request fail.
        """
        advisors = sort_advisors((*self._advisors, *call_advisors))
        run = RunContext(
            agent=self._name,
            principal=principal,
            actors=actors,
            tool_context=self._tool_context,
            tool_errors=self._tool_errors,
            telemetry=self._telemetry,
            tool_advisors=advising_tools(advisors),
            approvers=approving(advisors),
            listeners=EventListeners(event_listeners(advisors), calls=call_listeners(advisors)),
        )
        try:
            return await acall(_executed(run, tool_call, tools, reviewing(advisors), names or tools.names_by_source))
        except ToolNotFoundError as error:
            raise MCPError(INVALID_PARAMS, str(error)) from None
        except ToolExecutionError as error:  # its text names the tool and the type of its error
            raise MCPError(INTERNAL_ERROR, str(error)) from None
        except SystemExit:  # such as of a tool that parses a command line; asyncio would end the server for all clients
            _LOG.error("the tool %s tried to end the process, which goes on", tool_call.name)
            raise MCPError(INTERNAL_ERROR, "the request failed") from None


async def _executed(
    run: RunContext,
    tool_call: ToolCall,
    tools: ToolSet,
    reviewers: Iterable[ToolAdvice],
    names: Mapping[str, SourceNames],
) -> ToolResult:
    """Return the result of a call, as a flow."""
    with run:
        for advisor in reviewers:
            advisor.review_tools(run, names)
        run.tool_names, run.totals.tool_calls, run.totals.iterations = tools.by_name, 1, 1
        with observe_iteration(run, 0) as observed:
            observed.requested(1)
            return (await ExecuteTools(run, (tool_call,), tools, 0))[0]


@contextmanager
def continued_trace(meta: Mapping[str, Any] | None) -> Iterator[SpanContext | None]:
    """Continue the trace in the `_meta` of a request, and return the span that is current here if it is another one."""
    current = otel_context.get_current()
    carrier = {key: value for key, value in (meta or {}).items() if isinstance(value, str)}
    context = current
    for propagator in PROPAGATORS:
        context = propagator.extract(carrier, context)
    ambient, remote = get_current_span(current).get_span_context(), get_current_span(context).get_span_context()
    otel_context.attach(context)
    try:
        yield ambient if ambient.is_valid and ambient != remote else None
    finally:
        otel_context.attach(current)  # by value: the block may end in another context, where a token is invalid


def client_actors(name: str) -> tuple[str, ...]:
    """Return a client as an actor, by the name that it states; an empty tuple if it states none."""
    return (actor("client", name),) if name else ()
