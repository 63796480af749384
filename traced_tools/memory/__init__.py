"""Memory of conversations: append-only logs in repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.memory.chat_memory import ChatMemory as ChatMemory
    from traced_tools.memory.conversation import Conversation as Conversation
    from traced_tools.memory.conversation import ConversationLog as ConversationLog
    from traced_tools.memory.conversation import EntrySelection as EntrySelection
    from traced_tools.memory.conversation import StoredEntry as StoredEntry
    from traced_tools.memory.entries import CompactionEntry as CompactionEntry
    from traced_tools.memory.entries import MemoryEntry as MemoryEntry
    from traced_tools.memory.entries import MessageEntry as MessageEntry
    from traced_tools.memory.in_memory import InMemoryChatMemoryRepository as InMemoryChatMemoryRepository
    from traced_tools.memory.log_reader import LogReader as LogReader
    from traced_tools.memory.redis import RedisChatMemoryRepository as RedisChatMemoryRepository
    from traced_tools.memory.repository import ChatMemoryRepository as ChatMemoryRepository
    from traced_tools.memory.session import MemorySession as MemorySession
    from traced_tools.memory.sql import SqlChatMemoryRepository as SqlChatMemoryRepository
    from traced_tools.memory.view import MemoryView as MemoryView
    from traced_tools.memory.view import Round as Round
    from traced_tools.memory.view import Turn as Turn
    from traced_tools.memory.window import MessageWindowChatMemory as MessageWindowChatMemory

_EXPORTS = {
    "ChatMemory": "traced_tools.memory.chat_memory",
    "ChatMemoryRepository": "traced_tools.memory.repository",
    "CompactionEntry": "traced_tools.memory.entries",
    "Conversation": "traced_tools.memory.conversation",
    "ConversationLog": "traced_tools.memory.conversation",
    "EntrySelection": "traced_tools.memory.conversation",
    "InMemoryChatMemoryRepository": "traced_tools.memory.in_memory",
    "LogReader": "traced_tools.memory.log_reader",
    "MemoryEntry": "traced_tools.memory.entries",
    "MemorySession": "traced_tools.memory.session",
    "MemoryView": "traced_tools.memory.view",
    "MessageEntry": "traced_tools.memory.entries",
    "MessageWindowChatMemory": "traced_tools.memory.window",
    "RedisChatMemoryRepository": "traced_tools.memory.redis",
    "Round": "traced_tools.memory.view",
    "SqlChatMemoryRepository": "traced_tools.memory.sql",
    "StoredEntry": "traced_tools.memory.conversation",
    "Turn": "traced_tools.memory.view",
}

__all__ = [
    "ChatMemory",
    "ChatMemoryRepository",
    "CompactionEntry",
    "Conversation",
    "ConversationLog",
    "EntrySelection",
    "InMemoryChatMemoryRepository",
    "LogReader",
    "MemoryEntry",
    "MemorySession",
    "MemoryView",
    "MessageEntry",
    "MessageWindowChatMemory",
    "RedisChatMemoryRepository",
    "Round",
    "SqlChatMemoryRepository",
    "StoredEntry",
    "Turn",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
