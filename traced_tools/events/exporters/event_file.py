"""A file of events, one per line, that several processes may append to and that survives crashes of its writers.

A writer holds a lock on the file (`flock`, if the system has it) and first checks three things: whether the file is
still at its path, whether its last line is complete, and whether it must be rotated. Either all lines of a call are
written, or none.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from traced_tools.core.disk import PRIVATE, sync_folder
from traced_tools.core.file_access import warn_of_access
from traced_tools.observe.typed_events.types import Event

try:
    import fcntl
except ImportError:  # not POSIX: only one process may write a file
    fcntl = None  # type: ignore[assignment]

_LOG = logging.getLogger(__name__)
_CHUNK = 65_536
_TIME = re.compile(rb'"time":"([^"]{1,64})"')
"""The time of an event, which is near the beginning of its line."""
_MICROSECOND = timedelta(microseconds=1)


class Rotation(NamedTuple):
    """When a file is rotated, and how many rotated files are kept.

    Attributes:
        max_bytes: the size above which the file is rotated; None for no limit.
        max_age: the age of its first event, in seconds, from which the file is rotated; None for no limit.
        keep: the number of rotated files that are kept; None for all.
    """

    max_bytes: int | None = None
    max_age: float | None = None
    keep: int | None = None


NO_ROTATION = Rotation()


class EventFile:
    """Appends events to a file, which it opens, or creates, immediately.

    Args:
        path: the path of the file.
        rotation: when the file is rotated.
        fsync: whether each call waits until the events are on disk.

    Attributes:
        path: the path of the file, with symbolic links resolved.
        torn: the number of incomplete lines that were moved to another file.

    Raises:
        OSError: the file cannot be opened or created.
    """

    def __init__(self, path: str | os.PathLike[str], rotation: Rotation = NO_ROTATION, *, fsync: bool = True) -> None:
        self.path = Path(os.path.realpath(path))
        self.torn = 0
        self._rotation = rotation
        self._fsync = fsync
        self._file: io.FileIO | None = None
        self._pid = os.getpid()
        with self._locked():
            pass

    def append(self, events: Sequence[Event]) -> None:
        """Append events, all of them or none; raises `OSError`."""
        lines = "".join(f"{event_json(event)}\n" for event in events).encode()
        with self._locked() as file:
            if not self._is_full(file, len(lines)):
                return self._write(file, lines)
            self._rotate()
        with self._locked() as file:
            self._write(file, lines)

    def close(self) -> None:
        """Close the file. The next `append` opens it again."""
        file, self._file = self._file, None
        if file is not None:
            file.close()

    @contextmanager
    def _locked(self) -> Iterator[io.FileIO]:
        """Hold the lock on the file that is currently at the path."""
        file = self._open_file()
        while True:
            _lock(file)
            if self._is_at_path(file):
                break
            self.close()  # this also releases the lock; another process has renamed or removed the file
            file = self._open_file()
        try:
            self._repair_last_line(file)
            yield file
        finally:
            _unlock(file)

    def _open_file(self) -> io.FileIO:
        if self._pid != os.getpid():  # otherwise parent and child would hold the same lock
            self.close()
            self._pid = os.getpid()
        if self._file is None:
            self._file = _open(self.path)
            warn_of_access(_LOG, "the events", self.path)
            if self._fsync and _size(self._file) == 0:
                sync_folder(self.path.parent)
        return self._file

    def _is_at_path(self, file: io.FileIO) -> bool:
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(file.fileno()))
        except FileNotFoundError:
            return False

    def _write(self, file: io.FileIO, lines: bytes) -> None:
        before = _size(file)
        try:
            _write_all(file, lines)
            if self._fsync:
                os.fsync(file.fileno())
        except BaseException:
            file.truncate(before)  # the same events will be appended again
            raise

    # The last line.

    def _repair_last_line(self, file: io.FileIO) -> None:
        """Complete the last line of a killed process, or move it to another file if it is incomplete."""
        size = _size(file)
        if size == 0 or _read(file, size - 1, 1) == b"\n":
            return
        start = _start_of_last_line(file, size)
        line = _read(file, start, size - start)
        if _is_json(line):
            _write_all(file, b"\n")
            return
        aside = self.path.with_name(f"{self.path.name}.torn")
        with _open(aside) as torn:
            _write_all(torn, line + b"\n")
        file.truncate(start)
        self.torn += 1
        _LOG.warning(
            "%s ended with an incomplete line, as after a killed process; the line was moved to %s",
            self.path,
            aside.name,
        )

    # Rotation.

    def _is_full(self, file: io.FileIO, more: int) -> bool:
        size, rotation = _size(file), self._rotation
        if size == 0:
            return False
        if rotation.max_bytes is not None and size + more > rotation.max_bytes:
            return True
        return rotation.max_age is not None and _age(file) >= rotation.max_age

    def _rotate(self) -> None:
        """Rename the file after the current time, and remove the oldest rotated files."""
        moment = datetime.now(UTC)
        while (aside := self._name_at(moment)).exists():
            moment += _MICROSECOND
        self.path.rename(aside)
        if self._fsync:
            sync_folder(self.path.parent)
        if self._rotation.keep is not None:
            for old in self._rotated_files()[: -self._rotation.keep]:
                old.unlink(missing_ok=True)

    def _name_at(self, moment: datetime) -> Path:
        return self.path.with_name(f"{self.path.stem}-{moment:%Y%m%dT%H%M%S.%fZ}{self.path.suffix}")

    def _rotated_files(self) -> list[Path]:
        """Return the rotated files, oldest first."""
        stem, suffix = re.escape(self.path.stem), re.escape(self.path.suffix)
        name = re.compile(rf"{stem}-\d{{8}}T\d{{6}}\.\d{{6}}Z{suffix}")
        return sorted(file for file in self.path.parent.iterdir() if name.fullmatch(file.name))


def event_json(event: Event) -> str:
    """Return an event as JSON in ASCII, which contains no character that any reader takes for a line break."""
    return event.model_dump_json(exclude_none=True, ensure_ascii=True)


def _open(path: Path) -> io.FileIO:
    """Open a file for appending and reading; a new file is accessible to its owner only."""

    def opener(name: str, flags: int) -> int:
        return os.open(name, flags, PRIVATE)

    file = io.FileIO(str(path), "a+", opener=opener)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a regular file")
    return file


def _lock(file: io.FileIO) -> None:
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_EX)


def _unlock(file: io.FileIO) -> None:
    if fcntl is not None and not file.closed:
        fcntl.flock(file, fcntl.LOCK_UN)


def _size(file: io.FileIO) -> int:
    return os.fstat(file.fileno()).st_size


def _read(file: io.FileIO, start: int, size: int) -> bytes:
    file.seek(start)
    return file.read(size) or b""


def _write_all(file: io.FileIO, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[file.write(remaining) :]


def _start_of_last_line(file: io.FileIO, size: int) -> int:
    end = size
    while end > 0:
        start = max(0, end - _CHUNK)
        newline = _read(file, start, end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


def _age(file: io.FileIO) -> float:
    """Return the seconds since the first event in a file; 0 if the event has no valid time."""
    match = _TIME.search(_read(file, 0, 512))
    with suppress(ValueError):
        if match is not None:
            return time.time() - datetime.fromisoformat(match[1].decode()).timestamp()
    return 0.0
