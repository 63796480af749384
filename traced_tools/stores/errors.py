"""Errors of databases become errors of this package, because the text of a driver's error may quote content."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from traced_tools.errors import TracedToolsError

P = ParamSpec("P")
T = TypeVar("T")


def translate_errors(
    problem_of: Callable[[Exception], str | None], unavailable: Callable[[str, Exception], TracedToolsError]
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Return a decorator for the methods of a store that makes a driver's errors errors of this package.

    Args:
        problem_of: returns what to say of a driver's error; None for any other error, which passes unchanged.
        unavailable: makes the error of this package from its text and the driver's error.
    """

    def decorate(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def translated(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except Exception as error:
                if (problem := problem_of(error)) is None:
                    raise
                original = error
            # after the block, so that the driver's error is not the context of ours, which loggers print
            raise unavailable(f"{args[0]!r} fails ({problem}): check that the store runs and can be written", original)

        return translated

    return decorate


def sql_problem(error: Exception) -> str | None:
    """Return the class of a SQL database's error and its code, if it has one; None for other errors."""
    from sqlalchemy.exc import DBAPIError, SQLAlchemyError  # imported here: other stores do without SQLAlchemy

    psycopg = sys.modules.get("psycopg")
    drivers = (sqlite3.Error,) if psycopg is None else (sqlite3.Error, psycopg.Error)
    if not isinstance(error, (SQLAlchemyError, *drivers)):
        return None
    original = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    name = type(original).__name__
    code = getattr(original, "sqlite_errorname", None) or getattr(original, "sqlstate", None)
    if code is None and name == "OperationalError":
        code = "no connection: is the address right, and do the user and the database exist?"
    return name if code is None else f"{name}, {code}"
