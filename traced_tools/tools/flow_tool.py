"""A tool whose function is a flow."""

from __future__ import annotations

from collections.abc import Generator
from time import perf_counter
from typing import Any

from traced_tools.core.tool_context import ToolContext
from traced_tools.flow.flow import Flow, acall, call
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.function import CallFunction, ConvertedValue, convert_value


class FlowToolCallback(FunctionToolCallback):
    """A tool whose function is a flow: what it awaits is performed by the driver of the run.

    So the tool can call a model of the run, blocking or on asyncio. The arguments are those of `FunctionToolCallback`.
    """

    def step(self, arguments: dict[str, Any], context: ToolContext) -> CallFunction:
        """Return the awaitable that runs the flow."""
        arguments = {**arguments, **dict.fromkeys(self._context_parameters, context)}
        return _RunFlow(self._function, arguments, self.convert, False)


class AgentToolCallback(FlowToolCallback):
    """A tool that asks an agent. If the agent's run waits, the call waits with it.

    When the run that the call belongs to is resumed, the tool is called again with `ToolContext.decided`, and resumes
    the agent's run.
    """


class _RunFlow(CallFunction):
    """Runs a flow in the flow that awaits it, and converts the result."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, ConvertedValue]:
        return self._converted().__await__()

    def run(self) -> ConvertedValue:
        return call(self._converted())

    begin = run

    async def arun(self) -> ConvertedValue:
        return await acall(self._converted())

    async def _converted(self) -> ConvertedValue:
        self.began = perf_counter()
        flow: Flow[Any] = self._function(**self._keywords)
        return convert_value(await flow, self._convert)
