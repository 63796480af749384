"""What the tests of the writing side share: drafts, and a look at a store that uses nothing of the package."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.waiting import PATIENCE
from traced_tools.audit.records import Content, Draft, Subject
from traced_tools.audit.trail import AuditTrail
from traced_tools.errors import AuditUnavailable

KEY = b"a key for the tests, long enough"
SECRET = "sEcReT-51c0"


def intent(
    call_id: str = "call_1", *, arguments: str = '{"city": "Oslo"}', may_be_stored: bool = True, **changes: Any
) -> Draft:
    """An intent; `changes` are those of its subject."""
    subject = {
        "agent": "planner",
        "run_id": "run-1",
        "tool": "get_weather",
        "iteration": 1,
        "batch_index": 0,
        **changes,
    }
    fields = {"source": "local", "argument_names": ["city"], "batch_size": 1}
    contents = {"arguments": Content(arguments, may_be_stored, True)}
    return Draft("intent", time.time_ns(), Subject(call_id=call_id, **subject), fields, contents)


def write(trail: AuditTrail, draft: Draft) -> None:
    """Write a record and wait for it, blocking."""
    trail.write(draft).run()


def unavailable(trail: AuditTrail, draft: Draft) -> AuditUnavailable:
    """Have a record written to a store that fails, and return what is said of it once it has."""
    writing = trail.write(draft, 0.01)
    deadline = time.monotonic() + 2 * PATIENCE
    while time.monotonic() < deadline:
        has_failed = trail._writer.problem is not None
        try:
            writing.run()
        except AuditUnavailable as error:
            if has_failed:
                return error
    raise AssertionError("the store does not fail")


def settle(trail: AuditTrail, draft: Draft) -> None:
    """Have a record written, however little time the trail gives to those who wait."""
    trail.submit(draft)
    settled(trail)


def settled(trail: AuditTrail) -> None:
    """Wait until all that the trail has taken is durable."""
    assert trail.flush(2 * PATIENCE)


async def awrite(trail: AuditTrail, draft: Draft) -> None:
    """Write a record and wait for it on asyncio."""
    await trail.write(draft).arun()


def write_each_way(trail: AuditTrail, draft: Draft, way: str) -> None:
    """Write a record and wait for it, `blocking` or on `asyncio`."""
    if way == "blocking":
        write(trail, draft)
    else:
        asyncio.run(awrite(trail, draft))


def bodies(path: Path) -> list[dict[str, Any]]:
    """What all records say, chain by chain, in order; fails unless each chain is whole."""
    chains: dict[str, list[dict[str, Any]]] = defaultdict(list)
    last: dict[str, tuple[int, str]] = defaultdict(lambda: (0, "0" * 64))
    for chain_id, sequence, digest, body in _rows(path):
        fields = json.loads(body)
        number, previous = last[chain_id]
        assert sequence == fields["sequence"] == number + 1, f"{chain_id}: {sequence} follows {number}"
        assert fields["previous"] == previous
        assert fields["chain_id"] == chain_id
        assert hashlib.sha256(_hashed(fields, body).encode()).hexdigest() == digest
        assert body == json.dumps(fields, sort_keys=True, separators=(",", ":"))
        last[chain_id] = (sequence, digest)
        chains[chain_id].append(fields)
    return [fields for chain in chains.values() for fields in chain]


def _hashed(fields: dict[str, Any], body: str) -> str:
    """What the hash of a record covers: of one that stores texts, all but the texts."""
    if fields["schema_version"] == 1:
        return body
    covered = {name: dict(value) if isinstance(value, dict) else value for name, value in fields.items()}
    for value in covered.values():
        if isinstance(value, dict) and "text_hash" in value:
            for name in ("text", "salt", "cut"):
                value.pop(name, None)
    return json.dumps(covered, sort_keys=True, separators=(",", ":"))


def _rows(path: Path) -> list[tuple[str, int, str, str]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(
            "SELECT chain_id, sequence, hash, body FROM audit_records ORDER BY chain_id, sequence"
        ).fetchall()


def of_kind(path: Path, kind: str) -> list[dict[str, Any]]:
    """What the records of a kind say."""
    return [each for each in bodies(path) if each["kind"] == kind]


def calls(path: Path) -> list[str]:
    """The ids of the calls that have an intent, chain by chain, in order."""
    return [each["call_id"] for each in of_kind(path, "intent")]


def lines(path: Path) -> list[dict[str, Any]]:
    """The checkpoints outside the store."""
    return [json.loads(line) for line in Path(f"{path}.checkpoints").read_text().splitlines()]
