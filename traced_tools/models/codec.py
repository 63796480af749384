"""The codec interface: pure functions that translate between this package's types and a provider's JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol

from traced_tools.models.base import ChatChunk, ChatRequest, ChatResponse

if TYPE_CHECKING:
    from traced_tools.models.http.framing import Framing


SchemaEnforcement = Literal["always", "without_tools", "never"]
"""When a schema for the answer can be relied on; `never` if that depends on the model."""


class ChunkDecoder(Protocol):
    """Decodes the events of one streamed answer."""

    @property
    def done(self) -> bool:
        """Whether the answer is complete. A connection error after that does not fail the call."""

    def chunks(self, data: str) -> Iterable[ChatChunk]:
        """Decode the data of one event; an event without content yields no chunk.

        Raises:
            InvalidResponse: if the event cannot be decoded.
            ValueError: if a value in it cannot become a part of a message. The model turns it into `InvalidResponse`.
        """

    def end(self) -> None:
        """Called after the last event; raises `InvalidResponse` if the answer is incomplete."""


class Codec(Protocol):
    """Encodes requests to one provider and decodes its answers, without network access.

    The codecs of all providers have the same steps in the same order: `encode` writes a request with functions named
    `_encode_...`, and `decode` and the chunk decoder read an answer with functions named `_decode_...`.

    Attributes:
        framing: splits the body of a streamed answer into events.
        models_path: the path of the provider's list of models.
        enforces_schema: when the provider makes an answer follow `ChatOptions.output_schema`, if it can express it.
    """

    framing: Framing
    models_path: str
    enforces_schema: SchemaEnforcement

    def path(self, *, stream: bool) -> str:
        """Return the path of the endpoint, relative to the base address of the API."""

    def encode(self, request: ChatRequest, *, stream: bool) -> dict[str, Any]:
        """Return the JSON body for `request`; raises `ConfigurationError` for an option the provider lacks."""

    def decode(self, body: bytes) -> ChatResponse:
        """Decode the body of an answer that is not streamed; raises the same errors as `ChunkDecoder.chunks`."""

    def decoder(self) -> ChunkDecoder:
        """Return a decoder for one streamed answer."""
