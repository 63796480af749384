"""Ids that sort by time."""

from __future__ import annotations

import os
import time
import uuid


def time_ordered_id() -> str:
    """Return a UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, then random bits."""
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    high, low = random >> 68, random & ((1 << 62) - 1)
    return str(uuid.UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | low))
