"""The advisor that retries failed tool calls."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from traced_tools.advisors.tool_patterns import ToolPatterns
from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.tool_definition import RetryPredicate, ToolAnnotations, ToolMetadata
from traced_tools.core.tool_result import ToolResult
from traced_tools.flow.steps import Pause
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.observe.observations import observe_tool_retry
from traced_tools.run.context import current_run
from traced_tools.tools.invocation import CallNext, ToolInvocation
from traced_tools.tools.retries import Retries


class RetryToolAdvisor(Advisor):
    """Retries failed calls of the chosen tools, with the pauses of `@tool(retries=...)`.

    A refused or answered call and a call with invalid arguments are not retried, nor is a call whose pause would end
    after the run's deadline. The call has one span, one decision and one result, that of the last attempt; typed events
    and the audit trail have the outcome of each attempt.

    Args:
        tools: names of tools, and patterns, in which `*` stands for any characters, `?` for one, `[ab]` for one of
            several. A pattern chooses only tools that are safe to repeat according to their `ToolAnnotations`: those
            with `read_only=True` or `idempotent=True`. To retry any other tool, pass its full name. A name
            that no tool of the run has is logged once.
        retries: how many further attempts follow the first.
        retry_on: one or more exception classes that are worth another attempt, or a plain function that takes the
            exception and returns whether it is; a time-out is a `TimeoutError`.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: the position among the advisors, by default inside the audit advisor, the policy and the cache.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if `tools` is empty, `retries` is below 1, or `retry_on` has an item that is no exception class.
    """

    def __init__(
        self,
        tools: str | Sequence[str] = "*",
        *,
        retries: int = 2,
        retry_on: type[Exception] | tuple[type[Exception], ...] | RetryPredicate = (ConnectionError, TimeoutError),
        name: str = "retry_tool",
        order: int = TOOL_LOOP_ORDER + 130,
    ) -> None:
        expect_whole("retries", retries, 1)
        expect("name", name, str, "a str")
        expect_whole("order", order, -sys.maxsize)
        self.name = name
        self.order = order
        self._tools = ToolPatterns(tools, _is_repeatable)
        self._retrying = ToolMetadata(retries=retries, retry_on=retry_on)  # type: ignore[arg-type]  # it takes a class

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Pass the call on, and pass it on again while it fails and a retry is left."""
        is_chosen = self._tools.choose(call)
        result = await call_next(call)
        if result.error is None or not is_chosen:
            return result
        run, retries = current_run(), Retries(self._retrying, call.context.deadline)
        assert run is not None  # a tool is called in a run
        while (pause := retries.pause_after(result.error)) is not None:
            observe_tool_retry(run, call.name, result.error_type or "")
            await Pause(pause)
            result = await call_next(call)
        return result

    def __repr__(self) -> str:
        return (
            f"<RetryToolAdvisor {self.name!r}: {self._tools!r}, {self._retrying.retries} retries, order {self.order}>"
        )


def _is_repeatable(annotations: ToolAnnotations) -> bool:
    return annotations.read_only is True or annotations.idempotent is True
