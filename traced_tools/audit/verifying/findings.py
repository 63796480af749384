"""The result of a verification, and the texts of its problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal

from traced_tools.audit.records import RECORD_KINDS, SCHEMA_VERSION, is_erasable, printable_id, timestamp
from traced_tools.audit.schema import REPEATED, REPEATED_NUMBERS

_LISTED: Final = 5

Finding = Literal[
    "changed", "removed", "inserted", "swapped", "cut off", "signature", "damaged line", "schema", "damaged store"
]
"""The kind of a problem: with a record, with a checkpoint line outside the store, or with the store itself."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The first problem that a verification finds.

    Args:
        finding: the kind of the problem.
        chain_id: the record's chain; None for a damaged line outside the store and for the store itself.
        sequence: the record's number in the chain, even if the record is missing.
        text: the problem as a message.
    """

    finding: Finding
    chain_id: str | None
    sequence: int | None
    text: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of a verification.

    Args:
        records: how many records were checked.
        chains: how many chains they belong to.
        checkpoints: how many of them are checkpoints.
        uncovered: how many records no checkpoint covers yet. Their removal could go undetected.
        late: how many intents gap records report as written late.
        lost: how many records gap records report as never written.
        problem: the first problem; None if the store is valid.
        notes: facts that are not problems, as messages.
        erased: how many texts recorded erasures have removed.
    """

    records: int
    chains: int
    checkpoints: int
    uncovered: int
    late: int
    lost: int
    problem: Problem | None
    notes: tuple[str, ...]
    erased: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return self.problem is None


def misnumbered(chain_id: str, place: int, sequence: object) -> Problem:
    """Return the problem if a record has another sequence number than `place`, the next one."""
    if type(sequence) is not int or sequence < place:
        return Problem("inserted", chain_id, place, f"a record with the number {sequence!a} is in front of it")
    return Problem("removed", chain_id, place, f"it is missing: record {sequence} follows record {place - 1}")


def disagreement(fields: dict[str, Any], time: object, kind: object, repeated: tuple[object, ...]) -> str | None:
    """Return how a record's columns differ from its body, or how its body is invalid; None if neither."""
    get = fields.get
    is_usual = get("schema_version") == SCHEMA_VERSION and kind != "erasure"
    if not is_usual and not is_erasable(kind, fields):
        return "its schema_version does not match its kind or its contents"
    if get("kind") != kind:
        return "its column kind says other than its body"
    if kind not in RECORD_KINDS:
        return "its kind is unknown"
    if not isinstance(time, int) or get("time") != timestamp(time):
        return "its column time says other than its body"
    if tuple(map(get, REPEATED)) == repeated and _OF_NUMBERS.issuperset(map(type, _numbers(repeated))):
        return None
    pairs = ((name, get(name), value) for name, value in zip(REPEATED, repeated, strict=True))
    column = next(name for name, stated, value in pairs if stated != value or type(stated) is not type(value))
    return f"its column {column} says other than its body"


_numbers: Final = itemgetter(*map(REPEATED.index, REPEATED_NUMBERS))
"""Returns the values of the numeric columns, of which there are at least two."""
_OF_NUMBERS: Final = frozenset((int, type(None)))
"""The Python types that a numeric column may have. 1.0 == 1, but readers treat them differently."""


def missing_chain(chain_id: str, expected: dict[int, dict[str, str]]) -> Problem:
    """Return the problem that a whole chain is missing."""
    witness = next(iter(expected[max(expected)].values()))
    return Problem("removed", chain_id, 1, f"the whole chain is missing: {witness} lists {max(expected)} records")


def truncated_chain(chain_id: str, length: int, expected: dict[int, dict[str, str]], sequence: int) -> Problem:
    """Return the problem that the end of a chain is missing; `sequence` is the last expected record."""
    witness = next(iter(expected[sequence].values()))
    text = f"the chain ends with record {length}, but {witness} lists record {sequence}"
    return Problem("cut off", chain_id, length + 1, text)


def record_after_end(chain_id: str, end: int, witness: str) -> Problem:
    """Return the problem that a record follows the end of a chain."""
    return Problem("inserted", chain_id, end + 1, f"the chain ended with record {end}, according to {witness}")


def hash_mismatch(chain_id: str, sequence: int, witness: str) -> Problem:
    """Return the problem that a witness gives another hash for a record."""
    text = f"{witness} lists another hash: this record, or one before it, was changed since"
    return Problem("changed", chain_id, sequence, text)


def listed(chain_ids: Sequence[str]) -> str:
    """Return the first chain ids as text, and how many more there are."""
    more = f" and {len(chain_ids) - _LISTED} more" if len(chain_ids) > _LISTED else ""
    return ", ".join(printable_id(chain_id) for chain_id in chain_ids[:_LISTED]) + more
