"""The tables of runs that wait for approval or input, and of durable runs, in SQLite and PostgreSQL."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Index,
    MetaData,
    PrimaryKeyConstraint,
    Table,
    Text,
    TypeDecorator,
    inspect,
)
from sqlalchemy import text as sql

from traced_tools.core.escaping import escaped, unescaped
from traced_tools.errors import PendingStoreError
from traced_tools.stores.schema import Schema


class _AnyText(TypeDecorator[str]):
    """A text that a model or an application wrote, which may have characters that databases cannot store."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else escaped(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return unescaped(value) if isinstance(value, str) else value


_METADATA: Final = MetaData()
_IS_UNSPENT: Final = sql("spent_at IS NULL")
_IS_UNDECIDED: Final = sql("decided_at IS NULL")
RUNS: Final = Table(
    "pending_runs",
    _METADATA,
    Column("state_id", _AnyText, primary_key=True),
    Column("run_id", _AnyText, nullable=False),
    Column("agent", _AnyText, nullable=False),
    Column("conversation_id", _AnyText),
    Column("principal", _AnyText),
    Column("state", Text, nullable=False),  # the text of a `RunState`, with its digest
    Column("created_at", BigInteger, nullable=False),  # microseconds of Unix time, like the other times
    Column("spent_at", BigInteger),
    Column("withdrawn_at", BigInteger),  # equals `spent_at` of a run that was withdrawn
    Column("refused_at", BigInteger),
    Column("refusal", Text),  # a `ResumeRefusal`: why the run can't resume
    Index(
        "pending_runs_unspent",
        *("created_at", "state_id"),
        sqlite_where=_IS_UNSPENT,
        postgresql_where=_IS_UNSPENT,
    ),
    Index("pending_runs_of_run", "run_id"),
    Index("pending_runs_of_principal", "principal"),
    Index("pending_runs_spent", "spent_at"),
)
CALLS: Final = Table(
    "pending_calls",
    _METADATA,
    Column("state_id", _AnyText, nullable=False),
    Column("call_id", _AnyText, nullable=False),
    Column("path", Text),  # canonical JSON: the tools through which agents were asked, for a call of a nested run
    Column("tool", _AnyText, nullable=False),
    Column("arguments", Text, nullable=False),  # canonical JSON
    Column("rule", _AnyText),
    Column("reason", _AnyText),
    Column("intent", _AnyText),
    Column("input", Text),  # JSON: the questions of a call that waits for input
    Column("requested_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("decision", Text),  # canonical JSON: approve, reject or provide, other arguments or answers, the reason code
    Column("decided_by", _AnyText),
    Column("decided_at", BigInteger),
    Column("decision_reason", _AnyText),
    PrimaryKeyConstraint("state_id", "call_id"),
    Index(
        "pending_calls_undecided",
        *("requested_at", "state_id", "call_id"),
        sqlite_where=_IS_UNDECIDED,
        postgresql_where=_IS_UNDECIDED,
    ),
    Index("pending_calls_of_call", "call_id"),
)
DELETED: Final = Table(
    "pending_deleted",
    _METADATA,
    Column("state_id", _AnyText, primary_key=True),  # so that a state that was spent is never kept again
)
DURABLE_RUNS: Final = Table(
    "durable_runs",
    _METADATA,
    Column("key", _AnyText, primary_key=True),
    Column("agent", _AnyText, nullable=False),
    Column("principal", _AnyText),
    Column("status", Text, nullable=False),  # a `RunStatus`
    Column("last", BigInteger, nullable=False),  # the number of the last record
    Column("lives", BigInteger, nullable=False),  # how many lives have begun since the run was submitted or went on
    Column("state_id", _AnyText),  # the state with which it waits, or has waited last
    Column("submitted_at", BigInteger, nullable=False),
    Column("changed_at", BigInteger, nullable=False),  # the status
    Column("priority", BigInteger, nullable=False, server_default="0"),  # a higher one comes first
    Index("durable_runs_by_status", "status", "agent", "changed_at"),
    Index("durable_runs_of_state", "state_id"),
    Index("durable_runs_of_principal", "principal"),
)
RUN_RECORDS: Final = Table(
    "run_records",
    _METADATA,
    Column("key", _AnyText, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("body", Text, nullable=False),  # JSON; see `durable/records`
    Column("digest", Text, nullable=False),
    Column("recorded_at", BigInteger, nullable=False),
    PrimaryKeyConstraint("key", "number"),
)


def _add_withdrawals(connection: Connection) -> None:
    connection.execute(sql("ALTER TABLE pending_runs ADD COLUMN withdrawn_at BIGINT"))


def _add_input(connection: Connection) -> None:
    connection.execute(sql("ALTER TABLE pending_calls ADD COLUMN input TEXT"))


def _add_deleted(connection: Connection) -> None:
    DELETED.create(connection, checkfirst=True)


def _add_paths(connection: Connection) -> None:
    connection.execute(sql("ALTER TABLE pending_calls ADD COLUMN path TEXT"))


def _add_refusals(connection: Connection) -> None:
    connection.execute(sql("ALTER TABLE pending_runs ADD COLUMN refused_at BIGINT"))
    connection.execute(sql("ALTER TABLE pending_runs ADD COLUMN refusal TEXT"))


def _add_durable_runs(connection: Connection) -> None:
    DURABLE_RUNS.create(connection, checkfirst=True)
    RUN_RECORDS.create(connection, checkfirst=True)


def _add_priorities(connection: Connection) -> None:
    columns = inspect(connection).get_columns(DURABLE_RUNS.name)
    if not any(column["name"] == "priority" for column in columns):  # the migration before may have made the table
        connection.execute(sql("ALTER TABLE durable_runs ADD COLUMN priority BIGINT NOT NULL DEFAULT 0"))


PENDING_STORE: Final = Schema(
    "pending store",
    _METADATA,
    version_table="pending_schema",
    version=8,
    migrations={
        1: _add_withdrawals,
        2: _add_input,
        3: _add_deleted,
        4: _add_paths,
        5: _add_refusals,
        6: _add_durable_runs,
        7: _add_priorities,
    },
    lock=7_164_911_036_722_107_842,
    error=PendingStoreError,
)
