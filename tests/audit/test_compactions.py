"""Records of compactions, which belong to a run and to no call: verified, read, shown and exported."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from tests.audit.commanded import audit, printed
from tests.audit.made import NOON, SECOND, Chain, write
from tests.audit.postgresql import WRITER, Database
from tests.audit.tampered import by_hand, found
from traced_tools.audit.reading.exporting import export
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.schema import RECORDS, REPEATED
from traced_tools.audit.verifying.verified import read_verified
from traced_tools.audit.verifying.walk import verify
from traced_tools.errors import AuditError

KINDS = ["compaction", "intent", "decision", "outcome", "compaction", "compaction", "checkpoint"]


def story() -> Chain:
    """A run with a call and two compactions, and a run without calls."""
    chain = Chain()
    common: dict[str, Any] = {"run_id": "run-1", "agent": "planner", "conversation_id": "oslo"}
    tokens = {"tokens_before": 900, "tokens_after": 300, "tokens_estimated": True}
    chain.compaction("entry-1", **common, iteration=0, **tokens, trace_id="ab" * 16)
    chain.call("search", **common)
    chain.compaction("entry-2", **common, branch="research", attributes={"tenant": "acme"})
    chain.compaction("entry-3", run_id="run-2", agent="clerk")
    chain.checkpoint()
    return chain


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "300")
    path = write(tmp_path / "audit.db", story())
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(path))
    return path


def entries(run: Any) -> list[str]:
    return [record.fields["entry_id"] for record in run.compactions]


# verify


def test_a_store_with_compactions_verifies(store: Path) -> None:
    result = verify(store)
    assert (result.ok, result.records, result.checkpoints) == (True, 7, 1)


COLUMNS = (*(f"{name} = '7'" for name in REPEATED), "time = time + 1", "kind = 'intent'", "kind = 'outcome'")


@pytest.mark.parametrize("change", [*COLUMNS, "body = replace(body, '14', '13')", "hash = 'other'"])
def test_a_changed_compaction_is_named(store: Path, change: str) -> None:
    by_hand(store, f"UPDATE audit_records SET {change} WHERE sequence = 5")
    assert found(store) == ("changed", "chain-a", 5)


def test_a_removed_compaction_is_named(store: Path) -> None:
    by_hand(store, "DELETE FROM audit_records WHERE sequence = 5")
    assert found(store) == ("removed", "chain-a", 5)


def test_a_compaction_cannot_claim_texts_that_were_erased(tmp_path: Path) -> None:
    chain = Chain()
    chain.compaction(schema_version=2)
    assert found(write(tmp_path / "audit.db", chain)) == ("changed", "chain-a", 1)


# Reading.


@pytest.mark.parametrize("where", ["file", "server", "verified"])
def test_a_run_has_its_compactions_apart_from_its_calls(store: Path, where: str, request: Any) -> None:
    if where == "server":
        database: Database = request.getfixturevalue("database")
        engine = create_engine(database.url(WRITER))
        with engine.begin() as connection:
            connection.execute(RECORDS.insert(), story().rows)
        engine.dispose()
        check_reader(AuditReader(database.url("my_auditor")))
    elif where == "verified":
        with read_verified(store) as reader:
            check_reader(reader)
    else:
        check_reader(AuditReader(store))


def check_reader(reader: AuditReader) -> None:
    run, other = reader.run("run-1"), reader.run("run-2")
    assert (entries(run), [call.state for call in run.calls]) == (["entry-1", "entry-2"], ["ok"])
    assert (entries(other), other.calls) == (["entry-3"], ())
    assert other.shared_field("agent") == "clerk"
    assert run.shared_field("trace_id") == "ab" * 16
    assert reader.run_ids("run-") == ["run-1", "run-2"]
    assert [call.run_id for call in reader.calls()] == ["run-1"]
    assert reader.calls(outcome="unfinished") == []
    with pytest.raises(AuditError, match="has no run"):
        reader.run("run-3")


@pytest.mark.parametrize(
    ("wanted", "kinds"),
    [
        ({}, KINDS),
        ({"agent": "planner"}, KINDS[:5]),
        ({"conversation": "oslo"}, KINDS[:5]),
        ({"attributes": {"tenant": "acme"}}, ["compaction"]),
        ({"since": datetime.fromtimestamp(NOON // SECOND + 5, UTC)}, KINDS[4:]),
        ({"tool": "search"}, KINDS[1:4]),
        ({"outcome": "ok"}, KINDS[1:4]),
        ({"decision": "allowed"}, KINDS[1:4]),
        ({"outcome": "unfinished"}, []),
    ],
    ids=str,
)
def test_records_of_compactions_match_what_their_run_matches(
    store: Path, wanted: dict[str, Any], kinds: list[str]
) -> None:
    assert [record.kind for record in AuditReader(store).records(**wanted)] == kinds


def test_a_compaction_that_two_advisors_have_recorded_counts_once(tmp_path: Path) -> None:
    chains = Chain("chain-a"), Chain("chain-b")
    for chain in chains:
        chain.compaction("entry-2", time=NOON + SECOND)
        chain.compaction("entry-1", time=NOON)
    assert entries(AuditReader(write(tmp_path / "audit.db", *chains)).run("run-1")) == ["entry-1", "entry-2"]


# The command line.


def test_show_prints_the_compactions_of_a_run_and_then_its_calls(store: Path) -> None:
    text = printed("show", "run-1")
    first = "compaction   2026-01-01 12:00:01.000  12 entries through 14, strategy summary, trigger tokens, "
    second = "compaction   2026-01-01 12:00:05.000  12 entries through 14, branch research, strategy summary, "
    lines = [
        f"trace        {'ab' * 16}\n",
        f"{first}about 900 -> 300 tokens, entry entry-1\n",
        f"{second}trigger tokens, iteration 1, entry entry-2\n",
        "iteration 1\n",
        "search  call-search  ok",
    ]
    places = [text.index(line) for line in lines]
    assert places == sorted(places)


@pytest.mark.parametrize("verified", [[], ["--verified"]])
def test_show_prints_a_run_without_calls(store: Path, verified: list[str]) -> None:
    result = audit("show", "run-2", *verified)
    assert result.exit_code == 0
    assert "agent        clerk" in result.stdout
    assert "entry entry-3" in result.stdout
    assert "iteration 1\n" not in result.stdout


def test_show_prints_compactions_as_json(store: Path) -> None:
    shown = json.loads(printed("show", "run-1", "--json"))
    assert [each["entry_id"] for each in shown["compactions"]] == ["entry-1", "entry-2"]
    assert {"hash", "through", "strategy"} <= shown["compactions"][0].keys()
    assert [call["state"] for call in shown["calls"]] == ["ok"]
    alone = json.loads(printed("show", "run-2", "--json"))
    assert (alone["agent"], alone["calls"], len(alone["compactions"])) == ("clerk", [], 1)


def test_show_prints_a_damaged_compaction_as_damaged(store: Path) -> None:
    by_hand(store, "UPDATE audit_records SET body = 'no JSON' WHERE kind = 'compaction'")
    assert printed("show", "run-2").count("damaged") == 1
    assert json.loads(printed("show", "run-2", "--json"))["compactions"][0]["damaged"] is True


def test_show_neither_moves_the_cursor_nor_hides_what_a_compaction_says(tmp_path: Path) -> None:
    chain = Chain()
    hostile = "\x1b[2J\u202e"
    strange: dict[str, Any] = {"covered": {"a": hostile}, "through": None, "tokens_before": hostile}
    chain.compaction(hostile, strategy=hostile, trigger=hostile, branch=hostile, tokens_after=[hostile], **strange)
    shown = printed("show", "run-1", "--store", write(tmp_path / "audit.db", chain))
    assert [each for each in shown if not each.isprintable() and each != "\n"] == []
    assert shown.count("\\x1b[2J\\u202e") >= 4


def test_list_prints_calls_alone(store: Path) -> None:
    assert [call["run_id"] for call in json.loads(printed("list", "--json"))] == ["run-1"]
    assert "entry-" not in printed("list")


@pytest.mark.parametrize("format", ["jsonl", "csv"])
def test_compactions_are_exported(store: Path, format: Any) -> None:
    file = io.BytesIO()
    assert export(AuditReader(store).records(), format, file) == 7
    if format == "jsonl":
        lines = [json.loads(line) for line in file.getvalue().splitlines()]
        assert [line["entry_id"] for line in lines if line["kind"] == "compaction"] == ["entry-1", "entry-2", "entry-3"]
