"""The check of this machine's clock, by the dates of the answers of servers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from traced_tools.cli.doctor.result import Result, State

_GROUP: Final = "clock"
_MOST: Final = 5.0
"""Seconds of skew that are in order. A `Date` has whole seconds, and an answer takes time."""


def check_clock(results: Iterable[Result]) -> Iterator[Result]:
    """Yield how far the clock is from that of each server that has sent a date with its answer."""
    for result in results:
        try:
            date = parsedate_to_datetime(result.date or "")
        except ValueError:
            continue
        skew = (result.received - (date if date.tzinfo else date.replace(tzinfo=UTC))).total_seconds()
        subject = f"{result.group} {result.subject}"
        if abs(skew) <= _MOST:
            yield Result(_GROUP, subject, State.OK, f"its clock and this one differ by less than {_MOST:.0f} seconds")
        else:
            text = f"this machine's clock is {abs(skew):,.0f} seconds {'ahead of' if skew > 0 else 'behind'} its clock"
            yield Result(
                _GROUP, subject, State.NOTE, text, "synchronize the clocks, else spans of a trace do not line up"
            )
