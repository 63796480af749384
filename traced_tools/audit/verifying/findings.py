"""What a verification finds, and the words for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Literal

from sqlalchemy import Integer

from traced_tools.audit.records import RECORD_KINDS, SCHEMA_VERSION, is_erasable, printable_id, timestamp
from traced_tools.audit.schema import RECORDS, REPEATED

_LISTED: Final = 5

Finding = Literal[
    "changed", "removed", "inserted", "swapped", "cut off", "signature", "damaged line", "schema", "damaged store"
]
"""What is wrong: with a record, a line of the checkpoints outside the store, or the store's structure or files."""


@dataclass(frozen=True, slots=True)
class Problem:
    """The first thing that is wrong.

    Args:
        finding: what happened to the record, in a word.
        chain_id: its chain; None for a line outside the store that names none, and for the store itself.
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
        erased: the texts that erasures on record have removed.
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
        """Whether nothing is wrong."""
        return self.problem is None


def misnumbered(chain_id: str, place: int, sequence: object) -> Problem:
    """Return what is wrong when another number follows the last one."""
    if type(sequence) is not int or sequence < place:
        return Problem("inserted", chain_id, place, f"before it stands one that is numbered {sequence!a}")
    return Problem("removed", chain_id, place, f"it is missing: record {sequence} follows record {place - 1}")


def disagreement(fields: dict[str, Any], time: object, kind: object, repeated: tuple[object, ...]) -> str | None:
    """Return what of a record's columns its body does not say, or what of its body no trail says."""
    get = fields.get
    is_usual = get("schema_version") == SCHEMA_VERSION and kind != "erasure"
    if not is_usual and not is_erasable(kind, fields):
        return "its schema_version does not fit its kind or its contents"
    if get("kind") != kind:
        return "its column kind says other than its body"
    if kind not in RECORD_KINDS:
        return "it is of no kind that there is"
    if not isinstance(time, int) or get("time") != timestamp(time):
        return "its column time says other than its body"
    if tuple(map(get, REPEATED)) == repeated and _OF_NUMBERS.issuperset(map(type, _numbers(repeated))):
        return None
    pairs = ((name, get(name), value) for name, value in zip(REPEATED, repeated, strict=True))
    column = next(name for name, told, value in pairs if told != value or type(told) is not type(value))
    return f"its column {column} says other than its body"


_numbers: Final = itemgetter(*(n for n, name in enumerate(REPEATED) if isinstance(RECORDS.c[name].type, Integer)))
"""Takes the values of the numeric columns, of which there are several, out of those of all."""
_OF_NUMBERS: Final = frozenset((int, type(None)))
"""Allowed Python types of a numeric column; 1.0 == 1, but readers treat them differently."""


def missing_chain(chain_id: str, claims: dict[int, dict[str, str]]) -> Problem:
    """Return that a whole chain is missing."""
    witness = next(iter(claims[max(claims)].values()))
    return Problem("removed", chain_id, 1, f"the whole chain is missing: {witness} tells of {max(claims)} records")


def truncated_chain(chain_id: str, length: int, claims: dict[int, dict[str, str]], told: int) -> Problem:
    """Return that the end of a chain is missing."""
    witness = next(iter(claims[told].values()))
    text = f"the chain ends with record {length}, and {witness} tells of record {told}"
    return Problem("cut off", chain_id, length + 1, text)


def record_after_end(chain_id: str, end: int, witness: str) -> Problem:
    """Return that a record stands behind the end of a chain."""
    return Problem("inserted", chain_id, end + 1, f"the chain ended with record {end}, as {witness} tells")


def hash_mismatch(chain_id: str, sequence: int, witness: str) -> Problem:
    """Return that a record is not the one that was there."""
    text = f"{witness} tells of another record in this place: it, or one before it, was changed since"
    return Problem("changed", chain_id, sequence, text)


def listed(chain_ids: Sequence[str]) -> str:
    """Return the first of these chains, and how many more there are."""
    more = f" and {len(chain_ids) - _LISTED} more" if len(chain_ids) > _LISTED else ""
    return ", ".join(printable_id(each) for each in chain_ids[:_LISTED]) + more
