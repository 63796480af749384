"""What a run has used: model calls, tool calls, tokens, and dollars."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from traced_tools.core.frozen import frozen
from traced_tools.core.messages import Usage, UsageSum


@frozen
class NestedUsage:
    """What the runs nested in a run used, at any depth.

    Attributes:
        model_calls: calls of models.
        tool_calls: tool calls that models asked for.
        usage: tokens, if providers report them.
        cost: US dollars of the model calls that a price table knows; None if it knows none, or there is no price table.
    """

    model_calls: int
    tool_calls: int
    usage: Usage | None = None
    cost: float | None = None


@dataclass(slots=True)
class Totals:
    """What a run has used so far.

    Attributes:
        iterations: iterations of the loop, without the iteration that a resumed run continues.
        inference_calls: calls of chat models.
        tool_calls: tool calls that the model asked for, and calls that a resumed run found waiting.
        usage: tokens, if providers report them.
        cost: US dollars of the model calls that the client's price table knows; None if it knows none.
        nested: the totals of the runs that began inside this run, before it `ended`, or inside a run that it resumes.
        ended: whether the run has ended.
        is_carried: whether they are those of runs nested in a run that this one resumes. They count for this run, and
            not for the runs around it, which have counted them when they were used.
    """

    iterations: int = 0
    inference_calls: int = 0
    tool_calls: int = 0
    usage: UsageSum = field(default_factory=UsageSum)
    cost: float | None = None
    nested: list[Totals] = field(default_factory=list)
    ended: bool = False
    is_carried: bool = False

    def add(self, usage: Usage | None, cost: float | None) -> None:
        """Add the tokens and the dollars of one model call, each None if unknown."""
        self.usage.add(usage)
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def add_nested(self, before: NestedUsage) -> None:
        """Add what the runs nested in a run have used that this run resumes."""
        usage = UsageSum()
        usage.add(before.usage)
        self.nested.append(
            Totals(0, before.model_calls, before.tool_calls, usage, before.cost, ended=True, is_carried=True)
        )

    @property
    def spent(self) -> UsageSum:
        """The tokens of the run and of all runs nested in it."""
        if not self.nested:
            return self.usage
        usage_sum = UsageSum()
        usage_sum.add(self.usage.total)
        for totals in self._below():
            usage_sum.add(totals.usage.peek())
        return usage_sum

    @property
    def nested_tool_calls(self) -> int:
        """How many calls the models of nested runs asked for."""
        return sum(totals.tool_calls for totals in self._below()) if self.nested else 0

    def nested_usage(self) -> NestedUsage | None:
        """Return what all nested runs have used so far; None if there are none."""
        if not self.nested:
            return None
        descendants, usage_sum = [*self._below()], UsageSum()
        for totals in descendants:
            usage_sum.add(totals.usage.peek())
        costs = [totals.cost for totals in descendants if totals.cost is not None]
        model_calls, tool_calls = (sum(getattr(totals, name) for totals in descendants) for name in _CALLS)
        return NestedUsage(model_calls, tool_calls, usage_sum.total, sum(costs) if costs else None)

    def _below(self) -> Iterator[Totals]:
        """Yield the totals of the nested runs, at any depth; a run that goes on in another thread may add to them."""
        for totals in self.nested:
            yield totals
            if totals.nested:
                yield from (deeper for deeper in totals._below() if not deeper.is_carried)


_CALLS = ("inference_calls", "tool_calls")
