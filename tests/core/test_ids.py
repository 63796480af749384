"""Ids sort by time and contain it."""

from __future__ import annotations

import time
from itertools import pairwise
from unittest.mock import patch
from uuid import RFC_4122, UUID

import pytest

from traced_tools.core.ids import time_of_id, time_ordered_id


def test_an_id_is_a_uuid_of_version_7_with_its_milliseconds() -> None:
    before = time.time_ns() // 1_000_000
    text = time_ordered_id()
    found = UUID(text)
    assert (str(found), found.version, found.variant) == (text, 7, RFC_4122)
    milliseconds = time_of_id(text)
    assert milliseconds is not None
    assert before <= milliseconds <= time.time_ns() // 1_000_000


def test_ids_sort_within_a_millisecond_and_differ_within_an_instant() -> None:
    instants = [1_767_268_800_000_000_000 + 250 * step for step in range(4000)]
    with patch("time.time_ns", side_effect=[each for each in instants for _ in range(2)]):
        made = [time_ordered_id() for _ in range(2 * len(instants))]
    assert len({*made}) == len(made)
    firsts = made[::2]
    assert all(one[:18] < other[:18] for one, other in pairwise(firsts))
    assert {time_of_id(each) for each in made} == {1_767_268_800_000}


@pytest.mark.parametrize("other", ["", "chain-a", "1b4e28ba-2fa1-41d2-883f-b9a761bde3fb", None, 7])
def test_the_time_of_any_other_value_is_none(other: object) -> None:
    assert time_of_id(other) is None
