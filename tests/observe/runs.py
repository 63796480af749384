"""Sample runs for tests of telemetry: the scenario of the contract, and runs that fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from opentelemetry.sdk.trace.sampling import Sampler

from tests.captured import Telemetry
from tests.markers import MARKER
from tests.modes import run
from tests.recorder import Recorder
from tests.sample_tools import add, fail
from traced_tools import (
    Advisor,
    BaseAdvisor,
    ChatClient,
    ChatClientRequest,
    ChatClientRequestSpec,
    ChatClientResponse,
    ChatOptions,
    LoopLimits,
    ToolCall,
    ToolResult,
    Usage,
)
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatRequest
from traced_tools.testing import ScriptedChatModel
from traced_tools.tools import ToolInvocation
from traced_tools.tools.invocation import CallNext

USAGE = Usage(input_tokens=9, output_tokens=4, cache_read_tokens=3, cache_write_tokens=2, reasoning_tokens=1)


def adds(a: int, b: int) -> ToolCall:
    return ToolCall("add", {"a": a, "b": b})


class Remote(ScriptedChatModel):
    """A model that has a server address for telemetry."""

    server_address = "models.example.invalid"
    server_port = 8443


class Guard(Advisor):
    """Decides about calls by the tool's name."""

    name, order = "guard", 350

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if call.name == "fail":
            return call.denied("not here")
        if call.name == "direct":
            return call.answered("cached")
        return await call_next(call)


class Outside(BaseAdvisor):
    """Stands outside the loop, with both of its hooks."""

    name, order = "outside", 100

    def before(self, request: ChatClientRequest) -> ChatClientRequest:
        return request

    async def after(self, response: ChatClientResponse) -> ChatClientResponse:
        return response


def scenario(telemetry: Telemetry, mode: str) -> ChatClientResponse:
    """Two passes with two tools at once, of which one fails; a memory outside the loop, an observer inside."""
    return run(mode, scenario_spec(telemetry))


def scenario_spec(telemetry: Telemetry) -> ChatClientRequestSpec:
    """The same, not begun."""
    model = Remote([["let me see", adds(1, 2), ToolCall("fail")], "three it is"], usage=USAGE)
    client = ChatClient(
        model,
        name="travel",
        version="2.1",
        agent_id="urn:agent:travel",
        tools=[add, fail],
        advisors=[Recorder("memory", 200), Recorder("observer", 400)],
        options=ChatOptions(
            temperature=0.5,
            top_p=0.9,
            max_tokens=100,
            stop=("END",),
            seed=7,
            reasoning_effort="low",
            output_schema={"type": "object"},
        ),
        limits=LoopLimits(max_tokens=1000, max_seconds=60.0),
        telemetry=telemetry.options,
    )
    return client.prompt("1+2?", conversation_id="c-1")


class Failing(ScriptedChatModel):
    """Yields one chunk and then raises, if it is streamed."""

    def stream(self, request: ChatRequest) -> Iterator[Any]:
        chunks = list(super().stream(request))
        yield chunks[0]
        raise RuntimeError("the line went dead")

    async def astream(self, request: ChatRequest) -> Any:
        for chunk in self.stream(request):
            yield chunk


class Broken(Advisor):
    """Raises in the given hook."""

    def __init__(self, hook: str, order: int = 400) -> None:
        self.name = "broken"
        self.order = order
        self._hook = hook

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        if self._hook == "advise":
            raise LookupError(MARKER)
        return await call_next(request)

    async def advise_tool(self, call: ToolInvocation, call_next: CallNext) -> ToolResult:
        if self._hook == "advise_tool":
            raise LookupError(MARKER)
        return await call_next(call)


class BrokenSampler(Sampler):
    """Raises instead of deciding."""

    def should_sample(self, *arguments: Any, **keywords: Any) -> Any:
        raise RuntimeError(MARKER)

    def get_description(self) -> str:
        return "broken"
