"""The commands of `traced-tools policy`.

Exit status: 0 if nothing changes, 1 if the policy decides otherwise about a call, a call cannot be replayed or a rule
names a tool that its source does not have, 2 if the policy is invalid, the store cannot be read or the output cannot be
written.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.keys import load_key
from traced_tools.audit.reading.read_connection import embedded_path
from traced_tools.audit.reading.reader import AuditedCall, AuditReader
from traced_tools.cli.audit import options
from traced_tools.cli.audit.formatting import as_text, call_json, json_text, make_console, pluralize
from traced_tools.cli.exits import NEGATIVE, exit_statuses
from traced_tools.cli.policy.replay import Finding, Replayed, recorded_names, replay
from traced_tools.errors import ConfigurationError
from traced_tools.policy.missing_names import MissingName, missing_names
from traced_tools.policy.policy import Policy
from traced_tools.tools.toolset import SourceNames

_HEADINGS: Final = ("tool", "agent", "was", "becomes", "reason code", "calls")
_NEEDED: Final = {"principal": "the name of the principal", "principal attributes": "attributes of the principal"}
_EVALUATED_HEADINGS: Final = ("advisor", "policy", "rule", "tool", "was", "would become", "calls")

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Check policies before you use them.")


@app.command()
def check(
    policy: Annotated[Path, typer.Argument(metavar="POLICY", help="The policy, a YAML file.")],
    audit: Annotated[
        str | None,
        typer.Option(
            metavar="PATH_OR_URL",
            help="The audit trail whose calls are replayed: an SQLite file or a database URL.  [default: none]",
        ),
    ] = None,
    advisor: Annotated[
        str, typer.Option(metavar="NAME", help="The name of the policy advisor in the recorded runs.")
    ] = "policy",
    pins: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            exists=True,
            dir_okay=False,
            help="The file of an `McpToolset(pin=...)`, which has the names of all tools of its servers.  "
            "[default: none]",
        ),
    ] = None,
    since: options.Since = None,
    until: options.Until = None,
    json: options.Json = False,
) -> None:
    """Check a policy file, and print what it would have changed.

    Exit with status 1 if it changes a decision, or if a call that it decides about cannot be replayed. Calls are
    replayed with their stored arguments. A rule that needs arguments cannot be replayed if the trail stores only
    digests, or texts that a redactor changed. A rule that needs annotations of a tool cannot be replayed, because no
    trail stores them.

    Exit with status 1 as well if a rule names a source and a tool, and neither a recorded call nor the file of pinned
    tools has a tool of that name, although they have tools of the source.
    """
    with exit_statuses("policy") as command:
        rules = Policy.load(policy)
        first, last = options.parse_period(since, until)
        calls = [] if audit is None else AuditReader(audit).calls(since=first, until=last)
        replayed = [*replay(rules, calls, advisor, None if audit is None else _key(audit))]
        names = _known_names(calls, pins)
        missing = [*missing_names((rule for rule in rules.rules if rule.names_sources), names)]
        unseen = [*missing_names((rule for rule in rules.rules if not rule.names_sources), names)]
        command.status = (
            NEGATIVE if _with_finding(replayed, "changed") or _with_finding(replayed, "not_replayed") or missing else 0
        )
        calls_per_text = _count_calls_per_text(calls)
        if json:
            print(json_text(_json(rules, replayed, missing, unseen, calls_per_text)))
        else:
            console = make_console(sys.stdout)
            _print(console, rules, replayed, missing, unseen, calls_per_text, is_replayed=audit is not None)


@app.command()
def evaluated(
    store: options.Store = "audit.db",
    advisor: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only verdicts of this policy advisor.  [default: all]")
    ] = None,
    since: options.Since = None,
    until: options.Until = None,
    json: options.Json = False,
) -> None:
    """Show which calls a policy would change that is only evaluated, by its rule.

    The verdicts are those of a `PolicyAdvisor(policy, evaluate_only=True)`, which the audit trail has.
    """
    with exit_statuses("policy"):
        first, last = options.parse_period(since, until)
        calls = AuditReader(store).calls(since=first, until=last)
        verdicts = [(call, verdict) for call in calls for verdict in _verdicts(call, advisor)]
        if json:
            print(json_text(_evaluated_json(verdicts)))
        else:
            _print_evaluated(make_console(sys.stdout), verdicts)


def _verdicts(call: AuditedCall, advisor: str | None) -> list[dict[str, Any]]:
    evaluations = call.fields("decision").get("evaluated")
    items = [item for item in evaluations if isinstance(item, dict)] if isinstance(evaluations, list) else []
    return [item for item in items if advisor in (None, item.get("advisor"))]


def _changes(call: AuditedCall, verdict: Mapping[str, Any]) -> bool:
    return verdict.get("becomes") not in (None, call.fields("decision").get("decision"))


def _evaluated_json(verdicts: Sequence[tuple[AuditedCall, dict[str, Any]]]) -> dict[str, Any]:
    changes = [{**call_json(call), "evaluated": verdict} for call, verdict in verdicts if _changes(call, verdict)]
    return {
        "counts": {"evaluated": len(verdicts), "changed": len(changes)},
        "policies": dict(Counter(str(verdict.get("policy_digest")) for _, verdict in verdicts)),
        "changed": changes,
    }


def _print_evaluated(console: Console, verdicts: Sequence[tuple[AuditedCall, dict[str, Any]]]) -> None:
    changes = [(call, verdict) for call, verdict in verdicts if _changes(call, verdict)]
    unchanged = len(verdicts) - len(changes)
    total = pluralize(len(verdicts), "verdict")
    console.print(f"{total}: {len(changes):,} would change a decision, {unchanged:,} would not")
    if not changes:
        return
    groups = Counter(
        (
            *(
                verdict.get("advisor"),
                verdict.get("policy_digest"),
                verdict.get("reason_code"),
                call.shared_field("tool"),
            ),
            *(call.fields("decision").get("decision"), verdict.get("becomes")),
        )
        for call, verdict in changes
    )
    console.print()
    console.print(_table_of_groups(groups, _EVALUATED_HEADINGS))


def _key(audit: str) -> AuditKey | None:
    """Return the key of the trail's digests; None if there is none, or if it cannot be used."""
    try:
        return load_key(None, embedded_path(audit))
    except ConfigurationError:
        return None


def _count_calls_per_text(calls: Sequence[AuditedCall]) -> Counter[str]:
    """Return how many calls each policy has decided, by its digest."""
    digests = (call.fields("decision").get("policy_digest") for call in calls)
    return Counter(str(digest) for digest in digests if digest is not None)


def _print_texts(console: Console, digest: str, calls_per_text: Mapping[str, int]) -> None:
    if not calls_per_text:
        return
    console.print(f"decided by this text: {pluralize(calls_per_text.get(digest, 0), 'recorded call')}")
    for other_digest, number in sorted(calls_per_text.items(), key=lambda item: -item[1]):
        if other_digest != digest:
            console.print(
                as_text(f"decided by another policy, {other_digest}: {pluralize(number, 'recorded call')}", "yellow")
            )


def _known_names(calls: Sequence[AuditedCall], pins: Path | None) -> Mapping[str, SourceNames]:
    """Return the names of tools that the calls and the file of pinned tools have, by source."""
    names = dict(recorded_names(calls))
    if pins is not None:
        from traced_tools.mcp.pinning import PinFile

        for server, pinned in PinFile(pins).names().items():
            offered, own_names = names.get(server, (frozenset(), frozenset()))
            names[server] = SourceNames(offered, own_names | pinned)
    return names


def _with_finding(replayed: Sequence[Replayed], finding: Finding) -> list[Replayed]:
    return [entry for entry in replayed if entry.finding == finding]


def _json(
    policy: Policy,
    replayed: Sequence[Replayed],
    missing: Sequence[MissingName],
    unseen: Sequence[MissingName],
    calls_per_text: Mapping[str, int],
) -> dict[str, Any]:
    counts = Counter(entry.finding for entry in replayed)
    findings: tuple[Finding, ...] = ("changed", "unchanged", "not_replayed", "not_decided")
    details: dict[str, Any] = {
        "changed": [
            {**call_json(entry.call), "becomes": entry.becomes, "becomes_code": entry.code}
            for entry in _with_finding(replayed, "changed")
        ],
        "not_replayed": [
            {**call_json(entry.call), "rule": entry.rule, "lacks": entry.lacks}
            for entry in _with_finding(replayed, "not_replayed")
        ],
        "missing_names": _names_json(missing),
        "unseen_names": _names_json(unseen),
    }
    return {
        "rules": len(policy.rules),
        "digest": policy.digest,
        "decided_by": dict(calls_per_text),
        "counts": {finding: counts[finding] for finding in findings},
        **details,
    }


def _names_json(names: Sequence[MissingName]) -> list[dict[str, Any]]:
    return [{"rule": name.rule, "name": name.name, "sources": name.sources} for name in names]


def _print(
    console: Console,
    policy: Policy,
    replayed: Sequence[Replayed],
    missing: Sequence[MissingName],
    unseen: Sequence[MissingName],
    calls_per_text: Mapping[str, int],
    *,
    is_replayed: bool,
) -> None:
    rules = pluralize(len(policy.rules), "rule")
    console.print(f"the policy is valid: {rules}, default {policy.default}, digest {policy.digest}")
    _print_texts(console, policy.digest, calls_per_text)
    for name in missing:
        console.print(as_text(f"NO SUCH TOOL: {name}", "bold red", most=1_000))
    for name in unseen:  # a rule for any source may be for a tool of which no call is recorded
        console.print(as_text(f"not seen: {name}", "yellow", most=1_000))
    if not is_replayed:
        return
    changes, not_replayed = _with_finding(replayed, "changed"), _with_finding(replayed, "not_replayed")
    unchanged, skipped = len(_with_finding(replayed, "unchanged")), len(_with_finding(replayed, "not_decided"))
    total = pluralize(len(changes) + unchanged, "call")
    console.print(f"replayed {total}: {len(changes):,} changed, {unchanged:,} as before")
    for (rule, lacks), number in Counter((entry.rule, entry.lacks) for entry in not_replayed).items():
        calls = pluralize(number, "call")
        needed = _NEEDED.get(str(lacks), lacks)
        text = f"NOT REPLAYED: {calls}, because rule {rule} needs {needed} that the trail does not store"
        console.print(text, style="bold yellow")
    if skipped:
        console.print(f"left out: {pluralize(skipped, 'call')} that ended before a policy decides")
    for title, group in (("changed", changes), ("not replayed", not_replayed)):
        if group:
            console.print(f"\n{title}:")
            console.print(_table(group))


def _table(replayed: Sequence[Replayed]) -> Table:
    """Return the calls, grouped by what happened to them, the largest group first."""
    groups = Counter(
        (entry.call.shared_field("tool"), entry.call.shared_field("agent"), entry.was, entry.becomes or "?", entry.code)
        for entry in replayed
    )
    return _table_of_groups(groups, _HEADINGS)


def _table_of_groups(groups: Mapping[tuple[Any, ...], int], headings: Sequence[str]) -> Table:
    """Return a table of groups with their numbers, the largest group first."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading == "calls" else "left")
    for group, number in sorted(groups.items(), key=lambda item: (-item[1], str(item[0]))):
        table.add_row(*map(as_text, group), f"{number:,}")
    return table
