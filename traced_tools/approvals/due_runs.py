"""Which durable runs a worker drives next, in the database of the pending store."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Final

from sqlalchemy import BigInteger, bindparam, case, desc, literal, or_, select, update

from traced_tools.approvals.pending_queries import DURABLE_RUN, IS_READY, NOW
from traced_tools.approvals.pending_schema import DURABLE_RUNS, RUNS
from traced_tools.approvals.run_logs import MAX_LIVES
from traced_tools.core.enums import RunStatus
from traced_tools.core.frozen import frozen
from traced_tools.errors import PendingStoreUnavailable
from traced_tools.stores.columns import unix_microseconds
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors

_SECOND: Final = 1_000_000
_LONGEST_PAUSE: Final = 600
"""Seconds. With it, the lives of a run that fails each time span 45 minutes."""


def pause_after(lives: int) -> int:
    """Return the seconds between a life that an error has ended and the next one, after so many lives."""
    return int(min(4 ** (lives - 1), _LONGEST_PAUSE)) if lives > 0 else 0


_PAUSE: Final = case(
    *((DURABLE_RUNS.c.lives == lives, literal(pause_after(lives) * _SECOND, BigInteger)) for lives in range(MAX_LIVES)),
    else_=literal(_LONGEST_PAUSE * _SECOND, BigInteger),
)
_NAMES: Final = ("key", "agent", "principal", "status", "lives", "last", "priority")
_COLUMNS: Final = tuple(DURABLE_RUNS.c[name] for name in _NAMES)
_BEGINS: Final = select(*_COLUMNS, DURABLE_RUNS.c.changed_at).where(
    or_(
        DURABLE_RUNS.c.status == "submitted",
        (DURABLE_RUNS.c.status == "interrupted") & (DURABLE_RUNS.c.changed_at + _PAUSE <= NOW),
    )
)
_GOES_ON: Final = (
    select(*_COLUMNS, DURABLE_RUNS.c.changed_at)
    .join(RUNS, RUNS.c.state_id == DURABLE_RUNS.c.state_id)
    .where(DURABLE_RUNS.c.status == "waiting", IS_READY)
)
_DUE: Final = _BEGINS.union_all(_GOES_ON).order_by(desc("priority"), "changed_at", "key")
_LEFT_LIFE: Final = (
    update(DURABLE_RUNS)
    .where(DURABLE_RUNS.c.key == bindparam("of_key"), DURABLE_RUNS.c.status == "running")
    .where(DURABLE_RUNS.c.lives == bindparam("of_life"))
    .values(status=case((DURABLE_RUNS.c.lives >= MAX_LIVES, "failed"), else_="interrupted"), changed_at=NOW)
)
_without_texts: Final = translate_errors(sql_problem, PendingStoreUnavailable)


@frozen
class DueRun:
    """A durable run and how far its log is.

    Attributes:
        key: its key.
        agent: the name of the client.
        principal: on whose behalf it acts; None if it is not known.
        status: where it is.
        lives: how many lives have begun since it was submitted, or went on after a pause.
        last: the number of the last record of its log.
        priority: those with a higher one come first.
    """

    key: str
    agent: str
    principal: str | None = field(repr=False)
    status: RunStatus
    lives: int
    last: int
    priority: int


class DueRuns:
    """The durable runs of a pending store, as workers see them. The methods block.

    Args:
        database: the database of the store.

    Attributes:
        database: the same.
    """

    def __init__(self, database: Database) -> None:
        self.database: Final = database

    @_without_texts
    def due(self) -> list[DueRun]:
        """Return the runs that a worker can drive now, of all agents, by priority, then those that waited longest.

        A run is due once it is submitted, once all of its calls are decided or expired, and some time after an error
        has ended its last life: see `pause_after`.
        """
        with self.database.connect() as connection:
            return [_due_run(row) for row in connection.execute(_DUE, {"now": unix_microseconds()})]

    @_without_texts
    def find(self, key: str) -> DueRun | None:
        """Return a run, due or not; None if the store has none with this key."""
        with self.database.connect() as connection:
            rows = DURABLE_RUN.rows(connection, {"of_key": key})
        return _due_run(rows[0]) if rows else None

    @_without_texts
    def interrupt(self, key: str, lives: int) -> None:
        """Note that the last life of a run has ended without a record, unless the run has gone on.

        Args:
            key: the key of the run.
            lives: how many lives have begun, the one that has ended included. After `MAX_LIVES`, the run is failed.
        """
        with self.database.transaction() as connection:
            connection.execute(_LEFT_LIFE, {"of_key": key, "of_life": lives, "now": unix_microseconds()})

    def __repr__(self) -> str:
        return f"DueRuns({str(self.database)!r})"


def _due_run(row: Any) -> DueRun:
    return DueRun(row.key, row.agent, row.principal, row.status, row.lives, row.last, row.priority)
