"""Stores made straight from the form of a record, without the side that writes them: whole, tampered with, or large."""

from __future__ import annotations

import base64
import json
import random
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateIndex, CreateTable

from traced_tools.audit.indexes import INDEXES
from traced_tools.audit.records import GENESIS, SCHEMA_VERSION, body_of, hash_of, timestamp
from traced_tools.audit.schema import RECORDS, REPEATED

NOON = 1_767_268_800_000_000_000
"""2026-01-01 at 12:00 UTC, in nanoseconds."""
SECOND = 1_000_000_000
KEY_ID = "00112233aabbccdd"
COLUMNS = tuple(column.name for column in RECORDS.columns)
Row = dict[str, Any]


def content(text: str, stored: bool = False) -> dict[str, Any]:
    """A content as a record has it, with a digest that no key makes."""
    fields: dict[str, Any] = {
        "digest": hash_of(json.dumps(text)),
        "form": "json",
        "size": len(text.encode("utf-8", "surrogatepass")),
        "key_id": KEY_ID,
    }
    return fields | ({"text": text} if stored else {})


CITY = content('{"city": "Oslo"}')
SUNNY = content("sunny")


def row_of(fields: Mapping[str, Any], time: int) -> Row:
    """The row of a record with such a body: its hash and the columns beside it."""
    body = body_of(fields)
    repeated = {name: fields.get(name) for name in REPEATED}
    own = {"chain_id": fields["chain_id"], "sequence": fields["sequence"], "time": time, "kind": fields["kind"]}
    return {**own, **repeated, "hash": hash_of(body), "body": body}


@dataclass
class Chain:
    """A chain under the hands of a test: what is added has its place, its hash and the time after the last one's."""

    chain_id: str = "chain-a"
    time: int = NOON
    signing_key: Any = None
    rows: list[Row] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    length: int = 0
    checked: int = 0
    head: str = GENESIS

    def add(self, kind: str, *, time: int | None = None, **fields: Any) -> Row:
        """Add a record; fields that are None are omitted."""
        self.time = self.time + SECOND if time is None else time
        common = {
            "schema_version": SCHEMA_VERSION,
            "kind": kind,
            "chain_id": self.chain_id,
            "sequence": self.length + 1,
            "time": timestamp(self.time),
            "previous": self.head,
            "service": "travel",
        }
        given = {name: value for name, value in fields.items() if value is not None}
        return self._keep(row_of(common | given, self.time))

    def _keep(self, row: Row) -> Row:
        self.rows.append(row)
        self.length, self.head = row["sequence"], row["hash"]
        return row

    def call(
        self, tool: str = "search", *, decision: str | None = "allowed", outcome: str | None = "ok", **fields: Any
    ):
        """Add the records of a call, as far as it came; returns the rows."""
        subject, rest = _subject_of(tool, fields)
        intent = {"source": "local", "arguments": CITY, "argument_names": ["city"]}
        rows = [self.add("intent", **subject, **{**intent, **_taken(rest, _OF_INTENT)})]
        if decision is not None:
            rows.append(self.add("decision", **subject, decision=decision, **_taken(rest, _OF_DECISION)))
        if decision in ("allowed", "approved") and outcome is not None:
            ended = {"duration": 0.25, "attempts": 1, "result": SUNNY}
            rows.append(self.add("outcome", **subject, outcome=outcome, **{**ended, **_taken(rest, _OF_OUTCOME)}))
        assert not rest, f"no field of a call: {rest}"
        return rows

    def compaction(self, entry_id: str = "entry-1", **fields: Any) -> Row:
        """Add the record of a compaction."""
        subject: Row = {"agent": "planner", "run_id": "run-1", "iteration": 1}
        made = {"entry_id": entry_id, "trigger": "tokens", "strategy": "summary", "covered": 12, "through": 14}
        return self.add("compaction", **{**subject, **made, **fields})

    def checkpoint(self, *others: Chain, **fields: Any) -> Row:
        """Add a checkpoint that knows the heads of `others`, signed where the chain has a key, and its line."""
        heads = {other.chain_id: {"sequence": other.length, "hash": other.head} for other in others}
        content = {"records": self.length, "head": self.head, "heads": heads or None, "key_id": KEY_ID, **fields}
        if self.signing_key is not None:
            content["public_key"] = base64.b64encode(self.signing_key.public_key().public_bytes_raw()).decode()
        row = self.add("checkpoint", **content)
        if self.signing_key is not None:
            row = self._keep(self._signed(self.rows.pop()))
        self.checked = row["sequence"]
        self.lines.append(line_of(row))
        return row

    def _signed(self, row: Row) -> Row:
        signature = base64.b64encode(self.signing_key.sign(row["body"].encode())).decode()
        return row_of({**json.loads(row["body"]), "signature": signature}, row["time"])

    def again_from(self, sequence: int) -> None:
        """Give every record from `sequence` on its place and its hash anew, as who may write the store can."""
        for index in range(sequence - 1, len(self.rows)):
            fields = json.loads(self.rows[index]["body"])
            fields |= {"sequence": index + 1, "previous": self.rows[index - 1]["hash"] if index else GENESIS}
            if fields["kind"] == "checkpoint":
                fields |= {"records": index, "head": fields["previous"]}
            self.rows[index] = row_of(fields, self.rows[index]["time"])
        self.length, self.head = len(self.rows), self.rows[-1]["hash"]


_OF_INTENT = (
    *("source", "arguments", "requested_arguments", "argument_names", "reason", "model", "provider", "requested_name"),
    *("batch_size", "own_name", "principal"),
)
_OF_DECISION = ("advisor", "reason_code", "rule", "by", "policy_digest", "evaluated")
_OF_OUTCOME = ("duration", "attempts", "result", "error_type")


def _taken(fields: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: fields.pop(name) for name in names if name in fields}


def _subject_of(tool: str, fields: dict[str, Any]) -> tuple[Row, dict[str, Any]]:
    subject: Row = {
        "agent": "planner",
        "run_id": "run-1",
        "call_id": f"call-{tool}",
        "tool": tool,
        "iteration": 1,
        "batch_index": 0,
        "conversation_id": None,
        "trace_id": None,
        "span_id": None,
        "tags": None,
        "parent_run_id": None,
        "attributes": None,
    }
    return subject | _taken(fields, tuple(subject)), fields


def line_of(row: Row) -> dict[str, Any]:
    """The line outside the store of a checkpoint."""
    fields = json.loads(row["body"])
    kept = ("chain_id", "sequence", "records", "head", "time", "final", "public_key", "signature")
    return {name: fields[name] for name in kept if name in fields} | {"hash": row["hash"], "body": row["body"]}


def write(path: Path, *chains: Chain) -> Path:
    """Make the store of these chains, and the lines outside it, where there are any."""
    insert(path, (row for chain in chains for row in chain.rows))
    lines = [line for chain in chains for line in chain.lines]
    if lines:
        Path(f"{path}.checkpoints").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def insert(path: Path, rows: Iterable[Row]) -> None:
    """Make a store of these rows: the table first, the indexes when it is full."""
    dialect = sqlite.dialect()
    marks = ", ".join("?" * len(COLUMNS))
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("BEGIN")
        connection.execute(str(CreateTable(RECORDS).compile(dialect=dialect)))
        values = (tuple(row[name] for name in COLUMNS) for row in rows)
        connection.executemany(f"INSERT INTO {RECORDS.name} ({', '.join(COLUMNS)}) VALUES ({marks})", values)
        for index in INDEXES:
            connection.execute(str(CreateIndex(index).compile(dialect=dialect)))
        connection.execute("COMMIT")


def many(records: int, chains: int = 8) -> Iterator[Row]:
    """The rows of a large store, chain by chain, as agents of very different diligence would have filled it.

    In 10,000 calls about 300 are refused, 20 of which by the policy `rare`; 5 are unfinished.
    """
    chance = random.Random(7)
    for number in range(chains):
        chain = Chain(f"0197a3b2-0000-7000-8000-{number:012x}", time=NOON + number)
        size = records // chains
        runs = 0
        while chain.length < size:
            runs += 1
            run = f"{runs:08x}-{number:04x}-7000-8000-{chance.getrandbits(48):012x}"
            yield from _some_run(chain, run, chance)


def _some_run(chain: Chain, run: str, chance: random.Random) -> Iterator[Row]:
    agent = f"agent-{min(int(chance.expovariate(0.5)), 19)}"
    conversation = f"conversation-{chance.randrange(50_000)}"
    trace = f"{chance.getrandbits(128):032x}"
    for iteration in range(1, chance.randint(2, 5)):
        tool = f"tool_{min(int(chance.expovariate(0.3)), 49)}"
        luck = chance.randrange(10_000)
        rows = chain.call(
            tool,
            agent=agent,
            run_id=run,
            call_id=f"call_{chance.getrandbits(96):024x}",
            iteration=iteration,
            conversation_id=conversation,
            trace_id=trace,
            span_id=trace[:16],
            decision="denied" if luck < 280 else "rejected" if luck < 300 else "allowed",
            outcome=None if luck >= 9_995 else "error" if luck >= 9_700 else "timeout" if luck >= 9_690 else "ok",
        )
        yield from rows
    if chain.length - chain.checked >= 1000:
        yield chain.checkpoint()
    chain.rows.clear()
