"""What a forked child must begin anew: it has none of its parent's threads, and may inherit a lock that is held."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def on_fork(action: Callable[[], None]) -> None:
    """Have a bound method called in forked children, for as long as its object lives."""
    weak = weakref.WeakMethod(action)

    def in_child() -> None:
        if (alive := weak()) is not None:
            alive()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)
