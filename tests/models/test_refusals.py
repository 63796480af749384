"""Errors of providers: the same class by an HTTP status, in the body of a whole answer, and inside a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests import modes
from tests.models.samples import CLOSING, SAMPLES, Answer, Sample
from tests.modes import MODES, STREAMING_MODES
from tests.sweeps import check_each, sweep
from traced_tools import AuthenticationError, ChatClient, ModelError, RateLimited
from traced_tools.errors import ContextOverflow, InvalidRequest, InvalidResponse
from traced_tools.models import FallbackModel, RetryPolicy, Timeouts
from traced_tools.models.http.model import HttpChatModel
from traced_tools.models.refusals import status_of_code
from traced_tools.testing import ReplayServer, Reply, ScriptedChatModel, capture_telemetry

SAMPLE_OF = {repr(sample): sample for sample in SAMPLES}
SECRET = "what the user wrote"

OBJECTS: Mapping[str, tuple[Mapping[str, Any], type[ModelError], bool]] = {
    "Anthropic, overloaded": ({"type": "overloaded_error"}, ModelError, True),
    "Anthropic, rate limit": ({"type": "rate_limit_error"}, RateLimited, True),
    "Anthropic, internal": ({"type": "api_error"}, ModelError, True),
    "Anthropic, key": ({"type": "authentication_error"}, AuthenticationError, False),
    "Anthropic, invalid": ({"type": "invalid_request_error"}, InvalidRequest, False),
    "OpenAI, rate limit": ({"type": "tokens", "code": "rate_limit_exceeded"}, RateLimited, True),
    "OpenAI, server": ({"type": "server_error", "code": None}, ModelError, True),
    "OpenAI, overloaded": ({"code": "server_is_overloaded"}, ModelError, True),
    "OpenAI, context": ({"type": "invalid_request_error", "code": "context_length_exceeded"}, ContextOverflow, False),
    "Google, exhausted": ({"code": 429, "status": "RESOURCE_EXHAUSTED"}, RateLimited, True),
    "Google, unavailable": ({"code": 503, "status": "UNAVAILABLE"}, ModelError, True),
    "Google, internal": ({"code": 500, "status": "INTERNAL"}, ModelError, True),
    "a gateway, number": ({"code": 429}, RateLimited, True),
    "a gateway, number as a text": ({"code": "529", "type": "error"}, ModelError, True),
    "unknown": ({"code": "a_code_of_tomorrow"}, InvalidResponse, False),
}


def ask(sample: Sample, reply: Reply, mode: str) -> ModelError:
    """Return the error of a run whose model is sent `reply`."""
    with ReplayServer([reply]) as server:
        model = sample.model_at(server.url)
        with pytest.raises(ModelError) as caught:
            modes.run(mode, ChatClient(model).prompt("?"), model)
    assert SECRET not in f"{caught.value!s} {caught.value!r}"
    return caught.value


def body_with(sample: Sample, body: Any, mode: str) -> Reply:
    streamed = "stream" in mode
    content_type = sample.content_type if streamed else "application/json"
    return Reply(sample.body(Answer(body, [body]), streamed=streamed), content_type=content_type)


@sweep(sample=SAMPLE_OF, mode=MODES)
def test_an_error_object_has_the_class_of_its_code(sample: str, mode: str) -> None:
    def check(case: tuple[Mapping[str, Any], type[ModelError], bool]) -> None:
        fields, kind, retryable = case
        body = {"error": {**fields, "message": SECRET}}
        error = ask(SAMPLE_OF[sample], body_with(SAMPLE_OF[sample], body, mode), mode)
        assert (type(error), error.retryable) == (kind, retryable)

    check_each(OBJECTS, check)


@pytest.mark.parametrize("mode", STREAMING_MODES)
@pytest.mark.parametrize(
    ("sample", "event"),
    [
        ("OpenAIChatModel", {"object": "error", "message": SECRET, "type": "rate_limited", "code": "1300"}),
        ("OpenAIChatModel", {"choices": [{"delta": {}, "error": {"code": 429, "message": SECRET}}]}),
        ("OpenAIChatModel", {"error": SECRET, "error_type": "too_many_requests"}),
        ("OpenAIResponsesModel", {"type": "error", "code": "rate_limit_exceeded", "message": SECRET}),
        (
            "OpenAIResponsesModel",
            {
                "type": "response.failed",
                "response": {"status": "failed", "error": {"code": "rate_limit_exceeded", "message": SECRET}},
            },
        ),
        ("AnthropicChatModel", {"type": "error", "error": {"type": "rate_limit_error", "message": SECRET}}),
        ("GeminiChatModel", {"error": {"code": 429, "message": SECRET, "status": "RESOURCE_EXHAUSTED"}}),
        ("OllamaChatModel", {"error": SECRET, "status": 429}),
        ("OllamaChatModel", {"error": "too many requests"}),
        ("OpenAIChatModel", {"error": {"message": "Rate limit reached, try again later"}}),
    ],
)
def test_each_form_of_an_error_in_a_stream_is_read(sample: str, event: Any, mode: str) -> None:
    error = ask(SAMPLE_OF[sample], body_with(SAMPLE_OF[sample], event, mode), mode)
    assert (type(error), error.retryable) == (RateLimited, True)


BUSY = {"error": {"type": "overloaded_error", "code": 503, "message": SECRET}}


@sweep(sample=SAMPLE_OF, mode=MODES)
def test_an_answer_that_begins_with_a_refusal_is_requested_again(sample: str, mode: str) -> None:
    provider, streamed = SAMPLE_OF[sample], "stream" in mode
    content_type = provider.content_type if streamed else "application/json"
    answer = Reply(provider.body(provider.closing, streamed=streamed), content_type=content_type)
    retries = RetryPolicy(retries=1, first_delay=0.001)
    with capture_telemetry() as captured, ReplayServer([body_with(provider, BUSY, mode), answer]) as server:
        model = provider.model_at(server.url, retries=retries)
        response = modes.run(mode, ChatClient(model, telemetry=captured.options).prompt("?"), model)
        first, second = server.requests
    assert (response.content, first.body) == (CLOSING, second.body)
    (chat,) = [span for span in captured.spans if span.name == "chat m"]
    assert dict(chat.attributes or {})["http.request.resend_count"] == 1


@sweep(sample=SAMPLE_OF, mode=STREAMING_MODES)
def test_a_refusal_after_a_part_of_the_answer_is_not_retried(sample: str, mode: str) -> None:
    provider = SAMPLE_OF[sample]
    pieces = [*provider.asking.events[: len(provider.asking.events) // 2], BUSY]
    reply = Reply(provider.body(Answer(None, pieces), streamed=True), content_type=provider.content_type)
    with ReplayServer([reply]) as server:
        model = provider.model_at(server.url, retries=2)
        with pytest.raises(ModelError) as caught:
            modes.run(mode, ChatClient(model).prompt("?"), model)
        assert len(server.requests) == 1
    assert (caught.value.retryable, caught.value.streamed) == (True, True)


@pytest.mark.parametrize("mode", STREAMING_MODES)
def test_a_stream_is_not_requested_again_after_the_total_time(mode: str) -> None:
    provider = SAMPLE_OF["AnthropicChatModel"]
    with ReplayServer([body_with(provider, BUSY, mode)]) as server:
        model = provider.model_at(server.url, retries=RetryPolicy(retries=3, first_delay=8), timeout=Timeouts(total=5))
        with pytest.raises(ModelError):
            modes.run(mode, ChatClient(model).prompt("?"), model)
        assert len(server.requests) == 1


def test_an_error_in_a_stream_has_the_delay_that_google_asks_for() -> None:
    sample = SAMPLE_OF["GeminiChatModel"]
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "7s"}
    event = {"error": {"status": "RESOURCE_EXHAUSTED", "details": [info]}}
    assert ask(sample, body_with(sample, event, "stream"), "stream").retry_after == 7


OVERFLOWS = {
    "OpenAI": "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "vLLM": "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
    "vLLM, newer": "You passed 9000 input tokens and requested 1 output tokens. However, the model's context length is "
    "only 8192 tokens",
    "vLLM, decoder": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
    "SGLang": "The input (9000 tokens) is longer than the model's context length (8192 tokens).",
    "llama.cpp": "the request exceeds the available context size, try increasing it",
    "LM Studio": "The number of tokens to keep from the initial prompt is greater than the context length",
    "Ollama": "the input length exceeds the context length",
    "Anthropic": "prompt is too long: 200001 tokens > 200000 maximum",
    "Anthropic, with the answer": "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Gemini": "The input token count (1196265) exceeds the maximum number of tokens allowed (1048575).",
    "Groq": "Please reduce the length of the messages or completion.",
    "xAI": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "Mistral": "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "OpenRouter": "This endpoint's maximum context length is 32768 tokens. However, you requested about 40000 tokens",
    "Moonshot": "Invalid request: Your request exceeded model token limit: 8192",
    "MiniMax": "invalid params, context window exceeds limit",
    "Together": "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193",
    "Bedrock": "Input is too long for requested model.",
    "GitHub": "prompt token count of 130000 exceeds the limit of 128000",
}


@sweep(strength=1, sample=SAMPLE_OF, mode=MODES)
def test_a_request_that_is_too_long_is_a_context_overflow(sample: str, mode: str) -> None:
    def check(text: str) -> None:
        for body in (
            {"error": {"message": text}},
            {"error": text},
            {"error": {"type": "invalid_request_error", "message": text}},
        ):
            refused = ask(SAMPLE_OF[sample], Reply.json(body, 400), mode)
            inside = ask(SAMPLE_OF[sample], body_with(SAMPLE_OF[sample], body, mode), mode)
            assert {(type(error), error.retryable) for error in (refused, inside)} == {(ContextOverflow, False)}
            assert text not in f"{refused} {inside}"

    check_each({"Anthropic": OVERFLOWS["Anthropic"]} if mode != "call" else OVERFLOWS, check)


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        (413, "the request is too large", ContextOverflow),
        (500, "the input length exceeds the context length", ContextOverflow),
        (429, "Too many tokens, please wait before trying again.", RateLimited),
        (400, "max_tokens: 300000 > 128000, which is the maximum allowed number of output tokens", InvalidRequest),
        (400, "image exceeds 5 MB maximum", InvalidRequest),
    ],
)
def test_only_the_length_of_a_request_is_a_context_overflow(status: int, message: str, kind: type[ModelError]) -> None:
    reply = Reply.json({"error": {"message": message}}, status)
    assert type(ask(SAMPLE_OF["OpenAIChatModel"], reply, "call")) is kind


@sweep(sample=SAMPLE_OF, mode=MODES)
def test_a_request_that_is_too_long_goes_to_the_next_model(sample: str, mode: str) -> None:
    refused = Reply.json({"error": {"message": OVERFLOWS["Gemini"], "type": "invalid_request_error"}}, 400)
    with ReplayServer([refused]) as server:
        model: HttpChatModel = SAMPLE_OF[sample].model_at(server.url)
        both = FallbackModel([model, ScriptedChatModel(["It fits."])])
        assert modes.run(mode, ChatClient(both).prompt("?")).content == "It fits."
        model.close()


def test_a_code_that_stands_for_no_status_has_none() -> None:
    for code in ("", "1300", "error", "200", "a_code", None, True):
        assert status_of_code(code) is None
