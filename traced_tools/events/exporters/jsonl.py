"""An event exporter that writes a file with one line of JSON per event."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Literal

from traced_tools.core.checks import expect_positive, expect_whole
from traced_tools.errors import ConfigurationError
from traced_tools.events.exporter import EventExporter, ExportFailed
from traced_tools.events.exporters.event_file import NO_ROTATION, EventFile, Rotation
from traced_tools.observe.typed_events.types import Event


class JsonLinesExporter(EventExporter):
    """Appends events to a file, each as one line of JSON in ASCII, without fields that are None.

    A batch is written completely or not at all, so that a retry does not duplicate lines. Several processes may write
    the same file if the system has `flock`. If the file was renamed or removed, for example by logrotate, the next
    batch creates it again; no signal is needed. A killed process may leave a last line without a line end. If that line
    is complete, it gets its end; else it is moved to `<path>.torn`, counted in `torn` and logged. New files have mode
    0600; existing files keep theirs.

    A full file is renamed to `<stem>-<time in UTC><suffix>`, such as `events-20250131T235959.000000Z.jsonl`, when the
    next batch is written. A batch is never split, so a file exceeds `max_bytes` if its first batch does.

    Args:
        path: the path of the file. Its folder must exist.
        max_bytes: the maximum size of a file; None for no limit.
        max_age: the maximum age of a file's first event in seconds; None for no limit.
        keep: the number of full files that are kept, newest first; None for all.
        fsync: `batch` waits until each batch is on disk before it counts as sent. `never` leaves this to the operating
            system: a crash of the system may lose events, a crash of the process does not.

    Raises:
        ConfigurationError: the file cannot be written, or options contradict each other.
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
        """The number of incomplete lines that were moved to `<path>.torn`."""
        return self._file.torn

    def export(self, events: Sequence[Event]) -> None:
        """Append events; raises a retryable `ExportFailed` if the file cannot be written."""
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
    """Return an open file of events; raises a `ConfigurationError` with the argument's name if that fails."""
    try:
        return EventFile(path, rotation, fsync=fsync)
    except OSError as error:
        problem = f"{argument} must be a writable file; {os.fspath(path)} is not ({errno_name(error)})"
    raise ConfigurationError(problem)


def errno_name(error: OSError) -> str:
    """Return the symbolic name of an error, such as `ENOSPC`."""
    return errno.errorcode.get(error.errno or 0, type(error).__name__)


def _rotation(max_bytes: int | None, max_age: float | None, keep: int | None) -> Rotation:
    if max_bytes is not None:
        expect_whole("max_bytes", max_bytes, 1)
    expect_positive("max_age", max_age)
    if keep is not None:
        expect_whole("keep", keep, 1)
        if max_bytes is None and max_age is None:
            raise ConfigurationError("keep= needs max_bytes= or max_age=: without them no file is ever full")
    return Rotation(max_bytes, max_age, keep)
