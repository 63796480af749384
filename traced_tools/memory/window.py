"""The memory that sends the last messages of a conversation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from traced_tools.core.checks import expect_whole
from traced_tools.core.messages import UserMessage
from traced_tools.memory.chat_memory import ChatMemory
from traced_tools.memory.entries import MessageEntry
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.view import MemoryView, Turn

if TYPE_CHECKING:
    from traced_tools.memory.session import MemorySession


class MessageWindowChatMemory(ChatMemory):
    """Sends the last messages of a conversation, in whole turns, and always the whole turn of the run.

    It reads no more than the window, however long the conversation is. A turn of which a part is outside the window is
    left out. Nothing is removed from the log.

    Args:
        repository: where the conversations are.
        max_messages: how many messages are sent at most, besides the instructions. The turn of the run is sent even if
            it has more.
    """

    def __init__(self, repository: ChatMemoryRepository, max_messages: int = 20) -> None:
        super().__init__(repository)
        expect_whole("max_messages", max_messages, 1)
        self.max_messages = max_messages

    async def read(self, log: LogReader) -> MemoryView:
        """Return the turns within the window, as a flow."""
        most, unsent = self.max_messages + 1, 0
        while True:
            read = (await log.read(last=most + unsent, kind="message")).entries
            entries = [entry for entry in read if isinstance(entry, MessageEntry)]
            turns = log.turns(entries)
            more = sum(turn.size - turn.sent for turn in turns)
            if len(entries) < most + unsent or more <= unsent:
                break
            unsent = more
        if len(entries) == most + unsent:  # there may be more, so that the first turns may have begun before
            turns = tuple(turn for turn in turns if _is_whole(turn))
        visible = sum(turn.size for turn in turns) + sum(entry.id in log.hidden for entry in entries)
        return self._within(MemoryView(turns=turns, left_out=len(entries) - visible))

    async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view without its oldest turns, so that it is within the window, as a flow."""
        return self._within(view)

    def _within(self, view: MemoryView) -> MemoryView:
        if not view.turns:
            return view
        sizes = [turn.sent for turn in view.turns]
        room = self.max_messages - view.running.sent
        count = len(sizes)
        while count and sum(sizes[-count:]) > room:
            count -= 1
        if count == len(sizes):
            return view
        left_out = sum(turn.size for turn in view.turns[: len(sizes) - count])
        return replace(view, turns=view.turns[len(sizes) - count :], left_out=view.left_out + left_out)


def _is_whole(turn: Turn) -> bool:
    return bool(turn.question) and isinstance(turn.question[0].message, UserMessage)
