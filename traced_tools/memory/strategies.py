"""Strategies of compactions: they decide which parts of a conversation are no longer sent to a model.

A strategy is a flow over the view: it returns a view that has less. What may leave a view are whole turns before the
turn of the run. If no such turn is left, whole rounds of the turn of the run may leave it: an answer with its calls and
their results. So a compaction also works between the rounds of one long turn.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar, Final

from traced_tools.core.checks import expect, expect_each, expect_whole
from traced_tools.core.messages import ToolMessage, ToolResultPart
from traced_tools.memory.entries import MessageEntry
from traced_tools.memory.view import MemoryView, Round, Turn, is_cut_to

if TYPE_CHECKING:
    from traced_tools.memory.session import MemorySession

_MAY_GO_ON_FOR: Final = timedelta(hours=1)
"""How long a turn without an answer is kept: a run in another process may still add to it."""


class CompactionStrategy(ABC):
    """Leaves something out of a view. A subclass sets `name` and implements `compact`, an `async def`.

    Attributes:
        name: the strategy's name in the log and in telemetry. It is a metric label, so use a fixed name.
    """

    name: ClassVar[str]

    @abstractmethod
    async def compact(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return a view that has less, or `view` if there is nothing to leave out, as a flow.

        It is called again while it leaves entries out and a trigger fires. It must keep the question and the last round
        of the running turn, and turns that `may_go_on`, and it must leave out rounds as a whole. If it does not, or if
        it raises an error, the run goes on without it.

        Args:
            view: what the model would be sent; it never changes.
            session: the run's access to the conversation.
        """


@dataclass(frozen=True, slots=True)
class OldPart:
    """The part of a view that a strategy may leave out: turns, or rounds of the running turn."""

    turns: tuple[Turn, ...] = ()
    rounds: tuple[Round, ...] = ()

    @classmethod
    def of(cls, view: MemoryView, keep_turns: int) -> OldPart:
        """Return all but the last `keep_turns` turns of a view; if there are none, all but the last rounds."""
        older = view.turns[: max(0, len(view.turns) - keep_turns)]
        if turns := tuple(turn for turn in older if not may_go_on(turn)):
            return cls(turns=turns)
        rounds = view.running.rounds[: max(0, len(view.running.rounds) - max(1, keep_turns))]
        pending = next((at for at, round_ in enumerate(rounds) if round_.open_calls()), len(rounds))
        return cls(rounds=rounds[:pending])

    def __bool__(self) -> bool:
        return bool(self.turns or self.rounds)

    def left_out_of(self, view: MemoryView) -> MemoryView:
        """Return `view` without this part."""
        removed = set(map(id, self.turns))
        return replace(
            view,
            turns=tuple(turn for turn in view.turns if id(turn) not in removed),
            running=replace(view.running, rounds=view.running.rounds[len(self.rounds) :]),
        )


def may_go_on(turn: Turn) -> bool:
    """Return whether a run may still add to a turn: it has a pending call, or no answer and is younger than an hour."""
    if turn.open_calls():
        return True
    return not turn.is_answered and datetime.now(UTC) - turn.entries[-1].time < _MAY_GO_ON_FOR


class KeepTurns(CompactionStrategy):
    """Keeps the last `turns` turns before the turn of the run, and leaves out older ones.

    If there are no older ones, it leaves out the rounds of the running turn before the last `turns` rounds.
    """

    name = "keep_turns"

    def __init__(self, turns: int) -> None:
        expect_whole("turns", turns, 0)
        self.turns = turns

    async def compact(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view without old turns or, if it has none, without old rounds."""
        part = OldPart.of(view, self.turns)
        return part.left_out_of(view) if part else view


class CutToolResults(CompactionStrategy):
    """Shows only the first characters of long tool results, and where the log has the whole result.

    It also leaves images of tool results out. It never cuts results that the model has not answered yet.

    Args:
        max_chars: how many characters are shown of a result.
        spare: the tools whose results stay whole: a name or a pattern, or several. In a pattern, `*` stands for any
            characters, `?` for one, `[ab]` for one of several.
    """

    name = "cut_tool_results"

    def __init__(self, max_chars: int, *, spare: str | Sequence[str] = ()) -> None:
        expect_whole("max_chars", max_chars, 0)
        expect("spare", spare, (str, list, tuple), "a str or a list of str")
        self.max_chars = max_chars
        self.spare = (spare,) if isinstance(spare, str) else tuple(spare)
        expect_each("spare", self.spare, str, "a str")
        if "" in self.spare:
            raise ValueError("spare must contain no empty name or pattern")

    async def compact(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view with long results cut."""
        earlier = [round_ for turn in view.turns if not may_go_on(turn) for round_ in turn.rounds]
        cuts = dict(view.cuts)
        for round_ in (*earlier, *view.running.rounds[:-1]):
            for entry in round_.following:
                before = view.cuts.get(entry.id, {})
                most = {
                    part.call_id: min(self.max_chars, before.get(part.call_id, sys.maxsize))
                    for part in self._long(entry)
                }
                if most:
                    cuts[entry.id] = {**before, **most}
        return view if cuts == view.cuts else replace(view, cuts=cuts)

    def _long(self, entry: MessageEntry) -> Iterator[ToolResultPart]:
        for part in entry.message.results if isinstance(entry.message, ToolMessage) else ():
            if is_cut_to(part, self.max_chars) and not self._spares(part.name):
                yield part

    def _spares(self, tool: str) -> bool:
        return tool in self.spare or any(fnmatchcase(tool, pattern) for pattern in self.spare)
