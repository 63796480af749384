"""Ids of parameters that are the same in every process."""

from __future__ import annotations

import re


def stable_id(value: object) -> str:
    """Return the id of a test's parameter: its `repr` without addresses, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
