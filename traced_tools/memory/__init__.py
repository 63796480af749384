"""Memory of conversations: append-only logs in repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.memory.conversation import Conversation as Conversation
    from traced_tools.memory.conversation import ConversationLog as ConversationLog
    from traced_tools.memory.conversation import EntrySelection as EntrySelection
    from traced_tools.memory.conversation import StoredEntry as StoredEntry
    from traced_tools.memory.entries import CompactionEntry as CompactionEntry
    from traced_tools.memory.entries import MemoryEntry as MemoryEntry
    from traced_tools.memory.entries import MessageEntry as MessageEntry
    from traced_tools.memory.in_memory import InMemoryChatMemoryRepository as InMemoryChatMemoryRepository
    from traced_tools.memory.redis import RedisChatMemoryRepository as RedisChatMemoryRepository
    from traced_tools.memory.repository import ChatMemoryRepository as ChatMemoryRepository
    from traced_tools.memory.sql import SqlChatMemoryRepository as SqlChatMemoryRepository
    from traced_tools.memory.words import WordSearch as WordSearch

_EXPORTS = {
    "ChatMemoryRepository": "traced_tools.memory.repository",
    "CompactionEntry": "traced_tools.memory.entries",
    "Conversation": "traced_tools.memory.conversation",
    "ConversationLog": "traced_tools.memory.conversation",
    "EntrySelection": "traced_tools.memory.conversation",
    "InMemoryChatMemoryRepository": "traced_tools.memory.in_memory",
    "MemoryEntry": "traced_tools.memory.entries",
    "MessageEntry": "traced_tools.memory.entries",
    "RedisChatMemoryRepository": "traced_tools.memory.redis",
    "SqlChatMemoryRepository": "traced_tools.memory.sql",
    "StoredEntry": "traced_tools.memory.conversation",
    "WordSearch": "traced_tools.memory.words",
}

__all__ = [
    "ChatMemoryRepository",
    "CompactionEntry",
    "Conversation",
    "ConversationLog",
    "EntrySelection",
    "InMemoryChatMemoryRepository",
    "MemoryEntry",
    "MessageEntry",
    "RedisChatMemoryRepository",
    "SqlChatMemoryRepository",
    "StoredEntry",
    "WordSearch",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
