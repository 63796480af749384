"""What other users of a machine can do to a file: read it, change it, or replace it.

The checks use POSIX modes and owners; on other systems nothing is checked. A file should belong to the effective user
of the process or to root, who can read and replace everything anyway. The folder is checked as well: a user who can
write to it can replace even a write-protected file, unless the folder is sticky, as `/tmp` is, or mounted read-only, as
Kubernetes mounts secrets. ACLs and the folders above are not checked.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

WRITABLE: Final = 0o022
"""The bits of a mode with which a group or all users can write."""
READABLE_BY_ALL: Final = 0o004
"""The bit of a mode with which all users can read."""
_logged: Final[set[str]] = set()


def warn_of_access(log: logging.Logger, content: str, *files: Path, forbidden: int = WRITABLE) -> None:
    """Log a warning for each file that other users can access, and each folder in which they can replace it.

    Args:
        log: the logger. Each warning is logged once per process.
        content: what the files contain, such as `the audit trail`.
        files: the files, which need not exist.
        forbidden: the bits of a mode that are logged. Another owner is always logged.
    """
    if os.name != "posix":
        return
    for path in files:
        if (info := info_of(path)) is None:
            continue
        if (problem := foreign(info)) is not None:
            warn_once(log, f"{path} {problem}, who can change {content}: {owner_remedy()}")
        if excess := info.st_mode & forbidden:
            danger = "change" if excess & WRITABLE else "read"
            warn_once(log, f"{path} {open_to(info, forbidden)}, who can {danger} {content}: chmod 600 it")
    for folder in dict.fromkeys(path.parent for path in files):
        for problem in folder_problems(folder):
            warn_once(log, f"the files of {content} can be replaced: their folder {folder} {problem}")


def sqlite_files(path: Path) -> tuple[Path, ...]:
    """Return the file of an SQLite database and the files that SQLite keeps beside it.

    If `path` is a link, SQLite keeps them beside the file that it leads to.
    """
    target = os.path.realpath(path)
    return (path, *(Path(f"{target}{end}") for end in ("-wal", "-shm", "-journal")))


def folder_problems(folder: Path) -> Iterator[str]:
    """Yield the reasons why other users can replace the files of a folder, each with a remedy."""
    if (info := info_of(folder)) is not None and (problem := foreign(info)) is not None:
        yield f"{problem}; {owner_remedy()}"
    if (problem := open_folder(folder, WRITABLE)) is not None:
        yield f"{problem}; chmod go-w it"


def open_folder(folder: Path, forbidden: int) -> str | None:
    """Return which users can replace the files of a folder, by the bits of its mode; None if they cannot."""
    info = info_of(folder)
    if info is None or not info.st_mode & forbidden or info.st_mode & stat.S_ISVTX:
        return None
    is_mounted_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return None if is_mounted_read_only else open_to(info, WRITABLE)


def info_of(path: Path) -> os.stat_result | None:
    """Return the mode and the owner of a file; None if it is missing or out of reach."""
    try:
        return os.stat(path)
    except OSError:
        return None


def foreign(info: os.stat_result) -> str | None:
    """Return to whom a file belongs if that is neither root nor the user of this process; else None."""
    return None if info.st_uid in (0, os.geteuid()) else f"belongs to another user (uid {info.st_uid})"


def owner_remedy() -> str:
    """Return the remedy for another user's file. If root took it over, that user's processes could not use it."""
    return "run this process as that user" if os.geteuid() == 0 else "chown it to the user of this process"


def open_to(info: os.stat_result, forbidden: int) -> str:
    """Return what others can do with a file, by those bits of its mode that are forbidden."""
    excess = info.st_mode & forbidden
    verbs = [verb for verb, bits in (("read", 0o044), ("written", WRITABLE), ("run", 0o011)) if excess & bits]
    return f"may be {' and '.join(verbs)} by others (mode {stat.S_IMODE(info.st_mode):o})"


def warn_once(log: logging.Logger, text: str) -> None:
    """Log a warning, unless this process has logged it before."""
    if text not in _logged:
        _logged.add(text)
        log.warning("%s", text)
