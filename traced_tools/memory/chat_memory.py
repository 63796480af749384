"""The base class of memories: a memory decides what a model is sent of a conversation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

from traced_tools.core.checks import expect, expect_each
from traced_tools.core.messages import ANY_MESSAGE, MESSAGE_TYPES, Message, SystemMessage, UserMessage
from traced_tools.errors import ConversationConflict
from traced_tools.flow.flow import acall, call
from traced_tools.memory.entries import MessageEntry
from traced_tools.memory.log_reader import LogReader
from traced_tools.memory.repository import ChatMemoryRepository
from traced_tools.memory.view import MemoryView

if TYPE_CHECKING:
    from traced_tools.memory.session import MemorySession


_MOST_ATTEMPTS: Final = 1_000


class ChatMemory(ABC):
    """Decides what a model is sent of a conversation: the view of its log. A `MemoryAdvisor` uses it.

    A subclass implements two flows: `read` reads the view when a run begins, and `fit` changes it before each call of
    the model.

    Args:
        repository: where the conversations are.
    """

    def __init__(self, repository: ChatMemoryRepository) -> None:
        expect("repository", repository, ChatMemoryRepository, "a ChatMemoryRepository")
        self.repository = repository

    @abstractmethod
    async def read(self, log: LogReader) -> MemoryView:
        """Return the view of a conversation, as a flow. It reads what it needs of the log."""

    @abstractmethod
    async def fit(self, view: MemoryView, session: MemorySession) -> MemoryView:
        """Return the view to send now, as a flow. It may leave turns out of `view`, and append a compaction to the log.

        Args:
            view: the view so far, with what the run has added.
            session: the run's access to the conversation.
        """

    def get(self, conversation_id: str, *, principal: str | None = None) -> tuple[Message, ...]:
        """Return what a model would be sent of a conversation.

        Raises:
            ConversationDenied: if the conversation belongs to another principal.
            ChatMemoryError: if the conversation cannot be read.
        """
        return call(self._get(conversation_id, principal))

    async def aget(self, conversation_id: str, *, principal: str | None = None) -> tuple[Message, ...]:
        """Return what a model would be sent of a conversation, on asyncio; see `get`."""
        return await acall(self._get(conversation_id, principal))

    async def _get(self, conversation_id: str, principal: str | None) -> tuple[Message, ...]:
        view = await self.read(LogReader(self.repository, conversation_id, principal))
        return view.messages

    def add(self, conversation_id: str, messages: Iterable[Message], *, principal: str | None = None) -> None:
        """Append messages to a conversation, for example a conversation that began elsewhere.

        Args:
            conversation_id: the conversation; a missing one begins.
            messages: the messages in order; each message of the user begins a turn. System messages are refused:
                instructions belong to the client.
            principal: the owner of the conversation.

        Raises:
            TypeError, ValueError: for an invalid argument.
            ConversationDenied: if the conversation belongs to another principal.
            ChatMemoryError: if the store fails.
        """
        call(self._add(conversation_id, messages, principal))

    async def aadd(self, conversation_id: str, messages: Iterable[Message], *, principal: str | None = None) -> None:
        """Append messages to a conversation on asyncio; see `add`."""
        await acall(self._add(conversation_id, messages, principal))

    async def _add(self, conversation_id: str, messages: Iterable[Message], principal: str | None) -> None:
        expect("messages", messages, Iterable, "a sequence of messages")
        new_messages = tuple(messages)
        expect_each("messages", new_messages, MESSAGE_TYPES, ANY_MESSAGE)
        if any(isinstance(message, SystemMessage) for message in new_messages):
            raise ValueError("messages must not contain a system message: pass instructions as system= of the client")
        if not new_messages:
            return
        reader = LogReader(self.repository, conversation_id, principal)
        for _ in range(_MOST_ATTEMPTS):
            log = await reader.read(last=1)
            entries = _in_turns(new_messages, log.last_turn)
            try:
                await self.repository.extend_flow(log, entries, principal=principal)
            except ConversationConflict as error:  # another run has appended, so that another turn is the last one now
                conflict = error
            else:
                return
        raise conflict


def _in_turns(messages: Sequence[Message], last_turn: int) -> list[MessageEntry]:
    """Return messages as entries, of which each message of the user begins a turn after `last_turn`."""
    entries, turn = [], last_turn
    for message in messages:
        turn += isinstance(message, UserMessage)
        entries.append(MessageEntry(message, turn=max(1, turn)))
    return entries
