"""The checks of the audit store and the pending store. Neither is created or changed."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from os import environ
from typing import Final

from traced_tools.approvals.pending_store import PendingStore
from traced_tools.audit.reading.read_connection import open_for_reading
from traced_tools.cli.doctor.result import Check, Result, State
from traced_tools.core.variables import AUDIT_STORE
from traced_tools.core.variables import PENDING_STORE as PENDING
from traced_tools.errors import TracedToolsError

_GROUP: Final = "store"


def store_checks() -> Iterator[Check]:
    """Yield the checks of the stores that the environment names."""
    if location := environ.get(AUDIT_STORE):
        yield Check(_GROUP, "audit", partial(_open_audit, location))
    if location := environ.get(PENDING):
        yield Check(_GROUP, "pending", partial(_open_pending, location))


def _open_audit(location: str) -> Iterator[Result]:
    try:
        with open_for_reading(location) as connection:
            place, difference = connection.name, connection.difference()
    except TracedToolsError as error:
        yield Result(_GROUP, "audit", State.PROBLEM, str(error), f"correct {AUDIT_STORE}, or start the database")
        return
    if difference is None:
        yield Result(_GROUP, "audit", State.OK, f"{place} can be read, and has the structure of this version")
    else:
        advice = "run `traced-tools audit verify`, which says what was changed"
        yield Result(_GROUP, "audit", State.PROBLEM, f"{place} has another structure: {difference}", advice)


def _open_pending(location: str) -> Iterator[Result]:
    try:
        with PendingStore(location) as store:
            has_tables = store.exists()
    except TracedToolsError as error:
        yield Result(_GROUP, "pending", State.PROBLEM, str(error), f"correct {PENDING}, or start the database")
        return
    if has_tables:
        yield Result(_GROUP, "pending", State.OK, "the store can be read, and has its tables")
    else:
        text = "there is no pending store yet: the first run that waits creates it"
        yield Result(
            _GROUP, "pending", State.PROBLEM, text, f"correct {PENDING} if a client already uses another store"
        )
