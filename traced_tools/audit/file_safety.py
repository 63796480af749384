"""Checks that other users can neither read nor replace the keys of a trail.

A process that runs as root may use files of other users. `core/file_access.py` lists the checks.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Final, Literal

from traced_tools.core.file_access import (
    WRITABLE,
    folder_problems,
    foreign,
    info_of,
    open_folder,
    open_to,
    warn_once,
)
from traced_tools.errors import ConfigurationError

KeyKind = Literal["digests", "signing", "public"]
_NAMES: Final = {"digests": "the audit key", "signing": "the signing key", "public": "the public key"}
_PRIVATE: Final = 0o077
_BY_ANYBODY: Final = 0o002
_GROUP_READS: Final = 0o040
_MOST_LINKS: Final = 40
"""The maximum number of links in a row that Linux follows."""
_log = logging.getLogger("traced_tools.audit")


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
    if (info := info_of(path)) is None:
        check_folder(path, kind)
    else:
        _check_key(path, info, kind, reading=False)


def _check_key(path: Path, info: os.stat_result, kind: KeyKind, reading: bool) -> None:
    if not stat.S_ISREG(info.st_mode):
        return
    name = f"{_NAMES[kind]} {path}"
    forbidden = WRITABLE if kind == "public" else _PRIVATE
    if kind == "signing" and info.st_uid == 0 != os.geteuid():
        forbidden &= ~_GROUP_READS
    if (problem := foreign(info)) is not None:
        tolerated = reading or kind == "public" or os.geteuid() == 0
        remedy = "" if tolerated else ": use a file that belongs to the user of this process"
        _report(f"{name} {problem}, who can change it{remedy}", tolerated)
    if info.st_mode & forbidden:
        tolerated = kind == "public" and not info.st_mode & _BY_ANYBODY
        remedy = "chmod go-w it" if kind == "public" else "chmod 600 it"
        _report(f"{name} {open_to(info, forbidden)}: {remedy}", tolerated)
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
        if (problem := open_folder(folder, _BY_ANYBODY)) is not None:
            text = f"{name} can be replaced: its folder {folder} {problem}; use a folder that only its owner can write"
            _report(text, reading)
            continue
        for problem in folder_problems(folder):
            _warn(f"{name} can be replaced: its folder {folder} {problem}")


def _folders(path: Path) -> Iterable[Path]:
    """Return the folder of a file and, if the file is a link, the folders of all files it leads to."""
    folders = {os.path.realpath(path.parent): path.parent}
    for _ in range(_MOST_LINKS):
        try:
            path = path.parent / os.readlink(path)
        except OSError:  # not a link
            break
        folder = os.path.realpath(path.parent)
        folders.setdefault(folder, Path(folder))
    return folders.values()


def _report(problem: str, tolerated: bool) -> None:
    if not tolerated:
        raise ConfigurationError(problem)
    _warn(problem)


def _warn(text: str) -> None:
    warn_once(_log, text)
