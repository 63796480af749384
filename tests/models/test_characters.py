"""Surrogate pairs that a server splits are joined, and half a pair doesn't spoil the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models import recorded
from tests.models.samples import CLOSING, SAMPLES, Answer, Sample
from traced_tools.models.parsing import SurrogateRepair, repair_surrogates
from traced_tools.testing import Reply

FIRST, SECOND = "\ud83c", "\udf27"
RAIN = "🌧"


def with_halves(said: Any, first: str, second: str) -> Any:
    """Return an answer with `first` at the end of the first piece of its closing words and `second` before the next."""
    match said:
        case dict():
            return {name: with_halves(value, first, second) for name, value in said.items()}
        case list() | tuple():
            return [with_halves(value, first, second) for value in said]
        case str() if said == CLOSING:
            return f"{said[:4]}{first}{second}{said[4:]}"
        case str() if said and CLOSING.startswith(said):
            return said + first
        case str() if said and CLOSING.endswith(said):
            return second + said
    return said


def answered(sample: Sample, first: str, second: str, *, streamed: bool) -> str:
    said = Answer(*(with_halves(each, first, second) for each in (sample.closing.whole, sample.closing.events)))
    content_type = sample.content_type if streamed else "application/json"
    reply = Reply(sample.body(said, streamed=streamed), content_type=content_type)
    return recorded.ask(sample.model_at, reply, streamed=streamed).message.text


@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_a_surrogate_pair_split_between_two_pieces_is_joined(sample: Sample) -> None:
    said = answered(sample, FIRST, SECOND, streamed=True)
    assert RAIN in said
    assert said.replace(RAIN, "") == CLOSING


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sample", SAMPLES, ids=repr)
def test_half_a_surrogate_pair_is_removed_and_the_rest_is_kept(sample: Sample, streamed: bool) -> None:
    assert answered(sample, FIRST, "", streamed=streamed) == CLOSING
    assert answered(sample, "", SECOND, streamed=streamed) == CLOSING


def pieces(text: str, size: int) -> list[str]:
    """Return `text` as JavaScript cuts it, by the length of UTF-16, each piece as JSON."""
    units = text.encode("utf-16-le")
    cut = [units[start : start + 2 * size] for start in range(0, len(units), 2 * size)]
    return [json.dumps({"text": piece.decode("utf-16-le", "surrogatepass")}) for piece in cut]


@given(st.text('a\\"u🌧\U0010fffd한\ud7ff\n', max_size=20), st.integers(1, 3))
def test_text_split_anywhere_is_restored(text: str, size: int) -> None:
    characters = SurrogateRepair()
    found = [json.loads(characters.repair(piece))["text"] for piece in pieces(text, size)]
    assert "".join(found) == text


@given(st.text('a\\"u🌧\ud83c\udf27', max_size=20))
def test_the_repaired_text_can_be_encoded(text: str) -> None:
    body = json.dumps({"text": text, "n": [text]}).encode()
    found = json.loads(repair_surrogates(body))["text"]
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "ignore")
    assert found == joined


def test_a_half_pair_is_held_back_across_events_without_text() -> None:
    characters = SurrogateRepair()
    events = [r'"a\ud83c"', '"ping"', r'"\udf27b"', r'"\udf27c"']
    assert [json.loads(characters.repair(event)) for event in events] == ["a", "ping", f"{RAIN}b", "c"]
    assert characters.repair(r'"\\ud83c"') == r'"\\ud83c"'
