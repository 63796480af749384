"""Records on their way out: whole, streamed, and harmless to whatever opens them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.audit.made import Chain, Row, content, write
from traced_tools.audit.reading.exporting import COLUMNS, export
from traced_tools.audit.reading.reader import AuditReader
from traced_tools.audit.records import AuditRecord, body_of, hash_of
from traced_tools.errors import ConfigurationError

FORMATS = ("jsonl", "csv")


def records(*rows: Row) -> list[AuditRecord]:
    return [
        AuditRecord(*(row[name] for name in ("chain_id", "sequence", "time", "kind", "hash", "body"))) for row in rows
    ]


def exported(format: str, *rows: Row) -> bytes:
    file = io.BytesIO()
    assert export(records(*rows), format, file) == len(rows)  # type: ignore[arg-type]
    return file.getvalue()


def table(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def lines(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines()]


@pytest.fixture
def chain() -> Chain:
    chain = Chain()
    chain.call(tool="search", reason=content("because", stored=True), trace_id="a" * 32, tags={"team": "x"})
    chain.call(
        tool="book", decision="denied", advisor="policy", reason_code="never", rule="rule-7", policy_digest="a1" * 8
    )
    chain.checkpoint()
    return chain


def test_a_line_of_json_is_the_body_with_the_hash_beside_it(chain: Chain) -> None:
    exported_lines = lines(exported("jsonl", *chain.rows))
    for line, row in zip(exported_lines, chain.rows, strict=True):
        own = line.pop("hash")
        assert (own, body_of(line)) == (row["hash"], row["body"])
        assert hash_of(body_of(line)) == own


def test_a_row_of_the_table_is_a_record(chain: Chain) -> None:
    rows = table(exported("csv", *chain.rows))
    assert [row["kind"] for row in rows] == ["intent", "decision", "outcome", "intent", "decision", "checkpoint"]
    intent, _, outcome, _, decision, _ = rows
    assert tuple(intent) == COLUMNS
    assert (intent["time"], intent["tool"], intent["iteration"]) == ("2026-01-01T12:00:01.000000000Z", "search", "1")
    assert intent["reason_digest"] == content("because")["digest"]
    assert (outcome["outcome"], outcome["duration"], outcome["result_size"]) == ("ok", "0.25", "5")
    assert (decision["decision"], decision["advisor"]) == ("denied", "policy")
    assert (decision["reason_code"], decision["rule"], decision["policy_digest"]) == ("never", "rule-7", "a1" * 8)
    assert [row["body"] for row in rows] == [row["body"] for row in chain.rows]


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_of_nothing_can_be_read(format: str) -> None:
    data = exported(format)
    assert {"jsonl": lines, "csv": table}[format](data) == []  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_records_are_exported_one_by_one(format: str, chain: Chain) -> None:
    """Never more than some thousands are held at once."""
    alive = 0
    most = 0

    class Counted(AuditRecord):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def coming() -> Iterator[AuditRecord]:
        nonlocal alive, most
        (record,) = records(chain.rows[0])
        for _ in range(20_000):
            alive += 1
            most = max(most, alive)
            yield Counted(record.chain_id, record.sequence, record.time, record.kind, record.hash, record.body)

    file = io.BytesIO()
    assert export(coming(), format, file) == 20_000  # type: ignore[arg-type]
    assert most < 6_000


# What opens them.


@pytest.mark.parametrize("name", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "=cmd|' /C calc'!A0"])
def test_a_name_that_looks_like_a_formula_is_escaped_in_csv(chain: Chain, name: str) -> None:
    chain.call(tool=name, agent=name)
    row = table(exported("csv", *chain.rows))[-1]
    assert not row["tool"].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
    assert not row["agent"].startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20\ufe62\ufe63\ufe66\ufe6b\u207a\u207b\u2212\u2a75"
UNSEEN = " \t\r\n\x00\x0b\x1f\x7f\x85\xa0\xad\u034f\u115f\u200b\u2060\u2028\u3000\u3164\ufe0f\ufeff\ufffe"


@given(before=st.text(st.sampled_from(UNSEEN), max_size=3), sign=st.sampled_from(SIGNS))
def test_a_formula_sign_in_another_width_or_after_invisible_characters_is_escaped(before: str, sign: str) -> None:
    chain = Chain()
    chain.call(tool=f"{before}{sign}1+1", agent=f"{sign}cmd")
    row = table(exported("csv", *chain.rows))[0]
    assert row["tool"].lstrip(UNSEEN)[0] in "'\\"
    assert row["agent"] == f"'{sign}cmd"
    assert json.loads(row["body"])["tool"] == f"{before}{sign}1+1"


@pytest.mark.parametrize("name", ["a=1", "", " ", "\uff031", "1-2", "é@x", "'=1"])
def test_other_texts_stay_as_they_are(chain: Chain, name: str) -> None:
    chain.call(tool=name)
    assert table(exported("csv", *chain.rows))[-1]["tool"] == name


hostile = st.text(st.characters(), max_size=40) | st.sampled_from(
    ["\x1b[2J", "\u202e", "\x7f", "\x9b31m", "\udcff", "a,b\"'\r\n"]
)


@given(name=hostile)
def test_invisible_characters_in_names_are_escaped(name: str) -> None:
    chain = Chain()
    chain.call(tool=name, agent=name, reason=content(name, stored=True), error_type=name)
    for form in ("jsonl", "csv"):
        text = exported(form, *chain.rows).decode()
        assert not [each for each in text if not each.isprintable() and each not in "\r\n"]
        assert text.count("\n") == len(chain.rows) + (form == "csv")
    assert lines(exported("jsonl", *chain.rows))[0]["tool"] == name
    assert json.loads(table(exported("csv", *chain.rows))[0]["body"])["tool"] == name


def odd_rows(chain: Chain) -> list[Row]:
    odd: list[dict[str, Any]] = [
        {"body": "no JSON \x1b"},
        {"body": "\udcff"},
        {"body": "[]"},
        {"body": '{"duration":1e999}'},
        {
            "body": body_of(
                {"tool": ["=1"], "iteration": "=1", "duration": "=1", "batch_index": 1 << 70, "arguments": 3}
            )
        },
        {"body": body_of({"arguments": {"digest": ["=1"], "size": "=1"}, "duration": True})},
        {"time": "noon", "sequence": "x", "hash": "\x1b", "kind": "=1", "chain_id": "=1"},
        {"time": 1 << 62},
        {"time": -1},
    ]
    return [chain.rows[0] | each for each in odd]


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_records_are_exported(format: str, chain: Chain) -> None:
    rows = odd_rows(chain)
    data = exported(format, *rows)
    if format == "jsonl":
        assert [line.get("damaged") for line in lines(data)] == [True] * 4 + [None] * (len(rows) - 4)
    assert not [each for each in data.decode() if not each.isprintable() and each not in "\r\n"]
    if format == "csv":
        assert not [cell for row in table(data) for cell in row.values() if cell.startswith("=")]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="jsonl, csv"):
        export([], "xlsx", io.BytesIO())  # type: ignore[arg-type]


def test_the_records_of_a_reader_can_be_exported(chain: Chain, tmp_path: Path) -> None:
    reader = AuditReader(write(tmp_path / "audit.db", chain))
    file = io.BytesIO()
    assert export(reader.records(), "jsonl", file) == len(chain.rows)
