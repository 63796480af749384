"""Appending batches to a chain in a store, whatever happens to the connection meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from traced_tools.audit.records import Draft, timestamp
from traced_tools.audit.store import Row, Store, WriteConnection, is_refusal
from traced_tools.audit.writing.chain import NOWHERE, Chain
from traced_tools.audit.writing.checkpoints import Checkpoints
from traced_tools.audit.writing.queue_entries import Entry
from traced_tools.audit.writing.record_builder import RecordMaker

_LOOK_AROUND: Final = 10.0
"""Seconds between looks at the other chains of the store."""
_ACTIVE: Final = 86_400 * 10**9
"""Nanoseconds for which a chain counts as active after its last record."""
_log = logging.getLogger("traced_tools.audit")


@dataclass
class Shortfall:
    """Records that came later than what they precede, and records that never came."""

    late: int = 0
    lost: int = 0
    since: int = 0

    def add(self, time: int, *, late: int = 0, lost: int = 0) -> None:
        """Take note of records, the first of them made at `time`, in nanoseconds of Unix time."""
        self.since = min(self.since or time, time)
        self.late += late
        self.lost += lost

    def __bool__(self) -> bool:
        return bool(self.late or self.lost)


@dataclass
class Batch:
    """What becomes durable together.

    Attributes:
        entries: what it was made of, in order.
        owed: what its `gap` record tells of but for the entries' own lateness.
        final: whether the chain ends with it.
        shortfall: all that its `gap` record tells of.
        refused: those of the entries that no record can be made of.
        rows: the records.
        checkpoint: the row that is a checkpoint.
        late: how many of the entries came too late.
    """

    entries: Sequence[Entry]
    owed: Shortfall = field(default_factory=Shortfall)
    final: bool = False
    shortfall: Shortfall = field(default_factory=Shortfall)
    refused: list[Entry] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    checkpoint: Row | None = None
    late: int = 0


class Appender:
    """Appends to one chain; for one thread, but for `pause` and `resume`.

    Args:
        store: where to.
        make_maker: returns what makes records of drafts; raises as long as it cannot be made.
        checkpoints: when they are due and what they say.
    """

    def __init__(self, store: Store, make_maker: Callable[[], RecordMaker], checkpoints: Checkpoints) -> None:
        self._store = store
        self._make_maker = make_maker
        self._maker: RecordMaker | None = None
        self._checkpoints = checkpoints
        self._chain = Chain()
        self._writing: WriteConnection | None = None
        self._at_work = threading.Lock()
        self._in_doubt: Batch | None = None
        self._shortfall = Shortfall()
        self._careful = False
        self._alone = 0  # entries that are tried one at a time, to find what the store refuses
        self._left: dict[str, Any] | None = None  # the end of the chain before, until the new one has told of it
        self._covered = 0
        self._uncovered_since: float | None = None
        self._looked_around: float | None = None

    def prepare(self, entry: Entry) -> None:
        """Make a record's fields of a draft and forget the draft, which may be big; of some none can be made."""
        if entry.draft is None or self._maker is None:
            return
        try:
            entry.fields = self._maker.fields(entry.draft, entry.time)
        except Exception:
            entry.fields = None
        entry.draft = None

    def missed(self, time: int, *, late: int = 0, lost: int = 0) -> None:
        """Have the next gap record tell of records."""
        self._shortfall.add(time, late=late, lost=lost)

    def due(self) -> float | None:
        """Return the seconds until there is something to write although nothing came; None for never."""
        return 0.0 if self._shortfall else self._overdue()

    def _overdue(self) -> float | None:
        if self._uncovered_since is None:
            return None
        return max(0.0, self._uncovered_since + self._checkpoints.interval - time.monotonic())

    def append(self, entries: Sequence[Entry], *, final: bool = False) -> Batch:
        """Append what is made of entries, or of the first of them, in one transaction; return it when it is durable.

        After a commit of unknown fate, the batch that it was about is returned. Unless it turns out to be in the store,
        it is sent again as it was: its first commit may still be under way in a session that was cut off, and of two
        that have the same keys the store takes one.

        Args:
            entries: what waits, in order.
            final: whether the chain ends here, with a checkpoint that says so; then there are no entries.

        Raises:
            Exception: whatever the store raises; `entries` may be tried again.
        """
        self._maker = self._maker or self._make_maker()
        for entry in entries:
            self.prepare(entry)
        with self._at_work:
            try:
                return self._append(entries[:1] if self._alone else entries, final)
            except BaseException:
                if self._in_doubt is None:
                    self._take_back()
                self._careful = True
                self._disconnect()
                raise

    def _append(self, entries: Sequence[Entry], final: bool) -> Batch:
        if self._writing is None and (arrived := self._connect()) is not None:
            return self._settled(arrived)
        batch = self._in_doubt or self._sealed(entries, final)
        if batch.rows and not self._is_taken(batch):
            return Batch(batch.entries, refused=[*batch.entries])
        return self._settled(batch)

    def _is_taken(self, batch: Batch) -> bool:
        """Send a batch; return False when the store refuses it although it was made with care of one entry alone."""
        assert self._writing is not None
        self._in_doubt = batch
        try:
            self._writing.append(batch.rows)
        except Exception as error:
            if not is_refusal(error):
                raise
            self._take_back()
            if not (self._careful and self._alone and batch.entries):
                self._alone = len(batch.entries) if self._careful else self._alone
                raise
            self._alone -= 1
            self._disconnect()
            return False
        return True

    def _connect(self) -> Batch | None:
        """Connect, find the end of the chain, and return the batch that is in doubt if it is there."""
        self._writing = self._store.writing()
        head = self._writing.head(self._chain.id)
        place = NOWHERE if head is None else head[:2]
        if self._in_doubt is not None and place == self._chain.sealed:
            return self._in_doubt
        if place != self._chain.stored:
            self._take_back()
            self._begin_anew()
        return None

    def _take_back(self) -> None:
        """Have the records that are sealed and not stored made anew."""
        batch, self._in_doubt = self._in_doubt, None
        if batch is not None and batch.owed:
            self._shortfall.add(batch.owed.since, late=batch.owed.late, lost=batch.owed.lost)
        self._chain.unseal()

    def _begin_anew(self) -> None:
        _log.error(
            "the store of the audit trail no longer holds the end of chain %s: a new chain begins", self._chain.id
        )
        sequence, digest = self._chain.stored
        left = {"chain_id": self._chain.id, "sequence": sequence, "hash": digest} if sequence else {}
        self._left = left or self._left or {}
        self._chain, self._covered = Chain(), 0

    def _settled(self, batch: Batch) -> Batch:
        self._chain.settle()
        self._in_doubt, self._careful = None, False
        self._alone = max(0, self._alone - len(batch.entries))
        self._left = None
        if batch.checkpoint is not None:
            self._covered = self._chain.stored[0]
        if self._chain.stored[0] == self._covered:
            self._uncovered_since = None
        elif self._uncovered_since is None:
            self._uncovered_since = time.monotonic()
        return batch

    def _sealed(self, entries: Sequence[Entry], final: bool) -> Batch:
        heads = self._heads() if final or self._wants_checkpoint(entries) else None  # first, since this may fail
        batch = Batch(entries, self._shortfall, final, replace(self._shortfall))
        if self._left is not None:
            batch.rows.append(self._gap(Shortfall()))
        self._seal(batch)
        if batch.shortfall:
            batch.rows.append(self._gap(batch.shortfall))
        if heads is not None and self._chain.sealed != NOWHERE:
            self._add_checkpoint(batch, heads)
        self._shortfall = Shortfall()  # last, since what comes before may fail
        return batch

    def _seal(self, batch: Batch) -> None:
        seal, careful, add = self._chain.seal, self._careful, batch.rows.append
        for entry in batch.entries:
            if entry.mark is not None:
                continue
            try:
                assert entry.fields is not None
                add(seal(entry.time, entry.fields, careful=careful))
            except Exception:
                batch.refused.append(entry)
            if entry.gave_up:
                batch.late += 1
                batch.shortfall.add(entry.time, late=1)

    def _wants_checkpoint(self, entries: Sequence[Entry]) -> bool:
        uncovered = self._chain.stored[0] - self._covered + sum(entry.mark is None for entry in entries)
        if uncovered >= self._checkpoints.every:
            return True
        asked = any(entry.mark == "checkpoint" for entry in entries)
        return uncovered > 0 and (asked or self._overdue() == 0.0)

    def _gap(self, shortfall: Shortfall) -> Row:
        now = time.time_ns()
        told: dict[str, Any] = {
            "since": timestamp(shortfall.since or now),
            "until": timestamp(now),
            "late": shortfall.late,
            "lost": shortfall.lost,
        }
        if self._left and self._chain.sealed == NOWHERE:
            told["abandoned"] = self._left
        return self._chain.seal(now, self._fields(Draft("gap", now, fields=told)))

    def _add_checkpoint(self, batch: Batch, heads: Mapping[str, Any]) -> None:
        now = time.time_ns()
        assert self._maker is not None
        told = self._checkpoints.fields(self._chain, self._maker.key.id, heads, final=batch.final)
        fields = self._fields(Draft("checkpoint", now, fields=told))
        batch.checkpoint = self._chain.seal(now, fields, sign=self._checkpoints.sign)
        batch.rows.append(batch.checkpoint)

    def _fields(self, draft: Draft) -> dict[str, Any]:
        assert self._maker is not None
        return self._maker.fields(draft, draft.time)

    def _heads(self) -> Mapping[str, Any]:
        """Return where the other active chains end, now and then."""
        if self._looked_around is not None and time.monotonic() < self._looked_around + _LOOK_AROUND:
            return {}
        assert self._writing is not None
        heads, now = self._writing.heads(), time.time_ns()
        self._looked_around = time.monotonic()
        return {
            chain_id: {"sequence": sequence, "hash": digest}
            for chain_id, (sequence, digest, last) in heads.items()
            if chain_id != self._chain.id and last > now - _ACTIVE
        }

    def close(self) -> None:
        """Let go of the store."""
        with self._at_work:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    # Around a fork, in the thread that forks.

    def pause(self, timeout: float) -> bool:
        """Keep the store at rest until `resume`, so that no child inherits it half used; return whether it is."""
        if not self._at_work.acquire(timeout=timeout):
            return False
        if self._store.path is not None:  # SQLite's own state would be wrong in the child, for this file at all
            self._disconnect()
        return True

    def resume(self) -> None:
        """Go on after `pause`."""
        self._at_work.release()

    def abandoned(self) -> object:
        """Return what a forked child must never touch nor close, since it is its parent's."""
        return self._writing
