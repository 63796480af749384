"""OpenAI's embeddings API, and every server compatible with it.

Format: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Unpack

from pydantic import BeforeValidator

from traced_tools.core.checks import expect, expect_whole
from traced_tools.errors import InvalidResponse
from traced_tools.models.embedding import EmbeddingResponse
from traced_tools.models.http.embedding import HttpEmbeddingModel, Numbers
from traced_tools.models.http.options import HttpOptions, check_options
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.openai.chat_wire import CompletionUsage
from traced_tools.models.openai.common import auth_headers, resolve_base_url
from traced_tools.models.openai.servers import find_known_server, resolve_server
from traced_tools.models.parsing import FAIL_FAST, Body, Wire, parse_body


class OpenAIEmbeddingModel(HttpEmbeddingModel):
    """An embedding model behind OpenAI's API, or behind a compatible server (vLLM, Ollama, a gateway).

    OpenAI itself is asked for vectors in base64, which is a third of the size and faster to decode. Other servers may
    not support that; `extra={"encoding_format": "base64"}` asks them too. Both formats are decoded.

    Args:
        model: the model's name, such as `text-embedding-3-small`.
        dimensions: the length of each vector, for models that can shorten them. If the server ignores it,
            `InvalidResponse` is raised.
        base_url: the address of the API; by default `OPENAI_BASE_URL`, else OpenAI's address.
        api_key: the API key; by default the environment variable of the server, as for `OpenAIChatModel`.
        provider: the provider's name in telemetry (`gen_ai.provider.name`); by default derived from the address, else
            `openai`.
        batch_size: the maximum number of texts in one request; OpenAI accepts 2048, some servers fewer.
        extra: further fields of the request, sent unchanged.
        **http: connection options, see `HttpOptions`.

    Raises:
        ConfigurationError: if the address is invalid, or belongs to a known server for which there is no key.
    """

    path = "/embeddings"

    def __init__(
        self,
        model: str,
        *,
        dimensions: int | None = None,
        base_url: str | None = None,
        api_key: str | None = None,
        provider: str | None = None,
        batch_size: int = 2048,
        extra: Mapping[str, Any] | None = None,
        **http: Unpack[HttpOptions],
    ) -> None:
        check_options(http)
        expect("provider", provider, (str, type(None)), "a str or None")
        expect_whole("batch_size", batch_size, 1)
        address = resolve_base_url(base_url, self.path)
        provider = provider or resolve_server(address).provider
        transport = HttpTransport(address, provider, auth_headers(api_key, address, provider), http)
        super().__init__(model, transport, dimensions, extra)
        self.batch_size = batch_size
        server = find_known_server(address)
        self._is_openai = server is not None and server.provider == "openai"

    def encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        """Return the JSON body that requests the embeddings of `texts`."""
        body = super().encode(texts)
        return {"encoding_format": "base64", **body} if self._is_openai else body

    def decode(self, body: bytes) -> EmbeddingResponse:
        """Decode the body of an answer; raises `InvalidResponse`."""
        answer = parse_body(_OpenAIEmbeddings, body, "the answer", self.provider, count_items=False)
        usage = None if answer.usage is None else answer.usage.to_usage()
        return EmbeddingResponse(self._sort_vectors(answer.data), usage=usage, model=answer.model)

    def _sort_vectors(self, items: Sequence[_OpenAIEmbedding]) -> list[tuple[float, ...]]:
        """Return the vectors ordered by index; an item without an index has its position as index."""
        indices = [position if item.index is None else item.index for position, item in enumerate(items)]
        if sorted(indices) != list(range(len(items))):
            raise InvalidResponse("the embeddings don't have each index from 0 on exactly once", provider=self.provider)
        numbered = zip(indices, (item.embedding for item in items), strict=True)
        return [vector for _, vector in sorted(numbered)]


def _unpack_base64(embedding: object) -> object:
    """Decode base64 text to its 32-bit little-endian floats; return any other value unchanged."""
    if not isinstance(embedding, str):
        return embedding
    data = base64.b64decode(embedding, validate=True)
    if len(data) % 4:
        raise ValueError("the length is not a multiple of four bytes")
    return struct.unpack(f"<{len(data) // 4}f", data)


class _OpenAIEmbedding(Wire):
    """One vector. Some servers omit `index` if it is 0, others always."""

    index: int | None = None
    embedding: Annotated[Numbers, BeforeValidator(_unpack_base64)]


class _OpenAIEmbeddings(Body):
    """The body of an answer."""

    data: Annotated[tuple[_OpenAIEmbedding, ...], FAIL_FAST]
    model: str | None = None
    usage: CompletionUsage | None = None
