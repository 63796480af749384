"""Embedding models that return made-up vectors."""

from __future__ import annotations

from traced_tools import Usage
from traced_tools.models import EmbeddingModel, EmbeddingResponse


class Embedder(EmbeddingModel):
    """Embeds in this process: the first number of a vector is the length of its text."""

    model, provider = "embedder", "test"

    def __init__(self) -> None:
        self.batches: list[tuple[str, ...]] = []

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        self.batches.append(texts)
        vectors = [(float(len(text)), 1.0) for text in texts]
        usage = Usage(input_tokens=sum(map(len, texts)), output_tokens=7)
        return EmbeddingResponse(vectors, usage=usage, model="embedder-1")


class RemoteEmbedder(Embedder):
    """A model that has a server address for telemetry."""

    server_address = "models.example.invalid"
    server_port = 8443
