"""The audit trail: it stores drafts from runs as durable, tamper-evident records."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, get_args

from traced_tools.audit.digests import AuditKey
from traced_tools.audit.erasing import Erasure, check_erasure_texts, check_may_change, drafts, remove, targets
from traced_tools.audit.keys import check_key_beside, given_key, load_key, no_key
from traced_tools.audit.reading.matching import ContentName, match
from traced_tools.audit.reading.queries import CallFilter, CallSelection
from traced_tools.audit.reading.reader import AuditedCall, AuditedRun, AuditReader, find_calls
from traced_tools.audit.records import Draft
from traced_tools.audit.schema import searchable
from traced_tools.audit.store import Store, problem_of
from traced_tools.audit.verifying.attestations import PublicKey, checkpoints_beside
from traced_tools.audit.verifying.findings import Verification
from traced_tools.audit.verifying.walk import verify
from traced_tools.audit.writing import mirror
from traced_tools.audit.writing.appending import AppendBatch, Appender
from traced_tools.audit.writing.checkpoints import CheckpointFile, Checkpoints, Signer, SigningKey
from traced_tools.audit.writing.publishing import Publish, Publisher
from traced_tools.audit.writing.queue_entries import ControlKind, QueueEntry
from traced_tools.audit.writing.record_builder import ContentMode, RecordMaker, Redactor
from traced_tools.audit.writing.writer import Writer
from traced_tools.core.checks import expect, expect_callable, expect_positive, expect_whole
from traced_tools.core.file_access import sqlite_files, warn_of_access
from traced_tools.core.fork import on_fork
from traced_tools.core.part_check import PartCheck
from traced_tools.errors import AuditUnavailable, ConfigurationError
from traced_tools.flow.background import close_all
from traced_tools.flow.flow import Step
from traced_tools.flow.steps import is_async, perform
from traced_tools.observe.content import offer_digest
from traced_tools.observe.failures import report_failure

if TYPE_CHECKING:
    from traced_tools.observe.run_telemetry import TelemetryOptions

_LEFT_ALONE: Final = 30.0
"""Seconds that a trail without references has to write its pending records."""
_log = logging.getLogger("traced_tools.audit")


class AuditTrail:
    """Stores tamper-evident records of tool calls: what the model requested, who allowed it and what happened.

    A record that `write` has waited for is durable: committed and synced. A background thread writes all pending
    records in one transaction. If the store fails, up to 65,536 records, with about 256 million characters of contents,
    wait until it recovers. A `gap` record then reports how many intents were late and how many records were lost. The
    trail opens and creates nothing before the first record. Clients, threads and event loops may share a trail.
    Processes may share a store, because each trail has its own chain. Open trails are closed when the process ends.

    Args:
        store: the path of an SQLite file, which is created if missing, or an SQLAlchemy URL such as
            `postgresql+psycopg://host/database`. The SQL that `traced-tools audit sql` prints creates the table there.
        key: at least 16 bytes for the digests of contents. None for the value of `TRACED_TOOLS_AUDIT_KEY` or, without
            it, the file `<store>.key`, which is created if missing. A server store has no such file.
        content: how to store arguments, results and reasons: only their `digest`, the output of the redactor
            (`redacted`), or the text (`full`). Contents of tools with `capture=False` are only stored as digests.
        redactor: a function of a content's name and value (the JSON value, or else the text) that returns what to
            store, None for nothing. It runs in the trail's thread. If it raises, only the digest is stored.
        service: the name of the application; None to omit it.
        tags: texts that every record has, such as a version or a region.
        checkpoints: where to copy checkpoints outside the chain, so that a cut tail is detected: a path, or a function
            of one mapping that is not async. A separate thread delivers them in order and retries until it succeeds,
            so a function may receive a checkpoint twice. None for the file `<store>.checkpoints`, or for no copies if
            the store is on a server.
        checkpoint_every: how many records a checkpoint covers before the next one is due.
        checkpoint_interval: seconds from the first record without a checkpoint until one is due.
        signing_key: an Ed25519 key that signs checkpoints: 32 raw bytes, PEM, or the path of a file with either, which
            other users must not be able to read, change or replace. Needs the extra `signing`.
        timeout: seconds that `write` waits for a record to become durable.
        telemetry: the providers that receive copies of the records; None for the global providers.

    Raises:
        ConfigurationError: for a setting that cannot work, such as a server store without a key, or a key beside the
            store that other users can read or replace.
    """

    def __init__(
        self,
        store: str | os.PathLike[str],
        *,
        key: bytes | str | None = None,
        content: ContentMode = "digest",
        redactor: Redactor | None = None,
        service: str | None = None,
        tags: Mapping[str, str] | None = None,
        checkpoints: str | os.PathLike[str] | Publish | None = None,
        checkpoint_every: int = 1000,
        checkpoint_interval: float = 60.0,
        signing_key: SigningKey | None = None,
        timeout: float = 5.0,
        telemetry: TelemetryOptions | None = None,
    ) -> None:
        _check_content(content, redactor)
        expect_whole("checkpoint_every", checkpoint_every, 1)
        expect_positive("checkpoint_interval", checkpoint_interval)
        expect_positive("timeout", timeout)
        self.store: Final = Store(store)
        self._location = self.store.path or store  # resolved now, because the current folder may change
        self._secret: Callable[[], bytes | str | None] = lambda: key  # hidden from every repr
        self._lines = checkpoints if checkpoints is None or callable(checkpoints) else Path(checkpoints).absolute()
        explicit_key = given_key(key)
        if explicit_key is None:
            if self.store.path is None:
                raise no_key()
            check_key_beside(self.store.path)  # now, because a later failure would deny each call
        common = _common(service, tags)
        signer = None if signing_key is None else Signer(signing_key)
        publish = _publish(self._lines, self.store)
        files = (self.store.path, publish.path if isinstance(publish, CheckpointFile) else None)
        self._digest_of = _NameDigest(explicit_key, self.store.path)
        self._make_maker = partial(_record_maker, explicit_key, files, content, redactor, common)
        losses = mirror.CheckpointLosses(telemetry)
        publisher = None if publish is None else Publisher(publish, self.store.name, losses)
        self._checkpoints = Checkpoints(checkpoint_every, checkpoint_interval, signer, publisher)
        self._timeout = timeout
        self._telemetry = telemetry
        self._finalizer: weakref.finalize[Any, AuditTrail] | None = None
        self._begin()
        on_fork(self._begin)

    def _begin(self) -> None:
        """Begin a new chain, also in a forked child, because it has neither its parent's thread nor its connection."""
        if self._finalizer is not None:
            self._finalizer.detach()
        appender = Appender(self.store, self._make_maker, self._checkpoints)
        on_stored, started = partial(_mirror, self._telemetry), partial(_watch, self._telemetry)
        self._writer = Writer(self.store.name, appender, self._checkpoints, on_stored, started, mirror.flush)
        self._finalizer = weakref.finalize(self, self._writer.begin_close, _LEFT_ALONE)
        self._finalizer.atexit = False

    def offer_pseudonyms(self) -> None:
        """Make pseudonyms with the key of the trail, unless the environment has a key or another trail came first.

        A missing key beside the store is created with the first pseudonym.
        """
        offer_digest(self._digest_of)

    def submit(self, draft: Draft) -> None:
        """Queue a record; never waits and never raises, from any thread.

        If the trail is closed or too many records wait, the record is lost and counted.
        """
        self._writer.put(QueueEntry(draft))

    def write(self, draft: Draft, timeout: float | None = None) -> Step[None]:
        """Return a step that writes a record and waits until it is durable.

        Args:
            draft: the record.
            timeout: seconds to wait; None for the trail's own.

        Raises:
            AuditUnavailable: by the step, if the record is not durable in time. It is written later if possible.
        """
        return Write(self, draft, self._timeout if timeout is None else timeout)

    @property
    def problem(self) -> str | None:
        """Why writes to the store are failing, or None.

        Set after two consecutive failures and cleared by the next successful write.
        """
        return self._writer.outage

    def checks(self) -> Iterable[PartCheck]:
        """Return the check whether records can be appended."""
        yield PartCheck(f"audit: {self.store.name}", partial(perform, self._check))

    def _check(self) -> None:
        """Check that the store can be written, without a record. Blocks, and creates a missing file.

        Raises:
            AuditUnavailable: if the store can't be reached, or records can't be appended to it.
        """
        problem = None
        try:
            with closing(self.store.writing()) as connection:
                connection.append(())
        except Exception as error:
            problem = problem_of(error)  # raised below: a store's text may quote contents
        if problem is not None:
            raise AuditUnavailable(f"the audit trail {self.store.name} cannot be written ({problem})")

    def checkpoint(self, timeout: float | None = None) -> None:
        """Write pending records, then a checkpoint unless one already covers every record. Blocks.

        When it returns, this checkpoint and earlier ones are durable in the store, and their copies are delivered to
        `checkpoints=`: on disk, or accepted by the function.

        Args:
            timeout: seconds to wait for both; None for the trail's own.

        Raises:
            AuditUnavailable: if the checkpoint or its line is not stored in time. The trail keeps trying.
        """
        seconds = self._timeout if timeout is None else timeout
        deadline = time.monotonic() + seconds
        if not self._await_control("checkpoint", seconds):
            raise self.unavailable(seconds)
        if not self._checkpoints.wait(max(0.0, deadline - time.monotonic())):
            raise AuditUnavailable(
                f"the audit trail {self.store.name} could not keep its checkpoint outside the store within {seconds:g} "
                f"s ({self._checkpoints.problem or 'it takes too long'}): check the file or function of checkpoints="
            )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all records so far are durable, and return whether they are after `timeout` seconds. Blocks."""
        return self._await_control("flush", timeout)

    def _await_control(self, control: ControlKind, timeout: float | None) -> bool:
        if not self._writer.started:
            return True
        entry = QueueEntry(None, control)
        entry.expect()
        self._writer.put(entry)
        return entry.wait(self._timeout if timeout is None else timeout)

    def query(self, *, limit: int | None = None, **selection: Unpack[CallSelection]) -> list[AuditedCall]:
        """Return the calls that meet a selection, newest first; see `AuditReader.calls`.

        Pending records are written first, if that succeeds within the trail's timeout.

        Args:
            limit: the maximum number of calls; None for all.
            **selection: which calls, see `CallSelection`.
        """
        reader = self._reader()
        return find_calls(reader, CallFilter.of(selection, self._location, self._secret()), limit)

    def run(self, run_id: str) -> AuditedRun:
        """Return a recorded run by its id; see `AuditReader.run`. Pending records are written first."""
        return self._reader().run(run_id)

    def verify(self, *, public_key: PublicKey | None = None, archived_before: datetime | None = None) -> Verification:
        """Check every record of the store, including those of other trails; see `traced_tools.audit.verify`.

        On a server, the role must be able to read all records, which the writers' role of `traced-tools audit sql` is
        not. Verify there in another process, with the readers' role.

        Args:
            public_key: the Ed25519 key that all checkpoints must be signed with.
            archived_before: the time, with a zone, up to which records were taken out of the store.
        """
        deadline = time.monotonic() + self._timeout
        if self.flush() and not callable(self._lines):
            self._checkpoints.wait(max(0.0, deadline - time.monotonic()))
        lines = None if callable(self._lines) else self._lines
        return verify(
            self._location,
            checkpoints=lines,
            public_key=public_key,
            archived_before=archived_before,
            telemetry=self._telemetry,
        )

    def match(
        self,
        call_id: str,
        text: str,
        *,
        content: ContentName = "arguments",
        run_id: str | None = None,
        iteration: int | None = None,
    ) -> bool:
        """Return whether `text` is the recorded content of a call; see `traced_tools.audit.match`."""
        self.flush()
        return match(
            self._location, call_id, text, content=content, run_id=run_id, iteration=iteration, key=self._secret()
        )

    def erase(
        self,
        run_id: str,
        *,
        requested_by: str,
        reason: str,
        call_id: str | None = None,
        contents: Sequence[ContentName] | None = None,
        timeout: float | None = None,
    ) -> Erasure:
        """Erase the stored texts of a run's contents, and record the erasure. Blocks.

        The digests stay, so `match` still compares contents with them. `verify` accepts the erased records, because an
        `erasure` record lists the texts, and a checkpoint covers that record before the texts are erased. If the call
        fails, repeat it. The file of an embedded store is rewritten, which blocks other writers and needs free disk
        space of about the file's size. Copies of records, such as exports and backups, are not changed. On a server,
        the role must own the table.

        Args:
            run_id: the run's id.
            requested_by: the person or service that requested it. It is stored permanently, so prefer a reference to a
                person's name.
            reason: the reason or legal ground. It is stored permanently as well.
            call_id: the id of one call of the run; None for all calls.
            contents: the contents to erase; None for all. `arguments` includes `requested_arguments`.
            timeout: seconds to wait for each step; None for the trail's own.

        Returns:
            What was erased. If no text is left to erase, its counts are 0 and nothing is recorded, but the file of an
            embedded store is still rewritten: an earlier call may have failed at that step.

        Raises:
            AuditError: if there is no such run or call, if a record or the structure of the store was changed, if a
                record of an earlier version has no erasable texts, or if this process may not change the store.
            AuditUnavailable: if pending records or the erasure are not durable in time; then nothing is erased.
            ConfigurationError: for an unknown content, or a `requested_by` or `reason` that is blank or longer than 512
                characters.
        """
        check_erasure_texts(requested_by=requested_by, reason=reason)
        if unknown := [name for name in contents or () if name not in get_args(ContentName)]:
            raise ConfigurationError(f"contents must be any of {', '.join(get_args(ContentName))}, not {unknown[0]!a}")
        seconds = self._timeout if timeout is None else timeout
        if not self.flush(seconds):  # pending texts of the run would follow the erasure
            raise self.unavailable(seconds)
        erased = targets(self._location, run_id, call_id, contents)
        check_may_change(self.store, seconds)
        for draft in drafts(erased, run_id, requested_by, reason):
            self.write(draft, seconds).run()
        if erased:
            self.checkpoint(seconds)
        remove(self.store, erased, seconds)
        texts = sum(len(target.names) for target in erased)
        return Erasure(run_id, texts, len(erased), requested_by, reason)

    def _reader(self) -> AuditReader:
        self.flush()
        return AuditReader(self._location)

    def close(self, timeout: float = 5.0) -> None:
        """Write pending records and a final checkpoint, and deliver its line to `checkpoints=`.

        Records and lines that are still pending after `timeout` seconds are lost, and the log says how many. Records
        submitted later are lost too.
        """
        close_all([self._writer], timeout)

    def unavailable(self, timeout: float | None = None) -> AuditUnavailable:
        """Return the error that explains why a record is not durable."""
        seconds = self._timeout if timeout is None else timeout
        if self._writer.closed:
            problem = "the trail is closed: record before you close it"
        else:
            problem = self._writer.problem or "it takes too long: pass a longer timeout="
        return AuditUnavailable(f"the audit trail {self.store.name} could not record within {seconds:g} s ({problem})")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"AuditTrail({self.store.name!r})"


class Write(Step[None]):
    """The step that writes a record and waits until it is durable.

    Args:
        trail: the trail that writes the record.
        draft: the record.
        timeout: seconds to wait.

    Raises:
        AuditUnavailable: if the record is not durable in time.
    """

    __slots__ = ("_entry", "_timeout", "_trail")

    def __init__(self, trail: AuditTrail, draft: Draft, timeout: float) -> None:
        self._trail = trail
        self._entry = QueueEntry(draft)
        self._timeout = timeout

    def run(self) -> None:
        """Queue the record unless it is queued, and block until it is durable. May be called again after a time-out."""
        self._entry.expect()
        self._trail._writer.put(self._entry)
        if not self._entry.wait(self._timeout):
            raise self._trail.unavailable(self._timeout)

    async def arun(self) -> None:
        """Queue the record unless it is queued, and await that it is durable. May be called again after a time-out."""
        writer = self._trail._writer
        durable = writer.line(self._timeout).expect(self._entry)
        writer.put(self._entry)
        if self._entry.durable is None:
            await durable
        if self._entry.durable is not True:
            raise self._trail.unavailable(self._timeout)


class _NameDigest:
    """Returns the digest by which records of a trail identify a name; None while the key can't be read or created.

    Args:
        key: the key, if it is known.
        path: the file of an embedded store, beside which the key is otherwise.
    """

    def __init__(self, key: AuditKey | None, path: Path | None) -> None:
        self._key = key
        self._path = path

    def __call__(self, name: str) -> str | None:
        if self._key is None:
            try:
                self._key = load_key(None, self._path, create=True)
            except Exception:  # the trail reports it, with the record that it can't write
                return None
        return str(self._key.content(name)["digest"])


def _record_maker(
    key: AuditKey | None,
    files: tuple[Path | None, Path | None],
    mode: ContentMode,
    redactor: Redactor | None,
    common: Mapping[str, Any],
) -> RecordMaker:
    """Return the builder of records, and log a warning for each of `files` that others can change.

    `files` are the paths of the store and of its checkpoints, each None if it is not a file.
    """
    audit_key = key or load_key(None, files[0], create=True)
    maker = RecordMaker(audit_key, mode, redactor, common)
    offer_digest(lambda name: str(audit_key.content(name)["digest"]))
    store, checkpoints = files
    checked = [*(() if store is None else sqlite_files(store)), *(() if checkpoints is None else (checkpoints,))]
    warn_of_access(_log, "the audit trail", *checked)
    return maker


def _mirror(telemetry: TelemetryOptions | None, batch: AppendBatch) -> None:
    mirror.mirror_records(batch.rows, telemetry)


def _watch(telemetry: TelemetryOptions | None, lag: Callable[[], float]) -> None:
    try:
        mirror.begin(telemetry)
        mirror.watch_lag(lag, telemetry)
    except Exception as error:
        report_failure(error, "the mirror of the audit trail")


def _check_content(content: ContentMode, redactor: Redactor | None) -> None:
    if content not in get_args(ContentMode):
        raise ConfigurationError("content must be 'digest', 'redacted' or 'full'")
    expect_callable("redactor", redactor)
    if redactor is not None and is_async(redactor):
        raise TypeError("redactor must be a plain function: drop `async`")
    if (content == "redacted") != (redactor is not None):
        raise ConfigurationError("redactor= is required with content='redacted' and not allowed otherwise")


def _common(service: str | None, tags: Mapping[str, str] | None) -> dict[str, Any]:
    expect("service", service, (str, type(None)), "a str or None")
    expect("tags", tags, (Mapping, type(None)), "a mapping of texts or None")
    common: dict[str, Any] = {} if service is None else {"service": searchable(service)}
    if not tags:
        return common
    for name, value in tags.items():
        expect("a tag's name", name, str, "a str")
        expect(f"the tag {name!r}", value, str, "a str")
    return {**common, "tags": {searchable(name): searchable(value) for name, value in tags.items()}}


def _publish(checkpoints: str | os.PathLike[str] | Publish | None, store: Store) -> Publish | None:
    if callable(checkpoints):
        if is_async(checkpoints):
            raise TypeError("checkpoints must be a path or a plain function, as a thread calls it: drop `async`")
        return checkpoints
    if checkpoints is not None:
        return CheckpointFile(Path(checkpoints).absolute())
    if store.path is not None:
        return CheckpointFile(checkpoints_beside(store.path))
    _log.warning(
        "audit trail %s: checkpoints are stored only in the database; pass checkpoints= to keep copies outside it",
        store.name,
    )
    return None
