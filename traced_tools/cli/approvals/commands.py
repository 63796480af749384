"""The commands of `traced-tools approvals`.

Exit status: 0 for success, 1 for a negative result (no such call waits, or it was decided before), 2 if the command
line is invalid, the store cannot be used or the output cannot be written.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from json import dumps
from typing import Annotated, Any, Final

import typer
from pydantic_core import from_json
from rich.console import Console

from traced_tools.approvals.pending_rows import WaitingApproval
from traced_tools.approvals.pending_store import PendingStore
from traced_tools.cli.audit.formatting import as_text, escape, json_text, make_console
from traced_tools.cli.exits import NEGATIVE, exit_statuses, exit_with
from traced_tools.cli.listing import MOST_LISTED, Limit, advice, listed_of, make_table, time_or_never
from traced_tools.cli.stores import Store, not_blank, open_store
from traced_tools.core.approval import Approve, CallDecision, Reject
from traced_tools.core.readable import readable_json
from traced_tools.core.tool_input import Provide
from traced_tools.errors import AlreadyDecided, NotWaiting, ResumeError

_HEADINGS: Final = ("requested (UTC)", "call", "run", "key", "agent", "tool", "waits for", "rule", "expires (UTC)")
_REFUSED_HEADINGS: Final = ("requested (UTC)", "call", "run", "key", "agent", "tool", "can't resume")
_VERBS: Final = {Approve: "approved", Reject: "rejected", Provide: "answered"}

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Decide about tool calls that wait in a pending store."
)


def _json_object(text: str, option: str) -> dict[str, Any]:
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise typer.BadParameter("pass a JSON object", param_hint=option)
    return value


_Call = Annotated[str, typer.Argument(metavar="CALL", help="The call id.")]
_Run = Annotated[str | None, typer.Option(help="The id of the call's run, if several runs have this call id.")]
_By = Annotated[str, typer.Option(metavar="NAME", help="Who decides. The audit trail records it.", callback=not_blank)]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_calls(
    store: Store,
    agent: Annotated[str | None, typer.Option(help="Only calls of this agent.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only calls of runs on behalf of this principal.")] = None,
    limit: Limit = None,
    json: _Json = False,
) -> None:
    """List the calls that wait for a decision, oldest first, without their arguments and reasons: see show.

    The calls of runs that can't resume follow, with the reason: see retry and withdraw.
    """
    with _open_store(store) as pending:
        if json:
            calls = pending.pending(agent=agent, principal=principal, limit=limit)
            refused = pending.refused(agent=agent, principal=principal, limit=limit)
            print(json_text([_listed_json(call) for call in (*calls, *refused)]))
        else:
            calls = pending.pending(agent=agent, principal=principal)
            refused = pending.refused(agent=agent, principal=principal)
            console, most = make_console(sys.stdout), limit or MOST_LISTED
            _print_list(console, calls[:most], len(calls))
            _print_refused(console, refused[:most], len(refused))


@app.command()
def show(call: _Call, store: Store, run: _Run = None, json: _Json = False) -> None:
    """Show a call of a run that waits, with its arguments and reasons, and its decision. No other command does."""
    with _open_store(store) as pending:
        pending_call = pending.find(call, run_id=run)
        if json:
            contents = {"reason": pending_call.reason, "intent": pending_call.intent, "arguments": pending_call.args}
            contents |= {"questions": _questions(pending_call)} if pending_call.input else {}
            contents |= _decision_fields(pending_call.decision)
            print(json_text({**_listed_json(pending_call), "principal": pending_call.principal, **contents}))
        else:
            _print_call(make_console(sys.stdout), pending_call)


@app.command()
def approve(
    call: _Call,
    store: Store,
    by: _By,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other arguments for the tool, as a JSON object.")
    ] = None,
    run: _Run = None,
    json: _Json = False,
) -> None:
    """Approve a call. It runs when its run resumes. Exit with status 1 if it was decided before or does not wait."""
    instead = None if arguments is None else _json_object(arguments, "--arguments")
    _decide(store, call, Approve(by=by, arguments=instead), run, json)


@app.command()
def answer(
    call: _Call,
    store: Store,
    by: _By,
    answers: Annotated[
        str,
        typer.Option(metavar="JSON", help="The answers by the keys of the questions, as a JSON object; null declines."),
    ],
    run: _Run = None,
    json: _Json = False,
) -> None:
    """Answer the questions of a call, which goes on when its run resumes. Exit with status 1 if it does not wait."""
    _decide(store, call, Provide(_json_object(answers, "--answers"), by=by), run, json)


@app.command()
def reject(
    call: _Call,
    store: Store,
    by: _By,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why. The model reads it.")],
    run: _Run = None,
    json: _Json = False,
) -> None:
    """Reject a call, so that it never runs. Exit with status 1 if it was decided before or does not wait."""
    _decide(store, call, Reject(reason, by=by), run, json)


@app.command()
def withdraw(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run that paused.")], store: Store
) -> None:
    """Withdraw a run that waits, so that it never resumes. Exit with status 1 if no such run waits."""
    with _open_store(store) as pending:
        if not pending.withdraw(run):
            raise NotWaiting(f"no run with the id {run!r} waits: it is unknown, has resumed or was withdrawn")
        print(f"withdrawn {escape(run)}: it never resumes")


@app.command()
def retry(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The id of the run that paused.")], store: Store
) -> None:
    """Let a run that could not resume be resumed again, such as after its tool is back. Exit with status 1 if none."""
    with _open_store(store) as pending:
        if not pending.retry(run):
            raise NotWaiting(f"no run with the id {run!r} is refused: it is unknown, has resumed or was withdrawn")
        print(f"retrying {escape(run)}: it resumes once its calls are decided")


@contextmanager
def _open_store(url: str) -> Iterator[PendingStore]:
    with exit_statuses("approvals"), open_store(url, "approvals") as store:
        try:
            yield store
        except (AlreadyDecided, NotWaiting, ResumeError) as error:
            exit_with("approvals", NEGATIVE, escape(str(error), most=2000))


def _decide(store: str, call: str, decision: CallDecision, run: str | None, json: bool) -> None:
    with _open_store(store) as pending:
        pending_call = pending.find(call, run_id=run)
        pending.decide(call, decision, run_id=pending_call.run_id)
        verb = _VERBS[type(decision)]
        if json:
            run_ids = {"run_id": pending_call.run_id, "key": pending_call.key}
            print(json_text({"call_id": call, **run_ids, "decision": verb, "is_last": pending_call.is_last}))
        else:
            print(f"{verb} {escape(pending_call.tool)} {escape(call)}: {_next_step(pending_call)}")


def _next_step(call: WaitingApproval) -> str:
    """Return what the run of a call that was just decided waits for; a durable run is driven by its key."""
    run = f"run {escape(call.key or call.run_id)}"
    if not call.is_last:
        return f"{run} waits for other decisions"
    return f"{run} can resume" if call.key is None else f"{run} can go on: drive it"


def _listed_json(call: WaitingApproval) -> dict[str, Any]:
    return {
        "call_id": call.call_id,
        "run_id": call.run_id,
        "key": call.key,
        "state_id": call.state_id,
        "agent": call.agent,
        "conversation_id": call.conversation_id,
        "tool": call.tool,
        "path": list(call.path),
        "waits_for": _waits_for(call),
        "rule": call.rule,
        "requested_at": call.requested_at.isoformat(),
        "expires_at": None if call.expires_at is None else call.expires_at.isoformat(),
        "is_last": call.is_last,
        **({} if call.refusal is None else {"refusal": call.refusal}),
    }


def _print_list(console: Console, calls: Sequence[WaitingApproval], total: int) -> None:
    if not calls:
        console.print("no call waits for a decision")
        return
    rows = (
        (
            time_or_never(call.requested_at),
            *(call.call_id, call.run_id, call.key, call.agent, call.tool, _waits_for(call), call.rule),
            time_or_never(call.expires_at),
        )
        for call in calls
    )
    _print_table(console, _HEADINGS, rows)
    console.print(f"\n{listed_of(len(calls), total, 'oldest')}{advice(len(calls), total)}")


def _print_refused(console: Console, calls: Sequence[WaitingApproval], total: int) -> None:
    if not calls:
        return
    rows = (
        (time_or_never(call.requested_at), call.call_id, call.run_id, call.key, call.agent, call.tool, call.refusal)
        for call in calls
    )
    console.print()
    _print_table(console, _REFUSED_HEADINGS, rows)
    console.print(f"\n{listed_of(len(calls), total, 'oldest')} of runs that can't resume{advice(len(calls), total)}")


def _print_table(console: Console, headings: Sequence[str], rows: Iterable[Sequence[str | None]]) -> None:
    """Print a table; the column with the keys is there only if a run has one."""
    columns = [*zip(headings, *rows, strict=True)]
    shown_columns = [cells for cells in columns if cells[0] != "key" or any(cells[1:])]
    table = make_table(*(cells[0] or "" for cells in shown_columns))
    for row in [*zip(*shown_columns, strict=True)][1:]:
        table.add_row(*map(as_text, row))
    console.print(table)


def _print_call(console: Console, call: WaitingApproval) -> None:
    facts = {
        "call": call.call_id,
        "tool": call.tool,
        "asked by": " > ".join(call.path) or None,
        "run": call.run_id,
        "key": call.key,
        "agent": call.agent,
        "conversation": call.conversation_id,
        "principal": call.principal,
        "rule": call.rule,
        "reason": call.reason,
        "intent": call.intent,
        "waits for": _waits_for(call),
        "requested": time_or_never(call.requested_at),
        "expires": time_or_never(call.expires_at),
        "refused": call.refusal,
    }
    for name, value in facts.items():
        if value is not None:
            console.print(f"{name:<12} {escape(value, most=len(value))}")
    console.print(f"{'arguments':<12} {readable_json(call.arguments, most=len(call.arguments))}")
    for key, question in _questions(call).items():
        text = dumps(question, ensure_ascii=False)
        console.print(f"{'question':<12} {escape(key, most=len(key))} {escape(text, most=len(text))}")
    for name, fact in _decision_fields(call.decision).items():
        text = json_text(fact) if isinstance(fact, dict) else fact
        if text is not None:
            console.print(f"{name:<12} {escape(text, most=len(text))}")


def _waits_for(call: WaitingApproval) -> str:
    return "input" if call.input else "approval"


def _questions(call: WaitingApproval) -> dict[str, Any]:
    """Return the questions by their keys."""
    return {question.key: {"method": question.method, "params": dict(question.params)} for question in call.input}


def _decision_fields(decision: CallDecision | None) -> dict[str, Any]:
    """Return who decided what and when; nothing for a call that waits for its decision."""
    if decision is None or decision.decided_at is None:
        return {}
    at = datetime.fromtimestamp(decision.decided_at, UTC)
    facts = {"decided": at.isoformat(" ", "seconds").removesuffix("+00:00"), "by": decision.by}
    if isinstance(decision, Reject):
        return {"decision": "rejected", **facts, "because": decision.reason}
    if isinstance(decision, Provide):
        return {"decision": "answered", **facts, "with": dict(decision.answers)}
    return {"decision": "approved", **facts, "with": None if decision.arguments is None else dict(decision.arguments)}
