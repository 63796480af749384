"""What a forked child must begin anew: it has none of its parent's threads, and may inherit a lock that is held.

And what is done at the end of a process, which is another one for such a child.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Final, cast

_LOG = logging.getLogger(__name__)
_LATE: Final = -10
"""Has it done in a child of `multiprocessing` when its queues and its own children are done, which may still record."""
_begins: Final[dict[int, tuple[weakref.ref[Any], Callable[[Any], None]]]] = {}
"""Objects and their methods, in order; each entry goes with its object."""
_ends: Final[set[Callable[[], None]]] = set()
_ends_of_child: Final[set[Callable[[], None]]] = set()
"""What `multiprocessing` was told of in this process."""


def on_fork(action: Callable[[], None]) -> None:
    """Have a bound method called in forked children, in the order of these calls, for as long as its object lives."""
    method = cast(MethodType, action)
    weak = weakref.ref(method.__self__, _forget)
    _begins[id(weak)] = weak, method.__func__


def _forget(gone: weakref.ref[Any], begins: dict[int, Any] = _begins) -> None:  # which outlives the module's names
    begins.pop(id(gone), None)


def at_end(action: Callable[[], None]) -> None:
    """Have a function called when the process ends, before what is registered so far, such as its telemetry.

    To be asked for when the module is imported, and again when there is something to do: what is registered while the
    process ends is not called. It may be called more than once.
    """
    if action not in _ends:
        _ends.add(action)
        atexit.register(partial(action))  # which `unregister` leaves where it is
    atexit.unregister(action)
    atexit.register(action)
    _at_end_of_child(action)


def _at_end_of_child(action: Callable[[], None]) -> None:
    """Tell `multiprocessing`, in a child of its own, where before Python 3.13 nobody does what `atexit` was told."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None or action in _ends_of_child:
        return
    _ends_of_child.add(action)
    util.Finalize(None, action, exitpriority=_LATE)


def _in_child() -> None:
    _ends_of_child.clear()  # what its parent told it before, `multiprocessing` forgets in a child
    for weak, action in [*_begins.values()]:
        if (alive := weak()) is not None:
            _quietly(partial(action, alive), action.__qualname__)


def _quietly(action: Callable[[], None], name: str) -> None:
    try:
        action()
    except BaseException as error:  # whatever it is, the others must begin anew as well
        _LOG.warning("in a forked child %s raised %s", name, type(error).__name__)


if hasattr(os, "register_at_fork"):  # after `threading` and `logging` have done so, which are imported above
    os.register_at_fork(after_in_child=_in_child)
