"""Handling of a standard output that cannot be written: one line and an exit status instead of a traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

UNWRITABLE = 2
"""Exit status: standard output cannot be written. Status 1 is a verdict of `audit verify`."""

_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""The errors of a write to an open file. They are the only sign of lost output: buffers drop what they cannot write."""


@contextmanager
def whole_output() -> Iterator[None]:
    """Flush standard output at the end. If it cannot be written, print a line to standard error and exit with status 2.

    If the reader of a pipe closes it, the command ends without an error.
    """
    problem = None
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        if error.errno not in _WRITE_ERRORS or error.filename is not None:
            raise
        drop_output()
        problem = error.strerror or type(error).__name__
    if problem is not None:
        with suppress(OSError):
            print(f"traced-tools: standard output cannot be written: {problem}", file=sys.stderr)
        sys.exit(UNWRITABLE)


def drop_output() -> None:
    """Discard the output that Python would still flush at exit."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
