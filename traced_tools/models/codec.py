"""What a provider's language is: pure functions between our requests and answers and its bodies and events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse

if TYPE_CHECKING:
    from traced_tools.models.http.framing import Framing


class ChunkDecoder(Protocol):
    """Decodes the events of one streamed answer."""

    @property
    def done(self) -> bool:
        """Whether the provider has said its last word; what goes wrong on the connection after it costs nothing."""

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Return the chunks an event's data stands for, none for one that says nothing.

        Raises:
            InvalidResponse: if the event cannot be understood.
            ValueError: if a value in it cannot become a part of a message; the model raises `InvalidResponse` for it.
        """

    def end(self) -> None:
        """Take note that no event follows; raises `InvalidResponse` if the answer is not complete."""


class Codec(Protocol):
    """One provider's language, without any input or output.

    Attributes:
        framing: how a streamed answer is cut into events.
    """

    framing: Framing

    def path(self, *, stream: bool) -> str:
        """Return where to send a request, from the address of the API on."""

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body that asks `request`; raises `ConfigurationError` for what the provider does not have."""

    def decode(self, body: bytes) -> ChatResponse:
        """Return the answer a whole body stands for; raises as `ChunkDecoder.chunks`."""

    def decoder(self) -> ChunkDecoder:
        """Return a decoder for one streamed answer."""
