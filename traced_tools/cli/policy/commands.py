"""The commands of `traced-tools policy`.

Exit status: 0 if nothing changes, 1 if the policy decides otherwise about a call or a call cannot be replayed, 2 if the
policy is invalid, the store cannot be read or the output cannot be written.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from traced_tools.audit.reading.reader import AuditReader
from traced_tools.cli.audit import options
from traced_tools.cli.audit.formatting import as_text, call_json, json_text, make_console, pluralize
from traced_tools.cli.exits import NEGATIVE, exit_statuses
from traced_tools.cli.policy.replay import Finding, Replayed, replay
from traced_tools.policy.policy import Policy

_HEADINGS: Final = ("tool", "agent", "was", "becomes", "reason code", "calls")

app = typer.Typer(no_args_is_help=True, help="Check policies before you use them.")


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
    since: options.Since = None,
    until: options.Until = None,
    json: options.Json = False,
) -> None:
    """Check a policy file, and print what it would have changed.

    Exit with status 1 if it changes a decision, or if a call that it decides about cannot be replayed. Calls are
    replayed with their stored arguments. A rule that needs arguments cannot be replayed if the trail stores only
    digests, or texts that a redactor changed. A rule that needs annotations of a tool cannot be replayed, because no
    trail stores them.
    """
    with exit_statuses("policy") as command:
        rules = Policy.load(policy)
        first, last = options.parse_period(since, until)
        calls = [] if audit is None else AuditReader(audit).calls(since=first, until=last)
        replayed = [*replay(rules, calls, advisor)]
        is_same = not _of(replayed, "changed") and not _of(replayed, "not_replayed")
        command.status = 0 if is_same else NEGATIVE
        if json:
            print(json_text(_json(rules, replayed)))
        else:
            _print(make_console(sys.stdout), rules, replayed, is_replayed=audit is not None)


def _of(replayed: Sequence[Replayed], finding: Finding) -> list[Replayed]:
    return [each for each in replayed if each.finding == finding]


def _json(policy: Policy, replayed: Sequence[Replayed]) -> dict[str, Any]:
    counts = Counter(each.finding for each in replayed)
    findings: tuple[Finding, ...] = ("changed", "unchanged", "not_replayed", "not_decided")
    listed: dict[str, Any] = {
        "changed": [
            {**call_json(each.call), "becomes": each.becomes, "becomes_code": each.code}
            for each in _of(replayed, "changed")
        ],
        "not_replayed": [
            {**call_json(each.call), "rule": each.rule, "lacks": each.lacks} for each in _of(replayed, "not_replayed")
        ],
    }
    return {"rules": len(policy.rules), "counts": {each: counts[each] for each in findings}, **listed}


def _print(console: Console, policy: Policy, replayed: Sequence[Replayed], *, is_replayed: bool) -> None:
    console.print(f"the policy is valid: {pluralize(len(policy.rules), 'rule')}, default {policy.default}")
    if not is_replayed:
        return
    changed, not_replayed = _of(replayed, "changed"), _of(replayed, "not_replayed")
    same, skipped = len(_of(replayed, "unchanged")), len(_of(replayed, "not_decided"))
    console.print(f"replayed {pluralize(len(changed) + same, 'call')}: {len(changed):,} changed, {same:,} as before")
    for (rule, lacks), number in Counter((each.rule, each.lacks) for each in not_replayed).items():
        calls = pluralize(number, "call")
        text = f"NOT REPLAYED: {calls}, because rule {rule} needs {lacks} that the trail does not store"
        console.print(text, style="bold yellow")
    if skipped:
        console.print(f"left out: {pluralize(skipped, 'call')} that ended before a policy decides")
    for title, found in (("changed", changed), ("not replayed", not_replayed)):
        if found:
            console.print(f"\n{title}:")
            console.print(_table(found))


def _table(replayed: Sequence[Replayed]) -> Table:
    """Return the calls, grouped by what happened to them, the largest group first."""
    groups = Counter(
        (each.call.shared_field("tool"), each.call.shared_field("agent"), each.was, each.becomes or "?", each.code)
        for each in replayed
    )
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in _HEADINGS:
        table.add_column(heading, justify="right" if heading == "calls" else "left")
    for group, number in sorted(groups.items(), key=lambda item: (-item[1], str(item[0]))):
        table.add_row(*map(as_text, group), f"{number:,}")
    return table
