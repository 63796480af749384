"""What an embedding model is: texts in, one vector each out."""

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
from traced_tools.observe.model_calls import embeddings_scope
from traced_tools.observe.run_telemetry import RunTelemetry, TelemetryOptions, current_telemetry

_MOST_BYTES = 300_000
"""OpenAI takes so many tokens in one request; a token is at least a byte, so no text need be counted in tokens."""


class EmbeddingResponse(Value):
    """What a model answered.

    Args:
        embeddings: one vector of finite numbers for each text, in the order of the texts.
        usage: tokens, when the provider says.
        model: the model that answered, which may be a version of the one that was asked.
    """

    embeddings: tuple[tuple[FiniteFloat, ...], ...] = Field(repr=False)
    usage: Usage | None = None
    model: str | None = None

    def __init__(self, embeddings: Iterable[Iterable[float]], **data: Any) -> None:
        super().__init__(embeddings=tuple(map(tuple, embeddings)), **data)


class EmbeddingModel(ABC):
    """An embedding model. Subclasses set `model` and `provider` and implement `call`; the rest has defaults.

    `call` must be safe to run in several threads at once. A model that speaks HTTP also sets `server_address` and
    `server_port`, which makes its spans CLIENT spans.

    Attributes:
        dimensions: how long each vector is to be; None for as long as the model makes them.
        batch_size: the most texts that `call` is given at once.
    """

    model: str
    provider: str
    server_address: str | None = None
    server_port: int | None = None
    dimensions: int | None = None
    batch_size: int = 2048

    @abstractmethod
    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts, blocking; raises `ModelError` when there is no answer."""

    async def acall(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        """Embed one batch of texts on asyncio; by default `call` in a worker thread."""
        return await in_thread(partial(self.call, texts))

    def embed(self, texts: Iterable[str], *, telemetry: TelemetryOptions | None = None) -> EmbeddingResponse:
        """Embed `texts`, blocking, in as many calls as it takes, and say so in one span.

        A call is given at most `batch_size` texts and 300,000 bytes of them, unless a single text is longer. No texts
        are no call: the answer holds no embeddings.

        Args:
            texts: what to embed; none may be empty.
            telemetry: what to emit, and where to; by default as the run this happens in, else to the global providers.

        Raises:
            TypeError: for one str in place of several, and for what is no text.
            ValueError: for an empty text.
            InvalidResponse: when the vectors are not one for each text, all of the length that was asked for.
            ModelError: when there is no answer.
        """
        return call(self._embedded(_checked(texts), current_telemetry(telemetry)))

    async def aembed(self, texts: Iterable[str], *, telemetry: TelemetryOptions | None = None) -> EmbeddingResponse:
        """Embed `texts` on asyncio; as `embed`."""
        return await acall(self._embedded(_checked(texts), current_telemetry(telemetry)))

    async def _embedded(self, texts: tuple[str, ...], telemetry: RunTelemetry) -> EmbeddingResponse:
        """Embed `texts`, as a flow."""
        if not texts:
            return EmbeddingResponse(())
        with embeddings_scope(telemetry, self) as scope:
            answers = [await _Embed(self, batch) for batch in _batches(texts, self.batch_size)]
            response = _joined(answers)
            self._check_lengths(response)
            scope.answered(response)
        return response

    def _check_lengths(self, response: EmbeddingResponse) -> None:
        found = {len(vector) for vector in response.embeddings}
        if len(found) > 1 or 0 in found:
            raise InvalidResponse("the embeddings are empty or not all of one length", provider=self.provider)
        if self.dimensions is not None and found != {self.dimensions}:
            problem = f"embeddings of {self.dimensions} dimensions were asked for, and they have {found.pop()}"
            raise InvalidResponse(problem, provider=self.provider)


class _Embed(Step[EmbeddingResponse]):
    """Have `model` embed one batch of texts."""

    __slots__ = ("_model", "_texts")

    def __init__(self, model: EmbeddingModel, texts: tuple[str, ...]) -> None:
        self._model = model
        self._texts = texts

    def run(self) -> EmbeddingResponse:
        return self._accepted(self._model.call(self._texts))

    async def arun(self) -> EmbeddingResponse:
        return self._accepted(await self._model.acall(self._texts))

    def _accepted(self, response: Any) -> EmbeddingResponse:
        if not isinstance(response, EmbeddingResponse):
            name = type(self._model).__name__
            raise TypeError(f"{name} must answer with an EmbeddingResponse, not {type(response).__name__}")
        asked, answered = len(self._texts), len(response.embeddings)
        if answered != asked:
            problem = f"there are {answered} embeddings for {asked} texts"
            raise InvalidResponse(problem, provider=self._model.provider)
        return response


def _checked(texts: Iterable[str]) -> tuple[str, ...]:
    """Return `texts` as they can be sent."""
    if isinstance(texts, str):
        raise TypeError("texts must be a sequence of str, not one str: pass [text] to embed a single text")
    expect("texts", texts, Iterable, "a sequence of str")
    texts = tuple(texts)
    expect_each("texts", texts, str, "a str")
    for index, text in enumerate(texts):
        if not text:
            raise ValueError(f"texts[{index}] is empty: there is nothing to embed")
    return tuple(map(encodable, texts))


def _batches(texts: Iterable[str], most: int) -> Iterator[tuple[str, ...]]:
    batch: list[str] = []
    size = 0
    for text in texts:
        added = len(text.encode())
        if len(batch) == most or (batch and size + added > _MOST_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(text)
        size += added
    yield tuple(batch)


def _joined(answers: list[EmbeddingResponse]) -> EmbeddingResponse:
    """Return one answer for all batches."""
    if len(answers) == 1:
        return answers[0]
    usage = UsageSum()
    for answer in answers:
        usage.add(answer.usage)
    vectors = chain.from_iterable(answer.embeddings for answer in answers)
    return EmbeddingResponse(tuple(vectors), usage=usage.total, model=answers[-1].model)
