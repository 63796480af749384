"""Runs passes of the OpenAI Agents SDK with content on the spans of OpenInference's instrumentation."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version

from agents import RunConfig
from openinference.instrumentation.openai_agents import OpenAIAgentsInstrumentor

from tests.bench.peers.openai_agents.loop import on_asyncio
from tests.bench.peers.worker import Setup, serve

if __name__ == "__main__":
    with_content = partial(on_asyncio, config=RunConfig(trace_include_sensitive_data=True))
    serve(Setup(version("openai-agents"), {"async": with_content}, OpenAIAgentsInstrumentor().instrument))
