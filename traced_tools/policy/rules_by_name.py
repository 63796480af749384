"""The rules of a policy by the names of tools that they spell out: a call is compared with few of many rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import merge

from traced_tools.policy.rule import CallFacts, Rule


class RulesByName:
    """The rules of a policy, in their order.

    Args:
        rules: the rules.
    """

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._with_wildcards: list[int] = []
        self._by_name = defaultdict[str, list[int]](list)
        for number, rule in enumerate(rules):
            names = rule.spelled_names
            if len(names) < len(rule.tool):
                self._with_wildcards.append(number)
            else:
                for name in {*names}:
                    self._by_name[name].append(number)

    def candidates(self, call: CallFacts) -> Iterator[Rule]:
        """Yield the rules that have a pattern, or spell out the offered name or the own name of the tool, in order."""
        names = {call.tool, call.own_name} & self._by_name.keys()
        numbers = merge(self._with_wildcards, *(self._by_name[name] for name in names if name is not None))
        last = -1
        for number in numbers:
            if number != last:  # a rule may spell out both names
                yield self._rules[number]
            last = number
