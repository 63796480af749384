"""Finds the rule of a policy that keeps a later rule from ever deciding, without comparing it with all rules.

A rule covers a later rule if it decides all calls of the later rule. The index stores each rule at the places of one of
its conditions. Every rule that it covers looks at one of these places. Of several conditions, the index chooses the one
with the emptiest places, so that few rules share a place, whatever the rules differ in.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Hashable, Iterator
from operator import itemgetter
from typing import Any, Final, NamedTuple

from traced_tools.policy.conditions import ArgumentConditions, Condition
from traced_tools.policy.rule import Rule, literal_ends

_NAMES: Final = ("tool", "source", "agent", "principal")
_MOST_CHARACTERS: Final = 64
"""The maximum number of characters of a pattern in a place: `add` looks at a place for each length."""

_VALUES: Final = "values"
"""The places of conditions that listed values may meet. Only rules with an `eq` or `in` condition look there."""


class _Place(NamedTuple):
    """A place at which a rule is stored, or looked for.

    Attributes:
        key: the key of the rules that share the place.
        rank: the order of the rules at the place. A look-up considers rules up to its rank.
    """

    key: tuple[Hashable, ...]
    rank: float = 0


_ANYWHERE: Final = _Place(("anywhere",))


class RuleIndex:
    """The rules of a policy so far."""

    def __init__(self) -> None:
        self._ids: set[str] = set()
        self._rules_at: defaultdict[Hashable, list[tuple[float, int, Rule]]] = defaultdict(list)

    def add(self, rule: Rule) -> str | None:
        """Add the next rule, and return why it cannot follow the rules before it; None if it can."""
        if rule.id in self._ids:
            return f"two rules have the id {rule.id!r}: choose another id for one of them"
        for place in _covering_places(rule):
            # Sorted by rank, so that bounds that are too narrow to cover the rule are never compared.
            for rank, _, earlier in self._rules_at.get(place.key, ()):
                if rank > place.rank:
                    break
                if earlier.covers(rule):
                    return (
                        f"rule {rule.id!r} can never decide, because rule {earlier.id!r} before it decides all of its "
                        "calls: move it up, narrow the earlier rule, or delete it"
                    )
        if rule.where is None or isinstance(rule.where, ArgumentConditions):  # a function has no conditions to compare
            for place in {*min(self._choices(rule), key=self._crowd, default=(_ANYWHERE,))}:
                # The number of the rule comes before the rule, so that `insort` never compares two rules.
                insort(self._rules_at[place.key], (place.rank, len(self._ids), rule))
        self._ids.add(rule.id)
        return None

    def _crowd(self, places: tuple[_Place, ...]) -> int:
        """Return the number of rules up to the rank of the fullest place, without the places of `_VALUES`."""
        return max(
            bisect_right(self._rules_at.get(place.key, ()), place.rank, key=itemgetter(0))
            for place in places
            if place.key[0] != _VALUES
        )

    def _choices(self, rule: Rule) -> Iterator[tuple[_Place, ...]]:
        """Yield the places of each condition of `rule`. Every rule that it covers looks at one place of each."""
        for name, values in rule.attributes.items():
            yield tuple(_Place(("attribute", name, _value_key(value))) for value in values)
        if isinstance(rule.where, ArgumentConditions):
            yield from map(_condition_places, rule.where.conditions)
        for name in _NAMES:
            patterns = getattr(rule, name)
            if "*" not in patterns:
                choices = ([(place,) for place in _pattern_places(name, pattern)] for pattern in patterns)
                yield tuple(place for choice in choices for place in min(choice, key=self._crowd))


def _covering_places(rule: Rule) -> Iterator[_Place]:
    """Yield the places at which a rule that covers `rule` may be stored."""
    yield _ANYWHERE
    for name, values in rule.attributes.items():
        yield _Place(("attribute", name, _value_key(values[0])))
    if isinstance(rule.where, ArgumentConditions):
        for condition in rule.where.conditions:
            yield from _implied_places(condition)
    for name in _NAMES:
        pattern = getattr(rule, name)[0]  # a rule must cover all of the patterns, so one is enough to find it
        head, tail = literal_ends(pattern)
        yield _Place((name, "is", pattern))
        for length in range(min(len(head), _MOST_CHARACTERS) + 1):
            yield _Place((name, "begins", head[:length]))
        for length in range(1, min(len(tail), _MOST_CHARACTERS) + 1):
            yield _Place((name, "ends", tail[-length:]))


def _pattern_places(name: str, pattern: str) -> Iterator[_Place]:
    """Yield the places of a pattern. Every pattern that it covers looks at all of them, so one of them is enough."""
    head, tail = literal_ends(pattern)
    if head == pattern:
        yield _Place((name, "is", pattern))
        return
    yield _Place((name, "begins", head[:_MOST_CHARACTERS]))
    if tail:
        yield _Place((name, "ends", tail[-_MOST_CHARACTERS:]))


def _condition_places(condition: Condition) -> tuple[_Place, ...]:
    """Return the places of a condition on arguments. Every condition that implies it looks at one of them."""
    path, operator, operand = condition.path, condition.operator, condition.operand
    if operator in ("eq", "in"):
        values = [operand] if operator == "eq" else operand
        return tuple(_Place(("value", path, _value_key(value))) for value in values)
    own_place = _bound_place(condition) or _Place(("operator", path, operator, _value_key(operand)))
    return (own_place,) if operator == "exists" else (own_place, _Place((_VALUES, path)))


def _implied_places(condition: Condition) -> Iterator[_Place]:
    """Yield the places at which conditions that `condition` implies may be stored."""
    path, operator, operand = condition.path, condition.operator, condition.operand
    yield _bound_place(condition) or _Place(("operator", path, operator, _value_key(operand)))
    if operator in ("eq", "in"):
        yield _Place((_VALUES, path))
        yield _Place(("value", path, _value_key(operand if operator == "eq" else operand[0])))


def _bound_place(condition: Condition) -> _Place | None:
    """Return the place of a condition with a bound, ranked after wider bounds; None for other conditions."""
    if condition.operator in ("lt", "le"):
        return _Place(("upper bound", condition.path), -condition.operand)
    if condition.operator in ("gt", "ge"):
        return _Place(("lower bound", condition.path), condition.operand)
    return None


def _value_key(value: Any) -> Hashable:
    """Return a key of a JSON value. Equal values have equal keys."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return type(value).__name__, value if isinstance(value, bool) else None
    try:
        return value if isinstance(value, str) else float(value)
    except OverflowError:
        return "a number beyond all floats", None
