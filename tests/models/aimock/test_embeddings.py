"""Embeddings of aimock: generated vectors, vectors from a fixture, and faults."""

from __future__ import annotations

import asyncio
import math
import traceback
from typing import Any

import pytest

from tests.models.aimock.providers import EMBEDDERS, FAULTS, REFUSALS, SECRET, SOON, Provider, each, refused
from tests.models.aimock.server import Aimock
from tests.modes import MODES
from tests.sweeps import sweep
from tests.waiting import PATIENCE, patiently
from traced_tools import AuthenticationError, ModelError, ModelTimeout
from traced_tools.errors import InvalidResponse
from traced_tools.models import EmbeddingResponse, OllamaEmbeddingModel
from traced_tools.models.http.embedding import HttpEmbeddingModel


@pytest.fixture(params=["embed", "aembed"])
def mode(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def embedded(aimock: Aimock, provider: Provider, mode: str, *texts: str, **options: Any) -> EmbeddingResponse:
    model: HttpEmbeddingModel = provider.model_at(aimock, **{"retries": 0, "timeout": PATIENCE, **options})
    if mode == "embed":
        with model:
            return model.embed(texts)

    async def on_asyncio() -> EmbeddingResponse:
        async with model:
            return await model.aembed(texts)

    return asyncio.run(patiently(on_asyncio()))


def failed(aimock: Aimock, provider: Provider, mode: str, **options: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        embedded(aimock, provider, mode, SECRET, **options)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    return caught.value


@each(EMBEDDERS, "vectors")
def test_each_text_gets_its_vector_in_order(aimock: Aimock, provider: Provider, mode: str) -> None:
    there = embedded(aimock, provider, mode, "rain", "snow", "rain").embeddings
    assert there[0] == there[2] != there[1]
    assert embedded(aimock, provider, mode, "snow", "rain").embeddings == (there[1], there[0])
    assert all(math.isfinite(number) for vector in there for number in vector)


@each(EMBEDDERS, "vectors")
def test_vectors_have_the_requested_dimensions(aimock: Aimock, provider: Provider, mode: str) -> None:
    response = embedded(aimock, provider, mode, "rain", "snow", dimensions=7)
    assert [len(vector) for vector in response.embeddings] == [7, 7]


@each(EMBEDDERS, "vectors")
def test_vectors_of_another_length_are_an_invalid_response(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.serve({"match": {"inputText": SECRET}, "response": {"embedding": [0.5, -1, 2]}})
    assert embedded(aimock, provider, mode, SECRET).embeddings == ((0.5, -1.0, 2.0),)
    assert type(failed(aimock, provider, mode, dimensions=7)) is InvalidResponse


@each(EMBEDDERS, "vectors")
def test_many_texts_are_sent_in_batches_and_returned_in_order(aimock: Aimock, provider: Provider, mode: str) -> None:
    texts = [f"text {number}" for number in range(5)]
    together = embedded(aimock, provider, mode, *texts)
    assert embedded(aimock, provider, mode, *texts, batch_size=2).embeddings == together.embeddings
    asked = [request["embeddingInput"] for request in aimock.requests]
    assert asked == [" ".join(texts), "text 0 text 1", "text 2 text 3", "text 4"]


def test_an_answer_of_ollamas_older_api_is_an_invalid_response(aimock: Aimock, mode: str) -> None:
    (ollama,) = (found for found in EMBEDDERS if found.model is OllamaEmbeddingModel)
    assert type(failed(aimock, ollama, mode)) is InvalidResponse
    assert aimock.statuses == [200]


@sweep(provider=EMBEDDERS, mode=MODES, fault=FAULTS)
def test_each_fault_raises_the_error_of_its_kind(aimock: Aimock, provider: Provider, mode: str, fault: str) -> None:
    chaos, kind, status = FAULTS[fault]
    aimock.fail(**chaos)
    error = failed(aimock, provider, mode)
    assert (type(error), error.status_code) == (kind, status)


@sweep(provider=EMBEDDERS, mode=MODES, status=REFUSALS)
def test_a_refusal_raises_the_error_of_its_status_with_its_code(
    aimock: Aimock, provider: Provider, mode: str, status: int
) -> None:
    aimock.serve({"match": {}, "response": refused(status)})
    error = failed(aimock, provider, mode)
    assert (type(error), error.status_code, error.code) == (REFUSALS[status], status, "a_short_code")


@each(EMBEDDERS)
def test_a_wrong_key_is_an_authentication_error(aimock: Aimock, provider: Provider, mode: str) -> None:
    assert type(failed(aimock, provider, mode, key=SECRET)) is AuthenticationError


@pytest.mark.slow
@each(EMBEDDERS)
def test_a_late_answer_is_a_time_out(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.fail(latencyMs=30_000)
    assert type(failed(aimock, provider, mode, timeout=0.2)) is ModelTimeout


@each(EMBEDDERS, "vectors")
def test_a_request_is_retried_after_a_server_error(aimock: Aimock, provider: Provider, mode: str) -> None:
    aimock.fail_next(503)
    assert embedded(aimock, provider, mode, "rain", retries=SOON).embeddings
    assert aimock.statuses == [503, 200]
