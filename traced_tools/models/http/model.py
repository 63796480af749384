"""Models behind HTTP: the common base class, and the chat model, which combines a codec with the transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import count
from typing import Any, Self

from traced_tools.core.checks import expect, expect_whole
from traced_tools.core.messages import UserMessage
from traced_tools.core.options import ChatOptions
from traced_tools.core.part_check import PartCheck
from traced_tools.errors import ConfigurationError, ModelError
from traced_tools.flow.flow import acall, call
from traced_tools.models.base import ChatChunk, ChatModel, ChatRequest, ChatResponse
from traced_tools.models.codec import ChunkDecoder, Codec
from traced_tools.models.http.transport import HttpTransport
from traced_tools.models.parsing import SurrogateRepair, decode_answer, repair_surrogates
from traced_tools.models.wire_names import WireNames


class HttpModel:
    """A model behind HTTP. `with` and `async with` close its connections; `copy.deepcopy` returns the model itself."""

    model: str
    provider: str
    server_address: str | None
    server_port: int | None

    def __init__(self, model: str, transport: HttpTransport) -> None:
        expect("model", model, str, "a str")
        if not model.strip():
            raise ConfigurationError("model must not be empty: pass the name of a model")
        self.model = model
        self.provider = transport.provider
        url = transport.url
        self.server_address = url.host
        self.server_port = url.port or (443 if url.scheme == "https" else 80)
        self._transport = transport

    def close(self) -> None:
        """Close the connections for blocking code."""
        self._transport.clients.close()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._transport.clients.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.model} at {self.server_address}>"


class HttpChatModel(HttpModel, ChatModel):
    """A chat model behind HTTP: a codec for its JSON, and the transport."""

    def __init__(self, model: str, codec: Codec, transport: HttpTransport, context_window: int | None = None) -> None:
        super().__init__(model, transport)
        if context_window is not None:
            expect_whole("context_window", context_window, 1)
        self.context_window = context_window
        self._codec = codec

    def checks(self) -> Iterable[PartCheck]:
        """Return the check whether the provider can be reached and accepts the key."""
        yield PartCheck(
            f"model: {self.model} of {self.provider}", partial(self._transport.check, self._codec.models_path)
        )

    def enforces_schema(self, schema: Mapping[str, Any], *, with_tools: bool) -> bool:
        """Return whether the provider can express `schema` and makes the answer follow it, beside tools if any."""
        condition = self._codec.enforces_schema
        if condition == "never" or (condition == "without_tools" and with_tools):
            return False
        try:
            self._codec.encode(ChatRequest((UserMessage("?"),), (), ChatOptions(output_schema=schema)), stream=False)
        except ConfigurationError:
            return False
        return True

    def call(self, request: ChatRequest) -> ChatResponse:
        """Answer `request`, blocking; raises `ModelError`."""
        names = self._wire_names(request)
        return self._transport.call(*self._encode(names, stream=False), partial(self._decode, names))

    async def acall(self, request: ChatRequest) -> ChatResponse:
        """Answer `request` on asyncio; raises `ModelError`."""
        names = self._wire_names(request)
        return await self._transport.acall(*self._encode(names, stream=False), partial(self._decode, names))

    def stream(self, request: ChatRequest) -> Iterator[ChatChunk]:
        """Answer `request` in chunks, blocking; raises `ModelError`.

        A stream that begins with a retryable error is requested again, as after an HTTP status.
        """
        names, deadline = self._wire_names(request), self._transport.deadline()
        encoded_request = self._encode(names, stream=True)
        for attempt in count():
            refusal = None
            decoder, is_complete, has_begun = self._codec.decoder(), False, False
            chunks_of = self._event_decoder(decoder)
            events = self._transport.stream(*encoded_request, self._codec.framing, deadline)
            try:
                for data in events:
                    try:
                        chunks = chunks_of(data)
                    except ModelError as error:
                        if has_begun or is_complete:
                            raise
                        refusal = error
                        break
                    for chunk in chunks:
                        has_begun = has_begun or chunk.has_content
                        yield names.chunk(chunk)
                    # Only after the decoding, so that an error in the last event itself is raised.
                    is_complete = decoder.done
            except ModelError:
                if not is_complete:
                    raise
            finally:
                events.close()
            if refusal is None:
                decoder.end()
                yield from names.last_chunks()
                return
            call(self._transport.wait_after_refusal(refusal, attempt, deadline))

    async def astream(self, request: ChatRequest) -> AsyncIterator[ChatChunk]:
        """Answer `request` in chunks on asyncio; raises `ModelError`."""
        names, deadline = self._wire_names(request), self._transport.deadline()
        encoded_request = self._encode(names, stream=True)
        for attempt in count():
            refusal = None
            decoder, is_complete, has_begun = self._codec.decoder(), False, False
            chunks_of = self._event_decoder(decoder)
            events = self._transport.astream(*encoded_request, self._codec.framing, deadline)
            try:
                async for data in events:
                    try:
                        chunks = chunks_of(data)
                    except ModelError as error:
                        if has_begun or is_complete:
                            raise
                        refusal = error
                        break
                    for chunk in chunks:
                        has_begun = has_begun or chunk.has_content
                        yield names.chunk(chunk)
                    # Only after the decoding, so that an error in the last event itself is raised.
                    is_complete = decoder.done
            except ModelError:
                if not is_complete:
                    raise
            finally:
                await events.aclose()
            if refusal is None:
                decoder.end()
                for chunk in names.last_chunks():
                    yield chunk
                return
            await acall(self._transport.wait_after_refusal(refusal, attempt, deadline))

    def _event_decoder(self, decoder: ChunkDecoder) -> Callable[[str], list[ChatChunk]]:
        """Return a function that decodes the data of one event and raises `InvalidResponse`."""
        surrogates = SurrogateRepair()

        def decode(data: str) -> list[ChatChunk]:
            return list(decoder.chunks(surrogates.repair(data)))

        return partial(decode_answer, decode, provider=self.provider)

    def _decode(self, names: WireNames, body: bytes) -> ChatResponse:
        response = self._codec.decode(repair_surrogates(body))
        response.without_cut_off_call().check_call_names(self.provider)
        return names.response(response).attributed_to(self.provider)

    def _wire_names(self, request: ChatRequest) -> WireNames:
        expect("request", request, ChatRequest, "a ChatRequest")
        return WireNames(request)

    def _encode(self, names: WireNames, *, stream: bool) -> tuple[str, dict[str, Any]]:
        return self._codec.path(stream=stream), self._codec.encode(names.request, stream=stream)
