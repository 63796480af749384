"""Many cases of one test: all of them in the slow tests, and each pair of values at least once in the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import Any, TypeVar

import pytest

T = TypeVar("T")
Case = tuple[Any, ...]


def sweep(
    unless: Callable[..., bool] = lambda **case: False, strength: int = 2, **axes: Iterable[Any]
) -> pytest.MarkDecorator:
    """Run a test for all combinations of `axes`; those that add no new pair of values of two axes are `slow`.

    Args:
        unless: is given a combination, and returns whether to omit it.
        strength: 1 for a test with many values, of which each runs once at least, instead of each pair of values.
        axes: the names of the test's parameters, and the values of each. A mapping stands for its keys.
    """
    named = {name: {_id(value): value for value in values} for name, values in axes.items()}
    cases = [case for case in product(*named.values()) if not unless(**_values(named, case))]
    quick = set(_covering(cases, strength))
    return pytest.mark.parametrize(
        list(axes),
        [
            pytest.param(
                *_values(named, case).values(),
                id="-".join(case),
                marks=() if case in quick else pytest.mark.slow,
            )
            for case in cases
        ],
    )


def _id(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", None) or str(value)


def _values(named: Mapping[str, Mapping[str, Any]], case: Case) -> dict[str, Any]:
    return {name: values[chosen] for (name, values), chosen in zip(named.items(), case, strict=True)}


def _covering(cases: list[Case], strength: int) -> Iterator[Case]:
    """Choose cases that have all values, or all pairs of values, which the cases have; the same ones each time."""
    pairs = {case: frozenset(combinations(enumerate(case), strength)) for case in cases}
    missing = set().union(*pairs.values())
    if not missing:  # of a single axis there are no pairs
        yield from cases
    uses = Counter[tuple[int, str]]()
    while missing:
        gains = {case: len(pairs[case] & missing) for case in cases}
        most = max(gains.values())
        # Of those that add most, the one whose values were chosen least often, so that values meet different others.
        best = min(
            (case for case in cases if gains[case] == most), key=lambda case: sum(uses[v] for v in enumerate(case))
        )
        uses.update(enumerate(best))
        missing -= pairs[best]
        yield best


def check_each(cases: Mapping[str, T] | Iterable[T], check: Callable[[T], object]) -> None:
    """Call `check` with each case, and fail with all that failed: one entry for each, which names it."""
    named = cases if isinstance(cases, Mapping) else {repr(case): case for case in cases}
    assert named, "there are no cases"
    failures: list[Exception] = []
    for name, case in named.items():
        try:
            check(case)
        except (Exception, pytest.fail.Exception) as error:
            failures.append(
                AssertionError(f"{name}: {type(error).__name__}: {error}").with_traceback(error.__traceback__)
            )
    if failures:
        raise ExceptionGroup(f"{len(failures)} of {len(named)} cases fail: {'; '.join(map(str, failures))}", failures)
