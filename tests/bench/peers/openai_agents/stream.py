"""Reads streams with the OpenAI Agents SDK: `Runner.run_streamed`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from importlib.metadata import version
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent

from tests.bench.peers.openai_agents.loop import turn_telemetry_off
from tests.bench.peers.streams import MODEL, TEXT, serve_streams
from tests.bench.peers.worker import QUESTION, count


def reader_of(url: str) -> Callable[[], Coroutine[Any, Any, None]]:
    """Return a coroutine function that reads an answer."""
    model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=url, api_key="none"))
    agent = Agent("assistant", model=model)

    async def read() -> None:
        async for event in Runner.run_streamed(agent, QUESTION).stream_events():
            data = getattr(event, "data", None)
            count(isinstance(data, ResponseTextDeltaEvent) and data.delta == TEXT)

    return read


if __name__ == "__main__":
    serve_streams(version("openai-agents"), reader_of, turn_telemetry_off=turn_telemetry_off)
