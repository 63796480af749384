"""The chain of one writer's records: each record holds the hash of the record before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from traced_tools.audit.records import (
    ERASABLE_VERSION,
    GENESIS,
    AuditRecord,
    RecordKind,
    body_of,
    hash_of,
    without_texts,
)
from traced_tools.audit.schema import REPEATED
from traced_tools.audit.store import Row
from traced_tools.audit.writing.record_builder import written
from traced_tools.core.ids import time_ordered_id

Place = tuple[int, str]
"""A sequence number and the hash of its record."""
NOWHERE: Final[Place] = (0, GENESIS)


class Chain:
    """The end of a chain of records: the committed end, and the head, which includes rows not committed yet.

    Attributes:
        id: identifies the chain; ids sort by when their chains began.
        committed: the place of the last record that is known to be stored.
        head: the place of the last row.
    """

    def __init__(self) -> None:
        self.id: Final = time_ordered_id()
        self.committed = self.head = NOWHERE

    def extend(
        self, time: int, fields: dict[str, Any], *, careful: bool = False, sign: Callable[[bytes], str] | None = None
    ) -> Row:
        """Return the row of a record that follows the head, and move the head to it.

        Args:
            time: the time of the event, in nanoseconds of Unix time.
            fields: the record's fields; the place in the chain is added to them.
            careful: whether to check every value, for example after the store has refused a row.
            sign: signs the body of a checkpoint.
        """
        sequence, previous = self.head
        fields["chain_id"] = self.id
        fields["sequence"] = sequence + 1
        fields["previous"] = previous
        if sign is not None:
            fields.pop("signature", None)
            fields["signature"] = sign(body_of(fields).encode())
        body = written(fields, careful)
        hashed = body_of(without_texts(fields)) if fields.get("schema_version") == ERASABLE_VERSION else body
        digest = hash_of(hashed)
        self.head = sequence + 1, digest
        return self.id, sequence + 1, time, fields["kind"], *map(fields.get, REPEATED), digest, body

    def roll_back(self) -> None:
        """Move the head back to the last committed record."""
        self.head = self.committed

    def mark_committed(self) -> None:
        """Mark the head as committed."""
        self.committed = self.head


def record_of(row: Row) -> AuditRecord:
    """Return the record of a row."""
    return AuditRecord(row[0], row[1], row[2], row[3], row[-2], row[-1])


_AGENT: Final = 4 + REPEATED.index("agent")


def kind_and_agent(row: Row) -> tuple[RecordKind, str | None]:
    """Return the kind of a row's record, and the agent of a record about a call or a run."""
    return row[3], row[_AGENT]
