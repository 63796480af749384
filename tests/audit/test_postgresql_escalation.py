"""A role that may only insert gains nothing by what it makes in the schema, nor by the times of what it inserts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege, RaiseException
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from tests.audit.postgresql import OWNER, SQL, WRITER, Database, Server
from tests.audit.test_postgresql_schema import INSERT, ns, partitions, where
from traced_tools.audit.schema import RECORDS

HOSTILE = "LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''% runs what the writer made'', current_user; END'"
DEFAULT = "audit_records_default"
BETTER_FITS = (
    *(
        "format(text, text)",
        "format(text, name)",
        "format(text, text, text)",
        "format(text, text, text, bigint, bigint)",
    ),
    *("replace(text, text, name)", "has_schema_privilege(name, name, text)"),
    *("quote_literal(name)", "extract(text, timestamp)", "to_regclass(name)", "right(name, integer)"),
)
"""Functions of which each takes arguments that PostgreSQL's own takes after a conversion."""


@pytest.fixture
def open_database(server: Server, request: pytest.FixtureRequest) -> Database:
    """A database where every role may create objects in the schema public, as before PostgreSQL 15."""
    database = Database(server, re.sub(r"\W+", "_", request.node.name)[-60:])
    grant_create(database)
    return database


def grant_create(database: Database) -> None:
    with closing(database.connect()) as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")


@contextmanager
def warnings_of(connection: psycopg.Connection[Any]) -> Iterator[list[str]]:
    heard: list[str] = []

    def hear(diagnostic: psycopg.errors.Diagnostic) -> None:
        heard.append(str(diagnostic.message_primary))

    connection.add_notice_handler(hear)
    yield heard
    connection.remove_notice_handler(hear)


def test_the_owner_runs_no_function_that_the_writer_created(open_database: Database) -> None:
    with closing(open_database.connect(WRITER)) as writer:
        for function in BETTER_FITS:
            writer.execute(f"CREATE FUNCTION public.{function} RETURNS text {HOSTILE}")
        writer.execute(f"CREATE FUNCTION public.same(name, text) RETURNS boolean {HOSTILE}")
        for operator in ("=", "<>", "~", ">="):
            writer.execute(
                f"CREATE OPERATOR public.{operator} (FUNCTION = public.same, LEFTARG = name, RIGHTARG = text)"
            )
        writer.execute(INSERT, ["moved", 1, ns(2005, 7)])
    with closing(open_database.connect()) as owner:
        assert owner.execute("SELECT audit_make_partitions(14)").fetchone() == (3,)
        assert where(owner, "moved") == {1: "audit_records_2005_07"}
        assert owner.execute("SELECT audit_detach_partitions('2006-01-01Z'::timestamptz)").fetchall() == [
            ("audit_records_2005_07",)
        ]
    open_database.set_up()


def test_the_sql_revokes_the_right_to_create_in_the_schema_of_the_trail(open_database: Database) -> None:
    open_database.set_up()
    with closing(open_database.connect(WRITER)) as writer, pytest.raises(InsufficientPrivilege):
        writer.execute("CREATE TABLE public.mine (n integer)")


def test_the_sql_fails_if_it_cannot_revoke_that_right(server: Server) -> None:
    with closing(server.connect(OWNER)) as connection:
        connection.execute(f"CREATE ROLE tenant LOGIN CREATEROLE PASSWORD '{server.password}'")
        connection.execute("CREATE DATABASE tenants OWNER tenant")
    with closing(server.connect("tenants")) as connection:
        connection.execute(f"ALTER SCHEMA public OWNER TO {OWNER}")
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    with closing(server.connect("tenants", "tenant")) as tenant:
        with pytest.raises(RaiseException, match="the role public may create objects in the schema public"):
            tenant.execute(SQL.read_bytes())
        assert tenant.execute("SELECT to_regclass('audit_records')").fetchone() == (None,)


@pytest.mark.parametrize(
    "made",
    [
        "CREATE FUNCTION public.audit_detach_partitions(text) RETURNS text LANGUAGE sql AS 'SELECT $1'",
        "CREATE FUNCTION public.audit_make_partitions() RETURNS integer LANGUAGE sql AS 'SELECT 0'",
    ],
)
def test_the_sql_fails_where_the_writer_made_a_function_of_that_name(open_database: Database, made: str) -> None:
    with closing(open_database.connect(WRITER)) as writer:
        writer.execute(made)
    with pytest.raises(RaiseException, match="belongs to another role"):
        open_database.set_up()


MADE = str(CreateTable(RECORDS).compile(dialect=postgresql.dialect()))
PARTITIONED = MADE.replace("(chain_id, sequence)", "(chain_id, sequence, time)") + " PARTITION BY RANGE (time)"


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("audit_records", PARTITIONED),
        ("audit_records_default", MADE.replace("audit_records", "audit_records_default")),
        ("audit_outcomes", "CREATE TABLE audit_outcomes (n integer)"),
        ("audit_checkpoints", "CREATE TYPE audit_checkpoints AS ENUM ()"),
    ],
)
def test_the_sql_fails_where_another_role_has_taken_a_name_of_the_trail(server: Server, name: str, made: str) -> None:
    taken = f"taken_{name}"
    with closing(server.connect(OWNER)) as connection:
        connection.execute(f"CREATE DATABASE {taken}")
    with closing(server.connect(taken)) as connection:
        connection.execute("GRANT CREATE ON SCHEMA public TO PUBLIC")
    with closing(server.connect(taken, WRITER)) as writer:
        writer.execute(made)
    with closing(server.connect(taken)) as owner, pytest.raises(RaiseException, match=f"^{name} belongs to another"):
        owner.execute(SQL.read_bytes())


def test_the_sql_fails_where_something_else_of_the_owner_has_the_name_of_a_part(server: Server) -> None:
    database = Database(server, "name_of_a_part")
    with closing(database.connect()) as owner:
        for drop, make, name in (
            ("DROP INDEX audit_outcomes", "CREATE TABLE audit_outcomes (n integer)", "audit_outcomes"),
            ("DROP TABLE audit_outcomes", "ALTER TABLE audit_records DETACH PARTITION audit_records_default", DEFAULT),
        ):
            owner.execute(drop)
            owner.execute(make)
            with pytest.raises(RaiseException, match=f"^{name} is not a part of the table audit_records"):
                database.set_up()
        with pytest.raises(RaiseException, match="audit_records_default is not a partition of the trail"):
            owner.execute("SELECT audit_make_partitions()")


def test_partitions_are_not_made_where_the_default_partition_belongs_to_another_role(server: Server) -> None:
    database = Database(server, "default_of_another")
    with closing(database.connect()) as owner:
        owner.execute(f"ALTER TABLE audit_records_default OWNER TO {WRITER}")
        with pytest.raises(RaiseException, match="audit_records_default is not a partition of the trail"):
            owner.execute("SELECT audit_make_partitions()")


def test_a_table_that_has_the_name_of_a_coming_month_is_warned_of(open_database: Database) -> None:
    now = datetime.now(UTC)
    name = f"audit_records_{now.year + 3}_{now.month:02}"
    with closing(open_database.connect(WRITER)) as writer:
        writer.execute(f"CREATE TABLE {name} (n integer)")
    with closing(open_database.connect()) as owner, warnings_of(owner) as heard:
        assert owner.execute("SELECT audit_make_partitions(36)").fetchone() == (23,)
    assert heard == [f"{name} is not a partition of the trail, so that its month has none"]


def test_records_of_impossible_months_stay_where_they_are_and_stop_nothing(server: Server) -> None:
    database = Database(server, "impossible_months")
    times = [2**63 - 1, -(2**63), 0, ns(1999, 12, 31), ns(2200, 1), ns(2004, 2)]
    with closing(database.connect(WRITER)) as writer, closing(database.connect()) as owner:
        for sequence, time in enumerate(times, 1):
            writer.execute(INSERT, ["far", sequence, time])
        with warnings_of(owner) as heard:
            assert owner.execute("SELECT audit_make_partitions(13)").fetchone() == (2,)
        assert set(where(owner, "far").values()) == {"audit_records_default", "audit_records_2004_02"}
    assert heard == [
        "5 records of 5 months stay in audit_records_default; the first months are "
        "1677-09, 1970-01, 1999-12, 2200-01, 2262-04"
    ]


def test_records_of_very_many_months_are_moved_a_few_months_at_a_time(server: Server) -> None:
    database = Database(server, "many_months")
    with closing(database.connect(WRITER)) as writer, closing(database.connect()) as owner:
        for sequence in range(1, 41):
            writer.execute(INSERT, ["many", sequence, ns(2010 + sequence // 12, sequence % 12 + 1)])
        before = partitions(owner)
        with warnings_of(owner) as heard:
            assert owner.execute("SELECT audit_make_partitions()").fetchone() == (36,)
        assert heard == [
            "4 records of 4 months stay in audit_records_default; the first months are "
            "2010-02, 2010-03, 2010-04, 2010-05"
        ]
        assert owner.execute("SELECT audit_make_partitions()").fetchone() == (4,)
        assert len(partitions(owner) - before) == 40
