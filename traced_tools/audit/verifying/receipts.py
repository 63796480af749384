"""Receipts: the proof of one call, which anyone can check without the store.

A receipt has the hashed bodies of all records from the call's first record to the checkpoint that covers its last one,
for each chain that recorded the call. A record's hash covers the record before it, so a link can only be checked with
the whole body. Erasable texts are not part of the hashed body, and so not of the receipt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import select

from traced_tools.audit.reading.matching import only_call
from traced_tools.audit.reading.read_connection import ReadConnection, StorePath, open_for_reading, parsed
from traced_tools.audit.reading.reader import calls_of
from traced_tools.audit.records import (
    ERASABLE_VERSION,
    AuditRecord,
    body_of,
    hash_of,
    printable_id,
    without_texts,
)
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.verifying.attestations import PublicKey, Signatures, read_checkpoint_file
from traced_tools.errors import AuditError

_VERSION: Final = 1
_IDENTITY: Final = ("run_id", "iteration", "batch_index", "call_id")
_KINDS: Final = ("intent", "decision", "outcome")
_UNATTESTED: Final = "without a checkpoint file or a public key, whoever wrote this receipt can have made it up"


@dataclass(frozen=True, slots=True)
class ReceiptVerification:
    """The result of the check of a receipt.

    Args:
        problem: the first problem, as a message; None if the receipt is valid.
        call: the fields of the call's records, in order; empty if there is a problem.
        notes: facts that are not problems, as messages.
    """

    problem: str | None
    call: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no problem."""
        return self.problem is None


class _InvalidReceipt(Exception):
    """Raised with the first problem of a receipt."""


def receipt(store: StorePath, call_id: str, *, run_id: str | None = None, iteration: int | None = None) -> str:
    """Return the receipt of a call as one line of JSON.

    Args:
        store: a path, or an SQLAlchemy URL.
        call_id: the call's id.
        run_id: the call's run; required if several calls have this id.
        iteration: the iteration of the loop, from 1; required if several calls of the run have this id.

    Raises:
        AuditError: if the store cannot be read, has no such call or several, if no checkpoint covers the call yet, if a
            record was changed, or if a hash covers a stored text, which the receipt would reveal.
    """
    with open_for_reading(store) as opened_store:
        key = only_call(opened_store, call_id, run_id, iteration)
        call = calls_of(opened_store, [key])[key]
        places: dict[str, list[int]] = {}
        for record in (*call.records, *call.conflicting):
            places.setdefault(record.chain_id, []).append(record.sequence)
        chains = [_chain(opened_store, chain_id, min(numbers), max(numbers)) for chain_id, numbers in places.items()]
    identity = dict(zip(_IDENTITY, (*key, call_id), strict=True))
    text = body_of({"receipt": _VERSION, **identity, "chains": chains})
    if (problem := verify_receipt(text).problem) is not None:
        raise AuditError(f"the call has no valid receipt: {problem}; run traced-tools audit verify")
    return text


def _chain(store: ReadConnection, chain_id: str, first: int, last: int) -> dict[str, Any]:
    """Return the part of a chain from the call's first record to the checkpoint that covers its last one."""
    of_chain = RECORDS.c.chain_id == chain_id
    checkpoint = select(RECORDS.c.sequence).where(of_chain, RECORDS.c.sequence > last, RECORDS.c.kind == "checkpoint")
    end = [row[0] for row in store.rows(checkpoint.order_by(RECORDS.c.sequence).limit(1))]
    if not end:
        raise AuditError(
            f"no checkpoint covers record {last} of the chain {printable_id(chain_id)} yet: call trail.checkpoint() or "
            "close the trail that wrote it, then write the receipt"
        )
    between = RECORDS.c.sequence.between(first, end[0])
    columns = (RECORDS.c[name] for name in ("chain_id", "sequence", "time", "kind", "hash", "body"))
    rows = store.rows(select(*columns).where(of_chain, between).order_by(RECORDS.c.sequence))
    records = [AuditRecord(*row) for row in rows]
    return {"records": [_hashed_body(record) for record in records], "hash": records[-1].hash}


def _hashed_body(record: AuditRecord) -> str:
    """Return the part of a record's body that its hash covers."""
    fields = parsed(record.body)
    if fields is None:
        raise AuditError(f"record {record.sequence} of the chain is damaged: run traced-tools audit verify")
    hashed = without_texts(fields) if fields.get("schema_version") == ERASABLE_VERSION else fields
    if any(isinstance(value, dict) and "digest" in value and "text" in value for value in hashed.values()):
        raise AuditError(
            f"the hash of record {record.sequence} covers a stored text, which a receipt would reveal: "
            "this call has no receipt"
        )
    return record.body if hashed is fields else body_of(hashed)


def verify_receipt(
    receipt: str | bytes, *, public_key: PublicKey | None = None, checkpoints: Path | None = None
) -> ReceiptVerification:
    """Check a receipt without the store.

    Args:
        receipt: the receipt, in UTF-8 if it is bytes.
        public_key: the Ed25519 key that its checkpoints must be signed with; None to check each signature with the key
            in its checkpoint.
        checkpoints: a checkpoint file that must list its checkpoints; None to check no file.

    Raises:
        AuditError: if the checkpoint file cannot be read.
        ConfigurationError: for another key, or if `cryptography` is not installed.
    """
    signatures = Signatures(public_key)
    lines = None
    if checkpoints is not None:
        lines = {
            (line.fields["chain_id"], line.fields["sequence"], line.hash)
            for line in read_checkpoint_file(checkpoints)
            if line.fields is not None
        }
    try:
        call = _check_receipt(receipt, signatures, lines)
    except _InvalidReceipt as error:
        return ReceiptVerification(str(error))
    notes = [_UNATTESTED] if lines is None and public_key is None else []
    if signatures.unchecked:
        notes.append("signatures were not checked, because traced_tools[signing] is not installed")
    return ReceiptVerification(None, tuple(call), tuple(notes))


Lines = set[tuple[str, int, str]] | None


def _check_receipt(receipt: str | bytes, signatures: Signatures, lines: Lines) -> list[dict[str, Any]]:
    """Return the fields of the call's records."""
    document = _read_receipt(receipt)
    call: list[dict[str, Any]] = []
    chain_ids: set[str] = set()
    for chain in document["chains"]:
        records = list(_check_links(chain))
        _check_checkpoint(records[-1], chain["hash"], signatures, lines)
        records_of_call = [
            record for record in records if record.get("kind") in _KINDS and _identity(record) == _identity(document)
        ]
        if not records_of_call or records[0]["chain_id"] in chain_ids:
            raise _InvalidReceipt("it has a chain without records of the call, or a chain twice")
        chain_ids.add(records[0]["chain_id"])
        call += records_of_call
    if not any(record["kind"] == "intent" for record in call):
        raise _InvalidReceipt("it has no intent of the call")
    return call


def _read_receipt(receipt: str | bytes) -> dict[str, Any]:
    """Return the members of a receipt, whose chains are not checked yet; raise `_InvalidReceipt` if it is not one."""
    text = receipt.decode("utf-8", "replace") if isinstance(receipt, bytes) else receipt
    document = parsed(text)
    if document is None or document.keys() != {"receipt", "chains", *_IDENTITY}:
        raise _InvalidReceipt("it is not a receipt")
    if not _is_canonical(document, text.strip()):  # readers differ in which value of a repeated key they use
        raise _InvalidReceipt("it is not canonical JSON")
    if type(document["receipt"]) is not int or document["receipt"] != _VERSION:
        raise _InvalidReceipt("its version is unknown")
    if not isinstance(document["chains"], list):
        raise _InvalidReceipt("it is not a receipt")
    return document


def _identity(fields: Mapping[str, Any]) -> str:
    """Return what identifies a call as JSON, in which 1, 1.0 and true differ."""
    try:
        return body_of({name: fields.get(name) for name in _IDENTITY})
    except (ValueError, RecursionError):
        raise _InvalidReceipt("the identity of the call is not valid") from None


def _check_links(chain: object) -> Iterator[dict[str, Any]]:
    """Yield the fields of a chain's records; raise `_InvalidReceipt` if a record does not follow the one before it."""
    if not isinstance(chain, dict) or chain.keys() != {"records", "hash"}:
        raise _InvalidReceipt("a chain of it is not valid")
    if not isinstance(chain["records"], list) or not chain["records"]:
        raise _InvalidReceipt("a chain of it has no records")
    before: dict[str, Any] | None = None
    head = ""
    for body in chain["records"]:
        fields = _fields(body)
        if before is not None:
            place = before["chain_id"], before["sequence"] + 1, head
            if (fields["chain_id"], fields["sequence"], fields.get("previous")) != place:
                raise _InvalidReceipt(f"record {place[1]} does not follow the record before it: one was changed")
        before, head = fields, hash_of(body)
        yield fields
    if head != chain["hash"]:
        raise _InvalidReceipt("the hash of the checkpoint is not that of its body")


def _fields(body: object) -> dict[str, Any]:
    fields = parsed(body)
    if fields is None or not _is_canonical(fields, body):
        raise _InvalidReceipt("a record of it is not canonical JSON")
    if not isinstance(fields.get("chain_id"), str) or type(fields.get("sequence")) is not int:
        raise _InvalidReceipt("a record of it has no place in a chain")
    return fields


def _is_canonical(fields: dict[str, Any], text: object) -> bool:
    """Return whether a text is the JSON of its fields as this package writes it."""
    try:
        return body_of(fields) == text
    except (ValueError, RecursionError):
        return False


def _check_checkpoint(fields: dict[str, Any], hash: str, signatures: Signatures, lines: Lines) -> None:
    sequence = fields["sequence"]
    if fields.get("kind") != "checkpoint":
        raise _InvalidReceipt("no checkpoint ends a chain of it")
    if fields.get("records") != sequence - 1 or fields.get("head") != fields.get("previous"):
        raise _InvalidReceipt(f"checkpoint {sequence} lists other records than those before it")
    if (problem := signatures.problem(fields)) is not None:
        raise _InvalidReceipt(f"{problem} (record {sequence})")
    if lines is not None and (fields["chain_id"], sequence, hash) not in lines:
        raise _InvalidReceipt(f"the checkpoint file has no line for checkpoint {sequence} with this hash")
