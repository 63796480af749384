"""Ids that sort by time."""

from __future__ import annotations

import time
from random import Random
from typing import Final
from uuid import UUID

from traced_tools.core.fork import on_fork

_VERSION_AND_VARIANT: Final = 0x7 << 76 | 0b10 << 62
_RANDOM: Final = Random()
"""A private generator, so that ids don't repeat if an application seeds Python's shared one.

It asks the system for randomness once, for its seed. Asking for each id would release the interpreter's lock each time.
"""


def time_ordered_id() -> str:
    """Return a UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, 12 bits of their fraction, random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = (rest << 12) // 1_000_000
    bits = milliseconds << 80 | _VERSION_AND_VARIANT | fraction << 64 | _RANDOM.getrandbits(62)
    text = bits.to_bytes(16, "big").hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def time_of_id(text: object) -> int | None:
    """Return the Unix milliseconds in a UUID of version 7; None for any other value."""
    try:
        uuid = UUID(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return None if uuid is None or uuid.version != 7 else uuid.int >> 80


on_fork(_RANDOM.seed)
