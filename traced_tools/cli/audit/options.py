"""Options that several commands share, and the parsing of their values."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

import typer

from traced_tools.audit.reading.queries import DECISIONS, STATES, CallFilter, CallSelection
from traced_tools.core.variables import AUDIT_STORE

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
        envvar=AUDIT_STORE,
        help="The audit trail: an SQLite file or a database URL.",
        callback=_not_empty,
    ),
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


@dataclass(frozen=True, slots=True)
class CallOptions:
    """The options that select calls, as they are on the command line."""

    tool: Annotated[str | None, typer.Option(help="Only calls of this tool.")] = None
    outcome: Annotated[str | None, typer.Option(help=f"Only calls with this outcome: {', '.join(STATES)}.")] = None
    decision: Annotated[str | None, typer.Option(help=f"Only calls with this decision: {', '.join(DECISIONS)}.")] = None
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.")] = None
    conversation: Annotated[str | None, typer.Option(help="Only calls of this conversation.")] = None
    call: Annotated[str | None, typer.Option(metavar="ID", help="Only calls with this id, in any run.")] = None
    policy_digest: Annotated[
        str | None,
        typer.Option(metavar="DIGEST", help="Only calls that the policy with this digest decided; see `policy check`."),
    ] = None
    attribute: Annotated[
        list[str] | None,
        typer.Option("--attribute", metavar="KEY=VALUE", help="Only calls of runs with this attribute. Repeatable."),
    ] = None
    principal: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only calls on behalf of this principal: a name, which needs the key of the trail, or pseudonym:... "
            "as list and show print it. Calls are read one by one.",
        ),
    ] = None
    since: Since = None
    until: Until = None

    def filter(self, store: str) -> CallFilter:
        """Return the filter that the options ask for, for the calls of `store`.

        Raises:
            typer.BadParameter: for a value that an option does not accept.
            ConfigurationError: for an unknown outcome or decision, an invalid digest, or if there is no key for the
                name of a principal.
        """
        since, until = parse_period(self.since, self.until)
        selection: CallSelection = {
            "tool": self.tool,
            "outcome": self.outcome,
            "decision": self.decision,
            "agent": self.agent,
            "conversation": self.conversation,
            "since": since,
            "until": until,
            "attributes": _parse_attributes(self.attribute),
            "call_id": self.call,
            "principal": self.principal,
            "policy_digest": self.policy_digest,
        }
        return CallFilter.of(selection, store)


def selecting_calls(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `CallOptions` in the place of its argument `selection`, which it gets whole.

    Typer finds the options of a command in its signature, so the signature has one parameter for each of them.
    """
    names = [field.name for field in fields(CallOptions)]
    annotations = get_type_hints(CallOptions, include_extras=True)
    signature = inspect.signature(command, eval_str=True)
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        if parameter.name == "selection":
            options = (parameter.replace(name=name, default=None, annotation=annotations[name]) for name in names)
            parameters += options
        else:
            parameters.append(parameter)

    @wraps(command)
    def run(**values: Any) -> None:
        command(selection=CallOptions(**{name: values.pop(name) for name in names}), **values)

    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


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
