"""Entries that tests append."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from traced_tools import UserMessage
from traced_tools.errors import ConversationConflict
from traced_tools.memory import ChatMemoryRepository, ConversationLog, MessageEntry

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def said(text: str, turn: int = 1, **fields: Any) -> MessageEntry:
    return MessageEntry(UserMessage(text), turn=turn, **fields)


def texts(log: ConversationLog) -> list[str]:
    return [message.text for message in log.messages if isinstance(message, UserMessage)]


def append_somehow(repository: ChatMemoryRepository, name: str, entries: list[MessageEntry]) -> None:
    """Append, and repeat it as long as it conflicts."""
    for _ in range(10_000):
        try:
            repository.append(name, entries, repository.version(name))
            return
        except ConversationConflict:
            pass
    raise AssertionError("an append is refused for ever")
