"""`traced-tools audit`, as a person runs it: what is printed, and the exit status."""

from __future__ import annotations

import csv
import io
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner, Result

from tests.audit.made import Chain, content, insert, many, write
from tests.helpers import relaxed
from traced_tools.audit.digests import AuditKey
from traced_tools.cli.app import app
from traced_tools.cli.audit.options import time_of

SECRET = "a secret of some length"
KEY = AuditKey(SECRET.encode())
RUN, OTHER_RUN = "0197a3b2-4c5d-7f12-9a31-5be1c09d77aa", "0197a3b9-1111-7f12-9a31-5be1c09d77aa"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
CITY = KEY.content('{"city": "Oslo"}', is_json=True)
SIGNING = Ed25519PrivateKey.from_private_bytes(b"k" * 32)


def story() -> Chain:
    chain = Chain("0197a3b2-0000-7000-8000-00000000000a", signing_key=SIGNING)
    common: dict[str, Any] = {"run_id": RUN, "agent": "planner", "conversation_id": "c-4711", "trace_id": TRACE}
    asked = {"model": "small-1", "provider": "acme"}
    stated = content("to find a flight", stored=True)
    chain.call("search", call_id="call_1", **common, **asked, reason=stated, arguments=CITY)
    refusal = {"decision": "denied", "advisor": "policy", "reason_code": "needs_a_person"}
    chain.call("refund", call_id="call_2", iteration=2, **common, **asked, reason=content("x"), **refusal)
    chain.call("book", call_id="call_3", iteration=2, batch_index=1, **common, outcome="error", error_type="OSError")
    chain.call("mail", call_id="call_4", run_id=OTHER_RUN, agent="clerk", outcome=None)
    chain.checkpoint()
    return chain


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", SECRET)
    store = write(tmp_path / "audit.db", story())
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_STORE", str(store))
    return store


def audit(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)])


def printed(*arguments: object, status: int = 0) -> str:
    result = audit(*arguments)
    assert (result.exit_code, result.stderr if status == 0 else "") == (status, ""), result.output
    return result.stdout


def complaint(*arguments: object, status: int = 2) -> str:
    result = audit(*arguments)
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    return result.stderr


# list


def test_list_shows_a_row_for_each_call(store: Path) -> None:
    lines = [line.split() for line in printed("list").splitlines()]
    assert lines[0] == ["time", "(UTC)", "run", "agent", "tool", "decision", "by", "outcome", "duration"]
    assert lines[1][2:] == ["0197a3b9-1111", "clerk", "mail", "allowed", "UNFINISHED"]
    assert lines[2][2:] == ["0197a3b2-4c5d", "planner", "book", "allowed", "error", "250.0", "ms"]
    assert lines[3][2:] == ["0197a3b2-4c5d", "planner", "refund", "denied", "policy", "-"]
    assert lines[4][:2] == ["2026-01-01", "12:00:01"]
    assert lines[-1] == ["4", "calls,", "1", "refused,", "1", "unfinished"]


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 200])
def test_list_fits_the_screen_and_never_loses_who_and_what(
    store: Path, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = printed("list")
    assert max(map(len, text.splitlines())) <= columns
    words = (*("0197a3b9-1111", "12:00:01", "2026-01-01", "clerk", "mail"), "UNFI" if columns == 60 else "UNFINISHED")
    assert not [word for word in words if word not in text]


def test_list_into_a_pipe_cuts_nothing(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    chain = story()
    chain.call("t" * 150, run_id=RUN, iteration=9, agent="a" * 150)
    insert(store.with_name("wide.db"), chain.rows)
    text = printed("list", "--store", store.with_name("wide.db"))
    assert "t" * 150 in text
    assert "a" * 150 in text


@pytest.mark.parametrize(
    ("options", "tools"),
    [
        (["--tool", "mail"], ["mail"]),
        (["--agent", "planner"], ["book", "refund", "search"]),
        (["--decision", "denied"], ["refund"]),
        (["--outcome", "unfinished"], ["mail"]),
        (["--outcome", "error"], ["book"]),
        (["--conversation", "c-4711", "--limit", "1"], ["book"]),
        (["--since", "2026-01-01T12:00:05Z"], ["mail", "book"]),
        (["--until", "2026-01-01T13:00:05+01:00"], ["refund", "search"]),
        (["--until", "2026-01-01"], []),
        (["--since", "1s"], []),
    ],
    ids=str,
)
def test_list_takes_filters_and_prints_json(store: Path, options: list[str], tools: list[str]) -> None:
    assert [call["tool"] for call in json.loads(printed("list", "--json", *options))] == tools


def test_json_tells_what_is_known_of_a_call(store: Path) -> None:
    assert json.loads(printed("list", "--json", "--tool", "book")) == [
        {
            "time": "2026-01-01T12:00:06+00:00",
            "run_id": RUN,
            "iteration": 2,
            "batch_index": 1,
            "call_id": "call_3",
            "agent": "planner",
            "tool": "book",
            "conversation_id": "c-4711",
            "trace_id": TRACE,
            "span_id": None,
            "state": "error",
            "decision": "allowed",
            "decided_by": None,
            "reason_code": None,
            "outcome": "error",
            "error_type": "OSError",
            "duration": 0.25,
        }
    ]


def test_list_says_when_there_is_nothing_and_when_there_may_be_more(store: Path) -> None:
    assert printed("list", "--tool", "nothing") == "no such call\n"
    assert "2 calls, 0 refused, 1 unfinished; there may be more: --limit 20" in printed("list", "--limit", "2")


@pytest.mark.parametrize("options", [["--since", "yesterday"], ["--limit", "0"], ["--outcome", "fine"], ["--nothing"]])
def test_a_question_that_cannot_be_understood_ends_with_2(store: Path, options: list[str]) -> None:
    complaint("list", *options)


def test_times_may_be_spans_back_from_now_or_in_utc() -> None:
    now = datetime.now(UTC)
    for text, span in (("90s", 90), ("5m", 300), ("2h", 7200), ("7d", 604_800), ("1w", 604_800)):
        time = time_of(text)
        assert time is not None
        assert abs((now - time) - timedelta(seconds=span)) < timedelta(seconds=30)
    assert time_of("2026-07-01T12:00") == time_of("2026-07-01T12:00Z") == datetime(2026, 7, 1, 12, tzinfo=UTC)
    assert time_of(None) is None
    for text in ("999999w", "-2h", "2 h", "2y", "", "2026-13-01"):
        with pytest.raises(typer.BadParameter):
            time_of(text)


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
        f"arguments    not stored (digest {CITY['digest'][:12]}, 16 bytes)  city",
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


def test_show_marks_what_is_unfinished(store: Path) -> None:
    text = printed("show", OTHER_RUN)
    assert "mail  call_4  UNFINISHED" in text
    assert "outcome      UNFINISHED: no outcome is recorded" in text


def test_show_takes_the_beginning_that_only_one_run_has(store: Path) -> None:
    assert f"run {RUN}" in printed("show", "0197a3b2")
    assert "several runs begin with 0197:\n" in complaint("show", "0197")
    assert OTHER_RUN in complaint("show", "0197")


def test_show_of_a_run_that_is_not_there_ends_with_1(store: Path) -> None:
    assert complaint("show", "0198", status=1) == "audit: no run begins with 0198\n"


def test_show_prints_json_with_all_records(store: Path) -> None:
    run = json.loads(printed("show", RUN, "--json", "--trace-url", "http://traces/{trace_id}"))
    assert (run["run_id"], run["agent"], run["trace_url"]) == (RUN, "planner", f"http://traces/{TRACE}")
    assert [call["tool"] for call in run["calls"]] == ["search", "refund", "book"]
    assert [record["kind"] for record in run["calls"][0]["records"]] == ["intent", "decision", "outcome"]


def test_show_needs_a_place_for_the_trace_id_and_a_trace_id_that_is_one(store: Path) -> None:
    assert "{trace_id}" in complaint("show", RUN, "--trace-url", "http://traces/")
    chain = Chain()
    chain.call(run_id="run", trace_id="../../x")
    insert(store.with_name("odd.db"), chain.rows)
    run = json.loads(
        printed("show", "run", "--json", "--trace-url", "h{trace_id}", "--store", store.with_name("odd.db"))
    )
    assert run["trace_url"] is None


# verify


def test_verify_of_a_whole_store_ends_with_0(store: Path) -> None:
    assert printed("verify") == "whole and unchanged: 11 records in 1 chain, 1 checkpoint\n"
    assert json.loads(printed("verify", "--json"))["ok"] is True


def tamper(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET tool = 'other' WHERE sequence = 4")


def test_verify_names_the_first_bad_record_and_ends_with_1(store: Path) -> None:
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


def test_verify_tells_what_is_not_covered(store: Path) -> None:
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
    file = tmp_path / "records.parquet"
    result = audit("export", "--format", "parquet", "--output", file)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith("11 records written to ")
    assert parquet.read_table(file).num_rows == 11
    assert file.stat().st_mode & 0o777 == 0o600


def test_export_of_a_store_that_cannot_be_read_leaves_the_file_as_it_was(store: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("kept")
    complaint("export", "--format", "csv", "--output", tmp_path / "kept", "--store", tmp_path / "nothing.db")
    assert (tmp_path / "kept").read_text() == "kept"


def test_export_that_cannot_be_ends_with_2(store: Path, tmp_path: Path) -> None:
    assert "format must be one of" in complaint("export", "--format", "xlsx")
    assert "cannot be written" in complaint("export", "--format", "csv", "--output", tmp_path / "no" / "where")
    complaint("export")


# match


def file(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "given"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_match_proves_and_refutes(store: Path, tmp_path: Path) -> None:
    right, wrong = '{ "city": "\\u004fslo" }\n', '{"city": "Rome"}'
    assert printed("match", "call_1", "--arguments", file(tmp_path, right)) == (
        "call_1: its arguments were this: the digests are the same\n"
    )
    assert "NOT this" in printed("match", "call_1", "--arguments", file(tmp_path, wrong), status=1)
    told = printed("match", "call_1", "--arguments", file(tmp_path, wrong), "--json", status=1)
    assert json.loads(told) == {"call_id": "call_1", "content": "arguments", "matches": False}
    place = ("--run", "0197a3b2", "--iteration", 1)
    assert "are the same" in printed("match", "call_1", "--arguments", file(tmp_path, right), *place)


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_match_does_not_mind_the_end_of_line_that_editors_add(store: Path, tmp_path: Path, end: str) -> None:
    chain = Chain()
    chain.call(call_id="call_9", result=KEY.content("sunny"), reason=KEY.content("why not"))
    insert(store.with_name("texts.db"), chain.rows)
    place = ("--store", store.with_name("texts.db"))
    printed("match", "call_9", "--result", file(tmp_path, f"sunny{end}"), *place)
    printed("match", "call_9", "--reason", file(tmp_path, f"why not{end}"), *place)
    printed("match", "call_9", "--reason", file(tmp_path, f"why not {end}"), *place, status=1)


def test_match_that_cannot_be_told_ends_with_2(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = file(tmp_path, "{}")
    assert "no call" in complaint("match", "call_99", "--arguments", given)
    assert "name one of" in complaint("match", "call_1")
    assert "name one of" in complaint("match", "call_1", "--arguments", given, "--result", given)
    assert "cannot be read" in complaint("match", "call_1", "--arguments", tmp_path / "nothing")
    assert "no UTF-8" in complaint("match", "call_1", "--arguments", file(tmp_path, b"\xff"))
    given = file(tmp_path, "{}")
    monkeypatch.setenv("TRACED_TOOLS_AUDIT_KEY", "another secret, as long")
    assert f"recorded with the key {KEY.id}" in complaint("match", "call_1", "--arguments", given)
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_KEY")
    assert "there is no audit key" in complaint("match", "call_1", "--arguments", given)


# Stores


COMMANDS: tuple[list[str], ...] = (
    *(["list"], ["show", RUN], ["verify"], ["export", "--format", "csv"]),
    ["match", "call_1", "--arguments", __file__],
)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each[0])
def test_a_store_that_cannot_be_read_ends_with_2(store: Path, command: list[str]) -> None:
    assert "there is no audit store" in complaint(*command, "--store", store.with_name("nothing.db"))
    store.with_name("text").write_text("no database " * 99)
    assert "no SQLite database" in complaint(*command, "--store", store.with_name("text"))
    assert "s3cret" not in complaint(*command, "--store", "mysql://me:s3cret@localhost/x")


def test_without_a_store_named_it_is_the_one_in_this_folder(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACED_TOOLS_AUDIT_STORE")
    monkeypatch.chdir(store.parent)
    assert "UNFINISHED" in printed("list")


# What models and strangers wrote.

HOSTILE = (
    *(
        "\x1b[2J\x1b]0;title\x07",
        "\x9b31m",
        "\u202etxt.exe",
        "a\r\nb\x00",
        "\x7f",
        "\u2028",
        "[bold red]x[/]",
        "[/]",
        ":smile:",
    ),
    *("=1+1", "'; DROP TABLE audit_records; --", "\\x1b", "\u200b\u2066"),
)
hostile = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)


def everything_printed(store: Path) -> dict[str, str]:
    commands: dict[str, list[str]] = {
        "list": ["list"],
        "list --json": ["list", "--json"],
        "show": ["show", "run-1"],
        "show --json": ["show", "run-1", "--json"],
        "jsonl": ["export", "--format", "jsonl"],
        "csv": ["export", "--format", "csv"],
    }
    place = ["--store", str(store)]
    runner = CliRunner(env={"COLUMNS": "120"})
    results = {name: runner.invoke(app, ["audit", *each, *place]) for name, each in commands.items()}
    assert not {name: result.output for name, result in results.items() if result.exit_code}
    return {name: result.stdout for name, result in results.items()}


def unseen(text: str) -> list[str]:
    return [each for each in text if not each.isprintable() and each not in "\r\n"]


@relaxed
@given(name=hostile)
def test_nothing_that_cannot_be_seen_is_printed(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    chain = Chain()
    told = content(name, stored=True)
    odd: dict[str, Any] = {"run_id": "run-1", "agent": name, "conversation_id": name, "trace_id": name, "call_id": name}
    chain.call(name, **odd, reason=told, model=name, provider=name, arguments=told, argument_names=[name], result=told)
    chain.call(name, **odd, iteration=2, decision="denied", advisor=name, reason_code=name)
    chain.call("_unknown", **odd, iteration=3, decision="unknown_tool", requested_name=told)
    chain.call(name, **odd, iteration=4, outcome="error", error_type=name)
    store = tmp_path_factory.mktemp("hostile") / "audit.db"
    insert(store, chain.rows)
    texts = everything_printed(store)
    assert not {name: found for name, text in texts.items() if (found := unseen(text))}
    assert len(texts["list"].splitlines()) == 1 + 4 + 2
    assert json.loads(texts["list --json"])[0]["tool"] == name


def test_markup_and_escapes_are_shown_as_they_were_written(store: Path) -> None:
    chain = Chain()
    chain.call("[bold]x[/]", run_id="run-1", agent=":smile: \\x1b", reason=content("[red]\x1b[31m\u202e", stored=True))
    insert(store.with_name("odd.db"), chain.rows)
    assert "[bold]x[/]" in printed("list", "--store", store.with_name("odd.db"))
    assert ":smile: \\\\x1b" in printed("list", "--store", store.with_name("odd.db"))
    assert r"reason       [red]\x1b[31m\u202e" in printed("show", "run-1", "--store", store.with_name("odd.db"))


def test_ten_megabytes_and_invalid_unicode_break_nothing(store: Path) -> None:
    huge = "x" * 10_000_000
    chain = Chain()
    chain.call(huge, run_id="run-1", decision=None)
    chain.call("z", run_id="run-1", iteration=3, reason=content(huge, stored=True), decision=None)
    chain.call("y", run_id="run-1", iteration=2, reason=content("\udcff", stored=True), advisor="\ud800")
    insert(store.with_name("odd.db"), chain.rows)
    texts = everything_printed(store.with_name("odd.db"))
    assert "… (10,000,000 characters)" in texts["show"]
    assert len(texts["show"]) + len(texts["list"]) < 20_000
    assert r"reason       \udcff" in texts["show"]
    assert not {name: found for name, text in texts.items() if (found := unseen(text))}


def test_damaged_records_are_shown_as_damaged(store: Path) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute("UPDATE audit_records SET body = x'ff1b5b' WHERE kind <> 'intent'")
    assert "damaged" in printed("list")
    assert "damaged" in printed("show", RUN)
    assert not unseen(printed("export", "--format", "jsonl"))


# As a process


def process(*arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    code = "from traced_tools.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, "audit", *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_who_stops_reading_ends_it_quietly(tmp_path: Path) -> None:
    insert(tmp_path / "audit.db", many(6_000, chains=1))
    for command in (
        ["export", "--format", "jsonl"],
        ["list", "--limit", "2000"],
        ["list", "--limit", "5000", "--json"],
    ):
        with process(*command, "--store", str(tmp_path / "audit.db")) as running:
            assert running.stdout is not None
            assert running.stderr is not None
            running.stdout.read(10)
            running.stdout.close()
            assert running.stderr.read() == b""
            assert running.wait(60) == 0


def test_a_terminal_without_unicode_is_written_to_all_the_same(store: Path) -> None:
    chain = Chain()
    chain.call(run_id=RUN, agent="Zoë")
    insert(store.with_name("zoe.db"), chain.rows)
    running = process("show", RUN, "--store", str(store.with_name("zoe.db")), PYTHONIOENCODING="ascii")
    out, err = running.communicate(timeout=60)
    assert (running.returncode, err) == (0, b"")
    assert rb"Zo\xeb" in out
