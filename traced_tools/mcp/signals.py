"""SIGINT and SIGTERM of a process that serves tools: they end the server, and leave its forked children as they were.

A forked child inherits asyncio's handlers, the socket by which they wake the event loop, and the selector and the
connections of the loop. A signal for such a child would end the server and not the child.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from traced_tools.core.fork import on_fork
from traced_tools.flow.workers import finished_future, let_go

_ENDING: Final = (signal.SIGINT, signal.SIGTERM)
_loops: Final[set[asyncio.AbstractEventLoop]] = set()
"""The event loops on which this process serves."""
_handlers: Final[dict[signal.Signals, Any]] = {}
"""What handles the signals in this process when it does not serve; empty while it does not."""
_before_fork: Final = threading.local()


def run_until_signal(begin: Callable[[], Awaitable[None]]) -> None:
    """Await `begin()` on an event loop of its own. SIGINT and SIGTERM cancel it, and a second signal does so again."""
    in_main = threading.current_thread() is threading.main_thread()
    handlers = {signum: signal.getsignal(signum) or signal.SIG_DFL for signum in _ENDING if in_main}
    _handlers.update(handlers)
    try:
        asyncio.run(_until_signal(begin, handlers))
    finally:
        for signum in handlers:
            del _handlers[signum]


async def _until_signal(begin: Callable[[], Awaitable[None]], signals: Iterable[signal.Signals]) -> None:
    task, interrupted = asyncio.create_task(finished_future(begin)), asyncio.Event()
    loop = asyncio.get_running_loop()

    def interrupt() -> None:
        interrupted.set()
        task.cancel()

    for signum in signals:
        with suppress(ValueError, RuntimeError, NotImplementedError):  # not on this system
            loop.add_signal_handler(signum, interrupt)
    _loops.add(loop)
    try:
        await asyncio.wait([task])
    finally:
        _loops.discard(loop)
    if not interrupted.is_set():  # after an interrupt, pending messages fail in the SDK, which is expected
        task.result().result()


# Between the fork and `_separate_child`, a signal for the child waits.


def _block_signals() -> None:
    _before_fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _handlers) if _handlers else None


def _unblock_signals() -> None:
    if _before_fork.mask is not None:
        signal.pthread_sigmask(signal.SIG_SETMASK, _before_fork.mask)


def _separate_child() -> None:
    if _handlers:
        signal.set_wakeup_fd(-1)
    for signum, handler in _handlers.items():
        signal.signal(signum, handler)
    _handlers.clear()
    for loop in _loops:
        let_go(loop)
    _loops.clear()
    _unblock_signals()


on_fork(_separate_child, before=_block_signals, in_parent=_unblock_signals)
