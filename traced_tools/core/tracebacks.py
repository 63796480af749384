"""Shortens the tracebacks of errors that leave a run: the application's frames and the package's last frame remain.

Between two functions of the application, a run has a dozen frames of this package, always the same ones. With
`TRACED_TOOLS_DEBUG=1` in the environment, tracebacks keep them.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

from traced_tools.core.variables import DEBUG as DEBUG

ON: Final = ("1", "true")
"""The values, in lower case, that switch a boolean environment variable of this package on."""
_PACKAGE: Final = __name__.partition(".")[0]

# the descriptors: an error's class may forbid setting the attributes, as a frozen dataclass does, or shadow them
_FIELDS: Final = vars(BaseException)
_TRACEBACK, _CAUSE, _CONTEXT = (_FIELDS[name] for name in ("__traceback__", "__cause__", "__context__"))
_SUPPRESSES_CONTEXT = _FIELDS["__suppress_context__"]


def is_debugging() -> bool:
    """Return whether `TRACED_TOOLS_DEBUG` is on: full tracebacks, and exception texts in the log."""
    return os.environ.get(DEBUG, "").strip().lower() in ON


def shorten_traceback(error: BaseException) -> None:
    """Remove this package's frames except the last from the traceback of `error` and of its causes and contexts."""
    visited: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in visited:
        visited.add(id(link))
        _TRACEBACK.__set__(link, _shorten(traceback_of(link)))
        link = _CAUSE.__get__(link) or (None if _SUPPRESSES_CONTEXT.__get__(link) else _CONTEXT.__get__(link))


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error, even if its class shadows `__traceback__`."""
    traceback: TracebackType | None = _TRACEBACK.__get__(error)
    return traceback


def _shorten(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    last_own = max((place for place, entry in enumerate(entries) if _is_own(entry)), default=0)
    shortened = None
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if place == last_own or not _is_own(entry):
            shortened = TracebackType(shortened, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shortened


def _is_own(entry: TracebackType) -> bool:
    module = str(entry.tb_frame.f_globals.get("__name__", ""))
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
