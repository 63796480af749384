"""`traced-tools audit` where a store contradicts itself, lacks archived records, or cannot decide."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.audit.made import Chain, write
from traced_tools.audit.digests import AuditKey
from traced_tools.cli.app import app

SECRET = "a secret of some length"
KEY = AuditKey(SECRET.encode())


@pytest.fixture
def chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Chain:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET)
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(tmp_path / "audit.db"))
    return Chain()


def audit(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.stdout or result.stderr


def test_records_that_contradict_earlier_ones_are_shown_as_conflicting(
    chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call: dict[str, Any] = {"run_id": "run-1", "iteration": 1, "batch_index": 0}
    chain.call("pay", **call, decision="denied", advisor="policy")
    chain.add("decision", **call, tool="pay", decision="approved")
    write(tmp_path / "audit.db", chain)
    (row,) = [line.split() for line in audit("list").splitlines() if " pay " in line]
    assert row[-4:] == ["denied", "policy", "-", "CONFLICTING"]
    monkeypatch.setenv("COLUMNS", "90")
    assert "denied CONFLICTING by policy" in audit("list")
    monkeypatch.setenv("COLUMNS", "120")
    shown = audit("show", "run-1")
    assert "pay  call-pay  denied CONFLICTING by policy" in shown
    assert "conflicting  2026-01-01 12:00:03.000  decision approved: record 3 of chain chain-a" in shown
    (call,) = json.loads(audit("show", "run-1", "--json"))["calls"]
    assert (call["decision"], call["conflicting"]) == ("denied", 1)
    assert [record["sequence"] for record in call["records"]] == [1, 2, 3]


def test_a_damaged_record_that_contradicts_an_earlier_one_is_shown(chain: Chain, tmp_path: Path) -> None:
    chain.call("pay", run_id="run-1")
    chain.call("pay", run_id="run-1")
    store = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET body = x'ff' WHERE sequence = 5")
    assert "decision: record 5 of chain chain-a" in audit("show", "run-1")


def test_a_tool_that_ran_before_its_intent_was_on_record_is_shown_as_late(chain: Chain, tmp_path: Path) -> None:
    for place, more in enumerate([{"intent_late": True}, {}]):
        call = {"run_id": "run-1", "iteration": 1, "batch_index": place}
        chain.add("intent", **call, tool="pay", call_id=f"c{place}")
        chain.add("decision", **call, tool="pay", decision="allowed", **more)
    write(tmp_path / "audit.db", chain)
    assert [line.split()[-1] for line in audit("list").splitlines() if "UNFINISHED" in line] == ["UNFINISHED", "LATE"]
    title, line = [line for line in audit("show", "run-1").splitlines() if "LATE" in line]
    assert title.endswith("pay  c0  UNFINISHED LATE")
    assert line.endswith("2026-01-01 12:00:02.000  allowed  LATE: the intent was not on record yet")
    calls = json.loads(audit("show", "run-1", "--json"))["calls"]
    assert [call["late"] for call in calls] == [True, False]


def test_verify_accepts_records_that_were_archived_before_a_time(chain: Chain, tmp_path: Path) -> None:
    chain.call("pay").append(chain.checkpoint())
    chain.call("pay")
    store = write(tmp_path / "audit.db", chain)
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("DELETE FROM audit_records WHERE sequence <= 4")
    assert "REMOVED: record 1" in audit("verify", status=1)
    assert "note: taken as archived before 2026-01-01T12:00:05" in audit(
        "verify", "--archived-before", "2026-01-01T12:00:05Z"
    )
    assert "REMOVED: record 1" in audit("verify", "--archived-before", "2026-01-01T12:00:04Z", status=1)
    assert "--archived-before" in audit("verify", "--archived-before", "long ago", status=2)


def test_match_exits_with_2_if_only_the_exact_text_can_be_compared(chain: Chain, tmp_path: Path) -> None:
    big = '{"id": 9007199254740993}'
    chain.call(call_id="call-1", arguments=KEY.content(big, is_json=True))
    write(tmp_path / "audit.db", chain)
    claimed = tmp_path / "claimed.json"
    for text, status, said in (
        (f"{big}\n", 0, "its arguments were this"),
        ('{"id":9007199254740993}', 2, "only the exact text can be compared"),
        ("no JSON", 1, "its arguments were NOT this"),
    ):
        claimed.write_text(text)
        assert said in audit("match", "call-1", "--arguments", claimed, status=status)


def test_match_compares_the_name_of_an_unknown_tool_with_its_digest(chain: Chain, tmp_path: Path) -> None:
    chain.call("_unknown", run_id="run-1", call_id="call-1", decision="unknown_tool", requested_name=KEY.content("rm"))
    write(tmp_path / "audit.db", chain)
    claimed = tmp_path / "claimed"
    for text, status, said in (("rm\n", 0, "the tool it named was this"), ("ls", 1, "the tool it named was NOT this")):
        claimed.write_text(text)
        assert said in audit("match", "call-1", "--name", claimed, status=status)
    (line,) = [line for line in audit("show", "run-1").splitlines() if "asked for" in line]
    assert "not stored (digest" in line


def test_a_json_result_is_matched_by_value_and_any_other_result_by_text(chain: Chain, tmp_path: Path) -> None:
    chain.call(call_id="json", result=KEY.content('{"b":1.5,"a":[1]}', is_json=True))
    chain.call(call_id="text", batch_index=1, result=KEY.content("sunny", is_json=True))
    chain.call(call_id="odd", batch_index=2, result=KEY.content('{"id": 9007199254740993}', is_json=True))
    write(tmp_path / "audit.db", chain)
    claimed = tmp_path / "claimed"
    for call, text, status in (
        ("json", '{"a": [1], "b": 1.50}', 0),
        ("json", '{"a": [2], "b": 1.5}', 1),
        ("text", "sunny", 0),
        ("text", '{"a": [1]}', 1),
        ("odd", '{"id":9007199254740993}', 2),
    ):
        claimed.write_text(text)
        audit("match", call, "--result", claimed, status=status)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"], ids=ascii)
def test_match_ignores_a_byte_order_mark(chain: Chain, tmp_path: Path, end: str) -> None:
    chain.call(call_id="call-1", arguments=KEY.content('{"id": 5}', is_json=True), result=KEY.content("\ufefffive"))
    write(tmp_path / "audit.db", chain)
    claimed = tmp_path / "claimed"
    for option, text in (("--arguments", '{"id":5}'), ("--result", "\ufefffive")):
        claimed.write_text(f"\ufeff{text}{end}" if option == "--arguments" else f"{text}{end}", newline="")
        audit("match", "call-1", option, claimed)
    claimed.write_text("five")
    audit("match", "call-1", "--result", claimed, status=1)
