"""The four ways to run a request: blocking or on asyncio, whole or as a stream."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tests.waiting import patiently
from traced_tools.client import ChatClientRequestSpec
from traced_tools.loop.exchange import ChatClientResponse

if TYPE_CHECKING:
    from traced_tools.models.http.model import HttpChatModel

ALL_MODES = ("call", "acall", "stream", "astream")
"""For tests about streams, cancellation, threads, contexts, time limits, or a difference of blocking and asyncio."""
MODES = ("call", "astream")
"""For all other tests: each of blocking, asyncio, whole and streamed once. One flow runs in all modes, and
`tests/test_seven_ways.py` proves with random conversations that it does the same in each."""
ASYNC_MODES = ("acall", "astream")
BLOCKING_MODES = ("call", "stream")
STREAMING_MODES = ("stream", "astream")


def run(mode: str, spec: ChatClientRequestSpec, model: HttpChatModel | None = None) -> ChatClientResponse:
    """Run `spec` in `mode` and return the response: of a stream, the aggregate. Closes `model`, if it is given."""
    if model is None:
        return run_chunks(mode, spec)[0]
    if mode in BLOCKING_MODES:
        with model:
            return run_chunks(mode, spec)[0]

    async def on_asyncio() -> ChatClientResponse:
        async with model:
            return await arun(mode, spec)

    return asyncio.run(patiently(on_asyncio()))


async def arun(mode: str, spec: ChatClientRequestSpec) -> ChatClientResponse:
    """Run `spec` in one of the asyncio modes and return the response: of a stream, the aggregate."""
    return (await arun_chunks(mode, spec))[0]


def run_chunks(mode: str, spec: ChatClientRequestSpec) -> tuple[ChatClientResponse, list[ChatClientResponse]]:
    """Run `spec` in `mode` and return the response and its chunks; without a stream there are none."""
    if mode in ASYNC_MODES:
        return asyncio.run(patiently(arun_chunks(mode, spec)))
    if mode == "call":
        return spec.call(), []
    with spec.stream() as stream:
        chunks = list(stream)
    return stream.response, chunks


async def arun_chunks(mode: str, spec: ChatClientRequestSpec) -> tuple[ChatClientResponse, list[ChatClientResponse]]:
    """Run `spec` in one of the asyncio modes and return the response and its chunks."""
    if mode == "acall":
        return await spec.acall(), []
    async with spec.astream() as stream:
        chunks = [chunk async for chunk in stream]
    return stream.response, chunks
