"""A tool whose function is a flow."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from time import perf_counter
from typing import Any

from traced_tools.core.approval import DecidedPause, WaitingRun
from traced_tools.core.tool_context import ToolContext
from traced_tools.core.tool_definition import ToolCallback, ToolMetadata
from traced_tools.errors import ResumeError
from traced_tools.flow.flow import Flow, acall, call
from traced_tools.tools.augmented_tool import own_tool
from traced_tools.tools.callback import FunctionToolCallback
from traced_tools.tools.function import CallFunction, ConvertedValue, convert_value


class FlowToolCallback(FunctionToolCallback):
    """A tool whose function is a flow: what it awaits is performed by the driver of the run.

    So the tool can call a model in the run, blocking or on asyncio. The arguments are those of `FunctionToolCallback`.
    """

    def step(self, arguments: dict[str, Any], context: ToolContext) -> CallFunction:
        """Return the awaitable that runs the flow."""
        arguments = {**arguments, **dict.fromkeys(self._context_parameters, context)}
        return _RunFlow(self._function, arguments, self.convert, False)


class AgentToolCallback(FlowToolCallback):
    """A tool that asks an agent. If the agent's run waits, the call waits with it.

    When the run that the call belongs to is resumed, the tool resumes the agent's run.

    Args:
        ask: the flow that asks the agent.
        resume: the flow that takes the agent's run with the decisions, and the context of the call, and resumes it.
        check: a flow that takes the state of the agent's run, and raises `ResumeError` if it cannot be resumed.
        name: the name that the model uses.
        description: the description that the model reads.
        metadata: the settings for the loop.
    """

    def __init__(
        self,
        ask: Callable[..., Flow[str]],
        resume: Callable[[DecidedPause, ToolContext], Flow[str]],
        check: Callable[[WaitingRun], Flow[None]],
        *,
        name: str,
        description: str,
        metadata: ToolMetadata | None,
    ) -> None:
        super().__init__(ask, name=name, description=description, metadata=metadata)
        self._resume = resume
        self.check = check

    def step_of_pause(self, pause: DecidedPause, context: ToolContext) -> CallFunction:
        """Return the awaitable that resumes the agent's run."""
        return _RunFlow(self._resume, {"pause": pause, "context": context}, self.convert, False)


async def check_nested(nested: Iterable[tuple[str, WaitingRun]], tools: Mapping[str, ToolCallback]) -> None:
    """Check, as a flow, that the agents can resume their runs for which calls wait.

    Args:
        nested: the runs of the agents, each with the name of the tool that has begun it.
        tools: the tools of the run that resumes, by name. A tool that is missing is not checked.

    Raises:
        ResumeError: if a tool does not ask an agent any more, or its agent cannot resume its run.
    """
    for name, run in nested:
        if name not in tools:
            continue
        tool = own_tool(tools[name])
        if not isinstance(tool, AgentToolCallback):
            raise ResumeError(
                f"the tool {name!r} has asked the agent {run.agent!r}, which waits, and asks no agent any more: "
                "make it with `as_tool` of the agent's client"
            )
        await tool.check(run)


class _RunFlow(CallFunction):
    """Runs a flow in the flow that awaits it, and converts the result."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, ConvertedValue]:
        return self._run_and_convert().__await__()

    def run(self) -> ConvertedValue:
        return call(self._run_and_convert())

    begin = run

    async def arun(self) -> ConvertedValue:
        return await acall(self._run_and_convert())

    async def _run_and_convert(self) -> ConvertedValue:
        self.began = perf_counter()
        flow: Flow[Any] = self._function(**self._keywords)
        return convert_value(await flow, self._convert)
