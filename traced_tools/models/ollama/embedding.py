"""Embeddings of models that Ollama runs.

Format: https://github.com/ollama/ollama/blob/main/docs/api.md#generate-embeddings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Unpack

from traced_tools.core.messages import Usage
from traced_tools.models.embedding import EmbeddingResponse
from traced_tools.models.http.embedding import HttpEmbeddingModel, Numbers
from traced_tools.models.http.options import HttpOptions
from traced_tools.models.ollama.chat import ollama_transport
from traced_tools.models.wire import FAIL_FAST, Body, parse_body


class OllamaEmbeddingModel(HttpEmbeddingModel):
    """An embedding model that Ollama runs.

    Ollama cuts a text that is longer than the model's context without a word; `extra={"truncate": False}` makes it an
    error. `keep_alive` and `options` go through `extra` as well.

    Args:
        model: the model's name, such as `nomic-embed-text`.
        dimensions: how long each vector is to be, for models that can shorten them; a server that ignores it is an
            `InvalidResponse`.
        base_url: where the server is; by default `OLLAMA_HOST`, else port 11434 of this machine.
        api_key: by default `OLLAMA_API_KEY`; needed for Ollama's cloud, https://ollama.com.
        extra: further fields, sent as they are.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or the cloud without a key.
    """

    path = "/api/embed"
    batch_size = 256  # nothing limits it but the patience of whoever waits for a CPU

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
        super().__init__(model, ollama_transport(base_url, api_key, http), dimensions, extra)

    def decode(self, body: bytes) -> EmbeddingResponse:
        """Return the answer a body stands for; raises `InvalidResponse`."""
        answer = parse_body(_OllamaEmbeddings, body, "the answer", self.provider, count_items=False)
        usage = None if answer.prompt_eval_count is None else Usage(input_tokens=answer.prompt_eval_count)
        return EmbeddingResponse(answer.embeddings, usage=usage, model=answer.model)


class _OllamaEmbeddings(Body):
    """An answer."""

    embeddings: Annotated[tuple[Numbers, ...], FAIL_FAST]
    model: str | None = None
    prompt_eval_count: int | None = None
