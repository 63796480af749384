"""Numbers and statements of PostgreSQL's advisory locks."""

from __future__ import annotations

import hashlib
import json
from typing import Final

from sqlalchemy import text

LOCK: Final = text("SELECT pg_advisory_xact_lock(:number)")
"""Takes a lock until the transaction ends; waits for it if need be."""


def lock_number(*names: str | None) -> int:
    """Return the number of the lock that has these names, of 63 bits."""
    digest = hashlib.sha256(json.dumps(["traced_tools", *names]).encode()).digest()
    return int.from_bytes(digest[:8]) >> 1
