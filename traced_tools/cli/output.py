"""Standard output that cannot be written: a line and an exit status, and no traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

UNWRITABLE = 2
"""Exit status: standard output cannot be written. 1 would be a verdict of `audit verify`."""

_OF_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)
"""What a write to an open file raises. Nothing else tells: buffers drop what they could not write."""


@contextmanager
def whole_output() -> Iterator[None]:
    """Flush standard output at the end; if it cannot be written, end with a line on standard error and status 2.

    If the reader closes its end of a pipe, the command ends without a line.
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
        if error.errno not in _OF_WRITING or error.filename is not None:
            raise
        drop_output()
        problem = error.strerror or type(error).__name__
    if problem is not None:
        with suppress(OSError):
            print(f"traced-tools: standard output cannot be written: {problem}", file=sys.stderr)
        sys.exit(UNWRITABLE)


def drop_output() -> None:
    """Let what is still to be flushed when Python ends go nowhere."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
