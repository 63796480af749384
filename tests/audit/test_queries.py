"""Questions are answered by the indexes of a store."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.dialects import sqlite

from tests.audit.made import Chain, write
from traced_tools.audit.reading import queries
from traced_tools.audit.reading.queries import CallFilter


def some() -> Chain:
    chain = Chain()
    for number in range(3):
        chain.call("pay", run_id=f"run-{number}")
    return chain


def plans(store: Path, *statements: Any) -> list[str]:
    steps = []
    with closing(sqlite3.connect(store)) as connection:
        for statement in statements:
            compiled = statement.compile(dialect=sqlite.dialect(), compile_kwargs={"literal_binds": True})
            steps += [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {compiled}")]
    return steps


@pytest.mark.parametrize(
    "wanted",
    [
        *({}, {"tool": "x"}, {"agent": "x", "tool": "x"}, {"conversation": "x"}, {"outcome": "ok"}),
        *({"decision": "denied"}, {"decision": "denied", "tool": "x"}),
        *({"outcome": "ok", "decision": "approved"}, {"outcome": "ok", "decision": "allowed"}),
    ],
    ids=str,
)
def test_every_filter_is_answered_from_an_index(tmp_path: Path, wanted: dict[str, Any]) -> None:
    store = write(tmp_path / "audit.db", some())
    for step in plans(store, queries.matching_keys(CallFilter(**wanted))):
        assert "USING INDEX audit_" in step or "USING COVERING INDEX audit_" in step or "SUBQUERY" in step, step


def test_a_query_uses_the_index_of_the_rarer_filter(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", some())
    for decision, index in (("approved", "audit_decisions"), ("allowed", "audit_outcomes")):
        first, *_ = plans(store, queries.matching_keys(CallFilter(outcome="ok", decision=decision)))
        assert index in first


def test_unfinished_calls_are_found_in_the_index_alone(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", some())
    steps = plans(store, queries.unfinished_keys(embedded=True))
    assert sum("COVERING INDEX audit_calls" in step for step in steps) == 2
    assert not [step for step in steps if "TEMP" in step]


def test_records_of_calls_are_found_by_the_index(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", some())
    steps = plans(store, queries.records_of_calls([("run-1", 1, 0), ("run-2", 1, 0)]), queries.records_of_run("run-1"))
    assert sum("SEARCH audit_records USING INDEX audit_calls" in step for step in steps) == 2
