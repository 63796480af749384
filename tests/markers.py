"""A text that stands for content, and a search for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MARKER = "mArKeR-7f3a"


def everything(value: object) -> str:
    """Return all text reachable in `value`, for searches."""
    if isinstance(value, Mapping):
        return " ".join(f"{key!r} {everything(item)}" for key, item in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return " ".join(everything(item) for item in value)
    return f"{value!s} {value!r}"
