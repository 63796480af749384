"""Ollama's embeddings API.

Format: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

from traced_tools.core.messages import Usage
from traced_tools.models.embedding import EmbeddingResponse
from traced_tools.models.http.embedding import HttpEmbeddingModel, Numbers
from traced_tools.models.http.options import HttpOptions
from traced_tools.models.ollama.chat import connect_ollama
from traced_tools.models.parsing import FAIL_FAST, Body, parse_body


class OllamaEmbeddingModel(HttpEmbeddingModel):
    """An embedding model that Ollama runs.

    Ollama silently truncates a text that is longer than the model's context; `extra={"truncate": False}` makes it an
    error. Set `keep_alive` and `options` with `extra` as well.

    Args:
        model: the model's name, such as `nomic-embed-text`.
        dimensions: the length of each vector, for models that can shorten them. If the server ignores it,
            `InvalidResponse` is raised.
        base_url: the address of the server; by default `OLLAMA_HOST`, else port 11434 of this machine.
        api_key: the API key; by default `OLLAMA_API_KEY`. Required for Ollama's cloud, https://ollama.com.
        extra: further fields of the request, sent unchanged.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or that of the cloud and there is no key.
    """

    path = "/api/embed"
    batch_size = 256  # Ollama has no limit, but a CPU may take long for one request

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
        super().__init__(model, connect_ollama(base_url, api_key, http), dimensions, extra)

    def decode(self, body: bytes) -> EmbeddingResponse:
        """Decode the body of an answer; raises `InvalidResponse`."""
        answer = parse_body(_OllamaEmbeddings, body, "the answer", self.provider, count_items=False)
        usage = None if answer.prompt_eval_count is None else Usage(input_tokens=answer.prompt_eval_count)
        return EmbeddingResponse(answer.embeddings, usage=usage, model=answer.model)


class _OllamaEmbeddings(Body):
    """The body of an answer."""

    embeddings: Annotated[tuple[Numbers, ...], FAIL_FAST]
    model: str | None = None
    prompt_eval_count: int | None = None
