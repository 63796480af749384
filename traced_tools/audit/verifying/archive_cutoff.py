"""Which records may be missing from a store because they were archived."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from traced_tools.audit.reading.queries import storable_nanoseconds
from traced_tools.audit.records import timestamp
from traced_tools.core.ids import time_of_id
from traced_tools.errors import ConfigurationError

_DISORDER: Final = 60 * 10**9
"""Nanoseconds by which a record may be older than the record before it in the chain."""


class ArchiveCutoff:
    """The time before which records may be archived, and a count of the records that are missing for that reason.

    Args:
        before: older records may be missing.

    Attributes:
        records: how many records are missing at the beginning of chains.
        chains: how many whole chains are missing.

    Raises:
        ConfigurationError: for a time without a zone.
    """

    def __init__(self, before: datetime) -> None:
        if before.tzinfo is None:
            raise ConfigurationError(
                "archived_before has no time zone: pass a datetime with one, such as datetime.now(UTC)"
            )
        self._before: Final = storable_nanoseconds(before)
        self._timestamp: Final = timestamp(self._before)
        self.records = 0
        self.chains = 0

    def is_near(self, time: object) -> bool:
        """Whether a record is so old that the records before it in its chain may be archived."""
        return isinstance(time, int) and time < self._before + _DISORDER

    def may_hold(self, chain_id: object, times: Mapping[int, object]) -> bool:
        """Whether missing records of a chain may be archived.

        False if the chain began after the cutoff, as its id shows, or if a missing checkpoint is not old enough.

        Args:
            chain_id: the chain.
            times: the times of the missing checkpoints that have lines outside the store, by sequence number.
        """
        began = time_of_id(chain_id)
        if began is not None and began * 1_000_000 >= self._before:
            return False
        return all(isinstance(time, str) and time < self._timestamp for time in times.values())

    def note(self) -> str | None:
        """Return a note about records that are missing as archived; None if no record is."""
        if not self.records and not self.chains:
            return None
        whole = "chain" if self.chains == 1 else "chains"
        return f"taken as archived before {self._timestamp}: {self.records} records, and {self.chains} whole {whole}"
