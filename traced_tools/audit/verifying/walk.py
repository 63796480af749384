"""Checks that a store holds exactly the records that were written, in order.

One pass over all chains, each in the order of its sequence numbers, which must have no gap. A record's hash must be the
hash of its body, its body must contain the hash of the record before it, and its other columns must equal the body's
fields. The hashes that checkpoints elsewhere list must match. No record may follow the end of a closed or abandoned
chain. The result names the first record that fails.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

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
from traced_tools.audit.store import Store
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
from traced_tools.audit.verifying.reporting import report_verification

if TYPE_CHECKING:
    from traced_tools.observe.run_telemetry import TelemetryOptions

_OWN: Final = len(RECORD_COLUMNS)
COLUMNS: Final = (*RECORD_COLUMNS, *(RECORDS.c[name] for name in REPEATED))
"""All columns of the store; the first `_OWN` make up the record, the others repeat fields of its body."""
_MOST_SHOWN: Final = 400
"""Characters of a message about the store's structure."""


def verify(
    store: StorePath,
    *,
    checkpoints: str | os.PathLike[str] | None = None,
    public_key: PublicKey | None = None,
    archived_before: datetime | None = None,
    telemetry: TelemetryOptions | None = None,
) -> Verification:
    """Check every record of a store, and report the result as metrics.

    Args:
        store: a path, or an SQLAlchemy URL.
        checkpoints: the checkpoint file outside the store. None for `<store>.checkpoints` beside an embedded store, if
            that file exists.
        public_key: the Ed25519 key that all checkpoints must be signed with: 32 raw bytes, base64 of them, or PEM.
        archived_before: the time, with a zone, before which records were removed from the store. Whole chains, and
            records at the beginning of a chain, may then be missing; a note counts them. A missing checkpoint that has
            a line outside the store must be older. None if every record must be there.
        telemetry: the providers of the metrics; None for the global providers.

    Raises:
        AuditError: if the store or the checkpoint file cannot be read.
        ConfigurationError: for an invalid key, a key without `cryptography`, or a time without a zone.
    """
    result = examine(store, checkpoints, public_key, archived_before, None)
    report_verification(Store(store).name, result.ok, time.time(), telemetry)
    return result


def examine(
    store: StorePath,
    checkpoints: str | os.PathLike[str] | None,
    public_key: PublicKey | None,
    archived_before: datetime | None,
    keep: Callable[[Any], None] | None,
) -> Verification:
    """Do what `verify` does, and pass each valid row to `keep`, with the columns in the order of `COLUMNS`.

    A later checkpoint may still contradict a row, so the kept rows are valid only if the result has no problem.
    """
    signatures = Signatures(public_key)
    cutoff = None if archived_before is None else ArchiveCutoff(archived_before)
    path = _checkpoint_file(store, checkpoints)
    # Read before the store: a writer adds a checkpoint to the store first, then its line to the file.
    lines = list(read_checkpoint_file(path)) if path is not None else []
    with open_for_reading(store) as opened_store:
        walk = _Walk(opened_store, signatures, cutoff, keep)
        if (problem := _problem_of_store(opened_store)) is not None:
            return walk.verification(problem)
        line_problem = walk.add_checkpoint_lines(lines)
        with opened_store.without_indexes():  # a forged index could hide a record from the queries
            walk.add_checkpoints()  # before the walk, because a checkpoint may list the heads of chains before its own
            walk.walk()
        walk.check_ends()
        return walk.verification(line_problem)


def _problem_of_store(store: ReadConnection) -> Problem | None:
    """Return the problem if queries may not return the records in the store; checking records proves nothing then."""
    if (difference := store.difference()) is not None:
        return Problem("schema", None, None, f"{_printable(difference)}; no record was looked at")
    if (damage := store.damage()) is not None:
        return Problem("damaged store", None, None, f"{_printable(damage)}; no record was looked at")
    return None


def _printable(text: str) -> str:
    """Return a text with names from the store in printable ASCII, safe to show in a message."""
    return text.encode("unicode_escape").decode()[:_MOST_SHOWN]


_NO_LINES: Final = "no checkpoints outside the store were looked at, so a chain whose end was cut off may look whole"
_MOST_GAPS: Final = 5


def _checkpoint_file(store: StorePath, path: str | os.PathLike[str] | None) -> Path | None:
    if path is not None:
        return Path(path)
    embedded = embedded_path(store)
    beside = None if embedded is None else checkpoints_beside(embedded)
    return beside if beside is not None and beside.is_file() else None


@dataclass(slots=True)
class _Chain:
    """The part of a chain that has been checked."""

    chain_id: str
    expected: dict[int, dict[str, str]]
    length: int = 0
    head: str = GENESIS
    covered: int = 0
    closed: int = 0
    checkpoints: list[int] = field(default_factory=list)
    """The sequence numbers of its own checkpoints."""
    gaps: list[int] = field(default_factory=list)
    """The first sequence number of each part that is missing as archived."""


@dataclass(slots=True)
class _Walk:
    """The pass over a store: what has been checked so far, and the problems."""

    store: ReadConnection
    signatures: Signatures
    archived: ArchiveCutoff | None
    keep: Callable[[Any], None] | None
    expected: ExpectedHashes = field(default_factory=ExpectedHashes)
    lines: dict[str, dict[int, object]] = field(default_factory=dict)
    attested_outside: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    chains: dict[str, _Chain] = field(default_factory=dict)
    abandoned: list[tuple[RecordReference, str]] = field(default_factory=list)
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
        """Collect expected hashes from the checkpoint file. Return the first problem with the lines, if any."""
        problems = [self._add_line(line) for line in lines]
        # Before `add_checkpoints`, which adds the hashes that the store itself has. A chain is attested by its own
        # lines, or as a head in the line of another chain.
        self.attested_outside = {*self.expected.chains()}
        return next((problem for problem in problems if problem is not None), None)

    def _add_line(self, line: CheckpointLine) -> Problem | None:
        if line.fields is None:
            return self._problem_of_damaged_line(line)
        chain_id, sequence = str(line.fields["chain_id"]), line.fields["sequence"]
        if (problem := self.signatures.problem(line.fields)) is not None:
            return Problem("signature", chain_id, sequence, f"{problem} (line {line.number} outside the store)")
        witness = f"line {line.number} outside the store"
        self.lines.setdefault(chain_id, {})[sequence] = line.fields.get("time")
        self.expected.add(chain_id, sequence, line.hash, witness)
        self.expected.add(chain_id, line.fields.get("records"), line.fields.get("head"), witness)
        self.expected.add_heads(line.fields, witness)
        return None

    def _problem_of_damaged_line(self, line: CheckpointLine) -> Problem | None:
        """Return the problem with a damaged line. A crash may leave the beginning of a line, which is only noted."""
        for body, hash_ in self.store.rows(_checkpoint_records()):
            if isinstance(body, str) and is_beginning_of_line(line.text, body, hash_):
                self.notes.append(f"line {line.number} outside the store was cut off; its checkpoint is in the store")
                return None
        text = f"line {line.number} outside the store is damaged: it is not the beginning of any checkpoint's line"
        return Problem("damaged line", None, None, text)

    def add_checkpoints(self) -> None:
        """Collect expected hashes of other chains from the checkpoints in the store."""
        for body, _ in self.store.rows(_checkpoint_records()):
            if (fields := parsed(body)) is not None:
                self.expected.add_heads(fields, f"checkpoint {_place(fields)}")

    def walk(self) -> None:
        """Check records in chain order and stop at the first invalid record.

        Contradictions with other witnesses are collected and don't stop the pass.
        """
        chain: _Chain | None = None
        keep = self.keep
        in_order = select(*COLUMNS).order_by(RECORDS.c.chain_id, RECORDS.c.sequence)
        with closing(self.store.batches(in_order)) as batches:
            for row in itertools.chain.from_iterable(batches):
                if chain is None or chain.chain_id != row[0]:
                    if chain is not None:
                        self._end(chain)
                    chain = self.chains[row[0]] = _Chain(row[0], self.expected.of(row[0]))
                if (problem := self._check(chain, row)) is not None:
                    self.problem = problem
                    return
                if keep is not None:
                    keep(row)
        if chain is not None:
            self._end(chain)

    def check_ends(self) -> None:
        """Check the ends of abandoned chains, that no chain is missing, and that erasures account for missing texts.

        Does nothing after an invalid record, because the pass has stopped there.
        """
        if self.problem is not None:
            return
        for end, witness in self.abandoned:  # first, because it adds chains that may be missing
            self._check_abandoned(end, witness)
        self._check_for_missing_chains()
        self.contradictions += self.erasures.problems(self._is_covered)

    def _is_covered(self, chain_id: str, sequence: int) -> bool:
        """Whether a checkpoint of the same chain covers a record. If there are lines, it must have a line outside.

        The hashes must lead from the record to the checkpoint; across archived records they cannot be checked. Other
        chains don't count: a process that can write to the store can add a gap record, and an honest writer's next
        checkpoint may list the head of a forged chain.
        """
        chain = self.chains[chain_id]
        checkpoints = self.lines.get(chain_id, ()) if self.lines else chain.checkpoints
        nearest = min((checkpoint for checkpoint in checkpoints if checkpoint > sequence), default=None)
        return nearest is not None and not any(sequence < gap <= nearest for gap in chain.gaps)

    def _is_stored(self, text: Text) -> bool:
        chain_id, sequence, _, name = text
        content = (self._fields_at(chain_id, sequence) or {}).get(name)
        return isinstance(content, dict) and "text" in content

    def _check_abandoned(self, end: RecordReference, witness: str) -> None:
        """Check that a chain ends with the record that was the last one when its writer abandoned the chain."""
        chain_id, sequence, expected_hash = end
        chain = self.chains.get(chain_id)
        self.expected.add(chain_id, sequence, expected_hash, witness)
        if chain is None:  # it is missing, which `_check_for_missing_chains` reports
            return
        if chain.length < sequence:
            self.contradictions.append(truncated_chain(chain_id, chain.length, self.expected.of(chain_id), sequence))
        elif self._at(chain_id, sequence) not in (None, expected_hash):
            self.contradictions.append(hash_mismatch(chain_id, sequence, witness))
        else:
            chain.covered = max(chain.covered, sequence)
            if chain.length > sequence:
                self.contradictions.append(record_after_end(chain_id, sequence, witness))

    def _check_for_missing_chains(self) -> None:
        """Check that every chain that a witness lists is in the store."""
        for chain_id in self.expected.chains():
            if chain_id in self.chains:
                continue
            if self.archived is not None and self.archived.may_hold(chain_id, self.lines.get(chain_id, {})):
                self.archived.chains += 1
            else:
                self.contradictions.append(missing_chain(chain_id, self.expected.of(chain_id)))

    def _check(self, chain: _Chain, row: Any) -> Problem | None:
        """Check the next record of a chain. Return its problem, or None and add it to the checked part."""
        # The order of the checks names the problem: a record that is out of place would fail the later ones as well,
        # and then be reported as changed.
        chain_id, sequence, time, kind, hash_, body = row[:_OWN]
        place = chain.length + 1
        if chain.closed:
            return record_after_end(chain_id, chain.closed, f"checkpoint {chain.closed}")
        if sequence != place and self._is_archived(chain, sequence, time):
            self._skip_archived(chain, sequence, body)
            place = sequence
        if sequence != place or type(sequence) is not int:  # a column of SQLite may hold any type
            return misnumbered(chain_id, place, sequence)
        fields = parsed(body)
        if fields is None:
            return Problem("changed", chain_id, place, "its body is not a record")
        if (problem := self._problem_of_fields(chain, place, row, fields)) is not None:
            return problem
        if kind == "checkpoint" and (problem := self._check_checkpoint(chain, fields)) is not None:
            return problem
        erasable = fields["schema_version"] == ERASABLE_VERSION
        if erasable and (text := self.erasures.check_texts(chain_id, place, hash_, fields)) is not None:
            return Problem("changed", chain_id, place, text)
        if kind == "gap":
            self._add_gap(chain_id, place, fields)
        if kind == "erasure":
            self.erasures.add_erasure(chain_id, place, fields)
        chain.length, chain.head = place, hash_  # before `_compare`, which reads both
        self.records += 1
        if place in chain.expected:
            self._compare(chain, chain.expected[place])
        return None

    def _problem_of_fields(self, chain: _Chain, place: int, row: Any, fields: dict[str, Any]) -> Problem | None:
        """Return why a record is not the next of its chain, or not what its hash and its columns say; None if it is."""
        chain_id, _, time, kind, hash_, body = row[:_OWN]
        if fields.get("sequence") != place or fields.get("chain_id") != chain_id:
            return self._problem_of_misplaced_record(chain_id, place, fields)
        digest = hashlib.sha256(body.encode()).hexdigest()
        if digest != hash_ and not is_hash_of_erasable(hash_, fields, body):
            return Problem("changed", chain_id, place, "its hash is not that of its body")
        if fields.get("previous") != chain.head:
            return self._problem_of_unlinked_record(chain_id, place, hash_)
        if (text := disagreement(fields, time, kind, row[_OWN:])) is not None:
            return Problem("changed", chain_id, place, text)
        return None

    def _check_checkpoint(self, chain: _Chain, fields: dict[str, Any]) -> Problem | None:
        place = chain.length + 1
        if fields.get("records") != chain.length or fields.get("head") != chain.head:
            text = f"the checkpoint lists other records than the {chain.length} before it"
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
        """Whether records before this one are missing and may be archived."""
        if self.archived is None or type(sequence) is not int or sequence <= chain.length + 1:
            return False
        lines = self.lines.get(chain.chain_id, {})
        times = {place: time for place, time in lines.items() if chain.length < place < sequence}
        return (chain.length == 0 or self.archived.is_near(time)) and self.archived.may_hold(chain.chain_id, times)

    def _skip_archived(self, chain: _Chain, sequence: int, body: str) -> None:
        """Continue a chain with this record. The hash of the record before it is taken from its body."""
        # It proves nothing about the missing records, but the line of an archived checkpoint may have the same hash.
        assert self.archived is not None
        self.archived.records += sequence - 1 - chain.length
        chain.gaps.append(chain.length + 1)
        chain.length, chain.head = sequence - 1, str((parsed(body) or {}).get("previous"))
        if chain.length in chain.expected:
            self._compare(chain, chain.expected[chain.length])

    def _add_gap(self, chain_id: str, place: int, fields: dict[str, Any]) -> None:
        """Add the counts of a gap record, and the end of the chain that its writer abandoned."""
        if (end := reference_of(fields.get("abandoned"))) is not None:
            self.abandoned.append((end, f"the gap record {place} of the chain {printable_id(chain_id)}"))
        late, lost = (count if type(count := fields.get(name)) is int else 0 for name in ("late", "lost"))
        self.late, self.lost = self.late + late, self.lost + lost
        if late or lost:
            window = f"between {fields.get('since')} and {fields.get('until')}"
            source = f"record {place} of the chain {printable_id(chain_id)}"
            self.gaps.append(f"{late} late and {lost} lost records {window}, by {source}")

    def _compare(self, chain: _Chain, expected: dict[str, str]) -> None:
        """Compare the hash of the last checked record with the hashes that witnesses list."""
        for hash_, witness in expected.items():
            if hash_ == chain.head:
                chain.covered = max(chain.covered, chain.length)
            else:
                self.contradictions.append(hash_mismatch(chain.chain_id, chain.length, witness))

    def _end(self, chain: _Chain) -> None:
        """Check that no witness lists a record after the last one."""
        missing = [sequence for sequence in chain.expected if sequence > chain.length]
        if missing:
            self.contradictions.append(truncated_chain(chain.chain_id, chain.length, chain.expected, max(missing)))

    def _problem_of_misplaced_record(self, chain_id: str, place: int, fields: dict[str, Any]) -> Problem:
        """Return the problem with a record whose body has another chain or number than its columns."""
        if fields.get("chain_id") != chain_id:
            return Problem("inserted", chain_id, place, "a record of another chain is in its place")
        other_sequence = fields.get("sequence")
        if type(other_sequence) is not int:
            return Problem("changed", chain_id, place, "its body has no sequence number")
        other_fields = self._fields_at(chain_id, other_sequence)
        if other_fields is not None and other_fields.get("sequence") == place:
            return Problem("swapped", chain_id, place, f"it was swapped with record {other_sequence}")
        if other_sequence > place:
            return Problem("removed", chain_id, place, f"it is missing: record {other_sequence} is in its place")
        return Problem("inserted", chain_id, place, f"a second copy of record {other_sequence} is in its place")

    def _problem_of_unlinked_record(self, chain_id: str, place: int, hash: str) -> Problem:
        """Return the problem with a record, or the one before it, if their hashes don't match.

        If the next record has the hash of this one, this one is unchanged, so the record before it was changed.
        """
        after = self._fields_at(chain_id, place + 1)
        if place == 1 or (after is not None and after.get("previous") != hash):
            text = f"it has another hash for the record before it than record {place - 1}"
            return Problem("changed", chain_id, place, text if place > 1 else "it refers to a record before it")
        text = f"its hash was replaced: record {place} has another one for it"
        return Problem("changed", chain_id, place - 1, text)

    def _fields_at(self, chain_id: str, sequence: int) -> dict[str, Any] | None:
        return parsed(self._at(chain_id, sequence, "body"))

    def _at(self, chain_id: str, sequence: int, name: str = "hash") -> object:
        """Return a column of a record; None if there is no such record."""
        if not 0 < sequence <= MOST:
            return None
        place = RECORDS.c.chain_id == chain_id, RECORDS.c.sequence == sequence
        return next((row[0] for row in self.store.rows(select(RECORDS.c[name]).where(*place).limit(1))), None)

    def verification(self, line_problem: Problem | None) -> Verification:
        """Return the result."""
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
        """Return the problem to report: an invalid record before contradictions with witnesses, which may be forged.

        A contradiction about an earlier record of the same chain comes first.
        """
        problem = self.problem
        if problem is None:
            return self.contradictions[0] if self.contradictions else None
        earlier = (contradiction for contradiction in self.contradictions if contradiction.chain_id == problem.chain_id)
        return next(earlier, problem)

    def _counted_notes(self) -> Iterator[str]:
        if not self.lines:
            yield _NO_LINES
        elif self.problem is None and (
            unattested := [str(chain_id) for chain_id in self.chains if chain_id not in self.attested_outside]
        ):
            yield f"chains that no line outside the store lists, whose end may be cut off: {listed(unattested)}"
        yield from self._gap_notes()
        if self.problem is None:
            yield from self.erasures.notes(self._is_stored)
        if self.archived is not None and (note := self.archived.note()) is not None:
            yield note
        if self.signatures.by_key and self.problem is None and (unsigned := list(self._unsigned_chains())):
            yield f"chains without a signed checkpoint: {listed(unsigned)}"
        if self.lines and self.unlined:
            yield f"checkpoints of the store without a whole line outside it: {self.unlined}"
        if self.signatures.unchecked:
            yield f"signatures not checked, because traced_tools[signing] is not installed: {self.signatures.unchecked}"

    def _gap_notes(self) -> Iterator[str]:
        if self.late or self.lost:
            yield f"gap records report intents written late: {self.late}, and records never written: {self.lost}"
        yield from self.gaps[:_MOST_GAPS]
        if (more := len(self.gaps) - _MOST_GAPS) > 0:
            yield f"and {more} more gaps"

    def _unsigned_chains(self) -> Iterator[str]:
        for chain_id, chain in self.chains.items():
            if not chain.checkpoints and chain_id not in self.lines:
                yield str(chain_id)


def _checkpoint_records() -> Any:
    return select(RECORDS.c.body, RECORDS.c.hash).where(RECORDS.c.kind == "checkpoint")


def _place(fields: dict[str, Any]) -> str:
    return f"{fields.get('sequence')} of the chain {printable_id(str(fields.get('chain_id')))}"
