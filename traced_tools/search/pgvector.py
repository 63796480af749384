"""Vectors of tools in PostgreSQL with the extension pgvector, which processes share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import (
    Cast,
    Column,
    ColumnElement,
    Connection,
    Delete,
    Dialect,
    Float,
    MetaData,
    Select,
    Table,
    Text,
    cast,
    delete,
    event,
    func,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.types import UserDefinedType

from traced_tools.core.checks import expect
from traced_tools.errors import ConfigurationError, ToolIndexError
from traced_tools.search.index import ToolMatch, best_matches
from traced_tools.search.vector_store import DIGITS, ToolVector
from traced_tools.stores.database import Database
from traced_tools.stores.errors import sql_problem, translate_errors
from traced_tools.stores.schema import Schema

_without_texts: Final = translate_errors(sql_problem, ToolIndexError)


class _Vector(UserDefinedType[Sequence[float]]):
    """The type `vector` of pgvector, for vectors of any length."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "vector"

    def bind_processor(self, dialect: Dialect) -> Callable[[Any], str]:
        return lambda vector: f"[{','.join(repr(float(number)) for number in vector)}]"

    def bind_expression(self, bindvalue: Any) -> Cast[Any]:
        return cast(bindvalue, self)


_METADATA: Final = MetaData()
VECTORS: Final = Table(
    "tool_vectors",
    _METADATA,
    Column("catalogue", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("embedding", _Vector, nullable=False),
)


@event.listens_for(_METADATA, "before_create")
def _create_extension(_: object, connection: Connection, **__: object) -> None:
    connection.execute(text("CREATE EXTENSION IF NOT EXISTS vector"))


_SCHEMA: Final = Schema(
    "vector store",
    _METADATA,
    version_table="tool_vectors_schema",
    version=1,
    migrations={},
    lock=7_164_911_036_722_107_843,
    error=ToolIndexError,
)


class PgVectorStore:
    """Vectors in PostgreSQL with pgvector, for `VectorToolIndex`. Threads and processes may share it.

    It connects, creates the extension `vector` and missing tables when it is first used. A search compares the query
    with all vectors of the catalogue, exactly.

    Args:
        url: an SQLAlchemy URL, `postgresql+psycopg://user@host/database`, which needs the extra `postgresql`.
        catalogue: names a set of tools. Indexes with the same name share their tools, and need the same embedding
            model.

    Raises:
        ConfigurationError: for a URL that cannot be used.
        TypeError, ValueError: for an invalid catalogue.

    All methods raise `ToolIndexError` if the database fails.
    """

    def __init__(self, url: str, catalogue: str = "default") -> None:
        expect("catalogue", catalogue, str, "a str")
        if not catalogue.strip() or not catalogue.isprintable():
            raise ValueError("catalogue must be a name of printable characters")
        self._catalogue = catalogue
        self._database: Final = Database(url, _SCHEMA)
        if self._database.is_sqlite:
            raise ConfigurationError("a vector store needs PostgreSQL: pass a URL such as postgresql+psycopg://...")

    @_without_texts
    def digests(self, names: Collection[str]) -> Mapping[str, str]:
        """Return the digests of the tools that the store has of these, by name."""
        with self._database.connect() as connection:
            return {row.name: row.digest for row in connection.execute(digests_of(self._catalogue, names))}

    @_without_texts
    def put(self, vectors: Sequence[ToolVector]) -> None:
        """Add vectors; a vector replaces an earlier one of the same tool."""
        rows = [
            {"catalogue": self._catalogue, "name": vector.name, "digest": vector.digest, "embedding": vector.vector}
            for vector in vectors
        ]
        if rows:
            with self._changing() as connection:
                connection.execute(upsert(), rows)

    @_without_texts
    def remove(self, names: Collection[str]) -> None:
        """Remove the vectors of these tools; unknown names are ignored."""
        with self._changing() as connection:
            connection.execute(deletion(self._catalogue, names))

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """Yield a connection that changes the catalogue while no other does: in another order, they would deadlock."""
        with self._database.transaction() as connection:
            connection.execute(select(func.pg_advisory_xact_lock(func.hashtextextended(self._catalogue, 0))))
            yield connection

    @_without_texts
    def nearest(self, vector: Sequence[float], max_results: int) -> list[ToolMatch]:
        """Return the tools with the most similar vectors by cosine, the best first and equal ones by name."""
        if not any(vector):  # a vector of zeros has no direction
            return []
        with self._database.connect() as connection:
            rows = connection.execute(nearest_to(self._catalogue, vector, max_results)).all()
        return best_matches((ToolMatch(row.name, round(1 - row.distance, DIGITS)) for row in rows), max_results)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()

    def __repr__(self) -> str:
        return f"<PgVectorStore {self._catalogue!r} in {self._database}>"


# The statements.


def digests_of(catalogue: str, names: Collection[str]) -> Select[Any]:
    """Return the statement that reads digests."""
    return select(VECTORS.c.name, VECTORS.c.digest).where(*_are(catalogue, names))


def upsert() -> Insert:
    """Return the statement that inserts a vector or replaces an earlier one."""
    statement = insert(VECTORS)
    new = {"digest": statement.excluded.digest, "embedding": statement.excluded.embedding}
    return statement.on_conflict_do_update(index_elements=[VECTORS.c.catalogue, VECTORS.c.name], set_=new)


def deletion(catalogue: str, names: Collection[str]) -> Delete:
    """Return the statement that deletes vectors."""
    return delete(VECTORS).where(*_are(catalogue, names))


def nearest_to(catalogue: str, vector: Sequence[float], limit: int) -> Select[Any]:
    """Return the statement that reads the nearest vectors with their cosine distances; zeros have no distance."""
    distance: ColumnElement[float] = VECTORS.c.embedding.op("<=>", return_type=Float())(vector)
    of_catalogue = select(VECTORS.c.name, distance.label("distance")).where(VECTORS.c.catalogue == catalogue)
    catalogue_rows = of_catalogue.subquery()
    return (
        select(catalogue_rows.c.name, catalogue_rows.c.distance)
        .where(catalogue_rows.c.distance != float("nan"))
        .order_by(catalogue_rows.c.distance, catalogue_rows.c.name)
        .limit(limit)
    )


def _are(catalogue: str, names: Collection[str]) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return VECTORS.c.catalogue == catalogue, VECTORS.c.name.in_([*names])
