"""Whose context it is: the caller's reaches tools and models, a copy for each job, and servers are sent no baggage.

That each provider's requests carry the span that sends them is shown beside the providers, in `tests/models`; what the
consumer of a stream sees, in `tests/flow/test_context.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel_context
from opentelemetry.metrics import NoOpMeterProvider
from opentelemetry.sdk.trace.sampling import DEFAULT_ON
from opentelemetry.trace import NonRecordingSpan, NoOpTracerProvider, SpanContext, TraceFlags, TraceState

from tests import modes
from tests.captured import Telemetry, context_of
from tests.markers import MARKER
from tests.models.samples import SAMPLES, Sample
from tests.modes import MODES, run
from tests.observe.closed_list import APPLICATION
from tests.waiting import PATIENCE
from traced_tools import (
    Advisor,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    LoopLimits,
    TelemetryOptions,
    ToolCall,
)
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatModel, ChatRequest, ChatResponse, OpenAIEmbeddingModel
from traced_tools.observe import names
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
SEEN = ("the caller", "caller's bag", True)
REMOTE = SpanContext(0xABCD, 0x1234, True, TraceFlags(TraceFlags.SAMPLED), TraceState([("vendor", "kept")]))


def look() -> tuple[str, object, bool]:
    """The caller's context as seen here: a variable, baggage, and whether there is a span."""
    is_traced = trace.get_current_span().get_span_context().is_valid
    return TENANT.get(), baggage.get_baggage("bag"), is_traced


def change() -> None:
    """Change all of it, and leave it so."""
    TENANT.set("a tool")
    context = trace.set_span_in_context(NonRecordingSpan(SpanContext(1, 1, False)))
    otel_context.attach(baggage.set_baggage("bag", "a tool's bag", context))


@contextmanager
def calling(remote: SpanContext | None = None) -> Iterator[None]:
    """The caller's context, in a copy of this one; `remote` is a span of another process it is in."""
    variable = TENANT.set("the caller")
    context = baggage.set_baggage("bag", "caller's bag")
    if remote is not None:
        context = trace.set_span_in_context(NonRecordingSpan(remote), context)
    attached = otel_context.attach(context)
    try:
        yield
    finally:
        otel_context.detach(attached)
        TENANT.reset(variable)


class Looking:
    """Tools that look around; each then changes what it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, object, bool]] = []

    def blocking(self) -> None:
        """Look, blocking."""
        self.seen.append(look())
        change()

    async def awaited(self) -> None:
        """Look in a coroutine, before and after it waits."""
        self.seen.append(look())
        await asyncio.sleep(0)
        self.seen.append(look())
        change()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "batch", [["blocking"], ["awaited"], ["blocking"] * 3, ["awaited"] * 3, ["blocking", "awaited"] * 2], ids=" ".join
)
def test_each_tool_runs_in_its_own_copy_of_the_callers_context(
    telemetry: Telemetry, mode: str, batch: list[str]
) -> None:
    looking = Looking()
    turn = [ToolCall(name, id=f"id-{place}") for place, name in enumerate(batch)]
    again = [ToolCall(name, id=f"again-{place}") for place, name in enumerate(batch)]
    client = ChatClient(
        ScriptedChatModel([turn, again, "done"]),
        tools=[looking.blocking, looking.awaited],
        limits=LoopLimits(max_repeated_calls=None),
        telemetry=telemetry.options,
    )
    with calling():
        run(mode, client.prompt("?"))
        assert look() == ("the caller", "caller's bag", False)
    assert set(looking.seen) == {SEEN}
    assert len(looking.seen) == 2 * (len(batch) + batch.count("awaited"))


class Model(ChatModel):
    """Looks around, and then changes what it saw."""

    model, provider = "looking", "tests"

    def __init__(self) -> None:
        self.seen: list[tuple[str, object, bool]] = []
        self._script = ScriptedChatModel([ToolCall("nothing"), "done"])

    def call(self, request: ChatRequest) -> ChatResponse:
        self.seen.append(look())
        return self._script.call(request)


def nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize("mode", MODES)
def test_a_model_runs_in_the_callers_context_in_every_iteration(telemetry: Telemetry, mode: str) -> None:
    model = Model()
    with calling():
        run(mode, ChatClient(model, tools=[nothing], telemetry=telemetry.options).prompt("?"))
    assert model.seen == [SEEN, SEEN]


class Setting(Advisor):
    """Sets a variable and baggage of its own around the rest of the chain."""

    name = "setting"

    def __init__(self, order: int) -> None:
        self.order = order
        self.seen: list[tuple[str, object, bool]] = []

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        TENANT.set("the advisor")
        attached = otel_context.attach(baggage.set_baggage("bag", "advisor's bag"))
        try:
            await perform(lambda: self.seen.append(look()))
            return await call_next(request)
        finally:
            otel_context.detach(attached)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("order", [100, 400], ids=["around the loop", "inside the loop"])
def test_context_that_an_advisor_sets_is_visible_downstream(telemetry: Telemetry, mode: str, order: int) -> None:
    advisor, model, looking = Setting(order), Model(), Looking()
    model._script = ScriptedChatModel([ToolCall("blocking"), "done"])
    client = ChatClient(model, tools=[looking.blocking], advisors=[advisor], telemetry=telemetry.options)
    with calling():
        run(mode, client.prompt("?"))
        assert look() == ("the caller", "caller's bag", False)
    expected = ("the advisor", "advisor's bag", True)
    assert set(model.seen) == set(advisor.seen) == {expected}
    # a tool is downstream of what stands around the loop; what stands inside it has put its baggage away by then
    assert looking.seen == [expected if order == 100 else ("the advisor", "caller's bag", True)]


@pytest.mark.parametrize("mode", MODES)
def test_a_run_inside_a_tool_is_a_child_of_the_tool_span_and_sees_the_callers_context(
    telemetry: Telemetry, mode: str
) -> None:
    model = Model()
    inner = ChatClient(model, name="inner", tools=[nothing], telemetry=telemetry.options)

    def blocking() -> str:
        return inner.prompt("?").call().content

    async def awaited() -> str:
        return (await inner.prompt("?").acall()).content

    outer = ScriptedChatModel([ToolCall("blocking"), ToolCall("awaited"), "done"])
    model._script = ScriptedChatModel([ToolCall("nothing"), "one", ToolCall("nothing"), "two"])
    with calling():
        run(mode, ChatClient(outer, tools=[blocking, awaited], telemetry=telemetry.options).prompt("?"))
    assert model.seen == [SEEN] * 4
    for name in ("blocking", "awaited"):
        (child,) = telemetry.children(telemetry.one(f"execute_tool {name}"))
        assert child.name == "invoke_agent inner"
    assert len({context_of(span).trace_id for span in telemetry.spans}) == 1


# Baggage and trace context of other processes.


@pytest.mark.parametrize("mode", MODES)
def test_a_run_continues_the_trace_of_another_process(telemetry: Telemetry, mode: str) -> None:
    with calling(REMOTE):
        response = run(mode, ChatClient(ScriptedChatModel(["x"]), telemetry=telemetry.options).prompt("?"))
    root = telemetry.one("invoke_agent assistant")
    assert root.parent == REMOTE
    assert {context_of(span).trace_id for span in telemetry.spans} == {REMOTE.trace_id}
    assert response.trace_id == f"{REMOTE.trace_id:032x}"


def sent_by(sample: Sample, mode: str, options: TelemetryOptions) -> dict[str, str]:
    """The headers of the one request of a run."""
    body = sample.body(sample.closing, streamed="stream" in mode)
    kind = sample.content_type if "stream" in mode else "application/json"
    with ReplayServer([Reply(body, content_type=kind)]) as server:
        model = sample.model_at(server.url)
        modes.run(mode, ChatClient(model, telemetry=options).prompt("?"), model)
        (request,) = server.requests
    return {name.lower(): value for name, value in request.headers.items()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_a_model_request_carries_the_chat_span_and_trace_state_but_no_baggage(
    telemetry: Telemetry, sample: Sample, mode: str
) -> None:
    with calling(REMOTE):
        attached = otel_context.attach(baggage.set_baggage("user", MARKER))
        headers = sent_by(sample, mode, telemetry.options)
        otel_context.detach(attached)
    chat = context_of(telemetry.one("chat m"))
    assert headers["traceparent"] == f"00-{REMOTE.trace_id:032x}-{chat.span_id:016x}-01"
    assert headers["tracestate"] == "vendor=kept"
    assert "baggage" not in headers
    assert MARKER not in repr(headers)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_request_carries_the_unsampled_flag(mode: str) -> None:
    telemetry = Telemetry(sampler=DEFAULT_ON)
    unsampled = SpanContext(REMOTE.trace_id, REMOTE.span_id, True, TraceFlags(0))
    with calling(unsampled):
        headers = sent_by(SAMPLES[0], mode, telemetry.options)
    assert telemetry.spans == ()
    assert headers["traceparent"].startswith(f"00-{REMOTE.trace_id:032x}-")
    assert headers["traceparent"].endswith("-00")
    assert [point.count for point in telemetry.metric(names.INVOKE_AGENT_DURATION.name)] == [1]


@pytest.mark.parametrize("mode", MODES)
def test_without_telemetry_a_model_request_carries_the_applications_span(mode: str) -> None:
    telemetry = Telemetry()
    silent = TelemetryOptions(tracer_provider=NoOpTracerProvider(), meter_provider=NoOpMeterProvider())
    with telemetry.tracer_provider.get_tracer(APPLICATION).start_as_current_span("request") as span:
        headers = sent_by(SAMPLES[0], mode, silent)
    own = span.get_span_context()
    assert headers["traceparent"] == f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}"


@pytest.mark.parametrize("way", ["embed", "aembed"])
def test_an_embedding_request_carries_the_span_but_no_baggage(telemetry: Telemetry, way: str) -> None:
    with ReplayServer([Reply.json({"data": [{"index": 0, "embedding": [1.0]}]})]) as server, calling(REMOTE):
        model: Any = OpenAIEmbeddingModel("m", base_url=server.url)
        if way == "embed":
            with model:
                model.embed(["x"], telemetry=telemetry.options)
        else:
            asyncio.run(embedded(model, telemetry))
        (request,) = server.requests
    headers = {name.lower(): value for name, value in request.headers.items()}
    span = context_of(telemetry.one("embeddings m"))
    assert headers["traceparent"] == f"00-{REMOTE.trace_id:032x}-{span.span_id:016x}-01"
    assert headers["tracestate"] == "vendor=kept"
    assert "baggage" not in headers


async def embedded(model: Any, telemetry: Telemetry) -> None:
    async with asyncio.timeout(PATIENCE), model:
        await model.aembed(["x"], telemetry=telemetry.options)
