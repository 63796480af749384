"""A service that others instrument: `opentelemetry-instrument python -m tests.judges.fastapi_app`.

Its endpoints run an agent, each in another mode, whose model is behind HTTP and whose tool asks the service itself. The
output is JSON: for each mode, what was traced and which spans the requests to the model have as their parents.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.judges.paths import paths_of
from tests.modes import ALL_MODES
from traced_tools import ChatClient
from traced_tools.client import ChatClientRequestSpec
from traced_tools.models import OpenAIChatModel
from traced_tools.testing import Received, ReplayServer, Reply

app = FastAPI()
base_url: str
model: OpenAIChatModel


def weather(city: str) -> str:
    """Return the weather."""
    return httpx.get(f"{base_url}/weather/{city}").text


async def aweather(city: str) -> str:
    """Return the weather."""
    async with httpx.AsyncClient(timeout=30) as client:
        return (await client.get(f"{base_url}/weather/{city}")).text


def question(tool: Any) -> ChatClientRequestSpec:
    """Return what each endpoint asks its agent."""
    return ChatClient(model, tools=[tool]).prompt("How is the weather?")


@app.get("/weather/{city}")
def look_up(city: str) -> str:
    """Return the weather."""
    return f"sunny in {city}"


@app.get("/call")
def call() -> str:
    """Ask."""
    return question(weather).call().content


@app.get("/acall")
async def acall() -> str:
    """Ask."""
    return (await question(aweather).acall()).content


@app.get("/stream")
def stream() -> StreamingResponse:
    """Ask; threads of a pool read the answer, each another chunk."""

    def texts() -> Iterator[str]:
        with question(weather).stream() as chunks:
            yield from (chunk.text for chunk in chunks)

    return StreamingResponse(texts())


@app.get("/astream")
async def astream() -> StreamingResponse:
    """Ask."""

    async def texts() -> AsyncIterator[str]:
        async with question(aweather).astream() as chunks:
            async for chunk in chunks:
                yield chunk.text

    return StreamingResponse(texts())


def answer(request: Received) -> Reply:
    """Answer like a model that looks the weather up first."""
    body = request.json()
    if any(message["role"] == "tool" for message in body["messages"]):
        said, reason = {"content": "It is sunny."}, "stop"
    else:
        tool = body["tools"][0]["function"]["name"]
        function = {"name": tool, "arguments": '{"city": "Lisbon"}'}
        said, reason = (
            {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]},
            "tool_calls",
        )
    if body.get("stream"):
        return Reply.sse([{"choices": [{"delta": said, "finish_reason": reason}]}, "[DONE]"])
    return Reply.json({"choices": [{"message": {"role": "assistant", **said}, "finish_reason": reason}]})


def traced_in(mode: str, spans: Sequence[ReadableSpan], received: Sequence[Received]) -> dict[str, Any]:
    """Return what was traced of the mode's request, and the parents of what the model was sent then."""
    (served,) = (span for span in spans if span.name == f"GET /{mode}")
    traced = [span for span in spans if span.get_span_context().trace_id == served.get_span_context().trace_id]
    names = {f"{span.get_span_context().span_id:016x}": span.name for span in traced}
    parents = [each.headers["traceparent"].split("-")[2] for each in received]
    return {"paths": paths_of(traced), "parents": [names[each] for each in parents if each in names]}


@contextmanager
def serving() -> Iterator[str]:
    """Serve until the block ends, and return where."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, args=[[listener]])
    thread.start()  # it may be asked from now on: its socket listens
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def main() -> None:
    """Serve, send the requests, and print what was traced."""
    global base_url, model
    kept, provider = InMemorySpanExporter(), trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    with (
        ReplayServer(answer) as models,
        OpenAIChatModel("gpt-x", base_url=models.url, api_key="none") as model,
        serving() as base_url,
    ):
        for mode in ALL_MODES:
            assert "It is sunny." in httpx.get(f"{base_url}/{mode}").text
    print(json.dumps({mode: traced_in(mode, kept.get_finished_spans(), models.requests) for mode in ALL_MODES}))


if __name__ == "__main__":
    main()
