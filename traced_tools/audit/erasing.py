"""Erases stored texts of contents: finds the records, creates the erasure record and removes the texts.

An erasure removes a text and its salt. The digest, the size and `text_hash` stay, so the record's hash and the chain
still verify. The erasure record lists each text, who requested the erasure and why. It is durable, and covered by a
checkpoint, before the first text is removed.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import SQLAlchemyError

from traced_tools.audit.reading import queries
from traced_tools.audit.reading.read_connection import ReadConnection, StorePath, open_for_reading, parsed
from traced_tools.audit.records import (
    ERASABLE_VERSION,
    Draft,
    body_of,
    commits_to_text,
    is_hash_of_erasable,
    printable_id,
    text_hash,
    without_text,
)
from traced_tools.audit.store import Store, problem_of
from traced_tools.errors import AuditError, ConfigurationError

MOST_CHARACTERS: Final = 512
"""The maximum length of `requested_by` and of the reason."""
_BATCH: Final = 100
"""Records in one erasure record. With many more, the body would be truncated."""
_INCLUDED: Final = {"arguments": ("arguments", "requested_arguments")}
"""Contents that are erased together, because they are forms of the same data."""
_PLACE: Final = "WHERE chain_id = :chain_id AND sequence = :sequence AND time = :time"
_UPDATE: Final = sql(f"UPDATE audit_records SET body = :body {_PLACE}")
_SELECT: Final = f"SELECT body FROM audit_records {_PLACE}"


@dataclass(frozen=True, slots=True)
class Erasure:
    """The result of an erasure.

    Args:
        run_id: the run whose contents were erased.
        texts: how many texts were erased.
        records: how many records held them.
        requested_by: who requested the erasure.
        reason: why.
    """

    run_id: str
    texts: int
    records: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """A record, and the names of the contents to erase in it."""

    chain_id: str
    sequence: int
    time: int
    hash: str
    names: tuple[str, ...]


def targets(
    store: StorePath, run_id: str, call_id: str | None = None, contents: Sequence[str] | None = None
) -> list[Target]:
    """Return the records of a run that hold the selected texts.

    Args:
        store: a path, or an SQLAlchemy URL.
        run_id: the run.
        call_id: one of its calls; None for all.
        contents: which contents; None for all. `arguments` includes `requested_arguments`.

    Raises:
        AuditError: if the store cannot be read or has no such run or call, if its structure is not what this version
            makes, if a record is not what was written, or if its hash covers its texts, as those of earlier versions
            do.
    """
    selection = None if contents is None else {member for name in contents for member in _INCLUDED.get(name, (name,))}
    erasable: list[Target] = []
    is_in_trail = False
    with open_for_reading(store) as opened_store:
        if opened_store.difference() is not None:  # such as a trigger that keeps erased texts
            raise AuditError(
                "the audit store has another structure than this version of traced_tools creates, so nothing is "
                "erased: run verify, which reports the difference"
            )
        for chain_id, sequence, recorded_at, hash_, body, fields in _records(opened_store, run_id, call_id):
            is_in_trail = True
            if texts := _selected_texts(fields, selection):
                _check_erasable(f"record {sequence} of the chain {printable_id(chain_id)}", fields, texts)
                target = Target(chain_id, sequence, recorded_at, hash_, texts)
                _without_target_texts(target, body)
                erasable.append(target)
    if not is_in_trail:
        raise AuditError(
            f"the audit store has no {'run' if call_id is None else 'such call in the run'} {run_id[:64]!a}"
        )
    return erasable


def _selected_texts(fields: Mapping[str, Any], selection: Set[str] | None) -> tuple[str, ...]:
    """Return the names of the fields of a record that hold texts, of those in the selection; None selects all."""
    texts = [name for name, value in fields.items() if _is_content(value)]
    return tuple(name for name in texts if selection is None or name in selection)


def _check_erasable(place: str, fields: Mapping[str, Any], texts: Iterable[str]) -> None:
    """Raise `AuditError` if the hash of a record covers its texts."""
    if fields.get("schema_version") != ERASABLE_VERSION or not all(commits_to_text(fields[name]) for name in texts):
        raise AuditError(
            f"{place} was written by an earlier version of traced_tools: its hash covers its texts, so they "
            "cannot be erased without breaking its chain. Archive or delete the store, or its month, as a whole"
        )


def _records(store: ReadConnection, run_id: str, call_id: str | None) -> Iterator[tuple[Any, ...]]:
    for _, _, _, chain_id, sequence, recorded_at, _, hash_, body in store.rows(queries.records_of_run(run_id)):
        fields = parsed(body) or {}
        if call_id is None or fields.get("call_id") == call_id:
            yield chain_id, sequence, recorded_at, hash_, body, fields


def _without_target_texts(target: Target, body: str | None) -> str:
    """Return the body of a record without the texts to erase.

    Raises:
        AuditError: if the record was changed since it was written.
    """
    fields = parsed(body) or {}
    names = [name for name in target.names if _is_content(fields.get(name))]
    genuine = all(text_hash(fields[name]) == fields[name].get("text_hash") for name in names)
    if body is None or not genuine or not is_hash_of_erasable(target.hash, fields, body):
        raise AuditError(
            f"record {target.sequence} of the chain {printable_id(target.chain_id)} is not what was written, and "
            "erasing would hide it: run verify first"
        )
    return body_of({name: without_text(value) if name in names else value for name, value in fields.items()})


def _is_content(value: object) -> bool:
    return isinstance(value, dict) and type(value.get("size")) is int and isinstance(value.get("text"), str)


def drafts(erasures: Sequence[Target], run_id: str, requested_by: str, reason: str) -> Iterator[Draft]:
    """Yield the erasure records for these targets."""
    for start in range(0, len(erasures), _BATCH):
        erased = [
            {"chain_id": target.chain_id, "sequence": target.sequence, "hash": target.hash, "contents": [*target.names]}
            for target in erasures[start : start + _BATCH]
        ]
        fields = {
            "schema_version": ERASABLE_VERSION,
            "erased": erased,
            "erased_run": run_id,
            "requested_by": requested_by,
            "erasure_reason": reason,
        }
        yield Draft("erasure", time.time_ns(), fields=fields)


def check_erasure_texts(**texts: str) -> None:
    """Raise `ConfigurationError` unless each value is a non-blank text of at most 512 characters."""
    for name, value in texts.items():
        if not isinstance(value, str) or not value.strip() or len(value) > MOST_CHARACTERS:
            raise ConfigurationError(f"{name} must be a text of 1 to {MOST_CHARACTERS} characters")


def check_may_change(store: Store, timeout: float) -> None:
    """Raise unless records of the store can be changed here.

    Args:
        store: the store, which exists.
        timeout: seconds to wait for other processes.

    Raises:
        AuditError: if the file cannot be written, or the role may not update records, as a writer's must not.
    """
    with _changing(store, timeout) as connection:
        if store.path is not None:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            connection.exec_driver_sql("ROLLBACK")
            return
        allowed = connection.exec_driver_sql("SELECT has_table_privilege('audit_records', 'UPDATE')").scalar()
    if not allowed:
        raise AuditError(f"the role of {store.name} may not change records: erase as the owner of the table")


def remove(store: Store, erasures: Sequence[Target], timeout: float) -> None:
    """Remove texts from the records and, in an embedded store, their bytes from its files.

    PostgreSQL keeps the bytes on disk until the table is rewritten, as `VACUUM (FULL)` does.

    Args:
        store: the store.
        erasures: the records; empty to remove only the remaining bytes of earlier erasures.
        timeout: seconds to wait for other processes.

    Raises:
        AuditError: if the store or one of the records cannot be changed, or other processes keep the bytes in its
            files.
    """
    with _changing(store, timeout) as connection:
        if store.path is not None:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if store.path is not None else "BEGIN")
        # Read again in the transaction, so that a concurrent erasure of the same record is not undone.
        select = sql(_SELECT if store.path is not None else f"{_SELECT} FOR UPDATE")
        for target in erasures:
            place = {"chain_id": target.chain_id, "sequence": target.sequence, "time": target.time}
            connection.execute(
                _UPDATE, {**place, "body": _without_target_texts(target, connection.execute(select, place).scalar())}
            )
        connection.exec_driver_sql("COMMIT")
        if store.path is not None:
            connection.exec_driver_sql("VACUUM")  # pages may hold copies from earlier changes
            is_busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            if is_busy:
                raise AuditError(
                    f"the texts are erased from the records, but {store.path}-wal may still hold their bytes, as "
                    "another process reads the store: run erase again when no process reads it"
                )


@contextmanager
def _changing(store: Store, timeout: float) -> Iterator[Connection]:
    try:
        with store.connect_changing() as connection:
            if store.path is not None:
                connection.exec_driver_sql(f"PRAGMA busy_timeout = {int(timeout * 1000)}")
            yield connection
            return
    except (SQLAlchemyError, sqlite3.Error) as error:
        problem = problem_of(error)
    raise AuditError(f"the audit store {store.name} cannot be changed: {problem}")
