"""Erasing stored texts of contents: which records hold them, the record that says so, and their removal from the store.

An erasure takes out a text and its salt. The digest, the size and the commitment to the text stay, so the record's hash
and the chain still verify. The erasure is a record itself: it names each text, who asked and why. It is durable, and
covered by a checkpoint, before the first text goes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy import text as sql
from sqlalchemy.exc import SQLAlchemyError

from traced_tools.audit import queries
from traced_tools.audit.evidence import names_of
from traced_tools.audit.opening import OpenStore, StorePath, opened, parsed
from traced_tools.audit.records import (
    ERASABLE_VERSION,
    Draft,
    body_of,
    commits,
    is_hash_of_erasable,
    text_hash,
    without_text,
)
from traced_tools.audit.store import Store, problem_of
from traced_tools.errors import AuditError, ConfigurationError

MOST_WORDS: Final = 512
"""Characters of who asked, and of the reason."""
_AT_ONCE: Final = 100
"""Records that one erasure names; with many more its body would be cut."""
_UPDATE: Final = sql(
    "UPDATE audit_records SET body = :body WHERE chain_id = :chain_id AND sequence = :sequence AND time = :time"
)


@dataclass(frozen=True, slots=True)
class Erasure:
    """What an erasure removed.

    Args:
        run_id: the run whose contents were erased.
        texts: how many texts.
        records: how many records held them.
        requested_by: who asked for it.
        reason: why.
    """

    run_id: str
    texts: int
    records: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """A record and the names of the contents whose texts are to be erased."""

    chain_id: str
    sequence: int
    time: int
    hash: str
    names: tuple[str, ...]
    body: str
    """What is left of the record."""


def targets(
    store: StorePath, run_id: str, call_id: str | None = None, contents: Sequence[str] | None = None
) -> list[Target]:
    """Return the records of a run that hold such texts.

    Args:
        store: a path, or an SQLAlchemy URL.
        run_id: the run.
        call_id: one of its calls; None for all.
        contents: which contents, such as `arguments`; None for all.

    Raises:
        AuditError: if the store cannot be read or has no such run or call, if its structure is not what this version
            makes, if a record is not what was written, or if its hash covers its texts, as those of earlier versions
            do.
    """
    found: list[Target] = []
    known = False
    with opened(store) as opened_store:
        if opened_store.difference() is not None:  # such as a trigger that keeps what is erased
            raise AuditError(
                "the structure of the audit store is not what this version of traced_tools makes, so nothing is "
                "erased: run verify, which names the difference"
            )
        for chain_id, sequence, when, hash_, body, fields in _records(opened_store, run_id, call_id):
            known = True
            texts = [name for name, value in fields.items() if _is_content(value)]
            asked = tuple(name for name in texts if contents is None or name in contents)
            if not asked:
                continue
            place = f"record {sequence} of the chain {names_of(chain_id)}"
            if fields.get("schema_version") != ERASABLE_VERSION or not all(commits(fields[name]) for name in asked):
                raise AuditError(
                    f"{place} was written by an earlier version of traced_tools: its hash covers its texts, so they "
                    "cannot be erased without breaking its chain. Archive or delete the store, or its month, as a whole"
                )
            genuine = all(text_hash(fields[name]) == fields[name]["text_hash"] for name in asked)
            if not genuine or not is_hash_of_erasable(hash_, fields, body):
                raise AuditError(f"{place} is not what was written, and erasing would hide it: run verify first")
            left = {name: without_text(value) if name in asked else value for name, value in fields.items()}
            found.append(Target(chain_id, sequence, when, hash_, asked, body_of(left)))
    if not known:
        raise AuditError(
            f"the audit store has no {'run' if call_id is None else 'such call in the run'} {run_id[:64]!a}"
        )
    return found


def _records(store: OpenStore, run_id: str, call_id: str | None) -> Iterator[tuple[Any, ...]]:
    for _, _, _, chain_id, sequence, when, _, hash_, body in store.rows(queries.records_of_run(run_id)):
        fields = parsed(body) or {}
        if call_id is None or fields.get("call_id") == call_id:
            yield chain_id, sequence, when, hash_, body, fields


def _is_content(value: object) -> bool:
    return isinstance(value, dict) and type(value.get("size")) is int and isinstance(value.get("text"), str)


def drafts(found: Sequence[Target], run_id: str, requested_by: str, reason: str) -> Iterator[Draft]:
    """Give the records of the erasure of these texts."""
    for start in range(0, len(found), _AT_ONCE):
        erased = [
            {"chain_id": each.chain_id, "sequence": each.sequence, "hash": each.hash, "contents": [*each.names]}
            for each in found[start : start + _AT_ONCE]
        ]
        fields = {
            "schema_version": ERASABLE_VERSION,
            "erased": erased,
            "erased_run": run_id,
            "requested_by": requested_by,
            "erasure_reason": reason,
        }
        yield Draft("erasure", time.time_ns(), fields=fields)


def check_words(**words: str) -> None:
    """Raise `ConfigurationError` unless each word is a text that a record can hold."""
    for name, value in words.items():
        if not isinstance(value, str) or not value.strip() or len(value) > MOST_WORDS:
            raise ConfigurationError(f"{name} must be a text of 1 to {MOST_WORDS} characters")


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


def remove(store: Store, found: Sequence[Target], timeout: float) -> None:
    """Take texts out of the records, and an embedded store's bytes of them out of its files.

    A server's disk holds them until the table is rewritten; see deploy/audit/README.md.

    Args:
        store: the store.
        found: the records. None of them if only the bytes of earlier erasures are to go.
        timeout: seconds to wait for other processes.

    Raises:
        AuditError: if the store cannot be changed, or other processes keep the bytes in its files.
    """
    values = [
        {"chain_id": each.chain_id, "sequence": each.sequence, "time": each.time, "body": each.body} for each in found
    ]
    with _changing(store, timeout) as connection:
        if store.path is not None:
            connection.exec_driver_sql("PRAGMA secure_delete = ON")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if store.path is not None else "BEGIN")
        if values:
            connection.execute(_UPDATE, values)
        connection.exec_driver_sql("COMMIT")
        if store.path is not None:
            connection.exec_driver_sql("VACUUM")  # pages may hold copies that earlier changes left behind
            is_busy = connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()[0]
            if is_busy:
                raise AuditError(
                    f"the texts are erased from the records, but {store.path}-wal may still hold their bytes, as "
                    "another process reads the store: erase again when none does"
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
