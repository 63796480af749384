"""Prints the result of a verification."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.text import Text

from traced_tools.audit.records import PRINCIPAL, person_of
from traced_tools.audit.verifying.findings import Problem, Verification
from traced_tools.audit.verifying.receipts import ReceiptVerification
from traced_tools.cli.audit.formatting import escape, pluralize


def print_verification(console: Console, verification: Verification) -> None:
    """Print the result of a verification, the verdict first."""
    records, chains = pluralize(verification.records, "record"), pluralize(verification.chains, "chain")
    summary = f"{records} in {chains}, {pluralize(verification.checkpoints, 'checkpoint')}"
    if verification.problem is None:
        console.print(Text("whole and unchanged", "bold green").append(f": {summary}", "not bold default"))
    else:
        console.print(_bad(verification.problem))
        console.print(Text(f"looked at {summary}"))
    if verification.erased:
        console.print(Text(f"erased on request: {pluralize(verification.erased, 'text')}"))
    if verification.uncovered and verification.problem is None:  # else it stopped before it knew
        console.print(Text(f"not covered by a checkpoint yet: {pluralize(verification.uncovered, 'record')}", "yellow"))
    for note in verification.notes:
        console.print(Text(f"note: {escape(note, most=500)}", "yellow"))


_SHOWN: Final = ("principal", "actors", "tool", "arguments", "decision", "reason_code", "advisor", "by", "outcome")
"""The fields of a call's records that are shown."""


def print_receipt(console: Console, verification: ReceiptVerification) -> None:
    """Print the result of the check of a receipt, the verdict first."""
    if verification.problem is not None:
        console.print(
            Text("REFUSED", "bold red").append(f": {escape(verification.problem, most=500)}", "not bold default")
        )
        return
    console.print(Text("whole and unchanged", "bold green"))
    for fields in verification.call:
        values = {name: _plain_value(fields[name]) for name in _SHOWN if name in fields}
        values |= {name: person_of(fields, name) for name in ("by", PRINCIPAL) if name in values}
        listing = ", ".join(f"{name} {escape(value)}" for name, value in values.items())
        place = f"record {escape(fields['sequence'])} of chain {escape(fields['chain_id'])}"
        console.print(Text(f"{escape(fields['kind'])}: {listing}; {place}"))
    for note in verification.notes:
        console.print(Text(f"note: {escape(note, most=500)}", "yellow"))


def _plain_value(value: object) -> object:
    """Return the digest of a field with content; return another value as it is."""
    return value.get("digest") if isinstance(value, dict) else value


def _bad(problem: Problem) -> Text:
    verdict = Text(problem.finding.upper(), "bold red")
    if problem.chain_id is not None:
        verdict.append(f": record {problem.sequence} of chain {escape(problem.chain_id)}", "not bold default")
    return verdict.append(f": {escape(problem.text, most=500)}", "not bold default")
