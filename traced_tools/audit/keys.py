"""Where the key of a trail comes from: an argument, the environment, or a file beside an embedded store."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Final

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.file_safety import check_folder, check_key, check_key_file
from traced_tools.core.disk import sync_folder
from traced_tools.errors import ConfigurationError

KEY_VARIABLE: Final = "TRACED_TOOLS_AUDIT_KEY"
_log = logging.getLogger("traced_tools.audit")


def load_key(key: bytes | str | None, store_path: str | os.PathLike[str] | None, *, create: bool = False) -> AuditKey:
    """Return the key: `key`, else that of `TRACED_TOOLS_AUDIT_KEY`, else that of the file beside the embedded store.

    Args:
        key: the secret, at least 16 bytes; a str counts as its UTF-8.
        store_path: the embedded store's file; None for a server store, which has no file beside it.
        create: whether to make the file when it is missing: `<store>.key`, 32 random bytes in hex, mode 0600. Otherwise
            the key only compares, and a file that other users own or can replace is logged and not refused.

    Raises:
        ConfigurationError: when there is no key, or none that can be used; the text never holds any of it.
    """
    if (found := given_key(key)) is not None:
        return found
    if store_path is None:
        raise no_key()
    return AuditKey(_from_file(_key_beside(store_path), create))


def check_key_beside(store_path: str | os.PathLike[str]) -> None:
    """Raise `ConfigurationError` if other users can read or replace the key beside a store, or could once it exists."""
    check_key_file(_key_beside(store_path), "digests")


def _key_beside(store_path: str | os.PathLike[str]) -> Path:
    return Path(f"{os.fspath(store_path)}.key")


def given_key(key: bytes | str | None) -> AuditKey | None:
    """Return the key given as an argument, or by the environment; None when there is neither."""
    found = key if key is not None else os.environ.get(KEY_VARIABLE) or None
    return None if found is None else AuditKey(_secret(found))


def no_key() -> ConfigurationError:
    """Return the error for a store that needs a key from elsewhere."""
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
    """Make the file, whole or not at all, unless somebody else is faster."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    try:
        descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with open(descriptor, "wb") as file:
            file.write(secrets.token_hex(32).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        finally:
            draft.unlink()
        sync_folder(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        problem = type(error).__name__
    else:
        _log.warning("made a key for the audit trail: %s; keep a copy, its digests cannot be compared without", path)
        return
    raise ConfigurationError(f"the audit key {path} cannot be made ({problem}): set {KEY_VARIABLE} instead")
