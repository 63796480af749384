"""Whether the records of a store are those that were written, all of them, and in their order.

One walk over the chains, each in the order of its sequence numbers. A record's hash must be that of its body, its body
must name the hash of the record before, the columns beside it must repeat it, and the numbers must have no gap. What
checkpoints elsewhere tell of a record must be true of it. The first record that fails is named.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from sqlalchemy import select

from traced_tools.audit.evidence import (
    Claims,
    Line,
    PublicKey,
    Signatures,
    is_beginning_of_line,
    names_of,
    read_lines,
)
from traced_tools.audit.opening import OpenStore, StorePath, embedded_path, opened, parsed
from traced_tools.audit.records import GENESIS, RECORD_KINDS, SCHEMA_VERSION, timestamp
from traced_tools.audit.schema import RECORDS, REPEATED

Finding = Literal["changed", "removed", "inserted", "swapped", "cut off", "signature", "damaged line"]
"""What is wrong: with a record, or with a line of the checkpoints outside the store."""

_COLUMNS: Final = tuple(RECORDS.c[name] for name in ("chain_id", "sequence", "time", "kind", "hash", "body", *REPEATED))


@dataclass(frozen=True, slots=True)
class Problem:
    """The first thing that is wrong.

    Args:
        finding: what happened to the record, in a word.
        chain_id: its chain; None for a line outside the store that names none.
        sequence: its number in the chain: that of the missing one where it is missing.
        text: what is wrong, in words.
    """

    finding: Finding
    chain_id: str | None
    sequence: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """What a verification found.

    Args:
        records: how many records were looked at.
        chains: how many chains those are of.
        checkpoints: how many of them are checkpoints.
        uncovered: the records that no checkpoint covers yet, so that they could be cut off unseen.
        late: the records that gap records tell of as written later than what they precede.
        lost: the records that gap records tell of as never written.
        problem: the first thing that is wrong.
        notes: what is not wrong, and worth knowing.
    """

    records: int
    chains: int
    checkpoints: int
    uncovered: int
    late: int
    lost: int
    problem: Problem | None
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.problem is None


def verify(
    store: StorePath, *, checkpoints: str | os.PathLike[str] | None = None, public_key: PublicKey | None = None
) -> Verification:
    """Look at every record of a store, and return what is found.

    Args:
        store: a path, or an SQLAlchemy URL.
        checkpoints: the file with the lines outside the store; by default `<store>.checkpoints` beside an embedded
            one, if there is such a file.
        public_key: the Ed25519 key that all checkpoints must be signed with: 32 raw bytes, base64 of them, or PEM.

    Raises:
        AuditError: when the store or the file cannot be read.
        ConfigurationError: for a key that is none, or without `cryptography`.
    """
    signatures = Signatures(public_key)
    path = _lines_path(store, checkpoints)
    lines = list(read_lines(path)) if path is not None else []  # before the store: it is ahead of them
    with opened(store) as opened_store:
        walk = _Walk(opened_store, signatures)
        line_problem = walk.hear(lines)
        walk.hear_checkpoints()
        walk.walk()
        return walk.verification(line_problem, () if path is not None else (_NO_LINES,))


_NO_LINES: Final = "no checkpoints outside the store were looked at, so a chain whose end was cut off may look whole"


def _lines_path(store: StorePath, given: str | os.PathLike[str] | None) -> Path | None:
    if given is not None:
        return Path(given)
    embedded = embedded_path(store)
    beside = None if embedded is None else Path(f"{embedded}.checkpoints")
    return beside if beside is not None and beside.is_file() else None


@dataclass(slots=True)
class _Chain:
    """A chain as far as it has been walked."""

    chain_id: str
    claims: dict[int, dict[str, str]]
    length: int = 0
    head: str = GENESIS
    covered: int = 0


@dataclass(slots=True)
class _Walk:
    """The walk over a store: what has been seen, and the first problem."""

    store: OpenStore
    signatures: Signatures
    claims: Claims = field(default_factory=Claims)
    lines: set[tuple[str, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    records: int = 0
    chains: int = 0
    checkpoints: int = 0
    unlined: int = 0
    uncovered: int = 0
    late: int = 0
    lost: int = 0
    problem: Problem | None = None
    refuted: list[Problem] = field(default_factory=list)

    def hear(self, lines: list[Line]) -> Problem | None:
        """Take down what the lines outside the store tell; return the first thing that is wrong with them."""
        problems = [self._hear_line(line) for line in lines]
        return next((problem for problem in problems if problem is not None), None)

    def _hear_line(self, line: Line) -> Problem | None:
        if line.fields is None:
            return self._damaged(line)
        chain_id, sequence = str(line.fields["chain_id"]), line.fields["sequence"]
        if (problem := self.signatures.problem(line.fields)) is not None:
            return Problem("signature", chain_id, sequence, f"{problem} (line {line.number} outside the store)")
        witness = f"line {line.number} outside the store"
        self.lines.add((chain_id, sequence))
        self.claims.add(chain_id, sequence, line.hash, witness)
        self.claims.add(chain_id, line.fields.get("records"), line.fields.get("head"), witness)
        self.claims.add_heads(line.fields, witness)
        return None

    def _damaged(self, line: Line) -> Problem | None:
        """A crash may leave the beginning of a line whose checkpoint is in the store; anything else is no accident."""
        for body, told in self.store.rows(_checkpoint_records()):
            if isinstance(body, str) and is_beginning_of_line(line.text, body, told):
                self.notes.append(f"line {line.number} outside the store was cut off; its checkpoint is in the store")
                return None
        text = (
            f"line {line.number} outside the store is damaged, and not the beginning of any checkpoint's in the store"
        )
        return Problem("damaged line", None, None, text)

    def hear_checkpoints(self) -> None:
        """Take down what the checkpoints in the store tell of other chains."""
        for body, _ in self.store.rows(_checkpoint_records()):
            if (fields := parsed(body)) is not None:
                self.claims.add_heads(fields, f"checkpoint {_place(fields)}")

    def walk(self) -> None:
        """Look at all records, up to the first that is bad in itself."""
        chain: _Chain | None = None
        chains: set[str] = set()
        for row in self.store.rows(select(*_COLUMNS).order_by(RECORDS.c.chain_id, RECORDS.c.sequence)):
            if chain is None or chain.chain_id != row[0]:
                if chain is not None:
                    self._end(chain)
                chain = _Chain(row[0], self.claims.of(row[0]))
                chains.add(row[0])
                self.chains += 1
            self.problem = self._look(chain, *row)
            if self.problem is not None:
                return
        if chain is not None:
            self._end(chain)
        self.refuted += [_gone(each, self.claims.of(each)) for each in self.claims.chains() if each not in chains]

    def _look(
        self,
        chain: _Chain,
        chain_id: str,
        sequence: int,
        time: int,
        kind: str,
        hash: str,
        body: str,
        *repeated: object,
    ) -> Problem | None:
        """Look at the next record of a chain: return what is wrong with it, else take it as seen."""
        place = chain.length + 1
        if sequence != place:
            return _misnumbered(chain_id, place, sequence)
        fields = parsed(body)
        if fields is None:
            return Problem("changed", chain_id, place, "its body is no record")
        if fields.get("sequence") != place or fields.get("chain_id") != chain_id:
            return self._misplaced(chain_id, place, fields)
        if hashlib.sha256(body.encode("utf-8", "replace")).hexdigest() != hash:
            return Problem("changed", chain_id, place, "its hash is not that of its body")
        if fields.get("previous") != chain.head:
            return self._unlinked(chain_id, place, hash)
        if (text := _disagreement(fields, time, kind, repeated)) is not None:
            return Problem("changed", chain_id, place, text)
        if kind == "checkpoint" and (problem := self._look_at_checkpoint(chain, fields)) is not None:
            return problem
        if kind == "gap":
            self._count_gap(fields)
        chain.length, chain.head = place, hash
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
        self.unlined += (chain.chain_id, place) not in self.lines
        chain.covered = place
        return None

    def _count_gap(self, fields: dict[str, Any]) -> None:
        for name in ("late", "lost"):
            count = fields.get(name)
            setattr(self, name, getattr(self, name) + (count if isinstance(count, int) else 0))

    def _compare(self, chain: _Chain, told: dict[str, str]) -> None:
        """Compare a record with what is said about it elsewhere."""
        for claimed, witness in told.items():
            if claimed == chain.head:
                chain.covered = max(chain.covered, chain.length)
            else:
                text = f"{witness} tells of another record in this place: it, or one before it, was changed since"
                self.refuted.append(Problem("changed", chain.chain_id, chain.length, text))

    def _end(self, chain: _Chain) -> None:
        """Count what no checkpoint covers, and see whether somebody tells of records after the last one."""
        self.uncovered += chain.length - chain.covered
        missing = [sequence for sequence in chain.claims if sequence > chain.length]
        if missing:
            self.refuted.append(_cut_off(chain.chain_id, chain.length, chain.claims, max(missing)))

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
        found = select(RECORDS.c.body).where(RECORDS.c.chain_id == chain_id, RECORDS.c.sequence == sequence).limit(1)
        return next((parsed(row[0]) for row in self.store.rows(found)), None)

    def verification(self, line_problem: Problem | None, notes: tuple[str, ...]) -> Verification:
        """Return what was found."""
        return Verification(
            records=self.records,
            chains=self.chains,
            checkpoints=self.checkpoints,
            uncovered=self.uncovered,
            late=self.late,
            lost=self.lost,
            problem=self._first_problem() or line_problem,
            notes=(*notes, *self.notes, *self._counted_notes()),
        )

    def _first_problem(self) -> Problem | None:
        """Return the first problem: one that a record has in itself tells more than what others tell of it.

        Others may be forged. Only what is told of an earlier record of the same chain comes before.
        """
        found = self.problem
        if found is None:
            return self.refuted[0] if self.refuted else None
        earlier = (each for each in self.refuted if each.chain_id == found.chain_id)
        return next(earlier, found)

    def _counted_notes(self) -> Iterator[str]:
        if self.late or self.lost:
            yield f"gap records tell of records written late: {self.late}, and never written: {self.lost}"
        if self.lines and self.unlined:
            yield f"checkpoints of the store without a whole line outside it: {self.unlined}"
        if self.signatures.unchecked:
            yield f"signatures that were not checked, for want of traced_tools[signing]: {self.signatures.unchecked}"


def _checkpoint_records() -> Any:
    return select(RECORDS.c.body, RECORDS.c.hash).where(RECORDS.c.kind == "checkpoint")


def _place(fields: dict[str, Any]) -> str:
    return f"{fields.get('sequence')} of the chain {names_of(str(fields.get('chain_id')))}"


def _misnumbered(chain_id: str, place: int, sequence: object) -> Problem:
    if not isinstance(sequence, int) or sequence < place:
        return Problem("inserted", chain_id, place, f"before it stands one that is numbered {sequence!a}")
    return Problem("removed", chain_id, place, f"it is missing: record {sequence} follows record {place - 1}")


def _disagreement(fields: dict[str, Any], time: object, kind: object, repeated: tuple[object, ...]) -> str | None:
    """Return what of a record's columns its body does not say, or what of its body no trail says."""
    if fields.get("schema_version") != SCHEMA_VERSION:
        return f"its version is not {SCHEMA_VERSION}"
    if fields.get("kind") != kind:
        return "its column kind says other than its body"
    if kind not in RECORD_KINDS:
        return "it is of no kind that there is"
    if not isinstance(time, int) or fields.get("time") != timestamp(time):
        return "its column time says other than its body"
    get = fields.get
    if (*map(get, REPEATED),) == repeated:
        return None
    column = next(name for name, value in zip(REPEATED, repeated, strict=True) if get(name) != value)
    return f"its column {column} says other than its body"


def _gone(chain_id: str, claims: dict[int, dict[str, str]]) -> Problem:
    witness = next(iter(claims[max(claims)].values()))
    return Problem("removed", chain_id, 1, f"the whole chain is missing: {witness} tells of {max(claims)} records")


def _cut_off(chain_id: str, length: int, claims: dict[int, dict[str, str]], told: int) -> Problem:
    witness = next(iter(claims[told].values()))
    text = f"the chain ends with record {length}, and {witness} tells of record {told}"
    return Problem("cut off", chain_id, length + 1, text)
