"""Gemini's embeddings API.

Format: https://ai.google.dev/api/embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

from traced_tools.models.embedding import EmbeddingResponse
from traced_tools.models.gemini.chat import connect_gemini, model_path
from traced_tools.models.gemini.wire import CAMEL, GeminiUsage
from traced_tools.models.http.embedding import HttpEmbeddingModel, Numbers
from traced_tools.models.http.options import HttpOptions
from traced_tools.models.parsing import FAIL_FAST, Body, Wire, parse_body


class GeminiEmbeddingModel(HttpEmbeddingModel):
    """An embedding model behind the Gemini API.

    Args:
        model: the model's name, such as `gemini-embedding-001`.
        dimensions: the length of each vector, for models that can shorten them. If the server ignores it,
            `InvalidResponse` is raised.
        base_url: the address of the API, including its version; by default as for `GeminiChatModel`.
        api_key: the API key; by default `GOOGLE_API_KEY`, else `GEMINI_API_KEY`. Required for Google's address.
        extra: further fields of the request of each text, sent unchanged, such as `taskType`.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or Google's own and there is no key.
    """

    batch_size = 100  # more are refused

    def __init__(
        self,
        model: str,
        *,
        dimensions: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        super().__init__(model, connect_gemini(base_url, api_key, http), dimensions, extra)
        self.path = f"{model_path(model)}:batchEmbedContents"

    def encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        """Return the JSON body that requests the embeddings of `texts`."""
        settings: dict[str, Any] = {"model": model_path(self.model).removeprefix("/")}
        if self.dimensions is not None:
            settings["outputDimensionality"] = self.dimensions
        return {"requests": [{**settings, "content": {"parts": [{"text": text}]}, **self._extra} for text in texts]}

    def decode(self, body: bytes) -> EmbeddingResponse:
        """Decode the body of an answer; raises `InvalidResponse`."""
        answer = parse_body(_GeminiEmbeddings, body, "the answer", self.provider, count_items=False)
        usage = None if answer.usage_metadata is None else answer.usage_metadata.to_usage()
        return EmbeddingResponse([embedding.values for embedding in answer.embeddings], usage=usage)


class _GeminiEmbedding(Wire):
    """One vector."""

    values: Numbers


class _GeminiEmbeddings(Body):
    """The body of an answer."""

    model_config = CAMEL

    embeddings: Annotated[tuple[_GeminiEmbedding, ...], FAIL_FAST]
    usage_metadata: GeminiUsage | None = None
