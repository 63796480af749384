"""Whether the records of a store are those that were written, all of them, and in their order.

One walk over the chains, each in the order of its sequence numbers. A record's hash must be that of its body, its body
must name the hash of the record before, the columns beside it must repeat it, and the numbers must have no gap. What
checkpoints elsewhere tell of a record must be true of it. Nothing may follow where a chain was closed or left. The
first record that fails is named.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from traced_tools.audit.reading.queries import MOST
from traced_tools.audit.reading.read_connection import (
    ReadConnection,
    StorePath,
    embedded_path,
    open_for_reading,
    parsed,
)
from traced_tools.audit.records import ERASABLE_VERSION, GENESIS, is_hash_of_erasable, printable_id
from traced_tools.audit.schema import RECORD_COLUMNS, RECORDS, REPEATED
from traced_tools.audit.verifying.archive_cutoff import ArchiveCutoff
from traced_tools.audit.verifying.attestations import (
    CheckpointLine,
    ExpectedHashes,
    PublicKey,
    RecordReference,
    Signatures,
    checkpoints_beside,
    is_beginning_of_line,
    read_checkpoint_file,
    reference_of,
)
from traced_tools.audit.verifying.erasures import Erasures, Text
from traced_tools.audit.verifying.findings import (
    Problem,
    Verification,
    disagreement,
    hash_mismatch,
    listed,
    misnumbered,
    missing_chain,
    record_after_end,
    truncated_chain,
)

_OWN: Final = len(RECORD_COLUMNS)
COLUMNS: Final = (*RECORD_COLUMNS, *(RECORDS.c[name] for name in REPEATED))
"""All columns of the store; the first `_OWN` make up the record, the others repeat fields of its body."""
_MOST_TOLD: Final = 400


def verify(
    store: StorePath,
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    public_key: PublicKey | None = None,
    archived_before: datetime | None = None,
) -> Verification:
    """Look at every record of a store, and return what is found.

    Args:
        store: a path, or an SQLAlchemy URL.
        checkpoints: the file with the lines outside the store; by default `<store>.checkpoints` beside an embedded
            one, if there is such a file.
        public_key: the Ed25519 key that all checkpoints must be signed with: 32 raw bytes, base64 of them, or PEM.
        archived_before: the time, with a zone, up to which records were taken out of the store. Those that are missing
            at the beginning of a chain, or are whole chains, are taken as archived and noted, unless a line outside the
            store is about one that is not older. None if every record must be there.

    Raises:
        AuditError: when the store or the file cannot be read.
        ConfigurationError: for a key that is none, without `cryptography`, or for a time without a zone.
    """
    return examine(store, checkpoints, public_key, archived_before, None)


def examine(
    store: StorePath,
    checkpoints: str | os.PathLike[str] | None,
    public_key: PublicKey | None,
    archived_before: datetime | None,
    keep: Callable[[Any], None] | None,
) -> Verification:
    """Do what `verify` does, and give each record to `keep`, in the order of `COLUMNS`, once it was found good.

    A later checkpoint may still contradict a record, so kept records are valid only if there is no problem.
    """
    signatures = Signatures(public_key)
    archived = None if archived_before is None else ArchiveCutoff(archived_before)
    path = _lines_path(store, checkpoints)
    lines = list(read_checkpoint_file(path)) if path is not None else []  # before the store: it is ahead of them
    with open_for_reading(store) as opened_store:
        walk = _Walk(opened_store, signatures, archived, keep)
        if (problem := _problem_of_store(opened_store)) is not None:
            return walk.verification(problem)
        line_problem = walk.add_checkpoint_lines(lines)
        with opened_store.without_indexes():
            walk.add_checkpoints()
            walk.walk()
        walk.check_ends()
        return walk.verification(line_problem)


def _problem_of_store(store: ReadConnection) -> Problem | None:
    """Return why the store may not return the records it holds; checking records would then prove nothing."""
    if (difference := store.difference()) is not None:
        return Problem("schema", None, None, f"{_printable(difference)}; no record was looked at")
    if (damage := store.damage()) is not None:
        return Problem("damaged store", None, None, f"{_printable(damage)}; no record was looked at")
    return None


def _printable(text: str) -> str:
    """Return a text that holds names out of the store as it may be shown in a message."""
    return text.encode("unicode_escape").decode()[:_MOST_TOLD]


_NO_LINES: Final = "no checkpoints outside the store were looked at, so a chain whose end was cut off may look whole"
_MOST_GAPS: Final = 5


def _lines_path(store: StorePath, given: str | os.PathLike[str] | None) -> Path | None:
    if given is not None:
        return Path(given)
    embedded = embedded_path(store)
    beside = None if embedded is None else checkpoints_beside(embedded)
    return beside if beside is not None and beside.is_file() else None


@dataclass(slots=True)
class _Chain:
    """A chain as far as it has been walked."""

    chain_id: str
    claims: dict[int, dict[str, str]]
    length: int = 0
    head: str = GENESIS
    covered: int = 0
    closed: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """The numbers of its own checkpoints."""
    gaps: list[int] = field(default_factory=list)
    """The first record of each part that is taken as archived."""


@dataclass(slots=True)
class _Walk:
    """The walk over a store: what has been seen, and the first problem."""

    store: ReadConnection
    signatures: Signatures
    archived: ArchiveCutoff | None
    keep: Callable[[Any], None] | None
    claims: ExpectedHashes = field(default_factory=ExpectedHashes)
    lines: dict[str, dict[int, object]] = field(default_factory=dict)
    told_outside: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    chains: dict[str, _Chain] = field(default_factory=dict)
    left: list[tuple[RecordReference, str]] = field(default_factory=list)
    records: int = 0
    checkpoints: int = 0
    unlined: int = 0
    late: int = 0
    lost: int = 0
    gaps: list[str] = field(default_factory=list)
    problem: Problem | None = None
    contradictions: list[Problem] = field(default_factory=list)
    erasures: Erasures = field(default_factory=Erasures)

    def add_checkpoint_lines(self, lines: list[CheckpointLine]) -> Problem | None:
        """Take down what the lines outside the store tell; return the first thing that is wrong with them."""
        problems = [self._add_line(line) for line in lines]
        self.told_outside = {*self.claims.chains()}  # as their own, or as the head of another chain
        return next((problem for problem in problems if problem is not None), None)

    def _add_line(self, line: CheckpointLine) -> Problem | None:
        if line.fields is None:
            return self._damaged(line)
        chain_id, sequence = str(line.fields["chain_id"]), line.fields["sequence"]
        if (problem := self.signatures.problem(line.fields)) is not None:
            return Problem("signature", chain_id, sequence, f"{problem} (line {line.number} outside the store)")
        witness = f"line {line.number} outside the store"
        self.lines.setdefault(chain_id, {})[sequence] = line.fields.get("time")
        self.claims.add(chain_id, sequence, line.hash, witness)
        self.claims.add(chain_id, line.fields.get("records"), line.fields.get("head"), witness)
        self.claims.add_heads(line.fields, witness)
        return None

    def _damaged(self, line: CheckpointLine) -> Problem | None:
        """A crash may leave the beginning of a line whose checkpoint is in the store; anything else is no accident."""
        for body, told in self.store.rows(_checkpoint_records()):
            if isinstance(body, str) and is_beginning_of_line(line.text, body, told):
                self.notes.append(f"line {line.number} outside the store was cut off; its checkpoint is in the store")
                return None
        text = (
            f"line {line.number} outside the store is damaged, and not the beginning of any checkpoint's in the store"
        )
        return Problem("damaged line", None, None, text)

    def add_checkpoints(self) -> None:
        """Take down what the checkpoints in the store tell of other chains."""
        for body, _ in self.store.rows(_checkpoint_records()):
            if (fields := parsed(body)) is not None:
                self.claims.add_heads(fields, f"checkpoint {_place(fields)}")

    def walk(self) -> None:
        """Look at all records, up to the first that is bad in itself."""
        chain: _Chain | None = None
        keep = self.keep
        in_order = select(*COLUMNS).order_by(RECORDS.c.chain_id, RECORDS.c.sequence)
        with closing(self.store.batches(in_order)) as batches:
            for row in itertools.chain.from_iterable(batches):
                if chain is None or chain.chain_id != row[0]:
                    if chain is not None:
                        self._end(chain)
                    chain = self.chains[row[0]] = _Chain(row[0], self.claims.of(row[0]))
                if (problem := self._look(chain, row)) is not None:
                    self.problem = problem
                    return
                if keep is not None:
                    keep(row)
        if chain is not None:
            self._end(chain)

    def check_ends(self) -> None:
        """See whether chains end where they were left, and whether all are there, unless a record is bad in itself."""
        if self.problem is not None:
            return
        for place, witness in self.left:
            self._look_where_left(place, witness)
        self._look_for_chains()
        self.contradictions += self.erasures.problems(self._is_covered)

    def _is_covered(self, chain_id: str, sequence: int) -> bool:
        """Whether a checkpoint of the same chain covers a record: one with a line outside the store if there are lines.

        The hashes must lead from the record to the checkpoint: none is checked across records taken as archived. What
        other chains tell does not count. Who writes a store can write a gap record, and get a checkpoint of an honest
        writer to name the end of a forged chain.
        """
        chain = self.chains[chain_id]
        places = self.lines.get(chain_id, ()) if self.lines else chain.checkpoints
        nearest = min((place for place in places if place > sequence), default=None)
        return nearest is not None and not any(sequence < gap <= nearest for gap in chain.gaps)

    def _is_stored(self, text: Text) -> bool:
        chain_id, sequence, _, name = text
        content = (self._fields_at(chain_id, sequence) or {}).get(name)
        return isinstance(content, dict) and "text" in content

    def _look_where_left(self, place: RecordReference, witness: str) -> None:
        """See whether a chain ends where its writer left it, with the record that was the last one then."""
        chain_id, sequence, hash_there = place
        chain = self.chains.get(chain_id)
        self.claims.add(chain_id, sequence, hash_there, witness)
        if chain is None:
            return
        if chain.length < sequence:
            self.contradictions.append(truncated_chain(chain_id, chain.length, self.claims.of(chain_id), sequence))
        elif self._at(chain_id, sequence) not in (None, hash_there):
            self.contradictions.append(hash_mismatch(chain_id, sequence, witness))
        else:
            chain.covered = max(chain.covered, sequence)
            if chain.length > sequence:
                self.contradictions.append(record_after_end(chain_id, sequence, witness))

    def _look_for_chains(self) -> None:
        """See whether all chains are there that somebody tells of."""
        for chain_id in self.claims.chains():
            if chain_id in self.chains:
                continue
            if self.archived is not None and self.archived.may_hold(chain_id, self.lines.get(chain_id, {})):
                self.archived.chains += 1
            else:
                self.contradictions.append(missing_chain(chain_id, self.claims.of(chain_id)))

    def _look(self, chain: _Chain, row: Any) -> Problem | None:
        """Look at the next record of a chain: return what is wrong with it, else take it as seen."""
        chain_id, sequence, time, kind, hash_, body = row[:_OWN]
        place = chain.length + 1
        if chain.closed:
            return record_after_end(chain_id, chain.closed, f"checkpoint {chain.closed}")
        if sequence != place and self._is_archived(chain, sequence, time):
            self._pass_over(chain, sequence, body)
            place = sequence
        if sequence != place or type(sequence) is not int:
            return misnumbered(chain_id, place, sequence)
        fields = parsed(body)
        if fields is None:
            return Problem("changed", chain_id, place, "its body is no record")
        if fields.get("sequence") != place or fields.get("chain_id") != chain_id:
            return self._misplaced(chain_id, place, fields)
        digest = hashlib.sha256(body.encode()).hexdigest()
        if digest != hash_ and not is_hash_of_erasable(hash_, fields, body):
            return Problem("changed", chain_id, place, "its hash is not that of its body")
        if fields.get("previous") != chain.head:
            return self._unlinked(chain_id, place, hash_)
        if (text := disagreement(fields, time, kind, row[_OWN:])) is not None:
            return Problem("changed", chain_id, place, text)
        if kind == "checkpoint" and (problem := self._look_at_checkpoint(chain, fields)) is not None:
            return problem
        erasable = fields["schema_version"] == ERASABLE_VERSION
        if erasable and (text := self.erasures.look_at(chain_id, place, hash_, fields)) is not None:
            return Problem("changed", chain_id, place, text)
        if kind == "gap":
            self._add_gap(chain_id, place, fields)
        if kind == "erasure":
            self.erasures.add_erasure(chain_id, place, fields)
        chain.length, chain.head = place, hash_
        self.records += 1
        if place in chain.claims:
            self._compare(chain, chain.claims[place])
        return None

    def _look_at_checkpoint(self, chain: _Chain, fields: dict[str, Any]) -> Problem | None:
        place = chain.length + 1
        if fields.get("records") != chain.length or fields.get("head") != chain.head:
            text = f"the checkpoint tells of other records than the {chain.length} before it"
            return Problem("changed", chain.chain_id, place, text)
        if (text_of_signature := self.signatures.problem(fields)) is not None:
            return Problem("signature", chain.chain_id, place, text_of_signature)
        self.checkpoints += 1
        self.unlined += place not in self.lines.get(chain.chain_id, ())
        chain.checkpoints.append(place)
        chain.covered = place
        chain.closed = place if fields.get("final") is True else 0
        return None

    def _is_archived(self, chain: _Chain, sequence: object, time: object) -> bool:
        """Whether the records between the last one that was seen and this one are missing, and may be archived."""
        if self.archived is None or type(sequence) is not int or sequence <= chain.length + 1:
            return False
        lines = self.lines.get(chain.chain_id, {})
        told = {place: told for place, told in lines.items() if chain.length < place < sequence}
        return (chain.length == 0 or self.archived.is_near(time)) and self.archived.may_hold(chain.chain_id, told)

    def _pass_over(self, chain: _Chain, sequence: int, body: str) -> None:
        """Go on with this record of a chain: the one before it has the hash that it names."""
        assert self.archived is not None
        self.archived.records += sequence - 1 - chain.length
        chain.gaps.append(chain.length + 1)
        chain.length, chain.head = sequence - 1, str((parsed(body) or {}).get("previous"))
        if chain.length in chain.claims:
            self._compare(chain, chain.claims[chain.length])

    def _add_gap(self, chain_id: str, place: int, fields: dict[str, Any]) -> None:
        """Count what a gap record tells of, and take down where its writer left another chain."""
        if (left := reference_of(fields.get("abandoned"))) is not None:
            self.left.append((left, f"the gap record {place} of the chain {printable_id(chain_id)}"))
        late, lost = (count if type(count := fields.get(name)) is int else 0 for name in ("late", "lost"))
        self.late, self.lost = self.late + late, self.lost + lost
        if late or lost:
            window = f"between {fields.get('since')} and {fields.get('until')}"
            told = (
                f"{late} late and {lost} lost records {window}, by record {place} of the chain {printable_id(chain_id)}"
            )
            self.gaps.append(told)

    def _compare(self, chain: _Chain, told: dict[str, str]) -> None:
        """Compare a record with what is said about it elsewhere."""
        for claimed, witness in told.items():
            if claimed == chain.head:
                chain.covered = max(chain.covered, chain.length)
            else:
                self.contradictions.append(hash_mismatch(chain.chain_id, chain.length, witness))

    def _end(self, chain: _Chain) -> None:
        """See whether somebody tells of records after the last one."""
        missing = [sequence for sequence in chain.claims if sequence > chain.length]
        if missing:
            self.contradictions.append(truncated_chain(chain.chain_id, chain.length, chain.claims, max(missing)))

    def _misplaced(self, chain_id: str, place: int, fields: dict[str, Any]) -> Problem:
        """Tell why a record says that its place is another one."""
        if fields.get("chain_id") != chain_id:
            return Problem("inserted", chain_id, place, "in its place stands a record of another chain")
        other = fields.get("sequence")
        if type(other) is not int:
            return Problem("changed", chain_id, place, "its body has no sequence number")
        there = self._fields_at(chain_id, other)
        if there is not None and there.get("sequence") == place:
            return Problem("swapped", chain_id, place, f"it was swapped with record {other}")
        if other > place:
            return Problem("removed", chain_id, place, f"it is missing: record {other} stands in its place")
        return Problem("inserted", chain_id, place, f"in its place stands record {other} once more")

    def _unlinked(self, chain_id: str, place: int, hash: str) -> Problem:
        """Tell which of two neighbours is the bad one, when the later names another hash of the earlier.

        If the record after both names the hash of the later, that one has not been touched, so it is the earlier one.
        """
        after = self._fields_at(chain_id, place + 1)
        if place == 1 or (after is not None and after.get("previous") != hash):
            text = f"it names another hash of the record before it than record {place - 1} has"
            return Problem("changed", chain_id, place, text if place > 1 else "it names a record before it")
        text = f"its hash was made anew: record {place} names another one"
        return Problem("changed", chain_id, place - 1, text)

    def _fields_at(self, chain_id: str, sequence: int) -> dict[str, Any] | None:
        return parsed(self._at(chain_id, sequence, "body"))

    def _at(self, chain_id: str, sequence: int, name: str = "hash") -> object:
        """Return a column of a record; None when there is no such record."""
        if not 0 < sequence <= MOST:
            return None
        place = RECORDS.c.chain_id == chain_id, RECORDS.c.sequence == sequence
        return next((row[0] for row in self.store.rows(select(RECORDS.c[name]).where(*place).limit(1))), None)

    def verification(self, line_problem: Problem | None) -> Verification:
        """Return what was found."""
        return Verification(
            records=self.records,
            chains=len(self.chains),
            checkpoints=self.checkpoints,
            uncovered=sum(chain.length - chain.covered for chain in self.chains.values()),
            late=self.late,
            lost=self.lost,
            problem=self._first_problem() or line_problem,
            notes=(*self.notes, *self._counted_notes()),
            erased=self.erasures.erased,
        )

    def _first_problem(self) -> Problem | None:
        """Return the first problem: one that a record has in itself tells more than what others tell of it.

        Others may be forged. Only what is told of an earlier record of the same chain comes before.
        """
        found = self.problem
        if found is None:
            return self.contradictions[0] if self.contradictions else None
        earlier = (each for each in self.contradictions if each.chain_id == found.chain_id)
        return next(earlier, found)

    def _counted_notes(self) -> Iterator[str]:
        if not self.lines:
            yield _NO_LINES
        elif self.problem is None and (untold := [str(each) for each in self.chains if each not in self.told_outside]):
            yield f"chains that no line outside the store tells of, whose end may be cut off: {listed(untold)}"
        if self.late or self.lost:
            yield f"gap records tell of intents written late: {self.late}, and records never written: {self.lost}"
        yield from self.gaps[:_MOST_GAPS]
        if self.problem is None:
            yield from self.erasures.notes(self._is_stored)
        if self.archived is not None and (note := self.archived.note()) is not None:
            yield note
        if self.signatures.by_key and self.problem is None and (unsigned := list(self._unsigned())):
            yield f"chains without a signed checkpoint: {listed(unsigned)}"
        if self.lines and self.unlined:
            yield f"checkpoints of the store without a whole line outside it: {self.unlined}"
        if self.signatures.unchecked:
            yield f"signatures that were not checked, for want of traced_tools[signing]: {self.signatures.unchecked}"

    def _unsigned(self) -> Iterator[str]:
        for chain_id, chain in self.chains.items():
            if not chain.checkpoints and chain_id not in self.lines:
                yield str(chain_id)


def _checkpoint_records() -> Any:
    return select(RECORDS.c.body, RECORDS.c.hash).where(RECORDS.c.kind == "checkpoint")


def _place(fields: dict[str, Any]) -> str:
    return f"{fields.get('sequence')} of the chain {printable_id(str(fields.get('chain_id')))}"
