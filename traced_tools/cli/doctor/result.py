"""The result of a check, and texts of it without secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit


class State(StrEnum):
    """What a check has found out."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Result:
    """What a check says about one subject. No field may hold a key, the value of a header or a query.

    Args:
        group: the heading that the result is printed under.
        subject: what was checked.
        state: whether it is in order.
        text: what was found out.
        advice: what to do about it; empty if nothing has to be done.
        date: the header `Date` of an answer, for the check of the clock.
        received: when the answer came, by this machine's clock.
        details: further fields for programs.
    """

    group: str
    subject: str
    state: State
    text: str
    advice: str = ""
    date: str | None = None
    received: datetime = field(default_factory=lambda: datetime.now(UTC))
    details: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        fields = {"group": self.group, "subject": self.subject, "state": str(self.state), "text": self.text}
        return fields | ({"advice": self.advice} if self.advice else {}) | dict(self.details)


@dataclass(frozen=True)
class Check:
    """A check that may wait for an answer.

    Args:
        group: the heading of its result.
        subject: what is checked.
        run: returns the results; blocks.
    """

    group: str
    subject: str
    run: Callable[[], Iterable[Result]]


def plain_url(url: str) -> str:
    """Return a URL without its user, password, query and fragment."""
    scheme = url.partition("://")[0] + "://" if "://" in url else ""
    try:
        parts = urlsplit(url if scheme else f"//{url}")
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname or ""
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        return "(an invalid URL)"
    return f"{scheme}{host}{port}{parts.path}" if host else "(an invalid URL)"
