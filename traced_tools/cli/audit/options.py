"""The options that several commands have, and what their words mean."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from traced_tools.audit.reading.queries import DECISIONS, STATES

_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _check_store(store: str) -> str:
    if not store:
        raise typer.BadParameter("name a file, or a server's URL")
    return store


Store = Annotated[
    str,
    typer.Option(
        metavar="PATH_OR_URL",
        envvar="TRACED_TOOLS_AUDIT_STORE",
        help="The trail: a file, or a server's URL.",
        callback=_check_store,
    ),
]
Tool = Annotated[str | None, typer.Option(help="Calls of this tool.")]
Outcome = Annotated[str | None, typer.Option(help=f"Calls that ended so: {', '.join(STATES)}.")]
Decision = Annotated[str | None, typer.Option(help=f"Calls this was decided about: {', '.join(DECISIONS)}.")]
Agent = Annotated[str | None, typer.Option(help="Calls of this agent.")]
Conversation = Annotated[str | None, typer.Option(help="Calls of this conversation.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="KEY=VALUE", help="Calls of runs with this attribute; may be repeated."),
]
Since = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Not before: 2026-07-01T12:00+02:00 (UTC without a zone), or 2h, 7d ago."),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Before; as --since.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The checkpoints outside it.  [default: STORE.checkpoints]"),
]
PublicKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The Ed25519 key that must have signed all checkpoints.")
]
ArchivedBefore = Annotated[
    str | None, typer.Option(metavar="TIME", help="Records older than this were archived, and may be missing.")
]
Verified = Annotated[
    bool, typer.Option("--verified", help="Verify the trail, and show nothing but the records that were verified.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def parse_attributes(given: list[str] | None) -> dict[str, str]:
    """Return the attributes that `--attribute` asks for; raises `typer.BadParameter` for one that is none."""
    found: dict[str, str] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise typer.BadParameter("an attribute is KEY=VALUE, such as tenant=acme", param_hint="--attribute")
        found[key] = value
    return found


def parse_period(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Return the times that `--since` and `--until` stand for.

    Raises:
        typer.BadParameter: when one is none, or nothing can be between them.
    """
    first, last = parse_time(since, "--since"), parse_time(until, "--until")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter("it is after --until", param_hint="--since")
    return first, last


def parse_time(text: str | None, option: str) -> datetime | None:
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
        problem = "a time is ISO 8601, such as 2026-07-01T12:00Z, or a span such as 2h or 7d"
        raise typer.BadParameter(problem, param_hint=option) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
