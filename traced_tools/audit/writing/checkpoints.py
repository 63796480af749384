"""Checkpoints: records of a chain's length and head, with copies outside the store that reveal a cut tail."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traced_tools.audit.file_safety import check_key
from traced_tools.audit.records import AuditRecord, body_of, checkpoint_line
from traced_tools.audit.writing.chain import Chain
from traced_tools.audit.writing.publishing import Publisher
from traced_tools.core.disk import sync_folder
from traced_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SigningKey = bytes | str | os.PathLike[str]
_RAW_KEY: Final = 32


class Signer:
    """Signs checkpoints with an Ed25519 key.

    Args:
        key: 32 raw bytes, or the PEM of a private key without a password, as bytes or as the path of a file.

    Raises:
        ConfigurationError: if the key is invalid, if other users can read or replace its file, or if `cryptography`
            is not installed.
    """

    def __init__(self, key: SigningKey) -> None:
        self._key = _private_key(key)
        self.public_key: Final = base64.b64encode(self._key.public_key().public_bytes_raw()).decode()

    def sign(self, message: bytes) -> str:
        """Return the signature in base64."""
        return base64.b64encode(self._key.sign(message)).decode()

    def __repr__(self) -> str:
        return f"Signer(public_key={self.public_key!r})"


class CheckpointFile:
    """Appends checkpoints to a file, one line of JSON each, and syncs it.

    Args:
        path: the file; created with mode 0600 if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Append a line, after ending a last line that a crash cut off."""
        descriptor = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            is_new = not os.fstat(descriptor).st_size
            text = _beginning(descriptor) + body_of(line).encode() + b"\n"
            if os.write(descriptor, text) != len(text):
                raise OSError("the line was cut")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if is_new:
            sync_folder(self.path.parent)


class Checkpoints:
    """When checkpoints are due, their fields, and their copies outside the store.

    Args:
        every: records after which a checkpoint is due.
        interval: seconds after the first uncovered record.
        signer: signs checkpoints; None for no signature.
        outside: delivers copies outside the store; None for no copies.
    """

    def __init__(self, every: int, interval: float, signer: Signer | None, publisher: Publisher | None) -> None:
        self.every: Final = every
        self.interval: Final = interval
        self.sign: Final = None if signer is None else signer.sign
        self._public_key = None if signer is None else signer.public_key
        self._outside = publisher

    def fields(self, chain: Chain, key_id: str, heads: Mapping[str, Any], *, final: bool = False) -> dict[str, Any]:
        """Return the fields of a checkpoint at the head of `chain`; a `final` checkpoint ends the chain."""
        records, head = chain.head
        fields: dict[str, Any] = {"records": records, "head": head, "key_id": key_id, "heads": heads}
        if final:
            fields["final"] = True
        if self._public_key is not None:
            fields["public_key"] = self._public_key
        return fields

    def publish(self, record: AuditRecord) -> None:
        """Queue the copy of a stored checkpoint; never raises and never waits."""
        if self._outside is not None:
            self._outside.put(checkpoint_line(record.fields, record.hash, record.body))

    def wait(self, timeout: float) -> bool:
        """Wait until the copies of all checkpoints so far are delivered; return whether they are in time."""
        return self._outside is None or self._outside.wait(timeout)

    @property
    def problem(self) -> str | None:
        """Class of the error of the last failed delivery; None if the last one succeeded."""
        return None if self._outside is None else self._outside.problem

    def close(self, timeout: float) -> None:
        """Wait at most `timeout` seconds for the copies so far; those that are left are lost, logged and counted."""
        if self._outside is not None:
            self._outside.close(timeout)


def _beginning(descriptor: int) -> bytes:
    """Return what must precede a new line: a line break if the last line has none."""
    size = os.fstat(descriptor).st_size
    if not size:
        return b""
    os.lseek(descriptor, -1, os.SEEK_END)
    return b"" if os.read(descriptor, 1) == b"\n" else b"\n"


def _private_key(key: SigningKey) -> Ed25519PrivateKey:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        ed25519 = None  # type: ignore[assignment]
    if ed25519 is None:
        raise ConfigurationError("signing_key needs cryptography: pip install 'traced_tools[signing]'")
    data = key if isinstance(key, bytes) else _contents(key)
    try:
        if len(data) == _RAW_KEY:
            return ed25519.Ed25519PrivateKey.from_private_bytes(data)
        loaded = load_pem_private_key(data, password=None)
    except Exception:  # the error text may quote the key
        loaded = None
    if not isinstance(loaded, ed25519.Ed25519PrivateKey):
        raise ConfigurationError("signing_key must be an Ed25519 key: 32 raw bytes, or PEM without a password")
    return loaded


def _contents(path: object) -> bytes:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"signing_key must be bytes or a path, not {type(path).__name__}")
    try:
        with Path(path).open("rb") as file:
            check_key(Path(path), file, "signing")
            return file.read()
    except ConfigurationError:
        raise
    except (OSError, ValueError) as error:
        problem = type(error).__name__
    raise ConfigurationError(f"the signing key cannot be read ({problem}): signing_key is bytes, or a file's path")
