"""Finds the rule of a policy that keeps a later rule from ever deciding, without comparing it with all rules.

Each rule is kept at places of one of its conditions. They are chosen so that every rule that it covers looks at one of
them. Of several conditions, the one with the emptiest places counts, so that few rules share a place, whatever they
differ in.
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
"""How many characters of a pattern a place has."""


_VALUES: Final = "values"
"""Where only rules look whose condition lists values, for conditions that the values may meet."""


class _Place(NamedTuple):
    """Where a rule is kept, or looked for.

    Attributes:
        key: the key of the rules that share the place.
        rank: where the rule is kept among these, in order; a rule that is looked for has this rank at most.
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
        for place in _places_of_covering(rule):
            for rank, _, earlier in self._rules_at.get(place.key, ()):
                if rank > place.rank:
                    break
                if earlier.covers(rule):
                    return (
                        f"rule {rule.id!r} can never decide, because rule {earlier.id!r} before it decides all of its "
                        "calls: move it up, narrow the earlier rule, or delete it"
                    )
        if rule.where is None or isinstance(rule.where, ArgumentConditions):  # nothing is known of a function
            for place in {*min(self._choices(rule), key=self._crowd, default=(_ANYWHERE,))}:
                insort(self._rules_at[place.key], (place.rank, len(self._ids), rule))
        self._ids.add(rule.id)
        return None

    def _crowd(self, places: tuple[_Place, ...]) -> int:
        """Return how many rules are kept before a rule at the fullest of the places, except `_VALUES`."""
        return max(
            bisect_right(self._rules_at.get(place.key, ()), place.rank, key=itemgetter(0))
            for place in places
            if place.key[0] != _VALUES
        )

    def _choices(self, rule: Rule) -> Iterator[tuple[_Place, ...]]:
        """Yield the places of each condition. Every rule that the rule covers looks at one of the places of each."""
        for name, values in rule.attributes.items():
            yield tuple(_Place(("attribute", name, _value_key(value))) for value in values)
        if isinstance(rule.where, ArgumentConditions):
            yield from map(_condition_places, rule.where.conditions)
        for name in _NAMES:
            patterns = getattr(rule, name)
            if "*" not in patterns:
                ways = ([(place,) for place in _pattern_places(name, pattern)] for pattern in patterns)
                yield tuple(place for way in ways for place in min(way, key=self._crowd))


def _places_of_covering(rule: Rule) -> Iterator[_Place]:
    """Yield the places where a rule that covers the rule may be kept."""
    yield _ANYWHERE
    for name, values in rule.attributes.items():
        yield _Place(("attribute", name, _value_key(values[0])))
    if isinstance(rule.where, ArgumentConditions):
        for condition in rule.where.conditions:
            yield from _places_of_implied(condition)
    for name in _NAMES:
        pattern = getattr(rule, name)[0]  # each of the patterns must be covered, so the first is enough
        head, tail = literal_ends(pattern)
        yield _Place((name, "is", pattern))
        for length in range(min(len(head), _MOST_CHARACTERS) + 1):
            yield _Place((name, "begins", head[:length]))
        for length in range(1, min(len(tail), _MOST_CHARACTERS) + 1):
            yield _Place((name, "ends", tail[-length:]))


def _pattern_places(name: str, pattern: str) -> Iterator[_Place]:
    """Yield places of a pattern, one of which is enough: every pattern that it covers looks at each."""
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
    same = _bound_place(condition) or _Place(("operator", path, operator, _value_key(operand)))
    return (same,) if operator == "exists" else (same, _Place((_VALUES, path)))


def _places_of_implied(condition: Condition) -> Iterator[_Place]:
    """Yield the places where the conditions may be that a condition implies."""
    path, operator, operand = condition.path, condition.operator, condition.operand
    yield _bound_place(condition) or _Place(("operator", path, operator, _value_key(operand)))
    if operator in ("eq", "in"):
        yield _Place((_VALUES, path))
        yield _Place(("value", path, _value_key(operand if operator == "eq" else operand[0])))


def _bound_place(condition: Condition) -> _Place | None:
    """Return the place of a condition with a bound, after those whose bounds are wider; None for any other."""
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
