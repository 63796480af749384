"""The tables of a store, and how a store of an earlier version becomes one of this version."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlalchemy import Column, Connection, Integer, MetaData, Table, insert, inspect, select, text, update

from traced_tools.errors import TracedToolsError


class Schema:
    """The tables of a store, whose version the store records.

    Args:
        store: what errors call the store, such as `chat memory`.
        tables: the tables; the table of the version is added.
        version_table: the name of the table with the version.
        version: the version that this release makes.
        migrations: by version, what changes a store of that version into one of the next version.
        lock: the number of the PostgreSQL lock under which a process creates or migrates the tables.
        error: the class of the error about an unknown version.
    """

    def __init__(
        self,
        store: str,
        tables: MetaData,
        *,
        version_table: str,
        version: int,
        migrations: Mapping[int, Callable[[Connection], None]],
        lock: int,
        error: type[TracedToolsError],
    ) -> None:
        self.store = store
        self.version = version
        self.migrations = migrations
        self._tables = tables
        self._versions = Table(version_table, tables, Column("version", Integer, nullable=False))
        self._lock = lock
        self._error = error

    def exists(self, connection: Connection) -> bool:
        """Return whether a store has the tables of any version."""
        return inspect(connection).has_table(self._versions.name)

    def is_current(self, connection: Connection) -> bool:
        """Return whether a store has the tables of this version.

        Raises:
            TracedToolsError: if its version is unknown.
        """
        return self._stored_version(connection) == self.version

    def prepare(self, connection: Connection) -> None:
        """Create missing tables, or migrate those of an earlier version, in the transaction of `connection`.

        Raises:
            TracedToolsError: if the version of the store is unknown.
        """
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": self._lock})
        version = self._stored_version(connection)
        if version is None:
            self._tables.create_all(connection)
            connection.execute(insert(self._versions).values(version=self.version))
            return
        for earlier_version in range(version, self.version):
            self.migrations[earlier_version](connection)
        connection.execute(update(self._versions).values(version=self.version))

    def _stored_version(self, connection: Connection) -> int | None:
        if not self.exists(connection):
            return None
        versions = connection.execute(select(self._versions.c.version)).scalars().all()
        if len(versions) != 1 or not isinstance(versions[0], int) or not 1 <= versions[0] <= self.version:
            shown_versions = ", ".join(str(number)[:20] for number in versions[:3]) or "none"
            raise self._error(
                f"the schema version of the {self.store} is {shown_versions}, and this release knows versions 1 to "
                f"{self.version}: upgrade traced_tools, or use another database"
            )
        return versions[0]
