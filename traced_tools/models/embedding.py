"""The embedding model interface: it turns each text into a vector."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from pydantic import Field, FiniteFloat

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.messages import Usage, UsageSum, Value, encodable
from traced_tools.errors import InvalidResponse
from traced_tools.flow.flow import Step, acall, call
from traced_tools.flow.workers import in_thread
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions, current_telemetry
from traced_tools.observe.scopes.model_call import embeddings_scope

_MOST_BYTES = 300_000
"""The maximum bytes of text in one request. OpenAI's limit is this number of tokens, and a token is at least a byte."""


class EmbeddingResponse(Value):
    """An embedding model's answer.

    Args:
        embeddings: one vector of finite numbers for each text, in the order of the texts.
        usage: tokens, if the provider reports them.
        model: the model that answered, which can be a specific version of the requested model.
    """

    embeddings: tuple[tuple[FiniteFloat, ...], ...] = Field(repr=False)
    usage: Usage | None = None
    model: str | None = None

    def __init__(self, embeddings: Iterable[Iterable[float]], **data: Any) -> None:
        super().__init__(embeddings=tuple(map(tuple, embeddings)), **data)


class EmbeddingModel(ABC):
    """An embedding model. Subclasses set `model` and `provider` and implement `call`; the other methods have defaults.

    `call` must be safe to run in several threads at once. A model behind HTTP also sets `server_address` and
    `server_port`, which makes its spans CLIENT spans.

    Attributes:
        dimensions: the requested length of each vector; None for the model's default.
        batch_size: the maximum number of texts in one `call`.
    """

    model: str
    provider: str
    server_address: str | None = None
    server_port: int | None = None
    dimensions: int | None = None
    batch_size: int = 2048

    @abstractmethod
    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts, blocking; raises `ModelError` if there is no answer."""

    async def acall(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts on asyncio; by default, run `call` in a worker thread."""
        return await in_thread(partial(self.call, texts))

    def embed(self, texts: Iterable[str], *, telemetry: TelemetryOptions | None = None) -> EmbeddingResponse:
        """Embed `texts`, blocking, in as many calls as necessary, and emit one span for all of them.

        A call gets at most `batch_size` texts and 300,000 bytes of text, unless a single text is longer. Without texts
        there is no call, and the response has no embeddings.

        Args:
            texts: the texts to embed; none may be empty.
            telemetry: what to emit, and where to; by default the telemetry of the current run, else the global
                providers.

        Raises:
            TypeError: if `texts` is a single str, or contains an item that isn't a str.
            ValueError: if a text is empty.
            InvalidResponse: if the model doesn't return one vector for each text, all of the same, requested length.
            ModelError: if there is no answer.
        """
        return call(self._embed_batches(_check_texts(texts), current_telemetry(telemetry)))

    async def aembed(self, texts: Iterable[str], *, telemetry: TelemetryOptions | None = None) -> EmbeddingResponse:
        """Embed `texts` on asyncio; see `embed`."""
        return await acall(self._embed_batches(_check_texts(texts), current_telemetry(telemetry)))

    async def _embed_batches(self, texts: tuple[str, ...], telemetry: RunTelemetry) -> EmbeddingResponse:
        """Embed `texts`, as a flow."""
        if not texts:
            return EmbeddingResponse(())
        with embeddings_scope(telemetry, self) as scope:
            answers = [await _EmbedBatch(self, batch) for batch in _split_batches(texts, self.batch_size)]
            response = _join_responses(answers)
            self._check_lengths(response)
            scope.answered(response)
        return response

    def _check_lengths(self, response: EmbeddingResponse) -> None:
        lengths = {len(vector) for vector in response.embeddings}
        if len(lengths) > 1 or 0 in lengths:
            raise InvalidResponse("the embeddings are empty or not all of one length", provider=self.provider)
        if self.dimensions is not None and lengths != {self.dimensions}:
            problem = f"embeddings of {self.dimensions} dimensions were requested, but they have {lengths.pop()}"
            raise InvalidResponse(problem, provider=self.provider)


class _EmbedBatch(Step[EmbeddingResponse]):
    """Call `model` with one batch of texts."""

    __slots__ = ("_model", "_texts")

    def __init__(self, model: EmbeddingModel, texts: tuple[str, ...]) -> None:
        self._model = model
        self._texts = texts

    def run(self) -> EmbeddingResponse:
        return self._check_response(self._model.call(self._texts))

    async def arun(self) -> EmbeddingResponse:
        return self._check_response(await self._model.acall(self._texts))

    def _check_response(self, response: Any) -> EmbeddingResponse:
        if not isinstance(response, EmbeddingResponse):
            name = type(self._model).__name__
            raise TypeError(f"{name} must answer with an EmbeddingResponse, not {type(response).__name__}")
        text_count, embedding_count = len(self._texts), len(response.embeddings)
        if embedding_count != text_count:
            problem = f"there are {embedding_count} embeddings for {text_count} texts"
            raise InvalidResponse(problem, provider=self._model.provider)
        return response


def _check_texts(texts: Iterable[str]) -> tuple[str, ...]:
    """Return `texts` with `?` in place of what UTF-8 cannot encode; raises `TypeError` or `ValueError`."""
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of str, not one str: pass [text] to embed a single text")
    expect("texts", texts, Iterable, "a sequence of str")
    texts = tuple(texts)
    expect_each("texts", texts, str, "a str")
    for index, text in enumerate(texts):
        if not text:
            raise ValueError(f"texts[{index}] is empty: there is nothing to embed")
    return tuple(map(encodable, texts))


def _split_batches(texts: Iterable[str], batch_size: int) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        length = len(text.encode())
        if len(batch) == batch_size or (batch and size + length > _MOST_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(text)
        size += length
    yield tuple(batch)


def _join_responses(answers: list[EmbeddingResponse]) -> EmbeddingResponse:
    """Return one response for all batches."""
    if len(answers) == 1:
        return answers[0]
    usage = UsageSum()
    for answer in answers:
        usage.add(answer.usage)
    vectors = chain.from_iterable(answer.embeddings for answer in answers)
    return EmbeddingResponse(tuple(vectors), usage=usage.total, model=answers[-1].model)
