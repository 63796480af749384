"""Prints the result of a verification."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from traced_tools.audit.records import PRINCIPAL, person_of
from traced_tools.audit.verifying.findings import Problem, Verification
from traced_tools.audit.verifying.receipts import ReceiptVerification
from traced_tools.cli.audit.formatting import escape, pluralize


def print_verification(console: Console, found: Verification) -> None:
    """Print the result of a verification, the verdict first."""
    of = ((found.records, "record"), (found.chains, "chain"), (found.checkpoints, "checkpoint"))
    seen = "{} in {}, {}".format(*(pluralize(number, noun) for number, noun in of))
    if found.problem is None:
        console.print(Text("whole and unchanged", "bold green").append(f": {seen}", "not bold default"))
    else:
        console.print(_bad(found.problem))
        console.print(Text(f"looked at {seen}"))
    if found.erased:
        console.print(Text(f"erased on request: {pluralize(found.erased, 'text')}"))
    if found.uncovered and found.problem is None:  # else it stopped before it knew
        console.print(Text(f"not covered by a checkpoint yet: {pluralize(found.uncovered, 'record')}", "yellow"))
    for note in found.notes:
        console.print(Text(f"note: {escape(note, most=500)}", "yellow"))


_SHOWN: Final = ("principal", "actors", "tool", "arguments", "decision", "reason_code", "advisor", "by", "outcome")
"""The fields of a call's records that are shown."""


def print_receipt(console: Console, found: ReceiptVerification) -> None:
    """Print the result of the check of a receipt, the verdict first."""
    if found.problem is not None:
        console.print(Text("REFUSED", "bold red").append(f": {escape(found.problem, most=500)}", "not bold default"))
        return
    console.print(Text("whole and unchanged", "bold green"))
    for fields in found.call:
        shown = {name: _shown(fields[name]) for name in _SHOWN if name in fields}
        shown |= {name: person_of(fields, name) for name in ("by", PRINCIPAL) if name in shown}
        said = ", ".join(f"{name} {escape(value)}" for name, value in shown.items())
        place = f"record {escape(fields['sequence'])} of chain {escape(fields['chain_id'])}"
        console.print(Text(f"{escape(fields['kind'])}: {said}; {place}"))
    for note in found.notes:
        console.print(Text(f"note: {escape(note, most=500)}", "yellow"))


def _shown(value: object) -> object:
    """Return the digest of a content; another value as it is."""
    return value.get("digest") if isinstance(value, dict) else value


def _bad(problem: Problem) -> Text:
    verdict = Text(problem.finding.upper(), "bold red")
    if problem.chain_id is not None:
        verdict.append(f": record {problem.sequence} of chain {escape(problem.chain_id)}", "not bold default")
    return verdict.append(f": {escape(problem.text, most=500)}", "not bold default")
