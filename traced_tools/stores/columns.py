"""Times as databases can store them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


def microseconds(time: datetime) -> int:
    """Return a time as microseconds of Unix time."""
    return (time - _EPOCH) // _MICROSECOND


def unix_microseconds() -> int:
    """Return the time in microseconds of Unix time."""
    return microseconds(datetime.now(UTC))


def time_of(microseconds: int) -> datetime:
    """Return the time, in UTC, of microseconds of Unix time."""
    return _EPOCH + timedelta(microseconds=microseconds)
