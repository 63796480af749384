"""The indexes of the audit store's table, in SQLite and in PostgreSQL.

They are apart from the table because SQLAlchemy imports the dialects of both databases for their conditions, with all
drivers, which takes longer than most readers run.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Index, text

from traced_tools.audit.schema import RECORDS

_SEARCHED: Final = ("tool", "agent", "conversation_id")
"""Part of each index that is ordered by time, so that a search by these columns reads the index alone."""


def _index(name: str, *columns: str, condition: str) -> Index:
    """Return a partial index over the records that meet a condition. Each record is in few of these indexes."""
    return Index(
        f"audit_{name}",
        *(RECORDS.c[column] for column in columns),
        sqlite_where=text(condition),
        postgresql_where=text(condition),
    )


INDEXES = (
    _index("calls", "run_id", "iteration", "batch_index", "kind", "decision", condition="run_id IS NOT NULL"),
    _index("intents", "time", *_SEARCHED, condition="kind = 'intent'"),
    _index("decisions", "decision", "time", *_SEARCHED, condition="kind = 'decision'"),
    _index("outcomes", "outcome", "time", *_SEARCHED, condition="kind = 'outcome'"),
    _index("conversations", "conversation_id", "time", condition="kind = 'intent' AND conversation_id IS NOT NULL"),
    _index("checkpoints", "chain_id", "sequence", condition="kind = 'checkpoint'"),
)
