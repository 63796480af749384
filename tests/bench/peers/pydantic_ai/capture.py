"""Runs passes of Pydantic AI with content on spans."""

from __future__ import annotations

from functools import partial

from pydantic_ai import Agent, __version__
from pydantic_ai.models.instrumented import InstrumentationSettings

from tests.bench.peers.pydantic_ai.loop import on_asyncio
from tests.bench.peers.worker import Setup, serve

if __name__ == "__main__":
    turn_on = partial(Agent.instrument_all, InstrumentationSettings(include_content=True))
    serve(Setup(__version__, {"async": on_asyncio}, turn_on))
