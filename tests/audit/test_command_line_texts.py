"""What `traced-tools audit` shows of texts: all there is, on its line, and nothing that a terminal obeys."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from tests.audit.commanded import KEY, RUN, file, make_store, printed, unseen
from tests.audit.made import Chain, content, insert
from traced_tools.cli.app import app


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_store(tmp_path, monkeypatch)


values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(value=values, ascii=st.booleans(), indent=st.sampled_from([None, 2, "\t"]))
@example(value={"path": "C:\\new\t", "odd": '\x7f\u202e\U000e0001\ud800"'}, ascii=False, indent=2)
def test_show_prints_the_stored_arguments(
    tmp_path_factory: pytest.TempPathFactory, value: Any, ascii: bool, indent: int | str | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii, indent=indent).replace("\n", "\r\n" if indent == 2 else "\n")
    assume(len(text) <= 2000)
    chain = Chain()
    chain.call(run_id="run-1", arguments=content(text, stored=True))
    store = tmp_path_factory.mktemp("shown") / "audit.db"
    insert(store, chain.rows)
    shown = CliRunner(env={"COLUMNS": None}).invoke(app, ["audit", "show", "run-1", "--store", str(store)]).stdout
    (line,) = [each.partition("── arguments    ")[2] for each in shown.splitlines() if "── arguments " in each]
    assert json.loads(line) == value
    assert not unseen(shown)


def test_arguments_copied_from_show_match(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    text = json.dumps({"path": "C:\\new", "note": f"a\nb \x1b {'x ' * 700}"})
    chain = Chain()
    chain.call(run_id=RUN, call_id="call_1", arguments=KEY.content(text, is_json=True) | {"text": text})
    insert(store.with_name("copied.db"), chain.rows)
    place = ("--store", store.with_name("copied.db"))
    copied = printed("show", RUN, *place).partition("── arguments    ")[2].partition("\n")[0]
    printed("match", "call_1", "--arguments", file(tmp_path, copied), *place)


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


@pytest.mark.slow
@given(name=hostile)
def test_no_invisible_character_is_printed(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    chain = Chain()
    stored_content = content(name, stored=True)
    odd: dict[str, Any] = {"run_id": "run-1", "agent": name, "conversation_id": name, "trace_id": name, "call_id": name}
    chain.call(
        name,
        **odd,
        reason=stored_content,
        model=name,
        provider=name,
        arguments=stored_content,
        argument_names=[name],
        result=stored_content,
    )
    chain.call(name, **odd, iteration=2, decision="denied", advisor=name, reason_code=name)
    chain.call("_unknown", **odd, iteration=3, decision="unknown_tool", requested_name=stored_content)
    chain.call(name, **odd, iteration=4, outcome="error", error_type=name)
    store = tmp_path_factory.mktemp("hostile") / "audit.db"
    insert(store, chain.rows)
    texts = everything_printed(store)
    assert not {name: found for name, text in texts.items() if (found := unseen(text))}
    assert len(texts["list"].splitlines()) == 1 + 4 + 2
    assert json.loads(texts["list --json"])[0]["tool"] == name


def test_markup_and_escapes_are_shown_as_they_were_written(store: Path) -> None:
    chain = Chain()
    stored_content = content("[red]\x1b[31m\u202e \\x1b", stored=True) | {"form": "text"}
    chain.call("[bold]x[/]", run_id="run-1", agent=":smile: \\x1b", reason=stored_content)
    insert(store.with_name("odd.db"), chain.rows)
    assert "[bold]x[/]" in printed("list", "--store", store.with_name("odd.db"))
    assert ":smile: \\\\x1b" in printed("list", "--store", store.with_name("odd.db"))
    assert r"reason       [red]\x1b[31m\u202e \\x1b" in printed("show", "run-1", "--store", store.with_name("odd.db"))


@pytest.mark.slow
def test_contents_of_ten_megabytes_and_invalid_unicode_are_printed(store: Path) -> None:
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
    printed("export", "--format", "csv")


@pytest.mark.parametrize("value", ["char(27) || '[2J'", "x'1b5b'"], ids=["text", "bytes"])
@pytest.mark.parametrize("column", ["iteration", "batch_index", "call_id", "hash"])
def test_a_value_of_the_wrong_type_in_a_column_is_shown(store: Path, column: str, value: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE audit_records SET {column} = {value} WHERE sequence < 4")
    for command in (["list"], ["list", "--json"], ["show", RUN], ["show", RUN, "--json"]):
        assert not unseen(printed(*command))
    printed("verify", status=1)
    printed("verify", "--json", status=1)


@pytest.mark.parametrize("time", ["'abc'", "x'ff'", "1e300"], ids=str)
def test_a_record_with_an_invalid_time_is_shown_as_damaged_without_a_time(store: Path, time: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"UPDATE audit_records SET time = {time} WHERE kind = 'intent' AND tool IN ('book', 'mail')")
    lines = {line.split()[4]: line.split() for line in printed("list").splitlines()[1:5]}
    assert {tool: (line[:2] == ["no", "time"], "damaged" in line) for tool, line in lines.items()} == {
        "book": (True, True),
        "mail": (True, True),
        "refund": (False, False),
        "search": (False, False),
    }
    (call,) = json.loads(printed("list", "--json", "--tool", "book"))
    assert (call["time"], call["state"]) == (None, "damaged")
    assert "intent       no time" in printed("show", RUN)
    printed("list", "--outcome", "unfinished")
    printed("export", "--format", "csv")
    assert "CHANGED" in printed("verify", status=1)
