"""Creates and replaces files so that only their owner reads them, and so that a power failure takes nothing back."""

from __future__ import annotations

import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
"""The mode of a file that only its owner can read and write."""


def create_private(path: Path) -> None:
    """Create a missing file that only its owner can read and write. An existing file stays as it is.

    The existing file is not opened, because closing it would release the locks that other connections of this process
    have on it. If `path` is a link, the file that it leads to is created.
    """
    target = Path(os.path.realpath(path))  # O_EXCL does not follow a link, and others would create its target
    with suppress(FileExistsError):
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_RDWR, PRIVATE))
        sync_folder(target.parent)


def write_draft(path: Path, content: bytes, mode: int = PRIVATE) -> Path:
    """Write a new, synced file beside `path` and return its path. No other process can guess it to prepare a link."""
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def replace_file(path: Path, content: bytes, mode: int = PRIVATE) -> None:
    """Replace a file as a whole. If `path` is a link, the file that it leads to is replaced.

    Args:
        path: the file, which keeps its mode.
        content: the new content.
        mode: the mode of a new file, without the bits that the umask of the process removes.
    """
    target = Path(os.path.realpath(path))
    draft = write_draft(target, content, mode)
    try:
        with suppress(FileNotFoundError):
            os.chmod(draft, stat.S_IMODE(os.stat(target).st_mode))
        draft.replace(target)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, such as the name of a new file."""
    with suppress(OSError):  # the process may not read the folder, or the system cannot sync folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
