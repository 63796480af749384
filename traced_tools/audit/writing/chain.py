"""The chain that one writer's records form: each holds the hash of the one before it."""

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
    """The end of a chain, as it is in the store and as it will be with the records that are sealed.

    Attributes:
        id: tells chains apart; sorts by when they began.
        stored: the last record known to be stored.
        sealed: the last record that was sealed.
    """

    def __init__(self) -> None:
        self.id: Final = time_ordered_id()
        self.stored = self.sealed = NOWHERE

    def seal(
        self, time: int, fields: dict[str, Any], *, careful: bool = False, sign: Callable[[bytes], str] | None = None
    ) -> Row:
        """Return a record with its place at the end of the chain.

        Args:
            time: when it happened.
            fields: what it says; takes up its place in the chain.
            careful: whether to doubt every value, as after a store has refused one.
            sign: makes the signature of a checkpoint.
        """
        sequence, previous = self.sealed
        fields["chain_id"] = self.id
        fields["sequence"] = sequence + 1
        fields["previous"] = previous
        if sign is not None:
            fields.pop("signature", None)
            fields["signature"] = sign(body_of(fields).encode())
        body = written(fields, careful)
        hashed = body_of(without_texts(fields)) if fields.get("schema_version") == ERASABLE_VERSION else body
        digest = hash_of(hashed)
        self.sealed = sequence + 1, digest
        return self.id, sequence + 1, time, fields["kind"], *map(fields.get, REPEATED), digest, body

    def unseal(self) -> None:
        """Go back to what is stored."""
        self.sealed = self.stored

    def settle(self) -> None:
        """Take what is sealed as stored."""
        self.stored = self.sealed


def record_of(row: Row) -> AuditRecord:
    """Return a row as a record."""
    return AuditRecord(row[0], row[1], row[2], row[3], row[-2], row[-1])


def kind_of(row: Row) -> RecordKind:
    """Return which record a row is."""
    kind: RecordKind = row[3]
    return kind
