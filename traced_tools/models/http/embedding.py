"""The base class of embedding models behind HTTP."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from traced_tools.core.checks import expect, expect_whole
from traced_tools.models.embedding import EmbeddingModel, EmbeddingResponse
from traced_tools.models.http.model import HttpModel
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.parsing import FAIL_FAST

Numbers = Annotated[tuple[Annotated[float, Field(strict=True, allow_inf_nan=False)], ...], FAIL_FAST]
"""A vector in JSON: finite numbers only, no numeric strings or booleans."""


class HttpEmbeddingModel(HttpModel, EmbeddingModel):
    """An embedding model behind HTTP. Subclasses set `path` and implement `decode`.

    Attributes:
        path: the path of the endpoint, relative to the base address of the API.
    """

    path: str

    def __init__(
        self, model: str, transport: HttpTransport, dimensions: int | None, extra: Mapping[str, Any] | None
    ) -> None:
        super().__init__(model, transport)
        expect("extra", extra, (Mapping, type(None)), "a mapping of field names to values, or None")
        if dimensions is not None:
            expect_whole("dimensions", dimensions, 1)
            self.dimensions = dimensions
        self._extra = dict(extra or {})

    def encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        """Return the JSON body that requests the embeddings of `texts`."""
        body: dict[str, Any] = {"model": self.model, "input": texts}
        if self.dimensions is not None:
            body["dimensions"] = self.dimensions
        return {**body, **self._extra}

    @abstractmethod
    def decode(self, body: bytes) -> EmbeddingResponse:
        """Decode the body of an answer; raises `InvalidResponse`."""

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts, blocking; raises `ModelError`."""
        return self._transport.call(self.path, self.encode(texts), self.decode)

    async def acall(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts on asyncio; raises `ModelError`."""
        return await self._transport.acall(self.path, self.encode(texts), self.decode)
