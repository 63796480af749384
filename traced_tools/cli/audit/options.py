"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Final

import typer

from traced_tools.audit.reading.principals import PrincipalFilter
from traced_tools.audit.reading.queries import DECISIONS, STATES, CallFilter

_SPAN: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def _not_empty(store: str) -> str:
    if not store:
        raise typer.BadParameter("pass the path of an SQLite file or a database URL")
    return store


Store = Annotated[
    str,
    typer.Option(
        metavar="PATH_OR_URL",
        envvar="TRACED_TOOLS_AUDIT_STORE",
        help="The audit trail: an SQLite file or a database URL.",
        callback=_not_empty,
    ),
]
Tool = Annotated[str | None, typer.Option(help="Only calls of this tool.")]
Outcome = Annotated[str | None, typer.Option(help=f"Only calls with this outcome: {', '.join(STATES)}.")]
Decision = Annotated[str | None, typer.Option(help=f"Only calls with this decision: {', '.join(DECISIONS)}.")]
Agent = Annotated[str | None, typer.Option(help="Only calls of this agent.")]
Conversation = Annotated[str | None, typer.Option(help="Only calls of this conversation.")]
Call = Annotated[str | None, typer.Option(metavar="ID", help="Only calls with this id, in any run.")]
Principal = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Only calls on behalf of this principal: a name, which needs the key of the trail, or pseudonym:... as "
        "list and show print it. Calls are read one by one.",
    ),
]
PolicyDigest = Annotated[
    str | None,
    typer.Option(metavar="DIGEST", help="Only calls that the policy with this digest decided; see `policy check`."),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", metavar="KEY=VALUE", help="Only calls of runs with this attribute. Repeatable."),
]
Since = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Inclusive start time: 2026-07-01T12:00+02:00 (UTC without a zone), or a time span before now (2h, 7d).",
    ),
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="Exclusive end time; same formats as --since.")]
Checkpoints = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="The checkpoint file outside the store.  [default: STORE.checkpoints]"),
]
PublicKey = Annotated[
    Path | None, typer.Option(metavar="FILE", help="The Ed25519 public key that all checkpoints must be signed with.")
]
ArchivedBefore = Annotated[
    str | None, typer.Option(metavar="TIME", help="Records before this time were archived and may be missing.")
]
Verified = Annotated[bool, typer.Option("--verified", help="Verify the trail first, and show only verified records.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def call_filter(
    tool: str | None,
    outcome: str | None,
    decision: str | None,
    agent: str | None,
    conversation: str | None,
    since: str | None,
    until: str | None,
    attribute: list[str] | None,
    call: str | None,
    principal: str | None,
    policy_digest: str | None,
    *,
    store: str,
) -> CallFilter:
    """Return the filter that the options of the same names ask for, for the calls of `store`.

    Raises:
        typer.BadParameter: for a value that an option does not accept.
        ConfigurationError: for an unknown outcome or decision, an invalid digest, or if there is no key for the name of
            a principal.
    """
    first, last = parse_period(since, until)
    attributes = _parse_attributes(attribute)
    principal_filter = None if principal is None else PrincipalFilter(principal, store)
    return CallFilter(
        *(tool, outcome, decision, agent, conversation, first, last, attributes, call, principal_filter),
        policy_digest=policy_digest,
    )


def _parse_attributes(attributes: list[str] | None) -> dict[str, str]:
    values: dict[str, str] = {}
    for attribute in attributes or ():
        key, equals, value = attribute.partition("=")
        if not key or not equals:
            raise typer.BadParameter("pass KEY=VALUE, such as tenant=acme", param_hint="--attribute")
        values[key] = value
    return values


def parse_period(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Return the times given by `--since` and `--until`.

    Raises:
        typer.BadParameter: for an invalid time, or if `--since` is later than `--until`.
    """
    first, last = parse_time(since, "--since"), parse_time(until, "--until")
    if first is not None and last is not None and first > last:
        raise typer.BadParameter("--since is later than --until", param_hint="--since")
    return first, last


def parse_time(text: str | None, option: str) -> datetime | None:
    """Return the time that a text gives: ISO 8601, in UTC if it has no zone, or a time span before now.

    Raises:
        typer.BadParameter: for any other text.
    """
    if text is None:
        return None
    try:
        if span := _SPAN.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{_UNITS[span[2]]: int(span[1])})
        time = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        problem = "pass an ISO 8601 time, such as 2026-07-01T12:00Z, or a time span, such as 2h or 7d"
        raise typer.BadParameter(problem, param_hint=option) from None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
