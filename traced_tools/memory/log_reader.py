"""Reads the log of one conversation for one branch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final, Unpack
from weakref import WeakValueDictionary

from traced_tools.core.messages import ToolMessage
from traced_tools.memory.conversation import ConversationLog
from traced_tools.memory.entries import MessageEntry
from traced_tools.memory.repository import ChatMemoryRepository, LogPart
from traced_tools.memory.view import Turn, turns_of
from traced_tools.run.context import RunContext

_ACTIVE: Final[WeakValueDictionary[str, RunContext]] = WeakValueDictionary()
"""The runs of this process that use a memory, by id."""


def register_run(run: RunContext) -> None:
    """Make the turn of `run` invisible to other runs until it has ended."""
    _ACTIVE[run.id] = run


class LogReader:
    """Reads what a branch of a conversation has in its log, on behalf of a principal.

    Args:
        repository: where the conversation is.
        conversation_id: the conversation.
        principal: who asks.
        branch: the branch; empty for the main agent's.

    Attributes:
        log: what was read last; its version is the one that the next append expects.
        hidden: the ids of entries that were read and are in no turn: of runs that have not ended, and those that other
            runs have appended since then.
        is_replaced: whether the conversation was deleted after it was read.
    """

    def __init__(
        self, repository: ChatMemoryRepository, conversation_id: str, principal: str | None, branch: str = ""
    ) -> None:
        self.repository = repository
        self.conversation_id = conversation_id
        self.principal = principal
        self.branch = branch
        self.log = ConversationLog(conversation_id, 0)
        self.hidden: frozenset[str] = frozenset()
        self.is_replaced = False

    async def read(self, *, ids: tuple[str, ...] | None = None, **part: Unpack[LogPart]) -> ConversationLog:
        """Return a part of what the branch has in the log, or the entries with `ids`, as a flow.

        Args:
            ids: the entries with these ids, which must all be there; None for entries of the branch.
            **part: which part, see `LogPart`. Its `branches` are always the reader's own.
        """
        if ids is None:
            part["branches"] = (self.branch,)
        self.log = await self.repository.read_flow(self.conversation_id, ids=ids, principal=self.principal, **part)
        return self.log

    async def last_turns(self, count: int) -> tuple[Turn, ...]:
        """Return all that the branch has of the last turns of the conversation, as a flow."""
        entries = (await self.read(last_turns=count, kind="message")).entries
        return turns_of(entry for entry in entries if isinstance(entry, MessageEntry))

    async def catch_up(self) -> ConversationLog:
        """Return what other runs have appended to the branch since it was read, as a flow; hide its messages."""
        before = self.log
        log = await self.read(after=before.version)
        self.hidden |= {entry.id for entry in log.entries if isinstance(entry, MessageEntry)}
        if before.conversation is not None:
            self.is_replaced |= log.conversation is None or log.conversation.key != before.conversation.key
        return log

    def turns(self, entries: Iterable[MessageEntry]) -> tuple[Turn, ...]:
        """Return entries as turns, without the turns of runs of this process that have not ended."""
        all_turns = turns_of(entries)
        active = {id(turn) for turn in all_turns if is_active(turn.last)}
        self.hidden = frozenset(entry.id for turn in all_turns if id(turn) in active for entry in turn.entries)
        ended = (_without_orphans(turn) for turn in all_turns if id(turn) not in active)
        return tuple(turn for turn in ended if turn.size)


def is_active(entry: MessageEntry) -> bool:
    """Return whether the run of an entry has not ended, as far as this process knows."""
    run = _ACTIVE.get(entry.run_id or "")
    return run is not None and not run.totals.ended


def _without_orphans(turn: Turn) -> Turn:
    """Return a turn without results at its beginning, whose calls are missing or covered by a compaction."""
    if not any(isinstance(entry.message, ToolMessage) for entry in turn.question):
        return turn
    return replace(
        turn,
        question=tuple(
            entry for entry in turn.question if entry.pause is not None or not isinstance(entry.message, ToolMessage)
        ),
    )
