"""Records that were taken out of a store since they are old: what may be missing without anything being wrong."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from traced_tools.audit.reading.queries import storable_nanoseconds
from traced_tools.audit.records import timestamp
from traced_tools.core.ids import time_of_id
from traced_tools.errors import ConfigurationError

_DISORDER: Final = 60 * 10**9
"""Nanoseconds by which the times of a chain's neighbours may differ from their order."""


class ArchiveCutoff:
    """What may be archived, and what was taken as such.

    Args:
        before: everything that is older may be missing.

    Attributes:
        records: missing ones of chains that are there.
        chains: missing ones.

    Raises:
        ConfigurationError: for a time without a zone.
    """

    def __init__(self, before: datetime) -> None:
        if before.tzinfo is None:
            raise ConfigurationError("archived_before has no time zone; datetime.now(UTC) has")
        self._before: Final = storable_nanoseconds(before)
        self._told: Final = timestamp(self._before)
        self.records = 0
        self.chains = 0

    def is_near(self, time: object) -> bool:
        """Whether a record is so old that those before it in its chain may be older than what is kept."""
        return isinstance(time, int) and time < self._before + _DISORDER

    def may_hold(self, chain_id: object, told: Mapping[int, object]) -> bool:
        """Whether missing records of a chain may be archived.

        Not if the chain began later, which its id tells, nor if a record is missing that is not so old.

        Args:
            chain_id: the chain.
            told: the times of missing records that lines outside the store are about, by their numbers.
        """
        began = time_of_id(chain_id)
        if began is not None and began * 1_000_000 >= self._before:
            return False
        return all(isinstance(time, str) and time < self._told for time in told.values())

    def note(self) -> str | None:
        """Return what was taken as archived."""
        if not self.records and not self.chains:
            return None
        whole = "chain" if self.chains == 1 else "chains"
        return f"taken as archived before {self._told}: {self.records} records, and {self.chains} whole {whole}"
