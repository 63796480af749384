"""`traced-tools audit`, as a person runs it: what is printed, and the exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.audit.commanded import (
    CITY,
    COMMANDS,
    KEY,
    OTHER_RUN,
    RUN,
    SIGNING,
    TRACE,
    audit,
    complaint,
    file,
    make_store,
    printed,
    story,
    tamper,
)
from tests.audit.made import Chain, content, insert
from tests.otel.collector import collecting


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_store(tmp_path, monkeypatch)


# show


def test_show_draws_the_run_as_a_tree(store: Path) -> None:
    text = printed("show", RUN, "--trace-url", "http://traces/trace/{trace_id}")
    wanted = [
        f"run {RUN}",
        "agent        planner",
        "conversation c-4711",
        f"trace        {TRACE}",
        f"http://traces/trace/{TRACE}",
        "iteration 1",
        "search  call_1  ok 250.0 ms",
        "intent       2026-01-01 12:00:01.000  by small-1 of acme",
        "reason       to find a flight",
        f"arguments    not stored (digest {CITY['digest'][:12]}, 16 bytes)\n",
        "names        city\n",
        "decision     2026-01-01 12:00:02.000  allowed",
        "outcome      2026-01-01 12:00:03.000  ok, after 250.0 ms",
        "iteration 2",
        "refund  call_2  denied by policy",
        "reason       not stored (digest ",
        "decision     2026-01-01 12:00:05.000  denied by policy (needs_a_person)",
        "book  call_3  error 250.0 ms",
        "reason       none was given",
        "error, OSError, after 250.0 ms",
    ]
    positions = []
    for words in wanted:
        assert words in text[sum(positions) :], f"{words!r} is not where it should be in\n{text}"
        positions.append(text[sum(positions) :].index(words))


@pytest.mark.parametrize(
    ("stored", "names", "unknown", "line"),
    [
        (False, ["amount", "to"], None, "names        amount, to"),
        (False, ["amount", "to"], 1, "names        amount, to and 1 unknown"),
        (False, [], 2, "names        2 unknown"),
        (False, [], None, None),
        (True, ["amount", "to"], 1, None),
    ],
)
def test_show_names_the_arguments_where_they_are_not_stored(
    store: Path, stored: bool, names: list[str], unknown: int | None, line: str | None
) -> None:
    chain = Chain()
    names_fields = {"arguments": content('{"amount": 13}', stored=stored), "argument_names": names}
    subject = {"run_id": RUN, "iteration": 1, "batch_index": 0, "call_id": "call_1", "tool": "pay"}
    chain.add("intent", **subject, **names_fields, unknown_arguments=unknown)
    insert(store.with_name("names.db"), chain.rows)
    text = printed("show", RUN, "--store", store.with_name("names.db"))
    assert [each.split("── ")[1] for each in text.splitlines() if "── names" in each] == ([line] if line else [])


def test_show_prints_the_arguments_that_ran_and_those_that_the_model_wrote(store: Path) -> None:
    chain = Chain()
    written = content('{"amount":"9"}', stored=True)
    chain.call("pay", run_id=RUN, arguments=content('{"amount":9}', stored=True), requested_arguments=written)
    insert(store.with_name("forms.db"), chain.rows)
    lines = printed("show", RUN, "--store", store.with_name("forms.db")).splitlines()
    assert [each.split("── ")[1] for each in lines if "amount" in each] == [
        'arguments    {"amount":9}',
        'as written   {"amount":"9"}',
    ]


def test_show_marks_unfinished_calls(store: Path) -> None:
    text = printed("show", OTHER_RUN)
    assert "mail  call_4  UNFINISHED" in text
    assert "outcome      UNFINISHED: no outcome is recorded" in text


def test_show_accepts_a_unique_prefix_of_a_run_id(store: Path) -> None:
    assert f"run {RUN}" in printed("show", "0197a3b2")
    assert "several runs begin with 0197:\n" in complaint("show", "0197")
    assert OTHER_RUN in complaint("show", "0197")


def test_show_of_a_missing_run_exits_with_1(store: Path) -> None:
    assert complaint("show", "0198", status=1) == "audit: no run begins with 0198\n"


def test_show_prints_json_with_all_records(store: Path) -> None:
    run = json.loads(printed("show", RUN, "--json", "--trace-url", "http://traces/{trace_id}"))
    assert (run["run_id"], run["agent"], run["trace_url"]) == (RUN, "planner", f"http://traces/{TRACE}")
    assert [call["tool"] for call in run["calls"]] == ["search", "refund", "book"]
    assert [record["kind"] for record in run["calls"][0]["records"]] == ["intent", "decision", "outcome"]


def test_show_links_to_a_trace_only_with_a_placeholder_and_a_valid_trace_id(store: Path) -> None:
    assert "{trace_id}" in complaint("show", RUN, "--trace-url", "http://traces/")
    chain = Chain()
    chain.call(run_id="run", trace_id="../../x")
    insert(store.with_name("odd.db"), chain.rows)
    run = json.loads(
        printed("show", "run", "--json", "--trace-url", "h{trace_id}", "--store", store.with_name("odd.db"))
    )
    assert run["trace_url"] is None


# verify


def test_verify_of_an_intact_store_exits_with_0(store: Path) -> None:
    assert printed("verify") == "whole and unchanged: 11 records in 1 chain, 1 checkpoint\n"
    assert json.loads(printed("verify", "--json"))["ok"] is True


def test_verify_prints_the_first_invalid_record_and_exits_with_1(store: Path) -> None:
    tamper(store)
    text = printed("verify", status=1)
    assert "CHANGED: record 4 of chain 0197a3b2-0000-7000-8000-00000000000a: its column tool says other than" in text
    problem = json.loads(printed("verify", "--json", status=1))["problem"]
    assert (problem["finding"], problem["sequence"]) == ("changed", 4)


def test_verify_takes_checkpoints_and_a_public_key(store: Path, tmp_path: Path) -> None:
    key, lines = tmp_path / "key", tmp_path / "lines"
    key.write_bytes(SIGNING.public_key().public_bytes_raw())
    Path(f"{store}.checkpoints").rename(lines)
    assert "note: no checkpoints outside the store" in printed("verify")
    assert "note" not in printed("verify", "--checkpoints", lines, "--public-key", key)
    key.write_bytes(b"x" * 32)
    assert "SIGNATURE" in printed("verify", "--public-key", key, status=1)
    assert "cannot be read: No such file" in complaint("verify", "--public-key", tmp_path / "nothing")
    assert "cannot be read" in complaint("verify", "--checkpoints", tmp_path / "nothing")


def test_verify_counts_uncovered_records(store: Path) -> None:
    chain = story()
    chain.call()
    insert(store.with_name("more.db"), chain.rows)
    assert "not covered by a checkpoint yet: 3 records" in printed("verify", "--store", store.with_name("more.db"))


# export


def test_export_writes_records_to_standard_output(store: Path) -> None:
    lines = printed("export", "--format", "jsonl").splitlines()
    assert [json.loads(line)["sequence"] for line in lines] == list(range(1, 12))
    rows = list(csv.DictReader(io.StringIO(printed("export", "--format", "csv", "--decision", "denied"))))
    assert [row["kind"] for row in rows] == ["intent", "decision"]


def test_export_writes_a_file_for_its_owner_alone(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "records.csv"
    result = audit("export", "--format", "csv", "--output", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("11 records written to ")
    assert len([*csv.DictReader(io.StringIO(file.read_text()))]) == 11
    assert file.stat().st_mode & 0o777 == 0o600


def test_export_of_a_store_that_cannot_be_read_leaves_the_file_as_it_was(store: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    complaint("export", "--format", "csv", "--output", tmp_path / "kept", "--store", tmp_path / "nothing.db")
    assert (tmp_path / "kept").read_text() == "kept"


@pytest.mark.parametrize("link", [None, os.symlink, os.link], ids=["", "symbolic link", "hard link"])
@pytest.mark.parametrize("end", ["", ".key", ".checkpoints", "-wal", "-shm", "-journal"])
def test_export_never_overwrites_the_trail(store: Path, tmp_path: Path, end: str, link: Any) -> None:
    target = Path(f"{store}{end}")
    target.touch()
    kept = target.read_bytes()
    output = target if link is None else tmp_path / "elsewhere"
    if link is not None:
        link(target, output)
    assert "a file of the audit trail itself" in complaint("export", "--format", "jsonl", "--output", output)
    assert target.read_bytes() == kept


def test_export_does_not_create_the_file_of_the_checkpoints(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    Path(f"{store}.checkpoints").unlink()
    assert "a file of the audit trail" in complaint(
        "export", "--format", "csv", "--output", f"{store.name}.checkpoints"
    )
    assert not Path(f"{store}.checkpoints").exists()


def test_an_export_with_invalid_options_exits_with_2(store: Path, tmp_path: Path) -> None:
    assert "format must be one of" in complaint("export", "--format", "xlsx")
    assert "cannot be written" in complaint("export", "--format", "csv", "--output", tmp_path / "no" / "where")
    complaint("export")


# match


def test_match_proves_or_refutes_a_content(store: Path, tmp_path: Path) -> None:
    right, wrong = '{ "city": "\\u004fslo" }\n', '{"city": "Rome"}'
    assert printed("match", "call_1", "--arguments", file(tmp_path, right)) == (
        "call_1: its arguments were this: the digests are the same\n"
    )
    assert "NOT this" in printed("match", "call_1", "--arguments", file(tmp_path, wrong), status=1)
    printed_json = printed("match", "call_1", "--arguments", file(tmp_path, wrong), "--json", status=1)
    assert json.loads(printed_json) == {"call_id": "call_1", "content": "arguments", "matches": False}
    place = ("--run", "0197a3b2", "--iteration", 1)
    assert "are the same" in printed("match", "call_1", "--arguments", file(tmp_path, right), *place)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_match_ignores_the_final_newline_that_editors_add(store: Path, tmp_path: Path, end: str) -> None:
    chain = Chain()
    chain.call(call_id="call_9", result=KEY.content("sunny"), reason=KEY.content("why not"))
    insert(store.with_name("texts.db"), chain.rows)
    place = ("--store", store.with_name("texts.db"))
    printed("match", "call_9", "--result", file(tmp_path, f"sunny{end}"), *place)
    printed("match", "call_9", "--reason", file(tmp_path, f"why not{end}"), *place)
    printed("match", "call_9", "--reason", file(tmp_path, f"why not {end}"), *place, status=1)


def test_match_without_a_result_exits_with_2(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = file(tmp_path, "{}")
    assert "no call" in complaint("match", "call_99", "--arguments", given)
    assert "pass one of" in complaint("match", "call_1")
    assert "pass one of" in complaint("match", "call_1", "--arguments", given, "--result", given)
    assert "cannot be read" in complaint("match", "call_1", "--arguments", tmp_path / "nothing")
    assert "not UTF-8" in complaint("match", "call_1", "--arguments", file(tmp_path, b"\xff"))
    given = file(tmp_path, "{}")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", "another secret, as long")
    assert f"made with key {KEY.id}, not key " in complaint("match", "call_1", "--arguments", given)
    assert "no run begins with" in complaint("match", "call_1", "--arguments", given, "--run", "0198")
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_KEY")
    assert "there is no audit key" in complaint("match", "call_1", "--arguments", given)
    server = ("--store", "postgresql+psycopg://auditor@127.0.0.1/audit")
    text = complaint("match", "call_1", "--arguments", given, *server)
    assert "set TRACED_TOOLS_AUDIT_KEY" in text
    assert "key=" not in text


# Stores


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_an_unreadable_store_exits_with_2(store: Path, command: list[str]) -> None:
    assert "no audit store at" in complaint(*command, "--store", store.with_name("nothing.db"))
    store.with_name("text").write_text("no database " * 99)
    assert "no SQLite database" in complaint(*command, "--store", store.with_name("text"))
    assert "s3cret" not in complaint(*command, "--store", "mysql://me:s3cret@localhost/x")


def test_the_default_store_is_in_the_current_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_STORE")
    monkeypatch.chdir(store.parent)
    assert "UNFINISHED" in printed("list")


@pytest.mark.slow
def test_verify_sends_its_result_to_a_collector_before_it_ends(store: Path) -> None:
    command = [sys.executable, "-c", "from traced_tools.cli import main; main()", "audit", "verify", "--otlp"]
    with collecting() as received:
        environment = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": received.url, "OTEL_SERVICE_NAME": "audit-verifier"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("whole and unchanged"), done.stderr
    metrics = {metric.name: metric for metric in received.metrics()}
    (point,) = metrics["traced_tools.audit.verified"].gauge.data_points
    assert (point.as_int, point.as_double) == (1, 0.0)
    assert "traced_tools.audit.last_verified" in metrics
