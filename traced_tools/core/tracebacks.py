"""Shortens the tracebacks of errors that leave a run: the application's frames and the package's last frame remain.

Between two functions of the application, a run has a dozen frames of this package, always the same ones. With
`TRACED_TOOLS_DEBUG=1` in the environment, tracebacks keep them.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

DEBUG: Final = "TRACED_TOOLS_DEBUG"
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
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        _TRACEBACK.__set__(each, _shortened(traceback_of(each)))
        each = _CAUSE.__get__(each) or (None if _SUPPRESSES_CONTEXT.__get__(each) else _CONTEXT.__get__(each))


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an error, even if its class shadows `__traceback__`."""
    found: TracebackType | None = _TRACEBACK.__get__(error)
    return found


def _shortened(traceback: TracebackType | None) -> TracebackType | None:
    entries = []
    while traceback is not None:
        entries.append(traceback)
        traceback = traceback.tb_next
    last_own = max((place for place, entry in enumerate(entries) if _is_own(entry)), default=0)
    shown = None
    for place in range(len(entries) - 1, -1, -1):
        entry = entries[place]
        if place == last_own or not _is_own(entry):
            shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def _is_own(entry: TracebackType) -> bool:
    module = str(entry.tb_frame.f_globals.get("__name__", ""))
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
