"""What the tests of `verify` share: a chain of some calls, a store that is changed by hand, and what is found."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.audit.made import Chain
from traced_tools.audit.verifying.walk import verify


def filled(chain: Chain, calls: int = 4) -> Chain:
    for number in range(calls):
        chain.call(run_id=f"run-{number}", call_id=f"call-{number}")
    return chain


def by_hand(store: Path, *statements: str | tuple[str, Any]) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        for statement in statements:
            connection.execute(*((statement,) if isinstance(statement, str) else statement))


def found(store: Path, **options: Any) -> tuple[str, str | None, int | None] | None:
    problem = verify(store, **options).problem
    return None if problem is None else (problem.finding, problem.chain_id, problem.sequence)
