"""The commands of `traced-tools audit`.

Exit status: 0 for success, 1 for a negative result (an invalid record, other content, no such run), 2 if the command
line is invalid, the store cannot be read or the output cannot be written. An unexpected error is a 2 as well, because
it proves nothing about the trail.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from secrets import token_bytes
from typing import IO, Annotated, Final, NoReturn

import typer
from sqlalchemy import select

from traced_tools.audit.file_safety import KeyKind, check_key
from traced_tools.audit.keys import given_key
from traced_tools.audit.reading import exporting, matching
from traced_tools.audit.reading.read_connection import embedded_path, open_for_reading, parsed
from traced_tools.audit.reading.reader import (
    AuditedRun,
    AuditReader,
    count_calls,
    find_calls,
    find_records,
    find_waiting,
)
from traced_tools.audit.records import AuditRecord
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.verifying import walk as verifying
from traced_tools.audit.verifying.attestations import checkpoints_beside
from traced_tools.audit.verifying.receipts import receipt as make_receipt
from traced_tools.audit.verifying.receipts import verify_receipt as check_receipt
from traced_tools.audit.verifying.verified import UnverifiedError, read_verified
from traced_tools.cli.audit import options
from traced_tools.cli.audit.call_table import print_calls
from traced_tools.cli.audit.formatting import call_json, escape, json_text, make_console, pluralize
from traced_tools.cli.audit.run_tree import print_run
from traced_tools.cli.audit.verification_report import print_receipt, print_verification
from traced_tools.cli.exits import FAILED, NEGATIVE, exit_statuses, exit_with
from traced_tools.cli.listing import MOST_LISTED, Limit
from traced_tools.core.disk import PRIVATE
from traced_tools.core.file_access import READABLE_BY_ALL, WRITABLE, sqlite_files, warn_of_access
from traced_tools.core.variables import AUDIT_KEY as KEY_VARIABLE

_STORE: Final = "audit.db"
_MOST_RUNS: Final = 5
_TO_ERASE: Final = 30.0
"""Seconds for each step of an erasure, which other writers may delay."""
_ERASED_CONTENTS: Final = (
    "Only this content: arguments (includes requested_arguments), requested_arguments, result, reason, "
    "requested_name, by or principal. Repeatable."
)

_log = logging.getLogger("traced_tools.audit")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Read the audit trail: what models wanted to do, who allowed it, and why.",
)


@app.command("list")
@options.selecting_calls
def list_calls(
    *,
    store: options.Store = _STORE,
    selection: options.CallOptions,
    limit: Limit = None,
    json: options.Json = False,
    verified: options.Verified = False,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
) -> None:
    """List calls, newest first."""
    proof = _Proof(verified, checkpoints, public_key, archived_before)
    with exit_statuses("audit"):
        call_filter = selection.filter(store)
        with proof.reader(store) as reader:
            if json:
                print(json_text([call_json(call) for call in find_calls(reader, call_filter, limit)]))
                return
            most = limit or MOST_LISTED
            calls = find_calls(reader, call_filter, most + 1)
            page = calls[:most]
            total = len(calls) if len(calls) <= most else count_calls(reader, call_filter)
            print_calls(make_console(sys.stdout), page, total, find_waiting(reader, page))


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run id, or the beginning of exactly one run id.")],
    store: options.Store = _STORE,
    trace_url: Annotated[
        str | None, typer.Option(metavar="TEMPLATE", help="The URL of a trace, such as http://host/trace/{trace_id}.")
    ] = None,
    json: options.Json = False,
    verified: options.Verified = False,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
) -> None:
    """Show a run as a tree: compactions, changed tools, and intents with their reasons, decisions and outcomes."""
    proof = _Proof(verified, checkpoints, public_key, archived_before)
    with exit_statuses("audit"):
        if trace_url is not None and "{trace_id}" not in trace_url:
            _exit(FAILED, "--trace-url has no {trace_id}: pass a URL such as http://host/trace/{trace_id}")
        with proof.reader(store, run) as reader:
            audited_run = reader.run(_full_id(reader, run))
            link = _link(audited_run, trace_url)
            if json:
                print(json_text(_run_json(audited_run, link)))
            else:
                print_run(make_console(sys.stdout), audited_run, link)


@app.command()
def verify(
    store: options.Store = _STORE,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
    otlp: Annotated[
        bool, typer.Option("--otlp", help="Send the result as metrics to the collector of OTEL_EXPORTER_OTLP_ENDPOINT.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Check every record. If a check fails, print the first problem and exit with status 1."""
    with exit_statuses("audit") as command, _reporting(otlp=otlp):
        key = None if public_key is None else _read(public_key, "public")
        archived = options.parse_time(archived_before, "--archived-before")
        verification = verifying.verify(store, checkpoints=checkpoints, public_key=key, archived_before=archived)
        command.status = 0 if verification.ok else NEGATIVE
        if json:
            print(json_text({"ok": verification.ok, **dataclasses.asdict(verification)}))
        else:
            print_verification(make_console(sys.stdout), verification)


@app.command()
@options.selecting_calls
def export(
    *,
    format: Annotated[str, typer.Option(help="jsonl or csv.")],
    store: options.Store = _STORE,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="The output file.  [default: stdout]")] = None,
    selection: options.CallOptions,
) -> None:
    """Export records, chain by chain: all records, or only those of the calls that match the options."""
    with exit_statuses("audit", printing=output is None):
        call_filter = selection.filter(store)
        records = find_records(AuditReader(store), call_filter)
        if output is not None and _is_trail_file(store, output):
            _exit(FAILED, "--output is a file of the audit trail itself and would be overwritten: pass another file")
        records = _with_first_read(records)
        with _output(output) as file:
            count = exporting.export(records, format, file)  # type: ignore[arg-type]  # checked by export
        if output is not None:
            typer.echo(f"{count:,} records written to {escape(str(output))}", err=True)


@app.command()
def sql() -> None:
    """Print the SQL that creates the table and the roles of an audit trail in PostgreSQL.

    Run it as the owner: traced-tools audit sql | psql --single-transaction --set ON_ERROR_STOP=1 URL
    """
    with exit_statuses("audit"):
        print(files("traced_tools.audit").joinpath("postgresql.sql").read_text("utf-8"), end="")


@app.command()
def match(
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call id.")],
    arguments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with its arguments; - is stdin.")
    ] = None,
    requested_arguments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Compare with the arguments that the model wrote.")
    ] = None,
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with its result.")] = None,
    reason: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with its stated reason.")] = None,
    name: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with the unknown tool it named.")] = None,
    by: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with the name of who decided.")] = None,
    principal: Annotated[Path | None, typer.Option(metavar="FILE", help="Compare with the name of who asked.")] = None,
    run: Annotated[str | None, typer.Option(help="The call's run, if several runs have this call id.")] = None,
    iteration: Annotated[
        int | None, typer.Option(help="The call's iteration, if the run has several such calls.")
    ] = None,
    store: options.Store = _STORE,
    json: options.Json = False,
) -> None:
    """Compare a file with the recorded digest of a call's content. Exit with status 1 if they differ.

    The key is TRACED_TOOLS_AUDIT_KEY, else the key file beside the store.
    """
    with exit_statuses("audit") as command:
        paths = {
            "arguments": arguments,
            "requested_arguments": requested_arguments,
            "result": result,
            "reason": reason,
            "requested_name": name,
            "by": by,
            "principal": principal,
        }
        selected = [(content, path) for content, path in paths.items() if path is not None]
        if len(selected) != 1:
            names = "--arguments, --requested-arguments, --result, --reason, --name, --by and --principal"
            _exit(FAILED, f"pass one of {names}")
        ((content, path),) = selected
        run_id = None if run is None else _full_id(AuditReader(store), run, missing=FAILED)
        matches = _matches(store, call, _read(path), content, run_id, iteration)
        command.status = 0 if matches else NEGATIVE
        if json:
            print(json_text({"call_id": call, "content": content, "matches": matches}))
        else:
            print(f"{escape(call)}: {_CONTENTS[content]} {_VERDICTS[matches]}")


@app.command()
def receipt(
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call id.")],
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="The output file.  [default: stdout]")] = None,
    run: Annotated[str | None, typer.Option(help="The call's run, if several runs have this call id.")] = None,
    iteration: Annotated[
        int | None, typer.Option(help="The call's iteration, if the run has several such calls.")
    ] = None,
    store: options.Store = _STORE,
) -> None:
    """Write the proof of one call, which verify-receipt checks without the store.

    It contains all records from the call to its checkpoint, without stored texts.
    """
    with exit_statuses("audit", printing=output is None):
        run_id = None if run is None else _full_id(AuditReader(store), run, missing=FAILED)
        text = make_receipt(store, call, run_id=run_id, iteration=iteration)
        if output is not None and _is_trail_file(store, output):
            _exit(FAILED, "--output is a file of the audit trail itself and would be overwritten: pass another file")
        with _output(output) as file:
            file.write(f"{text}\n".encode())


@app.command("verify-receipt")
def verify_receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt; - is stdin.")],
    checkpoints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A checkpoint file that must list the receipt's checkpoints.")
    ] = None,
    public_key: options.PublicKey = None,
    json: options.Json = False,
) -> None:
    """Check a receipt without the store. If a check fails, print the first problem and exit with status 1."""
    with exit_statuses("audit") as command:
        key = None if public_key is None else _read(public_key, "public")
        verification = check_receipt(_read(file), checkpoints=checkpoints, public_key=key)
        command.status = 0 if verification.ok else NEGATIVE
        if json:
            print(json_text({"ok": verification.ok, **dataclasses.asdict(verification)}))
        else:
            print_receipt(make_console(sys.stdout), verification)


@app.command()
def erase(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run id, or the beginning of exactly one run id.")],
    requested_by: Annotated[
        str, typer.Option(metavar="WHO", help="Who requested it, such as a ticket number. Stored permanently.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Why, such as the legal basis. Stored permanently.")],
    call: Annotated[str | None, typer.Option(metavar="CALL", help="Only the contents of this call.")] = None,
    content: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_ERASED_CONTENTS)] = None,
    checkpoints: options.Checkpoints = None,
    signing_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The Ed25519 private key, if the trail signs its checkpoints.")
    ] = None,
    store: options.Store = _STORE,
    json: options.Json = False,
) -> None:
    """Erase the stored texts of a run and record who requested it and why. Exit with status 1 if there are none.

    Digests stay, so verify and match still work. Exports, backups and copies of the store are not changed. An SQLite
    file is rewritten, which needs as much disk space again. PostgreSQL needs the role that owns the table, and VACUUM
    FULL afterwards.
    """
    from traced_tools.audit.trail import AuditTrail  # imported here because the other commands start faster without it

    with exit_statuses("audit") as command:
        path = embedded_path(store)
        if checkpoints is None and path is None:
            _exit(FAILED, "pass --checkpoints FILE: a server store has no default checkpoint file")
        has_checkpoints, is_signed = _find_checkpoints(store)
        if checkpoints is None and path is not None and has_checkpoints and not checkpoints_beside(path).exists():
            _exit(
                FAILED,
                "pass --checkpoints FILE: the store has checkpoints, but no file beside it holds their lines. If they "
                "go to a function, use AuditTrail.erase",
            )
        if signing_key is None and is_signed:
            _exit(FAILED, "the checkpoints of this trail are signed: pass --signing-key FILE")
        run_id = _full_id(AuditReader(store), run)
        key = token_bytes()  # unused, because an erasure has no contents to digest
        with AuditTrail(store, key=key, checkpoints=checkpoints, signing_key=signing_key) as trail:
            erasure = trail.erase(
                run_id,
                requested_by=requested_by,
                reason=reason,
                call_id=call,
                contents=content or None,  # type: ignore[arg-type]  # checked by erase
                timeout=_TO_ERASE,
            )
        command.status = 0 if erasure.texts else NEGATIVE
        if json:
            print(json_text(dataclasses.asdict(erasure)))
        elif erasure.texts:
            texts, records = pluralize(erasure.texts, "text"), pluralize(erasure.records, "record")
            print(f"erased {texts} of {records} of run {escape(run_id)}")
        else:
            print(f"run {escape(run_id)} has no stored texts to erase")


@contextmanager
def _reporting(*, otlp: bool) -> Iterator[None]:
    """Send the metrics of the block over OTLP, if wanted."""
    if not otlp:
        yield
        return
    from traced_tools.otel.configure import (
        configure,  # imported here because the other commands start faster without it
    )

    with configure(otlp=True):
        yield


def _find_checkpoints(store: str) -> tuple[bool, bool]:
    """Return whether the store has a checkpoint, and whether it has a signed one."""
    statement = select(RECORDS.c.body).where(RECORDS.c.kind == "checkpoint")
    has_checkpoints = False
    with open_for_reading(store) as opened_store, closing(opened_store.rows(statement)) as bodies:
        for (body,) in bodies:
            has_checkpoints = True
            if "signature" in (parsed(body) or {}):
                return True, True
    return has_checkpoints, False


_CONTENTS: Final = {
    "arguments": "its arguments were",
    "requested_arguments": "the arguments that the model wrote were",
    "result": "its result was",
    "reason": "its reason was",
    "requested_name": "the tool it named was",
    "by": "the person or service that decided was",
    "principal": "the principal was",
}
_VERDICTS: Final = {True: "this: the digests are the same", False: "NOT this: the digests differ"}


def _matches(store: str, call: str, data: bytes, name: str, run_id: str | None, iteration: int | None) -> bool:
    """Return whether a file holds the recorded text, ignoring a byte order mark and a final newline."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = None
    if text is None:
        _exit(FAILED, "the file is not UTF-8: pass the content as it was recorded")
    if embedded_path(store) is None and given_key(None) is None:
        _exit(FAILED, f"there is no audit key: set {KEY_VARIABLE} to the key that the trail uses")
    starts = (text, text.removeprefix("\ufeff"))
    candidates = [start.removesuffix(end) for start in starts for end in ("", "\n", "\r\n")]
    undecided = None
    for candidate in dict.fromkeys(candidates):
        try:
            if matching.match(store, call, candidate, content=name, run_id=run_id, iteration=iteration):  # type: ignore[arg-type]
                return True
        except matching.UndecidableError as error:
            undecided = error
    if undecided is not None:
        raise undecided
    return False


@dataclass(frozen=True)
class _Proof:
    """The options that say whether to verify the trail before reading, and against what."""

    verified: bool
    checkpoints: Path | None
    public_key: Path | None
    archived_before: str | None

    @contextmanager
    def reader(self, store: str, run: str | None = None) -> Iterator[AuditReader]:
        """Yield a reader of the store, then print the verification's result to standard error.

        Args:
            store: the store.
            run: prefix of the run ids to read; None for all records.
        """
        if not self.verified:
            if (self.checkpoints, self.public_key, self.archived_before) != (None, None, None):
                _exit(FAILED, "--checkpoints, --public-key and --archived-before need --verified")
            yield AuditReader(store)
            return
        key = None if self.public_key is None else _read(self.public_key, "public")
        archived = options.parse_time(self.archived_before, "--archived-before")
        try:
            with read_verified(
                store, run=run, checkpoints=self.checkpoints, public_key=key, archived_before=archived
            ) as reader:
                yield reader
                verification = reader.verification
        except UnverifiedError as error:
            verification = error.verification
        if sys.stderr is not None:
            with suppress(OSError):
                print_verification(make_console(sys.stderr), verification)
        if not verification.ok:
            raise typer.Exit(NEGATIVE)


def _full_id(reader: AuditReader, beginning: str, missing: int = NEGATIVE) -> str:
    """Return the only run id that starts with `beginning`; exit with status `missing` if there is none."""
    run_ids = reader.run_ids(beginning, _MOST_RUNS + 1)
    if beginning in run_ids or len(run_ids) == 1:
        return beginning if beginning in run_ids else run_ids[0]
    if not run_ids:
        _exit(missing, f"no run begins with {escape(beginning)}")
    lines = "".join(f"\n  {escape(run_id)}" for run_id in run_ids[:_MOST_RUNS])
    _exit(FAILED, f"several runs begin with {escape(beginning)}:{lines}{_more(len(run_ids))}")


def _more(count: int) -> str:
    return "\n  ..." if count > _MOST_RUNS else ""


def _link(run: AuditedRun, template: str | None) -> str | None:
    trace_id = run.shared_field("trace_id")
    if template is None or not isinstance(trace_id, str) or re.fullmatch("[0-9a-f]{32}", trace_id) is None:
        return None
    return template.replace("{trace_id}", trace_id)


def _run_json(run: AuditedRun, link: str | None) -> dict[str, object]:
    calls = [
        {**call_json(call), "records": [exporting.json_fields(record) for record in (*call.records, *call.conflicting)]}
        for call in run.calls
    ]
    shared = {name: run.shared_field(name) for name in ("agent", "conversation_id", "trace_id")}
    shared |= {"principal": run.principal, "actors": list(run.actors)}
    compactions = [exporting.json_fields(record) for record in run.compactions]
    changes = [exporting.json_fields(record) for record in run.tool_changes]
    events = {"compactions": compactions, "tool_changes": changes}
    return {"run_id": run.run_id, **shared, "trace_url": link, **events, "calls": calls}


def _read(path: Path, key: KeyKind | None = None) -> bytes:
    """Return the content of a file or of standard input. A key file is refused if other users can change it."""
    if str(path) == "-" and sys.stdin is None:
        _exit(FAILED, "standard input cannot be read: it is closed")
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read()
        with path.open("rb") as file:
            if key is not None:
                check_key(path, file, key)
            return file.read()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    _exit(FAILED, f"{escape(str(path))} cannot be read: {problem}")


def _with_first_read(records: Iterator[AuditRecord]) -> Iterator[AuditRecord]:
    """Read the first record now, so that an unreadable store fails before the output file is opened."""
    first = list(islice(records, 1))
    return chain(first, records)


def _is_trail_file(store: str, output: Path) -> bool:
    """Whether a file is the store, one of SQLite's files beside it, its key, or its checkpoint file."""
    path = embedded_path(store)
    if path is None:
        return False
    return any(
        _is_same(output, existing) for existing in (*sqlite_files(path), checkpoints_beside(path), Path(f"{path}.key"))
    )


def _is_same(path: Path, other_path: Path) -> bool:
    """Whether two paths lead to the same file, also through links, or would if it existed."""
    if path.exists() and other_path.exists():
        return path.samefile(other_path)
    return os.path.realpath(path) == os.path.realpath(other_path)


@contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open the output. A new file is readable by its owner only, as the store is."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, PRIVATE)) as file:
            warn_of_access(_log, "records of the audit trail", path, forbidden=WRITABLE | READABLE_BY_ALL)
            yield file
            return
    except OSError as error:
        problem = error.strerror or type(error).__name__
    _exit(FAILED, f"{escape(str(path))} cannot be written: {problem}")


def _exit(status: int, message: str) -> NoReturn:
    exit_with("audit", status, message)
