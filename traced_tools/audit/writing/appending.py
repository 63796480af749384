"""Appends batches to a chain in a store, and keeps the chain whole when connections fail."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from traced_tools.audit.records import Draft, timestamp
from traced_tools.audit.store import Row, Store, WriteConnection, is_refusal
from traced_tools.audit.writing.chain import NOWHERE, Chain
from traced_tools.audit.writing.checkpoints import Checkpoints
from traced_tools.audit.writing.queue_entries import QueueEntry
from traced_tools.audit.writing.record_builder import RecordMaker

_HEADS_INTERVAL: Final = 10.0
"""Seconds between looks at the other chains of the store."""
_ACTIVE: Final = 86_400 * 10**9
"""Nanoseconds for which a chain counts as active after its last record."""
_log = logging.getLogger("traced_tools.audit")


@dataclass
class GapCounts:
    """Counts for a `gap` record: intents that were stored late, and records that are lost."""

    late: int = 0
    lost: int = 0
    since: int = 0

    def add(self, time: int, *, late: int = 0, lost: int = 0) -> None:
        """Count records, the first of them made at `time`, in nanoseconds of Unix time."""
        self.since = min(self.since or time, time)
        self.late += late
        self.lost += lost

    def copy(self) -> GapCounts:
        """Return equal counts, eight times as fast as `dataclasses.replace`."""
        return GapCounts(self.late, self.lost, self.since)

    def __bool__(self) -> bool:
        return bool(self.late or self.lost)


@dataclass
class AppendBatch:
    """Rows that become durable in one transaction.

    Attributes:
        entries: the entries that the rows are made of, in order.
        owed: what the `gap` record counts, except late entries of this batch.
        final: whether the chain ends with this batch.
        shortfall: all that the `gap` record counts.
        refused: entries that no record can be made of.
        rows: the rows.
        checkpoint: the row of the checkpoint, if there is one.
        late: how many of the entries were late.
    """

    entries: Sequence[QueueEntry]
    owed: GapCounts = field(default_factory=GapCounts)
    final: bool = False
    shortfall: GapCounts = field(default_factory=GapCounts)
    refused: list[QueueEntry] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    checkpoint: Row | None = None
    late: int = 0


class Appender:
    """Appends to one chain. Only one thread may use it, except for `pause`, `resume` and `abandoned`.

    Args:
        store: the store.
        make_maker: returns a maker of records; raises while it cannot be made, for example without a key.
        checkpoints: when checkpoints are due, and their fields.
    """

    def __init__(self, store: Store, make_maker: Callable[[], RecordMaker], checkpoints: Checkpoints) -> None:
        self._store = store
        self._make_maker = make_maker
        self._maker: RecordMaker | None = None
        self._checkpoints = checkpoints
        self._chain = Chain()
        self._writing: WriteConnection | None = None
        self._at_work = threading.Lock()
        self._in_doubt: AppendBatch | None = None
        self._shortfall = GapCounts()
        self._careful = False
        self._alone = 0  # how many entries are tried one at a time, to find the one that the store refuses
        self._abandoned_head: dict[str, Any] | None = None  # the end of the abandoned chain, for the next gap record
        self._covered = 0
        self._uncovered_since: float | None = None
        self._heads_read_at: float | None = None

    def prepare(self, entry: QueueEntry) -> None:
        """Make the record's fields of a draft and drop the draft, which may be big; an invalid draft has no fields."""
        if entry.draft is None or self._maker is None:
            return
        try:
            entry.fields = self._maker.fields(entry.draft, entry.time)
        except Exception:
            entry.fields = None
        entry.draft = None

    def add_missed(self, time: int, *, late: int = 0, lost: int = 0) -> None:
        """Count records in the next `gap` record."""
        self._shortfall.add(time, late=late, lost=lost)

    def due(self) -> float | None:
        """Return the seconds until a gap or a checkpoint is due without new entries; None for never."""
        return 0.0 if self._shortfall else self._overdue()

    def _overdue(self) -> float | None:
        if self._uncovered_since is None:
            return None
        return max(0.0, self._uncovered_since + self._checkpoints.interval - time.monotonic())

    def append(self, entries: Sequence[QueueEntry], *, final: bool = False) -> AppendBatch:
        """Append the records of entries, or of the first entry, in one transaction; return the durable batch.

        After a commit with unknown outcome, the same batch is returned. Unless the store holds it, it is sent again
        unchanged: the first commit may still be under way in a session that was cut off, and the store takes only one
        of two rows with the same key.

        Args:
            entries: pending entries, in order.
            final: whether the chain ends here, with a final checkpoint; then there are no entries.

        Raises:
            Exception: whatever the store raises; `entries` may be tried again.
        """
        self._maker = self._maker or self._make_maker()
        for entry in entries:
            if entry.draft is not None:  # the maker could not be made when the entry arrived
                self.prepare(entry)
        with self._at_work:
            try:
                return self._append(entries[:1] if self._alone else entries, final)
            except BaseException:
                if self._in_doubt is None:
                    self._roll_back()
                self._careful = True
                self._disconnect()
                raise

    def _append(self, entries: Sequence[QueueEntry], final: bool) -> AppendBatch:
        if self._writing is None and (arrived := self._connect()) is not None:
            return self._mark_committed(arrived)
        batch = self._in_doubt or self._seal_batch(entries, final)
        if batch.rows and not self._is_accepted(batch):
            return AppendBatch(batch.entries, refused=[*batch.entries])
        return self._mark_committed(batch)

    def _is_accepted(self, batch: AppendBatch) -> bool:
        """Send a batch; return False if the store refuses it although it was made carefully of a single entry."""
        assert self._writing is not None
        self._in_doubt = batch
        try:
            self._writing.append(batch.rows)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._roll_back()
            if not (self._careful and self._alone and batch.entries):
                self._alone = len(batch.entries) if self._careful else self._alone
                raise
            self._alone -= 1
            self._disconnect()
            return False
        return True

    def _connect(self) -> AppendBatch | None:
        """Connect and find the end of the chain; return the batch with unknown outcome if the store holds it."""
        self._writing = self._store.writing()
        head = self._writing.head(self._chain.id)
        place = NOWHERE if head is None else head[:2]
        if self._in_doubt is not None and place == self._chain.head:
            return self._in_doubt
        if place != self._chain.committed:
            self._roll_back()
            self._start_new_chain()
        return None

    def _roll_back(self) -> None:
        """Roll the chain back, so that rows that are not stored are made again."""
        batch, self._in_doubt = self._in_doubt, None
        if batch is not None and batch.owed:
            self._shortfall.add(batch.owed.since, late=batch.owed.late, lost=batch.owed.lost)
        self._chain.roll_back()

    def _start_new_chain(self) -> None:
        _log.error(
            "the store of the audit trail no longer holds the end of chain %s: a new chain begins", self._chain.id
        )
        sequence, digest = self._chain.committed
        previous = {"chain_id": self._chain.id, "sequence": sequence, "hash": digest} if sequence else {}
        self._abandoned_head = previous or self._abandoned_head or {}
        self._chain, self._covered = Chain(), 0

    def _mark_committed(self, batch: AppendBatch) -> AppendBatch:
        self._chain.mark_committed()
        self._in_doubt, self._careful = None, False
        self._alone = max(0, self._alone - len(batch.entries))
        self._abandoned_head = None
        if batch.checkpoint is not None:
            self._covered = self._chain.committed[0]
        if self._chain.committed[0] == self._covered:
            self._uncovered_since = None
        elif self._uncovered_since is None:
            self._uncovered_since = time.monotonic()
        return batch

    def _seal_batch(self, entries: Sequence[QueueEntry], final: bool) -> AppendBatch:
        # First, because reading the heads may fail, before anything is added to the chain.
        heads = self._heads() if final or self._wants_checkpoint(entries) else None
        batch = AppendBatch(entries, self._shortfall, final, self._shortfall.copy())
        if self._abandoned_head is not None:
            batch.rows.append(self._gap(GapCounts()))
        self._seal(batch)
        if batch.shortfall:
            batch.rows.append(self._gap(batch.shortfall))
        if heads is not None and self._chain.head != NOWHERE:
            self._add_checkpoint(batch, heads)
        self._shortfall = GapCounts()  # last, because the lines before may fail
        return batch

    def _seal(self, batch: AppendBatch) -> None:
        seal, careful, add = self._chain.extend, self._careful, batch.rows.append
        for entry in batch.entries:
            if entry.control is not None:
                continue
            try:
                assert entry.fields is not None
                add(seal(entry.time, entry.fields, careful=careful))
            except Exception:
                batch.refused.append(entry)
            if entry.gave_up:
                batch.late += 1
                batch.shortfall.add(entry.time, late=1)

    def _wants_checkpoint(self, entries: Sequence[QueueEntry]) -> bool:
        controls = [entry.control for entry in entries if entry.control is not None]
        uncovered = self._chain.committed[0] - self._covered + len(entries) - len(controls)
        if uncovered >= self._checkpoints.every:
            return True
        return uncovered > 0 and ("checkpoint" in controls or self._overdue() == 0.0)

    def _gap(self, shortfall: GapCounts) -> Row:
        now = time.time_ns()
        gap: dict[str, Any] = {
            "since": timestamp(shortfall.since or now),
            "until": timestamp(now),
            "late": shortfall.late,
            "lost": shortfall.lost,
        }
        if self._abandoned_head and self._chain.head == NOWHERE:
            gap["abandoned"] = self._abandoned_head
        return self._chain.extend(now, self._fields(Draft("gap", now, fields=gap)))

    def _add_checkpoint(self, batch: AppendBatch, heads: Mapping[str, Any]) -> None:
        now = time.time_ns()
        assert self._maker is not None
        checkpoint_fields = self._checkpoints.fields(self._chain, self._maker.key.id, heads, final=batch.final)
        fields = self._fields(Draft("checkpoint", now, fields=checkpoint_fields))
        batch.checkpoint = self._chain.extend(now, fields, sign=self._checkpoints.sign)
        batch.rows.append(batch.checkpoint)

    def _fields(self, draft: Draft) -> dict[str, Any]:
        assert self._maker is not None
        return self._maker.fields(draft, draft.time)

    def _heads(self) -> Mapping[str, Any]:
        """Return where the other active chains end; empty if that was read less than 10 seconds ago."""
        if self._heads_read_at is not None and time.monotonic() < self._heads_read_at + _HEADS_INTERVAL:
            return {}
        assert self._writing is not None
        heads, now = self._writing.heads(), time.time_ns()
        self._heads_read_at = time.monotonic()
        return {
            chain_id: {"sequence": sequence, "hash": digest}
            for chain_id, (sequence, digest, last) in heads.items()
            if chain_id != self._chain.id and last > now - _ACTIVE
        }

    def close(self) -> None:
        """Disconnect from the store."""
        with self._at_work:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    # Around a fork, in the thread that forks.

    def pause(self, timeout: float) -> bool:
        """Keep the store idle until `resume`, so that no child inherits a transaction; return whether it is idle."""
        if not self._at_work.acquire(timeout=timeout):
            return False
        if self._store.path is not None:  # SQLite's state of this file would be wrong in the child
            self._disconnect()
        return True

    def resume(self) -> None:
        """Continue after `pause`."""
        self._at_work.release()

    def abandoned(self) -> object:
        """Return the parent's connection, which a forked child must neither use nor close."""
        return self._writing
