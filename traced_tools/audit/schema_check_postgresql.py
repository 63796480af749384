"""Checks that a PostgreSQL store has the tables of `deploy/audit/postgresql.sql`, and that its indexes match them.

A view, a rule, a policy, a foreign partition or an index that omits records would make queries return other records
than those that were written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Integer, Text, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.exc import DBAPIError

from traced_tools.audit.indexes import INDEXES
from traced_tools.audit.schema import RECORDS

Sum = tuple[Any, Any]
"""The number of entries of an index, and the sum of their hashes."""
_CORRUPT: Final = "XX"
"""The class of the SQLSTATE of internal errors, which damaged pages cause."""
_KINDS: Final = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view", "f": "foreign table"}
_WITHOUT_INDEXES: Final = ("enable_indexscan", "enable_indexonlyscan", "enable_bitmapscan")
_BY_INDEX: Final = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort")
_ALL_TABLES: Final = """
WITH RECURSIVE tables(oid) AS (
    SELECT 'audit_records'::regclass::oid UNION SELECT inhrelid FROM pg_inherits JOIN tables ON inhparent = tables.oid
)
"""
_TABLES: Final = f"""{_ALL_TABLES}
SELECT own.oid, own.oid = 'audit_records'::regclass, relname, relkind, relpersistence = 'p', relrowsecurity,
    (SELECT min(rulename) FROM pg_rewrite WHERE ev_class = own.oid),
    (SELECT min(tgname) FROM pg_trigger WHERE tgrelid = own.oid AND NOT tgisinternal),
    (SELECT min(conname) FROM pg_constraint WHERE conrelid = own.oid AND contype NOT IN ('p', 'n')),
    pg_get_partition_constraintdef(own.oid)
FROM pg_class AS own JOIN tables ON own.oid = tables.oid ORDER BY 1
"""
_TABLE_COLUMNS: Final = f"""{_ALL_TABLES}
SELECT attrelid, attname, format_type(atttypid, atttypmod), attnotnull, attgenerated = '' AND attidentity = '',
    attcollation = typcollation
FROM pg_attribute JOIN tables ON attrelid = tables.oid JOIN pg_type ON pg_type.oid = atttypid
WHERE attnum > 0 AND NOT attisdropped ORDER BY attrelid, attnum
"""
_TABLE_INDEXES: Final = f"""{_ALL_TABLES}
SELECT indrelid, indexrelid, own.relname, own.relkind, indisprimary, indisvalid AND indisready AND indislive,
    format('CREATE %sINDEX %I ON %s%I.%I USING ', CASE WHEN indisunique THEN 'UNIQUE ' END, own.relname,
        CASE WHEN whole.relkind = 'p' THEN 'ONLY ' END, nspname, whole.relname),
    pg_get_indexdef(indexrelid)
FROM pg_index JOIN tables ON indrelid = tables.oid JOIN pg_class AS own ON own.oid = indexrelid
    JOIN pg_class AS whole ON whole.oid = indrelid JOIN pg_namespace ON pg_namespace.oid = whole.relnamespace
ORDER BY indrelid, own.relname
"""
_AMCHECK: Final = """
SELECT function FROM (
    SELECT format('%I.bt_index_check', nspname) AS function, nspname
    FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'amcheck' OFFSET 0
) AS found
WHERE CASE WHEN has_schema_privilege(nspname, 'USAGE')
    THEN has_function_privilege(to_regprocedure(function || '(regclass,boolean)'), 'EXECUTE') END
"""
_PIN: Final = """
SELECT pg_catalog.set_config('search_path', pg_catalog.format('pg_catalog, %I, pg_temp', nspname), true)
FROM pg_catalog.pg_class JOIN pg_catalog.pg_namespace ON pg_namespace.oid OPERATOR(pg_catalog.=) relnamespace
WHERE pg_class.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass('audit_records')::pg_catalog.oid
"""


def pin_schema(connection: Connection) -> bool:
    """Set the search path to `pg_catalog` and the trail's schema; return whether there is a trail."""
    return connection.execute(text(_PIN)).first() is not None


def without_indexes(connection: Connection, *, begin: bool) -> None:
    """Turn index scans off (`begin`) or back on."""
    _set(connection, _WITHOUT_INDEXES, "off" if begin else "on")


def difference(connection: Connection) -> str | None:
    """Return the first difference between the tables of a trail and the tables that this version's script creates."""
    tables = connection.execute(text(_TABLES)).all()
    names = {oid: str(name) for oid, _, name, *_ in tables}
    for _, is_whole, name, kind, is_logged, has_policies, rule, trigger, constraint, _ in tables:
        expected = "p" if is_whole else "r"
        if kind != expected:
            return f"{name} is a {_KINDS.get(kind, kind)}, not a {_KINDS[expected]}"
        if not is_logged:
            return f"the table {name} is unlogged"
        if has_policies:
            return f"the table {name} has row security"
        for noun, addition in (("rule", rule), ("trigger", trigger), ("constraint", constraint)):
            if addition is not None:
                return f"the {noun} {addition} of the table {name} is no part of a trail"
    return next(_column_differences(connection, names), None) or next(_index_differences(connection, names), None)


def damage(connection: Connection) -> str | None:
    """Return the first index that disagrees with its table, or the first sign of damaged pages.

    Each index is read twice: its own values, and the records that it points to. Both must equal the table's, in the
    text order of this database. `amcheck` is more thorough, and runs if this role may call it.
    """
    _set(connection, ["max_parallel_workers_per_gather"], "0")
    for name, find in _checks(connection):
        try:
            problem = find(connection)
        except DBAPIError as error:
            state = str(getattr(error.orig, "sqlstate", ""))
            if not state.startswith(_CORRUPT):
                raise
            problem = f"PostgreSQL finds {name} damaged (SQLSTATE {state})"
        if problem is not None:
            return problem
    return None


def _column_differences(connection: Connection, names: dict[int, str]) -> Iterator[str]:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    expected = {
        column.name: (column.type.compile(dialect=dialect).lower(), not column.nullable, True, True)
        for column in RECORDS.columns
    }
    columns_of_tables: dict[int, dict[str, Any]] = {oid: {} for oid in names}
    for oid, name, *declaration in connection.execute(text(_TABLE_COLUMNS)):
        columns_of_tables[oid][name] = tuple(declaration)
    for oid, columns in columns_of_tables.items():
        for name in {**expected, **columns}:
            if name not in columns:
                yield f"the table {names[oid]} has no column {name}"
            elif name not in expected:
                yield f"the column {name} of the table {names[oid]} is no part of a trail"
            elif columns[name] != expected[name]:
                yield f"the column {name} of the table {names[oid]} is declared otherwise: {columns[name][0]}"


def _index_differences(connection: Connection, names: dict[int, str]) -> Iterator[str]:
    expected = {_definition(columns, condition): name for name, columns, condition in _indexes()}
    missing = {oid: {*expected} for oid in names}
    for oid, _, name, _, is_primary, is_usable, beginning, sql in connection.execute(text(_TABLE_INDEXES)):
        definition = _normalize(sql.removeprefix(beginning))
        if definition not in missing[oid] or (expected[definition] == _PRIMARY_KEY) is not is_primary:
            yield f"the index {name} of the table {names[oid]} is no part of a trail"
        if not is_usable:
            yield f"the index {name} of the table {names[oid]} is invalid"
        missing[oid].discard(definition)
    for oid, definitions in missing.items():
        for definition in sorted(definitions):
            yield f"the table {names[oid]} lacks the index {expected[definition]}"


_PRIMARY_KEY: Final = "audit_records_pkey"


def _indexes() -> Iterator[tuple[str, list[str], str]]:
    """Yield the name, the columns and the condition of each index."""
    partition_key = "time"  # PostgreSQL requires it in every unique index
    yield _PRIMARY_KEY, [*(column.name for column in RECORDS.primary_key), partition_key], "true"
    for index in INDEXES:
        yield (
            str(index.name),
            [column.name for column in index.columns],
            str(index.dialect_options["postgresql"]["where"]),
        )


def _definition(columns: list[str], condition: str) -> str:
    return _normalize(f"btree ({', '.join(columns)})" + ("" if condition == "true" else f" WHERE {condition}"))


def _normalize(sql: str) -> str:
    """Return a definition without the casts and parentheses that PostgreSQL adds; AND joins all conditions."""
    return " ".join(re.sub(r"::text|[()]", " ", sql.replace('"', "")).split())


def _checks(connection: Connection) -> Iterator[tuple[str, Callable[[Connection], str | None]]]:
    """Yield each check: what it examines, and a function that returns the damage or None."""
    yield "a table", _find_misplaced_record
    expected: list[Sum] = []
    yield "a table", partial(_sum_up, into=expected)
    for (name, columns, condition), sum_of_table in zip(_indexes(), expected, strict=True):
        yield (
            f"the index {name}",
            partial(_find_disagreement, name=name, columns=columns, where=condition, expected=sum_of_table),
        )
    if (amcheck := connection.execute(text(_AMCHECK)).scalar()) is not None:
        for _, oid, name, kind, *_ in connection.execute(text(_TABLE_INDEXES)).all():
            if kind == "i":
                yield f"the index {name}", partial(_amcheck, function=amcheck, index=oid)


def _find_misplaced_record(connection: Connection) -> str | None:
    """Return a message if a record is in the wrong partition: a query for a time reads only that time's partition."""
    partitions = [row for row in connection.execute(text(_TABLES)).all() if row[-1] is not None]
    cases = " ".join(f"WHEN {row[0]} THEN {row[-1]}" for row in partitions)
    query = f"SELECT min(tableoid) FROM audit_records WHERE CASE tableoid {cases} END IS NOT TRUE"
    partition = connection.exec_driver_sql(query.replace("%", "%%")).scalar() if partitions else None
    name = next((row[2] for row in partitions if row[0] == partition), None)
    return None if name is None else f"the partition {name} holds records of other times than its own"


def _sum_up(connection: Connection, into: list[Sum]) -> None:
    """Sum up the expected entries of all indexes in one pass over the tables."""
    sums = ", ".join(
        f"count(*) FILTER (WHERE {condition}), sum({_hashed(columns)}) FILTER (WHERE {condition})"
        for _, columns, condition in _indexes()
    )
    without_indexes(connection, begin=True)
    row = connection.execute(text(f"SELECT {sums} FROM audit_records")).one()
    without_indexes(connection, begin=False)
    into.extend(zip(row[::2], row[1::2], strict=True))


def _find_disagreement(connection: Connection, name: str, columns: list[str], where: str, expected: Sum) -> str | None:
    """Return a message if the values of an index, or of the records it points to, don't add up to the table's."""
    words = {"columns": ", ".join(columns), "hashed": _hashed(columns), "where": where}
    _set(connection, _BY_INDEX, "off")
    sums_of_index = connection.execute(text(_SUM_OF_INDEX.format(**words))).one()
    _set(connection, ["enable_indexonlyscan"], "off")
    *sums_of_records, disordered = connection.execute(text(_SUM_OF_RECORDS.format(**words))).one()
    _set(connection, [*_BY_INDEX, "enable_indexonlyscan"], "on")
    agrees = (*sums_of_index,) == (*sums_of_records,) == expected and not disordered
    return None if agrees else f"the index {name} disagrees with the records"


def _hashed(columns: list[str]) -> str:
    """Return an SQL hash over columns; the hash of each column seeds the next."""
    seed = "0"
    for column in columns:
        function, stand_in = _HASHES[type(RECORDS.c[column].type)]
        seed = f"{function}(coalesce({column}, {stand_in}), {seed})"
    return seed


_HASHES: Final = {
    Text: ("hashtextextended", "chr(1)"),
    BigInteger: ("hashint8extended", "-1"),
    Integer: ("hashint4extended", "-1"),
}
"""PostgreSQL's hash function, and the value that replaces NULL, by column type."""


def _amcheck(connection: Connection, function: str, index: int) -> None:
    connection.execute(text(f"SELECT {function}(CAST(:index AS oid)::regclass, true)"), {"index": index})


_SUM_OF_INDEX: Final = """
SELECT count(*), sum({hashed})
FROM (SELECT {columns} FROM audit_records WHERE {where} ORDER BY {columns} OFFSET 0) AS entries
"""
_SUM_OF_RECORDS: Final = """
SELECT count(*), sum(hashed), count(*) FILTER (WHERE before > entry)
FROM (
    SELECT hashed, entry, lag(entry) OVER () AS before
    FROM (
        SELECT {hashed} AS hashed, ROW({columns}) AS entry FROM audit_records WHERE {where} ORDER BY {columns} OFFSET 0
    ) AS entries
) AS neighbors
"""


def _set(connection: Connection, names: Any, value: str) -> None:
    for name in names:
        connection.execute(text("SELECT set_config(:name, :value, true)"), {"name": name, "value": value})
