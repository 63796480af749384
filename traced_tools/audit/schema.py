"""The one table of a store, in SQLite and in PostgreSQL (`deploy/audit/postgresql.sql` makes the latter).

The columns beside `body` repeat parts of it so that they can be searched; `verify` compares them.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, PrimaryKeyConstraint, Table, Text, text

METADATA = MetaData()

RECORDS = Table(
    "audit_records",
    METADATA,
    Column("chain_id", Text, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("time", BigInteger, nullable=False),  # nanoseconds of Unix time
    Column("kind", Text, nullable=False),
    Column("run_id", Text),
    Column("iteration", Integer),
    Column("batch_index", Integer),
    Column("call_id", Text),
    Column("tool", Text),
    Column("agent", Text),
    Column("conversation_id", Text),
    Column("decision", Text),
    Column("outcome", Text),
    Column("hash", Text, nullable=False),
    Column("body", Text, nullable=False),
    PrimaryKeyConstraint("chain_id", "sequence"),
)
REPEATED = ("run_id", "iteration", "batch_index", "call_id", "tool", "agent", "conversation_id", "decision", "outcome")
"""The columns that stand in the body under the same name, where they stand in it at all."""

_ASKED_FOR = ("tool", "agent", "conversation_id")
"""Stand in the indexes in order of time, so that any question is answered without looking at the records themselves."""


def _index(name: str, *columns: str, where: str) -> Index:
    """Return an index over the records that have such a value: a record stands in few of them."""
    return Index(
        f"audit_{name}",
        *(RECORDS.c[column] for column in columns),
        sqlite_where=text(where),
        postgresql_where=text(where),
    )


INDEXES = (
    _index("calls", "run_id", "iteration", "batch_index", "kind", "decision", where="run_id IS NOT NULL"),
    _index("intents", "time", *_ASKED_FOR, where="kind = 'intent'"),
    _index("decisions", "decision", "time", *_ASKED_FOR, where="kind = 'decision'"),
    _index("outcomes", "outcome", "time", *_ASKED_FOR, where="kind = 'outcome'"),
    _index("conversations", "conversation_id", "time", where="kind = 'intent' AND conversation_id IS NOT NULL"),
    _index("checkpoints", "chain_id", "sequence", where="kind = 'checkpoint'"),
)
