"""Where a chain ends: closed, left by its writer, or with its beginning archived; and what `verify` says of it."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import create_engine

from tests.audit.made import NOON, SECOND, Chain, Row, row_of, write
from tests.audit.postgresql import WRITER, Database
from traced_tools.audit.schema import RECORDS
from traced_tools.audit.verifying.walk import verify
from traced_tools.errors import ConfigurationError

KEY = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = KEY.public_key().public_bytes_raw()
NOON_TIME = datetime.fromtimestamp(NOON // SECOND, UTC)


def called(chain: Chain, calls: int = 2) -> Chain:
    for number in range(calls):
        chain.call(run_id=f"run-{number}")
    return chain


def found(store: Path, **options: Any) -> tuple[str, str | None, int | None] | None:
    problem = verify(store, **options).problem
    return None if problem is None else (problem.finding, problem.chain_id, problem.sequence)


def remove(store: Path, condition: str) -> None:
    with closing(sqlite3.connect(store)) as connection, connection:
        connection.execute(f"DELETE FROM audit_records WHERE {condition}")


# A chain that was closed.


def closed(signing_key: Ed25519PrivateKey | None = None) -> Chain:
    """Records 1 to 6, and 7, the checkpoint that closes the chain."""
    chain = called(Chain(signing_key=signing_key))
    chain.checkpoint(final=True)
    return chain


def test_a_closed_chain_verifies(tmp_path: Path) -> None:
    result = verify(write(tmp_path / "audit.db", closed(KEY)), public_key=PUBLIC)
    assert (result.problem, result.uncovered, result.notes) == (None, 0, ())


@pytest.mark.parametrize("outside", [True, False])
def test_a_record_forged_behind_the_end_of_a_closed_chain_is_inserted(tmp_path: Path, outside: bool) -> None:
    chain = closed()
    chain.add("decision", run_id="run-1", decision="approved")
    if not outside:
        chain.lines.clear()
    assert found(write(tmp_path / "audit.db", chain)) == ("inserted", "chain-a", 8)


def test_a_line_that_contradicts_its_final_checkpoint_is_damaged(tmp_path: Path) -> None:
    chain = closed()
    del chain.lines[0]["final"]
    assert found(write(tmp_path / "audit.db", chain)) == ("damaged line", None, None)


# A chain that its writer left.


def left(chain: Chain, length: int | None = None, **place: Any) -> Chain:
    """A new chain, which begins with the end of the one that was left: record `length`, else the last."""
    length = chain.length if length is None else length
    end = {"chain_id": chain.chain_id, "sequence": length, "hash": chain.rows[length - 1]["hash"], **place}
    new = Chain("chain-b", time=chain.time)
    new.add("gap", since="x", until="y", late=0, lost=0, abandoned=end)
    return called(new)


def test_an_abandoned_chain_is_covered_up_to_its_recorded_end(tmp_path: Path) -> None:
    chain = called(Chain())
    result = verify(write(tmp_path / "audit.db", chain, left(chain)))
    assert (result.problem, result.uncovered) == (None, 7)
    assert not [note for note in result.notes if "gap" in note]


def test_an_abandoned_chain_that_lacks_its_recorded_end_is_cut_off(tmp_path: Path) -> None:
    chain = called(Chain())
    new = left(chain)
    new.checkpoint(_shortened(chain))
    store = write(tmp_path / "audit.db", chain, new)
    remove(store, "chain_id = 'chain-a' AND sequence > 3")
    problem = verify(store).problem
    assert problem is not None
    assert (problem.finding, problem.chain_id, problem.sequence) == ("cut off", "chain-a", 4)
    assert "gap record 1 of the chain chain-b" in problem.text


def _shortened(chain: Chain) -> Chain:
    """What a later checkpoint sees of a chain, when its end is gone: it must not ratify the cut."""
    return Chain(chain.chain_id, length=3, head=chain.rows[2]["hash"])


def test_a_record_added_to_an_abandoned_chain_is_inserted(tmp_path: Path) -> None:
    chain = called(Chain())
    new = left(chain)
    chain.add("outcome", run_id="run-1", outcome="error")
    new.checkpoint(chain)
    assert found(write(tmp_path / "audit.db", chain, new)) == ("inserted", "chain-a", 7)


def test_an_abandoned_chain_with_a_different_last_record_is_changed(tmp_path: Path) -> None:
    chain = called(Chain())
    assert found(write(tmp_path / "audit.db", chain, left(chain, hash="f" * 64))) == ("changed", "chain-a", 6)


def test_an_abandoned_chain_that_is_missing_is_removed(tmp_path: Path) -> None:
    chain = called(Chain())
    assert found(write(tmp_path / "audit.db", left(chain))) == ("removed", "chain-a", 1)


@pytest.mark.parametrize(
    "place", [None, [], {}, {"sequence": 10**30}, {"chain_id": "chain-a", "sequence": "x", "hash": "y"}], ids=str
)
def test_an_invalid_reference_to_an_abandoned_chain_is_ignored(tmp_path: Path, place: object) -> None:
    chain = called(Chain())
    chain.add("gap", abandoned=place)
    assert found(write(tmp_path / "audit.db", chain)) is None


def test_impossibly_large_sequence_numbers_are_reported_as_problems(tmp_path: Path) -> None:
    chain = called(Chain())
    chain.add("gap", abandoned={"chain_id": "chain-a", "sequence": 10**30, "hash": "f" * 64})
    assert found(write(tmp_path / "gap.db", chain)) == ("cut off", "chain-a", 8)
    chain = called(Chain())
    chain.rows[2]["body"] = chain.rows[2]["body"].replace('"sequence":3', '"sequence":' + "9" * 30)
    assert found(write(tmp_path / "number.db", chain)) == ("removed", "chain-a", 3)


# Chains that nobody signed.


def test_with_a_public_key_chains_without_a_signed_checkpoint_are_noted(tmp_path: Path) -> None:
    forged = called(Chain("chain-f"))
    store = write(tmp_path / "audit.db", closed(KEY), forged)
    assert "chains without a signed checkpoint: chain-f" in verify(store, public_key=PUBLIC).notes
    assert not [note for note in verify(store).notes if "signed" in note]


def test_of_many_unsigned_chains_the_first_are_listed(tmp_path: Path) -> None:
    result = verify(
        write(tmp_path / "audit.db", *(called(Chain(f"chain-{each}")) for each in range(7))), public_key=PUBLIC
    )
    assert (
        result.notes[-1] == "chains without a signed checkpoint: chain-0, chain-1, chain-2, chain-3, chain-4 and 2 more"
    )


# Records that were archived.


def aged() -> Chain:
    """Records 1 to 6, a checkpoint 7, records 8 to 13, a checkpoint 14, each a second after the other."""
    chain = called(Chain())
    chain.checkpoint()
    called(chain).checkpoint()
    return chain


def after(sequence: int) -> datetime:
    """The time between a record of `aged` and the next one."""
    return NOON_TIME + timedelta(seconds=sequence, milliseconds=500)


@pytest.fixture
def archived(tmp_path: Path) -> Path:
    """A store without the first nine records of a chain, nor any of an older chain."""
    old = called(Chain("chain-0", time=NOON - 99 * SECOND))
    old.checkpoint()
    store = write(tmp_path / "audit.db", old, aged())
    remove(store, "chain_id = 'chain-0' OR sequence <= 9")
    return store


def test_missing_records_are_a_problem_unless_they_were_archived(archived: Path) -> None:
    assert found(archived) == ("removed", "chain-a", 1)
    result = verify(archived, archived_before=after(9))
    assert result.problem is None
    assert (result.records, result.chains, result.uncovered) == (5, 1, 0)
    noted = "taken as archived before 2026-01-01T12:00:09.500000000Z: 9 records, and 1 whole chain"
    assert noted in result.notes


def test_a_missing_record_with_a_line_after_the_cutoff_is_a_problem(archived: Path) -> None:
    assert found(archived, archived_before=after(6)) == ("removed", "chain-a", 1)
    assert found(archived, archived_before=NOON_TIME - timedelta(days=1)) == ("removed", "chain-a", 1)


@pytest.mark.parametrize("missing", ["sequence < 7", "1"], ids=["the beginning", "all of it"])
def test_records_missing_from_a_chain_that_began_after_the_cutoff_are_removed(tmp_path: Path, missing: str) -> None:
    began = UUID(int=NOON // 1_000_000 << 80 | 7 << 76 | 2 << 62)  # a version 7, as of each writer
    chain = called(Chain(str(began), time=NOON - 99 * SECOND))  # its records say that they are older
    chain.checkpoint()
    store = write(tmp_path / "audit.db", chain)
    remove(store, missing)
    assert found(store, archived_before=NOON_TIME) == ("removed", str(began), 1)
    assert found(store, archived_before=NOON_TIME + timedelta(milliseconds=1)) is None


def test_a_missing_chain_with_a_line_after_the_cutoff_is_a_problem(tmp_path: Path) -> None:
    chain = aged()
    store = write(tmp_path / "audit.db", chain)
    remove(store, "1")
    assert found(store, archived_before=after(14)) is None
    assert found(store, archived_before=after(13)) == ("removed", "chain-a", 1)


def test_a_missing_record_that_is_later_than_the_cutoff_is_removed(tmp_path: Path) -> None:
    store = write(tmp_path / "audit.db", aged())
    remove(store, "sequence = 10")
    assert found(store, archived_before=NOON_TIME - timedelta(seconds=51)) == ("removed", "chain-a", 10)
    assert found(store, archived_before=NOON_TIME - timedelta(seconds=48)) is None  # neighbours may be out of order


def test_the_remaining_records_of_an_archived_chain_are_checked(archived: Path) -> None:
    with closing(sqlite3.connect(archived)) as connection, connection:
        connection.execute("UPDATE audit_records SET agent = 'other' WHERE sequence = 11")
    assert found(archived, archived_before=after(9)) == ("changed", "chain-a", 11)


def test_the_record_after_archived_ones_must_match_the_attested_hash(tmp_path: Path) -> None:
    chain = aged()
    rows: list[Row] = chain.rows
    rows[6]["hash"] = rows[6]["hash"][::-1]  # all that follow are forged, and their lines are gone
    for index in range(7, 14):
        rows[index] = _linked(rows[index], rows[index - 1]["hash"])
    del chain.lines[1]
    store = write(tmp_path / "audit.db", chain)
    remove(store, "sequence <= 7")
    assert found(store, archived_before=after(7)) == ("changed", "chain-a", 7)


def _linked(row: Row, previous: str) -> Row:
    fields = json.loads(row["body"]) | {"previous": previous}
    return row_of(fields | ({"head": previous} if row["kind"] == "checkpoint" else {}), row["time"])


def test_a_time_without_a_zone_is_refused(archived: Path) -> None:
    with pytest.raises(ConfigurationError, match="archived_before has no time zone"):
        verify(archived, archived_before=datetime(2026, 1, 1))


def test_a_detached_partition_is_verified_with_a_cutoff(database: Database, tmp_path: Path) -> None:
    january = int(datetime(2001, 1, 31, 23, 59, tzinfo=UTC).timestamp()) * SECOND
    chain = Chain(time=january)
    called(chain).checkpoint()
    chain.time += 3600 * SECOND
    called(chain).checkpoint()
    engine = create_engine(database.url(WRITER))
    with engine.begin() as connection:
        connection.execute(RECORDS.insert(), chain.rows)
    engine.dispose()
    with closing(database.connect()) as owner:
        owner.execute("SELECT audit_make_partitions()")
        assert owner.execute("SELECT audit_detach_partitions('2001-02-01T00:00Z')").fetchall()
    lines = tmp_path / "lines"
    lines.write_text("".join(json.dumps(line) + "\n" for line in chain.lines))
    url = database.url("my_auditor")
    problem = verify(url, checkpoints=lines).problem
    assert problem is not None
    assert problem.finding == "removed"
    result = verify(url, checkpoints=lines, archived_before=datetime(2001, 2, 1, tzinfo=UTC))
    assert (result.problem, result.records) == (None, 7)
