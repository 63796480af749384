"""The commands of `traced-tools runs`.

Exit status: 0 for success, 1 for a negative result (no such run, or the run has failed or was withdrawn), 2 if the
command line is invalid, the store or the client cannot be used, the life of a driven run ends with an error, or the
output cannot be written.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Container, Sequence
from typing import Annotated, Any, Final

import typer
from rich.console import Console

from traced_tools.approvals.run_logs import KeptRun
from traced_tools.cli.audit.formatting import as_text, escape, json_text, make_console
from traced_tools.cli.exits import FAILED, NEGATIVE, exit_statuses, exit_with
from traced_tools.cli.listing import MOST_LISTED, advice, listed_of, make_table, time_or_never
from traced_tools.cli.loading import load_object, printing_to_stderr
from traced_tools.cli.stores import Store, open_store
from traced_tools.client import ChatClient
from traced_tools.core.enums import RUN_STATUSES
from traced_tools.durable.history import LoggedRecord
from traced_tools.durable_run import DurableRun
from traced_tools.errors import ResumeError, RunTaken, TracedToolsError, UnknownRun

_COMMAND: Final = "runs"

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="See, drive and withdraw durable runs in a pending store."
)


def _known_status(status: str | None) -> str | None:
    if status not in (None, *RUN_STATUSES):
        raise typer.BadParameter(f"must be one of {', '.join(RUN_STATUSES)}")
    return status


_Key = Annotated[str, typer.Argument(metavar="KEY", help="The key of the run.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_runs(
    store: Store,
    status: Annotated[
        str | None,
        typer.Option(help=f"Only runs with this status: {', '.join(RUN_STATUSES)}.", callback=_known_status),
    ] = None,
    agent: Annotated[str | None, typer.Option(help="Only runs of this agent.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only runs on behalf of this principal.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="The maximum number of runs to list.  [default: 100; with --json: all]")
    ] = None,
    json: _Json = False,
) -> None:
    """List the durable runs: those whose status has not changed for the longest time first."""
    most = limit or MOST_LISTED
    with exit_statuses(_COMMAND), open_store(store, _COMMAND) as pending:
        filters: Any = {"status": status, "agent": agent, "principal": principal}
        decided_keys = {*pending.decided(agent=agent)}
        if json:
            print(json_text([_run_json(run, decided_keys) for run in pending.run_logs.runs(**filters, limit=limit)]))
        else:
            runs = pending.run_logs.runs(**filters, limit=most + 1)  # there may be far more that have ended
            _print_runs(make_console(sys.stdout), runs[:most], decided_keys, is_whole=len(runs) <= most)


@app.command()
def show(key: _Key, store: Store, json: _Json = False) -> None:
    """Show a durable run with a line for each record of its log. No command shows what a record contains."""
    with exit_statuses(_COMMAND), open_store(store, _COMMAND) as pending:
        run = pending.run_logs.find(key)
        if run is None:
            exit_with(_COMMAND, NEGATIVE, f"no run has the key {escape(key)}")
        records, decided_keys = pending.run_logs.history(key), {*pending.decided(agent=run.agent)}
        if json:
            shown_records = [_record_json(record) for record in records]
            print(json_text({**_run_json(run, decided_keys), "principal": run.principal, "records": shown_records}))
        else:
            _print_run(make_console(sys.stdout), run, records, decided_keys)


@app.command()
def drive(
    key: _Key,
    client: Annotated[
        str,
        typer.Option(
            metavar="MODULE:OBJECT", help="The ChatClient of the run, with its pending store: an object of a module."
        ),
    ],
    json: _Json = False,
) -> None:
    """Drive a durable run to its end or its next wait, also one that has failed, and print its status.

    What the module and the tools print goes to standard error. Exit with status 1 if there is no such run, if it can't
    go on, or if another process drives it.
    """
    with exit_statuses(_COMMAND):
        with printing_to_stderr():
            run = _driven(_load_client(client), key)
        if json:
            print(json_text({"key": run.key, "status": run.status, "stop_reason": run.stop_reason}))
        else:
            print(f"{run.status} {escape(run.key)}" + (f": {run.stop_reason}" if run.stop_reason else ""))
        if run.status in ("failed", "withdrawn"):
            raise typer.Exit(NEGATIVE)


@app.command()
def withdraw(key: _Key, store: Store) -> None:
    """Withdraw a durable run, so that it never goes on. Exit with status 1 if no such run goes on.

    A process that drives the run stops before its next step. What its tools have done stays done.
    """
    with exit_statuses(_COMMAND), open_store(store, _COMMAND) as pending:
        if not pending.run_logs.withdraw(key):
            run = pending.run_logs.find(key)
            problem = f"no run has the key {escape(key)}" if run is None else f"the run {escape(key)} is {run.status}"
            exit_with(_COMMAND, NEGATIVE, problem)
        print(f"withdrawn {escape(key)}: it never goes on")


def _load_client(name: str) -> ChatClient:
    client = load_object(name, _COMMAND, example="shop.agents:treasurer")
    if not isinstance(client, ChatClient):
        exit_with(_COMMAND, FAILED, f"{name} is a {type(client).__name__}: pass a ChatClient")
    return client


def _driven(client: ChatClient, key: str) -> DurableRun:
    try:
        return asyncio.run(client.adrive(key))  # an advisor may need an event loop
    except (ResumeError, RunTaken, UnknownRun) as error:
        exit_with(_COMMAND, NEGATIVE, escape(str(error), most=2000))
    except TracedToolsError:
        raise
    except Exception as error:  # whose text may hold content
        exit_with(_COMMAND, FAILED, f"the life of the run {escape(key)} has ended with {type(error).__name__}")


def _is_decided(run: KeptRun, decided_keys: Container[str]) -> bool:
    """Return whether a run waits with all of its calls decided; it may have gone on since the keys were read."""
    return run.status == "waiting" and run.key in decided_keys


def _status(run: KeptRun, decided_keys: Container[str]) -> str:
    return "waiting, decided" if _is_decided(run, decided_keys) else run.status


def _run_json(run: KeptRun, decided_keys: Container[str]) -> dict[str, Any]:
    return {
        "key": run.key,
        "agent": run.agent,
        "status": run.status,
        "is_decided": _is_decided(run, decided_keys),
        "lives": run.lives,
        "submitted_at": run.submitted_at.isoformat(),
        "changed_at": run.changed_at.isoformat(),
    }


def _record_json(record: LoggedRecord) -> dict[str, Any]:
    return {
        "number": record.number,
        "recorded_at": record.recorded_at.isoformat(),
        "life": record.life,
        "kind": record.kind,
        "run_id": record.run_id,
        "iteration": record.iteration,
        "call_ids": list(record.call_ids),
        "tool": record.tool,
        "outcome": record.outcome,
    }


def _print_runs(console: Console, runs: Sequence[KeptRun], decided_keys: Container[str], *, is_whole: bool) -> None:
    if not runs:
        console.print("no such run")
        return
    table = make_table("changed (UTC)", "key", "agent", "status", "lives")
    for run in runs:
        cells = (time_or_never(run.changed_at), run.key, run.agent, _status(run, decided_keys), run.lives)
        table.add_row(*map(as_text, cells))
    console.print(table)
    total = len(runs) if is_whole else None
    console.print(f"\n{listed_of(len(runs), total, 'oldest', 'run')}{advice(len(runs), total)}")


def _print_run(console: Console, run: KeptRun, records: Sequence[LoggedRecord], decided_keys: Container[str]) -> None:
    facts = {
        "run": run.key,
        "agent": run.agent,
        "principal": run.principal,
        "status": _status(run, decided_keys),
        "lives": f"{run.lives} since it was submitted or last waited",
        "submitted": time_or_never(run.submitted_at),
        "changed": time_or_never(run.changed_at),
    }
    for name, value in facts.items():
        if value is not None:
            console.print(f"{name:<12} {escape(value)}")
    if not records:
        console.print("\nthe log was deleted")
        return
    table = make_table("", "time (UTC)", "life", "record", "about")
    for record in records:
        cells = (record.number, time_or_never(record.recorded_at), record.life, record.kind, _subject(record))
        table.add_row(*map(as_text, cells))
    console.print()
    console.print(table)


def _subject(record: LoggedRecord) -> str:
    """Return what a record is about, such as `iteration 2: call_1, call_2`, or `call_1 pay ok`."""
    iteration = "" if record.iteration is None else f"iteration {record.iteration}:"
    subjects = (iteration, ", ".join(record.call_ids), record.tool, record.run_id, record.outcome)
    return " ".join(subject for subject in subjects if subject)
