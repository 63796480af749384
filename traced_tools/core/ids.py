"""Ids that sort by time."""

from __future__ import annotations

import time
from random import Random
from typing import Final
from uuid import UUID

from traced_tools.core.fork import on_fork

_VERSION_AND_VARIANT: Final = 0x7 << 76 | 0b10 << 62
_RANDOM: Final = Random()
"""Of our own, so that a seed the application sets makes no ids that were there before.

The system is asked once, for the seed: asked for each id, it would each time let go of the interpreter's lock.
"""


def time_ordered_id() -> str:
    """Return a UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, 12 of their fraction, then random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    bits = milliseconds << 80 | _VERSION_AND_VARIANT | fraction << 64 | _RANDOM.getrandbits(62)
    text = bits.to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def time_of_id(text: object) -> int | None:
    """Return the Unix milliseconds that an id of version 7 holds; None for any other value."""
    try:
        found = UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if found is None or found.version != 7 else found.int >> 80


on_fork(_RANDOM.seed)
