"""The commands: options in, the reading side of `traced_tools.audit` called, what it returns printed.

Exit statuses: 0 when all is well, 1 when something was found (a bad record, a refuted content, no such run), 2 when the
question or the store cannot be read or the answer not be written. What nobody foresaw is a 2 as well: it is no verdict.
"""

from __future__ import annotations

import dataclasses
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
from traced_tools.audit.keys import KEY_VARIABLE, given_key
from traced_tools.audit.reading import exporting, matching
from traced_tools.audit.reading.read_connection import embedded_path, open_for_reading, parsed
from traced_tools.audit.reading.reader import AuditedRun, AuditReader
from traced_tools.audit.records import AuditRecord
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.verifying import walk as verifying
from traced_tools.audit.verifying.attestations import checkpoints_beside
from traced_tools.audit.verifying.verified import UnverifiedError, read_verified
from traced_tools.cli.audit import options
from traced_tools.cli.audit.call_table import print_calls
from traced_tools.cli.audit.formatting import call_json, console, counted, escaped, json_text
from traced_tools.cli.audit.run_tree import print_run
from traced_tools.cli.audit.verification_report import print_verification
from traced_tools.cli.output import drop_output
from traced_tools.errors import TracedToolsError

FOUND: Final = 1
"""Exit status: something was found."""
UNREADABLE: Final = 2
"""Exit status: the question or the store cannot be read."""
_STORE: Final = "audit.db"
_MOST_RUNS: Final = 5
_TO_ERASE: Final = 30.0
"""Seconds for each step of an erasure; other writers may delay it."""
_ERASED_CONTENTS: Final = (
    "Only arguments (with requested_arguments, the model's own), requested_arguments, result, reason or requested_name."
)

app = typer.Typer(no_args_is_help=True, help="Read the audit trail: what models wanted to do, who allowed it, and why.")


@app.command("list")
def list_calls(
    store: options.Store = _STORE,
    tool: options.Tool = None,
    outcome: options.Outcome = None,
    decision: options.Decision = None,
    agent: options.Agent = None,
    conversation: options.Conversation = None,
    attribute: options.Attributes = None,
    since: options.Since = None,
    until: options.Until = None,
    limit: Annotated[int, typer.Option(min=1, help="The most calls that are listed.")] = 100,
    json: options.Json = False,
    verified: options.Verified = False,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
) -> None:
    """List calls, newest first."""
    proof = _Proof(verified, checkpoints, public_key, archived_before)
    with _statuses():
        first, last = options.times_of(since, until)
        with proof.reader(store) as reader:
            calls = reader.calls(
                tool=tool,
                outcome=outcome,
                decision=decision,
                agent=agent,
                conversation=conversation,
                attributes=options.attributes_of(attribute),
                since=first,
                until=last,
                limit=limit,
            )
            if json:
                print(json_text([call_json(call) for call in calls]))
            else:
                print_calls(console(sys.stdout), calls, limit)


@app.command()
def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or a beginning that only it has.")],
    store: options.Store = _STORE,
    trace_url: Annotated[
        str | None, typer.Option(metavar="TEMPLATE", help="Where traces are, such as http://host/trace/{trace_id}.")
    ] = None,
    json: options.Json = False,
    verified: options.Verified = False,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
) -> None:
    """Show a run as a tree: intents with their reasons, decisions, outcomes."""
    proof = _Proof(verified, checkpoints, public_key, archived_before)
    with _statuses():
        if trace_url is not None and "{trace_id}" not in trace_url:
            _end(UNREADABLE, "--trace-url must hold {trace_id}")
        with proof.reader(store, run) as reader:
            found = reader.run(_full_id(reader, run))
            link = _link(found, trace_url)
            if json:
                print(json_text(_run_json(found, link)))
            else:
                print_run(console(sys.stdout), found, link)


@app.command()
def verify(
    store: options.Store = _STORE,
    checkpoints: options.Checkpoints = None,
    public_key: options.PublicKey = None,
    archived_before: options.ArchivedBefore = None,
    json: options.Json = False,
) -> None:
    """Look at every record; status 1 and the first bad one when the trail is not what was written."""
    with _statuses() as ending:
        key = None if public_key is None else _read(public_key, "public")
        archived = options.time_of(archived_before, "--archived-before")
        found = verifying.verify(store, checkpoints=checkpoints, public_key=key, archived_before=archived)
        ending.status = 0 if found.ok else FOUND
        if json:
            print(json_text({"ok": found.ok, **dataclasses.asdict(found)}))
        else:
            print_verification(console(sys.stdout), found)


@app.command()
def export(
    format: Annotated[str, typer.Option(help="jsonl, csv or parquet.")],
    store: options.Store = _STORE,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to.  [default: standard output]")] = None,
    tool: options.Tool = None,
    outcome: options.Outcome = None,
    decision: options.Decision = None,
    agent: options.Agent = None,
    conversation: options.Conversation = None,
    attribute: options.Attributes = None,
    since: options.Since = None,
    until: options.Until = None,
) -> None:
    """Write records, chain by chain: all, or those of the calls that the options tell."""
    with _statuses(printing=output is None):
        first, last = options.times_of(since, until)
        records = AuditReader(store).records(
            tool=tool,
            outcome=outcome,
            decision=decision,
            agent=agent,
            conversation=conversation,
            attributes=options.attributes_of(attribute),
            since=first,
            until=last,
        )
        if output is None and format == "parquet" and sys.stdout.isatty():
            _end(UNREADABLE, "parquet is nothing for a terminal: name a file with --output")
        if output is not None and _is_evidence(store, output):
            _end(UNREADABLE, "--output is a file of the audit trail itself, which would be lost: name another")
        begun = _begun(records)
        with _output(output) as file:
            written = exporting.export(begun, format, file)  # type: ignore[arg-type]  # it looks itself
        if output is not None:
            typer.echo(f"{written:,} records written to {escaped(str(output))}", err=True)


@app.command()
def sql() -> None:
    """Print the SQL that makes the table and the roles of a trail in PostgreSQL.

    Its owner runs it: traced-tools audit sql | psql --single-transaction --set ON_ERROR_STOP=1 URL
    """
    with _statuses():
        print(files("traced_tools.audit").joinpath("postgresql.sql").read_text("utf-8"), end="")


@app.command()
def match(
    call: Annotated[str, typer.Argument(metavar="CALL", help="The call's id.")],
    arguments: Annotated[Path | None, typer.Option(metavar="FILE", help="Are these its arguments? - is stdin.")] = None,
    requested_arguments: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Did the model write these arguments?")
    ] = None,
    result: Annotated[Path | None, typer.Option(metavar="FILE", help="Is this its result?")] = None,
    reason: Annotated[Path | None, typer.Option(metavar="FILE", help="Is this its stated reason?")] = None,
    name: Annotated[Path | None, typer.Option(metavar="FILE", help="Is this the unknown tool it named?")] = None,
    run: Annotated[str | None, typer.Option(help="The call's run, where several have a call of this id.")] = None,
    iteration: Annotated[int | None, typer.Option(help="The pass, where the run has several.")] = None,
    store: options.Store = _STORE,
    json: options.Json = False,
) -> None:
    """Prove or refute what a call was about, by its digest; status 1 when it is refuted.

    The key is that of TRACED_TOOLS_AUDIT_KEY, else that of the file beside the store.
    """
    with _statuses() as ending:
        given = {
            "arguments": arguments,
            "requested_arguments": requested_arguments,
            "result": result,
            "reason": reason,
            "requested_name": name,
        }
        asked = [(content, path) for content, path in given.items() if path is not None]
        if len(asked) != 1:
            _end(UNREADABLE, "pass one of --arguments, --requested-arguments, --result, --reason and --name")
        ((content, path),) = asked
        run_id = None if run is None else _full_id(AuditReader(store), run, missing=UNREADABLE)
        matches = _matches(store, call, _read(path), content, run_id, iteration)
        ending.status = 0 if matches else FOUND
        if json:
            print(json_text({"call_id": call, "content": content, "matches": matches}))
        else:
            print(f"{escaped(call)}: {_THESE[content]} {_VERDICTS[matches]}")


@app.command()
def erase(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's id, or a beginning that only it has.")],
    requested_by: Annotated[
        str, typer.Option(metavar="WHO", help="Who asked for it, such as a ticket's number; stored for good.")
    ],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="On what grounds; stored for good.")],
    call: Annotated[str | None, typer.Option(metavar="CALL", help="Only of this call.")] = None,
    content: Annotated[list[str] | None, typer.Option(metavar="NAME", help=_ERASED_CONTENTS)] = None,
    checkpoints: options.Checkpoints = None,
    signing_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The Ed25519 key that signs checkpoints, where they are signed.")
    ] = None,
    store: options.Store = _STORE,
    json: options.Json = False,
) -> None:
    """Erase the stored texts of a run's contents, and record who asked and why; status 1 when no text is left.

    Digests stay, so that verify and match still work. Exports, backups and copies of the store are not touched. A file
    is rewritten, which takes as much space again; a server needs the role that owns the table, and VACUUM FULL later.
    """
    from traced_tools.audit.trail import AuditTrail  # the other commands start faster without

    with _statuses() as ending:
        path = embedded_path(store)
        if checkpoints is None and path is None:
            _end(UNREADABLE, "pass --checkpoints FILE: a server store has no default checkpoint file")
        is_sealed, is_signed = _seals(store)
        if checkpoints is None and path is not None and is_sealed and not checkpoints_beside(path).exists():
            _end(
                UNREADABLE,
                "pass --checkpoints FILE: the store has checkpoints, but no file beside it holds their lines. If they "
                "go to a function, use AuditTrail.erase",
            )
        if signing_key is None and is_signed:
            _end(UNREADABLE, "the checkpoints of this trail are signed: name the key with --signing-key")
        run_id = _full_id(AuditReader(store), run)
        key = token_bytes()  # for no digest: an erasure has no contents
        with AuditTrail(store, key=key, checkpoints=checkpoints, signing_key=signing_key) as trail:
            done = trail.erase(
                run_id,
                requested_by=requested_by,
                reason=reason,
                call_id=call,
                contents=content or None,  # type: ignore[arg-type]  # it looks itself
                timeout=_TO_ERASE,
            )
        ending.status = 0 if done.texts else FOUND
        if json:
            print(json_text(dataclasses.asdict(done)))
        elif done.texts:
            print(f"erased {counted(done.texts, 'text')} of {counted(done.records, 'record')} of run {escaped(run_id)}")
        else:
            print(f"no stored text of run {escaped(run_id)} is left to erase")


def _seals(store: str) -> tuple[bool, bool]:
    """Return whether the store has a checkpoint, and whether it has a signed one."""
    statement = select(RECORDS.c.body).where(RECORDS.c.kind == "checkpoint")
    is_sealed = False
    with open_for_reading(store) as opened_store, closing(opened_store.rows(statement)) as bodies:
        for (body,) in bodies:
            is_sealed = True
            if "signature" in (parsed(body) or {}):
                return True, True
    return is_sealed, False


_THESE: Final = {
    "arguments": "its arguments were",
    "requested_arguments": "the arguments that the model wrote were",
    "result": "its result was",
    "reason": "its reason was",
    "requested_name": "the tool it named was",
}
_VERDICTS: Final = {True: "this: the digests are the same", False: "NOT this: the digests differ"}


def _matches(store: str, call: str, data: bytes, name: str, run_id: str | None, iteration: int | None) -> bool:
    """Return whether a file holds a content; what editors add, an end of line and a mark, counts for nothing."""
    try:
        text = data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        text = None
    if text is None:
        _end(UNREADABLE, "the file is no UTF-8")
    if embedded_path(store) is None and given_key(None) is None:
        _end(UNREADABLE, f"there is no audit key: set {KEY_VARIABLE} to the one that the trail on the server has")
    begun = (text, text.removeprefix("\ufeff"))
    ended = [each.removesuffix(end) for each in begun for end in ("", "\n", "\r\n")]
    undecided = None
    for each in dict.fromkeys(ended):
        try:
            if matching.match(store, call, each, content=name, run_id=run_id, iteration=iteration):  # type: ignore[arg-type]
                return True
        except matching.UndecidableError as error:
            undecided = error
    if undecided is not None:
        raise undecided
    return False


@dataclass(frozen=True)
class _Proof:
    """Whether an answer must be verified, and against what."""

    verified: bool
    checkpoints: Path | None
    public_key: Path | None
    archived_before: str | None

    @contextmanager
    def reader(self, store: str, run: str | None = None) -> Iterator[AuditReader]:
        """Give a reader of the store; the verdict is printed to standard error, so that the answer stands alone.

        Args:
            store: the store.
            run: prefix of the run ids to copy; None for all records.
        """
        if not self.verified:
            if (self.checkpoints, self.public_key, self.archived_before) != (None, None, None):
                _end(UNREADABLE, "--checkpoints, --public-key and --archived-before need --verified")
            yield AuditReader(store)
            return
        key = None if self.public_key is None else _read(self.public_key, "public")
        archived = options.time_of(self.archived_before, "--archived-before")
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
                print_verification(console(sys.stderr), verification)
        if not verification.ok:
            raise typer.Exit(FOUND)


def _full_id(reader: AuditReader, beginning: str, missing: int = FOUND) -> str:
    """Return the one run that begins so; `missing` is the exit status when there is none."""
    found = reader.run_ids(beginning, _MOST_RUNS + 1)
    if beginning in found or len(found) == 1:
        return beginning if beginning in found else found[0]
    if not found:
        _end(missing, f"no run begins with {escaped(beginning)}")
    listed = "".join(f"\n  {escaped(each)}" for each in found[:_MOST_RUNS])
    _end(UNREADABLE, f"several runs begin with {escaped(beginning)}:{listed}{_more(len(found))}")


def _more(found: int) -> str:
    return "\n  ..." if found > _MOST_RUNS else ""


def _link(run: AuditedRun, template: str | None) -> str | None:
    trace_id = next((found for call in run.calls if (found := call.shared_field("trace_id")) is not None), None)
    if template is None or not isinstance(trace_id, str) or re.fullmatch("[0-9a-f]{32}", trace_id) is None:
        return None
    return template.replace("{trace_id}", trace_id)


def _run_json(run: AuditedRun, link: str | None) -> dict[str, object]:
    calls = [
        {**call_json(call), "records": [exporting.json_fields(each) for each in (*call.records, *call.conflicting)]}
        for call in run.calls
    ]
    first = run.calls[0]
    told = {name: first.shared_field(name) for name in ("agent", "conversation_id", "trace_id")}
    return {"run_id": run.run_id, **told, "trace_url": link, "calls": calls}


def _read(path: Path, key: KeyKind | None = None) -> bytes:
    """Return what a file holds, or standard input; of a `key`, only if nobody else can change it."""
    if str(path) == "-" and sys.stdin is None:
        _end(UNREADABLE, "standard input cannot be read: it is closed")
    try:
        if str(path) == "-":
            return sys.stdin.buffer.read()
        with path.open("rb") as file:
            if key is not None:
                check_key(path, file, key)
            return file.read()
    except OSError as error:
        problem = error.strerror or type(error).__name__
    _end(UNREADABLE, f"{escaped(str(path))} cannot be read: {problem}")


def _begun(records: Iterator[AuditRecord]) -> Iterator[AuditRecord]:
    """Read the first record, so that no file is touched for a store that cannot be read."""
    first = list(islice(records, 1))
    return chain(first, records)


def _is_evidence(store: str, output: Path) -> bool:
    """Whether a file is the store, what SQLite keeps beside it, its key, or its checkpoints."""
    path = embedded_path(store)
    if path is None:
        return False
    beside = (Path(f"{path}{end}") for end in ("-wal", "-shm", "-journal", ".key"))
    return any(_is_same(output, each) for each in (path, checkpoints_beside(path), *beside))


def _is_same(one: Path, other: Path) -> bool:
    """Whether two paths lead to the same file, be it by links, or would if there was one."""
    if one.exists() and other.exists():
        return one.samefile(other)
    return os.path.realpath(one) == os.path.realpath(other)


@contextmanager
def _output(path: Path | None) -> Iterator[IO[bytes]]:
    """Open where to write: a file is for its owner alone, as the store is."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            yield file
            return
    except OSError as error:
        problem = error.strerror or type(error).__name__
    _end(UNREADABLE, f"{escaped(str(path))} cannot be written: {problem}")


@dataclass
class _Ending:
    status: int = 0
    """What was found, whoever reads it."""


@contextmanager
def _statuses(*, printing: bool = True) -> Iterator[_Ending]:
    """Turn errors into a line and an exit status, and end quietly when nobody reads on.

    Args:
        printing: whether standard output is needed.
    """
    ending = _Ending()
    try:
        if printing and sys.stdout is None:
            _end(UNREADABLE, "standard output cannot be written: it is closed")
        yield ending
        if sys.stdout is not None:
            sys.stdout.flush()
    except (typer.Exit, typer.BadParameter):
        raise
    except TracedToolsError as error:
        _end(UNREADABLE, escaped(str(error), most=2000))
    except BrokenPipeError:
        drop_output()
    except OSError as error:
        drop_output()
        cannot = f"{error.filename!a} cannot be read" if error.filename else "standard output cannot be written"
        _end(UNREADABLE, f"{cannot}: {error.strerror or type(error).__name__}")
    except Exception as error:  # its text may hold anything
        _end(UNREADABLE, f"unexpected {type(error).__name__}; please report it")
    if ending.status:
        raise typer.Exit(ending.status)


def _end(status: int, message: str) -> NoReturn:
    with suppress(OSError):
        typer.echo(f"audit: {message}", err=True)
    raise typer.Exit(status)
