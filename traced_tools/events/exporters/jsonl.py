"""Events in a file, one per line."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Literal

from traced_tools.core.checks import expect_positive, expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.events.exporters.event_file import NO_ROTATION, EventFile, Rotation
from traced_tools.observe.event_types import Event


class JsonLinesExporter(EventExporter):
    """Appends events to a file, each as one line of JSON in ASCII, without fields that are None.

    A batch is in the file as a whole or not at all, so that one which is tried again leaves no line twice. Several
    processes may write one file, where the system has flock. A file that was renamed or removed, as by logrotate, is
    made anew for the next batch; no signal is needed. A last line without an end, as a killed process leaves it, is
    ended when it is whole; a torn one goes to `<path>.torn`, which is counted and told in the log. Files are made with
    mode 0600; those that are there keep theirs.

    A full file is renamed to `<stem>-<time in UTC><suffix>`, such as `events-20250131T235959.000000Z.jsonl`. Nothing is
    renamed before the next batch comes, and a batch is never divided: a file is larger than `max_bytes` when its first
    batch is.

    Args:
        path: of the file; its folder must be there.
        max_bytes: a file that a batch would make larger is full; None for any size.
        max_age: a file whose first event is so many seconds old is full; None for any age.
        keep: how many full files are kept, the newest ones; None for all.
        fsync: `batch` has each batch on the disk before it counts as sent; `never` leaves that to the system, which
            loses events when it crashes itself, and not when the process does.

    Raises:
        ConfigurationError: when there can be no such file, or options do not go together.
    """

    name = "jsonl"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int | None = None,
        max_age: float | None = None,
        keep: int | None = None,
        fsync: Literal["batch", "never"] = "batch",
    ) -> None:
        if fsync not in ("batch", "never"):
            raise ConfigurationError("fsync must be 'batch' or 'never'")
        rotation = _rotation(max_bytes, max_age, keep)
        self._file = open_event_file("path", path, rotation, fsync=fsync == "batch")

    @property
    def torn(self) -> int:
        """How many torn lines were set aside."""
        return self._file.torn

    def export(self, events: Sequence[Event]) -> None:
        """Append events; raises `ExportFailed`, which is worth another attempt."""
        problem = None
        try:
            self._file.append(events)
        except OSError as error:
            problem = f"events could not be written to {self._file.path} ({errno_name(error)})"
        if problem is not None:
            raise ExportFailed(problem)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_event_file(
    argument: str, path: str | os.PathLike[str], rotation: Rotation = NO_ROTATION, *, fsync: bool = True
) -> EventFile:
    """Return a file of events; raises `ConfigurationError` that names the argument when there can be none."""
    try:
        return EventFile(path, rotation, fsync=fsync)
    except OSError as error:
        problem = f"{argument} must be a file that can be written; {os.fspath(path)} is none ({errno_name(error)})"
    raise ConfigurationError(problem)


def errno_name(error: OSError) -> str:
    """Return what the system calls an error, such as `ENOSPC`."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _rotation(max_bytes: int | None, max_age: float | None, keep: int | None) -> Rotation:
    if max_bytes is not None:
        expect_whole("max_bytes", max_bytes, 1)
    expect_positive("max_age", max_age)
    if keep is not None:
        expect_whole("keep", keep, 1)
        if max_bytes is None and max_age is None:
            raise ConfigurationError("keep= counts full files, and without max_bytes= or max_age= none is ever full")
    return Rotation(max_bytes, max_age, keep)
