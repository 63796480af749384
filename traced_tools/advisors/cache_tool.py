"""The advisor that answers repeated tool calls from a cache."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from traced_tools.advisors.tool_patterns import ToolPatterns
from traced_tools.core.checks import expect, expect_callable, expect_whole
from traced_tools.core.expiring import ExpiringStore
from traced_tools.core.identity_cache import IdentityCache
from traced_tools.core.tool_definition import ToolAnnotations, ToolDefinition
from traced_tools.core.tool_result import ToolResult
from traced_tools.loop.advisor import TOOL_LOOP_ORDER, Advisor
from traced_tools.tools.callback import running_parts
from traced_tools.tools.invocation import CallNext, ToolInvocation


def principal_of(call: ToolInvocation) -> Hashable:
    """Return the principal of the call's run, with which a `CacheToolAdvisor` keeps results apart by default."""
    return call.context.principal


class CacheToolAdvisor(Advisor):
    """Answers a call of a chosen tool with the result of an equal earlier call, without running the tool.

    Calls are equal if they have the same tool (function, definition and source), the same validated arguments and the
    same scope. Methods of two objects are two tools, and so are two custom `ToolCallback` objects. Only successful
    results are kept. Calls that require approval, or have an approval, always run. Equal calls that run at the same
    time all run.

    A cached result has the decision `answered`, with the advisor's name, in telemetry and in the audit trail. The model
    reads the text and the images of the earlier result; its `value` is None.

    Args:
        tools: names of tools, and patterns, in which `*` stands for any characters, `?` for one, `[ab]` for one of
            several. A pattern chooses only tools with `ToolAnnotations(read_only=True)`. To cache any other tool, pass
            its full name. A name that no tool of the run has is logged once.
        seconds: how long a result is kept.
        max_results: the maximum number of results. If there are more, the oldest one is dropped.
        scope: returns with whom a call shares results. By default, runs of the same principal share them, and so do
            all runs without a principal. A tool that reads its `ToolContext` needs a scope with what the tool reads. A
            tool that asks for input should not be cached.
        name: the advisor's name in telemetry. It is a metric label, so use a fixed name.
        order: the position among the advisors, by default inside the audit advisor and the policy, which see each call,
            and outside `RetryToolAdvisor`.

    Raises:
        TypeError: if an argument has a wrong type.
        ValueError: if `tools` is empty, `seconds` is not above 0, or `max_results` is below 1.
    """

    def __init__(
        self,
        tools: str | Sequence[str],
        *,
        seconds: float = 300.0,
        max_results: int = 1000,
        scope: Callable[[ToolInvocation], Hashable] = principal_of,
        name: str = "cache_tool",
        order: int = TOOL_LOOP_ORDER + 120,
    ) -> None:
        expect_whole("max_results", max_results, 1)
        expect_callable("scope", scope)
        expect("name", name, str, "a str")
        expect_whole("order", order, -sys.maxsize)
        self.name = name
        self.order = order
        self._tools = ToolPatterns(tools, _is_read_only)
        self._scope = scope
        self._results: ExpiringStore[Hashable, ToolResult] = ExpiringStore(seconds, max_results)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        """Answer the call from the cache, or pass it on and keep its result."""
        if call.requires_approval or not self._tools.choose(call):
            return await call_next(call)
        key = (self._scope(call), call.metadata.source, _definition(call.definition), *_runs(call), call.arguments)
        if (entry := self._results.get(key)) is not None:
            return replace(call.answered(entry.content), images=entry.images, cut=entry.cut, ends_run=entry.ends_run)
        result = await call_next(call)
        if result.ok and result.decision == "allowed":  # an approval is for one call
            self._results.put(key, replace(result, value=None))
        return result

    def __repr__(self) -> str:
        return f"<CacheToolAdvisor {self.name!r}: {self._tools!r}, {len(self._results)} results, order {self.order}>"


class _Same:
    """Is equal only for the same object. It keeps the object alive, so that no other object gets its id."""

    __slots__ = ("_item",)

    def __init__(self, item: object) -> None:
        self._item = item

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._item is other._item

    def __hash__(self) -> int:
        return id(self._item)


def _runs(call: ToolInvocation) -> tuple[_Same, ...]:
    """Return what runs the tool of a call: a function, the method of an object, or a custom tool."""
    parts = (None,) if call.callback is None else running_parts(call.callback)
    return tuple(map(_Same, parts))


def _is_read_only(annotations: ToolAnnotations) -> bool:
    return annotations.read_only is True


_definition: IdentityCache[ToolDefinition, str] = IdentityCache(ToolDefinition.model_dump_json)
