"""The pending store that a command works with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from traced_tools.approvals.pending_store import PendingStore
from traced_tools.cli.audit.formatting import escape
from traced_tools.cli.exits import FAILED, exit_with
from traced_tools.core.variables import PENDING_STORE


def not_blank(text: str) -> str:
    """Return the value of an option, or raise `typer.BadParameter` if it is blank."""
    if not text.strip():
        raise typer.BadParameter("must not be blank")
    return text


Store = Annotated[
    str,
    typer.Option(
        metavar="PATH_OR_URL",
        envvar=PENDING_STORE,
        help="The pending store: an SQLite file or a database URL.",
        callback=not_blank,
    ),
]


@contextmanager
def open_store(url: str, command: str) -> Iterator[PendingStore]:
    """Open a store that exists, or exit with status 2, so that a mistyped URL creates none.

    Args:
        url: the path or the URL.
        command: the name of the group of commands, which begins the line about a problem.
    """
    with PendingStore(url) as store:
        if not store.exists():
            problem = f"{escape(repr(store))} has no pending runs: pass the path or URL that the client uses"
            exit_with(command, FAILED, problem)
        yield store
