"""The tables of conversations in SQLite and PostgreSQL, and how a store of an earlier version becomes one of this."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
    insert,
    inspect,
    select,
    text,
    update,
)

from traced_tools.errors import ChatMemoryError

VERSION: Final = 1
MIGRATIONS: Final[Mapping[int, Callable[[Connection], None]]] = {}
"""By version, what changes a store of that version into one of the next version."""

_IS_COMPACTION: Final = text("kind = 'compaction'")
_OF_COMPACTIONS: Final[Mapping[str, Any]] = {"sqlite_where": _IS_COMPACTION, "postgresql_where": _IS_COMPACTION}

METADATA = MetaData()
SCHEMA = Table("chat_memory_schema", METADATA, Column("version", Integer, nullable=False))
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


def is_current(connection: Connection) -> bool:
    """Return whether a store has the tables of this version.

    Raises:
        ChatMemoryError: if its version is unknown.
    """
    return _version(connection) == VERSION


def prepare(connection: Connection) -> None:
    """Create missing tables, or migrate those of an earlier version, in the transaction of `connection`.

    Raises:
        ChatMemoryError: if the version of the store is unknown.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": ONE_AT_A_TIME})
    version = _version(connection)
    if version is None:
        METADATA.create_all(connection)
        connection.execute(insert(SCHEMA).values(version=VERSION))
        return
    for each in range(version, VERSION):
        MIGRATIONS[each](connection)
    connection.execute(update(SCHEMA).values(version=VERSION))


def _version(connection: Connection) -> int | None:
    if not inspect(connection).has_table(SCHEMA.name):
        return None
    found = connection.execute(select(SCHEMA.c.version)).scalars().all()
    if len(found) != 1 or not isinstance(found[0], int) or not 1 <= found[0] <= VERSION:
        versions = ", ".join(str(each)[:20] for each in found[:3]) or "none"
        raise ChatMemoryError(
            f"the schema version of the chat memory is {versions}, and this release knows versions 1 to {VERSION}: "
            "upgrade traced_tools, or use another database"
        )
    return found[0]
