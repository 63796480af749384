"""OpenAI's embeddings, and every server that speaks them.

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
from traced_tools.models.openai.common import address_of, headers_of
from traced_tools.models.openai.servers import known_server, server_of
from traced_tools.models.wire import FAIL_FAST, Body, Wire, parse_body


class OpenAIEmbeddingModel(HttpEmbeddingModel):
    """A model behind OpenAI's embeddings, or behind a server that speaks them (vLLM, Ollama, a gateway).

    OpenAI itself is asked for vectors as base64, which has a third of the bytes and is read faster. Other servers may
    not know it; `extra={"encoding_format": "base64"}` asks them, too. Both forms are read.

    Args:
        model: the model's name, such as `text-embedding-3-small`.
        dimensions: how long each vector is to be, for models that can shorten them; a server that ignores it is an
            `InvalidResponse`.
        base_url: where the API is; by default `OPENAI_BASE_URL`, else OpenAI.
        api_key: by default the variable of the server there, as for `OpenAIChatModel`.
        provider: who runs the model, for telemetry (`gen_ai.provider.name`); by default told by the address, else
            `openai`.
        batch_size: the most texts in one request; OpenAI takes 2048, some servers fewer.
        extra: further fields, sent as they are.
        **http: how to reach it, as in `HttpOptions`.

    Raises:
        ConfigurationError: for an address that is none, or a known server without its key.
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
        address = address_of(base_url, self.path)
        provider = provider or server_of(address).provider
        transport = HttpTransport(address, provider, headers_of(api_key, address, provider), http)
        super().__init__(model, transport, dimensions, extra)
        self.batch_size = batch_size
        known = known_server(address)
        self._is_openai = known is not None and known.provider == "openai"

    def encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        """Return the JSON body that asks for the embeddings of `texts`."""
        body = super().encode(texts)
        return {"encoding_format": "base64", **body} if self._is_openai else body

    def decode(self, body: bytes) -> EmbeddingResponse:
        """Return the answer a body stands for; raises `InvalidResponse`."""
        answer = parse_body(_OpenAIEmbeddings, body, "the answer", self.provider, count_items=False)
        usage = None if answer.usage is None else answer.usage.to_usage()
        return EmbeddingResponse(self._in_order(answer.data), usage=usage, model=answer.model)

    def _in_order(self, items: Sequence[_Embedding]) -> list[tuple[float, ...]]:
        """Return the vectors as they are numbered; one without a number is where it belongs."""
        places = [place if item.index is None else item.index for place, item in enumerate(items)]
        if sorted(places) != list(range(len(items))):
            raise InvalidResponse("the embeddings are not numbered from 0 on, each once", provider=self.provider)
        numbered = zip(places, (item.embedding for item in items), strict=True)
        return [vector for _, vector in sorted(numbered)]


def _unpacked(embedding: object) -> object:
    """Return the numbers that base64 text holds, little-endian and four bytes each; what is no text as it is."""
    if not isinstance(embedding, str):
        return embedding
    data = base64.b64decode(embedding, validate=True)
    if len(data) % 4:
        raise ValueError("numbers have four bytes each")
    return struct.unpack(f"<{len(data) // 4}f", data)


class _Embedding(Wire):
    """One vector; some servers leave out `index` where it is 0, or everywhere."""

    index: int | None = None
    embedding: Annotated[Numbers, BeforeValidator(_unpacked)]


class _OpenAIEmbeddings(Body):
    """An answer."""

    data: Annotated[tuple[_Embedding, ...], FAIL_FAST]
    model: str | None = None
    usage: CompletionUsage | None = None
