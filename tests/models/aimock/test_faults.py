"""Everything aimock can do wrong becomes the right error in every mode, and what can be repaired is asked again."""

from __future__ import annotations

import contextlib
import traceback
from typing import Any

import pytest

from tests import modes
from tests.captured import Telemetry
from tests.models.aimock.providers import FAULTS, LANGUAGES, REFUSALS, SECRET, SOON, Provider, each, refused
from tests.models.aimock.server import Aimock
from tests.modes import MODES, STREAMING_MODES
from tests.sweeps import sweep
from tests.waiting import PATIENCE
from traced_tools import AuthenticationError, ChatClient, ChatClientResponse, ModelError, ModelTimeout, RateLimited
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models.http.retries import RetryPolicy

FINE = {"match": {}, "response": {"content": "fine"}}

each_language = each(LANGUAGES)
each_fault = pytest.mark.parametrize("fault", FAULTS)


def asked(
    aimock: Aimock,
    provider: Provider,
    mode: str,
    *tools: Any,
    telemetry: Telemetry | None = None,
    retries: int | RetryPolicy = 0,
    timeout: float = PATIENCE,
    **options: Any,
) -> ChatClientResponse:
    model = provider.model_at(aimock, retries=retries, timeout=timeout, **options)
    client = ChatClient(model, tools=tools, telemetry=None if telemetry is None else telemetry.options)
    return modes.run(mode, client.prompt(SECRET), model)


def failed(aimock: Aimock, provider: Provider, mode: str, *tools: Any, **options: Any) -> ModelError:
    """Return the error that an answer is, which says nothing of what was asked and answered."""
    with pytest.raises(ModelError) as caught:
        asked(aimock, provider, mode, *tools, **options)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


# What comes instead of an answer.


@sweep(provider=LANGUAGES, mode=MODES, fault=FAULTS)
def test_each_fault_raises_the_error_of_its_kind(aimock: Aimock, provider: Provider, mode: str, fault: str) -> None:
    chaos, kind, status = FAULTS[fault]
    aimock.serve({**FINE, "chaos": chaos})
    error = failed(aimock, provider, mode)
    assert (type(error), error.status_code) == (kind, status)
    assert error.retryable == (kind is not InvalidResponse)


@sweep(provider=LANGUAGES, mode=MODES, status=REFUSALS)
def test_a_refusal_raises_the_error_of_its_status_with_its_code(
    aimock: Aimock, provider: Provider, mode: str, status: int
) -> None:
    aimock.serve({"match": {}, "response": refused(status)})
    error = failed(aimock, provider, mode)
    assert (type(error), error.status_code, error.code) == (REFUSALS[status], status, "a_short_code")


@each_language
def test_a_wrong_key_is_an_authentication_error_that_does_not_quote_it(
    aimock: Aimock, provider: Provider, mode: str
) -> None:
    error = failed(aimock, provider, mode, key=SECRET)
    assert (type(error), error.status_code) == (AuthenticationError, 401)
    assert aimock.requests == []


@each_language
def test_a_request_that_the_server_does_not_know_is_an_invalid_request(
    aimock: Aimock, provider: Provider, mode: str
) -> None:
    assert type(failed(aimock, provider, mode)) is InvalidRequest
    assert aimock.statuses == [404]


@pytest.mark.slow
@each_language
def test_an_answer_that_does_not_begin_in_time_is_a_time_out(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve({**FINE, "chaos": {"latencyMs": 30_000}})
    assert type(failed(aimock, provider, mode, timeout=0.2)) is ModelTimeout


@each_language
def test_a_custom_header_reaches_the_server(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve(FINE)
    assert failed(aimock, provider, mode, headers={"X-AIMock-Chaos-Drop": "1"}).status_code == 500
    assert asked(aimock, provider, mode).content == "fine"


# What goes wrong in the middle of a stream.


@sweep(provider=LANGUAGES, streaming=STREAMING_MODES, chunks=[2, 10])
def test_a_stream_that_is_cut_is_an_invalid_response(
    aimock: Aimock, provider: Provider, streaming: str, chunks: int
) -> None:
    text = {"content": "one two three four five six seven eight nine ten"}
    aimock.serve({"match": {}, "response": text, "chunkSize": 4, "latency": 1, "truncateAfterChunks": chunks})
    assert type(failed(aimock, provider, streaming)) is InvalidResponse
    (entry,) = aimock.journal
    assert entry["response"]["interruptReason"] == "truncateAfterChunks"


@each_language
def test_a_stream_that_is_cut_after_a_while_is_an_invalid_response(
    aimock: Aimock, provider: Provider, streaming: str
) -> None:
    slow = {"streamingProfile": {"ttft": 0, "tps": 0.1}, "chunkSize": 1}
    aimock.serve({**FINE, **slow, "disconnectAfterMs": 100})
    assert type(failed(aimock, provider, streaming)) is InvalidResponse


@pytest.mark.slow
@each_language
def test_a_stream_that_stalls_is_a_time_out(aimock: Aimock, provider: Provider, streaming: str) -> None:
    aimock.serve({**FINE, "streamingProfile": {"ttft": 0, "tps": 0.1}, "chunkSize": 1})
    assert type(failed(aimock, provider, streaming, timeout=0.2)) is ModelTimeout


@sweep(provider=LANGUAGES, streaming=STREAMING_MODES, chunks=[2, 4, 8, 16])
def test_tools_run_only_after_the_stream_of_their_calls_has_ended(
    aimock: Aimock, provider: Provider, streaming: str, chunks: int
) -> None:
    ran: list[str] = []

    def note(text: str) -> None:
        ran.append(text)

    texts = ["one", "three", "two"]
    calls = [{"type": "toolCall", "name": "note", "arguments": {"text": text}} for text in texts]
    cut = {"match": {}, "response": {"blocks": calls}, "latency": 1, "truncateAfterChunks": chunks}
    aimock.serve({**FINE, "match": {"hasToolResult": True}}, cut)
    with contextlib.suppress(ModelError):
        asked(aimock, provider, streaming, note)
    was_cut = aimock.journal[0]["response"].get("interrupted", False)
    assert sorted(ran) == ([] if was_cut else texts)


# What is asked again.


@sweep(provider=LANGUAGES, mode=MODES, fault=[name for name, (_, kind, _) in FAULTS.items() if kind is ModelError])
def test_a_retryable_fault_is_retried(aimock: Aimock, provider: Provider, mode: str, fault: str) -> None:
    aimock.serve({**FINE, "match": {"sequenceIndex": 0}, "chaos": FAULTS[fault][0]}, FINE)
    assert asked(aimock, provider, mode, retries=SOON).content == "fine"
    assert aimock.statuses == [FAULTS[fault][2] or 0, 200]


@each_language
def test_a_request_is_retried_after_a_server_error(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve(FINE)
    aimock.fail_next(503)
    assert asked(aimock, provider, mode, retries=SOON).content == "fine"
    assert aimock.statuses == [503, 200]


@each_language
def test_a_rate_limited_request_is_retried_after_the_delay_of_the_server(
    aimock: Aimock, provider: Provider, mode: str
) -> None:
    patient = RetryPolicy(retries=2, first_delay=3600)
    aimock.serve({"match": {"sequenceIndex": 0}, "response": refused(429, retryAfter=0)}, FINE)
    assert asked(aimock, provider, mode, retries=patient).content == "fine"
    assert aimock.statuses == [429, 200]


@each_language
def test_a_request_is_not_retried_if_the_server_asks_for_an_hour(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve({"match": {"sequenceIndex": 0}, "response": refused(429, retryAfter=3600)}, FINE)
    error = failed(aimock, provider, mode, retries=SOON)
    assert (type(error), error.retry_after) == (RateLimited, 3600)
    assert aimock.statuses == [429]


@each_language
def test_the_error_of_the_last_attempt_is_raised(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve(FINE)
    aimock.fail(dropRate=1)
    assert failed(aimock, provider, mode, retries=SOON).status_code == 500
    assert aimock.statuses == [500, 500, 500]


@each_language
def test_an_error_that_is_not_retryable_is_not_retried(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve({"match": {}, "response": refused(400)})
    failed(aimock, provider, mode, retries=SOON)
    assert aimock.statuses == [400]


# What is left behind.


@sweep(provider=LANGUAGES, mode=MODES, fault=FAULTS)
def test_a_fault_after_the_tools_ends_the_run_without_rerunning_them(
    aimock: Aimock, provider: Provider, mode: str, fault: str, telemetry: Telemetry
) -> None:
    ran: list[str] = []

    def note(text: str) -> None:
        ran.append(text)

    calls = [{"name": "note", "arguments": {"text": text}} for text in ("one", "two")]
    chaos, kind, _ = FAULTS[fault]
    aimock.serve({**FINE, "match": {"hasToolResult": True}, "chaos": chaos}, {**FINE, "response": {"toolCalls": calls}})
    failed(aimock, provider, mode, note, telemetry=telemetry)
    assert sorted(ran) == ["one", "two"]
    telemetry.check_each_ended_once()
    telemetry.check_run("error", f"traced_tools.errors.{kind.__name__}")


@each_language
@each_fault
def test_a_model_answers_again_after_a_fault(aimock: Aimock, provider: Provider, fault: str) -> None:
    with provider.model_at(aimock, retries=0, timeout=PATIENCE) as model:
        client = ChatClient(model)
        for stream in (False, True):
            aimock.serve({**FINE, "match": {"sequenceIndex": 0}, "chaos": FAULTS[fault][0]}, FINE)
            with pytest.raises(ModelError):
                list(client.prompt("hi").stream()) if stream else client.prompt("hi").call()
            assert client.prompt("hi").call().content == "fine"


@each_language
def test_a_model_is_usable_after_its_stream_is_left(aimock: Aimock, provider: Provider) -> None:
    long = {"match": {"sequenceIndex": 0}, "response": {"content": "on and " * 5000}, "chunkSize": 1}
    aimock.serve(long, FINE)
    with provider.model_at(aimock, retries=0, timeout=PATIENCE) as model:
        client = ChatClient(model)
        with client.prompt("hi").stream() as stream:
            next(iter(stream))
        assert client.prompt("hi").call().content == "fine"
