"""What a traceback shows of a run: the frames of the application's code, and none of the package's but the last.

Between two functions of the application stand a dozen of the package's, which are the same in every run. With
`TRACED_TOOLS_DEBUG=1` in the environment, an error that leaves a run shows them.
"""

from __future__ import annotations

import os
from types import TracebackType
from typing import Final

DEBUG: Final = "TRACED_TOOLS_DEBUG"
ON: Final = ("1", "true")
"""What a variable of the package's holds where a switch is on, in lower case."""
_PACKAGE: Final = __name__.partition(".")[0]


def is_debugging() -> bool:
    """Whether the environment asks for what helps to debug the application, exception texts in the log included."""
    return os.environ.get(DEBUG, "").strip().lower() in ON


def shorten_traceback(error: BaseException) -> None:
    """Leave the package's own frames out of the traceback of `error` and of those it came from, but for the last."""
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        each.__traceback__ = _shortened(each.__traceback__)
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)


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
