"""Sweeps leave no pair of values out, and a loop over cases names those that fail."""

from __future__ import annotations

from itertools import combinations, product

import pytest

from tests.sweeps import check_each, sweep

AXES = {"a": "xyz", "b": "12345", "c": "+-", "d": ("call", "acall", "stream", "astream")}


def test_each_pair_of_values_is_in_a_case_that_is_not_slow_and_all_cases_are_in_the_sweep() -> None:
    (_, cases) = sweep(**AXES).args
    assert [case.values for case in cases] == list(product(*AXES.values()))
    quick = [case.values for case in cases if not case.marks]
    wanted = {pair for case in product(*AXES.values()) for pair in combinations(enumerate(case), 2)}
    assert {pair for case in quick for pair in combinations(enumerate(case), 2)} == wanted
    assert 20 <= len(quick) <= 26


def test_a_combination_that_is_left_out_is_in_no_case() -> None:
    (_, cases) = sweep(lambda a, b, **_: (a, b) == ("x", "1"), **AXES).args
    assert len(cases) == 3 * 5 * 2 * 4 - 8
    assert not [case for case in cases if case.values[:2] == ("x", "1")]


def test_all_cases_that_fail_are_named() -> None:
    def check(number: int) -> None:
        assert number % 2, "it is even"

    check_each([1, 3], check)
    with pytest.raises(ExceptionGroup, match=r"(?s)2 of 4 cases fail: 2: .*it is even.*; 4: .*it is even"):
        check_each([1, 2, 3, 4], check)
    with pytest.raises(AssertionError, match="no cases"):
        check_each([], check)
