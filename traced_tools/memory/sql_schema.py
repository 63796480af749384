"""The tables of conversations in SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    text,
)

from traced_tools.errors import ChatMemoryError
from traced_tools.stores.schema import Schema

_IS_COMPACTION: Final = text("kind = 'compaction'")
_OF_COMPACTIONS: Final[Mapping[str, Any]] = {"sqlite_where": _IS_COMPACTION, "postgresql_where": _IS_COMPACTION}

METADATA = MetaData()
CONVERSATIONS = Table(
    "chat_memory_conversations",
    METADATA,
    Column("key", Text, primary_key=True),
    Column("id", Text, nullable=False, unique=True),
    Column("version", BigInteger, nullable=False),
    Column("last_turn", BigInteger, nullable=False),
    Column("principal", Text),
    Column("attributes", Text, nullable=False),  # JSON, from which `ATTRIBUTES` is made
    Column("created_at", BigInteger, nullable=False),  # microseconds of Unix time, like the other times
    Column("updated_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Index("chat_memory_principals", "principal", "key"),
    Index("chat_memory_expiry", "expires_at"),
)
ENTRIES = Table(
    "chat_memory_entries",
    METADATA,
    Column("conversation_key", Text, nullable=False),
    Column("position", BigInteger, nullable=False),
    Column("id", Text, nullable=False),
    Column("turn", BigInteger, nullable=False),
    Column("branch", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("conversation_key", "position"),
    UniqueConstraint("conversation_key", "id"),
    Index("chat_memory_turns", "conversation_key", "turn", "branch"),
    Index("chat_memory_branches", "conversation_key", "branch", "position"),
    Index("chat_memory_compactions", "conversation_key", "position", **_OF_COMPACTIONS),
    Index("chat_memory_branch_compactions", "conversation_key", "branch", "position", **_OF_COMPACTIONS),
)
ATTRIBUTES = Table(
    "chat_memory_attributes",
    METADATA,
    Column("name", Text, nullable=False),
    Column("value", Text, nullable=False),
    Column("conversation_key", Text, nullable=False),
    PrimaryKeyConstraint("name", "value", "conversation_key"),
    Index("chat_memory_attributes_of", "conversation_key"),
)

ONE_AT_A_TIME: Final = 7_164_911_036_722_107_841
"""The number of the PostgreSQL lock under which a process creates or migrates the tables."""
CHAT_MEMORY: Final = Schema(
    "chat memory",
    METADATA,
    version_table="chat_memory_schema",
    version=1,
    migrations={},
    lock=ONE_AT_A_TIME,
    error=ChatMemoryError,
)
