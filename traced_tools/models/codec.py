"""What a provider's language is: pure functions between our requests and answers and its bodies and events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse


class ChunkDecoder(Protocol):
    """Decodes the events of one streamed answer."""

    def chunk(self, data: str) -> ChatChunk | None:
        """Return the chunk an event's data stands for, None for one that says nothing; raises `InvalidResponse`."""

    def end(self) -> None:
        """Take note that no event follows; raises `InvalidResponse` if the answer is not complete."""


class Codec(Protocol):
    """One provider's language, without any input or output."""

    provider: str

    def headers(self) -> Mapping[str, str]:
        """Return the headers of each request, the key among them."""

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`."""

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises `InvalidResponse`."""

    def decoder(self) -> ChunkDecoder:
        """Return a decoder for one streamed answer."""

    def error_code(self, body: bytes) -> object:
        """Return the provider's short error code in an error body, if there is one."""
