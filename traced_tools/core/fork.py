"""What a process does around a fork and at its exit.

A forked child has none of its parent's threads, may inherit a lock that another thread holds, and ends without what
`atexit` registered if `multiprocessing` started it.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any, Final

Action = Callable[[], None]

_LOG = logging.getLogger(__name__)
_LATE: Final = -10
"""Exit priority in a child of `multiprocessing`: after its queues and its own children, which may still record."""
_LAST: Final = _LATE - 1
"""Exit priority of what exit handlers still record with."""
_in_child: Final[dict[int, Callable[[], Action | None]]] = {}
"""In order of registration: what returns an action, or None if the action's object is gone."""
_before: Final[list[Action]] = []
_in_parent: Final[list[Action]] = []
_exit_handlers: Final[set[Action]] = set()
_finalized: Final[set[Action]] = set()
"""Exit handlers that `multiprocessing` has in this process."""


def on_fork(action: Action, *, before: Action | None = None, in_parent: Action | None = None) -> None:
    """Call `action` in each forked child, in order of registration.

    Args:
        action: a function, or a bound method, which is called for as long as its object lives and does not keep it.
        before: a function that the forking thread calls before the fork.
        in_parent: a function that the forking thread calls in the parent after the fork.
    """
    if isinstance(action, MethodType):
        weak = weakref.ref(action.__self__, _forget)  # `WeakMethod` fails when the interpreter has cleared its module
        _in_child[id(weak)] = partial(_bound, weak, action.__func__)
    else:
        _in_child[id(action)] = lambda: action
    _before.extend([before] if before else [])
    _in_parent.extend([in_parent] if in_parent else [])


def _bound(weak: weakref.ref[Any], function: Callable[[Any], None]) -> Action | None:
    owner = weak()
    return None if owner is None else MethodType(function, owner)


def _forget(gone: object, actions: dict[int, Any] = _in_child) -> None:  # a default outlives the module's names
    actions.pop(id(gone), None)


def register_exit_handler(action: Action) -> None:
    """Call a function at the exit of the process, before what is registered so far, such as the shutdown of telemetry.

    Register it when its module is imported, and again when there is something to do, because what is registered while
    the process exits is not called. The function may be called more than once.
    """
    if action not in _exit_handlers:
        _exit_handlers.add(action)
        atexit.register(partial(action))  # which `unregister` leaves where it is
    atexit.unregister(action)
    atexit.register(action)
    _register_with_multiprocessing(action)


def _register_with_multiprocessing(action: Action) -> None:
    """Register an exit handler in a child of `multiprocessing`, which calls none of `atexit` before Python 3.13."""
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None or process.parent_process() is None or action in _finalized:
        return
    _finalized.add(action)
    util.Finalize(None, action, exitpriority=_LATE)


def register_shutdown(owner: object, action: Action) -> None:
    """Call a function last at the exit of this process if it is a child of `multiprocessing`, and of its own children.

    Call this in a forked child, too, because `multiprocessing` may be imported only after the first call. When a child
    begins its work, `multiprocessing` forgets what it inherited, and then calls what is registered for after a fork.

    Args:
        owner: the object whose method `action` is.
        action: the function, which may be called more than once.
    """
    util, process = sys.modules.get("multiprocessing.util"), sys.modules.get("multiprocessing.process")
    if util is None or process is None:
        return
    if process.parent_process() is not None:
        util.Finalize(None, action, exitpriority=_LAST)
    util.register_after_fork(owner, lambda _: util.Finalize(None, action, exitpriority=_LAST))


class ForkSafeLock:
    """A lock that a forked child finds open, whichever thread of its parent holds it."""

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._reset()
        on_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def _call_in_child() -> None:
    _finalized.clear()  # `multiprocessing` forgets in a child what its parent registered
    _call_each([action for get_action in [*_in_child.values()] if (action := get_action()) is not None])


def _call_each(actions: list[Action]) -> None:
    for action in actions:
        try:
            action()
        except BaseException as error:  # the others are called nevertheless
            _LOG.warning("at a fork %s raised %s", action.__qualname__, type(error).__name__)


if hasattr(os, "register_at_fork"):  # in a child after `threading` and `logging`, which are imported above
    os.register_at_fork(
        before=partial(_call_each, _before),
        after_in_parent=partial(_call_each, _in_parent),
        after_in_child=_call_in_child,
    )
