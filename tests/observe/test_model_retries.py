"""Metrics of refused requests: retries, the time waited for them, and rate limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from opentelemetry import trace

from tests.captured import Telemetry, total
from tests.modes import MODES, run
from traced_tools import ChatClient, ModelError, RateLimited, TelemetryOptions
from traced_tools.models import OpenAIChatModel, OpenAIEmbeddingModel, RetryPolicy
from traced_tools.observe import names
from traced_tools.observe.metric_point import MetricPoint
from traced_tools.observe.off import OFF
from traced_tools.observe.scopes.model_call import call_here
from traced_tools.testing import Fault, ReplayServer, Reply

BUSY = Reply.json({}, 429, {"Retry-After": "0.01"})
BROKEN = Reply.json({}, 503)
VECTORS = Reply.json({"data": [{"index": 0, "embedding": [1.0]}]})
RATE_LIMITED, FAILED = "traced_tools.errors.RateLimited", "traced_tools.errors.ModelError"


def said(mode: str) -> Reply:
    """Return an answer for a mode."""
    if "stream" in mode:
        choice = {"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]}
        return Reply.sse([choice, "[DONE]"])
    return Reply.json({"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]})


@pytest.fixture
def asked(telemetry: Telemetry) -> Iterator[Callable[..., None]]:
    """Run an agent whose provider sends these replies."""

    def ask(replies: list[Any], mode: str = "call", retries: int = 2) -> None:
        policy = RetryPolicy(retries, first_delay=0.001)
        with ReplayServer(replies) as server, OpenAIChatModel("m", base_url=server.url, retries=policy) as model:
            run(mode, ChatClient(model, name="busy", telemetry=telemetry.options).prompt("?"))

    yield ask


def by_reason(points: list[MetricPoint]) -> dict[tuple[Any, Any], float]:
    return {
        (each.attributes.get(names.RESPONSE_STATUS), each.attributes.get(names.ERROR_TYPE)): total(each)
        for each in points
    }


@pytest.mark.parametrize("mode", MODES)
def test_each_retried_request_is_counted_by_its_failure(
    telemetry: Telemetry, asked: Callable[..., None], mode: str
) -> None:
    asked([BUSY, BROKEN, said(mode)], mode)
    retries = telemetry.metric(names.MODEL_RETRIES.name)
    assert by_reason(retries) == {(429, RATE_LIMITED): 1, (503, FAILED): 1}
    waited = by_reason(telemetry.metric(names.MODEL_RETRY_WAIT.name))
    assert waited[429, RATE_LIMITED] == 0.01
    assert 0.0015 <= waited[503, FAILED] <= 0.002
    (limited,) = telemetry.metric(names.MODEL_RATE_LIMITS.name)
    assert total(limited) == 1
    for point in (limited, *retries):
        labels = point.attributes
        assert (labels[names.AGENT_NAME], labels[names.PROVIDER_NAME], labels[names.REQUEST_MODEL]) == (
            "busy",
            "openai",
            "m",
        )


@pytest.mark.parametrize("mode", MODES)
def test_a_final_rate_limit_is_counted_without_a_retry(
    telemetry: Telemetry, asked: Callable[..., None], mode: str
) -> None:
    with pytest.raises(RateLimited):
        asked([Reply.json({}, 429, {"Retry-After": "3600"})], mode)
    assert [total(point) for point in telemetry.metric(names.MODEL_RATE_LIMITS.name)] == [1]
    assert telemetry.metric(names.MODEL_RETRIES.name) == []


@pytest.mark.parametrize("mode", MODES)
def test_a_run_without_spans_sets_no_resend_count_on_a_span_of_the_application(telemetry: Telemetry, mode: str) -> None:
    policy, silent = RetryPolicy(2, first_delay=0.001), TelemetryOptions(trace.NoOpTracerProvider())
    with (
        ReplayServer([BROKEN, said(mode)]) as server,
        OpenAIChatModel("m", base_url=server.url, retries=policy) as model,
    ):
        with telemetry.tracer_provider.get_tracer("application").start_as_current_span("request"):
            run(mode, ChatClient(model, telemetry=silent).prompt("?"))
    assert telemetry.one("request").attributes == {}


def test_a_connection_that_fails_has_no_status(telemetry: Telemetry, asked: Callable[..., None]) -> None:
    asked([Fault.RESET, said("call")])
    assert by_reason(telemetry.metric(names.MODEL_RETRIES.name)) == {(None, FAILED): 1}


def test_the_number_of_response_statuses_is_limited(telemetry: Telemetry, asked: Callable[..., None]) -> None:
    replies = [Reply.json({}, 500 + number, {"Retry-After": "0"}) for number in range(60)]
    asked([*replies, said("call")], retries=60)
    shown = by_reason(telemetry.metric(names.MODEL_RETRIES.name))
    assert len(shown) == names.MAX_LABEL_VALUES + 1
    assert shown[None, FAILED] == 60 - names.MAX_LABEL_VALUES


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_retried_embeddings_are_counted_by_their_own_telemetry(telemetry: Telemetry, mode: str) -> None:
    policy = RetryPolicy(2, first_delay=0.001)
    with ReplayServer([BROKEN, VECTORS]) as server:
        with OpenAIEmbeddingModel("m", base_url=server.url, retries=policy) as model:
            if mode == "call":
                model.embed(["one"], telemetry=telemetry.options)
            else:
                asyncio.run(_embed(model, telemetry))
    (retried,) = telemetry.metric(names.MODEL_RETRIES.name)
    assert retried.attributes[names.OPERATION_NAME] == names.EMBEDDINGS
    assert names.AGENT_NAME not in retried.attributes


async def _embed(model: OpenAIEmbeddingModel, telemetry: Telemetry) -> None:
    async with model:
        await model.aembed(["one"], telemetry=telemetry.options)


def test_an_ended_model_call_is_no_longer_the_current_one(telemetry: Telemetry) -> None:
    with ReplayServer([BUSY]) as server, OpenAIEmbeddingModel("m", base_url=server.url, retries=0) as model:
        with pytest.raises(ModelError):
            model.embed(["one"], telemetry=telemetry.options)
    assert call_here() is OFF
