"""The options that several commands have, and what their words mean."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

import typer

from traced_tools.audit.queries import STATES
from traced_tools.audit.records import AUDIT_DECISIONS

_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}

Store = Annotated[
    str,
    typer.Option(
        metavar="PATH_OR_URL", envvar="TRACED_TOOLS_AUDIT_STORE", help="The trail: a file, or a server's URL."
    ),
]
Tool = Annotated[str | None, typer.Option(help="Calls of this tool.")]
Outcome = Annotated[str | None, typer.Option(help=f"Calls that ended so: {', '.join(STATES)}.")]
Decision = Annotated[str | None, typer.Option(help=f"Calls this was decided about: {', '.join(AUDIT_DECISIONS)}.")]
Agent = Annotated[str | None, typer.Option(help="Calls of this agent.")]
Conversation = Annotated[str | None, typer.Option(help="Calls of this conversation.")]
Since = Annotated[str | None, typer.Option(metavar="TIME", help="Not before: 2026-07-01T12:00Z, or 2h, 7d ago.")]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def time_of(text: str | None) -> datetime | None:
    """Return the time that a text stands for: ISO 8601, in UTC unless it says otherwise, or a span back from now.

    Raises:
        typer.BadParameter: when it is neither.
    """
    if text is None:
        return None
    try:
        if span := _SPAN.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise typer.BadParameter("a time is ISO 8601, such as 2026-07-01T12:00Z, or a span such as 2h or 7d") from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
