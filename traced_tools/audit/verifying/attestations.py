"""What speaks for a record from elsewhere: checkpoints of other chains, lines kept outside the store, signatures.

Whoever may write a store can give all records of a chain new hashes, so that the chain is whole again. That shows only
where its old hashes are kept.
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
"""A record: its chain, its number there, its hash."""


@dataclass(slots=True)
class ExpectedHashes:
    """What is said about records elsewhere: by chain and sequence number, hashes and who tells of them."""

    _told: dict[str, dict[int, dict[str, str]]] = field(default_factory=dict)

    def add(self, chain_id: object, sequence: object, hash: object, witness: str) -> None:
        """Take down that a witness tells of a record with this hash; what cannot be such a record is no claim."""
        if isinstance(chain_id, str) and type(sequence) is int and sequence > 0 and isinstance(hash, str):
            self._told.setdefault(chain_id, {}).setdefault(sequence, {}).setdefault(hash, witness)

    def add_heads(self, fields: Mapping[str, Any], witness: str) -> None:
        """Take down what a checkpoint tells of other chains."""
        heads = fields.get("heads")
        for chain_id, head in heads.items() if isinstance(heads, dict) else ():
            if isinstance(head, dict):
                self.add(chain_id, head.get("sequence"), head.get("hash"), witness)

    def of(self, chain_id: str) -> dict[int, dict[str, str]]:
        """Return what is said about a chain: by sequence number, hashes and who tells of them."""
        return self._told.get(chain_id, {})

    def chains(self) -> Iterator[str]:
        """Give the chains that somebody tells of."""
        return iter(self._told)


@dataclass(frozen=True, slots=True)
class CheckpointLine:
    """A checkpoint as it is kept outside the store.

    Args:
        number: its place in the file, from 1.
        text: the line.
        fields: what the checkpoint says; None when the line is damaged.
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
    """Give the checkpoints of a file.

    Raises:
        AuditError: when the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
            for number, text in enumerate(file, 1):
                if text.strip():
                    yield _line(number, text.rstrip("\r\n"))
            return
    except OSError as error:
        problem = type(error).__name__
    raise AuditError(f"the checkpoints {path} cannot be read ({problem})")


def _line(number: int, text: str) -> CheckpointLine:
    try:
        return _whole_line(number, text)
    except (ValueError, TypeError, RecursionError):
        return CheckpointLine(number, text, None, "")


def _whole_line(number: int, text: str) -> CheckpointLine:
    """Return a line; raise for one that no trail has written."""
    line = parsed(text) or {}
    body = line["body"] if isinstance(line.get("body"), str) else ""
    fields = parsed(body) or {}
    if not body.isascii() or fields.get("kind") != "checkpoint" or not _is_place(fields):
        raise ValueError
    if checkpoint_line(line, line.get("hash"), body) != checkpoint_line(fields, hash_of(body), body):
        raise ValueError
    return CheckpointLine(number, text, fields, line["hash"])


def _is_place(fields: Mapping[str, Any]) -> bool:
    sequence = fields.get("sequence")
    return isinstance(fields.get("chain_id"), str) and type(sequence) is int and sequence > 0


def reference_of(told: object) -> RecordReference | None:
    """Return the record that is told of by its chain, number and hash; None for what tells of none."""
    if not isinstance(told, dict) or not _is_place(told) or not isinstance(told.get("hash"), str):
        return None
    return told["chain_id"], told["sequence"], told["hash"]


def is_beginning_of_line(text: str, body: str, hash: object) -> bool:
    """Whether `text` is what a crash can have left of the line about the checkpoint with this body."""
    fields = parsed(body) or {}
    try:
        return body_of(checkpoint_line(fields, hash, body)).startswith(text)
    except (ValueError, TypeError, RecursionError):  # a checkpoint in the store that no trail has written
        return False


class Signatures:
    """Checks the signatures of checkpoints.

    Args:
        public_key: the Ed25519 key that all checkpoints must be signed with: 32 raw bytes, base64 of them, or PEM.
            None to check signatures by the keys that the checkpoints themselves name, which finds damage and no forger.

    Raises:
        ConfigurationError: when that is no such key, or `cryptography` is not installed.
    """

    def __init__(self, public_key: PublicKey | None) -> None:
        self._wanted = None if public_key is None else _raw_key(public_key)
        self.by_key: Final = public_key is not None
        """Whether all checkpoints must be signed with a certain key."""
        self.unchecked = 0
        """Signatures that could not be checked, since `cryptography` is not installed."""

    def problem(self, fields: Mapping[str, Any]) -> str | None:
        """Return what is wrong with the signature of a checkpoint, or None."""
        signature, named = _decoded(fields.get("signature")), _decoded(fields.get("public_key"))
        if signature is None:
            return None if self._wanted is None and "signature" not in fields else "the checkpoint is not signed"
        if self._wanted is not None and named != self._wanted:
            return "the checkpoint is signed with another key"
        try:
            message = body_of({name: value for name, value in fields.items() if name != "signature"})
        except (ValueError, RecursionError):
            message = ""
        fits = message and self._fits(named, signature, message.encode())
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


def _decoded(text: object) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None


def _raw_key(given: PublicKey) -> bytes:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        missing = True
    else:
        missing = False
    if missing:
        raise ConfigurationError("public_key needs cryptography: pip install 'traced_tools[signing]'")
    data = given.encode() if isinstance(given, str) else given
    if len(data) == _RAW_KEY:
        return data
    decoded = _decoded(data.decode("ascii", "replace").strip())
    if decoded is not None and len(decoded) == _RAW_KEY:
        return decoded
    try:
        key = load_pem_public_key(data)
    except Exception:  # of many kinds, and whatever it says
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError("public_key must be an Ed25519 key: 32 raw bytes, base64 of them, or PEM")
    return key.public_bytes_raw()
