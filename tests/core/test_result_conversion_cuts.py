"""What is cut, with a notice: iterators of many items, and long texts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.returned import IMAGE, text_of
from traced_tools.core.messages import TextPart
from traced_tools.core.result_conversion import (
    MOST_ITEMS,
    Collected,
    ToolContent,
    acollect,
    collect,
    content_of,
    truncate_content,
)

# Iterators.


class Numbers:
    """Counts, in blocking code and under asyncio, and records what was taken and whether it was closed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.closed = False

    def each(self) -> Iterator[int]:
        try:
            yield from range(self.most)
        finally:
            self.closed = True

    async def aeach(self) -> AsyncIterator[int]:
        try:
            for number in range(self.most):
                yield number
        finally:
            await asyncio.sleep(0)
            self.closed = True

    def collected(self, way: str) -> Collected:
        return collect(self.each()) if way == "collect" else asyncio.run(self._acollected())

    async def _acollected(self) -> Collected:
        """Collect; only the collecting itself may close the iterator."""
        items = self.aeach()
        found = await acollect(items)
        assert self.closed
        return found


WAYS = ("collect", "acollect")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("most", [0, 1, MOST_ITEMS])
def test_an_iterator_with_few_items_is_collected_completely(most: int, way: str) -> None:
    found = Numbers(most).collected(way)
    assert (found, found.cut) == (list(range(most)), False)
    assert text_of(found) == text_of(list(range(most)))


@pytest.mark.parametrize("way", WAYS)
def test_an_iterator_with_too_many_items_is_cut_and_closed(way: str) -> None:
    numbers = Numbers(MOST_ITEMS + 1)
    found = numbers.collected(way)
    assert (found, found.cut, numbers.closed) == (list(range(MOST_ITEMS)), True, True)


def test_an_endless_iterator_that_cannot_be_closed_is_cut() -> None:
    found = collect(count())
    assert (len(found), found.cut) == (MOST_ITEMS, True)


def test_an_endless_async_iterator_that_cannot_be_closed_is_cut() -> None:
    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> int:
            return 1

    found = asyncio.run(acollect(Endless()))
    assert (len(found), found.cut) == (MOST_ITEMS, True)


def test_the_model_reads_that_items_are_missing() -> None:
    data, _, mark = text_of(collect(count())).rpartition("\n")
    assert json.loads(data) == list(range(MOST_ITEMS))
    assert mark == "[cut: only the first 1,000 items are shown]"


def test_the_model_reads_that_parts_are_missing() -> None:
    content = content_of(collect(TextPart(str(number)) for number in count()))
    assert content.text.endswith("998\n999\n[cut: only the first 1,000 items are shown]")


@pytest.mark.parametrize("way", WAYS)
def test_an_exception_of_an_iterator_passes_through(way: str) -> None:
    def failing() -> Iterator[int]:
        yield 1
        raise LookupError("gone")

    async def afailing() -> AsyncIterator[int]:
        yield 1
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        collect(failing()) if way == "collect" else asyncio.run(acollect(afailing()))


# Shortened.


def test_a_text_within_the_limit_is_the_same_object() -> None:
    content = ToolContent("x" * 50, (IMAGE,))
    assert truncate_content(content, 50) is content


def test_a_cut_text_ends_with_a_notice_and_keeps_its_images() -> None:
    short, images = truncate_content(ToolContent("x" * 2_345_678, (IMAGE,)), 100_000)
    text, mark = short.split("\n")
    assert mark == f"[cut: {len(text):,} of 2,345,678 characters are shown]"
    assert 99_990 <= len(short) <= 100_000
    assert images == (IMAGE,)


@given(st.text(max_size=300), st.integers(0, 300))
def test_a_truncated_text_keeps_the_limit_and_is_a_prefix(text: str, most: int) -> None:
    short = truncate_content(ToolContent(text), most)
    beginning, found, mark = short.text.rpartition("\n[cut: ")
    assert len(short.text) <= most
    assert truncate_content(short, most) is short
    if short.text != text and found:
        assert text.startswith(beginning)
        assert mark == f"{len(beginning):,} of {len(text):,} characters are shown]"
    else:  # it fits, or there is no room for the mark
        assert text.startswith(short.text)
