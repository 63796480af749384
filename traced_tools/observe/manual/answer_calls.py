"""The calls of one answer, which the application executes one by one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from traced_tools.models.base import CallIdAssigner
from traced_tools.tools.toolset import NO_TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from traced_tools.core.enums import StopReason
    from traced_tools.core.messages import ToolCall
    from traced_tools.core.tool_result import ToolResult
    from traced_tools.tools.toolset import ToolSet

Place = tuple[int, int]
"""The position of a call in its answer, from 0, and the number of calls of the answer."""


class AnswerCalls:
    """The calls of an answer, and those that the application adds to them.

    Args:
        calls: the calls of the answer, each with an id of its own; none before there is an answer.
        offered: the tools that the model was offered.
        spent: the limit or budget that is used up, so that each call is refused; None if there is none.
        first: the position of the first call.

    Attributes:
        offered, spent: as above.
        results: the results so far.
    """

    def __init__(
        self,
        calls: Sequence[ToolCall] = (),
        offered: ToolSet = NO_TOOLS,
        spent: StopReason | None = None,
        first: int = 0,
    ) -> None:
        self.offered: Final = offered
        self.spent: Final = spent
        self.results: list[ToolResult] = []
        self._calls = calls
        self._first = first
        self._open: list[int] = [*range(len(calls))]
        self._ids = {call.id for call in calls}
        self._next = first + len(calls)

    def begin(self, call: ToolCall) -> tuple[ToolCall, Place]:
        """Return a call that is executed, with the id that its answer has for it, and its place.

        An application may execute the calls as the provider sent them: without ids, or with one id for several.
        """
        index = self._index_of(call)
        if index is not None:
            self._open.remove(index)
            call_id = self._calls[index].id
            return call if call.id == call_id else call.replace(id=call_id), self._place(index)
        if not call.id or call.id in self._ids:  # the answer was not reported, or the application adds a call
            call = call.replace(id=CallIdAssigner().assign(None))
        self._ids.add(call.id)
        return call, self.add()

    def _index_of(self, call: ToolCall) -> int | None:
        for index in self._open:
            if call.id and self._calls[index].id == call.id:
                return index
        if not call.id or call.id in self._ids:
            for index in self._open:
                requested = self._calls[index]
                if (requested.name, requested.arguments) == (call.name, call.arguments):
                    return index
        return None

    def add(self) -> Place:
        """Return a place for a call that no answer has, or that goes on after it has waited."""
        self._next += 1
        return self._next - 1, self._next - self._first

    def left(self) -> list[tuple[ToolCall, Place]]:
        """Return the calls of the answer that are not executed, each with its place."""
        return [(self._calls[index], self._place(index)) for index in self._open]

    def following(self, calls: Sequence[ToolCall], offered: ToolSet, spent: StopReason | None) -> AnswerCalls:
        """Return the calls of the next answer, whose places follow those of this one."""
        return AnswerCalls(calls, offered, spent, self._next)

    def _place(self, index: int) -> Place:
        return self._first + index, len(self._calls)
