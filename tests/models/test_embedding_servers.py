"""The embeddings of OpenAI, Ollama and Gemini: requests, answers, and errors."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.markers import MARKER, everything
from tests.waiting import patiently
from traced_tools import AuthenticationError, ConfigurationError, ModelError, RateLimited, Usage
from traced_tools.errors import InvalidRequest, InvalidResponse
from traced_tools.models import EmbeddingResponse, GeminiEmbeddingModel, OllamaEmbeddingModel, OpenAIEmbeddingModel
from traced_tools.models.http.embedding import HttpEmbeddingModel
from traced_tools.testing import Received, ReplayServer, Reply

WAYS = ("embed", "aembed")
OPENAI_SAMPLE = {
    "object": "list",
    "data": [
        {"object": "embedding", "index": 0, "embedding": [0.5, -0.25]},
        {"object": "embedding", "index": 1, "embedding": [1, 0.0]},
    ],
    "model": "text-embedding-3-small-2024",
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
}
OLLAMA_SAMPLE = {
    "model": "nomic-embed-text",
    "embeddings": [[0.5, -0.25], [1, 0.0]],
    "total_duration": 14143917,
    "load_duration": 1019500,
    "prompt_eval_count": 5,
}
VECTORS = ((0.5, -0.25), (1.0, 0.0))


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OLLAMA_HOST", "OLLAMA_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def embedded(model: HttpEmbeddingModel, way: str, *texts: str) -> EmbeddingResponse:
    """Embed `texts`, blocking or on asyncio, and close the model."""
    if way == "embed":
        with model:
            return model.embed(texts)

    async def on_asyncio() -> EmbeddingResponse:
        async with model:
            return await model.aembed(texts)

    return asyncio.run(patiently(on_asyncio()))


# OpenAI's.


def openai(url: str = "http://127.0.0.1/v1", **settings: Any) -> OpenAIEmbeddingModel:
    return OpenAIEmbeddingModel("text-embedding-3-small", base_url=url, **settings)


def packed(*numbers: float) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def answer(*embeddings: Any, **fields: Any) -> bytes:
    data = [{"index": index, "embedding": each} for index, each in enumerate(embeddings)]
    return json.dumps({"data": data, **fields}).encode()


@pytest.mark.parametrize("way", WAYS)
def test_openai_embeddings_are_encoded_and_decoded(way: str) -> None:
    with ReplayServer([Reply.json(OPENAI_SAMPLE)]) as server:
        model = openai(f"{server.url}/v1", api_key="sk-1", dimensions=2, extra={"user": "u"})
        response = embedded(model, way, "one", "two")
        (request,) = server.requests
    assert response.embeddings == VECTORS
    assert (response.usage, response.model) == (Usage(input_tokens=5), "text-embedding-3-small-2024")
    assert (request.path, request.headers["authorization"]) == ("/v1/embeddings", "Bearer sk-1")
    assert request.json() == {
        "model": "text-embedding-3-small",
        "input": ["one", "two"],
        "dimensions": 2,
        "user": "u",
    }


@pytest.mark.parametrize("way", WAYS)
def test_more_texts_than_the_batch_size_become_several_requests(way: str) -> None:
    def numbered(request: Received) -> Reply:
        texts = request.json()["input"]
        data = [{"index": index, "embedding": [float(text)]} for index, text in enumerate(texts)]
        return Reply.json({"data": data[::-1], "usage": {"prompt_tokens": len(texts)}})

    with ReplayServer(numbered) as server:
        response = embedded(openai(server.url), way, *map(str, range(5000)))
        sizes = [len(request.json()["input"]) for request in server.requests]
    assert sizes == [2048, 2048, 904]
    assert response.embeddings == tuple((float(number),) for number in range(5000))
    assert response.usage == Usage(input_tokens=5000)


def test_a_smaller_batch_size_is_respected() -> None:
    with ReplayServer([Reply(answer([1.0])), Reply(answer([2.0]))]) as server:
        assert embedded(openai(server.url, batch_size=1), "embed", "a", "b").embeddings == ((1.0,), (2.0,))


def test_base64_is_requested_only_from_openai_by_default() -> None:
    def asked(**settings: Any) -> Any:
        with OpenAIEmbeddingModel("m", **settings) as model:
            return model.encode(("a",)).get("encoding_format")

    assert asked(api_key="sk-1") == "base64"
    assert asked(api_key="sk-1", extra={"encoding_format": "float"}) == "float"
    assert asked(base_url="http://127.0.0.1/v1") is None
    assert asked(base_url="https://eu.api.openai.com/v1", api_key="sk-1") == "base64"
    assert asked(base_url="https://api.openai.com.example/v1") is None
    assert asked(base_url="http://127.0.0.1/v1", extra={"encoding_format": "base64"}) == "base64"


def test_vectors_are_decoded_from_numbers_and_from_base64() -> None:
    assert openai().decode(answer(packed(0.5, -0.25), [1, 0.0])).embeddings == VECTORS


@pytest.mark.parametrize("indexes", [(1, 0), (1, None)], ids=["turned round", "zero left out"])
def test_vectors_are_sorted_by_index(indexes: tuple[int | None, ...]) -> None:
    data = [{"index": index, "embedding": [float(place)]} for place, index in enumerate(indexes)]
    if None in indexes:  # as servers do that leave out what is 0
        data = [{"embedding": [1.0]}, {"index": 1, "embedding": [0.0]}]
    assert openai().decode(json.dumps({"data": data}).encode()).embeddings == ((1.0,), (0.0,))


def test_vectors_without_an_index_keep_their_order() -> None:
    data = [{"embedding": [1.0]}, {"embedding": [0.0]}]
    assert openai().decode(json.dumps({"data": data}).encode()).embeddings == ((1.0,), (0.0,))


@pytest.mark.parametrize("indexes", [(0, 0), (1, 2), (-1, 0), (0, 7)])
def test_ambiguous_indices_are_an_invalid_response(indexes: tuple[int, ...]) -> None:
    data = [{"index": index, "embedding": [1.0]} for index in indexes]
    with pytest.raises(InvalidResponse, match="each index from 0 on exactly once"):
        openai().decode(json.dumps({"data": data}).encode())


WRONG_VECTORS = (
    *("[NaN]", "[Infinity]", "[1e999]", '["1"]', "[true]", "[null]", "[[1]]", "null", "1", "{}"),
    *('"AAA"', '"AAAA"', '"AACAfw=="', '"AADAfw=="', '"not base64"', '"ä"'),
)


@pytest.mark.parametrize("vector", WRONG_VECTORS)
def test_an_invalid_vector_is_an_invalid_response_that_names_its_position(vector: str) -> None:
    with pytest.raises(InvalidResponse, match=r"data\.0\.embedding") as caught:
        openai().decode(f'{{"data": [{{"index": 0, "embedding": {vector}}}]}}'.encode())
    assert caught.value.__context__ is None


@pytest.mark.parametrize("body", ["", "{", "[]", "{}", '{"data": 1}', '{"data": [1]}', '{"error": {"code": "x"}}'])
def test_an_invalid_body_is_an_invalid_response(body: str) -> None:
    with pytest.raises(InvalidResponse):
        openai().decode(body.encode())


def test_a_known_server_is_named_and_gets_only_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert (openai().provider, openai(provider="vllm").provider) == ("openai", "vllm")
    with pytest.raises(ConfigurationError, match="MISTRAL_API_KEY"):
        openai("https://api.mistral.ai/v1")
    assert openai("https://api.mistral.ai/v1", api_key="k").provider == "mistral_ai"


@pytest.mark.parametrize("wrong", [{"dimensions": 0}, {"batch_size": 0}])
def test_a_setting_below_one_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        openai(**wrong)


# Ollama's.


@pytest.mark.parametrize("way", WAYS)
def test_ollama_embeddings_are_encoded_and_decoded(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ReplayServer([Reply.json(OLLAMA_SAMPLE)]) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        model = OllamaEmbeddingModel("nomic-embed-text", dimensions=2, extra={"truncate": False})
        response = embedded(model, way, "one", "two")
        (request,) = server.requests
    assert response.embeddings == VECTORS
    assert (response.usage, response.model) == (Usage(input_tokens=5), "nomic-embed-text")
    assert (request.path, model.provider) == ("/api/embed", "ollama")
    assert request.json() == {
        "model": "nomic-embed-text",
        "input": ["one", "two"],
        "dimensions": 2,
        "truncate": False,
    }


def ollama(url: str = "http://127.0.0.1:11434") -> OllamaEmbeddingModel:
    return OllamaEmbeddingModel("nomic-embed-text", base_url=url)


def test_ollama_may_report_no_usage() -> None:
    assert ollama().decode(b'{"embeddings": [[1.0]]}').usage is None


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{}",
        '{"embeddings": [1]}',
        '{"embeddings": [["1"]]}',
        '{"embeddings": [[NaN]]}',
        '{"error": "no model"}',
    ],
)
def test_an_impossible_ollama_answer_is_an_invalid_response(body: str) -> None:
    with pytest.raises(InvalidResponse) as caught:
        ollama().decode(body.encode())
    assert (caught.value.provider, caught.value.code) == ("ollama", None)


# Gemini's.


def gemini(url: str = "http://127.0.0.1") -> GeminiEmbeddingModel:
    return GeminiEmbeddingModel("gemini-embedding-001", base_url=f"{url}/v1beta", api_key="k")


@pytest.mark.parametrize("way", WAYS)
def test_gemini_embeddings_are_encoded_and_decoded(way: str) -> None:
    sample = {"embeddings": [{"values": [0.5, -0.25]}, {"values": [1, 0.0]}], "usageMetadata": {"promptTokenCount": 5}}
    with ReplayServer([Reply.json(sample)]) as server:
        settings: dict[str, Any] = {"dimensions": 2, "extra": {"taskType": "RETRIEVAL_QUERY"}}
        model = GeminiEmbeddingModel("gemini-embedding-001", base_url=f"{server.url}/v1beta", api_key="k", **settings)
        response = embedded(model, way, "one", "two")
        (request,) = server.requests
    assert (response.embeddings, response.usage) == (VECTORS, Usage(input_tokens=5))
    assert (request.path, model.provider) == ("/v1beta/models/gemini-embedding-001:batchEmbedContents", "gcp.gemini")
    assert request.headers["x-goog-api-key"] == "k"
    of_each = {"model": "models/gemini-embedding-001", "outputDimensionality": 2, "taskType": "RETRIEVAL_QUERY"}
    assert request.json() == {
        "requests": [{**of_each, "content": {"parts": [{"text": text}]}} for text in ("one", "two")]
    }


def test_gemini_gets_at_most_100_texts_in_a_request() -> None:
    def numbered(request: Received) -> Reply:
        return Reply.json({"embeddings": [{"values": [1.0]} for _ in request.json()["requests"]]})

    with ReplayServer(numbered) as server:
        response = embedded(gemini(server.url), "embed", *map(str, range(150)))
        sizes = [len(request.json()["requests"]) for request in server.requests]
    assert (sizes, len(response.embeddings), response.usage) == ([100, 50], 150, None)


@pytest.mark.parametrize("body", ["", "{}", '{"embeddings": [[1.0]]}', '{"embeddings": [{"values": ["1"]}]}'])
def test_an_impossible_gemini_answer_is_an_invalid_response(body: str) -> None:
    with pytest.raises(InvalidResponse) as caught:
        gemini().decode(body.encode())
    assert caught.value.provider == "gcp.gemini"


# All.


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [openai, ollama, gemini])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, InvalidRequest), (401, AuthenticationError), (404, InvalidRequest), (429, RateLimited)]
)
def test_an_error_answer_raises_its_class_and_quotes_nothing(
    way: str, make: Any, status: int, kind: type[ModelError]
) -> None:
    reply = Reply.json({"error": MARKER + " is too long"}, status, {"retry-after": "3600"})
    with ReplayServer([reply]) as server, pytest.raises(kind) as caught:
        embedded(make(server.url), way, MARKER)
    assert caught.value.status_code == status
    assert caught.value.body == f'{{"error": "{MARKER} is too long"}}'
    assert MARKER not in everything([str(caught.value), repr(caught.value), caught.value.__context__])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["data", "index", "embedding", "embeddings", "usage", "prompt_tokens", "model", "error"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_server_answer_raises_only_invalid_response(body: Any) -> None:
    for model in (openai(), ollama()):
        try:
            response = model.decode(json.dumps(body).encode())
        except InvalidResponse as error:
            assert error.provider == model.provider
        else:
            assert all(isinstance(number, float) for vector in response.embeddings for number in vector)
