"""The embedding model interface: the defaults for a custom model, and answers that no model may return."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pydantic import ValidationError

from tests.markers import MARKER
from tests.waiting import patiently
from traced_tools import Usage
from traced_tools.errors import InvalidResponse
from traced_tools.models import EmbeddingModel, EmbeddingResponse

WAYS = ("embed", "aembed")


def own(model: EmbeddingModel, way: str, *texts: str) -> EmbeddingResponse:
    """Embed `texts` with a model that has no connections."""
    return model.embed(texts) if way == "embed" else asyncio.run(patiently(model.aembed(texts)))


class Lengths(EmbeddingModel):
    """Embeds a text as its length and what it begins with."""

    model, provider = "lengths", "in_process"

    def __init__(self) -> None:
        self.batches: list[tuple[str, ...]] = []
        self.threads: list[threading.Thread] = []

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        self.batches.append(texts)
        self.threads.append(threading.current_thread())
        vectors = [(len(text), ord(text[0])) for text in texts]
        return EmbeddingResponse(vectors, usage=Usage(input_tokens=len(texts)), model="lengths-1")


class Answers(EmbeddingModel):
    """Answers each call with what it was given for it."""

    model, provider = "answers", "in_process"

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)

    def call(self, texts: tuple[str, ...]) -> EmbeddingResponse:
        answer = next(self._answers)
        return answer if isinstance(answer, EmbeddingResponse) or answer is None else EmbeddingResponse(answer)


# A model of one's own.


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_implements_only_call_embeds_blocking_and_on_asyncio(way: str) -> None:
    model = Lengths()
    response = own(model, way, "a", "bcd")
    assert response.embeddings == ((1.0, 97.0), (3.0, 98.0))
    assert (response.usage, response.model) == (Usage(input_tokens=2), "lengths-1")
    assert (model.threads == [threading.current_thread()]) is (way == "embed")


@pytest.mark.parametrize("way", WAYS)
def test_without_texts_there_is_no_call(way: str) -> None:
    model = Lengths()
    assert own(model, way) == EmbeddingResponse(())
    assert model.batches == []


@pytest.mark.parametrize("way", WAYS)
def test_many_texts_are_embedded_in_batches_and_come_back_in_order(way: str) -> None:
    model = Lengths()
    model.batch_size = 3
    response = own(model, way, *"abcdefgh")
    assert [vector[1] for vector in response.embeddings] == list(range(97, 105))
    assert [len(batch) for batch in model.batches] == [3, 3, 2]
    assert (response.usage, response.model) == (Usage(input_tokens=8), "lengths-1")


def test_a_batch_never_exceeds_the_maximum_bytes() -> None:
    model = Lengths()
    texts = ["ä" * 75_000, "b" * 150_000, "c", "d" * 400_000, "e"]  # each ä has two bytes
    assert model.embed(texts).embeddings[2] == (1.0, 99.0)
    assert model.batches == [(texts[0], texts[1]), (texts[2],), (texts[3],), (texts[4],)]


def test_texts_may_come_from_a_generator() -> None:
    assert len(Lengths().embed(word for word in ("a", "b")).embeddings) == 2


def test_characters_that_utf8_cannot_encode_are_replaced() -> None:
    model = Lengths()
    model.embed(["a\ud800"])
    assert model.batches == [("a?",)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("texts", "kind", "problem"),
    [
        (MARKER, TypeError, r"pass \[text\]"),
        (None, TypeError, "texts must be a sequence of str, not None"),
        ([MARKER, 3], TypeError, r"texts\[1\] must be a str, not int"),
        (b"bytes", TypeError, r"texts\[0\] must be a str, not int"),
        ([MARKER, ""], ValueError, r"texts\[1\] is empty"),
    ],
)
def test_invalid_texts_are_refused_before_the_first_call(
    way: str, texts: Any, kind: type[Exception], problem: str
) -> None:
    model = Lengths()
    with pytest.raises(kind, match=problem) as caught:
        if way == "embed":
            model.embed(texts)
        else:
            asyncio.run(model.aembed(texts))
    assert model.batches == []
    assert MARKER not in str(caught.value)


def test_telemetry_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="telemetry must be a TelemetryOptions or None"):
        Lengths().embed(["a"], telemetry=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ([[(1.0,)]], "there are 1 embeddings for 2 texts"),
        ([[(1.0,)] * 3], "there are 3 embeddings for 2 texts"),
        ([[(1.0,), (1.0, 2.0)]], "not all of one length"),
        ([[(), ()]], "empty"),
    ],
)
def test_vectors_that_do_not_fit_the_texts_are_an_invalid_response(way: str, answers: list[Any], problem: str) -> None:
    with pytest.raises(InvalidResponse, match=problem) as caught:
        own(Answers(*answers), way, "a", "b")
    assert caught.value.provider == "in_process"


def test_batches_with_too_many_and_too_few_vectors_are_an_invalid_response() -> None:
    model = Answers([(1.0,)] * 3, [(1.0,)])
    model.batch_size = 2
    with pytest.raises(InvalidResponse, match="3 embeddings for 2 texts"):
        model.embed("abcd"[index] for index in range(4))


def test_batches_of_different_lengths_are_an_invalid_response() -> None:
    model = Answers([(1.0,)], [(1.0, 2.0)])
    model.batch_size = 1
    with pytest.raises(InvalidResponse, match="not all of one length"):
        model.embed(["a", "b"])


def test_dimensions_other_than_requested_are_an_invalid_response() -> None:
    model = Answers([(1.0, 2.0)])
    model.dimensions = 3
    with pytest.raises(InvalidResponse, match="3 dimensions were requested, but they have 2"):
        model.embed(["a"])


def test_an_answer_of_the_wrong_type_is_refused() -> None:
    with pytest.raises(TypeError, match="Answers must answer with an EmbeddingResponse, not NoneType"):
        Answers(None).embed(["a"])


def test_usage_that_is_not_reported_is_none() -> None:
    model = Answers([(1.0,)], [(2.0,)])
    model.batch_size = 1
    response = model.embed(["a", "b"])
    assert (response.embeddings, response.usage, response.model) == (((1.0,), (2.0,)), None, None)


# The response.


def test_a_response_is_immutable_goes_to_json_and_back_and_shows_no_numbers() -> None:
    response = EmbeddingResponse([[0.5, 0.25]], usage=Usage(input_tokens=1), model="m")
    assert EmbeddingResponse.model_validate_json(response.model_dump_json()) == response
    assert response.replace(model="n").embeddings == response.embeddings
    assert "0.25" not in repr(response)
    with pytest.raises(ValidationError):
        response.model = "n"  # type: ignore[misc]


def test_vectors_may_be_any_iterable_of_numbers() -> None:
    class Row:
        """As rows of numerical libraries are: iterable, and neither list nor tuple."""

        def __iter__(self) -> Iterator[float]:
            return iter((1, 2.5))

    rows: Sequence[Any] = [Row(), array("f", [1.0, 2.5]), (1.0, 2.5)]
    assert EmbeddingResponse(rows).embeddings == ((1.0, 2.5),) * 3


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), "x", None])
def test_a_vector_with_non_finite_numbers_is_refused(number: Any) -> None:
    with pytest.raises(ValidationError):
        EmbeddingResponse([[1.0, number]])
