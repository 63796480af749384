"""Checkpoints: records that say how far a chain has come, and the same outside the store, where a cut tail shows."""

from __future__ import annotations

import base64
import logging
import os
from collections.abc import Callable, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from traced_tools._workers import WorkerPool
from traced_tools.audit.chain import Chain
from traced_tools.audit.records import AuditRecord, body_of, checkpoint_line
from traced_tools.errors import ConfigurationError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SigningKey = bytes | str | os.PathLike[str]
Publish = Callable[[Mapping[str, Any]], object]
_RAW_KEY: Final = 32
_MOST_WAITING: Final = 1000
"""Checkpoints that may wait for a slow function; the chain holds those, too, that come on top of them."""
_log = logging.getLogger("traced_tools.audit")


def checkpoints_beside(store: Path) -> Path:
    """Return where the checkpoints of an embedded store are kept outside of it."""
    return store.with_name(f"{store.name}.checkpoints")


class Signer:
    """Signs checkpoints with an Ed25519 key.

    Args:
        key: 32 raw bytes, or the PEM of a private key without a password, as bytes or as the path of a file.

    Raises:
        ConfigurationError: when it is no such key, or `cryptography` is not installed.
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
    """A file that checkpoints are appended to, a line of JSON each, fsynced.

    Args:
        path: the file; made with mode 0600 when it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path: Final = path

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Append a line; a line that a crash cut off is ended first."""
        descriptor = os.open(self.path, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o600)
        try:
            text = _beginning(descriptor) + body_of(line).encode() + b"\n"
            if os.write(descriptor, text) != len(text):
                raise OSError("the line was cut")
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class Checkpoints:
    """When a checkpoint is due, what it says, and where it goes besides the chain.

    Args:
        every: records after which one is due.
        interval: seconds after the first record that none covers.
        signer: signs them; None for no signature.
        publish: takes the line that is kept outside the store; None for none.
    """

    def __init__(self, every: int, interval: float, signer: Signer | None, publish: Publish | None) -> None:
        self.every: Final = every
        self.interval: Final = interval
        self.sign: Final = None if signer is None else signer.sign
        self._public_key = None if signer is None else signer.public_key
        self._publish = publish
        self._elsewhere = None if isinstance(publish, CheckpointFile) else WorkerPool(1)
        self._handed = self._done = 0
        self._failing = False

    def fields(self, chain: Chain, key_id: str, heads: Mapping[str, Any], *, final: bool = False) -> dict[str, Any]:
        """Return what a checkpoint at the end of `chain` says; of a `final` one that nothing follows it."""
        records, head = chain.sealed
        fields: dict[str, Any] = {"records": records, "head": head, "key_id": key_id, "heads": heads}
        if final:
            fields["final"] = True
        if self._public_key is not None:
            fields["public_key"] = self._public_key
        return fields

    def publish(self, record: AuditRecord, *, wait: bool) -> None:
        """Tell of a stored checkpoint outside of the store; never raises.

        A function that is told has a thread of its own, since a slow one would keep tools from their intents.

        Args:
            record: the checkpoint.
            wait: whether to wait for the function, as for the last checkpoint of a chain.
        """
        if self._publish is None:
            return
        if self._elsewhere is None:
            self._keep(record)
        elif self._handed - self._done < _MOST_WAITING:
            self._handed += 1
            self._hand_over(self._elsewhere, record, wait)
        else:
            self._complain("too many wait for it")

    def _hand_over(self, elsewhere: WorkerPool, record: AuditRecord, wait: bool) -> None:
        try:
            kept = elsewhere.submit(partial(self._keep, record))
        except RuntimeError:  # Python 3.12 starts no thread while the interpreter ends
            self._keep(record)
            return
        if wait:
            futures.wait([kept])

    def _keep(self, record: AuditRecord) -> None:
        assert self._publish is not None
        try:
            self._publish(checkpoint_line(record.fields, record.hash, record.body))
            self._failing = False
        except BaseException as error:  # whatever it is, it must end no thread
            self._complain(type(error).__name__)
        finally:
            self._done += 1

    def _complain(self, why: str) -> None:
        if not self._failing:
            _log.error("a checkpoint of the audit trail cannot be kept outside the store (%s)", why)
        self._failing = True


def _beginning(descriptor: int) -> bytes:
    """Return what must stand before a new line: an end for the last one, when it has none."""
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
    except Exception:  # whatever it says, it may quote the key
        loaded = None
    if not isinstance(loaded, ed25519.Ed25519PrivateKey):
        raise ConfigurationError("signing_key must be an Ed25519 key: 32 raw bytes, or PEM without a password")
    return loaded


def _contents(path: object) -> bytes:
    if not isinstance(path, str | os.PathLike):
        raise ConfigurationError(f"signing_key must be bytes or a path, not {type(path).__name__}")
    try:
        return Path(path).read_bytes()
    except (OSError, ValueError) as error:
        problem = type(error).__name__
    raise ConfigurationError(f"the signing key cannot be read ({problem}): signing_key is bytes, or a file's path")
