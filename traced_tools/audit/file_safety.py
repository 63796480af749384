"""Checks that other users can neither read nor replace a trail's files: keys, stores, checkpoints.

The checks use POSIX modes and owners; on other systems nothing is checked. A file must belong to the effective user of
the process or to root, who can read and replace everything anyway. A process that runs as root may use files of other
users. The folder is checked as well: a user who can write to it can replace even a write-protected file, unless the
folder is sticky, as `/tmp` is, or mounted read-only, as Kubernetes mounts secrets.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final, Literal

from traced_tools.errors import ConfigurationError

KeyKind = Literal["digests", "signing", "public"]
_NAMES: Final = {"digests": "the audit key", "signing": "the signing key", "public": "the public key"}
_PRIVATE: Final = 0o077
_WRITABLE: Final = 0o022
_BY_ANYBODY: Final = 0o002
_GROUP_READS: Final = 0o040
_MOST_LINKS: Final = 40
"""The maximum number of links in a row that Linux follows."""
_log = logging.getLogger("traced_tools.audit")
_logged: Final[set[str]] = set()


def check_key(path: Path, file: IO[bytes], kind: KeyKind, *, reading: bool = False) -> None:
    """Raise an error unless an open key file is safe from other users.

    Only the owner may have access to a digest key or a signing key. As in PostgreSQL, the group may read a signing key
    that root owns if the process does not run as root: Kubernetes mounts secrets with `fsGroup` like that. A public key
    may belong to and be readable by any user, but must not be writable by all. Access that is only acceptable because
    users of one group, or root and the owner, usually trust each other is logged. Pipes are not checked.

    Args:
        path: the path of the file, for the message and for its folder.
        file: the open file.
        kind: the kind of the key.
        reading: whether the key is only used to compare digests. A replaced key would prove nothing then, so an unsafe
            owner or folder is logged and not refused.

    Raises:
        ConfigurationError: if others can read a secret key, or write or replace any key.
    """
    if os.name == "posix":
        _check_key(path, os.fstat(file.fileno()), kind, reading)


def check_key_file(path: Path, kind: KeyKind) -> None:
    """Raise an error unless a key file is safe from other users, or would be if it existed. Opens no file.

    Raises:
        ConfigurationError: as `check_key` does.
    """
    if os.name != "posix":
        return
    if (info := _info(path)) is None:
        check_folder(path, kind)
    else:
        _check_key(path, info, kind, reading=False)


def _check_key(path: Path, info: os.stat_result, kind: KeyKind, reading: bool) -> None:
    if not stat.S_ISREG(info.st_mode):
        return
    name = f"{_NAMES[kind]} {path}"
    forbidden = _WRITABLE if kind == "public" else _PRIVATE
    if kind == "signing" and info.st_uid == 0 != os.geteuid():
        forbidden &= ~_GROUP_READS
    if (problem := _foreign(info)) is not None:
        tolerated = reading or kind == "public" or os.geteuid() == 0
        remedy = "" if tolerated else ": use a file that belongs to the user of this process"
        _report(f"{name} {problem}, who can change it{remedy}", tolerated)
    if info.st_mode & forbidden:
        tolerated = kind == "public" and not info.st_mode & _BY_ANYBODY
        remedy = "chmod go-w it" if kind == "public" else "chmod 600 it"
        _report(f"{name} {_open_to(info, forbidden)}: {remedy}", tolerated)
    check_folder(path, kind, reading=reading)


def check_folder(path: Path, kind: KeyKind, *, reading: bool = False) -> None:
    """Raise an error if every user can replace a key because its folder is world-writable.

    If only the folder's group or owner can replace it, log a warning: containers often run as root in folders of other
    users.

    Args:
        path: the key file. If it is a link, the folders of all linked files are checked.
        kind: the kind of the key.
        reading: as for `check_key`.

    Raises:
        ConfigurationError: if every user can replace it.
    """
    if os.name != "posix":
        return
    name = f"{_NAMES[kind]} {path}"
    for folder in _folders(path):
        if (problem := _open_folder(folder, _BY_ANYBODY)) is not None:
            text = f"{name} can be replaced: its folder {folder} {problem}; use a folder that only its owner can write"
            _report(text, reading)
            continue
        for problem in _folder_problems(folder):
            _warn(f"{name} can be replaced: its folder {folder} {problem}")


def _folders(path: Path) -> Iterable[Path]:
    """Return the folder of a file and, if the file is a link, the folders of all files it leads to."""
    found = {os.path.realpath(path.parent): path.parent}
    for _ in range(_MOST_LINKS):
        try:
            path = path.parent / os.readlink(path)
        except OSError:  # not a link
            break
        folder = os.path.realpath(path.parent)
        found.setdefault(folder, Path(folder))
    return found.values()


def warn_of_files(*files: Path) -> None:
    """Log a warning for each file or folder of a trail that other users can change, once per process.

    Args:
        files: the store and its checkpoint file, which need not exist.
    """
    if os.name != "posix":
        return
    for path in files:
        if (info := _info(path)) is None:
            continue
        if (problem := _foreign(info)) is not None:
            _warn(f"{path} {problem}, who can change the audit trail: {_owner_remedy()}")
        if info.st_mode & _WRITABLE:
            _warn(f"{path} {_open_to(info, _WRITABLE)}, who can change the audit trail: chmod 600 it")
    for folder in dict.fromkeys(path.parent for path in files):
        for problem in _folder_problems(folder):
            _warn(f"the files of the audit trail can be replaced: their folder {folder} {problem}")


def _folder_problems(folder: Path) -> Iterator[str]:
    """Yield the reasons why other users can replace the files of a folder, each with a remedy."""
    if (info := _info(folder)) is not None and (problem := _foreign(info)) is not None:
        yield f"{problem}; {_owner_remedy()}"
    if (problem := _open_folder(folder, _WRITABLE)) is not None:
        yield f"{problem}; chmod go-w it"


def _open_folder(folder: Path, forbidden: int) -> str | None:
    info = _info(folder)
    if info is None or not info.st_mode & forbidden or info.st_mode & stat.S_ISVTX:
        return None
    is_mounted_read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
    return None if is_mounted_read_only else _open_to(info, _WRITABLE)


def _info(path: Path) -> os.stat_result | None:
    try:
        return os.stat(path)
    except OSError:
        return None


def _foreign(info: os.stat_result) -> str | None:
    return None if info.st_uid in (0, os.geteuid()) else f"belongs to another user (uid {info.st_uid})"


def _owner_remedy() -> str:
    """Return the remedy for another user's file. If root took it over, that user's processes could not use it."""
    return "run this process as that user" if os.geteuid() == 0 else "chown it to the user of this process"


def _open_to(info: os.stat_result, forbidden: int) -> str:
    found = info.st_mode & forbidden
    verbs = [verb for verb, bits in (("read", 0o044), ("written", _WRITABLE), ("run", 0o011)) if found & bits]
    return f"may be {' and '.join(verbs)} by others (mode {stat.S_IMODE(info.st_mode):o})"


def _report(problem: str, tolerated: bool) -> None:
    if not tolerated:
        raise ConfigurationError(problem)
    _warn(problem)


def _warn(text: str) -> None:
    if text not in _logged:
        _logged.add(text)
        _log.warning("%s", text)
