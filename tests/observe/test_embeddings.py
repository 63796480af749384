"""An embedding emits one span and its metrics through the telemetry of the run, and no text."""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from tests.captured import Telemetry, context_of, total
from tests.markers import MARKER, everything
from tests.modes import MODES, run
from tests.observe.embedders import Embedder, RemoteEmbedder
from tests.observe.test_contract import assert_consistent
from tests.waiting import patiently
from traced_tools import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    TelemetryOptions,
    ToolCall,
    UserMessage,
)
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.flow import perform
from traced_tools.loop.advisor import AdviseNext
from traced_tools.models import ChatResponse, EmbeddingModel, EmbeddingResponse, OpenAIEmbeddingModel
from traced_tools.models.http.model import HttpModel
from traced_tools.observe import names
from traced_tools.observe.scopes.model_call import EmbeddingsScope
from traced_tools.observe.span_tree import summarize
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel, capture_telemetry
from traced_tools.tools import ToolCallingManager

WAYS = ("embed", "aembed")


def embedded(model: EmbeddingModel, way: str, telemetry: TelemetryOptions | None, *texts: str) -> EmbeddingResponse:
    """Embed `texts`, blocking or on asyncio, and close the model."""
    opened = model if isinstance(model, HttpModel) else nullcontext()
    if way == "embed":
        with opened:
            return model.embed(texts, telemetry=telemetry)

    async def on_asyncio() -> EmbeddingResponse:
        async with opened:
            return await model.aembed(texts, telemetry=telemetry)

    return asyncio.run(patiently(on_asyncio()))


class Failing(Embedder):
    """Raises, quoting the text."""

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        raise ValueError(f"cannot embed {texts[0]}")


# One span and its metrics.


@pytest.mark.parametrize("way", WAYS)
def test_an_embeddings_span_has_request_and_response_attributes(way: str) -> None:
    telemetry = Telemetry()
    embedded(RemoteEmbedder(), way, telemetry.options, "one", "three")
    span = telemetry.one("embeddings embedder")
    assert dict(span.attributes or {}) == {
        names.OPERATION_NAME: "embeddings",
        names.PROVIDER_NAME: "test",
        names.REQUEST_MODEL: "embedder",
        names.SERVER_ADDRESS: "models.example.invalid",
        names.SERVER_PORT: 8443,
        names.RESPONSE_MODEL: "embedder-1",
        names.EMBEDDINGS_DIMENSION_COUNT: 2,
        names.USAGE_INPUT_TOKENS: 8,
    }
    assert (span.kind, span.status.status_code) == (SpanKind.CLIENT, StatusCode.UNSET)
    assert_consistent(telemetry)


def test_a_model_in_this_process_has_internal_spans() -> None:
    telemetry = Telemetry()
    Embedder().embed(["one"], telemetry=telemetry.options)
    assert telemetry.one("embeddings embedder").kind is SpanKind.INTERNAL


@pytest.mark.parametrize("way", WAYS)
def test_an_embedding_is_counted_like_any_model_call(way: str) -> None:
    telemetry = Telemetry()
    embedded(RemoteEmbedder(), way, telemetry.options, "one", "three")
    labels = {
        names.OPERATION_NAME: "embeddings",
        names.PROVIDER_NAME: "test",
        names.REQUEST_MODEL: "embedder",
        names.RESPONSE_MODEL: "embedder-1",
        names.SERVER_ADDRESS: "models.example.invalid",
        names.SERVER_PORT: 8443,
    }
    (duration,) = telemetry.metric(names.EMBEDDINGS_DURATION.name)
    (tokens,) = telemetry.metric(names.EMBEDDINGS_INPUT_TOKENS.name)
    span = telemetry.one("embeddings embedder")
    assert duration.attributes == labels
    assert total(duration) == pytest.approx(((span.end_time or 0) - (span.start_time or 0)) / 1e9, abs=2e-9)
    assert (tokens.attributes, total(tokens)) == (labels, 8)
    assert {point.name for point in telemetry.metrics} == {
        names.EMBEDDINGS_DURATION.name,
        names.EMBEDDINGS_INPUT_TOKENS.name,
    }


@pytest.mark.parametrize("way", WAYS)
def test_many_batches_are_one_span_with_their_tokens_summed(way: str) -> None:
    telemetry = Telemetry()
    model = Embedder()
    model.batch_size = 2
    embedded(model, way, telemetry.options, *"abcde")
    assert len(model.batches) == 3
    assert (telemetry.one("embeddings embedder").attributes or {})[names.USAGE_INPUT_TOKENS] == 5


def test_no_texts_leave_no_span() -> None:
    telemetry = Telemetry()
    Embedder().embed([], telemetry=telemetry.options)
    assert (telemetry.spans, telemetry.metrics) == ((), [])


@pytest.mark.parametrize("way", WAYS)
def test_the_request_carries_the_context_of_the_embeddings_span(way: str) -> None:
    telemetry = Telemetry()
    body = {"data": [{"index": 0, "embedding": [1.0]}]}
    with ReplayServer([Reply.json(body)]) as server:
        embedded(OpenAIEmbeddingModel("m", base_url=server.url), way, telemetry.options, "one")
        sent = server.requests[0].headers["traceparent"]
    context = context_of(telemetry.one("embeddings m"))
    assert sent.split("-")[1:3] == [f"{context.trace_id:032x}", f"{context.span_id:016x}"]


def test_the_summary_of_an_embeddings_span_has_its_tokens() -> None:
    with capture_telemetry() as captured:
        Embedder().embed(["one", "three"], telemetry=captured.options)
        (node,) = captured.tree()
    assert (node.name, summarize(node)) == ("embeddings embedder", "8 tokens")


# Status and errors.


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_fails_fails_the_span_with_the_kind_of_error_alone(way: str) -> None:
    telemetry = Telemetry()
    with pytest.raises(ValueError, match="cannot embed"):
        embedded(Failing(), way, telemetry.options, MARKER)
    span = telemetry.one("embeddings embedder")
    assert (span.attributes or {})[names.ERROR_TYPE] == "ValueError"
    (duration,) = telemetry.metric(names.EMBEDDINGS_DURATION.name)
    assert duration.attributes[names.ERROR_TYPE] == "ValueError"
    assert telemetry.metric(names.EMBEDDINGS_INPUT_TOKENS.name) == []
    assert_consistent(telemetry)


@pytest.mark.parametrize("way", WAYS)
def test_an_invalid_response_fails_the_span(way: str) -> None:
    telemetry = Telemetry()
    model = Embedder()
    model.dimensions = 3
    with pytest.raises(InvalidResponse):
        embedded(model, way, telemetry.options, "one")
    span = telemetry.one("embeddings embedder")
    assert (span.attributes or {})[names.ERROR_TYPE] == "traced_tools.errors.InvalidResponse"
    assert_consistent(telemetry)


def test_a_cancelled_embedding_ends_its_span_as_cancelled() -> None:
    telemetry = Telemetry()
    begun = asyncio.Event()

    class Stuck(Embedder):
        async def acall(self, texts: tuple[str, ...]) -> EmbeddingResponse:
            begun.set()
            await asyncio.Event().wait()
            return self.call(texts)

    async def cancelled() -> None:
        task = asyncio.create_task(Stuck().aembed(["one"], telemetry=telemetry.options))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(patiently(cancelled()))
    assert (telemetry.one("embeddings embedder").attributes or {})[names.ERROR_TYPE] == "cancelled"
    assert_consistent(telemetry)


def test_an_interrupted_embedding_ends_its_span() -> None:
    telemetry = Telemetry()

    class Interrupted(Embedder):
        def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Interrupted().embed(["one"], telemetry=telemetry.options)
    assert (telemetry.one("embeddings embedder").attributes or {})[names.ERROR_TYPE] == "KeyboardInterrupt"


# What it costs when nobody listens.


@pytest.mark.parametrize("way", WAYS)
def test_for_a_span_that_is_not_sampled_nothing_is_built(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(self: Any) -> Any:
        raise AssertionError("attributes were built for a span that is not recording")

    monkeypatch.setattr(EmbeddingsScope, "_final_attributes", never)
    telemetry = Telemetry(sampler=ALWAYS_OFF)
    assert len(embedded(Embedder(), way, telemetry.options, "one").embeddings) == 1
    assert telemetry.spans == ()
    assert telemetry.metric(names.TELEMETRY_FAILURES.name) == []
    assert [point.count for point in telemetry.metric(names.EMBEDDINGS_DURATION.name)] == [1]


@pytest.mark.parametrize("way", WAYS)
def test_without_an_sdk_no_scope_is_opened(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("a scope was opened")

    monkeypatch.setattr("traced_tools.observe.scopes.model_call.EmbeddingsScope", never)
    silent = TelemetryOptions(trace.NoOpTracerProvider(), metrics.NoOpMeterProvider())
    assert embedded(Embedder(), way, silent, "one").embeddings == ((3.0, 1.0),)


# Where it stands.


class Embeds(Advisor):
    """Embeds something before it asks on."""

    name, order = "embeds", 200

    def __init__(self, embed: Any) -> None:
        self._embed = embed

    async def advise(self, request: ChatClientRequest, call_next: AdviseNext) -> ChatClientResponse:
        response: EmbeddingResponse = await perform(self._embed, ["one"])
        assert len(response.embeddings) == 1
        return await call_next(request)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("way", WAYS)
def test_as_a_step_of_an_advisor_it_is_a_child_of_the_advisors_span_and_goes_where_the_runs_spans_go(
    mode: str, way: str
) -> None:
    telemetry = Telemetry()
    advisor = Embeds(getattr(Embedder(), way))
    client = ChatClient(ScriptedChatModel(["x"]), advisors=[advisor], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    children = telemetry.children(telemetry.one("advise embeds"))
    assert [span.name for span in children] == ["embeddings embedder", "advise tool_calling"]
    assert_consistent(telemetry)


@pytest.mark.parametrize("mode", MODES)
def test_inside_a_tool_it_is_a_child_of_the_tools_span(mode: str) -> None:
    telemetry = Telemetry()
    model = Embedder()

    def look_up(query: str) -> str:
        """Look something up."""
        return str(model.embed([query]).embeddings[0])

    calls = [ToolCall("look_up", {"query": "a"}), ToolCall("look_up", {"query": "b"})]
    client = ChatClient(ScriptedChatModel([calls, "x"]), tools=[look_up], telemetry=telemetry.options)
    run(mode, client.prompt("?"))
    for span in telemetry.named("execute_tool look_up"):
        assert [child.name for child in telemetry.children(span)] == ["embeddings embedder"]


def test_tools_run_by_hand_take_their_embeddings_with_them() -> None:
    telemetry = Telemetry()

    def look_up() -> str:
        """Look something up."""
        return str(Embedder().embed(["one"]).embeddings[0])

    asked = ChatResponse(AssistantMessage([ToolCall("look_up", id="1")]))
    ToolCallingManager().execute_tool_calls([UserMessage("?")], asked, tools=[look_up], telemetry=telemetry.options)
    (below,) = telemetry.children(telemetry.one("execute_tool look_up"))
    assert below.name == "embeddings embedder"


@pytest.mark.parametrize("mode", MODES)
def test_a_telemetry_argument_overrides_the_telemetry_of_the_run(mode: str) -> None:
    telemetry, own = Telemetry(), Telemetry()
    model = Embedder()
    advisor = Embeds(lambda texts: model.embed(texts, telemetry=own.options))
    run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[advisor], telemetry=telemetry.options).prompt("?"))
    assert telemetry.named("embeddings embedder") == []
    assert len(own.named("embeddings embedder")) == 1


@pytest.mark.parametrize("mode", MODES)
def test_embeddings_in_a_run_without_telemetry_emit_nothing_and_later_ones_do(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    telemetry = Telemetry()
    monkeypatch.setattr(
        "traced_tools.observe.run_telemetry.trace.get_tracer_provider", lambda: telemetry.tracer_provider
    )
    model = Embedder()
    silent = TelemetryOptions(trace.NoOpTracerProvider(), metrics.NoOpMeterProvider())
    run(mode, ChatClient(ScriptedChatModel(["x"]), advisors=[Embeds(model.embed)], telemetry=silent).prompt("?"))
    assert telemetry.spans == ()
    model.embed(["one"])
    assert len(telemetry.named("embeddings embedder")) == 1


def test_outside_a_run_the_global_providers_are_looked_up_late(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Embedder()
    telemetry = Telemetry()
    monkeypatch.setattr(
        "traced_tools.observe.run_telemetry.trace.get_tracer_provider", lambda: telemetry.tracer_provider
    )
    tracer = telemetry.tracer_provider.get_tracer("application")
    with tracer.start_as_current_span("request"):
        model.embed(["one"])
    (below,) = telemetry.children(telemetry.one("request"))
    assert below.name == "embeddings embedder"


# No content.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("status", [200, 400])
def test_no_text_is_exported_logged_or_raised(way: str, status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    telemetry = Telemetry()
    said = {"error": {"message": f"cannot embed {MARKER}", "code": MARKER * 9}}
    fine = {"data": [{"index": 0, "embedding": [1.0], "object": MARKER}], "note": MARKER}
    with ReplayServer([Reply.json(said if status == 400 else fine, status)]) as server:
        model = OpenAIEmbeddingModel("m", base_url=server.url, extra={"user": MARKER})
        if status == 400:
            with pytest.raises(InvalidRequest) as caught:
                embedded(model, way, telemetry.options, MARKER)
            assert MARKER not in everything([str(caught.value), repr(caught.value), caught.value.__context__])
        else:
            response = embedded(model, way, telemetry.options, MARKER)
            assert MARKER not in repr(response) + repr(model)
    (span,) = telemetry.spans
    assert MARKER not in span.to_json() + caplog.text
    assert MARKER not in everything([[point.name, point.attributes] for point in telemetry.metrics])
    assert_consistent(telemetry)


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_a_custom_model_passes_unchanged_and_its_text_is_not_exported(way: str) -> None:
    telemetry = Telemetry()
    with pytest.raises(ValueError, match=MARKER):
        embedded(Failing(), way, telemetry.options, MARKER)
    assert MARKER not in telemetry.one("embeddings embedder").to_json()
    assert MARKER not in everything([[point.name, point.attributes] for point in telemetry.metrics])
