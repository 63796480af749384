"""What can travel to another process."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def picklable(value: T) -> T | None:
    """Return `value`, or None if it cannot be pickled and unpickled; many exceptions cannot."""
    import pickle  # imported here: most processes never need it

    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return None
    return value
