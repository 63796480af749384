"""Statements that SQLAlchemy compiles once and the driver executes."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Dialect, Insert, SelectBase, Update

_Processor = Callable[[Any], Any]


class _Compiled(NamedTuple):
    """A statement for one database.

    Args:
        text: the statement in SQL.
        binders: what changes values of parameters before the driver gets them, by the parameter's name.
        readers: what changes values of a row, by column; None for a value that stays as it is.
        row: makes a named tuple of a row's values.
    """

    text: str
    binders: Mapping[str, _Processor]
    readers: Sequence[_Processor | None]
    row: Callable[..., Any]


class Statement:
    """A statement whose values are parameters. An execution by SQLAlchemy takes several times as long as SQLite's.

    Errors are the driver's own, whose texts may quote content: see `errors.translate_errors`.

    Args:
        clause: the statement. It sets the columns of which each execution has a parameter.
    """

    def __init__(self, clause: SelectBase | Insert | Update) -> None:
        self._clause = clause
        self._compiled: dict[str, _Compiled] = {}

    def execute(self, connection: Connection, parameters: Mapping[str, Any]) -> int:
        """Execute the statement in the transaction of `connection`, and return the number of rows that it changed."""
        _, cursor = self._execute(connection, parameters)
        count: int = cursor.rowcount
        cursor.close()
        return count

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """Execute the statement in the transaction of `connection`, and return its rows as named tuples."""
        compiled, cursor = self._execute(connection, parameters)
        rows = [compiled.row(*map(_read, compiled.readers, values)) for values in cursor.fetchall()]
        cursor.close()
        return rows

    def _execute(self, connection: Connection, parameters: Mapping[str, Any]) -> tuple[_Compiled, Any]:
        dialect, bound = connection.dialect, dict(parameters)
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            compiled = self._compiled[dialect.name] = self._compile(dialect, [*parameters])
        for name, binder in compiled.binders.items():
            bound[name] = binder(bound[name])
        cursor = connection.connection.cursor()
        cursor.execute(compiled.text, bound)
        return compiled, cursor

    def _compile(self, dialect: Dialect, parameters: list[str]) -> _Compiled:
        compiled: Any = self._clause.compile(dialect=dialect, column_keys=parameters)
        binders = {name: bind.type.bind_processor(dialect) for name, bind in compiled.binds.items()}
        columns = [*self._clause.selected_columns] if isinstance(self._clause, SelectBase) else []
        return _Compiled(
            str(compiled),
            {name: binder for name, binder in binders.items() if binder is not None},
            [column.type.result_processor(dialect, None) for column in columns],
            namedtuple("Row", [column.name for column in columns]),  # the fields are known here alone
        )


def _read(reader: _Processor | None, value: Any) -> Any:
    return value if reader is None else reader(value)
