"""Attestations of records: checkpoints of other chains, checkpoint lines outside the store, and signatures.

A process that can write to a store can recompute every hash of a chain, and the chain is consistent again. Only the old
hashes, kept elsewhere, reveal it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from traced_tools.audit.reading.read_connection import parsed
from traced_tools.audit.records import body_of, checkpoint_line, hash_of
from traced_tools.errors import AuditError, ConfigurationError

PublicKey = bytes | str
_RAW_KEY: Final = 32
RecordReference = tuple[str, int, str]
"""Identifies a record: chain id, sequence number, hash."""


@dataclass(slots=True)
class ExpectedHashes:
    """The hashes that attestations give for records, by chain and sequence number, each with its first witness."""

    _hashes: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)

    def add(self, chain_id: object, sequence: object, hash: object, witness: str) -> None:
        """Add the hash that a witness gives for a record; ignore values that cannot identify a record."""
        if isinstance(chain_id, str) and type(sequence) is int and sequence > 0 and isinstance(hash, str):
            self._hashes.setdefault(chain_id, {}).setdefault(sequence, {}).setdefault(hash, witness)

    def add_heads(self, fields: Mapping[str, Any], witness: str) -> None:
        """Add the heads of other chains that a checkpoint lists."""
        heads = fields.get("heads")
        for chain_id, head in heads.items() if isinstance(heads, dict) else ():
            if isinstance(head, dict):
                self.add(chain_id, head.get("sequence"), head.get("hash"), witness)

    def of(self, chain_id: str) -> dict[int, dict[str, str]]:
        """Return a chain's hashes by sequence number, each with its witness."""
        return self._hashes.get(chain_id, {})

    def chains(self) -> Iterator[str]:
        """Yield the chains that have an attestation."""
        return iter(self._hashes)


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """One line of a checkpoint file.

    Args:
        number: the line number, from 1.
        text: the line.
        fields: the checkpoint's fields; None if the line is damaged.
        hash: the checkpoint's hash.
    """

    number: int
    text: str
    fields: dict[str, Any] | None
    hash: str


def checkpoints_beside(store: Path) -> Path:
    """Return the default checkpoint file of an embedded store."""
    return store.with_name(f"{store.name}.checkpoints")


def read_checkpoint_file(path: Path) -> Iterator[CheckpointLine]:
    """Yield the lines of a checkpoint file.

    Raises:
        AuditError: if the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _parse_line(number, text.rstrip("\r\n"))
            return
    except OSError as error:
        problem = type(error).__name__
    raise AuditError(f"the checkpoints {path} cannot be read ({problem})")


def _parse_line(number: int, text: str) -> CheckpointLine:
    try:
        return _parse_valid_line(number, text)
    except (ValueError, TypeError, RecursionError):
        return CheckpointLine(number, text, None, "")


def _parse_valid_line(number: int, text: str) -> CheckpointLine:
    """Return a line; raise an error for a line that no trail writes."""
    line = parsed(text) or {}
    body = line["body"] if isinstance(line.get("body"), str) else ""
    fields = parsed(body) or {}
    if not body.isascii() or fields.get("kind") != "checkpoint" or not _has_place(fields):
        raise ValueError
    if checkpoint_line(line, line.get("hash"), body) != checkpoint_line(fields, hash_of(body), body):
        raise ValueError
    return CheckpointLine(number, text, fields, line["hash"])


def _has_place(fields: Mapping[str, Any]) -> bool:
    sequence = fields.get("sequence")
    return isinstance(fields.get("chain_id"), str) and type(sequence) is int and sequence > 0


def reference_of(value: object) -> RecordReference | None:
    """Return a JSON value as a reference to a record; None if it is not one."""
    if not isinstance(value, dict) or not _has_place(value) or not isinstance(value.get("hash"), str):
        return None
    return value["chain_id"], value["sequence"], value["hash"]


def is_beginning_of_line(text: str, body: str, hash: object) -> bool:
    """Whether a crash can have left `text` of the line for the checkpoint with this body."""
    fields = parsed(body) or {}
    try:
        return body_of(checkpoint_line(fields, hash, body)).startswith(text)
    except (ValueError, TypeError, RecursionError):  # a checkpoint in the store that no trail writes
        return False


class Signatures:
    """Checks the signatures of checkpoints.

    Args:
        public_key: the Ed25519 key that all checkpoints must be signed with: 32 raw bytes, base64 of them, or PEM.
            None to check each signature with the key in its checkpoint, which finds damage but no forgery.

    Raises:
        ConfigurationError: for another key, or if `cryptography` is not installed.
    """

    def __init__(self, public_key: PublicKey | None) -> None:
        self._required = None if public_key is None else _raw_key(public_key)
        self.by_key: Final = public_key is not None
        """Whether all checkpoints must be signed with a given key."""
        self.unchecked = 0
        """How many signatures were not checked because `cryptography` is not installed."""

    def problem(self, fields: Mapping[str, Any]) -> str | None:
        """Return the problem with the signature of a checkpoint; None if there is no problem."""
        signature, public_key = _from_base64(fields.get("signature")), _from_base64(fields.get("public_key"))
        if signature is None:
            return None if self._required is None and "signature" not in fields else "the checkpoint is not signed"
        if self._required is not None and public_key != self._required:
            return "the checkpoint is signed with another key"
        try:
            message = body_of({name: value for name, value in fields.items() if name != "signature"})
        except (ValueError, RecursionError):
            message = ""
        fits = message and self._fits(public_key, signature, message.encode())
        return None if fits else "the checkpoint's signature is wrong"

    def _fits(self, key: bytes | None, signature: bytes, message: bytes) -> bool:
        try:
            from cryptography.exceptions import InvalidSignature
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        except ImportError:
            self.unchecked += 1
            return True
        try:
            Ed25519PublicKey.from_public_bytes(key or b"").verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def _from_base64(text: object) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None


def _raw_key(public_key: PublicKey) -> bytes:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        missing = True
    else:
        missing = False
    if missing:
        raise ConfigurationError("public_key needs cryptography: pip install 'traced_tools[signing]'")
    data = public_key.encode() if isinstance(public_key, str) else public_key
    if len(data) == _RAW_KEY:
        return data
    raw_key = _from_base64(data.decode("ascii", "replace").strip())
    if raw_key is not None and len(raw_key) == _RAW_KEY:
        return raw_key
    try:
        key = load_pem_public_key(data)
    except Exception:  # cryptography raises several types, whose text may hold the key
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError("public_key must be an Ed25519 key: 32 raw bytes, base64 of them, or PEM")
    return key.public_bytes_raw()
