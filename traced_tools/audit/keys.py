"""Loads the key of a trail from an argument, the environment, or a file beside an embedded store."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.file_safety import check_folder, check_key, check_key_file
from traced_tools.core.disk import sync_folder, write_draft
from traced_tools.core.variables import AUDIT_KEY as KEY_VARIABLE
from traced_tools.errors import ConfigurationError

_log = logging.getLogger("traced_tools.audit")


def load_key(key: bytes | str | None, store_path: str | os.PathLike[str] | None, *, create: bool = False) -> AuditKey:
    """Return the key: `key`, else `TRACED_TOOLS_AUDIT_KEY`, else the key file beside the embedded store.

    Args:
        key: the secret, at least 16 bytes; a str is encoded as UTF-8.
        store_path: the embedded store's file; None for a server store, which has no key file.
        create: whether to create a missing key file: `<store>.key`, 32 random bytes in hex, mode 0600. If False, the
            key is only used to compare digests, so a file that other users own or can replace is logged, not refused.

    Raises:
        ConfigurationError: if there is no key, or it cannot be used. The message never contains any part of the key.
    """
    if (explicit_key := given_key(key)) is not None:
        return explicit_key
    if store_path is None:
        raise no_key()
    return AuditKey(_from_file(_key_beside(store_path), create))


def check_key_beside(store_path: str | os.PathLike[str]) -> None:
    """Raise `ConfigurationError` if other users can read or replace the key beside a store, or could once it exists."""
    check_key_file(_key_beside(store_path), "digests")


def _key_beside(store_path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(store_path)}.key")


def given_key(key: bytes | str | None) -> AuditKey | None:
    """Return the key from the argument or the environment; None if neither has one."""
    secret = key if key is not None else os.environ.get(KEY_VARIABLE) or None
    return None if secret is None else AuditKey(_secret(secret))


def no_key() -> ConfigurationError:
    """Return the error for a server store without a key."""
    return ConfigurationError(
        f"the audit trail on a server needs a key: pass key=..., or set {KEY_VARIABLE} to at least 16 bytes"
    )


def _secret(key: object) -> bytes:
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    if isinstance(key, bytes):
        return key
    raise ConfigurationError(f"the audit key must be bytes or str, not {type(key).__name__}")


def _from_file(path: Path, create: bool) -> bytes:
    try:
        return _read(path, reading=not create)
    except FileNotFoundError:
        missing = True
    if missing and not create:
        raise ConfigurationError(
            f"there is no audit key: set {KEY_VARIABLE}, or put the file {path.name} beside the store"
        )
    check_folder(path, "digests")
    _make(path)
    return _read(path, reading=False)


def _read(path: Path, *, reading: bool) -> bytes:
    try:
        with path.open("rb") as file:
            check_key(path, file, "digests", reading=reading)
            return file.read(4096).strip()
    except FileNotFoundError:
        raise
    except OSError as error:
        problem = type(error).__name__
    raise ConfigurationError(f"the audit key {path} cannot be read ({problem})")


def _make(path: Path) -> None:
    """Create the key file atomically, unless another process creates it first."""
    target = Path(os.path.realpath(path))  # a link stays one
    try:
        draft = write_draft(target, secrets.token_hex(32).encode() + b"\n")
        try:
            os.link(draft, target)
        finally:
            draft.unlink()
        sync_folder(target.parent)
    except FileExistsError:
        return
    except OSError as error:
        problem = type(error).__name__
    else:
        _log.warning(
            "created a key for the audit trail: %s; keep a copy, because digests cannot be compared without it", path
        )
        return
    raise ConfigurationError(f"the audit key {path} cannot be created ({problem}): set {KEY_VARIABLE} instead")
