"""The columns of the audit store's one table, `audit_records`, in SQLite and in PostgreSQL.

The whole record is in `body`. The other columns repeat parts of it so that records can be searched; `verify` compares
them with the body.

To add a column that repeats a field of the body, add it to `_REPEATED`. The writer, `verify`, verified copies, exports
and new SQLite files follow from there. Tests name what doesn't: the PostgreSQL script, and stores that already exist.
The field itself is an attribute of `records.Subject` if all records of a call have it, else in `Draft.fields`.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import BigInteger, Column, Integer, MetaData, PrimaryKeyConstraint, Table, Text

METADATA = MetaData()

_REPEATED: Final[tuple[Column[Any], ...]] = (
    Column("run_id", Text),
    Column("iteration", Integer),
    Column("batch_index", Integer),
    Column("call_id", Text),
    Column("tool", Text),
    Column("agent", Text),
    Column("conversation_id", Text),
    Column("decision", Text),
    Column("outcome", Text),
)
RECORDS = Table(
    "audit_records",
    METADATA,
    Column("chain_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),  # nanoseconds of Unix time
    Column("kind", Text, nullable=False),
    *_REPEATED,
    Column("hash", Text, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("chain_id", "sequence"),
)
REPEATED: Final = tuple(column.name for column in _REPEATED)
"""The columns that repeat the body's field of the same name, and are NULL if the body has no such field."""
REPEATED_NUMBERS: Final = tuple(column.name for column in _REPEATED if isinstance(column.type, Integer))
"""The columns of `REPEATED` that hold integers; the others hold text."""
RECORD_COLUMNS: Final = tuple(column for column in RECORDS.columns if column.name not in REPEATED)
"""The columns that make up an `AuditRecord`, in the order of its fields."""
MOST_NAME: Final = 512
"""The maximum length of a text column in UTF-8 bytes. An index entry holds up to three text columns."""


def searchable(value: str) -> str:
    """Return a text as a text column stores it: valid UTF-8 without NUL characters, of at most `MOST_NAME` bytes."""
    valid = value[:MOST_NAME].encode("utf-8", "surrogatepass").decode("utf-8", "replace").replace("\0", "\ufffd")
    return valid.encode()[:MOST_NAME].decode("utf-8", "ignore")


def column_value(name: str, value: object) -> str | int | None:
    """Return a value as the column `name` of `REPEATED` stores it, or None if it has another type."""
    if name in REPEATED_NUMBERS:
        return value if isinstance(value, int) and 0 <= value < 1 << 31 else None
    return searchable(value) if isinstance(value, str) else None
