"""Memory of conversations: append-only logs in repositories."""

from __future__ import annotations

from typing import TYPE_CHECKING

from traced_tools._lazy import lazy_exports

if TYPE_CHECKING:
    from traced_tools.memory.chat_memory import ChatMemory as ChatMemory
    from traced_tools.memory.compacting import CompactingChatMemory as CompactingChatMemory
    from traced_tools.memory.contract import check_chat_memory_repository as check_chat_memory_repository
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
    from traced_tools.memory.strategies import CompactionStrategy as CompactionStrategy
    from traced_tools.memory.strategies import CutToolResults as CutToolResults
    from traced_tools.memory.strategies import KeepTurns as KeepTurns
    from traced_tools.memory.strategies import OldPart as OldPart
    from traced_tools.memory.strategies import may_go_on as may_go_on
    from traced_tools.memory.summarize import Summarize as Summarize
    from traced_tools.memory.triggers import CompactionTrigger as CompactionTrigger
    from traced_tools.memory.triggers import Tokens as Tokens
    from traced_tools.memory.triggers import Turns as Turns
    from traced_tools.memory.triggers import WindowShare as WindowShare
    from traced_tools.memory.view import MemoryView as MemoryView
    from traced_tools.memory.view import Round as Round
    from traced_tools.memory.view import Turn as Turn
    from traced_tools.memory.window import MessageWindowChatMemory as MessageWindowChatMemory
    from traced_tools.memory.words import WordSearch as WordSearch

_EXPORTS = {
    "check_chat_memory_repository": "traced_tools.memory.contract",
    "ChatMemory": "traced_tools.memory.chat_memory",
    "ChatMemoryRepository": "traced_tools.memory.repository",
    "CompactingChatMemory": "traced_tools.memory.compacting",
    "CompactionEntry": "traced_tools.memory.entries",
    "CompactionStrategy": "traced_tools.memory.strategies",
    "CompactionTrigger": "traced_tools.memory.triggers",
    "Conversation": "traced_tools.memory.conversation",
    "ConversationLog": "traced_tools.memory.conversation",
    "CutToolResults": "traced_tools.memory.strategies",
    "EntrySelection": "traced_tools.memory.conversation",
    "InMemoryChatMemoryRepository": "traced_tools.memory.in_memory",
    "KeepTurns": "traced_tools.memory.strategies",
    "LogReader": "traced_tools.memory.log_reader",
    "MemoryEntry": "traced_tools.memory.entries",
    "MemorySession": "traced_tools.memory.session",
    "MemoryView": "traced_tools.memory.view",
    "MessageEntry": "traced_tools.memory.entries",
    "MessageWindowChatMemory": "traced_tools.memory.window",
    "OldPart": "traced_tools.memory.strategies",
    "RedisChatMemoryRepository": "traced_tools.memory.redis",
    "Round": "traced_tools.memory.view",
    "SqlChatMemoryRepository": "traced_tools.memory.sql",
    "StoredEntry": "traced_tools.memory.conversation",
    "Summarize": "traced_tools.memory.summarize",
    "Tokens": "traced_tools.memory.triggers",
    "Turn": "traced_tools.memory.view",
    "Turns": "traced_tools.memory.triggers",
    "WindowShare": "traced_tools.memory.triggers",
    "WordSearch": "traced_tools.memory.words",
    "may_go_on": "traced_tools.memory.strategies",
}

__all__ = [
    "ChatMemory",
    "ChatMemoryRepository",
    "CompactingChatMemory",
    "CompactionEntry",
    "CompactionStrategy",
    "CompactionTrigger",
    "Conversation",
    "ConversationLog",
    "CutToolResults",
    "EntrySelection",
    "InMemoryChatMemoryRepository",
    "KeepTurns",
    "LogReader",
    "MemoryEntry",
    "MemorySession",
    "MemoryView",
    "MessageEntry",
    "MessageWindowChatMemory",
    "OldPart",
    "RedisChatMemoryRepository",
    "Round",
    "SqlChatMemoryRepository",
    "StoredEntry",
    "Summarize",
    "Tokens",
    "Turn",
    "Turns",
    "WindowShare",
    "WordSearch",
    "check_chat_memory_repository",
    "may_go_on",
]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
