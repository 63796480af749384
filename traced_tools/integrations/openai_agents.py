"""Runs of the OpenAI Agents SDK, with the spans, events, policies and audit records of a `ChatClient`'s runs."""

from __future__ import annotations

from functools import partial
from typing import TypeVar, Unpack

from traced_tools.errors import ConfigurationError
from traced_tools.integrations.joining import lasting
from traced_tools.observe.manual.run import RunSettings

try:
    from agents import Agent, Runner, RunResult, RunResultStreaming, RunState, TResponseInputItem
    from agents.run_config import RunOptions
except ImportError:
    raise ConfigurationError(
        "agents of the OpenAI Agents SDK need an extra: pip install 'traced_tools[openai-agents]'"
    ) from None

from traced_tools.integrations.openai_agents_session import AgentSession  # it imports the SDK, too

T = TypeVar("T")


class TracedRunner:
    """Runs agents as `agents.Runner` does, observes each run, and decides about its tool calls.

        runner = TracedRunner(audit=trail, advisors=[policy])
        result = await runner.run(agent, "Pay the invoice.")

    A run that begins in the block of `observe.run` takes part in that run, with the settings of the run. An agent that
    is a tool, or that a handoff goes to, has a run of its own, nested in that of the agent before.

    The tools, handoffs and models of the agents are wrapped in place; in runs of `agents.Runner` they do what they did.

    Args:
        settings: what observes and decides about each run; see `observe.run`.
    """

    def __init__(self, **settings: Unpack[RunSettings]) -> None:
        self._settings = lasting(settings)

    async def run(
        self,
        starting_agent: Agent[T],
        input: str | list[TResponseInputItem] | RunState[T],
        **options: Unpack[RunOptions[T]],
    ) -> RunResult:
        """Run an agent on asyncio; the arguments are those of `Runner.run`."""
        with AgentSession(self._settings, starting_agent, input, options) as session:
            result = await Runner.run(starting_agent, input, **session.options)
            session.record_interruptions(result.interruptions)
        return result

    def run_sync(
        self,
        starting_agent: Agent[T],
        input: str | list[TResponseInputItem] | RunState[T],
        **options: Unpack[RunOptions[T]],
    ) -> RunResult:
        """Run an agent, blocking; the arguments are those of `Runner.run_sync`."""
        with AgentSession(self._settings, starting_agent, input, options) as session:
            result = Runner.run_sync(starting_agent, input, **session.options)
            session.record_interruptions(result.interruptions)
        return result

    def run_streamed(
        self,
        starting_agent: Agent[T],
        input: str | list[TResponseInputItem] | RunState[T],
        **options: Unpack[RunOptions[T]],
    ) -> RunResultStreaming:
        """Run an agent and return its stream; the arguments are those of `Runner.run_streamed`.

        The run ends when the loop of the SDK does, in its task.
        """
        session = AgentSession(self._settings, starting_agent, input, options)
        with session.place():
            result = Runner.run_streamed(starting_agent, input, **session.options)
        assert result.run_loop_task is not None
        result.run_loop_task.add_done_callback(partial(session.end_with_task, result))
        return result
